"""Pointwise kernels that cannot be vectorised along the innermost dimension: shuffles, unshuffles, repetitions.

The innermost dimensions are walked as one, in blocks of a few thousand points. A block has two phases. First, operands
that are not contiguous in the order of the results are copied into small arrays in that order (`staged`). Then whole
vectors are computed and stored, as if everything had been contiguous. A value that repeats is computed only once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

from foundry.knowledge.compiler.cpu.loops import loop_head
from foundry.knowledge.compiler.cpu.map_point import Points, Vectors, power_of_two_below
from foundry.knowledge.compiler.cpu.space import Known, Space, element_type, indent, register_type, varies
from foundry.knowledge.compiler.ir.kernels import Apply, Expr, Load, MapKernel, Plan, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, EXPENSIVE, Emitter, Numbering, affine, loader
from foundry.knowledge.compiler.ir.views import Leaf, children_of, distinct, loads_of, views_of

_LONG_ENOUGH = 256  # points that are worth the start of a block
_SIDE_BY_SIDE = 16  # copies written out in one loop body: compilers interleave them in registers
_SMALL = 8  # largest dimension that is staged whole although it is not innermost
_MOST_REPEATS = 64


@dataclass(frozen=True)
class Block:
    """The dimensions that a block covers: a piece of dimension `axis`, all of the inner dimensions `flat`, and all of
    the outer dimensions `inside`."""

    axis: int
    flat: tuple[int, ...]
    inside: tuple[int, ...]


def find_block(kernel: MapKernel, space: Space, lanes: int) -> Block | None:
    """The blocks to cut the kernel into; None if vectors along the innermost dimension are as good.

    `lanes`: points that a vector register holds."""
    last = len(space.sizes) - 1
    if any(space.strides(store.view)[-1] != 1 for store in kernel.stores):
        return None
    if space.sizes[-1] >= 2 * lanes and not _inside(kernel, space, last):
        return None
    axis = _flat_axis(kernel, space)
    flat = tuple(range(axis + 1, last + 1))
    inside = _inside(kernel, space, axis)
    return Block(axis, flat, inside) if flat or inside else None


def _flat_axis(kernel: MapKernel, space: Space) -> int:
    """The first dimension of a contiguous run of all stores, no further out than _LONG_ENOUGH points need."""
    axis, points = len(space.sizes) - 1, space.sizes[-1]
    strides = [space.strides(store.view) for store in kernel.stores]
    while points < _LONG_ENOUGH and axis and all(s[axis - 1] == s[axis] * space.sizes[axis] for s in strides):
        axis -= 1
        points *= space.sizes[axis]
    return axis


def _inside(kernel: MapKernel, space: Space, axis: int) -> tuple[int, ...]:
    """Small outer dimensions that a block covers whole: operands interleave along them, or costly values repeat."""
    found, points = [], 1
    for dim in range(axis):
        size = space.sizes[dim]
        if _repeats(kernel, space, dim, axis) and size <= _MOST_REPEATS:
            found.append(dim)
        elif size <= _SMALL and points * size <= _SIDE_BY_SIDE and _is_interleaved(kernel, space, dim, axis):
            found.append(dim)
            points *= size
    return tuple(found)


def _is_interleaved(kernel: MapKernel, space: Space, dim: int, axis: int) -> bool:
    """True if a load takes smaller steps along `dim` than along `axis` and the dimensions inside it, and these are
    short."""
    for load in loads_of(store.value for store in kernel.stores):
        strides = space.strides(load.view)
        steps = [abs(step) for step in strides[axis:] if step]
        if steps and 0 < abs(strides[dim]) < min(steps) <= 2 * _SMALL:
            return True
    return False


def _repeats(kernel: MapKernel, space: Space, dim: int, axis: int) -> bool:
    """True if there are costly operators that vary along `axis` or a dimension inside it, all constant along `dim`.

    A loop over `dim` would repeat them.
    """
    found = False
    for store in kernel.stores:
        along = varies(store.value, lambda view: space.strides(view)[dim] != 0)
        works = varies(store.value, lambda view: any(space.strides(view)[axis:]))
        for node in distinct([store.value]):
            if isinstance(node, Apply) and node.op in EXPENSIVE and works[id(node)]:
                if along[id(node)]:
                    return False
                found = True
    return found


@dataclass(frozen=True)
class _Staged:
    """A value that is copied into the order of the results: array `name` over the dimensions `varying` and the run."""

    name: str
    value: Expr
    varying: tuple[int, ...]  # inside dimensions along which it differs


@dataclass(frozen=True)
class _Lane:
    """One dimension of a copy; `source` and `target` are its strides in elements."""

    index: str
    size: int
    end: str
    source: int
    target: int

    @property
    def loop(self) -> str:
        """The head of a C++ loop over the dimension."""
        return f"for (int64_t {self.index} = 0; {self.index} < {self.end}; ++{self.index})"


@dataclass(frozen=True)
class _Place:
    """An array from an offset on."""

    array: str
    start: str = ""

    def at(self, constant: int, terms: list[tuple[int, str]]) -> str:
        """C text of the array's element at a constant and (stride, index) terms from the offset."""
        offset = affine(constant, terms)
        return f"{self.array}[{self.start} + {offset}]" if self.start else f"{self.array}[{offset}]"


class BlockBody:
    """Prints the statements of one kernel in blocks of about `wanted` points. `setup` are statements that each thread
    runs before its loops; `work` fills it."""

    def __init__(
        self, kernel: MapKernel, plan: Plan, space: Space, block: Block, vectors: Vectors, wanted: int
    ) -> None:
        self._kernel, self._plan, self._space, self._block = kernel, plan, space, block
        self._names = [f"i{dim}" for dim in range(len(space.sizes))]
        self._inner = math.prod(space.sizes[dim] for dim in block.flat)
        self._staged = self._find_staged()
        length = space.sizes[block.axis]
        whole = math.prod(space.sizes[dim] for dim in {dim for item in self._staged for dim in item.varying})
        points = max(_LONG_ENOUGH, wanted // whole)
        self._pieces = min(length, max(1, round(length * self._inner / points)))
        self._longest, self._shortest = -(-length // self._pieces), length // self._pieces
        lanes = min(vectors.lanes, power_of_two_below(self._shortest * self._inner))
        self._vectors = replace(vectors, lanes=lanes)
        self.setup: list[str] = []

    def heads(self) -> list[str]:
        """The heads of the loops that threads share."""
        covered = {self._block.axis, *self._block.flat, *self._block.inside}
        outer = [(name, size) for dim, (name, size) in enumerate(self._named_sizes()) if dim not in covered]
        if self._pieces > 1:
            outer.append(("piece", self._pieces))
        return [loop_head(name, size) for name, size in outer]

    def work(self) -> list[str]:
        """C++ statements for one block: its extent, copies that stage operands, then vectors for each point of
        `inside`. Appends values that all blocks share to `setup`."""
        lines = self._extent()
        if self._are_copies():
            return [*lines, *self._write_copies()]
        for item in self._staged:
            if self._is_fixed(item):
                if not self.setup and self._count == "count":
                    self.setup.append(f"const int64_t count = {self._longest};")
                self.setup += self._stage(item)
            else:
                lines += self._stage(item)
        return [*lines, *self._sweep()]

    def _named_sizes(self) -> list[tuple[str, int]]:
        """(C name of the index, size) of each dimension."""
        return list(zip(self._names, self._space.sizes, strict=True))

    @property
    def _count(self) -> str:
        """C text of the number of points of dimension `axis` in a block."""
        return "count" if self._longest != self._shortest else str(self._longest)

    def _extent(self) -> list[str]:
        """C++ statements that define a block's first point along `axis`, and `count` if blocks differ in length."""
        name, length = self._names[self._block.axis], self._space.sizes[self._block.axis]
        if self._pieces == 1:
            return [f"const int64_t {name} = 0;"]
        if self._longest == self._shortest:
            return [f"const int64_t {name} = piece * {self._longest};"]
        return [
            f"const int64_t {name} = piece * {length} / {self._pieces};",
            f"const int64_t count = (piece + 1) * {length} / {self._pieces} - {name};",
        ]

    # -- what is staged

    def _find_staged(self) -> list[_Staged]:
        """The values that blocks copy into arrays, each once."""
        found: list[_Staged] = []
        numbering, known = Numbering(), set[int]()
        for store in self._kernel.stores:
            for value, varying in self._to_stage(store.value):
                number = numbering.number(value)
                if number not in known:
                    known.add(number)
                    found.append(_Staged(f"staged{len(found)}", value, varying))
        return found

    def _to_stage(self, root: Expr) -> list[tuple[Expr, tuple[int, ...]]]:
        """(value, `inside` dimensions it varies along) of each value below `root` that has to be staged.

        These are the largest costly values that repeat, and the leaves that are not contiguous in the results' order.
        """
        block = self._block
        along = {dim: self._along(root, dim) for dim in (block.axis, *block.flat, *block.inside)}
        costly: dict[int, bool] = {}
        for node in distinct([root]):
            below = [costly[id(child)] for child in children_of(node)]
            costly[id(node)] = any(below) or (isinstance(node, Apply) and node.op in EXPENSIVE)
        found, seen, stack = [], set[int](), [root]
        while stack:
            node = stack.pop()
            if id(node) in seen or not any(along[dim][id(node)] for dim in (block.axis, *block.flat)):
                continue  # what the run does not move is computed before it
            seen.add(id(node))
            repeats = costly[id(node)] and not all(moves[id(node)] for moves in along.values())
            if repeats or (isinstance(node, Leaf) and not self._is_in_order(node)):
                found.append((node, tuple(dim for dim in block.inside if along[dim][id(node)])))
            else:
                stack.extend(reversed(children_of(node)))
        return found

    def _along(self, root: Expr, dim: int) -> dict[int, bool]:
        """{identity of a node below `root`: True if its value changes along dimension `dim`}."""
        return varies(root, lambda view: self._space.strides(view)[dim] != 0)

    def _is_in_order(self, leaf: Leaf) -> bool:
        """True if the leaf can be read in place: it is constant or contiguous along the run from `axis` on."""
        strides, block = self._space.strides(leaf.view), self._block
        merged = all(strides[d - 1] == strides[d] * self._space.sizes[d] for d in block.flat)
        if not isinstance(leaf, Load):
            return merged
        interleaved = any(0 < abs(strides[dim]) < abs(strides[-1]) for dim in block.inside)
        return merged and not interleaved and (not block.flat or strides[-1] in (0, 1))

    def _kind(self, item: _Staged) -> str:
        """C type of the array's elements: a load is copied as it is stored, a 16-bit float as a 16-bit integer."""
        if not isinstance(item.value, Load):
            return register_type(item.value.dtype)
        return "uint16_t" if item.value.dtype in CPU_DIALECT.widen else element_type(self._plan, item.value.buffer)

    def _held(self, item: _Staged, place: str) -> str:
        """C text of the value of an array's element."""
        if not isinstance(item.value, Load):
            return place
        kind = element_type(self._plan, item.value.buffer)
        return CPU_DIALECT.load(f"{kind}{{{place}}}" if self._kind(item) == "uint16_t" else place, item.value.dtype)

    def _is_fixed(self, item: _Staged) -> bool:
        """True if every block would stage the same values, so that once is enough."""
        covered = (*self._block.flat, *self._block.inside)
        outer = [dim for dim in range(len(self._space.sizes)) if dim not in covered]
        return isinstance(item.value, Load) and not any(self._space.strides(item.value.view)[dim] for dim in outer)

    # -- moving it

    def _points_of(self, item: _Staged) -> int:
        """Number of elements in the item's array."""
        return self._longest * self._inner * math.prod(self._space.sizes[dim] for dim in item.varying)

    def _index(self, dim: int) -> str:
        """C name of a dimension's index within the block."""
        return "j" if dim == self._block.axis else self._names[dim]

    def _lane(self, dim: int, source: int, target: int) -> _Lane:
        """One dimension of a copy of a block, with these strides in elements."""
        if dim == self._block.axis:
            return _Lane("j", self._longest, self._count, source, target)
        return _Lane(self._names[dim], self._space.sizes[dim], str(self._space.sizes[dim]), source, target)

    def _row_major(self, dims: Iterable[int]) -> dict[int, int]:
        """Row-major strides (elements) of an array that holds a block over these dimensions."""
        strides, step = {}, 1
        for dim in reversed(list(dims)):
            strides[dim] = step
            step *= self._longest if dim == self._block.axis else self._space.sizes[dim]
        return dict(reversed(strides.items()))

    def _array(self, item: _Staged) -> dict[int, int]:
        """Strides in elements of the item's array, by dimension."""
        return self._row_major((*item.varying, self._block.axis, *self._block.flat))

    def _stage(self, item: _Staged) -> list[str]:
        """C++ statements that declare and fill the item's array."""
        steps = self._array(item)
        declared = f"alignas(64) {self._kind(item)} {item.name}[{self._points_of(item)}];"
        if isinstance(item.value, Load):
            strides = self._space.strides(item.value.view)
            lanes = [self._lane(dim, strides[dim], step) for dim, step in steps.items()]
            source = _Place(f"b_{item.value.buffer}", self._start(item.value.view))
            form = "{0}.bits" if item.value.dtype in CPU_DIALECT.widen else "{0}"
            return [declared, *_copy(_Place(item.name), source, lanes, form)]
        once = self._once(item)
        if once == steps:
            return [declared, *self._compute(item, once, item.name)]
        lanes = [self._lane(dim, once.get(dim, 0), step) for dim, step in steps.items()]
        copied = _copy(_Place(item.name), _Place("once"), lanes)
        return [declared, "{", indent([*self._declare_once(item), *self._compute(item, once, "once"), *copied], 1), "}"]

    def _start(self, view: View) -> str:
        """C text of a view's offset at the first point of the block."""
        covered = {*self._block.flat, *self._block.inside}
        steps = zip(self._space.strides(view), self._names, strict=True)
        return affine(view.offset, [term for dim, term in enumerate(steps) if dim not in covered])

    # -- what repeats

    def _once(self, item: _Staged) -> dict[int, int]:
        """Strides by dimension (elements) of the array that holds a repeating value without its repetitions.

        It is vectorised along the dimension with stride 1.
        """
        block = self._block
        along = [dim for dim in (block.axis, *block.flat) if self._along(item.value, dim)[id(item.value)]]
        views = views_of([item.value])

        def fitness(dim: int) -> tuple[int, int, int]:
            """Sort key of a dimension as the one of vectors: long ones first, then small strides."""
            extent = self._shortest if dim == block.axis else self._space.sizes[dim]
            return min(extent, _SIDE_BY_SIDE), -max(abs(self._space.strides(view)[dim]) for view in views), extent

        run = max(along, key=fitness)
        return self._row_major((*item.varying, *(dim for dim in along if dim != run), run))

    def _declare_once(self, item: _Staged) -> list[str]:
        """The C++ declaration of the array `once`, which holds a repeating value without its repetitions."""
        once = self._once(item)
        points = math.prod(self._longest if dim == self._block.axis else self._space.sizes[dim] for dim in once)
        return [f"alignas(64) {register_type(item.value.dtype)} once[{points}];"]

    def _compute(self, item: _Staged, once: dict[int, int], array: str) -> list[str]:
        """C++ statements that compute a repeating value into `array`, each element once."""
        axis, sizes = self._block.axis, self._space.sizes
        *outer, run = once
        shortest = self._shortest if run == axis else sizes[run]
        end = self._count if run == axis else str(sizes[run])
        lanes = min(self._vectors.lanes, power_of_two_below(shortest))
        indices = [self._names[axis] if dim == axis else name for dim, name in enumerate(self._names)]
        indices[run] = "at"
        if axis in once:
            indices[axis] = f"({self._names[axis]} + {'at' if run == axis else 'j'})"
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, self._space.offset(indices)))
        value = emitter.value(item.value)
        vector = f"  {self._vectors.simd}\n  for (int l = 0; l < {lanes}; ++l) line[i + l] = value(i + l);"
        body = [
            f"{register_type(item.value.dtype)}* line = "
            f"{array} + {affine(0, [(once[d], self._index(d)) for d in outer])};",
            "const auto value = [&](int64_t at) __attribute__((always_inline)) {",
            indent([*emitter.lines, f"return {value};"], 1),
            "};",
            "int64_t i = 0;",
            f"for (; i + {lanes} <= {end}; i += {lanes}) {{\n{vector}\n}}",
        ]
        if end == "count" or shortest % lanes:
            body.append(f"if (i < {end}) {{\n  i = {end} - {lanes};\n{vector}\n}}")
        loops = [self._lane(dim, 0, 0).loop for dim in outer]
        return [*loops, "{", indent(body, 1), "}"]

    def _are_copies(self) -> bool:
        """True if every result is just a repeated value; then its copies are written to the outputs directly."""
        values = [store.value for store in self._kernel.stores]
        whole = len(values) == len(self._staged)
        whole = whole and all(item.value is value for item, value in zip(self._staged, values, strict=True))
        repeats = any(
            set(self._once(item)) < set(self._array(item)) for item in self._staged if not isinstance(item.value, Leaf)
        )
        return whole and repeats and not self._vectors.streamed and not any(isinstance(value, Leaf) for value in values)

    def _write_copies(self) -> list[str]:
        """C++ statements that compute each repeated value once and copy it to the outputs."""
        lines: list[str] = []
        for item, store in zip(self._staged, self._kernel.stores, strict=True):
            once, strides = self._once(item), self._space.strides(store.view)
            dims = (*self._block.inside, self._block.axis, *self._block.flat)
            lanes = [self._lane(dim, once.get(dim, 0), strides[dim]) for dim in dims]
            dtype = self._plan.buffers[store.buffer].dtype
            place = _Place(f"b_{store.buffer}", self._start(store.view))
            copied = _copy(place, _Place("once"), lanes, CPU_DIALECT.narrow.get(dtype, "{0}"))
            body = [*self._declare_once(item), *self._compute(item, once, "once"), *copied]
            lines += ["{", indent(body, 1), "}"]
        return lines

    # -- computing it

    def _sweep(self) -> list[str]:
        """C++ statements that compute and store all points of a block from the staged arrays."""
        block = self._block
        known: Known = []
        for item in self._staged:
            steps = self._array(item)
            place = affine(0, [*((steps[dim], self._names[dim]) for dim in item.varying), (1, "f")])
            known.append((item.value, self._held(item, f"{item.name}[{place}]")))
        points = Points(self._kernel, self._plan, self._at, self._moves)
        hoisted, point = points.define(known, "f")
        end = str(self._longest * self._inner)
        if self._longest != self._shortest:
            end = "end"
        shortest = self._shortest * self._inner
        exact = self._longest == self._shortest and shortest % self._vectors.lanes == 0
        body = [*hoisted, *point, *points.sweep("0", end, self._vectors, shortest, exact)]
        lines = [f"const int64_t end = count * {self._inner};"] if end == "end" else []
        for dim in block.inside:
            name = self._names[dim]
            lines.append(f"for (int64_t {name} = 0; {name} < {self._space.sizes[dim]}; ++{name})")
        return [*lines, "{", indent(body, 1), "}"] if block.inside else [*lines, *body]

    def _moves(self, view: View) -> bool:
        """True if the view's offset changes along the run."""
        return any(self._space.strides(view)[self._block.axis :])

    def _at(self, view: View, index: str) -> str:
        """C text of the element offset of the run's point `index`, for a leaf that is read in place."""
        strides = self._space.strides(view)
        terms = [(strides[dim], self._names[dim]) for dim in range(len(strides)) if dim not in self._block.flat]
        return affine(view.offset, [*terms, (strides[-1], index)])


def _copy(target: _Place, source: _Place, lanes: list[_Lane], form: str = "{0}") -> list[str]:
    """C++ loops that assign target[...] = source[...] over all lanes.

    The smallest lanes are unrolled; of the others the one with the smallest stride in the source is innermost."""
    together: list[_Lane] = []
    for lane in sorted((lane for lane in lanes if lane.index != "j"), key=lambda lane: lane.size):
        if math.prod(other.size for other in together) * lane.size <= _SIDE_BY_SIDE:
            together.append(lane)
    looped = sorted((lane for lane in lanes if lane not in together), key=lambda lane: -abs(lane.source))
    together.sort(key=lambda lane: -lane.target)
    statements = []
    for point in product(*(range(lane.size) for lane in together)):
        to = sum(lane.target * at for lane, at in zip(together, point, strict=True))
        of = sum(lane.source * at for lane, at in zip(together, point, strict=True))
        read = source.at(of, [(lane.source, lane.index) for lane in looped])
        statements.append(f"{target.at(to, [(lane.target, lane.index) for lane in looped])} = {form.format(read)};")
    loops = [lane.loop for lane in looped]
    return [*loops, "{", indent(statements, 1), "}"] if loops else statements
