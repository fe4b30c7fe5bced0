"""The list of steps during fusion: which step reads and writes which buffer, which joins are legal, which values are
no longer stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from foundry.knowledge.compiler.ir.access import Step, last_states, reads, stores_of, with_stores, writes
from foundry.knowledge.compiler.ir.kernels import (
    Buffer,
    Emit,
    EmitRow,
    Kernel,
    MapKernel,
    RecurrentKernel,
    RowKernel,
    TorchCall,
)
from foundry.knowledge.targets import KernelForms, find_target

# Rewrite: use reduction epilogues even if they were slower on the H200 that was measured.
ANYWHERE = "reduce-with-result"


@dataclass
class FusionState:
    """The steps during fusion. `kept` names results of forward, `pinned` values of Recipe.materialise: both stay in
    memory. Operators named in `apart` join no attention and get no reduction epilogue."""

    buffers: dict[str, Buffer]
    steps: list[Step]
    kept: set[str]
    pinned: set[str]
    target: str
    apart: frozenset[str] = frozenset()
    gone: dict[str, bool] = field(default_factory=dict)  # value that left memory -> may be worth storing again
    tails_anywhere: bool = False  # the recipe has the rewrite ANYWHERE
    open_tails: bool = False  # the rewrite would change something
    tailed: list[str] = field(default_factory=list)  # results with a reduction epilogue
    _failed: dict[tuple[str, int, int], tuple[Step, Step]] = field(default_factory=dict)
    _touches: dict[int, tuple[Step, frozenset[str], frozenset[str]]] = field(default_factory=dict)
    _readers: dict[str, dict[int, Step]] = field(default_factory=dict)
    _writers: dict[str, int] = field(default_factory=dict)
    _places: dict[int, int] | None = None

    def __post_init__(self) -> None:
        """Enters the steps into the indices of readers and writers."""
        for step in self.steps:
            self._enter(step)

    # ------------------------------------------------ queries

    @property
    def forms(self) -> KernelForms:
        """The kernel forms and sizes that the target's templates support well."""
        return find_target(self.target).forms

    def reads(self, step: Step) -> frozenset[str]:
        """The names of the buffers that the step reads."""
        return self._buffers_of(step)[1]

    def writes(self, step: Step) -> frozenset[str]:
        """The names of the buffers that the step writes."""
        return self._buffers_of(step)[2]

    def _buffers_of(self, step: Step) -> tuple[Step, frozenset[str], frozenset[str]]:
        """(step, buffers read, buffers written), memoised by id; holding the step keeps its id unique."""
        known = self._touches.get(id(step))
        if known is None:
            known = self._touches[id(step)] = (step, frozenset(reads(step)), frozenset(writes(step)))
        return known

    def place(self, step: Step) -> int:
        """The step's index in execution order."""
        if self._places is None:
            self._places = {id(other): index for index, other in enumerate(self.steps)}
        return self._places[id(step)]

    def readers(self, name: str) -> list[Step]:
        """The steps that read a buffer, in execution order."""
        found = self._readers.get(name, {})
        return sorted(found.values(), key=self.place) if len(found) > 1 else list(found.values())

    def producers(self) -> Iterator[tuple[Kernel, str]]:
        """Yields each kernel with each buffer that it alone writes and that fusion may move. Follows changes made
        while it runs: a step that moved behind the present one may be missed, so repeat until nothing changes."""
        index = 0
        while index < len(self.steps):
            step = self.steps[index]
            if not isinstance(step, TorchCall):
                for name in [store.buffer for store in stores_of(step)]:
                    if self._writers[name] == 1 and name not in self.pinned:
                        yield step, name
                        if index >= len(self.steps) or self.steps[index] is not step:
                            break
            if index < len(self.steps) and self.steps[index] is step:
                index += 1

    def once(self, rule: str, first: Step, second: Step) -> bool:
        """True if this rule has not refused this pair of steps before."""
        return (rule, id(first), id(second)) not in self._failed

    def refuse(self, rule: str, first: Step, second: Step) -> None:
        """Records that this rule cannot join this pair of steps."""
        self._failed[rule, id(first), id(second)] = (first, second)

    def must_stay(self, name: str, without: Step) -> bool:
        """True if a value must stay in memory once the step `without` no longer reads it."""
        if name in self.kept or name in self.pinned:
            return True
        return any(step is not without for step in self._readers.get(name, {}).values())

    def joinable(self, first: Step, second: Step) -> list[Step] | None:
        """The steps between the two that must move after `second` when both join there. None if `second` depends on
        one of them, so that they cannot join."""
        late: list[Step] = []
        changed, read = set(self.writes(first)), set(self.reads(first))
        carried: set[str] = set()
        carried_reads: set[str] = set()
        for step in self.steps[self.place(first) + 1 : self.place(second)]:
            if self.reads(step) & changed or self.writes(step) & (changed | read):
                late.append(step)
                carried |= self.writes(step)
                carried_reads |= self.reads(step)
                changed |= self.writes(step)
                read |= self.reads(step)
        conflict = self.reads(second) & carried or self.writes(second) & (carried | carried_reads)
        return None if conflict else late

    # ------------------------------------------------ changes

    def _enter(self, step: Step) -> None:
        """Adds a step to the tables of readers and writers."""
        for name in self.reads(step):
            self._readers.setdefault(name, {})[id(step)] = step
        for name in self.writes(step):
            self._writers[name] = self._writers.get(name, 0) + 1

    def _leave(self, step: Step) -> None:
        """Removes a step from the tables of readers and writers."""
        for name in self.reads(step):
            self._readers[name].pop(id(step), None)
        for name in self.writes(step):
            self._writers[name] -= 1

    def replace_steps(self, old: list[Step], new: list[Step], steps: list[Step]) -> None:
        """Takes `old` out of the indexes of readers and writers, adds `new`, and sets the list to `steps`, which has
        them replaced."""
        for step in old:
            self._leave(step)
        for step in new:
            self._enter(step)
        self.steps = steps
        self._places = None

    def copy(self) -> FusionState:
        """A separate state with the same steps."""
        return replace(
            self,
            steps=list(self.steps),
            gone=dict(self.gone),
            tailed=list(self.tailed),
            _failed=dict(self._failed),
            _touches=dict(self._touches),
            _readers={},
            _writers={},
            _places=None,
        )

    def take(self, other: FusionState) -> None:
        """Takes over the steps of `other`, a changed copy of this state."""
        here, there = {id(step) for step in self.steps}, {id(step) for step in other.steps}
        old = [step for step in self.steps if id(step) not in there]
        self.replace_steps(old, [step for step in other.steps if id(step) not in here], list(other.steps))
        self.gone.update(other.gone)

    def swap(self, old: Step, new: Step) -> None:
        """Replaces one step by another in its place."""
        steps = list(self.steps)
        steps[self.place(old)] = new
        self.replace_steps([old], [new], steps)

    def remove(self, old: Step) -> None:
        """Removes one step."""
        self.replace_steps([old], [], [step for step in self.steps if step is not old])

    def join(self, first: Step, second: Step, late: list[Step], merged: Step, *, worth_cutting: bool) -> None:
        """Puts `merged` in the place of `second`, removes `first`, and moves the steps in `late` after it."""
        at = self.place(second)
        dropped = {id(first), id(second), *(id(step) for step in late)}
        before = [step for step in self.steps[:at] if id(step) not in dropped]
        lost = (self.writes(first) | self.writes(second)) - self.writes(merged)
        self.replace_steps([first, second], [merged], [*before, merged, *late, *self.steps[at + 1 :]])
        for name in sorted(lost):
            self.gone[name] = worth_cutting or self.gone.get(name, False)

    def join_readers(self, rule: str, merge: Callable[[MapKernel, str, Step], Kernel | None]) -> bool:
        """Joins each map with the first reader of a result for which `merge` (given map, name, reader) returns a
        kernel. True if one was joined."""
        changed = False
        for kernel, name in self.producers():
            for reader in self.readers(name) if isinstance(kernel, MapKernel) else ():
                assert isinstance(kernel, MapKernel)
                if not self.once(rule, kernel, reader):
                    continue
                late = self.joinable(kernel, reader)
                merged = None if late is None else merge(kernel, name, reader)
                if late is None or merged is None:
                    self.refuse(rule, kernel, reader)
                    continue
                self.join(kernel, reader, late, merged, worth_cutting=False)
                changed = True
                break
        return changed

    def drop_unread(self) -> None:
        """Drops stores of values that no step reads, and steps left without stores, until none is left; kept values
        stay."""
        changed = True
        while changed:
            changed = False
            for step in list(self.steps):
                wanted = {name for name in self.writes(step) if name in self.kept or self._readers.get(name)}
                if wanted == self.writes(step):
                    continue
                if not wanted:
                    self.remove(step)
                elif isinstance(step, TorchCall):
                    continue
                else:
                    self.swap(step, prune_stores(step, wanted.__contains__))
                changed = True


def prune_stores(kernel: Kernel, wanted: Callable[[str], bool]) -> Kernel:
    """The kernel without the stores whose buffer is not wanted."""
    states = last_states(kernel) if isinstance(kernel, RecurrentKernel) else []
    if all(wanted(name) for name in [*states, *(store.buffer for store in stores_of(kernel))]):
        return kernel
    if isinstance(kernel, RowKernel):
        stages = tuple(
            stage for stage in kernel.stages if not isinstance(stage, Emit | EmitRow) or wanted(stage.store.buffer)
        )
        return replace(kernel, stages=stages)
    if isinstance(kernel, RecurrentKernel):
        last_h, last_c = (name if wanted(name) else "" for name in (kernel.last_h, kernel.last_c))
        kernel = replace(kernel, last_h=last_h, last_c=last_c)
    return with_stores(kernel, tuple(store for store in kernel.stores if wanted(store.buffer)))
