"""One HTML file from a page's data. What candidates, models and tasks wrote is hostile text: it stands in the file as
JSON in which nothing can close its element, and the page's code puts it on the screen as text, never as markup. If that
ever failed, the policy below would still let no script run but ours, and nothing be sent anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from foundry.knowledge.codec import to_plain

HERE = Path(__file__).parent
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.min.js")
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})  # the rest of JSON is ASCII

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header id="top"></header>
<main id="main" tabindex="-1">
<noscript><p>The charts and tables of this page are drawn by its own script, which is switched off here.</p>
<pre>{plain}</pre></noscript>
</main>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def render(facts: object, title: str, plain: list[str], script: str, *, live: tuple[str, ...] = ()) -> str:
    """The page of some facts, drawn by one of our scripts. `plain` is read where scripts are off. `live` names further
    scripts, which may ask the server of the page for more."""
    scripts = [_asset(name) for name in (*LIBRARIES, "elements.js", "charts.js", script, *live)]
    return _PAGE.format(
        policy=policy([_hash_of(text) for text in scripts], live=bool(live)),
        title=html.escape(title),
        style=_asset("page.css"),
        plain=html.escape("\n".join(plain)),
        data=as_json(facts),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


def policy(hashes: list[str], *, live: bool = False) -> str:
    """The page's Content-Security-Policy, which allows scripts with these hashes (base64 of sha256) and nothing else.

    Styles may stand in elements, where the plotting library sets them; they can load and send nothing.
    """
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    asked = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; connect-src {asked}; "
        "base-uri 'none'; form-action 'none'"
    )


def as_json(facts: object) -> str:
    """JSON that any browser parses and that cannot leave the element that it stands in. Long lists stand in it as
    columns and rows, which is a third of their length."""
    plain = {name: _as_rows(value) for name, value in _finite(to_plain(facts)).items()}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _as_rows(value: Any) -> Any:
    """A list of dicts with equal keys as columns and rows, which takes less space; other values as they are."""
    if not (isinstance(value, list) and len(value) > 1 and isinstance(value[0], dict)):
        return value
    columns = list(value[0])
    return {"columns": columns, "rows": [[one[column] for column in columns] for one in value]}


def _finite(plain: Any) -> Any:
    """The value with NaN and infinities as None, also within lists and dicts; names become text."""
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else None
    if isinstance(plain, dict):
        return {str(name): _finite(value) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return plain


@cache
def _asset(name: str) -> str:
    """Text of a file of the page, read once in a process."""
    return (HERE / name).read_text(encoding="utf-8")


@cache
def _hash_of(text: str) -> str:
    """SHA-256 of the text in Base64, as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
