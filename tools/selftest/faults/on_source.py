"""Faults in the native source: loops and their remainders, borders, accumulators, precision. Free of torch.

Each rule names a text pattern of the compiler's printers. If the same text can be harmless (no remainder, no border,
one block only), it also gives the condition under which it is not. Rules for other sources are in `any_source`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from foundry.tools.selftest.faults.fault import Family, Fault, PlantableFault
from foundry.tools.selftest.faults.native_text import NativeText, native_texts
from foundry.tools.selftest.faults.original import Original

Match = re.Match[str]


@dataclass(frozen=True)
class Rule:
    """A text change: `new` gives the replacement of a match; `holds` is true if the change is a fault there.

    `everywhere`: also in the runtime text before the kernels, and in all places at once.
    """

    family: Family
    what: str
    pattern: re.Pattern[str]
    new: Callable[[Match], str]
    holds: Callable[[str, Match], bool] = lambda source, match: True
    everywhere: bool = False


def faults(original: Original) -> Iterator[PlantableFault]:
    """Every fault of the kernel compiler's rules in the correct kernel's source, all captured shapes included."""
    threads = original.device.cores if original.device.traits.uses_host_cores else 2
    for native in native_texts(original.text)[:1]:
        for rule in RULES:
            if rule is not SHARED_STAGING or threads > 1:
                yield from proposals(native, rule)


def proposals(native: NativeText, rule: Rule) -> Iterator[PlantableFault]:
    """One fault for each match of a rule, or one for all matches together."""
    begin = 0 if rule.everywhere else native.begin
    matches = [match for match in rule.pattern.finditer(native.masked, begin) if rule.holds(native.masked, match)]
    if not matches:
        return
    for chosen in [matches] if rule.everywhere else [[match] for match in matches]:
        line = native.line(chosen[0].start() + len(chosen[0][0]) - len(chosen[0][0].lstrip()))
        fault = Fault(rule.family, _words(rule.what, chosen[0]), f"line {line} of the source: {_line(native, line)}")
        yield PlantableFault(fault, _maker(native, rule, chosen))


def _maker(native: NativeText, rule: Rule, chosen: list[Match]) -> Callable[[], str]:
    """A function that makes the candidate's text with the rule applied at each chosen match."""

    def make() -> str:
        """The kernel's file with the chosen places rewritten by the rule."""
        source = native.source
        for match in reversed(chosen):
            source = source[: match.start()] + rule.new(match) + source[match.end() :]
        return native.with_source(source)

    return make


def _words(what: str, match: Match) -> str:
    """A rule's description with the groups of its match."""
    return what.format(*([match[0].strip()] + [group or "" for group in match.groups()]))


def _line(native: NativeText, number: int) -> str:
    """A line of the native source, at most 80 characters."""
    text = native.source.splitlines()[number - 1].strip()
    return text if len(text) <= 80 else text[:77] + "..."


# ---------------------------------------------------------------- conditions


def _number(source: str, name: str, after: int = 0) -> list[int]:
    """All values of a named constant in the source, in order."""
    return [int(found) for found in re.findall(rf"static constexpr long {name} = (\d+);", source[after:])]


def _has_blocks(source: str, match: Match) -> bool:
    """True if some product adds several blocks of its sum."""
    pairs = [*zip(_number(source, "K"), _number(source, "KC"), strict=False)]
    pairs += [*zip(_number(source, "COLUMNS"), _number(source, "KEY_BLOCK"), strict=False)]
    pairs += [*zip(_number(source, "IC"), _number(source, "BLOCK_IC"), strict=False)]
    return any(whole > block for whole, block in pairs)


def _is_whole(source: str, match: Match) -> bool:
    """True if a vector loop covers its row without a remainder, and does more than find a maximum."""
    if int(match[2]) % int(match[1]) or f"for (; i < {match[2]}; ++i)" in source[match.end() : match.end() + 2000]:
        return False
    body = source[max(0, match.start() - 700) : match.start()]
    last = body[body.rfind("const auto ") :] if "const auto " in body else ""
    return "math::maximum" not in last or "staged" in last


def _has_border(name: str) -> Callable[[str, Match], bool]:
    """A test for convolutions with a border named `name` (constant LEAD_name in the source)."""
    return lambda source, match: any(_number(source, f"LEAD_{name}"))


def _is_causal(source: str, match: Match) -> bool:
    """True if the source's attention is causal (constant CAUSAL)."""
    return any(_number(source, "CAUSAL"))


def _is_fixed_operand(source: str, match: Match) -> bool:
    """True if the template itself reads the operand: operands that are expressions have faults of their own."""
    runs = re.findall(r"GEMM_INLINE void (\w)_run\(", source[: match.start()])
    return bool(runs) and runs[-1] in "qkvx"


def _merges(source: str, match: Match) -> bool:
    """True if some row's moments are merged from several chunks."""
    return bool(re.search(r"Moments row_\w+;\s*for \(int64_t (?:group|chunk) = 0;", source))


# ---------------------------------------------------------------- rules


def _half(match: Match) -> str:
    """The replacement that rounds a value to float16."""
    return match[1] + "widen(narrow_float16((float)(" + match[2] + ")))" + match[3]


def _brain(match: Match) -> str:
    """The replacement that rounds a value to bfloat16."""
    return match[1] + "widen(narrow_bfloat16((float)(" + match[2] + ")))" + match[3]


_OPERAND = re.compile(r"(out\[e\] = \(T\)\()((?:b_|from)\w*\[[^;]*\])(\)[^;]*;)")
_WEIGHT = re.compile(r"(return \(T\)\()(b_\w+\[[^;]*\])(\);)")
_CARRY = re.compile(r"(carry = )(combine\(carry, \(double\)scanned\[\d+\]\))(;)")
_PARTIAL = re.compile(r"\*to = add \? \*to \+ acc\[i\]\[j\] : acc\[i\]\[j\];")

SHARED_STAGING = Rule(
    "wrong place",
    "all threads stage their rows in the same memory",
    re.compile(r"alignas\(64\) (float staged\d+\[)"),
    lambda match: f"alignas(64) static {match[1]}",
)
RULES: tuple[Rule, ...] = (
    Rule(
        "missing last element",
        "the loop over the remainder of a row is missing",
        re.compile(r"\n *for \(int64_t l = 0; l < \d+ - i; \+\+l\) [^\n]*;"),
        lambda match: "",
    ),
    Rule(
        "missing last element",
        "the last block of {1} elements is not visited",
        re.compile(r"for \(; i \+ (\d+) <= (\d+); i \+= \d+\) \{"),
        lambda match: match[0].replace("<=", "<"),
        _is_whole,
    ),
    Rule(
        "stale memory",
        "partial sums start from what the stack holds",
        re.compile(r"fill\(\w+_(?:lanes|squares), \(float\)0\);"),
        lambda match: ";",
    ),
    SHARED_STAGING,
    Rule(
        "off by one",
        "the running value is carried on from the last element but one of a block",
        re.compile(r"carry = combine\(carry, \(double\)scanned\[(\d+)\]\);"),
        lambda match: match[0].replace(f"[{match[1]}]", f"[{int(match[1]) - 1}]"),
    ),
    Rule("lower precision", "the running value is carried in half precision", _CARRY, _half),
    Rule("lower precision", "the running value is carried in bfloat16", _CARRY, _brain),
    Rule("lower precision", "an operand is packed in half precision", _OPERAND, _half, _is_fixed_operand),
    Rule("lower precision", "an operand is packed in bfloat16", _OPERAND, _brain, _is_fixed_operand),
    Rule("lower precision", "the weights are packed in half precision", _WEIGHT, _half),
    Rule("lower precision", "the weights are packed in bfloat16", _WEIGHT, _brain),
    Rule(
        "wrong reduction",
        "partial sums of earlier blocks are overwritten",
        _PARTIAL,
        lambda match: "*to = acc[i][j];",
        _has_blocks,
        everywhere=True,
    ),
    Rule(
        "stale memory",
        "partial sums are added to what the scratch memory holds",
        _PARTIAL,
        lambda match: "*to = *to + acc[i][j];",
        _has_blocks,
        everywhere=True,
    ),
    Rule(
        "missing last element",
        "the innermost sum stops one product early",
        re.compile(r"for \(long k = 0; k < kc; \+\+k\) \{\n    V bv"),
        lambda match: match[0].replace("k < kc", "k + 1 < kc"),
        everywhere=True,
    ),
    Rule(
        "off by one",
        "a position cannot see itself",
        re.compile(r"i0 \+ i \+ 1 - k0"),
        lambda match: "i0 + i - k0",
        _is_causal,
        everywhere=True,
    ),
    Rule(
        "stale memory",
        "weights of masked positions are not cleared",
        re.compile(r"for \(long j = seen; j < depth; \+\+j\) s\[j\] = 0;"),
        lambda match: "",
        _is_causal,
        everywhere=True,
    ),
    Rule(
        "dropped operator",
        "the weighted sum is not divided by the sum of weights",
        re.compile(r"out\[e\] = empty \? none : out\[e\] \* scale;"),
        lambda match: "out[e] = empty ? none : out[e];",
        everywhere=True,
    ),
    Rule(
        "missing stabilisation",
        "the maximum is not subtracted before exp",
        re.compile(r"const T base = top == NONE \? \(T\)0 : top;"),
        lambda match: "const T base = (T)0;",
        everywhere=True,
    ),
    Rule(
        "missing bounds check",
        "rows above the image are read instead of zeros",
        re.compile(r"from_h < 0 \|\| "),
        lambda match: "",
        _has_border("H"),
        everywhere=True,
    ),
    Rule(
        "missing bounds check",
        "rows below the image are read instead of zeros",
        re.compile(r" \|\| from_h >= G::IN_H"),
        lambda match: "",
        _has_border("H"),
        everywhere=True,
    ),
    Rule(
        "stale memory",
        "the left border is not cleared",
        re.compile(r"for \(long e = 0; e < begin; \+\+e\) out\[e\] = 0;"),
        lambda match: "",
        _has_border("W"),
        everywhere=True,
    ),
    Rule(
        "missing last element",
        "the last of {1} taps of the window is left out",
        re.compile(r"TAPS = (\d+),"),
        lambda match: f"TAPS = {int(match[1]) - 1},",
        lambda source, match: int(match[1]) > 1,
    ),
    Rule(
        "wrong reduction",
        "chunks of a row merge without the difference of their means",
        re.compile(r"m2 \+= other\.m2 \+ delta \* delta \* \(count \* other\.count / total\);"),
        lambda match: "m2 += other.m2;",
        _merges,
        everywhere=True,
    ),
)
