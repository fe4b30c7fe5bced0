"""The command line: arguments in, exit code out. Exit codes: 0 accepted, 1 nothing accepted, 2 bad input, 3 missing
environment, 4 not comparable, 130 interrupted with the state kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from foundry.knowledge.errors import FoundryError

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    help="Turn a slow PyTorch module into a fast, proven kernel.", no_args_is_help=True, add_completion=False
)
agent_app = typer.Typer(help="Run the experts on a task; watch, steer and inspect a run.", no_args_is_help=True)
knowledge_app = typer.Typer(help="What earlier runs learnt.", no_args_is_help=True)
app.add_typer(agent_app, name="agent")
app.add_typer(knowledge_app, name="knowledge")

StoreOption = Annotated[str | None, typer.Option("--store", help="Folder or Chroma server URL of the store.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Errors that the user can act on become one line on standard error and an exit code."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except FoundryError as error:
            _fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            _fail(f"{error.strerror or error}{where}", 2)

    return guarded


def _fail(message: str, code: int) -> NoReturn:
    typer.echo("foundry: " + " ".join(message.split()), err=True)
    raise typer.Exit(code)


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=None if not sys.stdout.isatty() else 2))


# ---------------------------------------------------------------- doctor


@app.command()
@one_line_errors
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine can do, and the one command that would let it do more."""
    from dataclasses import asdict

    from foundry.tools.doctor import examine

    findings = examine()
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        marks = {"ok": "ok     ", "limited": "limited", "missing": "missing"}
        for finding in findings:
            typer.echo(f"{marks[finding.state]}  {finding.what}: {finding.detail}")
            if finding.climb:
                typer.echo(f"         -> {finding.climb}")
    if any(finding.needed and finding.state == "missing" for finding in findings):
        raise typer.Exit(3)


# ---------------------------------------------------------------- knowledge


def _record_line(record: Any) -> str:
    child = f"{record.child_speedup:.2f}x" if record.child_speedup else record.outcome
    lift = f" ({record.lift:.2f} of its parent)" if record.lift else ""
    best = " best of its run" if record.is_run_best else ""
    return f"x{record.id}  {record.task}  {record.target}  {record.move}  {child}{lift}{best}"


@knowledge_app.command("list")
@one_line_errors
def knowledge_list(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 30,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List lessons, newest first."""
    with _opened(store) as opened:
        records = opened.newest(limit)
        if as_json:
            from foundry.knowledge.codec import to_plain

            _print_json([to_plain(record) for record in records])
            return
        for record in records:
            typer.echo(_record_line(record))
        if not records:
            typer.echo("the store is empty: it fills as runs learn")


@knowledge_app.command("search")
@one_line_errors
def knowledge_search(
    text: str,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    limit: Annotated[int, typer.Option(min=1)] = 10,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find lessons near a text: operators, a limiter, a move."""
    with _opened(store) as opened:
        found = opened.search(text, target, limit)
        if as_json:
            from foundry.knowledge.codec import to_plain

            _print_json([{"similarity": near, "record": to_plain(record)} for record, near in found])
            return
        for record, near in found:
            typer.echo(f"{near:.2f}  {_record_line(record)}")


@knowledge_app.command("show")
@one_line_errors
def knowledge_show(record_id: str, store: StoreOption = None) -> None:
    """Show one lesson whole, by the start of its id."""
    with _opened(store) as opened:
        from foundry.knowledge.codec import to_plain

        typer.echo(json.dumps(to_plain(opened.show(record_id)), indent=2))


@knowledge_app.command("export")
@one_line_errors
def knowledge_export(path: Path, store: StoreOption = None) -> None:
    """Write every lesson as a line of JSON."""
    with _opened(store) as opened:
        typer.echo(f"{opened.export(path)} lessons written to {path}")


@knowledge_app.command("import")
@one_line_errors
def knowledge_import(path: Path, store: StoreOption = None) -> None:
    """Add the lessons of an exported file."""
    with _opened(store) as opened:
        typer.echo(f"{opened.import_(path)} new lessons imported from {path}")


@knowledge_app.command("forget")
@one_line_errors
def knowledge_forget(
    record_ids: list[str],
    reason: Annotated[str, typer.Option(help="Kept beside the forgotten ids.")] = "user",
    store: StoreOption = None,
) -> None:
    """Forget lessons by id: they are never recalled again."""
    with _opened(store) as opened:
        typer.echo(f"{opened.forget(record_ids, reason)} lessons forgotten")


@knowledge_app.command("reindex")
@one_line_errors
def knowledge_reindex(store: StoreOption = None) -> None:
    """Rebuild the Chroma index from the journal."""
    with _opened(store) as opened:
        typer.echo(f"{opened.reindex()} lessons indexed ({opened.index_kind})")


def _opened(store: str | None) -> Any:
    from contextlib import closing

    from foundry.knowledge.experience.store import ExperienceStore

    return closing(ExperienceStore.open(store))
