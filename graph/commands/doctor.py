"""`foundry doctor`: what this machine can do."""

from __future__ import annotations

from dataclasses import asdict

import typer

from foundry.graph.commands.options import JsonOption
from foundry.tools.command_line import one_line_errors, print_json


@one_line_errors
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine can do, and the one command that would let it do more."""
    from foundry.tools.machine.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        marks = {"ok": "ok     ", "limited": "limited", "missing": "missing"}
        for finding in findings:
            typer.echo(f"{marks[finding.state]}  {finding.what}: {finding.detail}")
            if finding.climb:
                typer.echo(f"         -> {finding.climb}")
    if any(finding.needed and finding.state == "missing" for finding in findings):
        raise typer.Exit(3)
