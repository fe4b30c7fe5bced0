"""Five tasks of somebody who has read the README and `--help`, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.merit import standing

from .conftest import Cli, Done, Solved, rows

README = (Path(__file__).parents[2] / "README.md").read_text()
LINE = re.compile(r"(\d+)\. (c\d+), (\d+\.\d\d)x \((\S+) to (\S+); \w[\w ]*, (\d+) pairs\)(.*)")


def test_why_did_a_candidate_lose(solved: Solved) -> None:
    """The ranking is found by `chat --help`; what it and `why` say of every candidate is what the run's tables hold."""
    assert "ranking" in solved.cli.here("agent", "chat", "--help").out
    run = solved.run
    ranking = solved.cli.here("agent", "chat", run.name, "ranking")
    places = {found[2]: found.groups() for line in ranking.out.splitlines() if (found := LINE.match(line))}
    assert ranking.code == 0 and next(iter(places)) == solved.first.json["candidate"], ranking.out
    evaluated = "SELECT candidate, body, merit FROM evaluations WHERE candidate != 'c0' ORDER BY at"
    for name, (body, merit) in {row[0]: row[1:] for row in rows(run, evaluated)}.items():
        told = solved.cli.here("agent", "chat", run.name, f"why {name}").out.splitlines()
        if name not in places:
            assert merit < 1 and re.search("rejected|vetoed|did not compile|could not be timed", " ".join(told)), told
            continue
        _, _, speedup, low, high, pairs, note = places[name]
        timing = json.loads(body)["timing"]
        assert (speedup, int(pairs)) == (f"{timing['speedup']:.2f}", timing["pairs"])
        assert [low, high] == [f"{end:.2f}" for end in timing["speedup_ci95"]]
        if name == solved.first.json["candidate"]:
            remarks = {"faster": "", "as fast": ", no faster than eager", "slower": ", slower than eager"}
            remark = remarks[standing(tuple(timing["speedup_ci95"]))]
            assert note == f": the winner{remark}" and told[-1].endswith(f": it won{remark}.")
        elif timing["stage"] == "screen":  # a merit is one more than the speedup that it stands for
            assert note == f", counts {merit - 1:.2f}x" and "It was not proven" in told[-1], told


@dataclass
class Continued:
    """Yesterday's run, and a fork of it that was told to avoid a value."""

    cli: Cli
    source: Path
    run: Path
    ended: Done


@pytest.fixture(scope="module")
def continued(solved: Solved, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Continued]:
    cli = Cli(tmp_path_factory.mktemp("continued"), solved.cli.home, solved.cli.zygote)
    shutil.copy(solved.cli.folder / "toy.py", cli.folder)
    source = cli.folder / "runs" / solved.run.name
    shutil.copytree(solved.run, source)
    words = ("--say", "@tiling avoid unroll 4", "--evaluations", "5", "--minutes", "0.5", "--json")
    ended = cli.here("agent", "fork", "last", *words)
    yield Continued(cli, source, cli.folder / str(ended.json["run"]), ended)
    cli.close()


@pytest.mark.slow
def test_make_the_search_avoid_a_technique(continued: Continued) -> None:
    told = continued.cli.here("agent", "chat", continued.run.name, "directives").out
    assert told.startswith("d1 @tiling avoid unroll 4: taken by "), told
    before, after = RunDirectory.inspect(continued.source), RunDirectory.inspect(continued.run)
    known = {item.candidate.id for item in before.decisions()}
    new = [item.candidate for item in after.decisions() if item.candidate.id not in known]
    used = [choices.get("unroll") for item in new if item.recipe for choices in item.recipe.choices.values()]
    before.close()
    after.close()
    assert new and used and 4 not in used


@pytest.mark.slow
def test_continue_yesterday_s_run_with_more_budget(continued: Continued, solved: Solved) -> None:
    """Who tries `resume` first is told how; nothing is measured twice, and the lineage is told."""
    resumed = continued.cli.here("agent", "resume", continued.source.name).out
    assert f"foundry agent fork runs/{continued.source.name} --minutes" in resumed
    assert continued.ended.code in (0, 1), continued.ended.err
    assert continued.ended.json["evaluations"] > solved.first.json["evaluations"]
    screens = "SELECT candidate, body FROM evaluations WHERE stage = 'screen'"
    old, new = dict(rows(continued.source, screens)), dict(rows(continued.run, screens))
    timed = {name: json.loads(body)["timing"] for name, body in old.items()}
    assert old and {name: json.loads(new[name])["timing"] for name in old} == timed
    assert f"(a fork of {continued.source.name}@end)" in continued.cli.here("agent", "runs").out
    compared = continued.cli.here("agent", "compare", continued.source.name, continued.run.name)
    assert compared.code == 0 and "It brought " in compared.out


def test_export_the_kernel_and_call_it(solved: Solved, tmp_path: Path) -> None:
    """The end of a run says how; README's lines do the same with a copy of the file alone. `resume` of a finished run
    prints the ending again."""
    told = solved.cli.here("agent", "resume", solved.run.name)
    assert (told.code, told.err) == (0, "")
    summary = solved.first.json
    low, high = summary["speedup_ci95"]
    assert told.out.startswith("accepted: ") and "PyTorch eager" in told.out.splitlines()[0]
    assert f"95 % interval {low:.2f} to {high:.2f}" in told.out and f"{summary['speedup']:.2f}x" in told.out
    shutil.copy(solved.run / "kernel.py", tmp_path)
    shown = re.search(r"The kernel is one file.*?```python\n(.*?)```", README, re.DOTALL)
    assert shown
    ending = [line[9:] for line in told.out[told.out.index("use it:") :].splitlines()]
    compare = "with torch.inference_mode(): assert torch.allclose(fast(*inputs), model(*inputs), rtol=1e-3, atol=1e-5)"
    script = [
        "import sys, torch, toy",
        "init_inputs, inputs = toy.get_init_inputs(), toy.get_inputs()",
        "model = toy.Model(*init_inputs)",
        *ending[:2],
        compare,
        "del sys.modules['kernel']",
        re.sub(r'"runs/[^"]*"', repr(str(tmp_path)), shown[1]),
        compare,
        f"assert sys.modules['kernel'].__file__ == {str(tmp_path / 'kernel.py')!r}",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        cwd=solved.cli.folder,
        env={**solved.cli.environment, "PYTHONPATH": str(solved.cli.folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def texts_of(data: Any) -> Iterator[str]:
    """Every text in a JSON document."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, list | dict):
        for item in data.values() if isinstance(data, dict) else data:
            yield from texts_of(item)


def test_show_a_colleague_the_evidence(solved: Solved, tmp_path: Path) -> None:
    """The end of a run names what to send: a page that holds the claim and needs no network, and the command that
    measures again (which tests/cli/test_verify.py runs)."""
    told = solved.cli.here("agent", "resume", solved.run.name).out
    summary = solved.first.json
    named = dict(line.split(": ", 1) for line in told.splitlines() if re.match(r"(page|receipt|again):", line))
    page = (solved.cli.folder / named["page"].split()[0]).read_text()
    low, high = summary["speedup_ci95"]
    assert f"{summary['speedup']:.2f}x" in page and f"95 % interval {low:.2f} to {high:.2f}" in page
    assert not re.search(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?https?:""", page)
    data = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    kernel = (solved.run / "kernel.py").read_text()
    assert any(kernel == text for text in texts_of(data)), "the code of the best"
    assert named["again"].split() == ["foundry", "verify", "toy.py", summary["kernel"], "--receipt", summary["receipt"]]
    receipt = json.loads((solved.cli.folder / summary["receipt"]).read_text())
    assert receipt["timing"]["speedup"] == summary["speedup"]
    again = solved.cli.here("agent", "report", solved.run.name, "--out", tmp_path / "again.html")
    assert again.code == 0 and (tmp_path / "again.html").stat().st_size > 100_000
