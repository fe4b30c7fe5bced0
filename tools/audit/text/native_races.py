"""Sums that the threads of one loop add to without asking each other: right most of the time, which is wrong.

Only the plain case is judged: a scalar of the function around a parallel loop, read and written in the loop's body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from foundry.tools.audit.text.source import Finding

_LOOP = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+parallel[ \t]+for\b(?P<clauses>[^\n]*)\n", re.MULTILINE)
_SCALAR = r"\b(?:volatile\s+)?(?:float|double|int|long|unsigned|size_t|u?int\d+_t)\s+(?:[\w\s=.,+-]*,\s*)?"
_GROWS = re.compile(r"(?<![\w.>\])*&])(?<!->)(?P<name>[A-Za-z_]\w*)\s*(?:[-+*]=(?!=)|=\s*(?P=name)\s*[-+*](?![-+*]))")
_STATEMENT = re.compile(r"\b(?:for|while|if|switch)\s*\([^{};]*(?:;[^{};]*){0,2}\)$")
_ORDERED = re.compile(r"\bomp[ \t]+(?:atomic|critical|ordered)\b|\block\b|mutex|atomic")


def race_findings(line: int, code: str) -> Iterator[Finding]:
    """Findings of rule native_state in comment-free code whose first line is line `line` of the file."""
    for loop in _LOOP.finditer(code):
        body = _statement(code, loop.end())
        shared = re.sub(r"\b(?:num_threads|schedule|if|collapse)\s*\([^()]*\)", " ", loop["clauses"])
        before = _function_before(code, loop.start())
        if _ORDERED.search(body) or "default" in shared:
            continue
        for match in _GROWS.finditer(body):
            name = re.escape(match["name"])
            is_own = re.search(rf"\b{name}\b", shared) or _is_declared(name, body)
            if not is_own and re.search(rf"{_SCALAR}{name}\s*(?:=|;|,|\{{)", before):
                where = line + code.count("\n", 0, loop.end() + match.start())
                words = f"threads add to {match['name']} at once, without reduction or atomic: right by luck"
                yield Finding("native_state", where, words)


def _is_declared(name: str, body: str) -> bool:
    """Whether the body, its loop headers and lambdas included, has a variable of that name."""
    words = r"(?:float|double|int|long|short|unsigned|char|bool|auto|size_t|\w+_t|__m\d+\w*|[A-Z]\w*|std::\w+)"
    others = r"(?:[\w\s=.,+*/()\[\]-]*?,\s*)?"
    return re.search(rf"\b{words}\b[\s&*<>]*{others}{name}\s*(?:=(?!=)|;|,|\)|\{{|\[)", body) is not None


def _function_before(code: str, position: int) -> str:
    """The text of the present function up to a place: back to the brace that opens it at namespace level."""
    depth, begin = 0, 0
    for index in range(position - 1, -1, -1):
        depth += (code[index] == "}") - (code[index] == "{")
        begin = index
        if depth < 0:
            opens = code[max(0, index - 300) : index].rstrip()
            if opens.endswith(")") and not _STATEMENT.search(opens):
                break
            depth = 0
    return code[begin:position]


def _statement(code: str, start: int) -> str:
    """The loop that follows a pragma, header and body."""
    depth = braces = 0
    for position in range(start, min(len(code), start + 20000)):
        symbol = code[position]
        depth += (symbol == "(") - (symbol == ")")
        braces += (symbol == "{") - (symbol == "}")
        if depth == 0 and ((symbol == "}" and braces == 0) or (symbol == ";" and braces == 0)):
            return code[start : position + 1]
    return code[start:]
