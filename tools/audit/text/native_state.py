"""Variables of C++ or CUDA text that outlive a call, and those of them that decide or become an answer.

Memory that is kept for scratch is allowed, and so are sizes, flags and tables that follow from shapes. What is compared
with an input's content or address, counted in or searched is a cache; what is copied out may be one, and the grader's
calls with other content at the same address decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foundry.tools.audit.text.source import Finding

_NOT_VARIABLES = re.compile(
    r"\s*(?:using|typedef|friend|static_assert|extern|asm|return|public|private|protected|goto|break|continue|case)\b"
)
_CONTAINERS = re.compile(r"\b(?:std::)?(?:unordered_|multi)?(?:map|set)\b|\bstd::(?:any|string)\b")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?:[-+*/%^|&]|<<|>>)?=(?!=)")
_POINTERS = re.compile(
    r"(?P<type>[A-Za-z_][\w:]*|>)\s*(?:const\s*)?\*+\s*(?:const\s+|__restrict(?:__)?\s+|restrict\s+|\*)*"
    r"(?P<name>[A-Za-z_]\w*)\s*(?=[,)=;\[])"
)
_TYPES = re.compile(
    r"(?:void|char|float|double|int|long|short|unsigned|signed|bool|auto|const|half|__\w+|std::\w+|size_t|\w+_t|bfloat16|"
    r"[A-Z]\w*::\w+|at::\w+|c10::\w+|nv_\w+|(?:float|double|int|uint|char|uchar|half)[2348]|>)"
)
_NAMED_TYPES = re.compile(
    r"\b(?:typename|class|struct|union|enum|using)\s+([A-Za-z_]\w*)|\btypedef\b[^;]*?([A-Za-z_]\w*)\s*;"
)
_TENSORS = re.compile(r"\bTensor\s*(?:&|\s)\s*([A-Za-z_]\w*)\s*(?=[,)=;])")


@dataclass(frozen=True)
class Variable:
    """A variable at namespace level, or a static one inside a function. `position` is its declaration's start."""

    name: str
    declaration: str
    position: int


def state_findings(line: int, code: str) -> Iterator[Finding]:
    """Findings of rule native_state in comment-free code whose first line is line `line` of the file."""
    content: frozenset[str] | None = None
    for variable in lasting_variables(code):
        start, name = variable.position, re.escape(variable.name)
        rest = code[:start] + " " * len(variable.declaration) + code[start + len(variable.declaration) :]
        where = line + code.count("\n", 0, start)
        part = rf"\b{name}(?:\[[^\]]*\]|\.\w+|->\w+)*"
        counted = rf"(?:\+\+|--)\s*{part}|{part}\s*(?:\+\+|--|\+=|-=|\^=)|\b{name}\s*=\s*{name}\s*[-+^]"
        equal = rf"\bmem(?:cmp|chr)\s*\([^;]*\b{name}\b|\bstd::equal\s*\([^;]*\b{name}\b|\bstrn?cmp\s*\([^;]*\b{name}\b"
        searched = rf"\b{name}\s*(?:\.\s*(?:find|count|contains|at|insert|emplace|try_emplace)\s*\(|\[)"
        if content is None:
            content = _content_names(code)
        if re.search(counted, rest) or re.search(equal, rest) or _is_compared(part, name, rest, content):
            yield Finding("native_state", where, f"compares or counts in {variable.name}, which outlives the call")
        elif _CONTAINERS.search(variable.declaration) and any(
            _is_content(_value_after(rest, match.end()), _handed_content(code, content))
            for match in re.finditer(searched, rest)
        ):  # entries by a size may be kept: scratch memory, tables
            yield Finding("native_state", where, f"keeps entries in {variable.name}, which outlives the call")
        elif re.search(rf"\b(?:memcpy|memmove)\s*\([^,;]*,[^,;]*\b{name}\b", rest):
            words = f"copies {variable.name}, which outlives the call, into a result"
            yield Finding("native_state", where, words, by_watching=True)


def _is_compared(part: str, name: str, code: str, content: frozenset[str]) -> bool:
    """Whether a variable is compared with something made of an input's content or address; sizes may be compared."""
    operator = r"(?:==|!=|<=|>=|<(?!<)|>(?!>))"
    others = [match[1] for match in re.finditer(rf"{part}\s*{operator}\s*([^;&|?{{]+)", code)]
    others += [match[1] for match in re.finditer(rf"([^;&|?{{}},]+?)\s*{operator}\s*{name}\b", code)]
    return any(_is_content(other, content) for other in others)


def _is_content(expression: str, content: frozenset[str]) -> bool:
    if re.search(r"\bdata_ptr\b|\bdata\s*\(|\bitem\s*[<(]|reinterpret_cast", expression):
        return True
    sizes_left_out = re.sub(
        r"\b\w+\s*\.\s*(?:size|sizes|numel|dim|stride|element_size|length|capacity)\s*\([^()]*\)", " ", expression
    )
    return any(word in content for word in re.findall(r"[A-Za-z_]\w*", sizes_left_out))


def _content_names(code: str) -> frozenset[str]:
    """Names of pointers and tensors, and of everything computed from what they point to or where."""
    types = {name for pair in _NAMED_TYPES.findall(code) for name in pair if name}
    names = set(_TENSORS.findall(code))
    for match in _POINTERS.finditer(code):  # `rows * width;` is no pointer
        if match["type"] in types or _TYPES.fullmatch(match["type"]):
            names.add(match["name"])
    names.discard("this")
    assignments = [(match[1], _value_after(code, match.end())) for match in _ASSIGNMENT.finditer(code)]
    for _ in range(8):
        grown = names | {target for target, value in assignments if _is_content(value, frozenset(names))}
        if grown == names:
            break
        names = grown
    return frozenset(names)


def _handed_content(code: str, content: frozenset[str]) -> frozenset[str]:
    """The names of content, and those of parameters that somewhere get content."""
    names = set(content)
    definitions = re.findall(r"\b(\w+)\s*\(([^(){};]*)\)\s*(?:const\s*|noexcept\s*)*\{", code)
    for _ in range(4):
        before = len(names)
        for function, parameters in definitions:
            own = [re.findall(r"\w+", part.split("=")[0])[-1:] for part in parameters.split(",")]
            for call in re.finditer(rf"\b{function}\s*\(", code):
                given = _parts(_value_after(code, call.end()))
                pairs = zip(own, given, strict=False)
                names |= {name for one, part in pairs for name in one if _is_content(part, frozenset(names))}
        if len(names) == before:
            break
    return frozenset(names)


def _parts(text: str) -> list[str]:
    """What stands between the commas that are in no brackets."""
    parts, depth = [""], 0
    for symbol in text:
        depth += (symbol in "([{") - (symbol in ")]}")
        if symbol == "," and not depth:
            parts.append("")
        else:
            parts[-1] += symbol
    return parts


def _value_after(code: str, start: int) -> str:
    """The expression that begins at `start`: up to a semicolon, or to the bracket that closes what is around it."""
    depth = 0
    for position in range(start, min(len(code), start + 2000)):
        symbol = code[position]
        depth += (symbol in "([{") - (symbol in ")]}")
        if symbol == ";" or depth < 0:
            return code[start:position]
    return code[start : start + 2000]


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
            lead = len(code[begin:position]) - len(code[begin:position].lstrip())
            for name in _variables(inside, at_namespace="code" not in scopes):
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


def _variables(statement: str, *, at_namespace: bool) -> list[str]:
    """Every name that a statement declares: `static float given[9], *kept = nullptr` declares two."""
    parts, depth = [""], 0
    for symbol in statement:
        depth += (symbol in "([{<") - (symbol in ")]}>")
        if symbol == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += symbol
    first = _variable(parts[0], at_namespace=at_namespace)
    others = [re.match(r"[\s*&]*([A-Za-z_]\w*)", part) for part in parts[1:]]
    return [first, *(match[1] for match in others if match)] if first else []


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
