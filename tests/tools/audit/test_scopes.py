"""Loop variables get names of their own where nothing else can mean them, and nowhere else."""

from __future__ import annotations

import ast

import pytest

from foundry.tools.audit.text.scopes import separate

SEPARATED = {
    "a comprehension": "q, k = (t.contiguous() for t in (q, k))\nb, t = q.shape\nreturn b < t",
    "its iterable is outside": "t = [t * 2 for t in t]\nreturn t",
    "a loop, bound anew": "for t in (q, k):\n    assert t.dtype\nb, t = q.shape\nreturn t",
    "a loop, never read again": "for t in (q, k):\n    assert t.dtype\nreturn q",
    "two loops": "for t in q:\n    f(t)\nfor t in k:\n    g(t)\nreturn q",
}
LEFT = {
    "read after the loop": "for t in (q, k):\n    pass\nreturn t",
    "read where it is bound anew": "for t in (q, k):\n    pass\nt = t + 1\nreturn t",
    "bound anew in a branch only": "for t in (q, k):\n    pass\nif q:\n    t = 1\nreturn t",
    "meant by an inner function": "for t in (q, k):\n    pass\ndef g():\n    return t\nreturn g()",
    "of everybody": "global t\nfor t in (q, k):\n    pass\nreturn q",
    "an argument of a lambda in it": "return [(lambda t: t.item())(q) for t in (0,)]",
    "read where a later loop runs no time": "for t in (q,):\n    pass\nfor t in ():\n    pass\nelse:\n    return t",
    "an index where it is bound anew": "for t in (0, 1):\n    pass\nq[t], t = (1, 2)\nreturn t",
    "added to": "for t in (q, k):\n    pass\nt += 1\nreturn t",
}


def forward(body: str) -> str:
    return "def forward(q, k):\n" + "".join(f"    {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("name", SEPARATED)
def test_a_name_for_two_things_becomes_two(name: str) -> None:
    text = forward(SEPARATED[name])
    changed = ast.unparse(separate(ast.parse(text)))
    assert "t_in_" in changed
    for values in ([[3], [4]], [[5, 6], [7]]):
        assert outcome(text, *values) == outcome(changed, *values)


@pytest.mark.parametrize("name", LEFT)
def test_what_may_be_one_thing_stays_one(name: str) -> None:
    text = forward(LEFT[name])
    assert ast.unparse(separate(ast.parse(text))) == ast.unparse(ast.parse(text))


def outcome(text: str, q: list[int], k: list[int]) -> str:
    """What the function gives or raises; `t` is a row in the first place, so that a wrong name shows."""
    names: dict[str, object] = {"f": repr, "g": repr}
    exec(text, names)
    try:
        return repr(names["forward"](q, k))  # type: ignore[operator]
    except (AttributeError, TypeError, UnboundLocalError) as error:
        return type(error).__name__
