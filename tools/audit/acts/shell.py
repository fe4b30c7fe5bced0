"""Splits shell text into its commands, for files that build themselves through a shell.

Quotes, escapes, comments and substitutions follow POSIX (Shell Command Language, 2.2 and 2.6.3). So no command hides
in what looks like text, and no text is taken for a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ENDS = ";|&\n(){}"  # characters that end a command
_REDIRECTION = re.compile(r"\d?(?:>>?|<)(?:&\d|\s*[^\s;|&()]+)")


def commands(text: str) -> list[str]:
    """All commands of a shell text, those in substitutions included; quoted white space becomes an underscore."""
    found: list[str] = []
    outer: list[tuple[str, str]] = []  # (command that goes on after it, what opened it) of each quote and substitution
    command = ""
    position = 0
    text = text.replace("\\\n", " ")
    while position < len(text):
        symbol = text[position]
        position += 1
        opened = outer[-1][1] if outer else ""
        if symbol == "\\":
            command += text[position : position + 1]
            position += 1
        elif symbol == '"':
            if opened == '"':
                command = outer.pop()[0] + command
            else:
                outer.append((command, '"'))
                command = ""
        elif text.startswith("$(", position - 1) or (symbol == "`" and opened != "`"):
            outer.append((command, "$(" if symbol == "$" else "`"))
            command = ""
            position += symbol == "$"
        elif (symbol == ")" and opened == "$(") or (symbol == "`" and opened == "`"):
            found.append(command)
            command = outer.pop()[0] + "substituted"
        elif opened == '"':
            command += "_" if symbol.isspace() or symbol in _ENDS else symbol
        elif symbol == "'":
            end = text.find("'", position)
            quoted = text[position : end if end >= 0 else len(text)]
            position = end + 1 if end >= 0 else len(text)
            command += re.sub(rf"[\s{re.escape(_ENDS)}]", "_", quoted)
        elif symbol == "#" and (not command or command[-1].isspace()):
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
        elif (redirection := _REDIRECTION.match(text, position - 1)) and "$(" not in redirection[0]:
            command += " "
            position = redirection.end()
        elif symbol in _ENDS:
            found.append(command)
            command = ""
        else:
            command += symbol
    return [one.strip() for one in (*found, command, *(part for part, _ in outer)) if one.strip()]


_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?[-=](?P<default>[\w./+=-]*))?\}|(?P<bare>[A-Za-z_]\w*))")
_ASSIGNED = re.compile(r"(?:^|[\s;&|({])(?:(?:for|read|export|local|getopts \S+)\s+)*(\w+)(?:=|\s+in\s)|\bread\s+(.*)")
_PLAIN = re.compile(r"[\w./+=-]*(?: [\w./+=-]+)*")


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replaces variables by their values in `environment`, or their defaults.

    Variables that the text itself sets stay, and so do values with more than plain words: the effect of a quote or a
    semicolon in them depends on the text around it.
    """
    own = {name for found in _ASSIGNED.findall(text) for part in found for name in part.split()}

    def value(found: re.Match[str]) -> str:
        """The variable's value, or its text as it stands if it is unknown, the script's own or not plain."""
        name = found["braced"] or found["bare"]
        given = environment.get(name) or found["default"] or ""
        return given if name not in own and given and _PLAIN.fullmatch(given) else found[0]

    return _VARIABLE.sub(value, text)
