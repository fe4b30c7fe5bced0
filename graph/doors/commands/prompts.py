"""`foundry knowledge prompts`: what models have rewritten in the experts' prompts, and what it brought."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundry.graph.doors.commands.options import JsonOption, StoreOption
from foundry.knowledge.errors import UsageError
from foundry.tools.command_line import one_line_errors, print_json

if TYPE_CHECKING:
    from foundry.graph.search.strategies.evolving.standing import VariantStanding
    from foundry.knowledge.experience.variants import PromptVariant, VariantArchive

    Row = tuple[PromptVariant, VariantStanding | None]

app = typer.Typer(help="What models rewrote in the experts' prompts, and what it brought.", no_args_is_help=True)


@contextmanager
def _opened(store: str | None) -> Iterator[VariantArchive]:
    """A context manager with the archive of prompt variants in the store."""
    from foundry.knowledge.experience.store import folder_of
    from foundry.knowledge.experience.variants import VariantArchive

    with closing(VariantArchive(folder_of(store))) as archive:
        yield archive


def _rows(archive: VariantArchive) -> list[Row]:
    """Every live variant, oldest first; None for one of another version of the prompt, or that is no advice."""
    from foundry.graph.search.strategies.evolving.texts import standings
    from foundry.knowledge.targets import target_names

    known = {item.id: found for target in target_names() for item, found in standings(archive, target)}
    return [(item, known.get(item.id)) for item in archive.variants()]


def _words(variant: PromptVariant, standing: VariantStanding | None) -> str:
    """One line about a variant: its place, standing and origin."""
    what = f"{variant.id}  {variant.expert} {variant.target}, {variant.changed}"
    origin = f"{variant.created[:10]} by {variant.model} in run {variant.run}"
    return f"{what}  {standing.words if standing else 'not used: not of this version of the prompt'}; {origin}"


def _plain(variant: PromptVariant, standing: VariantStanding | None) -> dict[str, Any]:
    """A variant and its standing as plain JSON values."""
    from foundry.knowledge.codec import to_plain

    found = {"state": standing.state, "chance": standing.chance, **to_plain(standing)} if standing else None
    return {"variant": to_plain(variant), "standing": found}


@app.command("list")
@one_line_errors
def list_variants(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List rewritten sections, oldest first: by which model, when, and what they brought with its interval."""
    with _opened(store) as archive:
        rows = _rows(archive)
    if as_json:
        print_json([_plain(*row) for row in rows])
        return
    for row in rows:
        typer.echo(_words(*row))
    if not rows:
        typer.echo("the experts' prompts are as shipped: no model has rewritten any (agent solve --prompts evolve)")


@app.command("show")
@one_line_errors
def show(
    variant_id: Annotated[str, typer.Argument(help="The start of a variant's id, as `list` shows it.")],
    store: StoreOption = None,
) -> None:
    """Show what a variant changed, as a diff, why, and what it brought in each run."""
    with _opened(store) as archive:
        rows, uses = _rows(archive), archive.uses()
    variant, standing = _find(rows, variant_id)
    before = _body({item.id: item for item, _ in rows}.get(variant.parent), variant)
    after = variant.sections[variant.changed]
    typer.echo(_words(variant, standing))
    typer.echo(f"why: {variant.reason or 'not said'}")
    names = (f"{variant.changed} of {variant.parent or 'the shipped prompt'}", f"{variant.changed} of {variant.id}")
    typer.echo("\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=9)))
    for use in uses:
        if (use.expert, use.target) == (variant.expert, variant.target) and use.variant in ("", variant.id):
            gains = " ".join(f"{gain:+.2f}" for gain in use.gains)
            typer.echo(f"{use.run}  {use.variant or 'shipped':12}  log gains {gains}; {use.failed} failed")


def _body(parent: PromptVariant | None, variant: PromptVariant) -> str:
    """The text of the changed section before the change; "" for an unknown expert."""
    from foundry.agents.expert import experts
    from foundry.graph.search.strategies.evolving.advice import sections_of

    if variant.expert not in experts():
        return ""
    return sections_of(variant.expert, parent.sections if parent else {}).get(variant.changed, "")


def _find(
    rows: list[tuple[PromptVariant, VariantStanding | None]], prefix: str
) -> tuple[PromptVariant, VariantStanding | None]:
    """The one variant whose id starts with `prefix`. Raises UsageError if there is none or several."""
    found = [row for row in rows if prefix and row[0].id.startswith(prefix)]
    if len(found) != 1:
        raise UsageError(
            f"{len(found) or 'no'} variants have an id starting {prefix!r}", "see `knowledge prompts list`"
        )
    return found[0]


@app.command("export")
@one_line_errors
def export(path: Annotated[Path, typer.Argument(help="The file to write.")], store: StoreOption = None) -> None:
    """Write every variant and what each text brought in each run as lines of JSON."""
    with _opened(store) as archive:
        typer.echo(f"{archive.export(path)} lines written to {path}")


@app.command("reset")
@one_line_errors
def reset(
    variant_ids: Annotated[list[str] | None, typer.Argument(help="Which; with --all every one.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Back to the shipped prompts.")] = False,
    reason: Annotated[str, typer.Option(help="Kept beside the ids.")] = "user",
    store: StoreOption = None,
) -> None:
    """Take variants back: they are never used again, nor written again in the same words."""
    if bool(variant_ids) == everything:
        raise UsageError("name variants by id, or all of them with --all", "see `foundry knowledge prompts list`")
    with _opened(store) as archive:
        rows = _rows(archive)
        ids = [row[0].id for row in rows] if everything else [_find(rows, name)[0].id for name in variant_ids or ()]
        typer.echo(f"{archive.forget(ids, reason)} variants taken back")
