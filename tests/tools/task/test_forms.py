"""The forms in which people's tasks come: other class names, arguments by name, cases, files beside the task."""

from __future__ import annotations

import ast
import types
from pathlib import Path

import pytest
import torch

from foundry.knowledge.compiler.file.assemble import split_task
from foundry.knowledge.errors import TaskError
from foundry.tools.task import bundle, intake
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.form.calls import GROUP, MOST_GROUPS, Keywords, as_arguments, call, chosen_groups
from foundry.tools.task.form.drawing import InputMaker
from foundry.tools.task.form.members import check_members
from foundry.tools.task.form.watched import only_known_files
from foundry.tools.task.loading import LoadedTask, arrange, case_keys, check_reference, load, rebuilt

TOP = "import torch\nfrom torch import nn\n\n\n"
GATED = f"""{TOP}class Half(nn.Module):
    def forward(self, x):
        return x / 2


class Gated(nn.Module):
    def __init__(self, width, hidden=4, *, slope=0.1):
        super().__init__()
        self.up, self.halve, self.slope = nn.Linear(width, hidden), Half(), slope

    def forward(self, x, scale=None, *, shift=0.0):
        y = nn.functional.leaky_relu(self.halve(self.up(x)), self.slope) + shift
        return y if scale is None else y * scale


"""


def loaded(folder: Path, text: str, options: str = "", **given: int) -> LoadedTask:
    (folder / "job.py").write_text(text)
    (folder / "job.toml").write_text(options)
    return load(read_task(folder / "job.py"), overrides=given)


def makers(inputs: str, init: str = "[6]") -> str:
    return f"{GATED}def get_inputs():\n    {inputs}\n\n\ndef get_init_inputs():\n    return {init}\n"


# ---------------------------------------------------------------- the model's class

ONE = "class {}(nn.Module):\n    def forward(self, x):\n        return x\n\n\n"
INPUTS = "def get_inputs():\n    return [torch.randn(3)]\n"


@pytest.mark.parametrize(
    ("classes", "name"),
    [
        (ONE.format("Model") + ONE.format("Other"), "Model"),
        (ONE.format("Alone"), "Alone"),
        ("class Inner(nn.Linear):\n    pass\n\n\nclass Outer(nn.Module):\n    def forward(self, x):\n"
         "        return Inner(3, 3)(x)\n\n\n", "Outer"),
        (ONE.format("Base") + "class Derived(Base):\n    pass\n\n\n", "Derived"),
        (ONE.format("Round").replace("nn.Module", "torch.autograd.Function") + ONE.format("Alone"), "Alone"),
    ],
)  # fmt: skip
def test_the_class_is_model_or_the_only_one_that_nothing_else_uses(classes: str, name: str) -> None:
    assert check_members(ast.parse(TOP + classes + INPUTS), "job.py") == name


def test_two_classes_that_may_be_meant_are_both_named_and_one_is_chosen(tmp_path: Path) -> None:
    text = TOP + ONE.format("First") + ONE.format("Second").replace("return x", "return 2 * x") + INPUTS
    with pytest.raises(TaskError) as caught:
        loaded(tmp_path, text)
    assert str(caught.value) == (
        "job.py has no class Model, and 2 classes that may be meant: First, Second "
        '(name one with --class Second, or write model = "Second" in the options beside the task)'
    )
    task = loaded(tmp_path, text, 'model = "Second"')
    assert type(task.build_model(0)).__name__ == "Second"
    assert read_task(tmp_path / "job.py", model="First").options.model == "First"
    with pytest.raises(TaskError, match=r"has no class Third \(its classes are First, Second\)"):
        read_task(tmp_path / "job.py", model="Third")


def test_a_class_that_uses_another_one_called_model_cannot_take_its_name() -> None:
    text = TOP + ONE.format("Model") + "class Outer(Model):\n    pass\n\n\n" + INPUTS
    with pytest.raises(TaskError, match="class Outer uses another class called Model"):
        check_members(ast.parse(text), "job.py", "Outer")


def test_a_kernel_file_holds_the_class_under_both_names(tmp_path: Path) -> None:
    task = loaded(tmp_path, makers("return [torch.randn(2, 6)]")).task
    space: dict[str, object] = {}
    exec(split_task(task.text, {})[1], space)
    assert space["Model"] is space["Gated"]
    assert task.source == (tmp_path / "job.py").read_text()  # what receipts name


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("init", ["[[6, 4], {'slope': 0.2}]", "{'width': 6, 'slope': 0.2}", "[[6], dict(slope=0.2)]"])
def test_constructors_take_names(tmp_path: Path, init: str) -> None:
    task = loaded(tmp_path, makers("return [torch.randn(2, 6)]", init))
    model = task.build_model(0)
    assert model.slope == 0.2
    assert model.get_parameter("up.weight").shape == (4, 6)
    assert call(task.module.Model, bundle.pack(task.init_arguments(0)).value()).slope == 0.2


@pytest.mark.parametrize(
    ("inputs", "shift"),
    [
        ("return torch.randn(2, 6)", 0.0),
        ("return [torch.randn(2, 6)]", 0.0),
        ("return torch.randn(2, 6), None", 0.0),
        ("return {'x': torch.randn(2, 6)}", 0.0),
        ("return {'x': torch.randn(2, 6), 'scale': 1.0}", 0.0),
        ("return [[torch.randn(2, 6)], {}]", 0.0),
        ("return [[torch.randn(2, 6)], {'scale': None, 'shift': 2}]", 2.0),
        ("return {'x': torch.randn(2, 6), 'shift': torch.full((4,), 2.0)}", 2.0),
    ],
)
@pytest.mark.parametrize("tracer", ["export", "make_fx"])
def test_forward_takes_arguments_in_each_form(
    tmp_path: Path, inputs: str, shift: float, tracer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = loaded(tmp_path, makers(inputs))
    values = task.inputs(0)
    (output,) = check_reference(task).outputs
    assert output.shape == (2, 4)
    model = task.build_model(0)
    plain = model(values[0])
    torch.testing.assert_close(task.run(model, bundle.pack(values).value()), plain + shift)
    arrangement, leaves = arrange(values)
    torch.testing.assert_close(task.run(model, rebuilt(arrangement, iter(leaves))), plain + shift)
    if tracer == "make_fx":
        monkeypatch.setattr("foundry.tools.task.capture.trace_export", _gives_up)
    graph = capture(model, values)
    assert graph.tracer == tracer
    assert {value.source for value in graph.inputs} >= {"0"}


def _gives_up(*_: object) -> None:
    raise RuntimeError("not today")


def test_a_dict_is_one_argument_where_its_keys_are_no_names() -> None:
    def forward(batch: object, scale: float = 1.0) -> None: ...

    assert as_arguments({"a": 1}, forward) == [{"a": 1}]
    assert as_arguments([[1, 2], {"a": 1}], forward) == [[1, 2], {"a": 1}]
    assert as_arguments([[1], {"scale": 2}], forward) == [1, 2]
    assert as_arguments({"batch": 1}, forward) == [1]

    def only_names(x: int, y: int = 0, *, z: int) -> None: ...

    (x, names) = as_arguments({"z": 3, "x": 1}, only_names)
    assert (x, type(names), names) == (1, Keywords, {"z": 3})
    assert as_arguments([[1], {"z": 3, "other": 4}], only_names) == [[1], {"z": 3, "other": 4}]


# ---------------------------------------------------------------- cases


def test_a_generator_gives_cases_that_begin_with_the_same_random_streams(tmp_path: Path) -> None:
    task = loaded(tmp_path, makers("for rows in (2, 5, 5, 3):\n        yield [torch.randn(rows, 6)]")).task
    keys = case_keys(load(task))
    assert keys == [({}, None), ({GROUP: 1}, None), ({GROUP: 3}, None)]
    cases = [load(task, overrides=overrides) for overrides, _ in keys]
    drawn = [case.inputs(7)[0] for case in cases]
    assert [item.shape[0] for item in drawn] == [2, 5, 3]
    assert torch.equal(drawn[0], torch.randn(2, 6, generator=torch.Generator().manual_seed(7)))
    assert torch.equal(drawn[1], cases[1].inputs(7)[0])
    assert check_reference(cases[2]).outputs[0].shape == (3, 4)


def test_input_groups_are_cases_whatever_their_form(tmp_path: Path) -> None:
    text = GATED + (
        "def get_input_groups():\n    shapes = [(2, 6), (3, 6)]\n"
        "    named = [[torch.randn(9, 6)], {'shift': 1.0}]\n"
        "    return [[torch.randn(shapes[0])], {'x': torch.randn(shapes[1])}, named]\n\n\n"
        "def get_init_inputs():\n    return [6]\n"
    )
    task = loaded(tmp_path, text).task
    cases = [load(task, overrides=overrides) for overrides, _ in case_keys(load(task))]
    assert [case.inputs(0)[0].shape[0] for case in cases] == [2, 3, 9]
    assert cases[2].inputs(0)[-1] == {"shift": 1.0}


class Silent:
    """Takes the messages of an intake worker."""

    def send_text(self, message: object) -> None:
        assert message


def test_a_case_that_cannot_be_judged_is_named(tmp_path: Path) -> None:
    text = makers("for rows in (2, 0):\n        yield [torch.randn(rows, 6)]")
    with pytest.raises(
        TaskError, match=r"^input group 1 \(counted from 0\): no output has elements .*leave this case out"
    ):
        intake._check(loaded(tmp_path, text).task, torch.device("cpu"), control=Silent())  # type: ignore[arg-type]


def test_groups_are_spread_over_sizes_and_the_first_stays() -> None:
    found = chosen_groups([(size, size) for size in range(100, 0, -1)])
    assert len(found) == MOST_GROUPS
    assert found[0] == 0
    assert {1, 99} <= set(found)
    assert chosen_groups([("a", 1), ("a", 1), ("b", 2)]) == [0, 2]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("return iter([[torch.randn(2, 6)]])", "get_inputs() returned a list_iterator"),
        ("yield from ()", "get_inputs() gives no case"),
        ("return [torch.randn(2, 6), {3: 4}]", "is a dict with other keys than strings"),
        ("return [{'a'}]", "get_inputs"),
    ],
)
def test_other_forms_are_one_line(tmp_path: Path, inputs: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        case_keys(task := loaded(tmp_path, makers(inputs)))
        bundle.pack(task.inputs(0))
        check_reference(task)
    assert words in str(caught.value) or "set" in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- files beside the task

BESIDE = f"""import pathlib
import numpy
{TOP}from layers.blocks import Double
import scale

TABLE = numpy.load(pathlib.Path(__file__).parent / "tables" / "shift.npy")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice = Double()
        self.register_buffer("shift", torch.from_numpy(TABLE.copy()))
        self.words = len(open("words.txt").read())

    def forward(self, x):
        return self.twice(x) * scale.FACTOR + self.shift + self.words


def get_inputs():
    return [torch.randn(4)]
"""


def with_files(folder: Path) -> None:
    numpy = pytest.importorskip("numpy")
    (folder / "layers").mkdir()
    (folder / "tables").mkdir()
    (folder / "layers" / "__init__.py").write_text("")
    (folder / "layers" / "blocks.py").write_text(
        "from torch import nn\nfrom . import inner\n\n\nclass Double(nn.Module):\n    def forward(self, x):\n"
        "        return inner.TWO * x\n"
    )
    (folder / "layers" / "inner.py").write_text("TWO = 2\n")
    (folder / "scale.py").write_text("FACTOR = 3\n")
    (folder / "words.txt").write_text("four")
    numpy.save(folder / "tables" / "shift.npy", numpy.ones(4, dtype=numpy.float32))


def test_files_beside_the_task_are_part_of_it(tmp_path: Path) -> None:
    with_files(tmp_path)
    task = loaded(tmp_path, BESIDE)
    (x,) = task.inputs(0)
    assert torch.equal(task.run(task.build_model(0), [x]), 2 * x * 3 + 1 + 4)
    assert set(task.task.options.files) == {
        *("layers/__init__.py", "layers/blocks.py", "layers/inner.py", "scale.py", "tables/shift.npy", "words.txt"),
    }
    before = task.task.digest
    (tmp_path / "layers" / "inner.py").write_text("TWO = 4\n")
    changed = read_task(tmp_path / "job.py")
    assert changed.digest != before
    assert changed.source == task.task.source


def test_two_tasks_have_modules_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "neighbour.py").write_text(f"NAME = {name!r}\n")
        task = loaded(folder, f"import neighbour\n{TOP}{ONE.format('Model')}{INPUTS}")
        assert name == task.module.neighbour.NAME


def test_a_file_that_the_text_does_not_name_has_to_be_named_in_the_options(tmp_path: Path) -> None:
    (tmp_path / "w3.txt").write_text("3")
    text = f"{TOP}W = int(open('w' + str(3) + '.txt').read())\n\n\n{ONE.format('Model')}{INPUTS}"
    (tmp_path / "job.py").write_text(text)
    with pytest.raises(TaskError) as caught, only_known_files(task := read_task(tmp_path / "job.py")):
        check_reference(load(task))
    assert str(caught.value) == (
        "job.py reads w3.txt, and what a task reads is part of what is proven "
        '(name it in job.toml beside the task: files = ["w3.txt"])'
    )
    (tmp_path / "job.toml").write_text('files = ["w3.txt"]')
    with only_known_files(task := read_task(tmp_path / "job.py")):
        assert load(task).module.W == 3
    with pytest.raises(TaskError, match=r"files names w4\.txt, which is no file in the task's folder"):
        loaded(tmp_path, text, 'files = ["w4.txt"]')


SEEDED = """
import random
import torch


def get_inputs():
    {seeds}
    return [torch.randn(8), torch.rand(4, generator=generator), torch.tensor(random.random())]
"""


@pytest.mark.parametrize(
    "seeds",
    [
        "torch.manual_seed(0); random.seed(0); generator = torch.Generator().manual_seed(0)",
        "import numpy; numpy.random.seed(3); torch.manual_seed(int(numpy.random.randint(9999))); random.seed(1); "
        "state = numpy.random.RandomState(4); assert isinstance(state, numpy.random.RandomState); "
        "generator = torch.Generator().manual_seed(int(state.randint(9999)))",
        "torch.random.manual_seed(7); random.seed(); generator = torch.Generator(); generator.manual_seed(7)",
    ],
)
def test_seeds_that_a_task_sets_give_other_inputs_in_each_draw(seeds: str) -> None:
    module = types.ModuleType("seeded")
    exec(SEEDED.format(seeds=seeds), module.__dict__)
    maker = InputMaker(module, None)
    one, again, other = maker.draw(1, 0), maker.draw(1, 0), maker.draw(2, 0)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(
        torch.rand(3, generator=torch.Generator().manual_seed(5)), torch.rand(3, generator=torch.manual_seed(5))
    )
