"""Variables of C++ or CUDA text that outlive a call, and those of them that decide or become an answer.

Memory that is kept for scratch is allowed; memory that is compared, counted in, searched or copied out is a cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foundry.tools.audit.source import Finding

_NOT_VARIABLES = re.compile(
    r"\s*(?:using|typedef|friend|static_assert|extern|asm|return|public|private|protected|goto|break|continue|case)\b"
)
_CONTAINERS = re.compile(r"\b(?:std::)?(?:unordered_|multi)?(?:map|set)\b|\bstd::(?:vector|deque|list|string|any)\b")


@dataclass(frozen=True)
class Variable:
    """A variable at namespace level, or a static one inside a function. `position` is its declaration's start."""

    name: str
    declaration: str
    position: int


def state_findings(line: int, code: str) -> Iterator[Finding]:
    """Findings of rule native_state in comment-free code whose first line is line `line` of the file."""
    for variable in lasting_variables(code):
        start, name = variable.position, re.escape(variable.name)
        rest = code[:start] + " " * len(variable.declaration) + code[start + len(variable.declaration) :]
        where = line + code.count("\n", 0, start)
        part = rf"\b{name}(?:\[[^\]]*\]|\.\w+|->\w+)*"
        decides = (
            rf"(?:==|!=|<=?|>=?)\s*{name}\b|{part}\s*(?:==|!=)(?!\s*(?:nullptr|NULL|0\b|false))|"
            rf"\bmem(?:cmp|chr)\s*\([^;]*\b{name}\b|(?:\+\+|--)\s*{part}|{part}\s*(?:\+\+|--|\+=|-=|\^=)|"
            rf"\bstd::equal\s*\([^;]*\b{name}\b"
        )
        searched = rf"\b{name}\s*(?:\.\s*(?:find|count|contains|at|insert|emplace|try_emplace|push_back)\s*\(|\[)"
        if re.search(decides, rest):
            yield Finding("native_state", where, f"compares or counts in {variable.name}, which outlives the call")
        elif _CONTAINERS.search(variable.declaration) and re.search(searched, rest):
            yield Finding("native_state", where, f"keeps entries in {variable.name}, which outlives the call")
        elif re.search(rf"\b(?:memcpy|memmove)\s*\([^,;]*,[^,;]*\b{name}\b", rest):
            yield Finding("native_state", where, f"copies {variable.name}, which outlives the call, into a result")


def lasting_variables(code: str) -> list[Variable]:
    """Every mutable variable that outlives a call, in order."""
    code = re.sub(r"^[ \t]*#[^\n]*", lambda match: " " * len(match.group()), code, flags=re.MULTILINE)
    found: list[Variable] = []
    scopes: list[str] = []
    begin, inside = 0, ""  # start of the present statement; its text with nested braces left out
    for position, symbol in enumerate(code):
        if symbol == "{":
            kind = _scope(inside)
            scopes.append(kind)
            if kind in ("namespace", "code"):
                begin, inside = position + 1, ""
        elif symbol == "}":
            kind = scopes.pop() if scopes else "code"
            if kind in ("namespace", "code"):
                begin, inside = position + 1, ""
            elif not _elided(scopes):
                inside += "{}"
        elif symbol == ";" and not _elided(scopes):
            name = _variable(inside, at_namespace="code" not in scopes)
            if name:
                lead = len(code[begin:position]) - len(code[begin:position].lstrip())
                found.append(Variable(name, code[begin + lead : position + 1], begin + lead))
            begin, inside = position + 1, ""
        elif not _elided(scopes):
            inside += symbol
    return found


def _elided(scopes: list[str]) -> bool:
    return bool(scopes) and scopes[-1] in ("type", "initialiser")


def _scope(before: str) -> str:
    """What an opening brace opens, from the statement's text before it."""
    if re.search(r"\bnamespace\b[^=;()]*$|\bextern\s+\"\"\s*$", before):
        return "namespace"
    if re.search(r"\b(?:struct|class|union|enum)\b[^()=]*$", before):
        return "type"
    if re.search(r"=\s*$", before) or (re.search(r"[\w\]>]\s*$", before) and "(" not in before):
        return "initialiser"
    return "code"


def _variable(statement: str, *, at_namespace: bool) -> str:
    """The name a statement declares when it outlives the call and may change; "" otherwise."""
    text = re.sub(r"^\s*template\s*<[^;{}]*?>\s*(?=\w)", "", statement)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)|alignas\s*\([^)]*\)|\[\[[^\]]*\]\]", " ", text)
    is_static = re.match(r"\s*(?:inline\s+)?(?:static|thread_local)\b", text) is not None
    if not (at_namespace or is_static) or _NOT_VARIABLES.match(text) or not text.strip():
        return ""
    declared = re.split(r"=|\{\}\s*$", text, maxsplit=1)[0]
    if (
        "(" in declared
        or re.match(r"\s*(?:struct|class|union|enum)\b[^{}]*(?:\{\})?\s*$", text)
        or _is_constant(declared)
    ):
        return ""
    names = re.findall(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$", declared.strip())
    return names[-1] if names and re.search(r"[\s*&>}]\s*[A-Za-z_]\w*\s*(?:\[[^\]]*\]\s*)*$", declared.strip()) else ""


def _is_constant(declared: str) -> bool:
    """Constants and on-chip memory; `const T* p` is a variable that points to constants."""
    if re.search(r"\b(?:constexpr|__constant__|__shared__)\b", declared):
        return True
    return re.search(r"\bconst\b", declared.rsplit("*", 1)[-1]) is not None
