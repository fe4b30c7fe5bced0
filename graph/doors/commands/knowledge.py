"""`foundry knowledge`: the lessons of the experience store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from foundry.graph.doors.commands import prompts
from foundry.graph.doors.commands.options import JsonOption, StoreOption
from foundry.knowledge.step_words import key_words, spoken
from foundry.tools.command_line import choose_target, one_line_errors, print_json

app = typer.Typer(help="List, search, share and forget what earlier runs learnt.", no_args_is_help=True)
app.add_typer(prompts.app, name="prompts")


def _record_line(record: Any) -> str:
    """A lesson in one line."""
    child = f"{record.child_speedup:.2f}x" if record.child_speedup else spoken(record.outcome)
    lift = f" ({record.lift:.2f} of its parent)" if record.lift else ""
    lift += f" credited with {record.credit.words}" if record.credit else ""
    best = " best of its run" if record.is_run_best else ""
    return f"x{record.id}  {record.task}  {record.target}  {key_words(record.move)}  {child}{lift}{best}"


@app.command("list")
@one_line_errors
def list_lessons(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 30,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List lessons, newest first."""
    with _opened(store) as opened:
        records = opened.newest(limit)
        if as_json:
            from foundry.knowledge.codec import to_plain

            print_json([to_plain(record) for record in records])
            return
        for record in records:
            typer.echo(_record_line(record))
        if not records:
            typer.echo("the store is empty: it fills as runs learn")


@app.command("search")
@one_line_errors
def search(
    text: Annotated[str, typer.Argument(help="Words to look for, such as softmax, bandwidth or unroll.")],
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    limit: Annotated[int, typer.Option(min=1, help="How many, nearest first.")] = 10,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find lessons near a text: operators, a limiter, a move."""
    with _opened(store) as opened:
        found = opened.search(text, choose_target(target, auto=False), limit)
        if as_json:
            from foundry.knowledge.codec import to_plain

            print_json([{"similarity": near, "record": to_plain(record)} for record, near in found])
            return
        for record, near in found:
            typer.echo(f"{near:.2f}  {_record_line(record)}")


@app.command("credits")
@one_line_errors
def show_credits(
    task: Annotated[str, typer.Argument(help="On this task's graph; default: on a graph that is not known yet.")] = "",
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each move is credited with: a factor of the speed, its 95 % interval, and by how many steps."""
    with _opened(store) as opened:
        found = opened.overview(choose_target(target, auto=False), task)
        if as_json:
            from foundry.knowledge.codec import to_plain

            print_json([to_plain(credit) for credit in found])
            return
        for credit in found:
            typer.echo(f"{key_words(credit.move)}: {credit.words}")
        if not found:
            typer.echo("no move is credited with anything yet: the store fills as runs learn")


@app.command("show")
@one_line_errors
def show(
    record_id: Annotated[str, typer.Argument(help="The start of a lesson's id, as `list` shows it.")],
    store: StoreOption = None,
) -> None:
    """Show one lesson whole, by the start of its id."""
    with _opened(store) as opened:
        from foundry.knowledge.codec import to_plain

        typer.echo(json.dumps(to_plain(opened.show(record_id)), indent=2))


@app.command("export")
@one_line_errors
def export(path: Annotated[Path, typer.Argument(help="The file to write.")], store: StoreOption = None) -> None:
    """Write every lesson as a line of JSON."""
    with _opened(store) as opened:
        typer.echo(f"{opened.export(path)} lessons written to {path}")


@app.command("import")
@one_line_errors
def import_(
    path: Annotated[Path, typer.Argument(help="A file that `export` wrote.")], store: StoreOption = None
) -> None:
    """Add the lessons of an exported file."""
    with _opened(store) as opened:
        typer.echo(f"{opened.import_(path)} new lessons imported from {path}")


@app.command("forget")
@one_line_errors
def forget(
    record_ids: Annotated[list[str], typer.Argument(help="Ids of lessons, as `list` shows them.")],
    reason: Annotated[str, typer.Option(help="Kept beside the forgotten ids.")] = "user",
    store: StoreOption = None,
) -> None:
    """Forget lessons by id: they are never recalled again."""
    with _opened(store) as opened:
        typer.echo(f"{opened.forget(record_ids, reason)} lessons forgotten")


@app.command("reindex")
@one_line_errors
def reindex(store: StoreOption = None) -> None:
    """Rebuild the Chroma index from the journal."""
    with _opened(store) as opened:
        typer.echo(f"{opened.reindex()} lessons indexed ({opened.index_kind})")


def _opened(store: str | None) -> Any:
    """The store in a context that closes it. Prints the store's note, if it has one."""
    from contextlib import closing

    from foundry.knowledge.experience.store import ExperienceStore

    opened = ExperienceStore.open(store)
    if opened.note:
        typer.echo(f"note: {opened.note}", err=True)
    return closing(opened)
