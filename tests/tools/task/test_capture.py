"""Capture against real models: the graph says what the model computes, and a task that proves nothing is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch._decomp import decompositions

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import Arrangement, OpGraph, Ref
from foundry.knowledge.task import Task, TaskOptions
from foundry.tools.task.capture import CannotCapture, _why_none, capture
from foundry.tools.task.file import read_task
from foundry.tools.task.form.values import arrange
from foundry.tools.task.intake import captured_case
from foundry.tools.task.loading import LoadedTask, check_reference, load

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = {
    "attention": {"TOKENS": 16},
    "conv2d_batchnorm_relu": {"BATCH": 2, "SIZE": 8},
    "cross_entropy": {"TOKENS": 8, "CLASSES": 16},
    "gemm_bias_relu": {"ROWS": 8, "IN_FEATURES": 16, "OUT_FEATURES": 24},
    "groupnorm_silu": {"BATCH": 2, "SIZE": 4},
    "layernorm_gelu": {"TOKENS": 8},
    "masked_cumsum": {"ROWS": 8},
    "mlp": {"TOKENS": 8},
    "pointwise_chain": {"ROWS": 8},
    "rmsnorm_residual": {"BATCH": 2, "TOKENS": 8},
    "softmax": {"ROWS": 8, "COLUMNS": 33},
}
MAIN_OPERATOR = {
    "attention": {"matmul": 2, "softmax": 1},
    "conv2d_batchnorm_relu": {"conv2d": 1, "_native_batch_norm_legit_functional": 1, "relu": 1},
    "cross_entropy": {"cross_entropy_loss": 1},
    "gemm_bias_relu": {"linear": 1, "relu": 1},
    "groupnorm_silu": {"group_norm": 1, "silu": 1},
    "layernorm_gelu": {"add": 1, "layer_norm": 1, "gelu": 1},
    "masked_cumsum": {"mul": 1, "cumsum": 1},
    "mlp": {"linear": 2, "gelu": 1, "add": 1},
    "pointwise_chain": {"sigmoid": 1, "tanh": 1},
    "rmsnorm_residual": {"rsqrt": 1, "mean": 1},
    "softmax": {"softmax": 1, "div": 1},
}


def loaded(body: str, *, inputs: str = "[torch.randn(4, 8)]", init: str = "pass", **options: object) -> LoadedTask:
    source = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nN = 4\n\n"
        f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n\n"
        f"    def forward(self, x, *rest):\n        {body}\n\n"
        f"def get_inputs():\n    return {inputs}\n"
    )
    digest = hashlib.sha256(source.encode()).hexdigest()
    return load(Task("job", "/nowhere/job.py", source, digest, TaskOptions(**options)))  # type: ignore[arg-type]


def graph_of(task: LoadedTask) -> OpGraph:
    graph = capture(task.build_model(0), task.inputs(0))
    assert decode(OpGraph, encode(graph)) == graph
    return graph


@pytest.mark.parametrize("name", sorted(SMALL))
def test_examples_are_captured_whole(name: str) -> None:
    task = load(read_task(EXAMPLES / f"{name}.py"), overrides=SMALL[name])
    specs = check_reference(task).outputs
    graph = graph_of(task)
    assert MAIN_OPERATOR[name].items() <= graph.op_counts().items()
    assert [graph.values[output].spec.shape for output in graph.output_names] == [spec.shape for spec in specs]
    assert graph.tracer == "export"


def test_every_example_is_listed() -> None:
    assert sorted(SMALL) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


def test_overrides_reach_the_captured_shapes() -> None:
    task = load(read_task(EXAMPLES / "softmax.py", scale=3), overrides={"ROWS": 5, "COLUMNS": 7})
    assert graph_of(task).inputs[0].spec.shape == (15, 7)


def test_flops_of_contractions_are_exact() -> None:
    task = load(read_task(EXAMPLES / "gemm_bias_relu.py"), overrides=SMALL["gemm_bias_relu"])
    linear = next(op for op in graph_of(task).ops if op.kind == "linear")
    assert linear.flops == 2 * 8 * 16 * 24 + 8 * 24
    convolution = graph_of(
        loaded("return self.c(x)", init="self.c = nn.Conv2d(4, 6, 3, groups=2)", inputs="[torch.randn(1, 4, 5, 5)]")
    ).ops[0]
    assert convolution.flops == 2 * (6 * 3 * 3) * (2 * 3 * 3) + 6 * 3 * 3
    transposed = graph_of(
        loaded(
            "return self.c(x)",
            init="self.c = nn.ConvTranspose2d(4, 6, 3, bias=False)",
            inputs="[torch.randn(1, 4, 5, 5)]",
        )
    ).ops[0]
    assert transposed.flops == 2 * (4 * 5 * 5) * (6 * 3 * 3)


def test_batch_norm_in_training_mode_writes_its_running_statistics_back() -> None:
    graph = graph_of(load(read_task(EXAMPLES / "conv2d_batchnorm_relu.py"), overrides={"BATCH": 1, "SIZE": 4}))
    assert set(graph.mutations) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert graph.training
    assert {value.source for value in graph.state if value.role == "buffer"} == set(graph.mutations)


def test_in_place_operators_become_functional() -> None:
    graph = graph_of(loaded("y = x * 2; y += 1; y[:, 0] = 0; return F.relu(y, inplace=True)"))
    assert not any(op.kind.endswith("_") for op in graph.ops)
    assert "relu" in graph.op_counts()


def test_views_keep_names_and_strides() -> None:
    graph = graph_of(loaded("return x.transpose(0, 1)[1:] * 2"))
    transpose = graph.values[graph.ops[0].name].spec
    assert (transpose.shape, transpose.strides) == ((8, 4), (1, 8))


def test_numbers_among_the_inputs_stay_open_where_they_can_and_inputs_keep_their_position() -> None:
    inputs = "[torch.randn(2, 3), 2.5, torch.randn(3), 1]"
    graph = graph_of(loaded("return (rest[1] * x + rest[0]).sum(rest[2])", inputs=inputs))
    assert [(value.source, value.spec.shape) for value in graph.inputs] == [("0", (2, 3)), ("1", ()), ("2", (3,))]
    assert graph.fixed == {"3": 1}
    for forward in (
        "return F.leaky_relu(x, rest[0])",  # an attribute of the operator
        "return x * rest[1] if rest[0] > 1 else x",  # Python decides
        "return x.long() * rest[0]",  # a tensor of float64 gives float64, a number float32
    ):
        graph = graph_of(loaded(forward, inputs="[torch.randn(2, 3), 2.5, torch.randn(3)]"))
        assert graph.fixed == {"1": 2.5}, forward
        assert "1" not in [value.source for value in graph.inputs]


def test_small_constants_are_inline_and_large_ones_are_read_where_the_model_holds_them() -> None:
    graph = graph_of(loaded("return x * torch.tensor([1.0, 2.0]).sum() + self.t", init="self.t = torch.arange(8.0)"))
    assert [value.data for value in graph.state if value.source == "t"] == [[float(item) for item in range(8)]]
    init = "self.inner = nn.Module(); self.inner.t = torch.randn(10, 10).t()"
    graph = graph_of(loaded("return x[:, :1] + self.inner.t[0]", init=init))
    (held,) = graph.state
    assert (held.role, held.source, held.data, held.spec.strides) == ("constant", "inner.t", None, (1, 10))
    with pytest.raises(CannotCapture, match=r"make it one in __init__ \(self.table = ...\)"):
        graph_of(loaded("return x[:, :1] + self.t[0]", init="self.t = [torch.randn(100)]"))


def test_a_plain_attribute_is_read_by_make_fx_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from foundry.tools.task import capture as module

    def refuse(*_: object) -> None:
        raise RuntimeError("export is off")

    monkeypatch.setattr(module, "trace_export", refuse)
    graph = graph_of(loaded("return x[:, :1] + self.t", init="self.t = torch.randn(100)"))
    assert graph.tracer == "make_fx" and [(value.role, value.source) for value in graph.state] == [("constant", "t")]


def test_dropout_that_is_off_disappears() -> None:
    for init, options in (("self.d = nn.Dropout(0.0)", {}), ("self.d = nn.Dropout(0.5)", {"mode": "eval"})):
        graph = graph_of(loaded("return self.d(x) + 1", init=init, **options))
        assert "dropout" not in graph.op_counts()


def test_recurrences_and_several_results_stay_one_operator() -> None:
    graph = graph_of(
        loaded("y, (h, c) = self.l(x); return y, h", init="self.l = nn.LSTM(8, 3)", inputs="[torch.randn(5, 2, 8)]")
    )
    lstm = next(op for op in graph.ops if op.kind == "lstm")
    assert [value.spec.shape for value in lstm.outputs] == [(5, 2, 3), (1, 2, 3), (1, 2, 3)]
    assert graph.outputs == [Ref(lstm.outputs[0].name), Ref(lstm.outputs[1].name)]
    assert graph.arrangement == Arrangement.flat(2)
    assert lstm.flops == 2 * 10 * (12 * 8 + 12 * 3)


@pytest.mark.parametrize("tracer", ["export", "make_fx", "symbolic"])
def test_results_are_arranged_as_forward_arranges_them(tracer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from foundry.tools.task import capture as module

    def give_up(*_: object) -> None:
        raise ValueError

    for other in {"export", "make_fx", "symbolic"} - {tracer}:
        monkeypatch.setattr(module, f"trace_{other}", give_up)
    graph = graph_of(loaded("return {'b': x + 1, 'a': [x * 2, (x, None)], 'c': 3}"))
    leaf = Arrangement()
    nested = Arrangement("list", (leaf, Arrangement.flat(2)))
    assert graph.tracer == tracer
    assert graph.arrangement == Arrangement("dict", (leaf, nested, leaf), ("b", "a", "c"))
    assert [op.kind for op in graph.ops] == ["add", "mul"] and len(graph.outputs) == 5
    assert graph.outputs[3:] == [None, 3]


def test_a_dataclass_and_a_named_tuple_are_records() -> None:
    kinds = "import dataclasses, collections\n        "
    kinds += "Out = dataclasses.make_dataclass('Out', ['first', 'second'])\n        "
    kinds += "Pair = collections.namedtuple('Pair', 'a b')\n"
    graph = graph_of(loaded(f"{kinds}        return Out(x + 1, Pair(b=x * 2, a=x))"))
    leaf = Arrangement()
    pair = Arrangement("record", (leaf, leaf), ("a", "b"), "Pair")
    assert graph.arrangement == Arrangement("record", (leaf, pair), ("first", "second"), "Out")
    assert len(graph.outputs) == 3


def test_numbers_that_a_list_reads_from_an_input_are_not_baked_into_the_graph() -> None:
    inputs = "[torch.randn(4, 8), torch.tensor([2, 5])]"
    with pytest.raises(CannotCapture, match="values of tensors are read"):
        graph_of(loaded("return x[:, rest[0].tolist()]", inputs=inputs))


def test_a_record_whose_fields_compute_is_no_record() -> None:
    class Lazy:
        __dataclass_fields__: ClassVar[dict[str, None]] = {"y": None}

        @property
        def y(self) -> torch.Tensor:
            raise AssertionError("a field was computed")

    arrangement, leaves = arrange(Lazy())
    assert arrangement.keys == ("y",) and not isinstance(leaves[0], torch.Tensor)


@pytest.mark.parametrize("tracer", ["export", "make_fx"])
def test_inputs_are_taken_as_get_inputs_arranges_them(tracer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from foundry.tools.task import capture as module

    def give_up(*_: object) -> None:
        raise ValueError

    for other in {"export", "make_fx", "symbolic"} - {tracer}:
        monkeypatch.setattr(module, f"trace_{other}", give_up)
    inputs = "[torch.randn(4, 8), {'b': torch.randn(4, 8), 'a': [torch.randn(8), 0.5, 3]}]"
    graph = graph_of(loaded("y = rest[0]; return x * y['b'] + y['a'][0] * y['a'][1] + y['a'][2]", inputs=inputs))
    leaf, nested = Arrangement(), Arrangement("dict", (Arrangement(), Arrangement.flat(3, "list")), ("b", "a"))
    assert graph.tracer == tracer and graph.takes == Arrangement("tuple", (leaf, nested))
    assert [(value.source, value.spec.shape) for value in graph.inputs] == [
        ("0", (4, 8)), ("1", (4, 8)), ("2", (8,)), ("3", ())
    ]  # fmt: skip
    assert graph.fixed == {"4": 3}


def test_a_list_of_one_tensor_is_not_taken_for_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    from foundry.tools.task import capture as module

    task = loaded("return x[0] + 1", inputs="[[torch.randn(4, 8)]]")
    (value,) = graph_of(task).outputs
    assert isinstance(value, Ref) and graph_of(task).values[value.ref].spec.shape == (4, 8)

    def give_up(*_: object) -> None:
        raise ValueError

    for other in ("export", "make_fx"):
        monkeypatch.setattr(module, f"trace_{other}", give_up)
    with pytest.raises(CannotCapture, match="a graph of nested inputs is not followed"):
        graph_of(task)


def test_what_is_neither_a_tensor_nor_a_number_is_no_input() -> None:
    with pytest.raises(CannotCapture, match="input 1 is a dtype; only tensors and numbers"):
        graph_of(loaded("return x + 1", inputs="[torch.randn(4, 8), torch.float32]"))


def test_a_tensor_that_is_no_buffer_may_be_written_anew_and_not_kept() -> None:
    init = "self.kept = torch.randn(300, 40)"
    graph = graph_of(loaded("self.kept.copy_(x); return self.kept * 2", init=init, inputs="[torch.randn(300, 40)]"))
    assert [op.kind for op in graph.ops] == ["mul"] and not graph.state and not graph.mutations
    for size in (300, 3):
        init, inputs = f"self.kept = torch.randn({size}, 40)", f"[torch.randn({size}, 40)]"
        with pytest.raises(CannotCapture, match="register it as a buffer"):
            graph_of(loaded("self.kept.add_(x); return self.kept * 2", init=init, inputs=inputs))


def test_parameters_in_a_plain_list_are_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    from foundry.tools.task import capture as module

    def refuse(*_: object) -> None:
        raise RuntimeError("export is off")

    monkeypatch.setattr(module, "trace_export", refuse)
    init = "self.weights = [nn.Parameter(torch.randn(40, 40))]"
    with pytest.raises(CannotCapture, match=r"belong in an nn.ParameterList"):
        graph_of(loaded("return x @ self.weights[0]", init=init, inputs="[torch.randn(300, 40)]"))


def test_last_states_have_the_shapes_of_those_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 says of an LSTM's on a GPU that they have one dimension more, and its eager LSTM gives others."""
    walk: Callable[..., Any] = decompositions.one_layer_lstm

    def as_in_2_11(*args: Any, **kwargs: Any) -> Any:
        found, last = walk(*args, **kwargs)
        return found, tuple(item.unsqueeze(0) for item in last)

    monkeypatch.setattr(decompositions, "one_layer_lstm", as_in_2_11)
    text = "_, (h, c) = self.l(x); return h[-1] + 1, c"
    with torch.backends.mkldnn.flags(enabled=False):  # its layer is another one
        graph = graph_of(loaded(text, init="self.l = nn.LSTM(8, 3, 2)", inputs="[torch.randn(5, 2, 8)]"))
    specs = {value.name: value.spec.shape for op in graph.ops for value in op.outputs}
    assert [specs[item.ref] for item in graph.outputs if isinstance(item, Ref)] == [(2, 3), (2, 2, 3)]


def test_make_fx_gives_the_same_answer_shape_where_export_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    from foundry.tools.task import capture as module

    def refuse(*_: object) -> None:
        raise RuntimeError("export is off")

    monkeypatch.setattr(module, "trace_export", refuse)
    task = load(read_task(EXAMPLES / "conv2d_batchnorm_relu.py"), overrides={"BATCH": 1, "SIZE": 4})
    graph = graph_of(task)
    assert graph.tracer == "make_fx"
    assert {"norm.running_mean", "norm.running_var"} <= set(graph.mutations)
    assert {"norm.weight", "conv.weight"} <= {value.source for value in graph.state}


def test_hidden_updates_of_state_are_refused() -> None:
    init = "self.n = nn.InstanceNorm1d(4, track_running_stats=True)"
    with pytest.raises(CannotCapture, match="updates running statistics"):
        graph_of(loaded("return self.n(x)", init=init, inputs="[torch.randn(2, 4, 8)]"))


def test_a_tracer_that_gives_up_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotCapture):
        graph_of(loaded("return x + 1 if x.sum() > 0 else x - 1"))
    assert capfd.readouterr() == ("", "")


def test_data_dependent_models_are_refused_with_the_reasons() -> None:
    reads = "no tracer could follow the model: the values of tensors are read in line 13"
    bodies = ("return x + 1 if x.sum() > 0 else x - 1", "return x.view(int(x.sum()) % 3 + 1, -1)")
    for body in (*bodies, "return x + 1 if torch.equal(x, -x) else x - 1"):
        with pytest.raises(CannotCapture, match=reads) as caught:
            graph_of(loaded(body))
        assert len(str(caught.value)) < 260
    for body in ("return x[x > 0].sort().values", "return x[torch.nonzero(x[:, 0] > 0)[:, 0]]"):
        with pytest.raises(CannotCapture, match="line 13 makes a tensor whose size depends on values") as caught:
            graph_of(loaded(body))
        assert "\n" not in str(caught.value)


def test_complex_numbers_among_arguments_are_named() -> None:
    with pytest.raises(CannotCapture, match="line 13 has the complex number 1j; the kernel compiler has real numbers"):
        graph_of(loaded("return torch.view_as_real(torch.full_like(x + 0j, 1j))"))


def test_one_reason_of_all_tracers_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*_: object) -> None:
        raise RuntimeError("not today")

    for name in ("trace_export", "trace_make_fx", "trace_symbolic"):
        monkeypatch.setattr(f"foundry.tools.task.capture.{name}", gives_up)
    with pytest.raises(CannotCapture) as caught:
        graph_of(loaded("return x"))
    assert str(caught.value) == ("no tracer could follow the model: export, make_fx, symbolic: RuntimeError: not today")


def test_a_parameter_that_is_read_past_autograd_is_the_parameter() -> None:
    init = "self.w = nn.Parameter(torch.randn(16, 16))"
    graph = graph_of(loaded("return x @ self.w.data", init=init, inputs="[torch.randn(4, 16)]"))
    assert [(value.role, value.source) for value in graph.state] == [("parameter", "w")]


def test_operators_name_their_line() -> None:
    graph = graph_of(loaded("return x.cumprod(1)"))
    assert [(op.kind, op.line) for op in graph.ops] == [("cumprod", 13)]


# ---------------------------------------------------------------- what is refused before any kernel is written


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"body": "return x", "inputs": "[torch.randn(N, 'a')]"}, "line 16: get_inputs() failed: TypeError"),
        (
            {"body": "return x", "inputs": "[torch.randn(N), {1: 2}]"},
            "input 1 of get_inputs() is a dict with other keys",
        ),
        ({"body": "return x @ x"}, "line 13: Model.forward failed on the inputs"),
        ({"body": "return None"}, "forward returned no tensor"),
        ({"body": "return {1: x}"}, "forward returned a dict"),
        ({"body": "return x[:0]"}, "no output has elements (shapes: [0, 8])"),
        ({"body": "return x", "inputs": "[torch.randn(0, 3)]"}, "no output has elements (shapes: [0, 3])"),
        ({"body": "return torch.log(x)"}, "output 0 holds NaN"),
        ({"body": "return x + torch.rand_like(x)"}, "output is random"),
        ({"body": "return self.d(x)", "init": "self.d = nn.Dropout(0.5)"}, "output is random"),
        (
            {"body": "return x.add_(1)", "inputs": "[torch.randn(N, 8)[0].expand(N, 8)]"},
            "job.py, line 13: forward writes to its input 0 in place (add_), and several of its elements share memory",
        ),
        (
            {"body": "return x.add_(1) + rest[0]", "inputs": "(lambda t: [t[1:], t[:3]])(torch.randn(N, 8))"},
            "job.py, line 13: forward writes to its input 0 in place (add_), which shares memory with input 1 (give",
        ),
        (
            {"body": "x.data.add_(1); return x + 1"},
            "job.py, line 13: forward writes to its input 0 in place (add_), past PyTorch's version counter",
        ),
        (
            {"body": "return x + id(object())", "init": "raise ValueError('no')"},
            "building Model failed: ValueError: no",
        ),
        ({"body": "import time; return x * (time.perf_counter_ns() % 997)"}, "not deterministic"),
        ({"body": "import sys; sys.exit(3)"}, "SystemExit: 3"),
        ({"body": "return x", "inputs": "5"}, "forward returned no tensor"),
        ({"body": "return x", "inputs": "[torch.empty(1 << 50)]"}, "more memory than this machine gives"),
    ],
)
def test_a_task_that_proves_nothing_is_one_clear_line(task: dict[str, str], words: str) -> None:
    with pytest.raises(TaskError) as caught:
        check_reference(loaded(**task))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_inputs_that_forward_writes_are_results() -> None:
    task = loaded(
        "rest[0].mul_(0.9).add_(x); return x * rest[0].sum(), rest[0]", inputs="[torch.ones(N), torch.rand(N)]"
    )
    checked = check_reference(task)
    assert [spec.shape for spec in checked.outputs] == [(4,), (4,)] and [spec.shape for spec in checked.written] == [
        (4,)
    ]
    graph = captured_case(task, torch.device("cpu"))
    assert graph.mutations == {"input 1": "add"} and graph.returned == {"1": "1"}
    assert decode(OpGraph, encode(graph)) == graph
    nothing = captured_case(
        loaded("x.lerp_(rest[0], 0.1)", inputs="[torch.ones(N), torch.rand(N)]"), torch.device("cpu")
    )
    assert nothing.outputs == [None] and nothing.mutations == {"input 0": "lerp"}
    equal = captured_case(loaded("y = x + 1; x.copy_(y); return y", inputs="[torch.ones(N)]"), torch.device("cpu"))
    assert equal.mutations == {"input 0": "add"} and not equal.returned, "an equal result is another tensor"


def test_stateful_but_deterministic_models_and_tuples_pass() -> None:
    specs = check_reference(loaded("return self.b(x), x.argmax(1)", init="self.b = nn.BatchNorm1d(8)")).outputs
    assert [spec.dtype for spec in specs] == ["float32", "int64"]


def test_options_change_inputs_and_mode() -> None:
    task = loaded("return x", input_range=(3.0, 4.0), mode="eval")
    (x,) = task.inputs(1)
    assert float(x.min()) >= 3.0
    assert not task.build_model(0).training
    assert torch.equal(x, task.inputs(1)[0])


def test_two_tasks_never_share_a_module() -> None:
    first, second = loaded("return x"), loaded("return x")
    assert first.module.__name__ != second.module.__name__


def test_an_operator_that_reads_values_is_not_called_the_users_python() -> None:
    """`istft` compares elements while it runs; another tracer's failure at an earlier line named a wrong one."""

    class DataDependentOutputException(RuntimeError):
        pass

    earlier, reading = RuntimeError("quantile is not known"), DataDependentOutputException("aten.equal.default")
    found = _why_none(torch.nn.ReLU(), {"export": reading, "symbolic": earlier})
    assert found == "the values of tensors are read (by aten.equal), as `if x.sum() > 0`, x.item() and x[mask] do"
    python = DataDependentOutputException("aten._local_scalar_dense.default")
    assert _why_none(torch.nn.ReLU(), {"make_fx": python}).startswith("the values of tensors are read, as `if")
