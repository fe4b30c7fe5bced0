"""The options of `foundry agent solve` that are about the search: how long, by which rules, on what, with what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from foundry.graph.doors.commands.options import ClassOption, OtherShapesOption, StoreOption

if TYPE_CHECKING:
    from foundry.graph.run.request import RunLimits


@dataclass(frozen=True)
class SearchFlags:
    """The user's flags about the search; None takes the effort's or the task's value."""

    seed: Annotated[int, typer.Option(help="Random seed: a run's decisions replay for it.")] = 0
    islands: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Populations that search side by side; default: the effort's, or what keeps a model busy.",
        ),
    ] = None
    evaluations: Annotated[int | None, typer.Option(min=1, help="Budget: candidates to evaluate.")] = None
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Budget: minutes of search.")] = None
    finalists: Annotated[int | None, typer.Option(min=1, help="Proven at the end; default: the effort's.")] = None
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget: model tokens.")] = None
    dollars: Annotated[float | None, typer.Option(min=0.0, help="Budget: model cost; its price must be known.")] = None
    calls: Annotated[int | None, typer.Option(min=1, help="Budget: requests to models.")] = None
    target_speedup: Annotated[float | None, typer.Option(min=0.0, help="Stop when proven this fast.")] = None
    min_speedup: Annotated[float, typer.Option(min=0.0, help="Exit 1 below this proven speedup.")] = 0.0
    scale: Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE: about N times the work.")] = None
    model_class: ClassOption = ""
    other_shapes: OtherShapesOption = None
    policy: Annotated[str | None, typer.Option(help="fair, open or strict; default: the task's.")] = None
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True
    gpus: Annotated[str, typer.Option(metavar="all|N|0,1", help="Which GPUs the islands share; default: one.")] = ""
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A search strategy that has shown no use (docs/search.md); repeatable."),
    ] = None
    store: StoreOption = None
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Read and write the experience store.")] = True

    @property
    def limits(self) -> RunLimits:
        """The limits among these flags."""
        from foundry.graph.run.request import RunLimits

        return RunLimits(
            evaluations=self.evaluations,
            minutes=self.minutes,
            tokens=self.tokens,
            dollars=self.dollars,
            target_speedup=self.target_speedup,
            calls=self.calls,
        )
