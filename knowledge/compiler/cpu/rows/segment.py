"""Sums and other reductions of segments on the CPU. Each segment's items are read in order into neighbouring
accumulators; threads share the segments, and a segment that is much longer than others is cut.

The order of additions does not depend on which thread does what, so results are the same in every call. Sums and
products of float32 are taken in float64."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, loops_over, print_function, share_loops, width_of_tile
from foundry.knowledge.compiler.cpu.put import print_put
from foundry.knowledge.compiler.cpu.rows.direct import COMBINE, neutral_of, print_direct
from foundry.knowledge.compiler.cpu.space import (
    Space,
    choose_threads,
    find_invariants,
    hoist,
    indent,
    register_type,
    traffic_bytes,
)
from foundry.knowledge.compiler.ir.kernels import Gather, Load, Plan, PrintedKernel, SegmentKernel, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, loader
from foundry.knowledge.compiler.ir.views import distinct, views_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES

_LINE_BYTES = 64
_TILES = (16, 32, 64, 128, 256)
_WIDEST_WHOLE = 128  # lanes; up to so many are one tile
_TASKS_OF_A_THREAD = 16
_PIECES = 4  # pieces of a long segment for each core
_SHORTEST_LONG = 2048  # fewest items of a segment that is worth cutting


def print_segments(kernel: SegmentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a SegmentKernel.

    `choices` may hold:
    - "tile": neighbouring elements of an item that are accumulated together
    - "ahead": items that are prefetched before they are read
    - "schedule": "dynamic" or "static"
    - "threads": threads of the kernel
    - "parts": as in `print_direct`, for kernels with a key
    A value that is not legal for this kernel gives way to the default."""
    if kernel.in_place:
        return print_put(kernel, plan, device, choices)
    if kernel.key is not None:
        return print_direct(kernel, plan, device, choices)
    return _SegmentPrinter(kernel, plan, device, Tuning(choices)).print_kernel()


class _SegmentPrinter:
    """Prints one reduction of sorted segments; declares its tunables in `tuning`."""

    def __init__(self, kernel: SegmentKernel, plan: Plan, device: Device, tuning: Tuning) -> None:
        self._kernel, self._plan, self._device, self._tuning = kernel, plan, device, tuning
        self._values = [kernel.value, *[store.value for store in kernel.stores]]
        views = [*views_of(self._values), *[store.view for store in kernel.stores]]
        self._space = Space.merge((2, *kernel.shape[1:]), views, barriers=[1])  # items, or segments, come first
        self._type = register_type(kernel.dtype)
        in_wide = kernel.op in ("sum", "prod") and self._type == "float"
        self._held = "double" if in_wide else self._type
        inner = self._space.sizes[1:]
        is_wide = bool(inner) and self._space.strides(kernel.stores[0].view)[-1] == 1
        self._outer = inner[:-1] if is_wide else inner
        self._lanes = inner[-1] if is_wide else 1
        self._tile = self._choose_tile() if is_wide else 1
        wide = self._lanes > 1 and kernel.op != "last" and bool(self._sought())
        meaning = "items that are asked for before they are read; 0 none"
        self._ahead = tuning.number("ahead", (0, 4, 8, 16), 8, "memory", meaning) if wide else 0
        self._order = tuning.text("schedule", ("dynamic", "static"), "dynamic", "parallel", "who takes which segments")
        self._threads = choose_threads(tuning, device, traffic_bytes(self._values, kernel.stores, plan))
        self._tiles = -(-self._lanes // self._tile)
        self._columns = math.prod(self._outer) * self._tiles
        many = self._columns >= _PIECES * device.cores  # each column is a task of its own
        self._long = 0 if many or kernel.op == "last" or self._is_alone else self._shortest_long()

    @property
    def _is_alone(self) -> bool:
        """True if the kernel has a single thread."""
        return self._device.cores == 1 or self._threads == " num_threads(1)"

    def _shortest_long(self) -> int:
        """Number of items above which a segment is cut; 0 if none can be so long."""
        size = max(_SHORTEST_LONG, self._kernel.items // (2 * self._device.cores))
        return size if self._kernel.items > size else 0

    def _choose_tile(self) -> int:
        """Number of elements that are accumulated together, by the tunable "tile"."""
        whole = [self._lanes] if self._lanes <= _TILES[-1] else []
        tiles = sorted({*whole, *(tile for tile in _TILES if tile < self._lanes)})
        dividing = [tile for tile in tiles if tile <= _WIDEST_WHOLE and self._lanes % tile == 0 and tile >= 32]
        default = self._lanes if self._lanes <= _WIDEST_WHOLE else max(dividing, default=64)
        meaning = "elements of an item that are accumulated together: wide tiles read longer runs, narrow ones balance"
        return self._tuning.number("tile", tiles, default, "tile", meaning)

    def print_kernel(self) -> PrintedKernel:
        """The printed kernel: threads share the short segments, then each long one."""
        kernel = self._kernel
        own = [name for name in (kernel.starts, kernel.order) if name]
        more = [(f"const int32_t* __restrict b_{name}", f"b_{name}") for name in own]
        more += [("char* workspace", "workspace")] if self._long else []
        body = [*self._functions(), *self._short_segments(), *(self._long_segments() if self._long else [])]
        about = f"{kernel.op} of {kernel.items} items in {kernel.shape[0]} segments"
        return print_function(
            Function(kernel.name, about, body, reads=self._values, stores=kernel.stores, more=more),
            self._plan,
            self._tuning,
            template="segment",
            workspace_bytes=8 * self._pieces * self._columns * self._tile if self._long else 0,
        )

    # -- one segment of one tile

    @property
    def _pieces(self) -> int:
        """Number of pieces into which a long segment is cut."""
        return _PIECES * self._device.cores

    @property
    def _at(self) -> list[str]:
        """C names of the outer indices of an item."""
        return [f"o{d}" for d in range(len(self._outer))]

    def _indices(self, first: str) -> list[str]:
        """C names of the indices of an element; `first` is the item's or segment's."""
        return [first, *self._at, *(["(tile + l)"] if self._lanes > 1 else [])]

    def _functions(self) -> list[str]:
        """The C++ lambdas `combine`, `add` (reads items into accumulators) and `finish` (stores the results)."""
        held = self._held
        arguments = "".join(f", const int64_t o{d}" for d in range(len(self._outer)))
        tile = f"{arguments}, const int64_t tile"
        width = width_of_tile(self._tile, self._lanes)
        inline = "__attribute__((always_inline))"
        add = [
            width,
            "(void)tile;",
            f"for (int l = 0; l < width; ++l) held[l] = {neutral_of(self._kernel.op, held)};",
            *self._items(),
        ]
        finish = [width, "(void)tile, (void)count;", "#pragma omp simd", "for (int l = 0; l < width; ++l) {"]
        finish += [indent([f"const {self._type} acc = ({self._type})held[l];", "(void)acc;", *self._stores()], 1), "}"]
        given = f"const int64_t segment, const int64_t count{tile}, const {held}* held"
        combine = f"{{ (void)a; return {COMBINE[self._kernel.op]}; }}"
        return [
            f"const auto combine = [](const {held} a, const {held} b) {inline} -> {held} {combine};",
            f"const auto add = [=](int64_t first, const int64_t last{tile}, {held}* __restrict held) {inline} {{",
            indent(add, 1),
            "};",
            f"const auto finish = [=]({given}) {inline} {{",
            indent(finish, 1),
            "};",
        ]

    def _items(self) -> list[str]:
        """C++ statements that accumulate the items at [first, last) of the order."""
        offset = self._space.offset(self._indices("item"))
        value = self._kernel.value
        known = find_invariants([value], lambda view: self._space.strides(view)[-1] != 0) if self._lanes > 1 else []
        before, held = hoist(known, offset, {}, [], "h")
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, known=held, prefix="v")
        text, order = emitter.value(value), f"b_{self._kernel.order}"
        step = [*emitter.lines, f"held[l] = combine(held[l], ({self._held})({text}));"]
        return [
            *(["if (first < last) first = last - 1;"] if self._kernel.op == "last" else []),
            "for (; first < last; ++first) {",
            indent(self._prefetches(), 1),
            f"  const int64_t item = {order}[first];" if self._kernel.order else "  const int64_t item = first;",
            "  (void)item;",
            indent(before, 1),
            "  #pragma omp simd",
            "  for (int l = 0; l < width; ++l) {",
            indent(step, 2),
            "  }",
            "}",
        ]

    def _sought(self) -> list[Load | Gather]:
        """Loads and gathers of contiguous runs whose place is known from the item's number."""

        def moves(view: View) -> bool:
            """True if the view moves along the lanes."""
            return self._space.strides(view)[-1] != 0

        found = [node for node in distinct([self._kernel.value]) if isinstance(node, Load | Gather)]
        fixed = [n for n in found if isinstance(n, Load) or not any(map(moves, views_of([n.index])))]
        return [node for node in fixed if self._space.strides(node.view)[-1] == 1]

    def _prefetches(self) -> list[str]:
        """C++ statements that prefetch the rows of a later item, of this segment or the next; [] without such rows.

        Without them each item would wait for a row from anywhere in memory."""
        sought = self._sought() if self._ahead else []
        if not sought:
            return []
        offset = self._space.offset(["next", *self._at, "tile"])
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, prefix="p")
        asked: list[str] = []
        for node in sought:
            place = f"b_{node.buffer} + {offset(node.view)}"
            if isinstance(node, Gather):
                place += f" + math::wrap_index({emitter.value(node.index)}, {node.bound}) * {node.step}"
            line = _LINE_BYTES // ITEM_BYTES[node.dtype]
            asked.append(f"for (int l = 0; l < width; l += {line}) __builtin_prefetch({place} + l);")
        place = f"first + {self._ahead}"
        known = f"b_{self._kernel.order}[{place}]" if self._kernel.order else place
        body = [f"const int64_t next = {known};", *emitter.lines, *asked]
        end = f"b_{self._kernel.starts}[{self._kernel.shape[0]}]"
        return [f"if ({place} < {end}) {{", indent(body, 1), "}"]

    def _stores(self) -> list[str]:
        """C++ statements that store the result of a segment from `acc` and `count`."""
        offset = self._space.offset(self._indices("segment"))
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {"acc": "acc", "count": "count"})
        emitter.store_all(self._kernel.stores, offset, self._plan.buffers)
        return emitter.lines

    # -- all of them

    def _heads(self) -> list[str]:
        """The heads of loops over all tiles of a segment."""
        heads = loops_over("o", self._outer)
        return [*heads, f"for (int64_t tile = 0; tile < {self._lanes}; tile += {self._tile})"]

    def _loop(self, head: str, body: list[str], schedule: str) -> list[str]:
        """C++ loops over all tiles and `head`, whose iterations the threads share."""
        heads = [*self._heads(), head]
        return share_loops(heads, body, schedule, self._threads)

    def _short_segments(self) -> list[str]:
        """C++ statements that reduce all segments, and record the long ones, which they leave out, in `longest`."""
        kernel, at = self._kernel, "".join(f"{name}, " for name in [*self._at, "tile"])
        tasks = self._columns * kernel.shape[0]
        grain = max(1, tasks // (_TASKS_OF_A_THREAD * self._device.cores))
        own = [
            f"const int64_t first = b_{kernel.starts}[segment], last = b_{kernel.starts}[segment + 1];",
            f"alignas(64) {self._held} held[{self._tile}];",
            f"add(first, last, {at}held);",
            f"finish(segment, last - first, {at}held);",
        ]
        if self._long:
            is_first = " && ".join(f"{name} == 0" for name in [*self._at, "tile"])
            note = ["int place;", "#pragma omp atomic capture", "place = found++;", "longest[place] = segment;"]
            cut = [f"if (last - first > {self._long}) {{", f"  if ({is_first}) {{", indent(note, 2), "  }"]
            own[1:1] = [*cut, "  continue;", "}"]
        schedule = f"dynamic, {grain}" if self._order == "dynamic" else "static"
        most = kernel.items // self._long + 1 if self._long else 0
        before = [f"int64_t longest[{most}];", "int found = 0;"] if self._long else []
        head = f"for (int64_t segment = 0; segment < {kernel.shape[0]}; ++segment)"
        return [*before, *self._loop(head, own, schedule)]

    def _long_segments(self) -> list[str]:
        """C++ statements for long segments, each by all threads: pieces of its items in parallel, then merged in
        order."""
        starts, pieces, held = self._kernel.starts, self._pieces, self._held
        at = "".join(f"{name}, " for name in [*self._at, "tile"])
        column = "0"
        for name, size in zip(self._at, self._outer, strict=True):
            column = f"({column} * {size} + {name})"
        column = f"({column} * {self._tiles} + tile / {self._tile})"
        where = f"parts + ({column} * {pieces} + piece) * {self._tile}"
        part = [
            f"const int64_t begin = first + (last - first) * piece / {pieces};",
            f"const int64_t end = first + (last - first) * (piece + 1) / {pieces};",
            f"add(begin, end, {at}{where});",
        ]
        join = [
            f"{held}* const total = parts + {column} * {pieces} * {self._tile};",
            f"for (int piece = 1; piece < {pieces}; ++piece)",
            f"  for (int l = 0; l < {self._tile}; ++l)",
            f"    total[l] = combine(total[l], total[piece * {self._tile} + l]);",
            f"finish(segment, last - first, {at}total);",
        ]
        body = [
            "const int64_t segment = longest[at];",
            f"const int64_t first = b_{starts}[segment], last = b_{starts}[segment + 1];",
            *self._loop(f"for (int piece = 0; piece < {pieces}; ++piece)", part, "static"),
            *self._heads()[:-1],
            f"{self._heads()[-1]} {{",
            indent(join, 1),
            "}",
        ]
        before = f"{held}* const parts = ({held}*)workspace;"
        return [before, "for (int at = 0; at < found; ++at) {", indent(body, 1), "}"]
