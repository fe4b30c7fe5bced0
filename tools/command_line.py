"""Conventions of all commands: errors in one line, exit codes, JSON on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TextIO, TypeVar, cast

import typer

from foundry.knowledge.errors import FoundryError
from foundry.knowledge.targets import BUILT_IN, target_names
from foundry.tools.words import make_printable

P = ParamSpec("P")
R = TypeVar("R")

# ClickException, of the click that this typer brings along
UsageProblem = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])


class GroupsFirst(typer.core.TyperGroup):
    """Lists groups of commands before single ones: what most people came for is a group."""

    def list_commands(self, context: Any) -> list[str]:
        """Names of the commands: groups first, otherwise in the order of their declaration."""
        return sorted(self.commands, key=lambda name: not isinstance(self.commands[name], typer.core.TyperGroup))


class CommandLine(typer.Typer):
    """A Typer application whose usage errors are one line on standard error, like all others."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command line; prints a usage error as one line and exits with its code."""
        try:
            code = super().__call__(*args, **{**kwargs, "standalone_mode": False})
        except UsageProblem as error:
            if told := error.format_message():  # "" when the help was printed instead
                context = getattr(error, "ctx", None)
                typer.echo(f"foundry: {told} (see {context.command_path if context else 'foundry'} --help)", err=True)
            sys.exit(2)
        except typer.Abort:
            typer.echo("foundry: interrupted", err=True)
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Wraps a command: errors that the user can act on become one line on standard error and an exit code."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the command. An error, an interrupt or a failing file becomes one line on standard error and an exit
        code.

        A closed output (`| head -1`) exits with 1, silently.
        """
        try:
            return command(*args, **kwargs)
        except FoundryError as error:
            fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            fail("interrupted", 130)
        except BrokenPipeError:  # the reader of our output has ended (`| head -1`)
            for stream in (sys.stdout, sys.stderr):
                _silence(stream)
            raise typer.Exit(1) from None
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            fail(f"{error.strerror or error}{where}", 2)

    return guarded


def say(line: str, *, err: bool = False) -> None:
    """Prints a line, on standard error if `err`. The command goes on if the stream's reader has ended (`| head -1`)."""
    try:
        typer.echo(line, err=err)
    except BrokenPipeError:
        _silence(sys.stderr if err else sys.stdout)


def _silence(stream: TextIO) -> None:
    """Points a stream at /dev/null: drops text in its buffer and all that is written later."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def fail(message: str, code: int) -> NoReturn:
    """Prints one error line on standard error and exits with `code`."""
    say(f"foundry: {make_printable(message)}", err=True)
    raise typer.Exit(code)


def choose(option: str, value: str, allowed: tuple[str, ...]) -> Any:
    """The value. Ends the command where an option does not allow it."""
    if value not in allowed:
        fail(f"{option} {value}: one of {', '.join(allowed)}", 2)
    return value


def choose_target(value: str, *, auto: bool = True) -> str:
    """The value of `--target`: the name of a target or, with `auto`, "auto". Ends the command where it is neither."""
    if value in BUILT_IN or (auto and value == "auto"):
        return value  # without a look at the installed packages
    return str(choose("--target", value, (*target_names(), *(("auto",) if auto else ()))))


def print_json(document: Any) -> None:
    """Prints the document as JSON: indented on a terminal, else in one line."""
    say(json.dumps(document, indent=None if not sys.stdout.isatty() else 2))
