"""Docstrings, comments and calls of the product can be read by a stranger, as far as that can be checked mechanically.

All of it is read from the source; nothing is imported. `UNSWEPT` names the rooms that still break a rule: it only
shrinks."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("knowledge", "tools", "agents", "graph")

# Folders and files whose words have not been gone through yet; "folder/*" is the files directly in a folder. Take an
# entry out once its files pass.
UNSWEPT: tuple[str, ...] = ()

# A docstring begins with the thing or with a verb.
BAD_BEGINNINGS = re.compile(r"\W*(Of|What|Whether|Who|Whoever|Whose|Nobody|Where|Which|That|Those)\b")

# Words of this project that a reader cannot look up, and the field's word for each.
HOUSE_WORDS = {
    r"whoever|nobody|everybody": "say what the thing does",
    r"rivals?|contests?": "baseline, baseline comparison",
    r"strands?": "in-flight step",
    r"undertakers?|bury|buries|buried": "reaper, reap",
    r"second cache": "L2",
    r"lies? together": "contiguous",
    r"heeds?|heeded": "follow, observe",
}
PREPOSITION = re.compile(r"(of|in|with|from|by|behind|beyond|before|after|up|to|between|below|above|on|at|for)\b")
MOST_WORDS = 30  # words in a sentence
MOST_POSITIONAL = 5  # arguments of a call; further ones are named
MOST_UNTOLD = 2  # lines of a function without a docstring, decorators not counted: its name and one expression say all
# Functions that take any number of arguments of one kind.
VARIADIC = frozenset({"zip", "max", "min", "partial"})


@cache
def sources() -> dict[str, str]:
    files = [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py"))] + [ROOT / "cli.py"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


@cache
def trees() -> dict[str, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


@cache
def docstrings(path: str) -> list[tuple[str, str]]:
    """(place, docstring) of the module and of each class and function in it."""
    found = []
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                found.append((f"{path}:{getattr(node, 'lineno', 1)}", text))
    return found


@cache
def comments(path: str) -> list[tuple[str, bool, str]]:
    """(place, True if it stands behind code, text) of each comment; consecutive lines of comments are one."""
    return list(read_comments(path))


def read_comments(path: str) -> Iterator[tuple[str, bool, str]]:
    """The same, one after another."""
    lines = sources()[path].split("\n")
    run: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(sources()[path]).readline):
        if token.type != tokenize.COMMENT:
            continue
        number, text = token.start[0], token.string.lstrip("# ")
        if lines[number - 1][: token.start[1]].strip():
            yield f"{path}:{number}", True, text
        elif run and run[-1][0] == number - 1:
            run.append((number, text))
        else:
            if run:
                yield f"{path}:{run[0][0]}", False, " ".join(part for _, part in run)
            run = [(number, text)]
    if run:
        yield f"{path}:{run[0][0]}", False, " ".join(part for _, part in run)


def sentences(text: str) -> Iterator[str]:
    """Sentences of a text; lines of a list or an indented block are texts of their own."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        is_list = any(re.match(r"\s+\S|[-*] ", line) for line in lines)
        for part in lines if is_list else [" ".join(lines)]:
            yield from re.split(r"(?<=[.!?;:])\s+", part)


def begins_badly(path: str) -> Iterator[str]:
    for place, text in docstrings(path):
        first = BAD_BEGINNINGS.match(text)
        if first:
            yield f"{place}: a docstring begins with {first[1]!r}"


def long_sentences(path: str) -> Iterator[str]:
    texts = [*docstrings(path), *((place, text) for place, _, text in comments(path))]
    for place, text in texts:
        for sentence in sentences(text):
            if len(sentence.split()) > MOST_WORDS:
                yield f"{place}: a sentence of {len(sentence.split())} words: {sentence[:60]}..."


def house_words(path: str) -> Iterator[str]:
    texts = [*docstrings(path), *((place, text) for place, _, text in comments(path))]
    for place, text in texts:
        plain = re.sub(r"`[^`]*`|\"[^\"]*\"", "", text)  # names and quoted records stay as they are
        for words, instead in HOUSE_WORDS.items():
            found = re.search(rf"\b({words})\b", plain, re.IGNORECASE)
            if found:
                yield f"{place}: {found[0]!r}; instead: {instead}"


def dangling_comments(path: str) -> Iterator[str]:
    """Comments behind an assignment that begin with a preposition, so that only their author can finish them."""
    ends = {
        node.end_lineno for node in ast.walk(trees()[path]) if isinstance(node, ast.Assign | ast.AnnAssign)
    }  # an assignment over several lines has its comment behind the last one
    for place, is_behind, text in comments(path):
        first = PREPOSITION.match(text)
        if is_behind and first and int(place.rpartition(":")[2]) in ends:
            yield f"{place}: a comment begins with {first[0]!r}"


def functions(path: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a file, methods and inner ones too."""
    return [node for node in ast.walk(trees()[path]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def untold_functions(path: str) -> Iterator[str]:
    """Functions whose effect only their code tells: without a docstring, and longer than MOST_UNTOLD lines.

    `__init__` needs none: its class's docstring says what an instance is. A stub (`...`) needs none either.
    """
    for function in functions(path):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        is_spared = function.name == "__init__" or ast.unparse(function.body[0]) == "..."
        if length > MOST_UNTOLD and not is_spared and not ast.get_docstring(function):
            yield f"{path}:{function.lineno}: {function.name} has {length} lines and no docstring"


def untold_answers(path: str) -> Iterator[str]:
    """Functions that return a bool and do not say for what it is True or False."""
    for function in functions(path):
        text = ast.get_docstring(function)
        returns_bool = function.returns is not None and ast.unparse(function.returns) == "bool"
        if returns_bool and text and not re.search(r"\b(True|False)\b", text):
            yield f"{path}:{function.lineno}: {function.name} returns a bool, and its docstring does not say when"


@cache
def variadic() -> frozenset[str]:
    """Names of the product's functions that take `*args`."""
    return VARIADIC | {function.name for path in trees() for function in functions(path) if function.args.vararg}


def positional_calls(path: str) -> Iterator[str]:
    for node in ast.walk(trees()[path]):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        count = sum(not isinstance(argument, ast.Starred) for argument in node.args)
        if count > MOST_POSITIONAL and name not in variadic():
            yield f"{path}:{node.lineno}: {name} is called with {count} positional arguments"


RULES = (
    begins_badly,
    long_sentences,
    house_words,
    dangling_comments,
    positional_calls,
    untold_functions,
    untold_answers,
)


def is_in(path: str, entry: str) -> bool:
    if entry.endswith("/*"):
        return path.rpartition("/")[0] == entry.removesuffix("/*")
    return path == entry or path.startswith(f"{entry}/")


def test_swept_rooms_can_be_read_by_a_stranger_and_the_list_of_others_only_shrinks() -> None:
    wrong, unswept = [], set[str]()
    for path in sources():
        found = [line for rule in RULES for line in rule(path)]
        room = next((entry for entry in UNSWEPT if is_in(path, entry)), "")
        wrong += [] if room else found
        unswept |= {room} if found else set()
    assert wrong == [], "\n".join(wrong)
    assert set(UNSWEPT) <= unswept, f"these pass, take them out: {sorted(set(UNSWEPT) - unswept)}"
