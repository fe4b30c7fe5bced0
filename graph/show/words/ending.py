"""The last words of a run to a terminal: what was gained, over which baseline, how sure, where, and how to use it."""

from __future__ import annotations

from pathlib import Path

from foundry.graph.run.summary import Summary
from foundry.knowledge.merit import standing
from foundry.tools.words import count_words, to_paste

COMPARED = 100  # characters of a reason by which two texts are taken to say the same
_AGREEING = 1.1  # times beyond the interval, up to which two rounds are taken to have found the same speedup


def ending_lines(summary: Summary, task_path: str, page: Path | None = None) -> list[str]:
    """The lines that a user reads when a run ends, for every verdict; `page` is the path of its page."""
    lines = _verdict_lines(summary)
    lines.append(f"{count_words(summary.evaluations, 'evaluation')} in {summary.wall_s:.0f} s ({summary.time_words})")
    if summary.tokens:
        dollars = f"${summary.dollars:.2f}" if summary.priced else "price unknown (--price IN,OUT)"
        lines.append(f"cost: {summary.tokens} tokens, {dollars}")
    if len(summary.models) > 1:
        lines += [f"model {record.words}" for record in summary.models]
    lines += [f"note: {note}" for note in summary.notes if not _is_said(note, summary)]
    if summary.kernel:
        lines.append(f"kernel:  {summary.kernel}")
        lines.append(f"receipt: {summary.receipt}" if summary.receipt else "no receipt: nothing is proven")
    if page is not None:
        lines.append(f"page:    {page} (everything about the run, in one file that opens offline)")
    trace, ranking = ("trace", summary.run), ("chat", summary.run, "ranking")
    lines.append(f"inspect: {to_paste('foundry', 'agent', *trace)}, {to_paste('foundry', 'agent', *ranking)}")
    if summary.verdict == "accepted" or (summary.verdict == "nothing accepted" and summary.evaluations):
        lines.append(f"go on:   {to_paste('foundry', 'agent', 'fork', summary.run, '--minutes', 10)}")
    return lines + _use_lines(summary, task_path)


def _is_said(note: str, summary: Summary) -> bool:
    """True for a note whose reason the closing paragraph has said."""
    return summary.closing is not None and summary.closing.obstacle[:COMPARED] in note


def _verdict_lines(summary: Summary) -> list[str]:
    """The lines about the verdict: speedup or slowdown with interval, torch.compile, the floor. Or how to resume or
    answer, that nothing could be timed, or why nothing was accepted."""
    again = to_paste("foundry", "agent", "resume", summary.run)
    if summary.verdict == "interrupted" and summary.question:
        return [f"the run asks: {summary.question}", f"answer: {again} --yes | --no, or without either in a terminal"]
    if summary.verdict == "interrupted":
        return [f"interrupted, the state is kept: {again}"]
    if summary.verdict == "unproven":
        return [f"compiled for {summary.target}, but no such device is here: nothing is proven and nothing was timed"]
    if summary.verdict != "accepted" or summary.speedup is None or summary.speedup_ci95 is None:
        closing = summary.closing
        why = closing.words if closing else summary.ending or "see the trace"
        return [f"no kernel was accepted{'.' if closing else ':'} {why}"]
    low, high = summary.speedup_ci95
    sure = f"95 % interval {low:.2f} to {high:.2f}, timed in pairs"
    times = f"medians {summary.candidate_ms:.3f} ms against {summary.baseline_ms:.3f} ms"
    found = standing((low, high))
    if found == "faster":
        lines = [f"accepted: {summary.speedup:.2f}x faster than PyTorch eager ({sure}; {times})"]
    elif found == "slower":
        lines = [f"accepted: slower than PyTorch eager, though correct: {_times(summary.speedup)} ({sure}; {times})"]
    else:
        lines = [f"accepted: as fast as PyTorch eager within the noise: {summary.speedup:.2f}x ({sure}; {times})"]
    if summary.speedup_vs_compile:
        versus = _beside_compile(summary.speedup_vs_compile, summary.compile_speedup or 0.0, (low, high))
        told = summary.contest.told_beside("compile") if summary.contest else ""
        lines.append(f"{versus} ({told})" if told else versus)
    if summary.fraction_of_floor:
        lines.append(
            f"{100 * summary.fraction_of_floor:.0f} % of the speed that this device's memory and arithmetic allow"
        )
    return lines


def _times(speedup: float) -> str:
    """A speedup with two digits that count, however small it is."""
    return f"{speedup:.2f}x" if speedup >= 0.1 else f"{speedup:.2g}x"


def _beside_compile(over_compile: float, itself: float, proven: tuple[float, float]) -> str:
    """The comparison with torch.compile, from a round in which kernel, eager and torch.compile take turns.

    `over_compile` is the kernel's speedup over torch.compile and `itself` torch.compile's over eager. If the kernel's
    speedup over eager in that round lies outside the interval `proven`, the text has all numbers of the round.
    """
    there = over_compile * itself
    if proven[0] / _AGREEING <= there <= proven[1] * _AGREEING:
        return f"{over_compile:.2f}x the speed of torch.compile, which has itself {itself:.2f}x the speed of eager"
    return (
        f"{over_compile:.2f}x the speed of torch.compile in a round of its own, whose times differ from the proof's: "
        f"there torch.compile had {itself:.2f}x the speed of eager, and this kernel {there:.2f}x"
    )


def _use_lines(summary: Summary, task_path: str) -> list[str]:
    """The lines that say how to use an accepted kernel and how to measure it again; else none."""
    if summary.verdict != "accepted" or not summary.kernel:
        return []
    folder = Path(summary.kernel).parent
    again = to_paste("foundry", "verify", task_path, summary.kernel, "--receipt", summary.receipt)
    load = f"import sys; sys.path.insert(0, {str(folder)!r}); from kernel import ModelNew"
    return [
        f"use it:  {load}",
        "         fast = ModelNew(*init_inputs).train(model.training).requires_grad_(False); "
        "fast.load_state_dict(model.state_dict())",
        f"again:   {again}",
    ]
