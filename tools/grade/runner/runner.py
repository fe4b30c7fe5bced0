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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.audit.acts.observed import OperatorRow, UnfinishedOutputs
from foundry.tools.grade.messages import runner as messages
from foundry.tools.grade.messages.runner import ORDERS, RunnerAnswer, RunnerRefusal
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
    keep,
    laid_out,
    many_calls,
    overwrite,
    plain_output,
    poison,
    shared_elements,
    spoil,
    write,
)
from foundry.tools.process import procfs
from foundry.tools.process.channel import Channel, ChannelClosed, close_all
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol.orders import PROCESS_EVENTS, SPOILED
from foundry.tools.task import bundle, loading
from foundry.tools.task.gradients import gradients_of

if TYPE_CHECKING:
    from foundry.tools.grade.runner.ablate import Silenced
    from foundry.tools.grade.runner.observe import Observer

Clock = Callable[[], int]


class Runner:
    """Answers the judge's commands; one model per case (a case is one set of shapes and dtypes)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._device, self._side = torch.device("cpu"), torch_device_of("cpu")
        self._make: Callable[[messages.BuildOrder, Any], nn.Module] | None = None
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
        """Answers commands until the judge closes the link; the method `_NAME` carries out the command NAME."""
        while True:
            text, handles = link.receive_text()
            order = ORDERS.validate_json(text)
            answer: RunnerAnswer | RunnerRefusal
            try:
                answer = getattr(self, f"_{order.do}")(order, handles) or RunnerAnswer()
            except Refused as refusal:
                answer = RunnerRefusal(outcome=refusal.kind, line=str(refusal))
            except RuntimeError as error:  # a launch of the candidate that PyTorch's next launch reports
                if "CUDA" not in str(error):
                    raise
                answer = RunnerRefusal(outcome="launch_failure", line=one_line(error, self._where))
            finally:
                close_all(handles)
            link.send_text(answer.model_copy(update={"number": order.number}).encoded())

    def _load(self, order: messages.LoadOrder, handles: list[int]) -> messages.LoadAnswer:
        """The reference's task, or the candidate's text (compiling it, if it compiles itself at import)."""
        self._device, self._side = torch.device(order.device), torch_device_of(order.device)
        if not self._side.is_host:
            from foundry.tools.grade.runner import cuda_events  # takes its clock now, before the candidate's code runs

            cuda_events.settle()
            self._call_each, self._ground_bytes = cuda_events.call_each, self._side.allocated_bytes()
            self._last_span_ns, self._find_unfinished = cuda_events.last_span_ns, cuda_events.find_unfinished
        if order.task:
            self._make = reference_maker(order.task)
        else:
            brought = models.import_first(order.imports)  # effects of these imports are the task's own
            self._where = str(Path(f"{order.name}.py").absolute())
            self._sentry = Sentry(self._where)
            self._watch(order)
            self._before = (not brought and self._before) or self._state_reader[0]()
            make = self._guard("compile_error", lambda: candidate_maker(order.text, self._where))
            self._make = lambda order, arguments: make(arguments, order.seed, order.drawn_on)
        return messages.LoadAnswer(gpu_kernels_refused=not self._side.is_host and gpu_kernels().refused)

    def _watch(self, order: messages.LoadOrder) -> None:
        """Sets up what the audit asked for: an observer, a disguise of the process, or disabled native code."""
        if order.observe:
            from foundry.tools.grade.runner.observe import Observer

            self._observer = Observer(self._where)
        if order.disguise:
            self._disguise = Disguise()
        if order.ablate:
            from foundry.tools.grade.runner.ablate import install

            self._ablated = install(order.ablate)

    def _build(self, order: messages.BuildOrder, handles: list[int]) -> None:
        """Constructs the model of a case as KernelBench does: same seed, same init arguments."""
        make = self._make
        if make is None:
            raise Refused("crash", "nothing is loaded")
        if self._observer is not None:
            self._observer.enter("build")
        self._drop_model(order.case)  # its memory first, then the new one's
        arguments = bundle.unpack(order.init, handles[0])
        model = self._guard("crash", lambda: make(order, arguments))
        if order.dtype:
            model = model.to(loading.torch_dtype(order.dtype))
        if order.mode != "as_given":
            model.train(order.mode == "train")
        self._models[order.case] = self._guard("crash", lambda: model.to(self._device))

    def _state(self, order: messages.StateOrder, handles: list[int]) -> messages.MatchAnswer:
        """Copies the reference's parameters and buffers in; says which could not be matched."""
        model, given = self._models[order.case], self._given(order, handles)
        return self._parameters.take(model, order, given, partial(self._guard, "crash"))

    def _match(self, order: messages.MatchOrder, handles: list[int]) -> messages.MatchAnswer:
        """Begins a state that comes in parts: says whether it is known which tensor takes the place of which."""
        return self._parameters.match(self._models[order.case], order)

    def _part(self, order: messages.PartOrder, handles: list[int]) -> messages.MatchAnswer:
        """Copies some tensors of a state in, or some rows of them; or only says which differ from the model's own."""
        model, given = self._models[order.case], self._given(order, handles)
        return self._parameters.take_part(model, order, given, partial(self._guard, "crash"))

    def _matched(self, order: messages.MatchedOrder, handles: list[int]) -> None:
        """Ends a state that came in parts."""
        self._parameters.end_parts(self._models[order.case], order, partial(self._guard, "crash"))

    def _given(self, order: messages.StateOrder | messages.PartOrder, handles: list[int]) -> list[torch.Tensor]:
        if order.memory:
            return self._blocks.tensors(order.memory, handles, order.bundle)
        return bundle.shared(order.bundle, handles[0])

    def _inputs(self, order: messages.InputsOrder, handles: list[int]) -> None:
        """Stores a set of inputs: in GPU memory of the judge, or copied into this process.

        If they look like the slot's earlier set, they are written into the same tensors, past PyTorch's version
        counters: same objects, same addresses, other values. A candidate that recognises inputs by anything but
        content is wrong then.
        """
        description, number = order.bundle, order.slot
        slot = self._slots.get(number)
        is_alike = slot is not None and (slot.case, slot.description) == (order.case, description)
        if order.memory:
            if not is_alike or handles:  # otherwise the judge has written to the tensors' memory
                if handles:
                    slot = None
                    self._slots.pop(number, None)  # its memory is freed before the new one's is mapped
                tensors = self._blocks.tensors(order.memory, handles, description)
                arguments = bundle.from_description(description, tensors)
                self._slots[number] = Slot(order.case, description, arguments, tensors, None)
            self._slots[number].keep_contents()
            return
        originals = bundle.shared(description, handles[0])
        if slot is not None and is_alike:
            for tensor, original in zip(slot.tensors, originals, strict=True):
                overwrite(tensor, original)
            slot.originals = originals
        else:
            arguments = bundle.unpack(description, handles[0], self._pads.add)
            slot = Slot(order.case, description, arguments, bundle.tensors_in(arguments), originals)
            self._slots[number] = slot
        slot.keep_contents()

    def _forget(self, order: messages.ForgetOrder, handles: list[int]) -> None:
        """Drops a slot, outputs and a case."""
        self._slots.pop(order.slot, None)
        self._drop_model(order.case)
        self._kept, self._result, self._taken = [], None, None
        gc.collect()
        bundle.give_back()

    def _drop_model(self, case: int) -> None:
        self._models.pop(case, None)
        self._variants.clear()
        self._parameters.drop(case)

    def _token(self, order: messages.TokenOrder, handles: list[int]) -> messages.TokenAnswer:
        """Stores, for a reference that serves many links, an identifier of its preparation; returns the last one."""
        self._prepared_with = order.given or self._prepared_with
        return messages.TokenAnswer(token=self._prepared_with)

    def _state_of(self, slot: Slot) -> State:
        return self._parameters.states.get(slot.case) or State([], [], {}, [], list)

    def _call(self, order: messages.CallOrder, handles: list[int]) -> messages.CallAnswer:
        """One checked call; returns facts about its outputs, inputs and aliases.

        Memory is poisoned before it, or it is repeated for `awake` seconds. Buffers that forward updates are written
        behind the outputs. It may ask for inputs in another layout.
        """
        slot = laid_out(self._slots[order.slot], order.layout)
        state, keys, operators = self._state_of(slot), None, list[OperatorRow]()
        if order.awake_s:  # threads that slept before a short call come too late to race in it
            spared = None if self._side.is_host else [*slot.tensors, *state.tensors]
            call, hold = partial(self._call_for_all, slot), None if spared is None else gpu_kernels().hold
            work = partial(timed_calls.call_in_a_row, call, order.awake_s, self._clock, spared, hold)
            found = guarded("crash", work, self._where, self._device)
            tensors = found[: len(found) - len(slot.writes)]
        else:
            state.reset()
            if order.poison != SPOILED:  # the command `spoil` has come before it
                poison(order.expect, order.poison, self._device)
            result, operators = self._forward(slot, record=order.record)
            tensors, keys = self._output_tensors(result), loading.dict_keys(result)
        buffers = state.updated() if order.buffers else []
        results = [*tensors, *(tensor.clone() for tensor in slot.written)]
        answer = messages.CallAnswer(
            written=self._write([*results, *buffers], order, handles),
            specs=self._specs(results),
            changed=changed(slot),
            alias=alias(tensors, slot, state.tensors, self._kept),
            shared=shared_elements(tensors),
            keys=keys,
            operators=operators,
        )
        keep(self._kept, results)
        return answer

    def _write(self, tensors: list[torch.Tensor], order: messages.ExpectOrder[Any], handles: list[int]) -> bool:
        """Copies outputs to the memory that the judge names; see `tensors.write`."""
        wanted = order.expect
        if order.memory:
            return write(tensors, wanted, self._blocks.flats(order.memory, handles, wanted))
        return write(tensors, wanted, bundle.flat_views(wanted, handles[0], writable=True))

    def _soak(self, order: messages.SoakOrder, handles: list[int]) -> messages.SoakAnswer:
        """Makes many calls in a row, as in a user's loop, to find candidates that count calls or reuse output
        buffers in turns."""
        slot = self._slots[order.slot]
        self._guard("crash", partial(models.say_mode, self._models[slot.case], slot.arguments))
        stop = self._clock() + int(1e9 * order.seconds)
        done, found = many_calls(partial(self._call_plainly, slot), slot, order.calls, lambda: self._clock() > stop)
        return messages.SoakAnswer(calls=done, alias=found)

    def _spoil(self, order: messages.SpoilOrder, handles: list[int]) -> messages.PlacesAnswer:
        """Leaves the last checked answer in free memory, with a few of its elements changed."""
        slot = self._slots[order.slot]
        spared = [*slot.tensors, *self._state_of(slot).tensors, *itertools.chain(*self._kept)]
        found = spoil(self._kept[-1], partial(self._call_plainly, slot), spared, blocks=order.blocks)
        return messages.PlacesAnswer(places=found)

    def _call_plainly(self, slot: Slot, *, waits: bool = True) -> list[torch.Tensor]:
        """The outputs of a call for which only buffers are prepared; unless it `waits`, a GPU may write them later."""
        self._state_of(slot).reset()
        return self._output_tensors(self._forward(slot, record=False, waits=waits)[0])

    def _call_for_all(self, slot: Slot) -> list[torch.Tensor]:
        """The outputs of a call, which a GPU may write later, and the inputs that it writes to."""
        return [*self._call_plainly(slot, waits=False), *slot.written]

    def _look(self, order: messages.LookOrder, handles: list[int]) -> messages.WrittenAnswer:
        """Writes the present outputs of an earlier checked call; `back` = 1 is the last one."""
        tensors = self._kept[-order.back] if order.back <= len(self._kept) else []
        return self._written(tensors, order, handles)

    def _inspect(self, order: messages.InspectOrder, handles: list[int]) -> messages.InspectAnswer:
        """Changes that the candidate made in this process since before it was loaded."""
        if not self._before:
            return messages.InspectAnswer(differences=[])
        take, compare = self._state_reader
        found = compare(self._before, take(thorough=order.thorough))
        found += self._parameters.find_drift() if order.thorough else []
        events = [(PROCESS_EVENTS, *seen) for seen in (self._sentry.findings() if self._sentry else ())]
        return messages.InspectAnswer(differences=[*((*one, "") for one in found), *events])

    def _operators(self, order: messages.OperatorsOrder, handles: list[int]) -> messages.OperatorsAnswer:
        """PyTorch's operators in one more call."""
        return messages.OperatorsAnswer(operators=self._forward(self._slots[order.slot], record=True)[1])

    def _profile(self, order: messages.ProfileOrder, handles: list[int]) -> messages.ProfileAnswer:
        """For a diagnosis: what a forward takes, called again and again, and the kernels that it runs on a GPU."""
        slot, on_gpu = self._slots[order.slot], not self._side.is_host

        def renew() -> None:  # outside of the measured time
            slot.renew()
            self._side.synchronise()

        run = partial(self._forward, slot, record=False)
        return profiled(run, order.seconds, self._clock, renew, on_gpu=on_gpu)

    def _silenced(self, order: messages.SilencedOrder, handles: list[int]) -> messages.SilencedAnswer:
        """The native functions that were called in an ablated process (audit)."""
        return messages.SilencedAnswer(silenced=sorted(self._ablated.names) if self._ablated is not None else [])

    def _observe(self, order: messages.ObserveOrder, handles: list[int]) -> messages.ObserveAnswer:
        """Observations of a watched process (audit)."""
        from foundry.tools.grade.runner.observe import watched_calls

        observer, slot = self._observer, self._slots[order.slot]
        if observer is None:
            raise Refused("crash", "nobody watches this process")
        call, hide = lambda record: self._forward(slot, record=record)[1], partial(self._guard, "crash")
        forward = partial(loading.call, self._models[slot.case], slot.arguments)
        seen = watched_calls(observer, call, forward, hide, order, clock=self._clock)
        if self._find_unfinished is not None:
            others = [*slot.tensors, *self._state_of(slot).tensors]
            work = partial(self._find_unfinished, partial(self._call_for_all, slot), others)
            seen["unfinished"] = guarded("crash", work, self._where, self._device)
            seen["kernels"] = record_launches(lambda: self._forward(slot, record=False))
        return messages.ObserveAnswer(seen=seen)

    def _fewer(self, order: messages.OperatorsOrder, handles: list[int]) -> messages.OperatorsAnswer:
        """PyTorch's operators on fewer rows, after a call that may tune (audit)."""
        slot, operators = self._slots[order.slot], list[OperatorRow]()
        slot.renew()
        arguments, rows = fewer_rows(slot.arguments)
        run = partial(loading.call, self._models[slot.case], arguments)
        for _ in range(2 if rows else 0):
            operators = record_ops(lambda: self._guard("crash", run))
        return messages.OperatorsAnswer(operators=operators)

    def _pretend(self, order: messages.PretendOrder, handles: list[int]) -> messages.SilencedAnswer:
        """Changes the speed of clocks, or disables other libraries, until told otherwise (audit)."""
        return messages.SilencedAnswer(silenced=pretend(order.factor, alone=order.alone))

    def _copies(self, order: messages.CopiesOrder, handles: list[int]) -> None:
        """Changes every copy in memory of some elements of the last answer (audit)."""
        for tensor, places in zip(self._kept[-1], order.places, strict=False):
            copies.spoil(tensor, places)

    def _gradients(self, order: messages.GradientsOrder, handles: list[int]) -> messages.WrittenAnswer:
        """Gradients of a forward with a backward of its own; says so if it has none (audit)."""
        slot = self._slots[order.slot]
        learned = [self._state_of(slot).tensors[index] for index in order.learned]
        self._written([], order, handles)  # its memory is registered from now on, whatever the result
        found = self._guard("crash", partial(gradients_of, self._models[slot.case], slot.arguments, learned))
        if found is None:
            return messages.WrittenAnswer(written=True)
        return self._written(found, order, handles).model_copy(update={"is_own": True})

    def _run(self, order: messages.RunOrder, handles: list[int]) -> messages.RunAnswer:
        """One timed sample: a call on each slot. Time in ns by the clock from before the candidate was loaded."""
        slots = [self._slots[slot] for slot in order.slots]
        variant = self._variants.get(order.variant)
        model = variant.entered() if variant else self._models[slots[0].case]
        inputs, keep = [slot.arguments for slot in slots], order.keep
        self._result = self._taken = None  # its memory is free for this call, as in any loop
        self._timed = slots[keep]
        for slot in slots:
            slot.renew()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        def timed() -> int:
            self._result, nanoseconds = self._call_each(model, inputs, keep, self._clock)
            return nanoseconds

        nanoseconds = self._guard(self._side.failure, timed)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        if order.take:  # copied as soon as the clock has stopped: later writes do not count
            self._taken = [tensor.clone() for tensor in self._timed_results()]
        return messages.RunAnswer(ns=nanoseconds, device_ns=self._last_span_ns(), faults=faults)

    def _vary(self, order: messages.VaryOrder, handles: list[int]) -> messages.MadeAnswer:
        """Adds a named variant of a case's model."""
        tried: Any = ()
        if order.strides is not None:
            self._slots[order.slot].renew()
            tried = self._slots[order.slot].arguments
        made = self._guard("crash", lambda: variant_of(self._models[order.case], order, tried))
        self._variants |= {order.name: made} if made is not None else {}
        return messages.MadeAnswer(made=made is not None)

    def _memory(self, order: messages.MemoryOrder, handles: list[int]) -> messages.BytesAnswer:
        """Bytes of a slot's inputs and its model's state; on a GPU also the calls' peak since `forget`."""
        slot = self._slots[order.slot]
        found = held_bytes(slot.tensors, self._models[slot.case], self._ground_bytes, self._device)
        if order.forget:
            self._result = self._taken = None
            forget_peak(self._device)
        return messages.BytesAnswer(bytes=found)

    def _collect(self, order: messages.CollectOrder, handles: list[int]) -> messages.WrittenAnswer:
        """Writes the outputs of the last timed sample."""
        tensors = self._timed_results() if self._taken is None else self._taken
        return self._written(tensors, order, handles)

    def _written(
        self, tensors: list[torch.Tensor], order: messages.ExpectOrder[Any], handles: list[int]
    ) -> messages.WrittenAnswer:
        """Writes tensors for the judge; returns their specs."""
        return messages.WrittenAnswer(specs=self._specs(tensors), written=self._write(tensors, order, handles))

    def _peek(self, order: messages.PeekOrder, handles: list[int]) -> messages.PeekAnswer:
        """Some elements of the outputs of the last timed sample."""
        tensors = self._timed_results()
        found = self._guard("wrong_result", lambda: timed_calls.elements(tensors, order.places))
        return messages.PeekAnswer(elements=found)

    def _timed_results(self) -> list[torch.Tensor]:
        """The outputs of the kept call of the last timed sample, and the inputs that it wrote to."""
        written = self._timed.written if self._timed is not None else []
        return [*self._output_tensors(self._result), *written]

    def _perturb(self, order: messages.PerturbOrder, handles: list[int]) -> None:
        """Changes floating inputs in place and past their version counters, before a timed sample."""
        self._result = self._taken = None
        for number in order.slots:
            slot = self._slots[number]
            if slot.originals is not None:  # otherwise the judge has written to the inputs' memory
                timed_calls.change(slot.tensors, slot.originals, order.factor, order.shift, slot.writes)
            slot.keep_contents()
            self._state_of(slot).reset()  # every sample starts with the same buffers

    def _forward(self, slot: Slot, *, record: bool, waits: bool = True) -> tuple[Any, list[OperatorRow]]:
        """Calls the model on a slot; returns its result and, if `record`, PyTorch's operators."""
        slot.renew()
        model = self._models[slot.case]
        if not record:
            return self._guard("crash", lambda: loading.call(model, slot.arguments), waits=waits), []
        results, run = list[Any](), partial(loading.call, model, slot.arguments)
        operators = record_ops(lambda: results.append(self._guard("crash", run)))
        return results[0], operators

    def _restore(self, order: messages.RestoreOrder, handles: list[int]) -> None:
        """Restores the inputs of a slot as the judge sent them."""
        slot = self._slots[order.slot]
        for tensor, original in zip(slot.tensors, slot.originals or [], strict=True):
            overwrite(tensor, original)
        slot.keep_contents()

    def _output_tensors(self, result: Any) -> list[torch.Tensor]:
        """The plain tensors of a result; raises Refused."""
        plain = map(plain_output, tensors_in_result(result, self._device))
        return list(self._guard("wrong_result", lambda: list(plain), waits=False))

    def _specs(self, tensors: list[torch.Tensor]) -> list[TensorSpec]:
        return list(self._guard("wrong_result", lambda: [loading.spec_of(item) for item in tensors]))

    def _guard(self, kind: str, work: Callable[[], Any], *, waits: bool = True) -> Any:
        """Runs foreign code, on a GPU to its end if it `waits`; turns an exception into a Refused with its line."""
        with self._disguise or contextlib.nullcontext():
            return guarded(kind, work, self._where, self._device, waits=waits)


def serve(control: Channel) -> None:
    """Entry of a runner process: each message brings a link (and options), which is served until it is closed."""
    procfs.close_all_but({0, 1, 2, control.fileno()})
    clock = time.perf_counter_ns
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    gc.disable()
    runner = Runner(clock)
    while True:
        text, handles = control.receive_text()
        options = messages.RunnerOptions.model_validate_json(text)
        torch.set_num_threads(options.threads)
        allow_tf32("all" if options.tf32 else "none")
        if not handles:
            runner.make_ready()
            control.send_text(RunnerAnswer().encoded())
            continue
        torch_device_of(options.device).make_context()  # while the other side's process does the same
        link = Channel.from_handle(handles[0])
        try:
            runner.serve(link)
        except ChannelClosed:
            link.close()
            runner.leave()
