"""`foundry doctor`: what this machine can do, and what a model can."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from foundry.graph.doors.commands import model_flags
from foundry.graph.doors.commands.options import JsonOption
from foundry.tools.command_line import one_line_errors, print_json

if TYPE_CHECKING:
    from foundry.tools.machine.doctor import Capability


@one_line_errors
def doctor(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Ask this model's endpoint what it can do, by two tiny requests, and no more."
        ),
    ] = None,
    base_url: model_flags.BaseUrlFlag = None,
    provider: model_flags.ProviderFlag = None,
    api_key_env: model_flags.KeyFlag = None,
    price: model_flags.PriceFlag = None,
    request_s: model_flags.RequestSecondsFlag = None,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine, or a model, can do, and the one command that would let it do more."""
    from foundry.tools.machine.doctor import examine

    asked = {
        "base_url": base_url,
        "provider": provider,
        "api_key_env": api_key_env,
        "price": price,
        "request_seconds": request_s,
    }
    findings = _examine_models(model, asked) if model or any(asked.values()) else examine()
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


def _examine_models(wanted: list[str] | None, flags: Mapping[str, str | float | None]) -> list[Capability]:
    """Findings about each configured model; every endpoint is asked."""
    from foundry.agents.models.probe import probe
    from foundry.agents.models.settings import read_models

    async def look() -> list[Capability]:
        """Probes each wanted model, one after another; returns all their capabilities."""
        return [finding for spec in read_models(wanted, flags).specs for finding in await probe(spec)]

    return asyncio.run(look())
