"""What a prompt says of the task and of the candidate file is true of this run and of the library's own files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.knowledge.compiler import authored
from tests.knowledge.compiler.test_authored import CPU, TASK, softmax

from foundry.agents.brief import Example
from foundry.agents.judgement import AuditEvidence
from foundry.agents.playbook.diagnosis import diagnose
from foundry.agents.prompt import template
from foundry.agents.prompt_text.findings import beside_line, check_lines, measured, profile_lines
from foundry.agents.prompt_text.load import load_words
from foundry.agents.prompt_text.messages import judge_prompt, step_prompt
from foundry.agents.prompt_text.sections import CHARS_PER_TOKEN
from foundry.agents.tuning import tuned_mark
from foundry.knowledge.candidate import Baseline, DistributionError, Recipe, Timing
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.device import Device
from foundry.knowledge.experience.record import Credit, ExperienceRecord, Hit
from foundry.knowledge.merit import estimate_of
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.ruling import rule
from foundry.knowledge.step_words import key_words
from foundry.knowledge.task import Task
from foundry.knowledge.thought import Diagnosis
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

SOURCE = """import torch

SCALE = 1
ROWS = 32 * SCALE


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x + y)


def get_inputs():
    return [torch.randn(64, ROWS).t(), torch.randn(64)]
"""
OPTIONS = """
instructions = "rows are short"
policy = "strict"
tolerance = 3e-4
accuracy = "ieee"
extra_shapes = [{ ROWS = 7 }, { SCALE = 4 }]
dtypes = ["bfloat16"]
mode = "eval"
input_range = [-2.0, 0.5]
"""
WRONG = Diagnosis("c1", "wrong_result", None, "row 0 differs", "mend it")
DEVICES = {
    "cpu": Device("cpu", "AMD EPYC", "x86-64-v4", 2, 8 << 20, 64, 16 << 30),
    "cuda": Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, tuple[OpGraph, ...]]:
    """A task with everything that can be set, and its graphs, captured as intake does."""
    path = tmp_path_factory.mktemp("task") / "rows.py"
    path.write_text(SOURCE)
    path.with_suffix(".toml").write_text(OPTIONS)
    task = read_task(path, scale=3)
    cases = [load(task), *[load(task, overrides=shape) for shape in task.options.extra_shapes]]
    cases.append(load(task, dtype="bfloat16"))
    return task, tuple(capture(case.build_model(0), case.inputs(0), overrides=case.overrides) for case in cases)


def test_a_prompt_shows_the_task_as_it_is_asked(toy: Any, asked: tuple[Task, tuple[OpGraph, ...]]) -> None:
    task, (own, *further) = asked
    brief = replace(toy.brief(task=task, graph=own, further_graphs=tuple(further)), diagnosis=WRONG)
    evidence = AuditEvidence(task, brief.parent, rule(brief.parent), "", graphs=asked[1])
    for prompt in (step_prompt(brief, WRONG, ()).text, judge_prompt(evidence)):
        for fact in (
            "Sizes: SCALE = 3, set for this run",
            "\nSCALE = 3\n",  # in the reference itself
            "Input 0: float32 [96, 64], strides [1, 96] (not contiguous)",
            "Input 1: float32 [64], contiguous",
            "Output 0: float32 [96, 64]",
            "right for 3 further cases:",
            "ROWS = 7 (Input 0: float32 [7, 64], strides [1, 7]",
            "SCALE = 4 (Input 0: float32 [128, 64]",
            "bfloat16: parameters and floating-point inputs are converted to it (Input 0: bfloat16 [96, 64]",
            "Mode: evaluation: `model.eval()` is called (captured in evaluation mode)",
            "uniformly from -2 to 0.5",
            "standard deviation: 0.0003, as the task sets it",
            "class ieee or better",
        ):
            assert fact in prompt, fact
        assert "SCALE = 1\n" not in prompt
    assert "The user says: rows are short" in step_prompt(brief, WRONG, ()).text
    assert "## Policy strict\nIEEE float32 only" in step_prompt(brief, WRONG, ()).text


def test_an_auditor_reads_what_an_author_could_have_written(toy: Any) -> None:
    """1,500 tokens of its request were the machinery that Foundry itself prints around every kernel."""
    recipe = Recipe("cpu", authored=authored.CPU)
    text = lower([softmax(16, 37)], recipe, task_source=TASK, device=CPU).source
    base = toy.evaluation(recipe)
    printed = judge_prompt(AuditEvidence(toy.brief().task, base, rule(base), text))
    given = replace(base, candidate=replace(base.candidate, recipe=None))
    whole = judge_prompt(AuditEvidence(toy.brief().task, given, rule(given), text))
    line = authored.CPU.code.strip().splitlines()[3]
    assert line in printed and line in whole
    assert "class _CallState" not in printed and "Foundry printed this file" in printed and "```cpp\n" in printed
    assert "class _CallState" in whole and "Foundry printed" not in whole


def test_a_plain_task_that_cannot_be_captured_is_told_with_its_defaults(toy: Any) -> None:
    prompt = step_prompt(toy.brief(graph=None), WRONG, ()).text
    assert "No tracer follows" in prompt and "Mode: as the file leaves it." in prompt
    assert "0.001 for float32, 0.01 for float16, 0.01 for bfloat16" in prompt and "Sizes:" not in prompt


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_what_is_said_of_the_header_is_in_it(target: str) -> None:
    header = read_library_text("cpu/runtime.h" if target == "cpu" else "cuda/runtime.cuh")
    quoted = re.findall(r"`([^`]+)`", template(f"header_{target}").split("Inline PTX")[0])
    names = {name for text in quoted for name in re.findall(r"[A-Za-z_]\w{2,}", text)}
    names -= {"pragma", "math", "slope", "alpha", "float", "block", "start", "bytes", "WARPS", "partials", "const"}
    assert len(names) > 40
    assert not [name for name in names if not re.search(rf"\b{name}\b", header)]


def test_a_prompt_keeps_to_its_budget_and_begins_with_what_stays(toy: Any) -> None:
    brief = toy.brief(parent_text="class ModelNew: pass\n" + "# a line of a long file\n" * 9000)
    found = step_prompt(brief, WRONG, ())
    longest = replace(brief, task=replace(brief.task, source="class Model: ...\n" + "x = 1\n" * 3000), step="i2g7")
    long = step_prompt(longest, WRONG, ())
    assert set(long.cut) == {"reference"} and "characters are cut here" in long.text and not found.cut
    assert len(long.text) / CHARS_PER_TOKEN < 12_000 and len(found.text) / CHARS_PER_TOKEN < 12_000
    later = step_prompt(replace(brief, step="i0g9", island=3, parent_text="class ModelNew: ..."), WRONG, ())
    assert later.text[: later.standing] == found.text[: found.standing] and found.standing > 3000
    assert sum(found.sizes.values()) > 0.9 * len(found.text) / CHARS_PER_TOKEN


def test_a_parent_is_told_by_what_differs_from_the_first_kernel(toy: Any) -> None:
    """The first kernel stands with what stays, so that providers' caches hold it at every step."""
    first = (
        "import torch\n\n\nclass ModelNew(torch.nn.Module):\n"
        + "    # a step of the kernel\n" * 40
        + "    UNROLL = 1\n"
    )
    at_first, near, far = first, first.replace("UNROLL = 1", "UNROLL = 8"), "class ModelNew:\n" + "    # another\n" * 60
    prompts = [step_prompt(toy.brief(first=first, parent_text=text), WRONG, ()) for text in (at_first, near, far)]
    starts = [found.text[: found.standing] for found in prompts]
    assert starts[0] == starts[1] and first in starts[0] and starts[0].startswith(starts[2].rstrip())
    assert first not in prompts[2].text, "two whole files cost more than a cache saves"
    ends = [found.text[found.standing :].split("## The parent\n")[1] for found in prompts]
    assert "It is c1's code, which stands above." in ends[0] and "# a step" not in ends[0]
    assert "-    UNROLL = 1\n+    UNROLL = 8" in ends[1] and len(ends[1]) < 500
    assert far in ends[2] and "```diff" not in ends[2]
    shown = toy.brief(first=first, parent_text=near, examples=(Example(toy.evaluation(name="c1"), first, "the best"),))
    told = step_prompt(shown, WRONG, ())
    assert "Its code is that of c1 above." in told.text[told.standing :] and told.text.count("# a step") == first.count(
        "# a step"
    )


def test_a_candidates_speed_is_told_by_all_its_timings_as_the_search_ranks_it(toy: Any) -> None:
    """A noisy proof showed 11.6 times for the kernel that ranked first with 20, beside one of 16 that ranked second."""
    base = toy.evaluation(toy.recipe(), name="c6")
    screen = replace(base, timing=replace(base.timing, speedup=20.6, speedup_ci95=(4.0, 107.0), ratios=[23.3, 18.3]))
    noisy = [57.85, 27.39, 1.24, 4.1, 6.42, 32.87]
    proof = replace(base, timing=replace(base.timing, speedup=11.6, speedup_ci95=(1.24, 57.85), ratios=noisy))
    brief = toy.brief(parent=proof, records={"c6": (screen, proof)}, elites=(proof,))

    where = step_prompt(brief, WRONG, ()).text.split("## Where we are\n")[1].split("##")[0]

    pooled = estimate_of([screen, proof])
    assert pooled is not None and 19.5 < pooled.speedup < 20.7
    assert f"{pooled.speedup:.2f} times as fast as eager" in where and "by all 2 timings" in where
    assert "screen 20.6 (4 to 107), screen 11.6 (1.24 to 57.9)" in where, "each with the interval that it has alone"


def test_moves_that_were_only_made_together_are_one_line_and_seeds_none(toy: Any) -> None:
    names = ("row:set:block=16", "row:set:unroll=4", "map:set:vector=32")
    together = [
        Credit(name, 0.4, 0.1, 1, 1, 0, 1, inseparable=tuple(other for other in names if other != name))
        for name in names
    ]
    prompt = step_prompt(toy.brief(credits=(*together, Credit("tile=8", 0.3, 0.1, 2, 2, 2, 2))), WRONG, ()).text
    assert [prompt.count(f"- {key_words(name)}: credited") for name in (*names, "tile=8")] == [1, 0, 0, 1]


def test_what_the_compiler_said_is_shown_whole(toy: Any) -> None:
    broken = toy.evaluation(toy.recipe(), outcome="compile_error")
    said = "author:7:3: error: 'tot' was not declared\n    7 |   out[i] = tot;\n      |            ^~~"
    parent = replace(broken, build=replace(broken.build, ok=False, errors=said))
    failed = Diagnosis("c1", "compile_error", None, "author:7:3: error: 'tot' was not declared", "fix it")
    prompt = step_prompt(toy.brief(parent=parent), failed, ()).text
    assert said in prompt and prompt.count("author:7:3: error") == 1


def test_a_model_is_told_that_the_tuner_has_swept_the_numbers(toy: Any) -> None:
    brief = toy.brief()
    assert brief.lowered is not None and "tuner has swept" not in step_prompt(brief, WRONG, ()).text
    swept = replace(brief, tried=frozenset({tuned_mark(brief.lowered)}))
    assert "The tuner has swept these numbers in this run" in step_prompt(swept, WRONG, ()).text


def test_a_kernel_that_an_author_wrote_for_such_a_graph_is_shown(toy: Any) -> None:
    brief = toy.brief()
    recipe = Recipe(brief.device.target, authored=authored.CPU)
    said = "rows on cpu:x: a kernel of its own (one pass) went from 1.00x to 3.00x."
    record = ExperienceRecord(
        *("ab12", "r", "i0g1", "2026", "rows", "s", ("softmax",), "2d", brief.device.key, brief.device.target, "", ""),
        *("source", "correct", 1.0, 3.0, None),
        recipe=recipe,
        text=said,
    )
    other = replace(record, id="cd34", recipe=Recipe("cpu", authored=authored.PACKED), child_speedup=2.0)
    away = replace(record, id="ef56", recipe=Recipe("cpu", authored=authored.PACKED), child_speedup=9.0, target="cuda")
    hits = tuple(Hit(item, 1.0, "same graph") for item in (other, record, away))
    prompt = step_prompt(replace(brief, hits=hits), WRONG, ()).text
    assert (
        "- xab12 (same graph): a kernel of its own (one pass) went from 1.00x to 3.00x.; 3.00x of its parent" in prompt
    )
    assert "The kernel of xab12:" in prompt and authored.CPU_CODE.rstrip() in prompt and "GRAIN" in prompt
    assert "The kernel of xcd34" not in prompt and "The kernel of xef56" not in prompt


def timed(toy: Any, eager_ms: float, noise: float = 0.02, speedup: float = 2.0) -> Timing:
    found: Timing = toy.evaluation(toy.recipe()).timing
    ms = eager_ms / speedup
    return replace(found, baseline_ms=eager_ms, candidate_ms=ms, speedup=speedup, noise=noise, ratios=[speedup] * 4)


def test_a_parent_that_is_the_reference_is_said_to_be_no_kernel(toy: Any) -> None:
    """It was 'the best kernel of this island', timed with 0 pairs, on a task without a kernel."""
    base = toy.evaluation(toy.recipe())
    reference = replace(base, candidate=replace(base.candidate, id="c0", recipe=None))
    brief = toy.brief(parent=reference, elites=(reference,), lowered=None, baseline=Baseline(12.5, 0.02, []))
    where = step_prompt(brief, WRONG, ()).text.split("## Where we are\n")[1].split("##")[0]
    assert "The parent is c0, the reference itself as eager PyTorch runs it, in 12.5 ms." in where
    assert "No kernel is faster than it yet." in where and "best kernel" not in where and "pairs" not in where


def test_a_loaded_machine_is_said_in_words(toy: Any) -> None:
    """Eager read 54 to 139 ms within one run, and no request said so."""
    quiet = Baseline(10.0, 0.02, [])
    assert load_words(quiet, [timed(toy, 10.4), timed(toy, 9.8)]) == ""
    told = load_words(quiet, [timed(toy, 10.4), timed(toy, 24.0, noise=0.31)])
    assert "eager read 10 to 24 ms" in told and "31 %" in told and "other work" in told
    brief = toy.brief(baseline=Baseline(25.0, 0.02, []))
    assert "The machine has other work" in step_prompt(brief, WRONG, ()).text


def test_a_draft_is_compared_with_its_parent_by_the_pairs_of_both(toy: Any) -> None:
    """The interval is that of the ratio within the pairs: both share what else the machine did meanwhile."""
    turns = replace(timed(toy, 27.0, speedup=1.5), speedup_ci95=(1.42, 1.58), pairs=12)
    told = beside_line("c3", turns)
    assert told.startswith("In turns with c3, 12 pairs: it took 18 ms and c3 27 ms.")
    assert told.endswith("So it is 1.50 times as fast as c3 (95 %: 1.42 to 1.58).")
    alike = beside_line("c3", replace(turns, speedup=1.01, speedup_ci95=(0.97, 1.05)))
    assert alike.endswith("not clearly another speed.")
    assert beside_line("c3", replace(turns, problem="it hung")) == "It could not be timed in turns with c3: it hung"


def test_a_screen_and_a_proof_have_an_interval_each(toy: Any) -> None:
    base = toy.evaluation(toy.recipe())
    screen = replace(base, timing=replace(timed(toy, 60.0, speedup=4.0), stage="screen", speedup_ci95=(3.0, 5.0)))
    proof = replace(base, timing=replace(timed(toy, 60.0, speedup=3.0), stage="full", speedup_ci95=(2.9, 3.1)))
    told = measured([screen, proof])
    assert "screen 4 (3 to 5), proof 3 (2.9 to 3.1)" in told and "roofline" not in told


def test_an_example_that_is_the_reference_or_like_the_parent_is_not_printed_again(toy: Any) -> None:
    kernel = authored.CPU
    recipe, other = (Recipe("cpu", authored=item) for item in (kernel, replace(kernel, code=kernel.code + "// new\n")))
    graph = softmax(16, 37)
    lowered = lower([graph], recipe, task_source=TASK, device=CPU)
    brief = replace(toy.brief(lowered=lowered), graph=graph, device=CPU)
    base = toy.evaluation(toy.recipe())
    reference = replace(base, candidate=replace(base.candidate, id="c0", recipe=None))
    near = replace(base, candidate=replace(base.candidate, id="c7", recipe=other))
    examples = (Example(reference, "class Model: ...", "the best"), Example(near, "", "another"))
    text = step_prompt(replace(brief, examples=examples), WRONG, ()).text
    assert "It is the reference above." in text and "It is the parent below but for these lines" in text
    assert text.count(kernel.code.strip().splitlines()[3]) == 1, "a copy of the parent's kernel"


def test_a_kernel_that_differs_in_a_body_that_is_folded_is_told_by_these_lines(toy: Any) -> None:
    """Two kernels that differed from the first by one number each were printed again, without the lines that differ."""

    def file(step: int) -> str:
        body = "".join(f"  y[{number}] = x[{number}] * 3.0f;\n" for number in range(300))
        code = f"static void k_first(const float* x, float* y) {{\n  // blocks of {step}\n{body}}}\n"
        top = "# Foundry kernel, target cpu. Needs torch and g++ only.\n"
        return f'{top}SOURCE = r"""\n{code}"""\n# ---- the task\'s model\nclass ModelNew: ...\n'

    examples = (
        Example(toy.evaluation(name="c4"), file(512), "the best"),
        Example(toy.evaluation(name="c5"), file(8), "b"),
    )
    brief = toy.brief(first=file(8), parent_text=file(8), examples=examples)
    text = step_prompt(brief, WRONG, ()).text
    assert "  // @foundry body " in text and "y[299]" not in text
    assert "It is c1 above but for these lines:" in text and "-  // blocks of 8\n+  // blocks of 512" in text
    assert "Its code is that of c1 above." in text and "\n\n\n" not in text.partition("## Where we are")[2]


def test_each_number_of_a_prompt_says_what_it_is_and_has_one_source(toy: Any) -> None:
    """Two floors, two rates of one kernel and two counts of bytes stood in one prompt without a word of their kinds."""
    brief = toy.brief()
    found = diagnose(brief)
    text = step_prompt(brief, found, ()).text
    (floor,) = set(re.findall(r"[Rr]oofline floor of (?:that: )?([\d.e-]+) ms", text))
    (told,) = re.findall(r"against the roofline floor of ([\d.e-]+) ms", text)
    assert told == floor
    assert "by their buffers" in text and "MB move: inputs, parameters and outputs once" in text
    small = replace(brief, device=replace(brief.device, cache_bytes=1 << 40))
    assert "in cache, and" in diagnose(small).evidence and "timed with cold caches" in diagnose(small).evidence
    profiled = brief.parent
    assert "GB/s of what must move and be computed at least" in "\n".join(profile_lines(profiled))
    error = DistributionError("as given", 7e-7, 6e-7, 0.01, 0.01)
    checked = replace(profiled, verdict=replace(profiled.verdict, errors=(error,)))
    assert "the error's norm is 7.00e-07 of the float64 truth's, PyTorch's own 6.00e-07" in "\n".join(
        check_lines(checked)
    )
