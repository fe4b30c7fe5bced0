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
    changed,
    fewer_rows,
    keep,
    laid_out,
    many_calls,
    memory_facts,
    overwrite,
    plain_output,
    poison,
    same_layout,
    spoil,
    write,
)
from foundry.tools.process import procfs
from foundry.tools.process.channel import Channel, ChannelClosed, Message, close_all
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol.orders import PROCESS_EVENTS, SPOILED
from foundry.tools.task import bundle, loading
from foundry.tools.task.gradients import gradients_of
from foundry.tools.words import words

if TYPE_CHECKING:
    from foundry.tools.grade.runner.ablate import Silenced
    from foundry.tools.grade.runner.observe import Observer

Command = Callable[[Message, list[int]], Message]
COMMANDS = words(  # of the judge's: a method each
    "load build state match part matched inputs restore forget token call run collect look perturb peek "
    "vary memory soak spoil inspect observe operators fewer copies gradients pretend profile"
)

Clock = Callable[[], int]


class Runner:
    """Answers the judge's commands; one model per case (a case is one set of shapes and dtypes)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._device, self._side = torch.device("cpu"), torch_device_of("cpu")
        self._make: Callable[[Message, Any], nn.Module] | None = None
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
        self._find_unfinished: Callable[..., Message] = lambda *_: {}
        self._pads = timed_calls.Pads()
        self._variants: dict[str, Variant | LaidOut] = {}
        self._ground_bytes = 0  # bytes of GPU memory held before the model was there
        self._blocks = GpuBlocks()
        self._prepared_with = ""
        self._observer: Observer | None = None
        self._silenced: Silenced | None = None
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
        commands: dict[str, Command] = {name: getattr(self, f"_{name}") for name in COMMANDS}
        while True:
            message, handles = link.receive()
            number = message.get("number")
            try:
                answer = commands[message["do"]](message, handles)
            except Refused as refusal:
                answer = {"refused": refusal.kind, "line": str(refusal)}
            except RuntimeError as error:  # a launch of the candidate that PyTorch's next launch reports
                if "CUDA" not in str(error):
                    raise
                answer = {"refused": "launch_failure", "line": one_line(error, self._where)}
            finally:
                close_all(handles)
            link.send({**answer, "number": number})

    def _load(self, message: Message, handles: list[int]) -> Message:
        """The reference's task, or the candidate's text (compiling it, if it compiles itself at import)."""
        self._device, self._side = torch.device(message["device"]), torch_device_of(message["device"])
        if not self._side.is_host:
            from foundry.tools.grade.runner import cuda_events  # takes its clock now, before the candidate's code runs

            cuda_events.settle()
            self._call_each, self._ground_bytes = cuda_events.call_each, self._side.allocated_bytes()
            self._last_span_ns, self._find_unfinished = cuda_events.last_span_ns, cuda_events.find_unfinished
        start = self._clock()
        if "task" in message:
            self._make = reference_maker(message)
        else:
            brought = models.import_first(*message.get("imports", [[]]))  # effects of these imports are the task's own
            self._where = str(Path(f"{message.get('name', 'candidate')}.py").absolute())
            self._sentry = Sentry(self._where)
            self._watch(message)
            self._before = (not brought and self._before) or self._state_reader[0]()
            self._make = self._guard("compile_error", lambda: candidate_maker(message["text"], self._where))
        refused = not self._side.is_host and gpu_kernels().refused
        return {"seconds": (self._clock() - start) / 1e9, "gpu_kernels_refused": refused}

    def _watch(self, message: Message) -> None:
        """Sets up what the audit asked for: an observer, a disguise of the process, or disabled native code."""
        if message.get("observe"):
            from foundry.tools.grade.runner.observe import Observer

            self._observer = Observer(self._where)
        if message.get("disguise"):
            self._disguise = Disguise()
        if message.get("ablate"):
            from foundry.tools.grade.runner.ablate import install

            self._silenced = install(message["ablate"])

    def _build(self, message: Message, handles: list[int]) -> Message:
        """Constructs the model of a case as KernelBench does: same seed, same init arguments."""
        make = self._make
        if make is None:
            raise Refused("crash", "nothing is loaded")
        if self._observer is not None:
            self._observer.enter("build")
        self._drop_model(message["case"])  # its memory first, then the new one's
        arguments = bundle.unpack(message["init"], handles[0])
        model = self._guard("crash", lambda: make(message, arguments))
        if message["dtype"]:
            model = model.to(loading.torch_dtype(message["dtype"]))
        if message["mode"] != "as_given":
            model.train(message["mode"] == "train")
        model = self._models[message["case"]] = self._guard("crash", lambda: model.to(self._device))
        return {"keys": list(model.state_dict()), "training": model.training}

    def _state(self, message: Message, handles: list[int]) -> Message:
        """Copies the reference's parameters and buffers in; says which could not be matched."""
        model, given = self._models[message["case"]], self._given(message, handles)
        return self._parameters.take(model, message, given, partial(self._guard, "crash"))

    def _match(self, message: Message, handles: list[int]) -> Message:
        """Begins a state that comes in parts: says whether it is known which tensor takes the place of which."""
        return self._parameters.match(self._models[message["case"]], message)

    def _part(self, message: Message, handles: list[int]) -> Message:
        """Copies some tensors of a state in, or some rows of them; or only says which differ from the model's own."""
        model, given = self._models[message["case"]], self._given(message, handles)
        return self._parameters.take_part(model, message, given, partial(self._guard, "crash"))

    def _matched(self, message: Message, handles: list[int]) -> Message:
        """Ends a state that came in parts."""
        return self._parameters.end_parts(self._models[message["case"]], message, partial(self._guard, "crash"))

    def _given(self, message: Message, handles: list[int]) -> list[torch.Tensor]:
        if "memory" in message:
            return self._blocks.tensors(message["memory"], handles, message["bundle"])
        return bundle.shared(message["bundle"], handles[0])

    def _inputs(self, message: Message, handles: list[int]) -> Message:
        """Stores a set of inputs: in GPU memory of the judge, or copied into this process.

        If they look like the slot's earlier set, they are written into the same tensors, past PyTorch's version
        counters: same objects, same addresses, other values. A candidate that recognises inputs by anything but
        content is wrong then.
        """
        description, number = message["bundle"], message["slot"]
        slot = self._slots.get(number)
        is_alike = slot is not None and slot.case == message["case"] and same_layout(slot.description, description)
        if "memory" in message:
            if not is_alike or handles:  # otherwise the judge has written to the tensors' memory
                if handles:
                    slot = None
                    self._slots.pop(number, None)  # its memory is freed before the new one's is mapped
                tensors = self._blocks.tensors(message["memory"], handles, description)
                arguments = bundle.from_description(description, tensors)
                self._slots[number] = Slot(message["case"], description, arguments, tensors, None)
            self._slots[number].keep_contents()
            return {}
        originals = bundle.shared(description, handles[0])
        if slot is not None and is_alike:
            for tensor, original in zip(slot.tensors, originals, strict=True):
                overwrite(tensor, original)
            slot.originals = originals
        else:
            arguments = bundle.unpack(description, handles[0], self._pads.add)
            slot = Slot(message["case"], description, arguments, bundle.tensors_in(arguments), originals)
            self._slots[number] = slot
        slot.keep_contents()
        return {}

    def _forget(self, message: Message, handles: list[int]) -> Message:
        """Drops a slot, outputs and, when asked, a case."""
        self._slots.pop(message.get("slot", -1), None)
        self._drop_model(message.get("case", -1))
        self._kept, self._result, self._taken = [], None, None
        gc.collect()
        bundle.give_back()
        return {}

    def _drop_model(self, case: int) -> None:
        self._models.pop(case, None)
        self._variants.clear()
        self._parameters.drop(case)

    def _token(self, message: Message, handles: list[int]) -> Message:
        """Stores, for a reference that serves many links, an identifier of its preparation; returns the last one."""
        self._prepared_with = message.get("given") or self._prepared_with
        return {"token": self._prepared_with}

    def _state_of(self, slot: Slot) -> State:
        return self._parameters.states.get(slot.case) or State([], [], {}, [], list)

    def _call(self, message: Message, handles: list[int]) -> Message:
        """One checked call; returns facts about its outputs, inputs and aliases.

        Memory is poisoned before it, or it is repeated for `awake` seconds. Buffers that forward updates are written
        behind the outputs. It may ask for inputs in another layout.
        """
        slot = self._slots[message["slot"]]
        slot = laid_out(slot, message.get("layout", ""))
        wanted = [bundle.spec_from(item) for item in message["expect"]]
        state = self._state_of(slot)
        if message.get("awake"):  # threads that slept before a short call come too late to race in it
            operators: list[Any] = []
            spared = None if self._side.is_host else [*slot.tensors, *state.tensors]
            call, hold = partial(self._call_for_all, slot), None if spared is None else gpu_kernels().hold
            work = partial(timed_calls.call_in_a_row, call, message["awake"], self._clock, spared, hold)
            found, keys = guarded("crash", work, self._where, self._device), {}
            tensors = found[: len(found) - len(slot.writes)]
        else:
            state.reset()
            if message["poison"] != SPOILED:  # the command `spoil` has come before it
                poison(wanted, message["poison"], self._device)
            result, operators = self._forward(slot, record=bool(message.get("record")))
            tensors, keys = self._output_tensors(result), {"keys": loading.dict_keys(result)}
        buffers = state.updated() if message.get("buffers") else []
        results = [*tensors, *(tensor.clone() for tensor in slot.written)]
        answer: Message = {
            "written": self._write([*results, *buffers], wanted, message, handles),
            "specs": [bundle.plain_spec(spec) for spec in self._specs(results)],
            "changed": changed(slot),
            **memory_facts(tensors, slot, state.tensors, self._kept),
            **keys,
            "operators": operators,
        }
        keep(self._kept, results)
        return answer

    def _write(
        self, tensors: list[torch.Tensor], wanted: list[TensorSpec], message: Message, handles: list[int]
    ) -> bool:
        """Copies outputs to the memory that the judge names; see `tensors.write`."""
        if "memory" in message:
            return write(tensors, wanted, self._blocks.flats(message["memory"], handles, wanted))
        return write(tensors, wanted, bundle.flat_views(wanted, handles[0], writable=True))

    def _soak(self, message: Message, handles: list[int]) -> Message:
        """Makes many calls in a row, as in a user's loop, to find candidates that count calls or reuse output
        buffers in turns."""
        slot = self._slots[message["slot"]]
        self._guard("crash", partial(models.say_mode, self._models[slot.case], slot.arguments))
        calls, stop = int(message["calls"]), self._clock() + int(1e9 * message["seconds"])
        done, found = many_calls(partial(self._call_plainly, slot), slot, calls, lambda: self._clock() > stop)
        return {"calls": done, "alias": found}

    def _spoil(self, message: Message, handles: list[int]) -> Message:
        """Leaves the last checked answer in free memory, with a few of its elements changed."""
        slot = self._slots[message["slot"]]
        spared = [*slot.tensors, *self._state_of(slot).tensors, *itertools.chain(*self._kept)]
        return {"places": spoil(self._kept[-1], partial(self._call_plainly, slot), spared, blocks=message["blocks"])}

    def _call_plainly(self, slot: Slot, *, waits: bool = True) -> list[torch.Tensor]:
        """The outputs of a call for which only buffers are prepared; unless it `waits`, a GPU may write them later."""
        self._state_of(slot).reset()
        return self._output_tensors(self._forward(slot, record=False, waits=waits)[0])

    def _call_for_all(self, slot: Slot) -> list[torch.Tensor]:
        """The outputs of a call, which a GPU may write later, and the inputs that it writes to."""
        return [*self._call_plainly(slot, waits=False), *slot.written]

    def _look(self, message: Message, handles: list[int]) -> Message:
        """Writes the present outputs of an earlier checked call; `back` = 1 is the last one."""
        back = int(message["back"])
        tensors = self._kept[-back] if back <= len(self._kept) else []
        return self._written(tensors, message, handles)

    def _inspect(self, message: Message, handles: list[int]) -> Message:
        """Changes that the candidate made in this process since before it was loaded."""
        if not self._before:
            return {"differences": []}
        take, compare = self._state_reader
        found: list[tuple[str, ...]] = list(compare(self._before, take(thorough=bool(message.get("thorough")))))
        found += [(PROCESS_EVENTS, *seen) for seen in (self._sentry.findings() if self._sentry else ())]
        if message.get("thorough"):
            found += self._parameters.find_drift()
        return {"differences": found}

    def _operators(self, message: Message, handles: list[int]) -> Message:
        """PyTorch's operators in one more call."""
        return {"operators": self._forward(self._slots[message["slot"]], record=True)[1]}

    def _profile(self, message: Message, handles: list[int]) -> Message:
        """For a diagnosis: what a forward takes, called again and again, and the kernels that it runs on a GPU."""
        slot, on_gpu = self._slots[message["slot"]], not self._side.is_host

        def renew() -> None:  # outside of the measured time
            slot.renew()
            self._side.synchronise()

        run = partial(self._forward, slot, record=False)
        return profiled(run, message["seconds"], self._clock, renew, on_gpu=on_gpu)

    def _observe(self, message: Message, handles: list[int]) -> Message:
        """Observations of a watched process; of an ablated one, the native functions that were called (audit)."""
        if self._silenced is not None:
            return {"silenced": sorted(self._silenced.names)}
        from foundry.tools.grade.runner.observe import watched_calls

        observer, slot = self._observer, self._slots[message["slot"]]
        if observer is None:
            raise Refused("crash", "nobody watches this process")
        call, hide = lambda record: self._forward(slot, record=record)[1], partial(self._guard, "crash")
        forward = partial(loading.call, self._models[slot.case], slot.arguments)
        answer = watched_calls(observer, call, forward, hide, message, clock=self._clock)
        if not self._side.is_host:
            others = [*slot.tensors, *self._state_of(slot).tensors]
            work = partial(self._find_unfinished, partial(self._call_for_all, slot), others)
            answer["unfinished"] = guarded("crash", work, self._where, self._device)
            answer["kernels"] = record_launches(lambda: self._forward(slot, record=False))
        return answer

    def _fewer(self, message: Message, handles: list[int]) -> Message:
        """PyTorch's operators on fewer rows, after a call that may tune (audit)."""
        slot, operators = self._slots[message["slot"]], []
        slot.renew()
        arguments, rows = fewer_rows(slot.arguments)
        run = partial(loading.call, self._models[slot.case], arguments)
        for _ in range(2 if rows else 0):
            operators = record_ops(lambda: self._guard("crash", run))
        return {"operators": operators, "rows": rows}

    def _pretend(self, message: Message, handles: list[int]) -> Message:
        """Changes the speed of clocks, or disables other libraries, until told otherwise (audit)."""
        return pretend(message)

    def _copies(self, message: Message, handles: list[int]) -> Message:
        """Changes every copy in memory of some elements of the last answer (audit)."""
        return {"spoiled": sum(map(copies.spoil, self._kept[-1], message["places"]))}

    def _gradients(self, message: Message, handles: list[int]) -> Message:
        """Gradients of a forward with a backward of its own; says so if it has none (audit)."""
        slot = self._slots[message["slot"]]
        learned = [self._state_of(slot).tensors[index] for index in message["learned"]]
        self._written([], message, handles)  # its memory is registered from now on, whatever the result
        found = self._guard("crash", partial(gradients_of, self._models[slot.case], slot.arguments, learned))
        return {"written": True} if found is None else {**self._written(found, message, handles), "is_own": True}

    def _run(self, message: Message, handles: list[int]) -> Message:
        """One timed sample: a call on each slot. Time in ns by the clock from before the candidate was loaded."""
        slots = [self._slots[slot] for slot in message["slots"]]
        variant = self._variants.get(message.get("variant", ""))
        model = variant.entered() if variant else self._models[slots[0].case]
        inputs, keep = [slot.arguments for slot in slots], int(message["keep"])
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
        if message.get("take"):  # copied as soon as the clock has stopped: later writes do not count
            self._taken = [tensor.clone() for tensor in self._timed_results()]
        return {"ns": nanoseconds, "device_ns": self._last_span_ns(), "faults": faults}

    def _vary(self, message: Message, handles: list[int]) -> Message:
        """Adds a named variant of a case's model, tried with a slot's inputs if one is named."""
        tried: Any = ()
        if "slot" in message:
            self._slots[message["slot"]].renew()
            tried = self._slots[message["slot"]].arguments
        made = self._guard("crash", lambda: variant_of(self._models[message["case"]], message, tried))
        self._variants |= {message["name"]: made} if made is not None else {}
        return {"made": made is not None}

    def _memory(self, message: Message, handles: list[int]) -> Message:
        """Bytes of a slot's inputs and its model's state; on a GPU also the calls' peak since `forget`."""
        slot = self._slots[message["slot"]]
        found = held_bytes(slot.tensors, self._models[slot.case], self._ground_bytes, self._device)
        if message["forget"]:
            self._result = self._taken = None
            forget_peak(self._device)
        return {"bytes": found}

    def _collect(self, message: Message, handles: list[int]) -> Message:
        """Writes the outputs of the last timed sample."""
        tensors = self._timed_results() if self._taken is None else self._taken
        return self._written(tensors, message, handles)

    def _written(self, tensors: list[torch.Tensor], message: Message, handles: list[int]) -> Message:
        """Writes tensors for the judge; returns their specs."""
        wanted = [bundle.spec_from(item) for item in message["expect"]]
        specs = [bundle.plain_spec(spec) for spec in self._specs(tensors)]
        return {"specs": specs, "written": self._write(tensors, wanted, message, handles)}

    def _peek(self, message: Message, handles: list[int]) -> Message:
        """Some elements of the outputs of the last timed sample."""
        tensors = self._timed_results()
        return {"elements": self._guard("wrong_result", lambda: timed_calls.elements(tensors, message["places"]))}

    def _timed_results(self) -> list[torch.Tensor]:
        """The outputs of the kept call of the last timed sample, and the inputs that it wrote to."""
        written = self._timed.written if self._timed is not None else []
        return [*self._output_tensors(self._result), *written]

    def _perturb(self, message: Message, handles: list[int]) -> Message:
        """Changes floating inputs in place and past their version counters, before a timed sample."""
        self._result = self._taken = None
        for number in message["slots"]:
            slot = self._slots[number]
            if slot.originals is not None:  # otherwise the judge has written to the inputs' memory
                how = float(message["factor"]), int(message["shift"]), slot.writes
                timed_calls.change(slot.tensors, slot.originals, *how)
            slot.keep_contents()
            self._state_of(slot).reset()  # every sample starts with the same buffers
        return {}

    def _forward(self, slot: Slot, *, record: bool, waits: bool = True) -> tuple[Any, list[Any]]:
        """Calls the model on a slot; returns its result and, if `record`, PyTorch's operators."""
        slot.renew()
        model = self._models[slot.case]
        if not record:
            return self._guard("crash", lambda: loading.call(model, slot.arguments), waits=waits), []
        results, run = list[Any](), partial(loading.call, model, slot.arguments)
        operators = record_ops(lambda: results.append(self._guard("crash", run)))
        return results[0], operators

    def _restore(self, message: Message, handles: list[int]) -> Message:
        """Restores the inputs of a slot as the judge sent them."""
        slot = self._slots[message["slot"]]
        for tensor, original in zip(slot.tensors, slot.originals or [], strict=True):
            overwrite(tensor, original)
        slot.keep_contents()
        return {}

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
        message, handles = control.receive()
        torch.set_num_threads(int(message["threads"]))
        allow_tf32("all" if message.get("tf32") else "none")
        if not handles:
            runner.make_ready()
            control.send({})
            continue
        torch_device_of(message.get("device", "cpu")).make_context()  # while the other side's process does the same
        link = Channel.from_handle(handles[0])
        try:
            runner.serve(link)
        except ChannelClosed:
            link.close()
            runner.leave()
