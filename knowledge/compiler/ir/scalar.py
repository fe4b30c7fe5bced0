"""Prints scalar expressions as C, for any C-like target. Targets differ only in their `Dialect`.

There are two ways to print. `expression` gives one nested C expression. `Emitter` gives statements: values that are
used more than once become constants, so that shared work is computed once and an epilogue reads like handwritten
code. Both number values first (local value numbering, Cocke and Schwartz 1970), so that a graph with sharing prints
in linear time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from foundry.knowledge.compiler.ir.kernels import (
    SCALAR_OPS,
    SPECIAL_OPS,
    Apply,
    Buffer,
    Const,
    Expr,
    Gather,
    Iota,
    Load,
    Named,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType

LoadFn = Callable[[Load | Gather | Iota], str]
"""C text of a leaf. A Gather arrives with its index printed: `leaf.index` is a Named whose name is the C text."""

# Operations that cost tens of instructions; anything else costs one or two.
_EXPENSIVE = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid erf gelu gelu_tanh silu softplus mish selu
    asin acos atan sinh cosh logsigmoid pow atan2 hypot elu
    erfc lgamma asinh acosh atanh
"""
EXPENSIVE = frozenset([*_EXPENSIVE.split(), *SPECIAL_OPS])

EIGHT_BITS: tuple[DType, ...] = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
FLOATING: frozenset[DType] = frozenset({"float64", "float32", "float16", "bfloat16", *EIGHT_BITS})
_NARROW_INTEGERS: frozenset[DType] = frozenset({"int16", "int8", "uint8", "bool"})

# Every function lives in a namespace `math` of the target's own runtime header, overloaded by C++ type, so that one
# table serves all targets. {0}..{2} are the arguments, {t} the result's register type.
MATH_FORMATS: dict[str, str] = {
    **{name: f"math::{name}({', '.join(f'{{{i}}}' for i in range(arity))})" for name, arity in SCALAR_OPS.items()},
    "neg": "(-{0})",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "fma": "({0} * {1} + {2})",
    "reciprocal": "(({t})1 / {0})",
    "cast": "({t})({0})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "threshold_leq": "({0} <= {1})",
    "logical_not": "({0} == 0)",
    "logical_and": "(({0} != 0) & ({1} != 0))",
    "logical_or": "(({0} != 0) | ({1} != 0))",
    "logical_xor": "(({0} != 0) ^ ({1} != 0))",
    "bit_and": "({0} & {1})",
    "bit_or": "({0} | {1})",
    "bit_xor": "({0} ^ {1})",
    "shift_left": "({0} << {1})",
    "shift_right": "({0} >> {1})",
}

OF_POINTS = ("acc", "index", "window", "count")  # named values that differ from point to point


@dataclass(frozen=True)
class Dialect:
    """A target's spelling of types, constants, conversions and operations."""

    storage: Mapping[DType, str]  # element type in memory
    formats: Mapping[str, str] = field(default_factory=lambda: MATH_FORMATS)
    widen: Mapping[DType, str] = field(default_factory=dict)  # stored element -> register, unless identical
    narrow: Mapping[DType, str] = field(default_factory=dict)  # register -> stored element
    long_suffix: str = "L"  # suffix of literals of exactly int64's register type: templates tell long from long long
    divided: str = ""  # a float32 divided by a constant that neither overflows nor vanishes, if "/" is not fastest
    divided_by: str = ""  # a float32 divided by a value named once a row
    infinity: str = "INFINITY"
    nan: str = "NAN"

    @cached_property
    def register(self) -> Mapping[DType, str]:
        """The type of a value being computed with: narrow floats compute in float, all else as it is stored."""
        return {**self.storage, **dict.fromkeys(("float16", "bfloat16", *EIGHT_BITS), "float")}

    def load(self, element: str, dtype: DType) -> str:
        """C expression that converts a stored element (`b_x[i]`) to its register type."""
        return self.widen.get(dtype, "{0}").format(element)

    def store(self, value: str, dtype: DType) -> str:
        """C expression that converts a computed value to the element type of a buffer of the same dtype."""
        return self.narrow.get(dtype, "{0}").format(value)

    def constant(self, value: float | int | bool, dtype: DType) -> str:
        """A literal of the register type as C text; NaN and infinities by the dialect's names."""
        if dtype == "bool":
            return "true" if value else "false"
        if dtype not in FLOATING:
            number = int(value)
            if dtype == "int64":
                lowest = number == -(2**63)
                suffix = self.long_suffix
                return f"(-9223372036854775807{suffix} - 1)" if lowest else _bracketed(f"{number}{suffix}")
            return f"({self.register[dtype]}){number}" if dtype in _NARROW_INTEGERS else _bracketed(str(number))
        number_f = float(value)
        suffix = "" if dtype == "float64" else "f"
        cast = "(double)" if dtype == "float64" else ""
        if math.isnan(number_f):
            return f"({cast}{self.nan})"
        if math.isinf(number_f) or (suffix and abs(number_f) > 3.4028235677973366e38):
            return f"({'-' if number_f < 0 else ''}{cast}{self.infinity})"
        text = repr(number_f) + suffix
        return f"({text})" if math.copysign(1.0, number_f) < 0 else text

    def apply(self, op: str, arguments: Sequence[str], dtype: DType) -> str:
        """The C text of one operation over printed arguments; narrow results are converted back to their type."""
        if op == "cast" and dtype == "bool":
            return f"({arguments[0]} != 0)"
        text = self.formats[op].format(*arguments, t=self.register[dtype])
        if op == "cast" and dtype in self.widen and dtype in self.narrow:
            return self.load(self.store(text, dtype), dtype)  # a cast to a narrow type rounds
        if dtype in _NARROW_INTEGERS and SCALAR_OPS[op] <= 2 and op in _PROMOTES:
            return f"({self.register[dtype]})({text})"
        return text


def _bracketed(number: str) -> str:
    """The number's text, in brackets if it is negative."""
    return f"({number})" if number.startswith("-") else number


# C promotes narrow integers to int in these; the result wraps (and bool saturates), as PyTorch's does.
_PROMOTES = frozenset({"neg", "add", "sub", "mul", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"})

CPU_DIALECT = Dialect(
    storage={
        "float64": "double",
        "float32": "float",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "int64": "int64_t",
        "int32": "int32_t",
        "int16": "int16_t",
        "int8": "int8_t",
        "uint8": "uint8_t",
        "bool": "bool",
        **{name: name for name in EIGHT_BITS},
    },
    widen=dict.fromkeys(("float16", "bfloat16", *EIGHT_BITS), "widen({0})"),
    narrow={name: f"narrow_{name}({{0}})" for name in ("float16", "bfloat16", *EIGHT_BITS)},
)


def affine(offset: int, terms: Iterable[tuple[int, str]]) -> str:
    """`offset + sum(stride * index)` in elements, as C without zero terms and unit factors. Indices must be 64-bit."""
    parts = [name if stride == 1 else f"{name} * {stride}" for stride, name in terms if stride]
    if offset or not parts:
        parts.append(str(offset))
    return " + ".join(parts).replace("+ -", "- ")


def loader(dialect: Dialect, offset: Callable[[View], str], pointer: Callable[[str], str] = "b_{}".format) -> LoadFn:
    """The usual printer of leaves: `offset` gives the C element offset of a view at the current point.

    A gather clamps indices that PyTorch would refuse, so that no input can make a kernel read outside its buffer.
    """

    def load(leaf: Load | Gather | Iota) -> str:
        """The C text that loads a leaf: a position, an element, or an indexed element with its index wrapped and
        checked."""
        where = offset(leaf.view)
        if isinstance(leaf, Iota):
            return f"({dialect.register[leaf.dtype]})({where})"
        if isinstance(leaf, Load):
            return dialect.load(f"{pointer(leaf.buffer)}[{where}]", leaf.dtype)
        assert isinstance(leaf.index, Named)
        index = f"math::wrap_index({leaf.index.name}, {leaf.bound})"
        step = "" if leaf.step == 1 else f" * {leaf.step}"
        element = dialect.load(f"{pointer(leaf.buffer)}[{where} + {index}{step}]", leaf.dtype)
        if leaf.fill is None:
            return element
        fill = dialect.constant(leaf.fill, leaf.dtype)
        return f"math::where(math::in_bounds({leaf.index.name}, {leaf.bound}), {element}, {fill})"

    return load


_Key = tuple[object, ...]


class Numbering:
    """Gives equal sub-expressions one number. Memoised by identity, so that shared nodes are visited once."""

    def __init__(self) -> None:
        """Knows no expression yet."""
        self._by_identity: dict[int, int] = {}
        self._by_key: dict[_Key, int] = {}
        self._alive: list[Expr] = []  # identities are unique only while their nodes live
        self.nodes: list[Expr] = []
        self.children: list[tuple[int, ...]] = []

    def number(self, expr: Expr) -> int:
        """The number of an expression's value: the same for equal expressions, a new one for a value not met before."""
        found = self._by_identity.get(id(expr))
        if found is not None:
            return found
        children: tuple[int, ...] = ()
        key: _Key
        if isinstance(expr, Apply):
            children = tuple(self.number(argument) for argument in expr.args)
            key = ("apply", expr.op, expr.dtype, children)
        elif isinstance(expr, Gather):
            children = (self.number(expr.index),)
            key = ("gather", expr.buffer, expr.view, children, expr.step, expr.bound, expr.fill)
        elif isinstance(expr, Const):  # 0.0 == -0.0 == False in Python, and NaN is not equal to itself
            key = ("const", expr.dtype, repr(expr.value))
        else:
            key = (type(expr).__name__, expr)
        number = self._by_key.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(expr)
            self.children.append(children)
        self._by_identity[id(expr)] = number
        self._alive.append(expr)
        return number

    def depth(self) -> int:
        """Length of the longest chain of operations."""
        depths: list[int] = []
        for children in self.children:  # operands have smaller numbers
            depths.append(1 + max((depths[child] for child in children), default=0))
        return max(depths, default=0)

    def shared(self, expr: Expr, made: list[Expr]) -> Expr:
        """The expression with equal parts as one node each; `made` holds those of earlier calls."""
        number = self.number(expr)
        for current in range(len(made), number + 1):
            node = self.nodes[current]
            parts = tuple(made[child] for child in self.children[current])
            if isinstance(node, Apply) and any(one is not other for one, other in zip(parts, node.args, strict=True)):
                node = Apply(node.op, parts, node.dtype)
            elif isinstance(node, Gather):
                node = replace(node, index=parts[0])
            made.append(node)
        return made[number]


def _simple_power(dialect: Dialect, base: str, exponent: Expr, dtype: DType) -> str | None:
    """pow by a small constant, as PyTorch special-cases it; the base must be an identifier or a literal."""
    if not isinstance(exponent, Const) or dtype not in FLOATING:
        return None
    one = dialect.constant(1.0, dtype)
    forms = {
        1.0: base,
        2.0: f"({base} * {base})",
        3.0: f"({base} * {base} * {base})",
        0.5: f"math::sqrt({base})",
        -0.5: f"math::rsqrt({base})",
        -1.0: f"({one} / {base})",
        -2.0: f"({one} / ({base} * {base}))",
        0.0: one,
    }
    return forms.get(float(exponent.value))


def _is_plain(divisor: Expr) -> bool:
    """True for a constant near enough to one, except powers of two, for which compilers multiply by the inverse."""
    size = abs(float(divisor.value)) if isinstance(divisor, Const) else 0.0
    return 2.0**-64 <= size <= 2.0**64 and math.frexp(size)[0] != 0.5


class Emitter:
    """Prints expressions as C statements, each distinct shared value once.

    `known` pairs expressions with identifiers that already hold their value (a staged row, an accumulator). `lines`
    are the statements so far; `value(expr)` returns the C text of a value and appends the statements it needs to
    `lines`. Call `reserve` with all expressions of a body before `value`, so that uses across them are counted.
    """

    def __init__(
        self,
        dialect: Dialect,
        load: LoadFn,
        names: Mapping[str, str] | None = None,
        *,
        known: Mapping[Expr, str] | Iterable[tuple[Expr, str]] = (),
        prefix: str = "t",
        name_loads: bool = True,
    ) -> None:
        """Begins without lines. `load` prints a leaf, `names` are identifiers of named values."""
        self.dialect = dialect
        self.lines: list[str] = []
        self._load = load
        self._names = names or {}
        self._prefix = prefix
        self._name_loads = name_loads
        self._numbering = Numbering()
        self._uses: dict[int, int] = {}
        held = known.items() if isinstance(known, Mapping) else known
        self._text: dict[int, str] = {self._numbering.number(expr): text for expr, text in held}
        self._count = 0

    def reserve(self, exprs: Iterable[Expr]) -> None:
        """Counts the uses of every sub-expression; a value used once is printed in place."""
        for expr in exprs:
            self._use(self._numbering.number(expr))

    def value(self, expr: Expr) -> str:
        """C text (identifier, literal or one-use expression) of the value of `expr`."""
        number = self._numbering.number(expr)
        if number not in self._uses:
            self._use(number)
        return self._print(number)

    def identifier(self, expr: Expr) -> str:
        """Like `value`, but always an identifier or a literal, safe to repeat."""
        text = self.value(expr)
        number = self._numbering.number(expr)
        if isinstance(expr, Const) or text.isidentifier():
            return text
        return self._bind(number, text)

    def store(self, store: Store, offset: Callable[[View], str], dtype: DType, pointer: str | None = None) -> None:
        """Appends the statement of a store into a buffer of element type `dtype`."""
        target = pointer or f"b_{store.buffer}"
        value = self.dialect.store(self.value(store.value), dtype)
        self.lines.append(f"{target}[{offset(store.view)}] = {value};")

    def store_all(self, stores: Sequence[Store], offset: Callable[[View], str], buffers: Mapping[str, Buffer]) -> None:
        """Appends all stores of a point; what several of them use is computed once. `buffers` says the types."""
        self.reserve(store.value for store in stores)
        for store in stores:
            self.store(store, offset, buffers[store.buffer].dtype)

    def _use(self, number: int) -> None:
        """Counts one use of a value, and at the first use those of its operands."""
        stack = [number]
        while stack:
            current = stack.pop()
            self._uses[current] = self._uses.get(current, 0) + 1
            if self._uses[current] == 1 and current not in self._text:
                stack.extend(self._numbering.children[current])
                node = self._numbering.nodes[current]
                if isinstance(node, Apply) and node.op == "pow" and isinstance(node.args[1], Const):
                    stack.append(self._numbering.children[current][0])  # x * x repeats its base

    def _print(self, number: int) -> str:
        """The C text of a value: its identifier, or its expression if it is used once."""
        if number in self._text:
            return self._text[number]
        node = self._numbering.nodes[number]
        text = self._node(number, node)
        leaf = isinstance(node, Const | Named) or text.isidentifier()
        repeated = self._uses.get(number, 0) > 1 and (self._name_loads or not isinstance(node, Load | Iota))
        if not leaf and repeated:
            return self._bind(number, text)
        return text

    def _bind(self, number: int, text: str) -> str:
        """Declares a constant for a value and returns its name."""
        name = f"{self._prefix}{self._count}"
        self._count += 1
        self.lines.append(f"const {self.dialect.register[self._numbering.nodes[number].dtype]} {name} = {text};")
        self._text[number] = name
        return name

    def _node(self, number: int, node: Expr) -> str:
        """The C text of one node over its operands, with simpler forms for powers, divisions by a row's value, and
        mish."""
        if isinstance(node, Const):
            return self.dialect.constant(node.value, node.dtype)
        if isinstance(node, Named):
            return self._names.get(node.name, node.name.replace(".", "_"))
        if isinstance(node, Load | Iota):
            return self._load(node)
        children = self._numbering.children[number]
        if isinstance(node, Gather):
            index = self._print(children[0])
            if not isinstance(node.index, Const) and not index.isidentifier():
                index = self._bind(children[0], index)
            return self._load(replace(node, index=Named(index, node.index.dtype)))
        activated = self._find_mish(children) if node.op == "mul" else None
        if activated is not None:
            return self.dialect.apply("mish", [self._print(activated)], node.dtype)
        arguments = [self._print(child) for child in children]
        if node.op == "pow":
            simple = _simple_power(self.dialect, arguments[0], node.args[1], node.dtype)
            if simple is not None:
                return simple
        if node.op == "div" and node.dtype == "float32":
            by = node.args[1]
            is_of_row = isinstance(by, Named) and by.name not in OF_POINTS
            form = self.dialect.divided if _is_plain(by) else self.dialect.divided_by if is_of_row else ""
            if form:
                return form.format(*arguments)
        return self.dialect.apply(node.op, arguments, node.dtype)

    def _find_mish(self, factors: Sequence[int]) -> int | None:
        """The factor x of x * tanh(softplus(x)), which is one function (mish) and a third of the work; None if there
        is none."""
        nodes, children = self._numbering.nodes, self._numbering.children
        for number, other in (factors, factors[::-1]):
            outer = nodes[number]
            if isinstance(outer, Apply) and outer.op == "tanh" and number not in self._text:
                inner = nodes[children[number][0]]
                if isinstance(inner, Apply) and inner.op == "softplus" and children[children[number][0]] == (other,):
                    return other
        return None


class _Inline(Emitter):
    """An emitter that declares no constants: it nests everything in one expression."""

    def _bind(self, number: int, text: str) -> str:
        """Keeps the text of a value and returns it; no statement is needed."""
        self._text[number] = text
        return text


def expression(expr: Expr, dialect: Dialect, load: LoadFn, names: Mapping[str, str]) -> str:
    """One C expression for `expr`: leaves through `load`, Named values through `names` (else their own name)."""
    return _Inline(dialect, load, names).value(expr)
