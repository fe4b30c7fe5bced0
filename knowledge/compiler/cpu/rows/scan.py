"""Scans for the CPU: blocks scanned in registers with a carried total, rows side by side, or one row in two passes.

Running sums and products of float32 are taken in float64, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import (
    Function,
    loop_head,
    loops_over,
    print_function,
    share_loops,
    width_of_tile,
)
from foundry.knowledge.compiler.cpu.space import (
    Space,
    choose_threads,
    indent,
    item_bytes,
    register_type,
    traffic_bytes,
    vector_widths,
)
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, ScanKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, loader
from foundry.knowledge.compiler.ir.views import views_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

_COMBINE = {"sum": "a + b", "prod": "a * b", "max": "math::maximum(a, b)", "min": "math::minimum(a, b)"}
# The same on whole vectors, where the library's functions do not reach; NaN wins on either side.
_VECTOR = {"max": "b > a ? b : a", "min": "b < a ? b : a"}
_BLOCKS = 4  # blocks whose values are computed, scanned and stored together


@dataclass(frozen=True)
class _Scan:
    """Types and combining text of one scan's operation; a register holds `lanes` values of type `block`."""

    block: str  # C type scanned inside a block
    carry: str  # C type carried between blocks
    neutral: str
    combine: str  # C text of `a` (earlier) and `b` combined
    lanes: int


def print_scan(kernel: ScanKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a ScanKernel, in one of the forms of the module's docstring.

    `choices` may hold:
    - "tile": rows side by side
    - "algorithm": "blocks" scans 64 bytes in registers, "serial" adds one element at a time
    - "parallel": "rows" or "within"
    - "schedule": "static" or "dynamic"
    - "threads": threads of the kernel
    A value that is not legal for this kernel gives way to the default."""
    return _ScanPrinter(kernel, plan, device, Tuning(choices)).print_kernel()


def _describe_scan(kernel: ScanKernel) -> _Scan:
    """The types and texts of a scan's operation."""
    kind = register_type(kernel.dtype)
    carry = "double" if kernel.op in ("sum", "prod") and kind == "float" else kind
    if kernel.op in ("sum", "prod"):
        kind = carry
    if kernel.op == "logsumexp":
        return _Scan("double", "double", "lowest<double>()", "log_add_exp(a, b)", 1)
    neutral = {"sum": f"({carry})0", "prod": f"({carry})1", "max": f"lowest<{carry}>()", "min": f"highest<{carry}>()"}
    lanes = {"float": 16, "double": 8, "int64_t": 8, "int32_t": 16}.get(kind, 1)
    return _Scan(kind, carry, neutral[kernel.op], _COMBINE[kernel.op], lanes)


def _print_simd(count: str, body: Sequence[str]) -> list[str]:
    """C++ vector loop that runs `body` for l in [0, count)."""
    return ["#pragma omp simd", f"for (int l = 0; l < {count}; ++l) {{", indent(body, 1), "}"]


class _ScanPrinter:
    """Prints one scan; declares its tunables in `tuning`."""

    def __init__(self, kernel: ScanKernel, plan: Plan, device: Device, tuning: Tuning) -> None:
        self._kernel, self._plan, self._device, self._tuning = kernel, plan, device, tuning
        self._values = [kernel.value, *[store.value for store in kernel.stores]]
        views = [*views_of(self._values), *[store.view for store in kernel.stores]]
        last = len(kernel.shape) - 1
        space = Space.merge(kernel.shape, views, barriers=[last])
        if space.last[-1] != last:  # a scan of length 1
            space = Space((*space.sizes, 1), (*space.last, last))
        self._space, self._scan = space, _describe_scan(kernel)
        self._outer = space.sizes[:-1]
        self._length = space.sizes[-1]
        self._across = self._find_column()
        self._form()

    def _find_column(self) -> int | None:
        """The outer dimension along which memory is contiguous, if the scanned one is not; else None."""
        views = [*views_of(self._values), *[store.view for store in self._kernel.stores]]
        unit = [sum(1 for view in views if self._space.strides(view)[d] == 1) for d in range(len(self._space.sizes))]
        if not self._outer:
            return None
        best = max(range(len(self._outer)), key=lambda d: (unit[d], self._outer[d]))
        return best if unit[best] > unit[-1] and self._outer[best] >= 4 else None

    def _form(self) -> None:
        """Chooses tile, algorithm, sharing of rows, schedule and threads, and declares their tunables."""
        tuning, device = self._tuning, self._device
        rows = self._space.points // self._length
        widths = vector_widths(device)
        per_vector = widths[0] // item_bytes(self._values, self._kernel.stores, self._plan)
        self._tile = 0
        if self._across is not None:
            across = max(self._outer[self._across], per_vector)
            tiles = [per_vector * n for n in (1, 2, 4, 8, 16) if per_vector * n <= across]
            meaning = "rows side by side: wide tiles read longer runs of memory, narrow ones balance"
            self._tile = tuning.number("tile", tiles, tiles[min(2, len(tiles) - 1)], "tile", meaning)
        vectors = self._scan.lanes > 1 and self._kernel.value.dtype not in ("bool", "int8", "uint8", "int16")
        forms = ["blocks", "serial"] if vectors and self._length >= 32 and not self._tile else ["serial"]
        if self._kernel.op in ("max", "min"):
            forms.reverse()  # one comparison a value is hard to beat
        meaning = "blocks scan 64 bytes in registers and carry their total; serial adds one value at a time"
        self._blocked = tuning.text("algorithm", forms, forms[0], "algorithm", meaning) == "blocks"
        long = self._length >= 32768 and device.cores > 1 and not self._tile
        default = "within" if long and rows < device.cores else "rows"
        meaning = "give whole rows to threads, or share each row: totals first, then the scan"
        shares = ["rows", "within"] if long else ["rows"]
        self._shared = tuning.text("parallel", shares, default, "parallel", meaning) == "within"
        self._order = tuning.text("schedule", ("static", "dynamic"), "static", "parallel", "who takes which row")
        self._threads = choose_threads(tuning, device, traffic_bytes(self._values, self._kernel.stores, self._plan))

    def print_kernel(self) -> PrintedKernel:
        """The printed kernel, in the chosen form: tiles of rows, whole rows, or shared rows."""
        kernel = self._kernel
        body = self._columns() if self._tile else self._shared_rows() if self._shared else self._rows()
        about = f"running {kernel.op} of {self._space.points // self._length} rows of {self._length}"
        return print_function(
            Function(kernel.name, about, body, self._values, kernel.stores),
            self._plan,
            self._tuning,
            template="scan",
            shared=["rows/scan.h"],
        )

    # -- one element

    def _index(self, text: str) -> str:
        """C text of the index in memory order of scan position `text`."""
        return f"({self._length - 1} - ({text}))" if self._kernel.reverse else text

    def _indices(self, inner: str) -> list[str]:
        """C names of the indices of all dimensions, the scanned one being `inner`."""
        names = [f"o{d}" for d in range(len(self._outer))]
        if self._tile and self._across is not None:
            names[self._across] = "(tile + l)"
        return [*names, inner]

    def _load(self, at: str) -> tuple[list[str], str]:
        """(C++ statements, C text of the scanned value) at scan position `at`."""
        offset = self._space.offset(self._indices(self._index(at)))
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, prefix="v")
        text = emitter.value(self._kernel.value)
        return emitter.lines, text

    def _store(self, at: str, own: str) -> list[str]:
        """C++ statements that store the element at scan position `at`, with running value `acc` and own value `own`."""
        offset = self._space.offset(self._indices(self._index(at)))
        known = [(self._kernel.value, own)]
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {"acc": "acc"}, known=known)
        emitter.store_all(self._kernel.stores, offset, self._plan.buffers)
        return emitter.lines

    def _setup(self) -> list[str]:
        """The C++ definition of `combine`."""
        text = f"{{ return {self._scan.combine}; }}"
        return [f"const auto combine = [](auto a, auto b) __attribute__((always_inline)) {text};"]

    # -- one row

    def _stretch(self, begin: str, end: str, *, storing: bool = True) -> list[str]:
        """C++ statements that scan elements [begin, end) of a row from `carry`, and leave the new total there."""
        if self._blocked:
            return [f"int64_t i = {begin};", *self._scan_blocks(end, storing=storing)]
        return [f"for (int64_t i = {begin}; i < {end}; ++i) {{", indent(self._step("carry", storing=storing), 1), "}"]

    def _step(self, carry: str, *, storing: bool = True) -> list[str]:
        """C++ statements that add element i to the variable `carry` and, if `storing`, store the running value."""
        before, value = self._load("i")
        own, kind = register_type(self._kernel.value.dtype), register_type(self._kernel.dtype)
        step = [*before, f"const {own} own = {value};"]
        step.append(f"const {self._scan.carry} next = combine({carry}, ({self._scan.carry})own);")
        if storing:
            step += [f"const {kind} acc = ({kind}){carry if self._kernel.exclusive else 'next'};"]
            step += self._store("i", "own")
        return [*step, f"{carry} = next;"]

    def _scan_blocks(self, end: str, *, storing: bool) -> list[str]:
        """C++ statements that scan several blocks at a time up to `end`, so that values and stores of all types are
        whole vectors.

        The rest of a row takes the same code with fewer elements."""
        scan, kind, own = self._scan, register_type(self._kernel.dtype), register_type(self._kernel.value.dtype)
        count = scan.lanes * _BLOCKS
        before, value = self._load("(i + l)")
        body = ["const int count = given;", f"alignas(64) {own} block[{count}];"]
        body += [f"alignas(64) {scan.block} running[{count}];"] if storing else []
        body += [
            *_print_simd("count", [*before, f"block[l] = {value};"]),
            f"for (int l = count; l < {count}; ++l) block[l] = ({own}){scan.neutral};",
            f"for (int first = 0; first < count; first += {scan.lanes}) {{",
            indent(self._scan_one_block(storing=storing), 1),
            "}",
        ]
        if storing:
            body += _print_simd(
                "count", [f"const {kind} acc = ({kind})running[l];", *self._store("(i + l)", "block[l]")]
            )
        return [
            "const auto blocks = [&](const auto given) __attribute__((always_inline)) {",
            indent(body, 1),
            "};",
            f"for (; i + {count} <= {end}; i += {count}) blocks(std::integral_constant<int, {count}>());",
            f"if (i < {end}) blocks((int)({end} - i));",
        ]

    def _scan_one_block(self, *, storing: bool) -> list[str]:
        """C++ statements that scan the block at `first` and add its total to `carry`."""
        scan, kernel = self._scan, self._kernel
        combine = _VECTOR.get(kernel.op, scan.combine)
        if kernel.op in _VECTOR and register_type(kernel.dtype) in ("float", "double"):
            combine = f"(b != b) ? b : ((a != a) ? a : ({combine}))"
        combining = f"[](auto a, auto b) {{ return {combine}; }}"
        earlier = f"l ? scanned[l - 1] : ({scan.block}){scan.neutral}" if kernel.exclusive else "scanned[l]"
        return [
            f"alignas(64) {scan.block} scanned[{scan.lanes}];",
            f"prefix(block + first, scanned, ({scan.block}){scan.neutral}, {combining});",
            *(_print_simd(str(scan.lanes), [f"running[first + l] = combine(carry, {earlier});"]) if storing else []),
            f"carry = combine(carry, scanned[{scan.lanes - 1}]);",
        ]

    def _heads(self) -> list[str]:
        """The heads of loops over all rows."""
        return loops_over("o", self._outer)

    def _rows(self) -> list[str]:
        """C++ statements in which threads take whole rows."""
        heads = self._heads() or [loop_head("only", 1)]
        work = [
            *self._setup(),
            f"{self._scan.carry} carry = {self._scan.neutral};",
            *self._stretch("0", str(self._length)),
        ]
        return share_loops(heads, work, self._order, self._threads)

    def _shared_rows(self) -> list[str]:
        """C++ statements for few long rows, in three steps.

        These are the totals of all segments in parallel, their running total, and the scan of all segments in
        parallel."""
        segments = 8 * self._device.cores
        size = -(-self._length // (segments * 64)) * 64
        segments = -(-self._length // size)
        bounds = [
            f"const int64_t first = segment * {size};",
            f"const int64_t last = first + {size} < {self._length} ? first + {size} : {self._length};",
        ]
        pragma = f"#pragma omp parallel for schedule({self._order}){self._threads}"
        head = f"for (int64_t segment = 0; segment < {segments}; ++segment) {{"
        carry, neutral = self._scan.carry, self._scan.neutral
        only = self._stretch("first", "last", storing=False)
        totals = [*bounds, f"{carry} carry = {neutral};", *only, "totals[segment] = carry;"]
        scans = [*bounds, f"{carry} carry = totals[segment];", *self._stretch("first", "last")]
        running: Sequence[str] = [
            f"{carry} before = {neutral};",
            "for (auto& total : totals) {",
            f"  const {carry} through = combine(before, total);",
            "  total = before;",
            "  before = through;",
            "}",
        ]
        work = [*self._setup(), f"{carry} totals[{segments}];", pragma, head, indent(totals, 1), "}", *running]
        work += [pragma, head, indent(scans, 1), "}"]
        heads = self._heads()
        return [*heads[:-1], f"{heads[-1]} {{", indent(work, 1), "}"] if heads else work

    # -- rows side by side

    def _columns(self) -> list[str]:
        """C++ statements in which threads take tiles of neighbouring rows, scanned in lanes."""
        assert self._across is not None
        across, tile, carry = self._outer[self._across], self._tile, self._scan.carry
        heads = [head for d, head in enumerate(self._heads()) if d != self._across]
        heads.append(f"for (int64_t tile = 0; tile < {across}; tile += {tile})")
        work = [
            *self._setup(),
            width_of_tile(tile, across),
            f"alignas(64) {carry} carry[{tile}]; fill(carry, {self._scan.neutral});",
            f"for (int64_t i = 0; i < {self._length}; ++i) {{",
            "  #pragma omp simd",
            "  for (int l = 0; l < width; ++l) {",
            indent(self._step("carry[l]"), 2),
            "  }",
            "}",
        ]
        return share_loops(heads, work, self._order, self._threads)
