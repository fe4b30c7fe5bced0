"""Writes the receipt of a run's winner."""

from __future__ import annotations

from dataclasses import asdict

from foundry.graph.run.measurements import CONTEST
from foundry.graph.run.services import Services
from foundry.knowledge.candidate import Baseline, Contest, Evaluation
from foundry.knowledge.codec import decode
from foundry.knowledge.task import Task
from foundry.tools.words import to_paste


def write_run_receipt(services: Services, winner: Evaluation) -> None:
    """Writes receipt.json beside kernel.py. Raises UsageError if it cannot be written."""
    from foundry.tools.verify.receipt import make_receipt, write_receipt

    run = services.run
    name = winner.candidate.id
    contest = services.journal.lookup(CONTEST)
    receipt = make_receipt(
        decode(Task, run.get("task")),  # as it was read: verifying reads it again
        services.text(winner),
        services.device,
        decode(Baseline, services.journal.lookup("baseline") or ""),
        winner,
        policy=services.task.options.policy,
        seeds={"run": services.request.seed, **services.journal.plain(f"final/{name}/seeds", "measure", dict)},
        cost=_cost(services),
        command=_command(services),
        contest=decode(Contest, contest) if contest else None,
        isolation=services.journal.plain("isolation", "measure", services.measure.isolation),
    )
    write_receipt(run.path / "receipt.json", receipt)


def _cost(services: Services) -> dict[str, float]:
    """Seconds by category, evaluations, tokens and dollars of the run so far."""
    split = services.log.split_time(services.log.elapsed_s())
    spent = services.ledger.spent()
    seconds = {name: round(value, 3) for name, value in asdict(split).items()}
    return {**seconds, "evaluations": spent.evaluations, "tokens": spent.tokens, "dollars": round(spent.dollars, 6)}


def _command(services: Services) -> str:
    """The command that measures the winner again and compares with the receipt."""
    run, request = services.run, services.request
    words = ["foundry", "verify", services.task.path, str(run.path / "kernel.py")]
    words += ["--receipt", str(run.path / "receipt.json")]
    if request.scale is not None:
        words += ["--scale", str(request.scale)]
    return to_paste(*words)
