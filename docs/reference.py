"""Writes commands.md from the command line and configuration.md from the pydantic models of the settings.

python docs/reference.py            # writes both pages
python docs/reference.py --check    # exit code 1 and one line a page if a page is stale
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from foundry.agents.chat.endpoint import KEY, URLS
from foundry.agents.chat.options import ChatOptions
from foundry.agents.models.settings import PREFIX, ModelOptions, ModelTable, SettingsFile
from foundry.cli import app
from foundry.graph.show.trace.otel import HEADERS
from foundry.tools.process.environment import VISIBLE_GPUS
from foundry.tools.task import limits
from foundry.tools.task.file import OptionsFile

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Written by `python docs/reference.py`; edit the code or that script, not this page. -->"

LARGEST_LIMIT = 1 << 62  # larger limits are only those of a 64-bit number

# What a field means where neither its docstring nor a flag of the same name says it.
MEANINGS = {
    "policy": "`fair`, `open` or `strict`: see [policies](verify.md#policies).",
    "mode": "`as_given`, `train` or `eval`: the mode in which the module is measured.",
    "experts": "Table `[experts]`: models for single experts, by the expert's name.",
    "models": "Tables `[models.NAME]`: how a model is asked, by the name that `model` uses.",
}
COMMANDS_INTRODUCTION = (
    "Every command has `--help`. Options of the form `--x / --no-x` switch something on or off. The [tasks page]"
    "(tasks.md#exit-codes) lists the exit codes; [troubleshooting](troubleshooting.md) lists messages and remedies."
)
TASK_INTRODUCTION = (
    "A TOML file beside the task: `softmax.toml` beside `softmax.py`, or one `task.toml` for a folder. Every key is "
    "optional. An unknown key ends the command with exit code 2. The [tasks page](tasks.md) has an example."
)
SETTINGS_INTRODUCTION = (
    "Foundry reads the nearest `foundry.toml`, from the current folder upwards. A flag overrides a variable, and a "
    "variable overrides the file. The [experts page](experts.md#several-models) has an example."
)
MODEL_INTRODUCTION = (
    "The following keys may stand at the top of the file, for all models, or in a table `[models.NAME]`, for one. "
    "There `model` then means the name that the endpoint uses."
)
VARIABLES_END = f"Options of the chat model have variables too: `{PREFIX}MODEL` (like `--model`),"
SANDBOX_NOTE = "A sandboxed process sees only the variables that its work needs. No key is among them."
VARIABLES = (
    ("FOUNDRY_HOME", "`~/.foundry`", "Folder of the experience store, the measured ceilings and the device locks."),
    ("FOUNDRY_BUILD_CACHE", "`~/.cache/foundry/build`", "Folder of compiled kernels, which are found by their text."),
    (
        limits.SECONDS,
        f"{limits.DEFAULT_SECONDS:g}",
        "Seconds for the task's import, its inputs and a few forward calls.",
    ),
    (
        limits.GIGABYTES,
        f"{limits.MEMORY_SHARE:.0%} of the machine's memory",
        "Memory in GB that a process of the task may use.",
    ),
    (limits.GPU_GIGABYTES, "the GPU's free memory", "GPU memory in GB that all processes of a task may use together."),
    (KEY, "none", "Key for OpenAI, or for the server in `OPENAI_BASE_URL`. No other server gets it."),
    (
        URLS[0],
        "OpenAI's address",
        f"Address of the chat model if `--base-url` is missing; `{URLS[1]}` is read as well.",
    ),
    (VISIBLE_GPUS, "all GPUs", "GPUs that Foundry may use."),
    ("CUDA_HOME", "`/usr/local/cuda`", "Folder of the CUDA toolkit (`nvcc`, `nvdisasm`, `ncu`)."),
    ("CC, CXX", "none", "Compilers that a kernel which compiles itself (`load_inline`) may use besides `g++`."),
    (HEADERS, "none", "HTTP headers (`name=value,name=value`) for `foundry agent trace --export otel --to URL`."),
)


def commands_page() -> str:
    """The text of docs/commands.md."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", NOTE, "", *wrapped(COMMANDS_INTRODUCTION), ""]
    for command, words in leaves(root, ()):
        lines += [f"## {' '.join(words)}", "", *described(command, words), ""]
    return "\n".join(lines).rstrip() + "\n"


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every command that does something, with its words: ("foundry", "agent", "solve")."""
    words = words or ("foundry",)
    inner = getattr(command, "commands", {})
    if not inner:
        yield command, words
    for name, child in sorted(inner.items(), key=lambda item: not hasattr(item[1], "commands")):  # groups come first
        yield from leaves(child, (*words, name))


def described(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    """The usage line, the help text and a table of a command's arguments and options."""
    options = [one for one in command.params if one.name != "help"]
    arguments = [one for one in options if one.param_type_name == "argument"]
    usage = [" ".join(words), *(argument_usage(one) for one in arguments)]
    if len(options) > len(arguments):
        usage.append("[OPTIONS]")
    yield from ("```", " ".join(usage), "```", "")
    yield from prose(command.help or "")
    if options:
        yield from ("", "| argument or option | default | meaning |", "|---|---|---|")
        for one in sorted(options, key=lambda one: one.param_type_name):
            yield row(parameter_name(one), parameter_default(one), one.help or "")


def prose(text: str) -> Iterator[str]:
    """A help text in lines of at most 120 characters; a blank line between paragraphs."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\b", ""))
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ""
        yield from wrapped(escaped(" ".join(paragraph.split())))


def argument_usage(one: Any) -> str:
    """`TASK`, or `[RUN]` if it may be left out."""
    name = str(one.name).upper() + ("..." if one.nargs != 1 else "")
    return name if one.required else f"[{name}]"


def parameter_name(one: Any) -> str:
    """`TASK`, or every spelling of an option with the form of its value."""
    if one.param_type_name == "argument":
        return f"`{str(one.name).upper()}`"
    spelled = ", ".join(f"`{word}`" for word in one.opts)
    off = f" / `{one.secondary_opts[0]}`" if one.secondary_opts else ""
    value = "" if one.is_flag else f" {value_form(one)}"
    return spelled + off + value


def value_form(one: Any) -> str:
    """The metavar if there is one; otherwise the type with its limits."""
    if one.metavar:
        return f"`{one.metavar}`"
    low, high = one.min, one.max if one.max is None or one.max < LARGEST_LIMIT else None
    annotation = one.type_descriptor.annotation
    name = str((get_args(annotation) or (annotation,))[0].__name__).lower()
    if low is None and high is None:
        return name
    if high is None:
        return f"{name}, at least {low}"
    return f"{name}, at most {high}" if low is None else f"{name}, {low} to {high}"


def parameter_default(one: Any) -> str:
    """The default as a user would type it; empty if the help text says what happens without the option."""
    if one.required:
        return "required"
    if one.default in (None, "", (), []) or (one.is_flag and not one.secondary_opts):
        return ""
    if one.secondary_opts:
        return f"`{one.opts[0] if one.default else one.secondary_opts[0]}`"
    return f"`{one.default}`"


def row(*cells: str) -> str:
    """A row of a table."""
    return "| " + " | ".join(escaped(" ".join(cell.split())) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Text without rich's escapes; a bar would end a cell, and a bare angle bracket would open HTML."""
    return text.replace("\\[", "[").replace("|", "\\|").replace("<", "&lt;")


def configuration_page() -> str:
    """The text of docs/configuration.md."""
    flags = flag_meanings()
    heads = (row("key", "form", "default", "meaning"), "|---|---|---|---|")
    own = {name for name in SettingsFile.model_fields if name not in ModelOptions.model_fields}
    lines = ["# Configuration", "", NOTE, "", "## Options beside a task", "", *wrapped(TASK_INTRODUCTION), ""]
    lines += [*heads, *fields(OptionsFile, flags), "", "## foundry.toml", "", *wrapped(SETTINGS_INTRODUCTION), ""]
    lines += [*heads, *fields(SettingsFile, flags, own), "", *wrapped(MODEL_INTRODUCTION), ""]
    lines += [*heads, *fields(ModelTable, flags), "", "## Environment variables", ""]
    lines += [row("variable", "default", "meaning"), "|---|---|---|"]
    lines += [row(f"`{name.replace(', ', '`, `')}`", default, meaning) for name, default, meaning in VARIABLES]
    named = [f"`{PREFIX}{name.upper()}`" for name in ModelOptions.model_fields]
    return "\n".join([*lines, "", *wrapped(f"{VARIABLES_END} {', '.join(named)}."), "", SANDBOX_NOTE]) + "\n"


def wrapped(text: str) -> list[str]:
    """A paragraph in lines of at most 120 characters."""
    return textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False)


def flag_meanings() -> dict[str, str]:
    """Help of each option of `foundry agent solve`, by the name that configuration files use."""
    solve = typer.main.get_command(app).commands["agent"].commands["solve"]  # type: ignore[attr-defined]
    named = {word.removeprefix("--").replace("-", "_"): one.help or "" for one in solve.params for word in one.opts}
    return {name: re.sub(r";? ?[Dd]efault: .*", ".", text).replace("..", ".") for name, text in named.items()}


def fields(model: type[BaseModel], flags: dict[str, str], only: set[str] | None = None) -> Iterator[str]:
    """A row for each field of a settings model."""
    documented = attribute_docstrings(model)
    for name, field in model.model_fields.items():
        if only is None or name in only:
            meaning = documented.get(name) or MEANINGS.get(name) or flags[name]
            yield row(f"`{name}`", form(field), field_default(name, field), meaning)


def attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a class and of the classes that it extends."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for one, after in zip(tree.body, tree.body[1:], strict=False):
            told = after.value if isinstance(after, ast.Expr) else None
            if isinstance(one, ast.AnnAssign) and isinstance(told, ast.Constant) and isinstance(told.value, str):
                found[ast.unparse(one.target)] = told.value
    return found


def form(field: FieldInfo) -> str:
    """The type of a field and its limits in words."""
    limits_of = [limit for one in (*field.metadata, *inner_metadata(field)) for limit in limit_words(one)]
    return ", ".join(dict.fromkeys([type_words(field.annotation), *limits_of]))


def inner_metadata(field: FieldInfo) -> Iterator[Any]:
    """Limits that stand inside `Annotated[...] | None`."""
    for one in get_args(field.annotation):
        for limit in getattr(one, "__metadata__", ()):
            yield from getattr(limit, "metadata", ())


def limit_words(limit: Any) -> Iterator[str]:
    """The limit in words; nothing for what is no limit."""
    for name, words in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most")):
        if (value := getattr(limit, name, None)) is not None:
            yield f"{words} {value:g}"
    if (most := getattr(limit, "max_length", None)) is not None:
        yield f"at most {most} of them"


def type_words(annotation: Any) -> str:
    """A type as a user of TOML would call it."""
    text = str(annotation) if get_args(annotation) else getattr(annotation, "__name__", str(annotation))
    if choices := re.findall(r"Literal\[([^\]]*)\]", text):
        return " or ".join(part.strip().strip("'\"") for part in choices[0].split(","))
    names = (
        ("dict[str, int]", "tables of module constants"),
        ("ModelTable", "tables"),
        ("dict[str", "table"),
        ("tuple[str", "list of strings"),
        ("list[str]", "string or list of strings"),
        ("tuple[", "two numbers"),
        ("float", "number"),
        ("int", "whole number"),
        ("str", "string"),
    )
    return next((words for mark, words in names if mark in text), text)


def field_default(name: str, field: FieldInfo) -> str:
    """The default as TOML; ChatOptions has the defaults of the options of a model."""
    attribute = {"request_seconds": "request_s", "parallel_calls": "parallel", "api_key_env": "key_env"}.get(name, name)
    value = field.get_default(call_default_factory=True)
    if value is None:
        value = getattr(ChatOptions(), attribute, None)
    if value in (None, "", (), []) or value == {}:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def main() -> int:
    pages = {"commands.md": commands_page(), "configuration.md": configuration_page()}
    stale = [name for name, text in pages.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is stale: run python docs/reference.py")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(pages[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
