"""C++ text of row kernels: staging a row on chip, one loop for each pass, the team's reduction, and the stores once a
row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, register_type
from foundry.knowledge.compiler.cuda.rows.row_shape import RowShape
from foundry.knowledge.compiler.cuda.rows.steps import Accumulator, EmitPass, ReducePass, Step
from foundry.knowledge.compiler.cuda.space import (
    Known,
    Space,
    decompose,
    element_load,
    loop_over_vector,
    make_emitter,
    plan_loads,
    to_identifier,
    vector_type,
    wide_gathers,
)
from foundry.knowledge.compiler.ir.kernels import EmitRow, Expr, Let, Load, Plan
from foundry.knowledge.compiler.ir.scalar import Numbering
from foundry.knowledge.compiler.ir.views import Leaf, leaves
from foundry.knowledge.compiler.schedule.kept import kept_bytes

CHUNK = 4  # elements of a staged row that a state takes at once: merging costs more than adding


@dataclass(frozen=True)
class _Work:
    """Statements of a pass: before the loop over rounds, inside it, after it."""

    before: list[str]
    inside: list[str]
    after: list[str]

    @property
    def text(self) -> list[str]:
        """All statements of the pass, in order."""
        return [*self.before, *self.inside, *self.after]


def _joined(kinds: Sequence[str]) -> str:
    """C++ type of several states that are combined as one: nested pairs."""
    return kinds[0] if len(kinds) == 1 else f"Joined<{kinds[0]}, {_joined(kinds[1:])}>"


def _nested(names: Sequence[str]) -> str:
    """C++ initialiser of a value of `_joined` type from the variables `names`."""
    return names[0] if len(names) == 1 else f"{{{names[0]}, {_nested(names[1:])}}}"


def part_pointer(name: str) -> str:
    """The name of the kernel parameter that points to a reduction's states of the parts of rows."""
    return f"w_{to_identifier(name)}"


class RowText:
    """Writes the pieces of one kernel function, as lists of C++ statements. `names` (C++ text of the IR's named values)
    grows as reductions and lets define values."""

    def __init__(self, shape: RowShape, plan: Plan) -> None:
        self.shape = shape
        self.plan = plan
        self.names: dict[str, str] = {}
        self.index = shape.space.index
        self._scopes = 0
        self._slots = 0
        self._exchanged = 0  # bytes of the states that the blocks of a cluster have exchanged

    def locate_row(self, unit: str = "") -> list[str]:
        """Statements that define `lane` and `row` of this thread, and the row's outer indices. Threads beyond the last
        row repeat it, with `active` false.

        `unit`: C text of the number of the block's group of rows, if that is not the block's own number."""
        shape = self.shape
        shared_by = max(shape.splits, shape.cluster)
        unit = unit or ("blockIdx.x" if shared_by == 1 else f"(blockIdx.x / {shared_by})")
        per_block = shape.rows_per_block
        if shape.column:
            place, lane = f"(int){unit} * {per_block} + (int)threadIdx.x", "(int)threadIdx.y"
        elif shape.team > 32:
            place, lane = f"(int){unit}", "(int)threadIdx.x"
        else:
            place, lane = (
                f"(int){unit} * {per_block} + (int)threadIdx.x / {shape.team}",
                f"(int)threadIdx.x % {shape.team}",
            )
        lines = [f"const int lane = {lane};"]
        if shape.cluster > 1:
            lines.append(f"const int rank = (int)(blockIdx.x % {shape.cluster});")
            lines += self.bound_part("rank", shape.chunk)
        if shape.rows % per_block:
            lines.append(f"const bool active = {place} < {shape.rows};")
            lines.append(f"const int row = active ? {place} : {shape.rows - 1};")
        else:
            lines.append(f"const int row = {place};")
        sizes, names = shape.space.sizes[: shape.outer], shape.space.names[: shape.outer]
        return lines + (decompose("row", sizes, names, self.index) if sizes else [])

    def bound_part(self, part: str, chunk: int) -> list[str]:
        """Statements that define `begin` and `end`, the bounds in a row of its part number `part`; parts have `chunk`
        elements."""
        index = self.index
        return [
            f"const {index} begin = ({index}){part} * {chunk};",
            f"const {index} end = math::minimum<{index}>(begin + {chunk}, {self.shape.length});",
        ]

    @property
    def guard(self) -> str:
        """C condition that this thread's row exists; "" if all threads have one."""
        return "active" if self.shape.rows % self.shape.rows_per_block else ""

    def _scope(self) -> str:
        """A prefix for the names of temporaries that no earlier call has returned."""
        self._scopes += 1
        return f"q{self._scopes}_"

    def _slot(self, step: str = "step") -> str:
        """C text of the index of this thread's vector of a round in a staged array."""
        if self.shape.staging == "registers":
            return step
        flat = f"threadIdx.y * {self.shape.rows_per_block} + threadIdx.x" if self.shape.column else "threadIdx.x"
        return f"{step} * {self.shape.threads} + {flat}"

    def staged_bytes(self) -> int:
        """Dynamic shared memory of the staged values, in bytes."""
        if self.shape.staging != "shared":
            return 0
        return sum(self._region(expr) for expr in self.shape.kept)

    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: staged values, and behind them the states that blocks of a cluster
        have exchanged so far."""
        return self.staged_bytes() + self._exchanged

    def _region(self, expr: Expr) -> int:
        """Bytes of shared memory for a staged value of all rounds of a block, a multiple of 16."""
        return math.ceil(self.shape.rounds * self.shape.threads * self.shape.vector * kept_bytes([expr]) / 16) * 16

    def _kept_type(self, expr: Expr) -> str:
        """C++ type of a staged vector: loads are kept as stored, other values as registers."""
        if isinstance(expr, Load):
            return vector_type(expr.dtype, self.shape.vector)
        return f"Vec<{register_type(expr.dtype)}, {self.shape.vector}>"

    def stage_row(self, first: ReducePass | None = None) -> list[str]:
        """Statements that load a row once into registers or shared memory; [] if nothing is kept.

        The same loop adds up the reductions of `first`."""
        shape = self.shape
        if not shape.kept:
            return []
        lines: list[str] = []
        offset = 0
        if shape.staging == "shared" or shape.cluster > 1:
            lines.append("extern __shared__ __align__(16) unsigned char staged[];")
        for i, expr in enumerate(shape.kept):
            kind = self._kept_type(expr)
            if shape.staging == "shared":
                lines.append(f"{kind}* const x{i} = reinterpret_cast<{kind}*>(staged + {offset});")
                offset += self._region(expr)
            else:
                lines.append(f"{kind} x{i}[{shape.rounds}];")
        if first is None:
            return [*lines, *self._staged_loop(self._fill())]
        known = self._staged_known()
        read, fresh = self._loads(self._fresh_leaves(first.values, shape.kept), "", 1)
        work = [*read, *self._work(first, [*known, *fresh], "at", 1).text]
        return [*lines, *self.declare_states(first), *self._staged_loop([*self._fill(), *work])]

    def _fill(self) -> list[str]:
        """Statements for one round of staging: aligned contiguous loads are copied as vectors, other values computed
        element by element."""
        shape = self.shape
        whole: list[str] = []
        computed: list[tuple[int, Expr]] = []
        for i, expr in enumerate(shape.kept):
            if isinstance(expr, Load) and shape.vector > 1 and shape.space.is_aligned(expr.view, shape.vector):
                source = f"load_vec<{shape.vector}>(b_{expr.buffer} + {shape.space.offset(expr.view)})"
                whole.append(f"x{i}[{self._slot()}] = {source};")
            else:
                computed.append((i, expr))
        if not computed:
            return whole
        values = [expr for _, expr in computed]
        lines, known = self._loads(leaves(values), "", 1)
        reading, gathered = wide_gathers(shape.space, values, shape.vector, known)
        lines, known = [*lines, *reading], [*gathered, *known]
        body = make_emitter(self._inner(), known, {}, self._scope())
        body.reserve(values)
        for i, expr in computed:
            value = body.value(expr)
            if isinstance(expr, Load):
                value = CUDA_DIALECT.store(value, expr.dtype)
            body.lines.append(f"x{i}[{self._slot()}].at[j] = {value};")
        return [*whole, *lines, *loop_over_vector(self.shape.vector, body.lines)]

    @property
    def _whole_rounds(self) -> int:
        """Number of rounds in which every lane of the team has a vector."""
        shape = self.shape
        return 0 if shape.cluster > 1 else shape.length // (shape.team * shape.vector)

    def _staged_at(self, step: str) -> str:
        """C text of the index in the row of this lane's vector of round `step`."""
        shape = self.shape
        place = f"({step} * {shape.team} + lane)" + (f" * {shape.vector}" if shape.vector > 1 else "")
        return f"begin + {place}" if shape.cluster > 1 else place

    def _staged_loop(self, body: Sequence[str], first: int = 0) -> list[str]:
        """A loop that runs `body` for all rounds of the staged row from number `first`; a lane without a vector in a
        round skips it."""
        shape = self.shape
        flight = max(4, 16 // shape.vector) if shape.cluster > 1 else 4
        pragma = "#pragma unroll" if shape.staging == "registers" else f"#pragma unroll {flight}"
        exact = shape.length % (shape.team * shape.vector * shape.cluster) == 0
        stop = "end" if shape.cluster > 1 else str(shape.length)
        lines = [pragma, f"for (int step = {first}; step < {shape.rounds}; ++step) {{"]
        lines.append(f"const {self.index} at = {self._staged_at('step')};")
        if exact:
            return [*lines, *self._reduce_lines("at"), *body, "}"]
        # Without the test addresses of all rounds are held at once, which costs blocks where they are long to work out.
        plain = self._whole_rounds and len(shape.reduced_sizes) == 1
        test = f"step < {self._whole_rounds} || at < {stop}" if plain else f"at < {stop}"
        return [*lines, f"if ({test}) {{", *self._reduce_lines("at"), *body, "}", "}"]

    def _grouped_loop(self, step: ReducePass, group: int) -> list[str]:
        """A loop over the whole rounds of the staged row in which states take the values of `group` rounds at a time.
        Rounds that fill no group are left out."""
        found = self._fresh_leaves(step.values, self.shape.kept)
        loads, known = self._loads(found, "", 1)
        work = self._work(step, [*known, *self._staged_known("(step + u)")], "here", group)
        place = [f"const {self.index} here = {self._staged_at('(step + u)')};", *self._reduce_lines("here")]
        head = ["#pragma unroll", f"for (int u = 0; u < {group}; ++u) {{"]
        rounds = self._whole_rounds // group * group
        lines = ["#pragma unroll" if self.shape.staging == "registers" else "#pragma unroll 2"]
        lines.append(f"for (int step = 0; step < {rounds}; step += {group}) {{")
        return [*lines, *work.before, *head, *place, *loads, *work.inside, "}", *work.after, "}"]

    def _reduce_lines(self, at: str) -> list[str]:
        """Statements that define the indices of the reduced dimensions at index `at` of the row."""
        return decompose(at, self.shape.reduced_sizes, self.shape.reduced_names, self.index)

    def _inner(self) -> Space:
        """The space at element j of a vector."""
        space = self.shape.space
        return space.with_inner(f"({space.names[-1]} + j)") if self.shape.vector > 1 else space

    def _loads(self, found: Sequence[Leaf], subscript: str, rounds: int) -> tuple[list[str], Known]:
        """(statements that load the leaves at a vector, C text of each loaded leaf's element j).

        Leaves whose neighbours are apart in memory are left to the place where they are used. `subscript` is "[u]" if
        the values of `rounds` rounds are kept in arrays, which `_declare` declares."""
        shape = self.shape
        plan = plan_loads(shape.space, found, shape.vector)
        known: Known = []
        lines: list[str] = []
        size = f"[{rounds}]" if rounds > 1 else ""
        moving = [leaf for leaf in found if isinstance(leaf, Load) and leaf not in plan.vectors]
        for i, leaf in enumerate(plan.vectors):
            source = f"load_vec<{shape.vector}>(b_{leaf.buffer} + {shape.space.offset(leaf.view)})"
            lines.append(self._assign(vector_type(leaf.dtype, shape.vector), f"v{i}", size, subscript, source))
            known.append((leaf, element_load(f"v{i}{subscript}.at[j]", leaf.dtype)))
        for i, leaf in enumerate(moving):
            if leaf not in plan.broadcast and shape.vector > 1:
                continue  # neighbours are apart in memory
            source = element_load(f"b_{leaf.buffer}[{shape.space.offset(leaf.view)}]", leaf.dtype)
            lines.append(self._assign(register_type(leaf.dtype), f"s{i}", size, subscript, source))
            known.append((leaf, f"s{i}{subscript}"))
        return lines, known

    @staticmethod
    def _assign(kind: str, name: str, size: str, subscript: str, source: str) -> str:
        """A statement that assigns to an array's element if `size` is given, else defines a constant."""
        return f"{name}{subscript} = {source};" if size else f"const {kind} {name} = {source};"

    def _declare(self, found: Sequence[Leaf], rounds: int) -> list[str]:
        """Declarations of the arrays that `_loads` fills for `rounds` rounds."""
        shape = self.shape
        plan = plan_loads(shape.space, found, shape.vector)
        lines = [f"{vector_type(leaf.dtype, shape.vector)} v{i}[{rounds}];" for i, leaf in enumerate(plan.vectors)]
        moving = [leaf for leaf in found if isinstance(leaf, Load) and leaf not in plan.vectors]
        for i, leaf in enumerate(moving):
            if leaf in plan.broadcast or shape.vector == 1:
                lines.append(f"{register_type(leaf.dtype)} s{i}[{rounds}];")
        return lines

    def _staged_known(self, step: str = "step") -> Known:
        """Each staged expression with C text of its element j in round `step`."""
        known: Known = []
        for i, expr in enumerate(self.shape.kept):
            text = f"x{i}[{self._slot(step)}].at[j]"
            known.append((expr, element_load(text, expr.dtype) if isinstance(expr, Load) else text))
        return known

    def _fresh_leaves(self, values: Iterable[Expr], kept: Iterable[Expr]) -> list[Leaf]:
        """The loads in `values` that are not inside a kept value, each once: these must be read from memory."""
        numbering = Numbering()
        seen = {numbering.number(expr) for expr in kept}
        found: list[Leaf] = []
        stack = [numbering.number(value) for value in values][::-1]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            node = numbering.nodes[current]
            if isinstance(node, Load):
                found.append(node)
            stack.extend(reversed(numbering.children[current]))
        return found

    def loop_over_row(self, step: ReducePass | EmitPass, begin: str = "", end: str = "") -> list[str]:
        """Statements for one pass over the row: over what is staged, or a streamed loop over [begin, end) (the whole
        row by default)."""
        if self.shape.staging != "stream":
            once, constants = self._constants(step)
            fresh = self._fresh_leaves(step.values, self.shape.kept)
            lines, known = self._loads([leaf for leaf in fresh if leaf not in constants], "", 1)
            known += [*constants.items(), *self._staged_known()]
            one = [*lines, *self._work(step, known, "at", 1).text]
            group = max(1, CHUNK // self.shape.vector)
            if isinstance(step, EmitPass) or group == 1 or self._whole_rounds < group:
                return ["{", *once, *self._staged_loop(one), "}"] if once else self._staged_loop(one)
            rest = self._whole_rounds // group * group
            grouped = self._grouped_loop(step, group)
            return grouped if rest == self.shape.rounds else [*grouped, *self._staged_loop(one, rest)]
        shape = self.shape
        start = f"{begin} + lane * {shape.vector}" if begin else f"lane * {shape.vector}"
        stop = end or str(shape.length)
        stride = shape.team * shape.vector
        lines = ["{", f"{self.index} at = {start};"]
        if shape.length > stride * shape.in_flight:
            lines += [
                f"for (; at + {stride * (shape.in_flight - 1)} < {stop}; at += {stride * shape.in_flight}) {{",
                *self._round(step, shape.in_flight),
                "}",
            ]
        return [*lines, f"for (; at < {stop}; at += {stride}) {{", *self._round(step, 1), "}", "}"]

    def _constants(self, step: ReducePass | EmitPass) -> tuple[list[str], dict[Load, str]]:
        """(statements, C text by load) of loads for the stores of a staged row that are the same in all rounds. They
        are done once, before the loop, because in a round they would stand behind a test."""
        shape = self.shape
        found = self._fresh_leaves(step.values, shape.kept) if isinstance(step, EmitPass) else []
        loads = [leaf for leaf in found if isinstance(leaf, Load)]
        same = [leaf for leaf in loads if not any(shape.space.where[leaf.view].strides[shape.outer :])]
        lines = []
        for i, leaf in enumerate(same):
            source = element_load(f"b_{leaf.buffer}[{shape.space.offset(leaf.view)}]", leaf.dtype)
            lines.append(self._assign(register_type(leaf.dtype), f"c{i}", "", "", source))
        return lines, {leaf: f"c{i}" for i, leaf in enumerate(same)}

    def _round(self, step: ReducePass | EmitPass, rounds: int) -> list[str]:
        """Statements for `rounds` vectors of a streamed row: all loads, then all arithmetic."""
        found = self._fresh_leaves(step.values, ())
        if rounds == 1:
            lines, known = self._loads(found, "", 1)
            return [*self._reduce_lines("at"), *lines, *self._work(step, known, "at", 1).text]
        lines, known = self._loads(found, "[u]", rounds)
        stride = self.shape.team * self.shape.vector
        head = ["#pragma unroll", f"for (int u = 0; u < {rounds}; ++u) {{"]
        place = [f"const {self.index} here = at + u * {stride};", *self._reduce_lines("here")]
        work = self._work(step, known, "here", rounds)
        loading = [*self._declare(found, rounds), *head, *place, *lines, "}"]
        return [*loading, *work.before, *head, *place, *work.inside, "}", *work.after]

    def _work(self, step: ReducePass | EmitPass, known: Known, at: str, rounds: int) -> _Work:
        """Statements for a pass's arithmetic on a vector, or its stores. Reductions gather the values of all `rounds`
        in an array, which a state takes at once behind the loop."""
        if isinstance(step, EmitPass):
            return _Work([], self._stores(step, known), [])
        body = make_emitter(self._inner(), known, self.names, self._scope())
        body.reserve(step.values)
        before: list[str] = []
        after: list[str] = []
        place = f"u * {self.shape.vector} + j" if rounds > 1 else "j"
        for item in step.accumulators:
            state = self.state_name(item)
            value = f"({item.value_type})({body.value(item.value)})"
            if item.indexed:
                body.lines.append(f"{state}.add({value}, (int)({at} + j));")
                continue
            values = f"{state}_values"
            before.append(f"{item.value_type} {values}[{rounds * self.shape.vector}];")
            body.lines.append(f"{values}[{place}] = {value};")
            after.append(f"{state}.chunk({values});")
        return _Work(before, loop_over_vector(self.shape.vector, body.lines), after)

    def _stores(self, step: EmitPass, known: Known) -> list[str]:
        """Statements that compute and store a vector of each output of the pass, if this thread's row exists."""
        shape = self.shape
        inner = self._inner()
        body = make_emitter(inner, known, self.names, self._scope())
        body.reserve(step.values)
        before: list[str] = []
        after: list[str] = []
        for i, emit in enumerate(step.emits):
            dtype = self.plan.buffers[emit.store.buffer].dtype
            value = CUDA_DIALECT.store(body.value(emit.store.value), dtype)
            if shape.vector > 1 and shape.space.is_aligned(emit.store.view, shape.vector):
                before.append(f"{vector_type(dtype, shape.vector)} out{i};")
                body.lines.append(f"out{i}.at[j] = {value};")
                target = f"b_{emit.store.buffer} + {shape.space.offset(emit.store.view)}"
                after.append(f"write_vec<{shape.vector}>({target}, out{i});")
            else:
                body.lines.append(f"b_{emit.store.buffer}[{inner.offset(emit.store.view)}] = {value};")
        lines = [*before, *loop_over_vector(self.shape.vector, body.lines), *after]
        return [f"if ({self.guard}) {{", *lines, "}"] if self.guard else lines

    @staticmethod
    def state_name(item: Accumulator) -> str:
        """The C++ variable of a reduction's state."""
        return f"a_{to_identifier(item.name)}"

    def declare_states(self, step: ReducePass) -> list[str]:
        """Declarations of the states of a pass."""
        return [f"{item.state} {self.state_name(item)};" for item in step.accumulators]

    def combine(self, step: ReducePass) -> list[str]:
        """Statements that give all threads of a row's team the states of the whole row; [] for a team of one thread.

        If the threads meet at a barrier, all states use the same one. Each call takes new shared memory."""
        shape = self.shape
        states = [self.state_name(item) for item in step.accumulators]
        if shape.team == 1:
            return []
        if not shape.column and shape.team <= 32:
            return [f"{state} = reduce_lanes<{shape.team}>({state});" for state in states]
        self._slots += 1
        kind, met, slots = f"S_met{self._slots}", f"met{self._slots}", f"partials{self._slots}"
        count = shape.threads if shape.column else shape.team // 32
        call = f"reduce_column<{shape.team}, {shape.rows_per_block}>" if shape.column else f"reduce_block<{count}>"
        lines = [f"typedef {_joined([item.state for item in step.accumulators])} {kind};"]
        lines.append(f"{kind} {met} = {_nested(states)};" if len(states) > 1 else f"{kind} {met} = {states[0]};")
        lines.append(f"SHARED_STATES({kind}, {slots}, {count});")
        lines.append(f"{met} = {call}({met}, {slots});")
        lines += self._across_cluster(step, kind, met)
        rest = met
        for number, state in enumerate(states, 1):
            lines.append(f"{state} = {rest};" if number == len(states) else f"{state} = {rest}.first;")
            rest += ".second"
        return lines

    def _across_cluster(self, step: ReducePass, kind: str, met: str) -> list[str]:
        """Statements that combine the states of a cluster's blocks to those of the whole row; reserves the shared
        memory for their exchange."""
        if self.shape.cluster == 1:
            return []
        place = self.shared_bytes()
        self._exchanged += sum(math.ceil(item.state_bytes / 16) * 16 for item in step.accumulators)
        slot = f"reinterpret_cast<{kind}*>(staged + {place})"
        return [f"{met} = cluster::merge_blocks<{self.shape.cluster}>({met}, {slot});"]

    def define_results(self, step: ReducePass) -> list[str]:
        """Statements that define the named results of the states; records their variables in `names`."""
        lines = []
        for item in step.accumulators:
            for name, member in item.defines:
                self.names[name] = f"n_{to_identifier(name)}"
                lines.append(f"const auto {self.names[name]} = {self.state_name(item)}.{member};")
        return lines

    def merge_parts(self, step: ReducePass, parts: int, place: Callable[[str], str]) -> list[str]:
        """Statements that merge the states of a row's `parts` in a fixed order and define the results.

        `place(name)` is C text of the state of reduction `name` in part i."""
        lines = [*self.declare_states(step), f"for (int i = lane; i < {parts}; i += {self.shape.team}) {{"]
        lines += [f"{self.state_name(item)}.merge({place(item.name)});" for item in step.accumulators]
        return [*lines, "}", *self.combine(step), *self.define_results(step)]

    def keep_states(self, step: ReducePass, place: Callable[[str], str], *after: str) -> list[str]:
        """Statements by which one thread of the team writes each state to its `place(name)`, then runs `after`."""
        test = f"lane == 0 && {self.guard}" if self.guard else "lane == 0"
        kept = [f"{place(item.name)} = {self.state_name(item)};" for item in step.accumulators]
        return [f"if ({test}) {{", *kept, *after, "}"]

    def define_let(self, step: Let) -> list[str]:
        """Statements that define a named value once a row; records its variable in `names`."""
        body = make_emitter(self.shape.space, [], self.names, self._scope())
        value = body.value(step.value)
        self.names[step.name] = f"n_{to_identifier(step.name)}"
        return [*body.lines, f"const {register_type(step.value.dtype)} {self.names[step.name]} = {value};"]

    def emit_row(self, step: EmitRow, condition: str = "lane == 0") -> list[str]:
        """Statements that compute and store a row's single value, in the thread for which `condition` holds."""
        body = make_emitter(self.shape.space, [], self.names, self._scope())
        dtype = self.plan.buffers[step.store.buffer].dtype
        body.store(step.store, self.shape.space.offset, dtype)
        test = f"{condition} && {self.guard}" if self.guard else condition
        return [f"if ({test}) {{", *body.lines, "}"]

    def print_step(self, step: Step, *, begun: bool = False) -> list[str]:
        """Statements for a step of a kernel whose blocks see entire rows. With `begun`, the loop over the row was done
        by `stage_row`."""
        if isinstance(step, ReducePass):
            if begun:
                return [*self.combine(step), *self.define_results(step)]
            return [
                *self.declare_states(step),
                *self.loop_over_row(step),
                *self.combine(step),
                *self.define_results(step),
            ]
        if isinstance(step, EmitPass):
            return self.loop_over_row(step)
        owner = "lane == 0" if self.shape.cluster == 1 else "rank == 0 && lane == 0"
        return self.define_let(step) if isinstance(step, Let) else self.emit_row(step, owner)
