"""Faults in any C++ or CUDA source, for `--self-test TASK CANDIDATE`. Free of torch.

A text rule knows neither types nor sizes, so a change may be harmless (a bound that is never reached). Such a kernel
is recognised by outputs equal to the correct kernel's bit for bit; it is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from foundry.tools.selftest.faults.fault import PlantableFault
from foundry.tools.selftest.faults.native_text import NativeText, native_texts
from foundry.tools.selftest.faults.on_source import RULES, SHARED_STAGING, Rule, proposals

_ROUNDING = """
template <class FoundryT> {qualifier} static inline FoundryT foundry_rounded(FoundryT value) {{
  float given = (float)value;
  unsigned bits;
  __builtin_memcpy(&bits, &given, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  __builtin_memcpy(&given, &bits, 4);
  return (FoundryT)given;
}}
"""
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*\n", re.MULTILINE)
_OTHER_CALLS = {
    "exp": "exp2",
    "expf": "exp2f",
    "__expf": "exp2f",
    "tanh": "sin",
    "tanhf": "sinf",
    "sqrt": "cbrt",
    "sqrtf": "cbrtf",
    "rsqrtf": "sqrtf",
    "max": "min",
    "fmax": "fmin",
    "fmaxf": "fminf",
    "min": "max",
    "log": "log1p",
    "logf": "log1pf",
}
_CALL = re.compile(rf"\b({'|'.join(sorted(_OTHER_CALLS, key=len, reverse=True))})(\s*\()")
_STORE = re.compile(r"(\b\w+\[[^\];=]*\]\s*=\s*)([^=;{}]+)(;)")


def _is_no_maximum(source: str, match: re.Match[str]) -> bool:
    """True if a loop does more than find a maximum. A maximum may only keep exp from overflowing, so that faults are
    harmless."""
    header = source.find(")", match.end())
    body = source[header + 1 :].lstrip()
    body = body[: body.find("}" if body.startswith("{") else ";")]
    return body.count(";") > 1 or not re.search(r"max\w*\s*\(|[<>][^;]*\?", body)


GENERIC: tuple[Rule, ...] = (
    Rule(
        "missing last element",
        "a loop ends one step early: {0}",
        re.compile(r"(\bfor\s*\([^;]*;\s*\w+\s*)<(?!=)(\s*)([^;]+)(;)"),
        lambda match: f"{match[1]}<{match[2]}({match[3]}) - 1{match[4]}",
        _is_no_maximum,
    ),
    Rule(
        "off by one",
        "a loop starts one step late: {0}",
        re.compile(r"\bfor\s*\(\s*(?:const\s+)?(?:auto|int|long|unsigned|size_t|u?int\d+_t)\s+\w+\s*=\s*0;"),
        lambda match: match[0].replace("0;", "1;"),
        _is_no_maximum,
    ),
    Rule(
        "missing bounds check",
        "a comparison is not tested: {0}",
        re.compile(r"\bif\s*\((?=[^()]*<)[^()&|]*\)(?!\s*return)"),
        lambda match: "if (true)",
    ),
    Rule(
        "missing bounds check",
        "an early return is left out: {0}",
        re.compile(r"\bif\s*\([^()]*>=[^()]*\)\s*return;"),
        lambda match: ";",
    ),
    Rule("wrong reduction", "a sum keeps its last term only: {0}", re.compile(r"\+=(?=[^;\n]*;)"), lambda match: "="),
    Rule(
        "wrong constant",
        "{0} is one percent larger",
        re.compile(r"(?<![\w.])(?=[\d.]*[1-9])(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE]-?\d+)f?(?![\w.])"),
        lambda match: f"({match[0]} * 1.01f)",
    ),
    Rule(
        "wrong operator",
        "another function stands for {1}",
        _CALL,
        lambda match: _OTHER_CALLS[match[1]] + match[2],
    ),
    Rule(
        "off by one",
        "an index is one too far: {0}",
        re.compile(r"(?<=[\w)])\[([a-zA-Z_]\w*)\](?=\s*[-+*/;,)])(?!\s*=[^=])"),
        lambda match: f"[{match[1]} + 1]",
    ),
    Rule(
        "lower precision",
        "a result is rounded to bfloat16: {0}",
        _STORE,
        lambda match: f"{match[1]}foundry_rounded({match[2]}){match[3]}",
    ),
)


def faults(text: str) -> Iterator[PlantableFault]:
    """Every fault of the general rules, and of the compiler's rules that match; raises UsageError."""
    for native in native_texts(text):
        for rule in (*RULES, *GENERIC):
            if rule is SHARED_STAGING:
                continue
            for proposal in proposals(native, rule):
                yield PlantableFault(proposal.fault, _completing(proposal, native))


def _completing(proposal: PlantableFault, native: NativeText) -> Callable[[], str]:
    """A function that makes the faulty file, with the rounding helper added if it is called."""
    return lambda: _complete(proposal.make(), native)


def _complete(faulty: str, native: NativeText) -> str:
    """The file with the rounding helper put behind its includes, if the fault calls that."""
    if "foundry_rounded" not in faulty:
        return faulty
    changed = next((item for item in native_texts(faulty) if "foundry_rounded" in item.source), native)
    includes = list(_INCLUDE.finditer(changed.source))
    place = includes[-1].end() if includes else 0
    qualifier = "__host__ __device__" if "__global__" in changed.source else ""
    helper = _ROUNDING.format(qualifier=qualifier)
    return changed.with_source(changed.source[:place] + helper + changed.source[place:])
