"""Accumulation of each reduction: lanes inside a chunk of the row, a mergeable state between chunks.

A chunk is short enough to stay in L1. A reduction that needs two sweeps (the mean before the deviations, the maximum
before the exponentials) takes both over cached data."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.knowledge.compiler.ir.kernels import Reduction
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, FLOATING
from foundry.knowledge.compiler.schedule.passes import SoftmaxPair

_SIMPLE = {"sum": "Sum", "prod": "Product", "max": "Maximum", "min": "Minimum", "any": "Maximum", "all": "Minimum"}
_COMBINE = {"sum": "Plus", "prod": "Times", "max": "Larger", "min": "Smaller", "any": "Either", "all": "Both"}
_UPDATE = {
    "sum": "{lane} += {value};",
    "prod": "{lane} *= {value};",
    "max": "{lane} = math::maximum({lane}, {value});",
    "min": "{lane} = math::minimum({lane}, {value});",
    "any": "{lane} |= ({value} != 0);",
    "all": "{lane} &= ({value} != 0);",
}


@dataclass(frozen=True)
class Lanes:
    """An array with a value for each lane: its C name, its C type and C text of its neutral element."""

    name: str
    kind: str
    start: str


class Accumulator:
    """The C++ text of one reduction over rows of `points` elements. Its state is the C variable `row`."""

    def __init__(self, reduction: Reduction | SoftmaxPair, points: int) -> None:
        self.reduction = reduction
        self.row = to_identifier(reduction.name)
        self.pair = reduction if isinstance(reduction, SoftmaxPair) else None
        self.op = "softmax" if isinstance(reduction, SoftmaxPair) else reduction.op
        result = reduction.maximum.dtype if isinstance(reduction, SoftmaxPair) else reduction.dtype
        self.value = reduction.value
        # any and all accumulate as int, positions as what the value is compared in
        self.kind = {"any": "int32_t", "all": "int32_t"}.get(self.op, CPU_DIALECT.register[result])
        if self.op in ("argmax", "argmin", "logsumexp", "softmax", "max", "min"):
            self.kind = CPU_DIALECT.register[self.value.dtype]
        if self.op in ("max", "min") and self.value.dtype == "bool":
            self.kind = "int32_t"
        self.result = CPU_DIALECT.register[result]
        if self.op == "prod" and self.kind == "float":
            self.kind = "double"  # errors of a product add up over all of its factors
        self.at_kind = "int32_t" if points < 2**31 - 1 else "int64_t"
        self.at_none = "INT32_MAX" if self.at_kind == "int32_t" else "INT64_MAX"
        self.floating = self.value.dtype in FLOATING

    @property
    def two_sweeps(self) -> bool:
        """True if a chunk is swept twice."""
        return self.op in ("moments", "logsumexp", "softmax")

    @property
    def positioned(self) -> bool:
        """True if the result is a position in the row."""
        return self.op in ("argmax", "argmin")

    @property
    def state(self) -> str:
        """C++ type of the mergeable state."""
        if self.op == "moments":
            return "Moments"
        if self.op in ("logsumexp", "softmax"):
            return f"ExpSum<{self.kind}>"
        if self.positioned:
            return f"Best<{self.kind}, {'true' if self.op == 'argmax' else 'false'}>"
        return f"{_SIMPLE[self.op]}<{self.kind}>"

    def first_lanes(self) -> list[Lanes]:
        """Lane arrays of the first sweep."""
        if self.positioned:
            start = f"{'lowest' if self.op == 'argmax' else 'highest'}<{self.kind}>()"
            return [Lanes(f"{self.row}_best", self.kind, start), Lanes(f"{self.row}_at", self.at_kind, self.at_none)]
        if self.op in ("logsumexp", "softmax"):
            return [Lanes(f"{self.row}_max", self.kind, f"lowest<{self.kind}>()")]
        number = {"sum": "0", "moments": "0", "prod": "1", "any": "0", "all": "1"}.get(self.op)
        neutral = (
            f"({self.kind}){number}" if number else f"{'lowest' if self.op == 'max' else 'highest'}<{self.kind}>()"
        )
        return [Lanes(f"{self.row}_lanes", self.kind, neutral)]

    def first_update(self, value: str, position: str, lanes: list[str]) -> list[str]:
        """C++ statements that add one value at `position` to the lanes of the first sweep."""
        if self.positioned:
            sign, best, at = ">" if self.op == "argmax" else "<", lanes[0], lanes[1]
            nan = f" | ((v != v) & ({best} == {best}))" if self.floating else ""
            return [
                f"{{ const {self.kind} v = {value};",
                f"  const bool take = (v {sign} {best}){nan};",
                f"  {best} = take ? v : {best};",
                f"  {at} = take ? ({self.at_kind})({position}) : {at}; }}",
            ]
        op = {"moments": "sum", "logsumexp": "max", "softmax": "max"}.get(self.op, self.op)
        return [_UPDATE[op].format(lane=lanes[0], value=value)]

    def between(self, count: str) -> list[str]:
        """C++ statements between two sweeps: they compute the values of the first that the second needs. `count`: C
        text of the chunk's elements."""
        row = self.row
        if self.op == "moments":
            total = f"fold({row}_lanes, Plus())"
            return [f"const {self.kind} {row}_centre = {total} / ({self.kind})({count});"]
        top = f"fold({row}_max, Larger())"
        reference = f"{self.state}::reference({row}_top)"
        return [f"const {self.kind} {row}_top = {top};", f"const {self.kind} {row}_from = {reference};"]

    def second_lanes(self) -> list[Lanes]:
        """Lane arrays of the second sweep; [] without one."""
        if not self.two_sweeps:
            return []
        name = f"{self.row}_squares" if self.op == "moments" else f"{self.row}_exps"
        return [Lanes(name, self.kind, f"({self.kind})0")]

    def second_update(self, value: str, lanes: list[str], lane: str = "") -> list[str]:
        """C++ statements that add one value to the lanes of the second sweep. `lane`: index into the values of
        `between`, if a tile has one for each of its rows."""
        if self.op == "moments":
            return [f"{lanes[0]} += math::square({value} - {self.row}_centre{lane});"]
        return [f"{lanes[0]} += math::exp({value} - {self.row}_from{lane});"]

    def merge_chunk(self, count: str) -> str:
        """The C++ statement that folds the lanes into the row's state. `count`: C text of the chunk's elements."""
        row = self.row
        if self.op == "moments":
            return f"{row}.merge({{(double)({count}), {row}_centre, fold({row}_squares, Plus())}});"
        if self.op in ("logsumexp", "softmax"):
            return f"{row}.merge({{{row}_top, fold({row}_exps, Plus())}});"
        if self.positioned:
            lanes = f"sizeof({row}_at) / sizeof({row}_at[0])"
            at = f"{row}_at[l] == {self.at_none} ? INT64_MAX : {row}_at[l]"
            return f"for (size_t l = 0; l < {lanes}; ++l) {row}.merge({{{row}_best[l], {at}}});"
        return f"{row}.merge({{fold({row}_lanes, {_COMBINE[self.op]}())}});"

    def results(self, lane: str = "") -> list[tuple[str, str, str]]:
        """(name of the Named value, C type, C text) of each result that later stages may use. `lane`: index of the
        state, if a tile has one for each of its rows."""
        row = f"{self.row}{lane}"
        if self.pair is not None:
            return [
                (self.pair.maximum.name, self.kind, f"{row}.max"),
                (self.pair.total.name, self.kind, f"{row}.total()"),
            ]
        name = self.reduction.name
        if self.op == "moments":
            return [(f"{name}.mean", self.result, f"{row}.mean"), (f"{name}.m2", self.result, f"{row}.m2")]
        if self.op == "logsumexp":
            return [(name, self.result, f"{row}.log()")]
        if self.positioned:
            return [(name, self.result, f"{row}.at == INT64_MAX ? 0 : {row}.at")]
        return [(name, self.result, f"({self.result}){row}.value")]


def to_identifier(name: str) -> str:
    """The name of a Named value as a C identifier that cannot equal a keyword."""
    return "row_" + "".join(char if char.isalnum() else "_" for char in name)
