"""The process in which one model runs: the reference's or a candidate's, never both, never the grader's truth.

It receives parameters and inputs as tensors over a link from the judge, calls `forward`, and writes the outputs into
memory that the judge owns. It reports times from a clock that was taken before the candidate's code was loaded. An
exception of the candidate is an answer; damage stays within this process. Imports torch.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.audit.acts.observed import Observations, OperatorRow, UnfinishedOutputs
from foundry.tools.grade.messages.runner import (
    Block,
    CallFacts,
    FileToLoad,
    Matched,
    MeanTime,
    ModelForm,
    RunnerCommands,
    RunnerOptions,
    RunTime,
    SharedImports,
    StateForm,
    Written,
)
from foundry.tools.grade.runner import copies, integrity, models, timed_calls
from foundry.tools.grade.runner.disguise import Disguise, pretend
from foundry.tools.grade.runner.failures import Refused, guarded, one_line
from foundry.tools.grade.runner.gpu_kernels import gpu_kernels
from foundry.tools.grade.runner.models import (
    LaidOut,
    Parameters,
    Variant,
    allow_tf32,
    candidate_maker,
    reference_maker,
    tensors_in_result,
    variant_in_strides,
    variant_of,
)
from foundry.tools.grade.runner.record import forget_peak, held_bytes, profiled, record_launches, record_ops
from foundry.tools.grade.runner.sentry import Sentry
from foundry.tools.grade.runner.tensors import (
    GpuBlocks,
    Slot,
    State,
    alias,
    changed,
    fewer_rows,
    fill_free_memory,
    keep,
    laid_out,
    many_calls,
    overwrite,
    plain_output,
    shared_elements,
    spoil,
    write,
)
from foundry.tools.process import procfs
from foundry.tools.process.channel import Channel, ChannelClosed, close_all
from foundry.tools.process.messages import Done, Message, NotDone, Packing, questions_of
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.protocol.orders import PROCESS_EVENTS, SPOILED, Layout
from foundry.tools.task import bundle, loading
from foundry.tools.task.gradients import gradients_of

if TYPE_CHECKING:
    from foundry.tools.grade.runner.ablate import Silenced
    from foundry.tools.grade.runner.observe import Observer

Clock = Callable[[], int]
COMMANDS = questions_of(RunnerCommands)  # made in the warm process, for judges too


class Runner(RunnerCommands):
    """Answers the judge's commands; one model per case (a case is one set of shapes and dtypes)."""

    def __init__(self, clock: Clock) -> None:
        """Holds no model and no inputs; the command "load" brings a model's text."""
        self._clock = clock
        self._device, self._side = torch.device("cpu"), torch_device_of("cpu")
        self._files: list[int] = []  # open files that came with the command at hand
        self._make: Callable[[ModelForm, Any], nn.Module] | None = None
        self._where = ""
        self._models: dict[int, nn.Module] = {}
        self._parameters = Parameters()
        self._slots: dict[int, Slot] = {}
        self._kept: list[list[torch.Tensor]] = []  # outputs of earlier checked calls, the last one at the end
        self._result: Any = None
        self._taken: list[torch.Tensor] | None = None
        self._timed: Slot | None = None  # inputs of the last timed sample's kept call
        self._state_reader = integrity.private()
        self._before: integrity.Snapshot = {}
        self._call_each = timed_calls.call_each
        self._last_span_ns: Callable[[], int] = lambda: 0  # ns of work on a GPU
        self._find_unfinished: Callable[..., UnfinishedOutputs] | None = None
        self._pads = timed_calls.Pads()
        self._variants: dict[str, Variant | LaidOut] = {}
        self._ground_bytes = 0  # bytes of GPU memory held before the model was there
        self._blocks = GpuBlocks()
        self._prepared_with = ""
        self._observer: Observer | None = None
        self._ablated: Silenced | None = None
        self._disguise: Disguise | None = None
        self._sentry: Sentry | None = None

    def make_ready(self) -> None:
        """Does slow preparations before a candidate's file is loaded, while none of its code has run in this
        process."""
        from foundry.tools.grade.runner import cuda_events

        cuda_events.rehearse()
        self._before = self._state_reader[0]()

    def leave(self) -> None:
        """Drops the blocks of a link that was closed; the next link has its own."""
        self._blocks = GpuBlocks()

    def serve(self, link: Channel) -> None:
        """Answers commands until the judge closes the link."""
        while True:
            text, self._files = link.receive_text()
            asked = COMMANDS.validate_json(text)
            answer: Message
            try:
                answer = Done(number=asked.number, answer=asked.answered_by(self))
            except Refused as refusal:
                answer = NotDone(number=asked.number, kind=refusal.kind, line=str(refusal))
            except RuntimeError as error:  # a launch of the candidate that PyTorch's next launch reports
                if "CUDA" not in str(error):
                    raise
                answer = NotDone(number=asked.number, kind="launch_failure", line=one_line(error, self._where))
            finally:
                close_all(self._files)
            link.send_text(answer.encoded())

    def load(self, what: FileToLoad, imports: SharedImports) -> bool:
        """Loads the reference's task, or the candidate's text, and compiles that if it compiles itself at import.

        Before a candidate's code runs, it sets up what observes the process and keeps a snapshot of its state. True if
        the driver refused the grader's own GPU kernels.
        """
        self._device, self._side = torch.device(what.device), torch_device_of(what.device)
        if not self._side.is_host:
            from foundry.tools.grade.runner import cuda_events  # takes its clock now, before the candidate's code runs

            cuda_events.settle()
            self._call_each, self._ground_bytes = cuda_events.call_each, self._side.allocated_bytes()
            self._last_span_ns, self._find_unfinished = cuda_events.last_span_ns, cuda_events.find_unfinished
        if what.task:
            self._make = reference_maker(what.task)
        else:
            brought = models.import_first(imports)  # effects of these imports are the task's own
            self._where = str(Path(f"{what.name}.py").absolute())
            self._sentry = Sentry(self._where)
            self._watch(what)
            self._before = (not brought and self._before) or self._state_reader[0]()
            make = self._guard("compile_error", lambda: candidate_maker(what.text, self._where))
            self._make = lambda form, arguments: make(arguments, form.seed, form.drawn_on)
        return not self._side.is_host and gpu_kernels().refused

    def _watch(self, what: FileToLoad) -> None:
        """Sets up what the audit asked for: an observer, a disguise of the process, or disabled native code."""
        if what.observe:
            from foundry.tools.grade.runner.observe import Observer

            self._observer = Observer(self._where)
        if what.disguise:
            self._disguise = Disguise()
        if what.ablate:
            from foundry.tools.grade.runner.ablate import install

            self._ablated = install(what.ablate)

    def build(self, case: int, form: ModelForm, init: Packing) -> None:
        """Constructs the model of a case as KernelBench does: same seed, same init arguments."""
        make = self._make
        if make is None:
            raise Refused("crash", "nothing is loaded")
        if self._observer is not None:
            self._observer.enter("build")
        self._drop_model(case)  # its memory first, then the new one's
        arguments = bundle.unpack(init, self._files[0])
        model = self._guard("crash", lambda: make(form, arguments))
        if form.dtype:
            model = model.to(loading.torch_dtype(form.dtype))
        if form.mode != "as_given":
            model.train(form.mode == "train")
        self._models[case] = self._guard("crash", lambda: model.to(self._device))

    def state(self, case: int, form: StateForm, steps: int, content: Packing, memory: Block) -> Matched:
        """Copies the reference's parameters and buffers in; says which could not be matched."""
        model, given = self._models[case], self._given(content, memory)
        return self._parameters.take(model, case, form, given, partial(self._guard, "crash"), steps=steps)

    def match(self, case: int, keys: list[str], shapes: list[tuple[int, ...]]) -> bool:
        """Begins a state that comes in parts. True if it is known which tensor takes the place of which."""
        return self._parameters.match(self._models[case], case, keys, shapes)

    def part(
        self, case: int, pieces: list[tuple[str, int, int]], compares: bool, content: Packing, memory: Block
    ) -> Matched:
        """Copies some tensors of a state in, or some rows of them; or only says which differ from the model's own."""
        given, guard = list(zip(pieces, self._given(content, memory), strict=True)), partial(self._guard, "crash")
        return self._parameters.take_part(self._models[case], case, given, guard, compares=compares)

    def matched(self, case: int, form: StateForm) -> None:
        """Ends a state that came in parts."""
        self._parameters.end_parts(self._models[case], case, form, partial(self._guard, "crash"))

    def _given(self, content: Packing, memory: Block) -> list[torch.Tensor]:
        """The tensors that a command brings: in a block of GPU memory, or in shared memory of the host."""
        if memory:
            return self._blocks.tensors(memory, self._files, content)
        return bundle.shared(content, self._files[0])

    def inputs(self, slot: int, case: int, content: Packing, memory: Block) -> None:
        """Stores a set of inputs: in GPU memory of the judge, or copied into this process.

        If they look like the slot's earlier set, they are written into the same tensors, past PyTorch's version
        counters: same objects, same addresses, other values. A candidate that recognises inputs by anything but
        content is wrong then.
        """
        known = self._slots.get(slot)
        is_alike = known is not None and (known.case, known.description) == (case, content)
        if memory:
            if not is_alike or self._files:  # otherwise the judge has written to the tensors' memory
                if self._files:
                    known = None
                    self._slots.pop(slot, None)  # its memory is freed before the new one's is mapped
                tensors = self._blocks.tensors(memory, self._files, content)
                arguments = bundle.from_description(content, tensors)
                self._slots[slot] = Slot(case, content, arguments, tensors, None)
            self._slots[slot].keep_contents()
            return
        originals = bundle.shared(content, self._files[0])
        if known is not None and is_alike:
            for tensor, original in zip(known.tensors, originals, strict=True):
                overwrite(tensor, original)
            known.originals = originals
        else:
            arguments = bundle.unpack(content, self._files[0], self._pads.add)
            self._slots[slot] = Slot(case, content, arguments, bundle.tensors_in(arguments), originals)
        self._slots[slot].keep_contents()

    def forget(self, slot: int, case: int) -> None:
        """Drops a slot, outputs and a case."""
        self._slots.pop(slot, None)
        self._drop_model(case)
        self._kept, self._result, self._taken = [], None, None
        gc.collect()
        bundle.give_back()

    def _drop_model(self, case: int) -> None:
        """Forgets a case's model and parameters, and all variants."""
        self._models.pop(case, None)
        self._variants.clear()
        self._parameters.drop(case)

    def token(self, given: str) -> str:
        """Stores, for a reference that serves many links, an identifier of its preparation; returns the last one."""
        self._prepared_with = given or self._prepared_with
        return self._prepared_with

    def _state_of(self, slot: Slot) -> State:
        """The state of the slot's case; an empty one if the case has none."""
        return self._parameters.states.get(slot.case) or State([], [], {}, [], list)

    def call(
        self,
        slot: int,
        poison: int,
        record: bool,
        buffers: bool,
        awake_s: float,
        layout: Layout,
        expect: list[TensorSpec],
        memory: Block,
    ) -> CallFacts:
        """One checked call; returns facts about its outputs, inputs and aliases.

        Memory is poisoned before it, or it is repeated for `awake` seconds. Buffers that forward updates are written
        behind the outputs. It may ask for inputs in another layout.
        """
        inputs = laid_out(self._slots[slot], layout)
        state, keys, operators = self._state_of(inputs), None, list[OperatorRow]()
        if awake_s:  # threads that slept before a short call come too late to race in it
            spared = None if self._side.is_host else [*inputs.tensors, *state.tensors]
            call, hold = partial(self._call_for_all, inputs), None if spared is None else gpu_kernels().hold
            work = partial(timed_calls.call_in_a_row, call, awake_s, self._clock, spared, hold)
            found = guarded("crash", work, self._where, self._device)
            tensors = found[: len(found) - len(inputs.writes)]
        else:
            state.reset()
            if poison != SPOILED:  # the command `spoil` has come before it
                fill_free_memory(expect, poison, self._device)
            result, operators = self._forward(inputs, record=record)
            tensors, keys = self._output_tensors(result), loading.dict_keys(result)
        updated = state.updated() if buffers else []
        results = [*tensors, *(tensor.clone() for tensor in inputs.written)]
        facts = CallFacts(
            written=self._write([*results, *updated], expect, memory),
            specs=self._specs(results),
            changed=changed(inputs),
            alias=alias(tensors, inputs, state.tensors, self._kept),
            shared=shared_elements(tensors),
            keys=keys,
            operators=operators,
        )
        keep(self._kept, results)
        return facts

    def _write(self, tensors: list[torch.Tensor], expect: list[TensorSpec], memory: Block) -> bool:
        """Copies outputs to the memory that the judge names. True if they have the wanted shapes and dtypes, else
        nothing is copied."""
        if memory:
            return write(tensors, expect, self._blocks.flats(memory, self._files, expect))
        return write(tensors, expect, bundle.flat_views(expect, self._files[0], writable=True))

    def soak(self, slot: int, calls: int, seconds: float) -> tuple[int, str]:
        """Makes many calls in a row, as in a user's loop, to find candidates that count calls or reuse output
        buffers in turns."""
        inputs = self._slots[slot]
        self._guard("crash", partial(models.say_mode, self._models[inputs.case], inputs.arguments))
        stop = self._clock() + int(1e9 * seconds)
        return many_calls(partial(self._call_plainly, inputs), inputs, calls, lambda: self._clock() > stop)

    def spoil(self, slot: int, blocks: bool) -> list[int]:
        """Leaves the last checked answer in free memory, with a few of its elements changed."""
        inputs = self._slots[slot]
        spared = [*inputs.tensors, *self._state_of(inputs).tensors, *itertools.chain(*self._kept)]
        return spoil(self._kept[-1], partial(self._call_plainly, inputs), spared, blocks=blocks)

    def _call_plainly(self, slot: Slot, *, waits: bool = True) -> list[torch.Tensor]:
        """The outputs of a call for which only buffers are prepared; unless it `waits`, a GPU may write them later."""
        self._state_of(slot).reset()
        return self._output_tensors(self._forward(slot, record=False, waits=waits)[0])

    def _call_for_all(self, slot: Slot) -> list[torch.Tensor]:
        """The outputs of a call, which a GPU may write later, and the inputs that it writes to."""
        return [*self._call_plainly(slot, waits=False), *slot.written]

    def look(self, back: int, expect: list[TensorSpec], memory: Block) -> Written:
        """Writes the present outputs of an earlier checked call; `back` = 1 is the last one."""
        return self._written(self._kept[-back] if back <= len(self._kept) else [], expect, memory)

    def inspect(self, thorough: bool) -> list[tuple[str, str, str]]:
        """Changes that the candidate made in this process since before it was loaded."""
        if not self._before:
            return []
        take, compare = self._state_reader
        found = compare(self._before, take(thorough=thorough))
        found += self._parameters.find_drift() if thorough else []
        events = [(PROCESS_EVENTS, *seen) for seen in (self._sentry.findings() if self._sentry else ())]
        return [*((*one, "") for one in found), *events]

    def operators(self, slot: int, on_fewer_rows: bool) -> list[OperatorRow]:
        """PyTorch's operators in one more call, or on fewer rows after a call that may tune (audit)."""
        inputs, rows = self._slots[slot], list[OperatorRow]()
        if not on_fewer_rows:
            return self._forward(inputs, record=True)[1]
        inputs.renew()
        arguments, left = fewer_rows(inputs.arguments)
        run = partial(loading.call, self._models[inputs.case], arguments)
        for _ in range(2 if left else 0):
            rows = record_ops(lambda: self._guard("crash", run))
        return rows

    def profile(self, slot: int, seconds: float) -> MeanTime:
        """For a diagnosis: what a forward takes, called again and again, and the kernels that it runs on a GPU."""
        inputs, on_gpu = self._slots[slot], not self._side.is_host

        def renew() -> None:
            """Renews the slot's inputs and waits for the device, outside of the measured time."""
            inputs.renew()
            self._side.synchronise()

        return profiled(partial(self._forward, inputs, record=False), seconds, self._clock, renew, on_gpu=on_gpu)

    def silenced(self) -> list[str]:
        """The native functions that were called in an ablated process (audit)."""
        return sorted(self._ablated.names) if self._ablated is not None else []

    def observe(self, slot: int, calls: int, late: int, timed: bool) -> Observations:
        """Observations of a watched process (audit)."""
        from foundry.tools.grade.runner.observe import WatchPlan, watched_calls

        observer, inputs = self._observer, self._slots[slot]
        if observer is None:
            raise Refused("crash", "nobody watches this process")
        call, hide = lambda record: self._forward(inputs, record=record)[1], partial(self._guard, "crash")
        forward = partial(loading.call, self._models[inputs.case], inputs.arguments)
        plan = WatchPlan(calls, late, timed)
        seen = watched_calls(observer, call, forward, hide, plan, clock=self._clock)
        if self._find_unfinished is not None:
            others = [*inputs.tensors, *self._state_of(inputs).tensors]
            work = partial(self._find_unfinished, partial(self._call_for_all, inputs), others)
            seen["unfinished"] = guarded("crash", work, self._where, self._device)
            seen["kernels"] = record_launches(lambda: self._forward(inputs, record=False))
        return seen

    def pretend(self, factor: float, alone: bool) -> list[str]:
        """Changes the speed of clocks, or disables other libraries, until told otherwise (audit)."""
        return pretend(factor, alone=alone)

    def copies(self, places: list[list[int]]) -> None:
        """Changes every copy in memory of some elements of the last answer (audit)."""
        for tensor, wanted in zip(self._kept[-1], places, strict=False):
            copies.spoil(tensor, wanted)

    def gradients(self, slot: int, learned: list[int], expect: list[TensorSpec], memory: Block) -> Written:
        """Gradients of a forward with a backward of its own; says so if it has none (audit)."""
        inputs = self._slots[slot]
        parameters = [self._state_of(inputs).tensors[index] for index in learned]
        self._written([], expect, memory)  # its memory is registered from now on, whatever the result
        found = self._guard("crash", partial(gradients_of, self._models[inputs.case], inputs.arguments, parameters))
        return Written(True) if found is None else replace(self._written(found, expect, memory), is_own=True)

    def run(self, slots: list[int], keep: int, take: bool, variant: str) -> RunTime:
        """One timed sample: a call on each slot. Time in ns by the clock from before the candidate was loaded."""
        chosen, sets = self._variants.get(variant), [self._slots[slot] for slot in slots]
        model = chosen.entered() if chosen else self._models[sets[0].case]
        inputs = [one.arguments for one in sets]
        self._result = self._taken = None  # its memory is free for this call, as in any loop
        self._timed = sets[keep]
        for one in sets:
            one.renew()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        def timed() -> int:
            """Makes the timed calls, keeps the result and returns nanoseconds."""
            self._result, nanoseconds = self._call_each(model, inputs, keep, self._clock)
            return nanoseconds

        nanoseconds = self._guard(self._side.failure, timed)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        if take:  # copied as soon as the clock has stopped: later writes do not count
            self._taken = [tensor.clone() for tensor in self._timed_results()]
        return RunTime(nanoseconds, self._last_span_ns(), faults)

    def vary(self, name: str, case: int, compile_mode: str, tf32: Tf32) -> None:
        """Adds a named variant of a case's model: compiled in its first call, or with other arithmetic."""
        self._variants[name] = self._guard("crash", partial(variant_of, self._models[case], compile_mode, tf32))

    def lay_out(self, name: str, case: int, slot: int, strides: list[tuple[int, ...]]) -> bool:
        """Adds a variant with results in other strides; False, and none added, if a call on a slot shows that they are
        usual."""
        self._slots[slot].renew()
        work = partial(variant_in_strides, self._models[case], strides, self._slots[slot].arguments)
        made = self._guard("crash", work)
        self._variants |= {name: made} if made is not None else {}
        return made is not None

    def memory(self, slot: int, forget: bool) -> int:
        """Bytes of a slot's inputs and its model's state; on a GPU also the calls' peak since `forget`."""
        inputs = self._slots[slot]
        found = held_bytes(inputs.tensors, self._models[inputs.case], self._ground_bytes, self._device)
        if forget:
            self._result = self._taken = None
            forget_peak(self._device)
        return found

    def collect(self, expect: list[TensorSpec], memory: Block) -> Written:
        """Writes the outputs of the last timed sample."""
        tensors = self._timed_results() if self._taken is None else self._taken
        return self._written(tensors, expect, memory)

    def _written(self, tensors: list[torch.Tensor], expect: list[TensorSpec], memory: Block) -> Written:
        """Writes tensors for the judge; returns their specs."""
        return Written(self._write(tensors, expect, memory), self._specs(tensors))

    def peek(self, places: list[list[int]]) -> list[list[float]]:
        """Some elements of the outputs of the last timed sample."""
        tensors = self._timed_results()
        return list(self._guard("wrong_result", lambda: timed_calls.elements(tensors, places)))

    def _timed_results(self) -> list[torch.Tensor]:
        """The outputs of the kept call of the last timed sample, and the inputs that it wrote to."""
        written = self._timed.written if self._timed is not None else []
        return [*self._output_tensors(self._result), *written]

    def perturb(self, slots: list[int], factor: float, shift: int) -> None:
        """Changes floating inputs in place and past their version counters, before a timed sample."""
        self._result = self._taken = None
        for inputs in [self._slots[slot] for slot in slots]:
            if inputs.originals is not None:  # otherwise the judge has written to the inputs' memory
                timed_calls.change(inputs.tensors, inputs.originals, factor, shift, inputs.writes)
            inputs.keep_contents()
            self._state_of(inputs).reset()  # every sample starts with the same buffers

    def _forward(self, slot: Slot, *, record: bool, waits: bool = True) -> tuple[Any, list[OperatorRow]]:
        """Calls the model on a slot; returns its result and, if `record`, PyTorch's operators."""
        slot.renew()
        model = self._models[slot.case]
        if not record:
            return self._guard("crash", lambda: loading.call(model, slot.arguments), waits=waits), []
        results, run = list[Any](), partial(loading.call, model, slot.arguments)
        operators = record_ops(lambda: results.append(self._guard("crash", run)))
        return results[0], operators

    def restore(self, slot: int) -> None:
        """Restores the inputs of a slot as the judge sent them."""
        inputs = self._slots[slot]
        for tensor, original in zip(inputs.tensors, inputs.originals or [], strict=True):
            overwrite(tensor, original)
        inputs.keep_contents()

    def _output_tensors(self, result: Any) -> list[torch.Tensor]:
        """The plain tensors of a result; raises Refused."""
        plain = map(plain_output, tensors_in_result(result, self._device))
        return list(self._guard("wrong_result", lambda: list(plain), waits=False))

    def _specs(self, tensors: list[torch.Tensor]) -> list[TensorSpec]:
        """Shapes, strides and dtypes of the tensors; a failure to read them counts as a wrong result."""
        return list(self._guard("wrong_result", lambda: [loading.spec_of(item) for item in tensors]))

    def _guard(self, kind: str, work: Callable[[], Any], *, waits: bool = True) -> Any:
        """Runs foreign code, on a GPU to its end if it `waits`; turns an exception into a Refused with its line."""
        with self._disguise or contextlib.nullcontext():
            return guarded(kind, work, self._where, self._device, waits=waits)


def serve(control: Channel) -> None:
    """Runs a runner process: each message brings a link (and options), which is served until it is closed."""
    procfs.close_all_but({0, 1, 2, control.fileno()})
    clock = time.perf_counter_ns
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    gc.disable()
    runner = Runner(clock)
    while True:
        text, handles = control.receive_text()
        options = RunnerOptions.model_validate_json(text)
        torch.set_num_threads(options.threads)
        allow_tf32("all" if options.tf32 else "none")
        if not handles:
            runner.make_ready()
            control.send_text(Done(answer=None).encoded())
            continue
        torch_device_of(options.device).make_context()  # while the other side's process does the same
        link = Channel.from_handle(handles[0])
        try:
            runner.serve(link)
        except ChannelClosed:
            link.close()
            runner.leave()
