"""`foundry verify` and `foundry profile`: one candidate judged, or explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from foundry.graph.doors.commands.options import (
    ClassOption,
    JsonOption,
    OtherShapesOption,
    ScaleOption,
    TargetOption,
    TaskArgument,
    choose_other_shapes,
    choose_parameters,
    choose_policy,
)
from foundry.tools.command_line import choose_target, fail, one_line_errors, print_json, say


def _show_schema(wanted: bool) -> None:
    """Prints the receipts' JSON schema and ends the program, if wanted."""
    if wanted:
        from foundry.tools.verify.receipt import receipt_schema

        typer.echo(json.dumps(receipt_schema(), indent=2))
        raise typer.Exit()


@one_line_errors
def verify(
    task: TaskArgument,
    candidate: Annotated[Path | None, typer.Argument(help="A file with class ModelNew, ours or not.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Compare with what this receipt claims.")] = None,
    target: TargetOption = "auto",
    policy: Annotated[str | None, typer.Option(help="fair, open or strict; default: the task's.")] = None,
    scale: ScaleOption = None,
    model: ClassOption = "",
    seed: Annotated[int | None, typer.Option(min=0, max=2**63, help="Of the hidden inputs; default: fresh.")] = None,
    min_speedup: Annotated[float, typer.Option(min=0.0, help="Exit 1 unless proven this fast.")] = 0.0,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = False,
    write_receipt: Annotated[Path | None, typer.Option(help="Write the receipt of an accepted kernel.")] = None,
    parameters: Annotated[
        str | None,
        typer.Option(help="loaded: the reference's and others, copied in; as-built: those that the kernel makes."),
    ] = None,
    other_shapes: OtherShapesOption = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Test the grader: faults planted into a correct kernel must be caught.")
    ] = False,
    faults: Annotated[int, typer.Option(min=1, help="Self-test: how many faults; --seed chooses which.")] = 32,
    min_caught: Annotated[float, typer.Option(min=0.0, max=1.0, help="Self-test: exit 1 below this share.")] = 0.98,
    as_json: JsonOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", is_eager=True, callback=_show_schema, help="Print receipt.json's JSON Schema.")
    ] = False,
) -> None:
    """Judge one candidate: build, correctness, audit, timing; exit 0 accepted, 1 not, 2 bad input, 4 not comparable."""
    from foundry.tools.verify.command import VerifyRequest, run
    from foundry.tools.verify.verdict_lines import verdict_lines

    wanted = choose_target(target)
    if self_test:
        if receipt or write_receipt or min_speedup or compiled:
            fail("--self-test judges planted faults: it takes no receipt, no speedup and no --compile", 2)
        from foundry.tools.selftest.command import SelfTestRequest, show

        tested = SelfTestRequest(
            task=task,
            candidate=candidate,
            target=wanted,
            scale=scale,
            faults=faults,
            seed=seed or 0,
            min_caught=min_caught,
            model=model,
        )
        show(tested, as_json=as_json)
    if candidate is None:
        fail("name the candidate's file after the task's (only --self-test can do without)", 2)
    rules, used, elsewhere = choose_policy(policy), choose_parameters(parameters), choose_other_shapes(other_shapes)
    asked = (receipt, wanted, rules, scale, seed, min_speedup, compiled, write_receipt)
    request = VerifyRequest(task, candidate, *asked, model=model, parameters=used, other_shapes=elsewhere)
    document, code = run(request)
    if as_json:
        print_json(document)
    else:
        say("\n".join(verdict_lines(document)))
    raise typer.Exit(code)


@one_line_errors
def profile(
    task: TaskArgument,
    candidate: Annotated[Path, typer.Argument(help="A file with class ModelNew, ours or not.")],
    target: TargetOption = "auto",
    rung: Annotated[int, typer.Option(min=1, max=5, help="The highest to climb: 3 runs nothing, 5 counts.")] = 4,
    scale: ScaleOption = None,
    model: ClassOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say what limits a kernel and what to do about it: floor, compiler, machine code, kernel times, counters."""
    from foundry.tools.verify.profile_command import ProfileRequest, show

    place = choose_target(target)
    show(ProfileRequest(task, candidate, place, scale=scale, rung=rung, model=model), as_json=as_json)
