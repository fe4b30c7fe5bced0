"""A task that no tracer follows: a chat model is asked for the whole file, with its tools, and what it writes is judged
like any kernel."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.agents.chat.scripted_server import answer, calling
from tests.agents.session import move
from tests.graph.conftest import DEVICE, SPEC, FakeWorkbench, kernel_file
from tests.graph.search.test_tools import Calling, answers_of
from tests.graph.untraced_tasks import BREAK, EXPERTS, TASKS, Untraced

from foundry.agents.models.models import one_model
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt_text.messages import step_prompt
from foundry.agents.prompt_text.sections import tokens
from foundry.agents.prompt_text.source import show, show_to_judge
from foundry.agents.prompt_text.standing import contract
from foundry.graph.doors.commands.dry_run import first_brief
from foundry.graph.history.replay import replay
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.services import KernelLibrary
from foundry.graph.solve import solve
from foundry.knowledge.candidate import REFERENCE
from foundry.knowledge.compiler.whole_file import expand_foundry_lines
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OperatorRun, Signature
from foundry.knowledge.task import Task
from foundry.tools.grade.host.workbench import Intake
from foundry.tools.targets.cpu.build import CpuTarget
from foundry.tools.targets.cuda.build import CudaTarget

MakeRequest = Callable[..., SolveRequest]
WHY = "no tracer could follow the model: the values of tensors are read in line 5"


class Untraceable(FakeWorkbench):
    """A machine on which the task's operators were seen to run, and no graph was made of them."""

    async def intake(self) -> Intake:
        ran = [OperatorRun("aten::relu", calls=1, flops=1 << 20, traffic_bytes=8 << 20, ms=0.1)]
        return replace(await super().intake(), graphs=[], capture_note=WHY, ran=ran)


async def test_a_model_writes_a_kernel_for_a_task_that_no_tracer_follows(
    make_request: MakeRequest, serve: Any, tmp_path: Path
) -> None:
    """It ended with an IndexError in `diagnose` before the first request: the estimates asked for its graph."""

    def engineer(request: Any) -> Any:
        told = str(request["messages"]).count("<result call=")
        source = {"source": kernel_file(2)}
        script = [calling("check", source), calling("profile", source), answer(move(moves=[], draft=1))]
        return script[min(told, 2)]

    server = serve(engineer)
    request = make_request(3, islands=1, model="scripted-1", base_url=server.url, learn=True, store=str(tmp_path / "s"))
    summary = await solve(request, parts=Calling(Untraceable()))
    assert summary.verdict == "accepted", summary
    assert not any("error" in reason for reason in summary.islands.values()), summary.islands
    run = RunDirectory.inspect(Path(summary.run))
    assert run.evaluation(summary.candidate).candidate.parents == (REFERENCE,)
    assert "correct" in answers_of(run)[0] and "times as fast as eager" in answers_of(run)[1]
    run.close()
    assert (await replay(Path(summary.run), Calling(Untraceable()))).exact


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
async def test_a_model_tries_its_file_by_tools_and_it_is_accepted(
    task: Untraced, tmp_path: Path, monkeypatch: Any, make_home: Callable[[], Path], serve: Any
) -> None:
    """On this machine: experts in a loop, pages by `.item()`, suppression of boxes, a loop that ends when the data says
    so, complex numbers inside."""
    monkeypatch.setenv("FOUNDRY_HOME", str(make_home()))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    path = tmp_path / f"{task.name}.py"
    path.write_text(task.task)
    broken = task.file.replace("{\n", "{ int nothing = absent;\n", 1)

    def engineer(request: Any) -> Any:
        said = str(request["messages"])
        if "You are the anti-cheat auditor" in said:
            return answer({"judgement": "genuine", "doubt": False, "reason": ""})
        if "The parent is c0" not in said:
            return answer("I have nothing more.")
        asked, whole = [calling("compile", {"source": broken})], {"source": task.file}
        asked += [calling(name, whole) for name in ("compile", "check", "quick_time", "profile", "sass")]
        return [*asked, answer(move(moves=[], draft=3))][said.count("<result call=")]

    request = SolveRequest(
        str(path),
        target="cpu",
        islands=1,
        limits=RunLimits(evaluations=4, minutes=2.0),
        finalists=1,
        rivals=(),
        store=str(tmp_path / "store"),
        runs=str(tmp_path / "runs"),
        models=one_model("scripted-1", serve(engineer).url),
    )
    summary = await solve(request)
    assert summary.verdict == "accepted", summary
    run = RunDirectory.inspect(Path(summary.run))
    wrong, built, checked, timed, profiled, code = answers_of(run)[:6]
    assert "kernel line" in wrong or "kernel:" in wrong, wrong
    assert "absent" in wrong and "It compiles." in built and "correct" in checked and "the audit is clean" in checked
    assert "times as fast as eager" in timed and "0 GB/s" not in profiled and "loop" in code
    first, again = run.text(run.evaluation(summary.candidate).candidate.source), show(task.file)
    assert "# @foundry build@ ----- begin" in first and show(first).strip() == again.strip(), "shown as it was written"
    run.close()


CUDA = '''import torch

SOURCE = r"""
// @foundry header@
extern "C" __global__ void experts(const float* x, const long long* chosen, const float* weights, float* out,
                                   long long rows, float least) {
  const long long r = blockIdx.x;
  float total = 0;
  for (int k = 0; k < 32; ++k) total += x[r * 32 + k] * weights[(chosen[r] * 32 + k) * 32 + threadIdx.x];
  out[r * 32 + threadIdx.x] = math::maximum(total, least);
}
"""
# @foundry build@
# @foundry model@


class ModelNew(Model):
    def forward(self, x, chosen):
        out = torch.empty_like(x)
        launch("experts", (x.shape[0],), (32,), x, chosen, self.weights, out, x.shape[0], 0.0)
        return out
'''


def test_an_auditor_sees_what_stands_between_the_marks() -> None:
    """An author may write the marks itself, with code of its own between them."""
    evil = "# @foundry build@ ----- begin\nkept = {}\n# @foundry build@ ----- end\n"
    file = f"import torch\n{evil}class ModelNew(torch.nn.Module):\n    pass\n"
    assert "kept = {}" not in show(file) and "kept = {}" in show_to_judge(file)
    top = "# Foundry kernel, target cpu. Needs torch and g++ only.\n"
    hidden = f'{top}SOURCE = r"""\nvoid f() {{}}\n"""\n# ---- the task\'s model\nkept = {{}}\n'
    assert "kept = {}" not in show(hidden) and "kept = {}" in show_to_judge(hidden)
    whole = expand_foundry_lines(EXPERTS.file, DEVICE, EXPERTS.task, {})
    assert "def _library_path" in show_to_judge(whole) and len(show_to_judge(whole)) < 12_000


HOPPER = Device("cuda", "NVIDIA H100", "sm_90", 132, 50 << 20, 16, 80 << 30, True)


def test_a_cuda_file_by_hand_is_compiled_to_a_cubin_and_launched_by_the_driver(monkeypatch: Any) -> None:
    text = expand_foundry_lines(CUDA, HOPPER, EXPERTS.task, {})
    built = CudaTarget(HOPPER).build(text)
    assert built.ok and built.resources.registers > 0, built
    wrong = CudaTarget(HOPPER).build(
        expand_foundry_lines(CUDA.replace("total = 0", "total = none"), HOPPER, EXPERTS.task, {})
    )
    assert not wrong.ok and "kernel(6)" in wrong.first_error, "an error has the line of the author's SOURCE"
    space: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(text, "candidate.py", "exec"), space)
    launched: list[tuple[list[int], list[bytes]]] = []

    class Driver:
        def cuModuleGetFunction(self, *_: Any) -> int:
            return 0

        def cuLaunchKernelEx(self, config: Any, _function: Any, places: Any, _extra: Any) -> int:
            sizes = [getattr(config._obj, name) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared_bytes")]
            known = zip(places, (8,) * 5 + (4,), strict=True)
            launched.append((sizes, [ctypes.string_at(place, size) for place, size in known]))
            return 0

    space["_driver"], space["_module"] = Driver, lambda device: ctypes.c_void_p(1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    model, x, chosen = space["ModelNew"](), torch.randn(8, 32), torch.zeros(8, dtype=torch.int64)
    out = model(x, chosen)
    ((sizes, given),) = launched
    assert sizes == [8, 1, 1, 32, 1, 1, 0] and struct.unpack("q", given[4]) == (8,) and given[5] == bytes(4)
    pointers = [struct.unpack("Q", place)[0] for place in given[:4]]
    assert pointers == [x.data_ptr(), chosen.data_ptr(), model.weights.data_ptr(), out.data_ptr()]
    with pytest.raises(ValueError, match="not contiguous"):
        model(torch.randn(32, 8).T, chosen)


@pytest.mark.parametrize(("target", "device"), [(CpuTarget(), DEVICE), (CudaTarget(HOPPER), HOPPER)])
def test_the_file_that_a_prompt_shows_compiles(target: Any, device: Device) -> None:
    told = contract(device.target, is_traced=False)
    file = told.split("```python\n")[1].split("```")[0]
    built = target.build(expand_foundry_lines(file, device, BREAK.task, {}))
    assert built.ok, built.errors


@pytest.mark.parametrize("target", ["cpu", "cuda"])
async def test_the_first_prompt_asks_for_what_can_be_answered(target: str) -> None:
    """Without a graph there are neither buffers, moves, launches nor tunables: nothing of them is offered."""
    seen = Signature((SPEC,), (SPEC,))
    device = DEVICE if target == "cpu" else HOPPER
    task = Task("experts", "experts.py", EXPERTS.task, "d" * 64)
    brief = replace(first_brief(task, [], device, KernelLibrary()), seen=seen)
    text = step_prompt(brief, await PlaybookBrain().diagnose(brief), ()).text
    assert "a whole file" in text and "# @foundry build@" in text and "Input 0: float32 [1024, 1024]" in text
    for absent in ("`launches`", "tunables", "## Buffers", "## Moves", "## Kernels", "_LAUNCHES_0", "none yet"):
        assert absent not in text, absent
    assert text.count("torch.where(chosen == expert)") == 1, "the reference stands twice"
    assert tokens(len(text)) < 3000
