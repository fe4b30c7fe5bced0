"""How a row kernel is divided among threads: rows along or across memory, team size, vectors, staging, splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.rows.steps import EmitPass, ReducePass, Step, is_light, state_bytes, steps_of
from foundry.knowledge.compiler.cuda.space import (
    LARGEST_INT,
    Space,
    collapse,
    index_type,
    make_tunable,
    pick_number,
    widest_vector,
)
from foundry.knowledge.compiler.ir.kernels import Expr, Load, Plan, Reduction, RowKernel, View
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.kept import kept_bytes, values_of_all_passes
from foundry.knowledge.compiler.schedule.passes import find_softmax_pairs, split_statistics, stores_in, value_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import DType

ROW_TEAMS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
COLUMN_TEAMS = (1, 2, 4, 8, 16, 32)
COLUMNS = (32, 64, 128)
BLOCKS = (64, 128, 256, 512, 1024)
NARROW_MOST_ELEMENTS = 25  # elements of a row in a thread that loads single ones; for more, blocks have 1024 threads
REGISTER_WORDS = 64  # words of staged values in a thread; more cost occupancy or spills
STATIC_SHARED_BYTES = 40 * 1024  # bytes of partial states in a block; 48 KB is the limit without an attribute
CLUSTERS = (2, 4, 8)
CLUSTER_PART_BYTES = 66 * 1024  # most bytes of a row in one block of a default cluster
CLUSTER_NARROW_PART_BYTES = 110 * 1024  # the same where elements are loaded one by one
CLUSTER_TEAMS = (256, 512, 1024)
CLUSTER_LEAST_PART_BYTES = 16 * 1024  # fewest bytes of a row that are worth a block
CLUSTER_STATE_BYTES = 8 * 1024  # bytes of a block reserved for the states of reductions
ORDERS = ("launches", "behind", "memory")
STREAMED_LEAST_BYTES = 1 << 20  # bytes of all rows; fewer are never read in memory order
STREAMED_LEAST_ELEMENTS = 1 << 12  # elements of a row; shorter ones are never read in memory order
STREAMED_TEAMS = (64, 128, 256, 512, 1024)
STREAMED_RUN_BYTES = 1 << 17  # bytes of a contiguous run of a row; longer runs are read in memory order by default
STREAMED_COLUMN_BYTES = 8 << 20  # bytes of few columns; more are read in memory order by default
PARTS = (4, 8, 16, 32, 64)  # vectors of one thread in a part of a row
PART_BYTES = 1 << 16  # bytes of a part by default
PACED_LEAST_BYTES = 1 << 17  # bytes of a row; shorter ones are never paced
PACED_DEFAULT_BYTES = (1 << 20, 12 << 20)  # shortest and longest row, in bytes, that is paced by default
PACED_SOFTMAX_BYTES = 4 << 20  # bytes of the shortest such row if each reading takes exponentials
PACED_PART_BYTES = 24 * 1024  # bytes of a paced row that one block reads
IN_FLIGHT = (2, 4, 8, 16)  # vectors that a thread of a streamed row loads before it uses the first
DEFAULT_IN_FLIGHT = 4
NARROW_IN_FLIGHT = 8  # the default where single elements are loaded
# The default where blocks take 128 columns and add or compare (H200: a sum took 2.04 ms, with 8 it took 2.15; the
# position of a maximum took 2.70 ms, with 8 it took 2.13).
WIDE_IN_FLIGHT = 2
MOST_IN_FLIGHT_ELEMENTS = 32  # elements of all vectors in flight


@dataclass(frozen=True)
class RowShape:
    """The division of one row kernel among blocks and threads; sizes are in elements."""

    column: bool  # rows are across memory: neighbouring threads take neighbouring rows
    space: Space  # outer dimensions, then reduced; row-major
    outer: int  # how many of the space's dimensions are outer
    rows: int
    length: int
    team: int  # threads that share a row
    threads: int  # threads of a block
    vector: int
    staging: str  # "registers", "shared", "stream"
    splits: int  # blocks that share a row
    steps: tuple[Step, ...]
    kept: tuple[Expr, ...]
    cluster: int = 1  # blocks that hold a row together
    order: str = "launches"  # order of reading the parts of rows: "launches", "behind" or "memory"
    walk: tuple[int, ...] = ()  # dimensions outside the contiguous runs of a row, in the order of memory
    part: int = 0  # vectors of a thread in a part, if parts are read in the order of memory
    resident: int = 1  # blocks that run at a time
    in_flight: int = DEFAULT_IN_FLIGHT  # vectors that a thread loads at a time where the row is streamed

    @property
    def rows_per_block(self) -> int:
        """Number of rows that a block takes."""
        return self.threads // self.team

    @property
    def chunk(self) -> int:
        """Elements of a row that one block of a cluster holds."""
        return math.ceil(self.length / (self.cluster * self.vector)) * self.vector

    @property
    def rounds(self) -> int:
        """Vectors of a row that one thread holds."""
        return math.ceil(self.chunk / (self.team * self.vector))

    @property
    def blocks(self) -> int:
        """Number of groups of rows: that of the launch's blocks if no row is shared by several."""
        return math.ceil(self.rows / self.rows_per_block)

    @property
    def reduced_sizes(self) -> tuple[int, ...]:
        """Sizes of the space's reduced dimensions."""
        return self.space.sizes[self.outer :]

    @property
    def reduced_names(self) -> tuple[str, ...]:
        """C names of the indices of the reduced dimensions."""
        return self.space.names[self.outer :]


def _leading(kernel: RowKernel) -> View:
    """The view of the load or store that moves most elements, which decides the layout. Raises CannotLower if nothing
    moves along the reduced dimensions."""
    outer = len(kernel.outer)
    sizes = (*kernel.outer, *kernel.reduced)

    def elements(view: View) -> int:
        """Number of different elements that a view reads or writes."""
        return math.prod(n for n, stride in zip(sizes, view.strides, strict=True) if stride)

    found = [leaf.view for leaf in leaves(map(value_of, kernel.stages)) if isinstance(leaf, Load)]
    moving = [view for view in found if any(view.strides[outer:])]
    moving += [store.view for store in stores_in(kernel.stages)]
    if not moving:
        raise CannotLower(f"row kernel {kernel.name} reads nothing along its reduced dimensions")
    return max(moving, key=elements)


def row_space(kernel: RowKernel) -> tuple[Space, int, bool]:
    """(the collapsed space, its number of outer dimensions, True if neighbouring rows are contiguous in memory).

    Outer and reduced dimensions are sorted by the strides of the leading view; reduced ones keep their order if a
    reduction gives positions."""
    views = list(dict.fromkeys([leaf.view for leaf in leaves(map(value_of, kernel.stages))]))
    views = list(dict.fromkeys([*views, *(store.view for store in stores_in(kernel.stages))]))
    leading = _leading(kernel)
    count = len(kernel.outer)
    indexed = any(isinstance(stage, Reduction) and stage.op.startswith("arg") for stage in kernel.stages)

    def ordered(dimensions: range) -> list[int]:
        """The dimensions, those of size 1 first, then by falling strides of the leading view."""
        sizes = (*kernel.outer, *kernel.reduced)
        return sorted(dimensions, key=lambda d: (sizes[d] > 1, -abs(leading.strides[d]), d))

    outer = ordered(range(count))
    reduced = list(range(count, count + len(kernel.reduced)))
    reduced = reduced if indexed else ordered(range(count, count + len(kernel.reduced)))
    sizes = (*kernel.outer, *kernel.reduced)

    def part(dimensions: list[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """(sizes, strides of each view) of these dimensions, merged."""
        return collapse([sizes[d] for d in dimensions], [tuple(v.strides[d] for d in dimensions) for v in views])

    outer_sizes, outer_strides = part(outer)
    reduced_sizes, reduced_strides = part(reduced)
    if not reduced_sizes:
        reduced_sizes, reduced_strides = (1,), [(0,)] * len(views)
    where = {
        view: View(view.offset, (*out, *red))
        for view, out, red in zip(views, outer_strides, reduced_strides, strict=True)
    }
    names = (*(f"o{d}" for d in range(len(outer_sizes))), *(f"r{d}" for d in range(len(reduced_sizes))))
    space_sizes = (*outer_sizes, *reduced_sizes)
    space = Space(space_sizes, names, where, index_type(space_sizes, where.values()))
    seen = where[leading]
    column = bool(outer_sizes) and seen.strides[len(outer_sizes) - 1] == 1 and seen.strides[-1] != 1
    return space, len(outer_sizes), column


def walk_of(kernel: RowKernel, space: Space, outer: int, column: bool) -> tuple[int, ...]:
    """Numbers of the dimensions of the collapsed space that are outside the contiguous runs of a row, in the order of
    memory.

    These are the outer ones, and the reduced ones with larger strides than the smallest of these."""
    strides = [abs(stride) for stride in space.where[_leading(kernel)].strides]
    if column:
        return tuple(range(outer))
    apart = outer
    while apart < len(strides) - 1 and outer and strides[apart] > min(strides[:outer]):
        apart += 1
    return tuple(sorted(range(apart), key=lambda dimension: -strides[dimension]))


def _power_below(value: float, values: Sequence[int]) -> int:
    """The largest of `values` that is at most `value`; the first of them if all are larger."""
    return max([v for v in values if v <= value], default=values[0])


class Chooser:
    """Makes a RowShape from `choices` and from defaults for this device and these sizes. `tuning` declares the
    tunables."""

    def __init__(self, kernel: RowKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel = kernel
        self.plan = plan
        self.device = device
        self.choices = choices
        self.space, self.outer, self.column = row_space(kernel)
        self.walk = walk_of(kernel, self.space, self.outer, self.column)
        self.rows = math.prod(self.space.sizes[: self.outer])
        self.length = math.prod(self.space.sizes[self.outer :])
        if max(self.rows, self.length) > LARGEST_INT:
            raise CannotLower(f"row kernel {kernel.name}: more than 2^31 rows or elements in a row")
        self.tuning = Tuning(choices, declares_fixed=True)

    def shape(self) -> RowShape:
        """The shape; declares all tunables in `tuning`.

        A streamed row's softmax takes one pass by default, because reading it twice costs more than rescaling; for a
        row that stays on the chip it takes two."""
        shape = self._shape("two_pass")
        return self._shape("online") if shape.staging == "stream" else shape

    def _shape(self, softmax: str) -> RowShape:
        """The shape if a softmax is "online" or "two_pass" by default; declares the tunables in a new `tuning`."""
        self.tuning = Tuning(self.choices, declares_fixed=True)
        online = self._online(softmax)
        streamed = steps_of(self.kernel.stages, online=online)
        staged = steps_of(split_statistics(self.kernel.stages, self.length), online=online)
        outer = len(self.kernel.outer)
        passes = [step.values for step in staged if isinstance(step, ReducePass | EmitPass)]
        kept = tuple(values_of_all_passes(passes, outer))
        vector = self._vector()
        read_again = sum(isinstance(step, ReducePass | EmitPass) for step in streamed) > 1
        cluster = self._cluster(kept, vector) if read_again else 1
        most_state = max(state_bytes(staged), state_bytes(streamed))
        order = self._order(streamed) if cluster == 1 else "launches"
        wide = self._has_wide_columns(bool(kept))
        team = self._team(vector, bool(kept), most_state, cluster, self._usual_team(order, vector, wide))
        threads = self._threads(team, most_state, 128 if wide else 32)
        staging = self._staging(kept, vector, team, threads, cluster)
        order = order if self.column or team > 32 else "launches"
        part = self._part(team, vector) if order == "memory" else 0
        splits = self._splits(team, threads, vector, order == "behind") if cluster == 1 and not part else 1
        if splits > 1 or part:
            staging = "stream"
            self.tuning.withdraw("staging")
        light = wide and is_light(streamed)
        narrow = vector == 1 and not (self.column and part)
        usually = WIDE_IN_FLIGHT if light else NARROW_IN_FLIGHT if narrow else DEFAULT_IN_FLIGHT
        in_flight = self._in_flight(vector, usually) if staging == "stream" else DEFAULT_IN_FLIGHT
        steps = streamed if staging == "stream" else staged
        return RowShape(
            self.column,
            self.space,
            self.outer,
            rows=self.rows,
            length=self.length,
            team=team,
            threads=threads,
            vector=vector,
            staging=staging,
            splits=splits,
            steps=tuple(steps),
            kept=() if staging == "stream" else kept,
            cluster=1 if staging == "stream" else cluster,
            order=order if splits > 1 or part else "launches",
            walk=self.walk,
            part=part,
            resident=self.device.cores * 2048 // threads,
            in_flight=in_flight,
        )

    def _online(self, default: str) -> bool:
        """True if maximum and sum of a softmax are taken in one pass, by the tunable "softmax"; False for kernels
        without a softmax."""
        if not find_softmax_pairs(self.kernel.stages):
            return False
        values = ("online", "two_pass")
        meaning = "online: maximum and sum in one pass with rescaling; two_pass: one exponential an element"
        return self.tuning.text("softmax", values, default, "algorithm", meaning) == "online"

    def _vector(self) -> int:
        """Elements of one memory access, by the tunable "vector"; 1 for rows across memory."""
        if self.column:
            return 1
        loads = [leaf for leaf in leaves(map(value_of, self.kernel.stages)) if isinstance(leaf, Load)]
        moving = [leaf for leaf in loads if self.space.stride_of(leaf.view)]
        stores = [s for s in stores_in(self.kernel.stages) if self.space.stride_of(s.view)]
        dtypes: list[DType] = [leaf.dtype for leaf in moving]
        dtypes += [self.plan.buffers[store.buffer].dtype for store in stores]
        views = [leaf.view for leaf in moving] + [store.view for store in stores]
        legal = [1]
        for vector in (2, 4, 8):
            wide = any(self.space.is_aligned(view, vector) for view in views)
            if wide and vector <= widest_vector(dtypes) and self.space.sizes[-1] % vector == 0:
                legal.append(vector)
        return self.tuning.number("vector", legal, legal[-1], "vector", "elements of one memory access")

    def _cluster(self, kept: Sequence[Expr], vector: int) -> int:
        """Number of blocks that hold a row together, by the tunable "cluster"; 1 if clusters do not fit."""
        row_bytes = self.length * kept_bytes(kept)
        legal = [1]
        if not self.column and self.device.arch >= "sm_90" and kept:
            limit = max_shared_bytes(self.device.arch) - CLUSTER_STATE_BYTES
            fitting = [c for c in CLUSTERS if c * CLUSTER_LEAST_PART_BYTES <= row_bytes <= c * limit]
            legal += [c for c in fitting if self.length >= c * vector]
        if len(legal) > 1:
            meaning = "neighbouring blocks that hold a row together in shared memory or registers, and read it once"
            usual = self._usual_cluster(legal, vector, row_bytes)
            return self.tuning.number("cluster", legal, usual, "algorithm", meaning)
        return 1

    def _usual_cluster(self, legal: Sequence[int], vector: int, row_bytes: float) -> int:
        """The default cluster: the smallest of at least 4 blocks if a row fits no block, else 1.

        Each block's part must be so small that several share a multiprocessor: one alone reads nothing while it waits
        and stores."""
        alone = row_bytes <= max_shared_bytes(self.device.arch) - STATIC_SHARED_BYTES
        most = CLUSTER_PART_BYTES if vector > 1 else CLUSTER_NARROW_PART_BYTES
        fitting = [c for c in legal if c >= 4 and row_bytes <= c * most and self.rows * c >= 4 * self.device.cores]
        return 1 if alone or self._is_apart or not fitting else fitting[0]

    def _has_wide_columns(self, staged: bool) -> bool:
        """True if there are so many rows across memory, read once, that a block may take 128 of them."""
        return self.column and not staged and self.rows >= 256 * self.device.cores and self.length >= 1024

    def _team(self, vector: int, staged: bool, state_bytes: int, cluster: int, usual: int) -> int:
        """Number of threads that share a row, by the tunable "team". `usual` is its default if it is not 0."""
        values = COLUMN_TEAMS if self.column else CLUSTER_TEAMS if cluster > 1 else ROW_TEAMS
        pieces = math.ceil(self.length / (vector * cluster))
        default = self._default_column_team(staged) if self.column else self._default_row_team(pieces, vector, staged)
        if cluster > 1:
            default = 256 if cluster == 8 else 512
        default = usual or default
        legal = [v for v in values if v <= max(values[0], pieces)]
        if self.column:  # partial states stand in static shared memory, one a thread and reduction
            legal = [v for v in legal if v * 32 * state_bytes <= STATIC_SHARED_BYTES] or [1]
        default = _power_below(default, legal)
        return self.tuning.number("team", legal, default, "parallel", "threads that share a row")

    def _default_column_team(self, staged: bool) -> int:
        """The default team of rows across memory: 16 threads, or 32 where rows are kept on chip or too few to fill the
        device.

        A block of 1024 threads ends at once, and nothing is read meanwhile: with rows enough, teams of 16 took 0.77 of
        the time of 32 on an H200."""
        resident = self.device.cores * 2048
        most = 32 if staged or self.rows * 16 < resident else 16
        default = min(most, _power_below(max(1, self.length / 16), COLUMN_TEAMS))
        while default < 32 and default * self.rows * 2 <= resident and default * 2 <= self.length:
            default *= 2
        return default

    def _default_row_team(self, pieces: int, vector: int, staged: bool) -> int:
        """The default team of rows along memory with `pieces` vectors: a warp, more where rows are long or too few."""
        resident = self.device.cores * 2048
        default = 32 if pieces >= 32 else _power_below(pieces, ROW_TEAMS)
        per_thread = 8 if staged else 16
        if self.rows * 32 >= resident and pieces <= 32 * per_thread:
            return default
        default = _power_below(pieces / 2, ROW_TEAMS) if pieces > 64 else default
        narrow = staged and vector == 1
        while default > (64 if narrow else 128) and default // 2 * self.rows >= resident:
            held = (NARROW_MOST_ELEMENTS if default == 1024 else 16) if narrow else per_thread
            if pieces > default // 2 * held:
                break
            default //= 2
        return min(512, default) if self.rows * 2 <= self.device.cores else default  # several blocks a row

    def _threads(self, team: int, state_bytes: int, columns: int) -> int:
        """Threads of a block. For rows across memory by the tunable "columns" (default `columns`); for teams of at most
        a warp by "threads"; a larger team is a block."""
        if self.column:
            legal = [c for c in COLUMNS if c * team <= 1024 and c * team * state_bytes <= STATIC_SHARED_BYTES] or [32]
            usual = _power_below(columns, legal)
            return team * self.tuning.number("columns", legal, usual, "parallel", "neighbouring rows of a block")
        if team > 32:
            return team
        self.tuning.tunables.append(
            make_tunable("threads", BLOCKS, 256, "parallel", "threads of a block, several rows each")
        )
        return pick_number(self.choices, "threads", BLOCKS, 128 if self.rows * team < self.device.cores * 1024 else 256)

    def _staging(self, kept: Sequence[Expr], vector: int, team: int, threads: int, cluster: int) -> str:
        """The place where a row waits between its passes: "registers", "shared", or "stream" (nowhere: it is read
        again); by the tunable "staging" if several are legal."""
        legal = ["stream"] if cluster == 1 else []
        words = kept_bytes(kept) / 4  # 32-bit words of an element's kept values
        rounds = math.ceil(self.length / (team * vector * cluster))
        limit = min(REGISTER_WORDS, 65536 // threads - 24)
        shared = int(rounds * vector * words * 4 * threads)
        reserve = STATIC_SHARED_BYTES if cluster == 1 else CLUSTER_STATE_BYTES
        if kept and shared <= max_shared_bytes(self.device.arch) - reserve:
            legal.insert(0, "shared")
        if kept and rounds * vector * words <= limit:
            legal.insert(0, "registers")
        if not legal:
            return "stream"
        crowded = rounds * vector * words > limit / 1.5
        crowded = crowded or (cluster > 1 and vector == 1)  # many loads of one element each
        default = "shared" if crowded and "shared" in legal else legal[0]
        if len(legal) > 1:
            meaning = "where a row waits between its passes; stream reads it again from the caches"
            return self.tuning.text("staging", legal, default, "memory", meaning)
        return legal[0]

    def _order(self, steps: Sequence[Step]) -> str:
        """The order in which parts of rows are read: "launches", "behind" or "memory", by the tunable "order" if
        several are legal."""
        reductions = sum(isinstance(step, ReducePass) for step in steps)
        emits = any(isinstance(step, EmitPass) for step in steps)
        legal = ["launches"]
        if emits and not self.column and reductions == 1 and self.length * 4 >= PACED_LEAST_BYTES and self.rows > 1:
            legal.append("behind")
        if emits and reductions and self._may_walk_memory():
            legal.append("memory")
        if len(legal) == 1:
            return legal[0]
        meaning = (
            "launches: one a reading, row by row; behind: in one launch a row is read again while the second cache "
            "holds it; memory: one a reading in the order of memory, and one that combines"
        )
        usual = "launches"
        if "behind" in legal and self._is_behind_by_default(steps):
            usual = "behind"
        elif "memory" in legal and self._walks_memory_by_default():
            usual = "memory"
        return self.tuning.text("order", legal, usual, "algorithm", meaning)

    @property
    def _together(self) -> int:
        """Number of elements in each contiguous run of a row."""
        return 1 if self.column else math.prod(self.space.sizes[len(self.walk) :])

    @property
    def _is_apart(self) -> bool:
        """True if a row consists of several runs, with other rows between them."""
        return len(self.walk) > self.outer

    def _may_walk_memory(self) -> bool:
        """True if the rows may be read in memory order: their runs, the rows and all data must be long enough."""
        long = self.column or self._together >= STREAMED_TEAMS[0] * 16
        return long and self.length >= STREAMED_LEAST_ELEMENTS and self.rows * self.length * 4 >= STREAMED_LEAST_BYTES

    def _usual_team(self, order: str, vector: int, wide: bool) -> int:
        """The default team for this order of reading; 0 if it has none of its own."""
        if order == "memory" and not self.column:
            return _power_below(min(512, self._together / (4 * vector)), STREAMED_TEAMS)
        return 256 if order == "behind" else 8 if wide or order == "memory" else 0

    def _walks_memory_by_default(self) -> bool:
        """True for more data than L2 holds, in rows of large runs, and for much data in too few columns for a block
        each."""
        whole = self.rows * self.length * 4
        if self.column:
            return self.rows <= 16 * self.device.cores and whole >= STREAMED_COLUMN_BYTES
        return self._is_apart and self._together * 4 >= STREAMED_RUN_BYTES and whole > self.device.cache_bytes

    def _part(self, team: int, vector: int) -> int:
        """Vectors of a thread in a part that is read in memory order, by the tunable "part"."""
        if self.column:  # at least two blocks a multiprocessor
            usual = _power_below(self.length * self.rows / (64 * team * self.device.cores), PARTS)
        else:  # 16-bit elements take more arithmetic than memory
            usual = _power_below(PART_BYTES / (team * (4 * vector if vector < 8 else vector)), PARTS)
        return self.tuning.number("part", PARTS, usual, "parallel", "vectors of a thread in a part")

    def _is_behind_by_default(self, steps: Sequence[Step]) -> bool:
        """True for many rows that fit L2 one by one but no cluster; one block a row would read memory twice."""
        states = [item.state for step in steps if isinstance(step, ReducePass) for item in step.accumulators]
        shortest, longest = PACED_DEFAULT_BYTES
        if any(state.startswith("SoftmaxState") for state in states):
            shortest = PACED_SOFTMAX_BYTES
        fits = shortest <= self.length * 4 <= longest
        return fits and not self._is_apart and self.rows * 2 > self.device.cores

    def _in_flight(self, vector: int, usual: int) -> int:
        """Vectors that a thread of a streamed row loads before it uses the first, by the tunable "in_flight"."""
        legal = [n for n in IN_FLIGHT if n * vector <= MOST_IN_FLIGHT_ELEMENTS]
        meaning = "vectors that a thread loads before it uses the first"
        return self.tuning.number("in_flight", legal, usual, "memory", meaning)

    def _splits(self, team: int, threads: int, vector: int, paced: bool) -> int:
        """Number of blocks that share a row, by the tunable "splits"; `paced`: the row is read in one launch, "behind"
        itself."""
        loops = [step for step in self.kernel.stages if isinstance(step, Reduction)]
        legal = [1]
        while legal[-1] < 512 and loops and self.length // (legal[-1] * 2) >= max(4 * team, 512):
            legal.append(legal[-1] * 2)
        blocks = math.ceil(self.rows / (threads // team))
        default = 1
        if blocks * 2 <= self.device.cores:
            chunk = 256 if self.column else 4096
            wanted = 2 * self.device.cores / max(blocks, 1)
            nearest = wanted if self.column else math.sqrt(2) * wanted
            default = _power_below(min(nearest, self.length / chunk), legal)
        if paced:
            default = _power_below(max(2, self.length * 4 / PACED_PART_BYTES), legal)
        if len(legal) == 1:
            return 1
        meaning = "blocks that share a row, one launch more per dependent reduction"
        return self.tuning.number("splits", legal, default, "algorithm", meaning)
