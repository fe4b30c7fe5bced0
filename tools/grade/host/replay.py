"""Calls a kernel file in a process that a vendor's tool starts and watches, as compute-sanitizer and ncu do.

The module holds both sides: the main process (`Replaying`) and the program under the tool (`replay`).

python -m foundry.tools.grade.host.replay FOLDER with task.json and device.txt in it; kernel.py once `go` says so

Starting Python, torch and the tool takes seconds, and none of it needs the file. So a process may be started before it
is known which kernel it will call: it draws the task's inputs on the host, waits for the file and touches no device
until then. Inputs from the host are also the cheapest under a tool, which follows every kernel that would draw them.

Under a tool a call of a network may take a minute. So the program offers the GPU to waiting timings, between its steps
and, within a call, between two kernels.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from foundry.knowledge import codec
from foundry.knowledge.task import Task
from foundry.tools.grade.host.folders import prepare_folders
from foundry.tools.machine.holds import WaitClock
from foundry.tools.process.channel import close_all
from foundry.tools.process.child import Finished, Limits, run_command
from foundry.tools.process.environment import ALLOWED
from foundry.tools.process.linux import FILES, MEANS, SIGNALS, SYSCALLS
from foundry.tools.process.sandbox import LOCAL_TOOL, OPEN_TOOL, confine_tool, own_package

if TYPE_CHECKING:
    from foundry.tools.task.loading import LoadedTask

FORWARDS = 2  # the first may build or tune
LONG_S = 1.0  # seconds of a call under a tool; after a longer one there is no second call
SEED = 7
GO, KERNEL = "go", "kernel.py"
OFFER, ANSWER = "offer", "answer"  # the program asks whether it should wait, and goes on when it is answered
OFFER_POLL_S = 0.02
OFFER_S = 0.25  # seconds between two offers within a call
SMALLEST = "smallest"  # a file: one forward at the smallest of the task's shapes is wanted
AHEAD_BYTES = 256 << 20  # most bytes of inputs drawn on the host before there is a kernel: half a second
DRAWN = 1 << 24  # elements of a random tensor, where those after them repeat them
LIFE_S = 86_400.0  # seconds that a process may live, mostly waiting
TRIAL_S = 20.0
# Means left out for the program that a tool watches, and means taken instead; from the least to all. It always keeps
# a network of its own.
_TRIED: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    (frozenset(), ()),
    (frozenset({SYSCALLS}), (LOCAL_TOOL,)),
    (frozenset({SYSCALLS}), (OPEN_TOOL,)),
    (frozenset({SYSCALLS}), ()),
    (frozenset({SYSCALLS, FILES, SIGNALS}), ()),
    (frozenset(MEANS), ()),
)
_OURS = (sys.executable, "-c", "from foundry.tools.process.sandbox import gpu_answers; print('works', gpu_answers())")


@functools.cache
def means_under(
    tool: tuple[str, ...], means: tuple[str, ...], ours: tuple[str, ...] = _OURS, seconds: float = TRIAL_S
) -> tuple[str, ...]:
    """The subset of the sandbox `means` under which `tool` can run a program here.

    Tries ever fewer means on a program of ours that prints `works True`; no candidate takes part. Cached. The caller
    shares the device.
    """
    for left_out, instead in _TRIED:
        kept = (*(name for name in means if name not in left_out), *(instead if SYSCALLS in means else ()))
        with tempfile.TemporaryDirectory(prefix="foundry-trial-") as name:
            asked = prepare_folders("", Path(name)).sandbox
            environment = {key: value for key, value in os.environ.items() if key in ALLOWED} | own_package(Path(name))
            argv, limits = confine_tool(tool, ours, asked, kept), Limits(wall_s=seconds)
            if "works True" in run_command(argv, limits, cwd=Path(name), env=environment).output:
                return kept
    return means  # it does not work in any case


class Replaying:
    """One process under a tool, for one kernel file. It is confined by `means`; a tool that does not work under them is
    never run without: whether it worked is known from its output alone, and the candidate writes there too.

    `text`: a file that compiles itself must be known from the beginning, because it has a build folder of its own. With
    `smallest` it calls the kernel once, at the smallest of the shapes that the task declares.
    """

    def __init__(
        self,
        tool: Sequence[str],
        task: Task,
        device: str,
        means: Collection[str],
        *,
        text: str = "",
        smallest: bool = False,
    ) -> None:
        """Makes a temporary folder with the task and the pipes, and starts the tool around the replay program at
        once."""
        self._room = tempfile.TemporaryDirectory(prefix="foundry-replay-")
        self.folder = folder = Path(self._room.name)
        (folder / "task.json").write_text(codec.encode(task), encoding="utf-8")
        (folder / "device.txt").write_text(device)
        if smallest:
            (folder / SMALLEST).touch()
        self._go, self._offer, self._answer = (self._open_pipe(name) for name in (GO, OFFER, ANSWER))
        self._end, self._away = "", WaitClock()  # why it has to end, and what it was kept waiting
        self._deadline = float("inf")
        own = prepare_folders(text, folder)
        self._locks = own.locks
        environment = {key: value for key, value in os.environ.items() if key in ALLOWED} | own.environment
        environment |= own_package(folder)
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # each tensor a block of its own: what lies beyond shows
        environment["CUDA_LAUNCH_BLOCKING"] = "1"  # no work is under way between two kernels of a call
        watched = [sys.executable, "-m", "foundry.tools.grade.host.replay", str(folder)]
        argv = confine_tool(tool, watched, own.sandbox, means)
        limits = Limits(wall_s=LIFE_S, memory_bytes=64 << 30, cpu_s=3600, folder_bytes=2 << 30)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replay")
        self._done = self._thread.submit(
            run_command, argv, limits, cwd=folder, env=environment, stop=self._reason_to_stop
        )

    @property
    def is_waiting(self) -> bool:
        """True while the process runs, so that it can still be given a file."""
        return not self._done.done()

    def finish(self, text: str, seconds: float, pause: Callable[[], None] | None = None) -> Finished:
        """Gives the process the kernel file and waits for its end, at most `seconds`; returns its output and how it
        ended.

        `pause` is called each time the program offers the GPU; the time in it does not count.
        """
        (self.folder / KERNEL).write_text(text, encoding="utf-8")
        self._end, self._deadline = f"did not finish in {seconds:g} s", time.monotonic() + seconds
        os.write(self._go, b"\n")
        while not self._done.done():
            if select.select([self._offer], [], [], OFFER_POLL_S)[0]:
                asked = os.read(self._offer, 4096)
                if pause is not None:
                    with self._away.waiting():
                        pause()
                with contextlib.suppress(BlockingIOError):  # it does not listen
                    os.write(self._answer, asked)
        return self._done.result()

    def _open_pipe(self, name: str) -> int:
        """Makes a named pipe in the folder and opens it for both directions, non-blocking."""
        os.mkfifo(self.folder / name)
        return os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)

    def close(self) -> None:
        """Kills the process if it still runs, and removes its folder."""
        self._deadline, self._end = 0.0, self._end or "was not needed"
        self._thread.shutdown(wait=True)
        close_all([self._go, self._offer, self._answer, *self._locks])
        self._room.cleanup()

    def _reason_to_stop(self) -> str:
        """The reason to kill the process once its deadline, extended by the pauses, has passed; else ""."""
        return self._end if time.monotonic() - self._away.seconds > self._deadline else ""


def under_tool(
    tool: Sequence[str],
    task: Task,
    text: str,
    device: str,
    seconds: float,
    means: Collection[str],
) -> Finished:
    """Runs a tool around the replay of a kernel file, confined by `means`, for at most `seconds`; returns its
    output."""
    replaying = Replaying(tool, task, device, means, text=text)
    try:
        return replaying.finish(text, seconds)
    finally:
        replaying.close()


def replay(folder: Path) -> None:
    """The program under the tool: builds the task's inputs and the candidate's model as a benchmark does, and calls it.

    Waits for the kernel file after whatever does not need it. Prints "replayed" and where, at the end.
    """
    import torch

    from foundry.knowledge import codec
    from foundry.knowledge.task import Task
    from foundry.tools.grade.runner.models import candidate_maker
    from foundry.tools.process.torch_device import torch_device_of
    from foundry.tools.task.loading import call, placed
    from foundry.tools.task.repeating import Repeating

    task = codec.decode(Task, (folder / "task.json").read_text(encoding="utf-8"))
    device = torch.device((folder / "device.txt").read_text().strip())
    is_smallest = (folder / SMALLEST).exists()
    ahead = None if "cuda" in task.source else _draw_inputs(task, is_smallest)  # it may draw them on a device
    with (folder / GO).open("rb") as go:
        go.readline()
    end_work = torch_device_of(device).synchronise
    case, where, drawn = ahead or _draw_inputs(task, is_smallest)
    make = candidate_maker((folder / KERNEL).read_text(encoding="utf-8"), str(folder / "candidate.py"))
    model = make(case.init_arguments(SEED), SEED, "cpu").to(device)  # a sanitizer slows what a GPU draws
    if task.options.mode != "as_given":
        model.train(task.options.mode == "train")
    with torch.no_grad():
        _offer(folder, end_work)
        if is_smallest and not drawn:
            with Repeating(DRAWN) as drawing:  # under racecheck 2 billion elements took over ten seconds
                inputs = case.inputs(SEED, device)
            where += f" with inputs that repeat {DRAWN} elements" if drawing.repeats else ""
        else:
            inputs = placed(drawn, device) if drawn else case.inputs(SEED, device)
        for number in range(1 if is_smallest else FORWARDS):
            _offer(folder, end_work)
            began = time.monotonic()
            with _offering(folder, end_work):
                call(model, inputs)
                end_work()
            if not number and not is_smallest and time.monotonic() - began > LONG_S:
                where = f" in one call{where}"
                break
    print("replayed" + where, flush=True)


def _offer(folder: Path, end_work: Callable[[], object]) -> None:
    """Ends the GPU's work, offers it to waiting timings and blocks until the main process answers."""
    end_work()
    with (folder / OFFER).open("wb", buffering=0) as offer, (folder / ANSWER).open("rb", buffering=0) as answer:
        offer.write(b"\n")
        answer.read(1)


@contextlib.contextmanager
def _offering(folder: Path, end_work: Callable[[], object]) -> Iterator[None]:
    """A context manager in which a timer signal calls `_offer` every OFFER_S seconds."""

    is_over = False

    def offer(_number: int, _frame: FrameType | None) -> None:
        """Signal handler: offers the GPU, then sets the timer anew."""
        if is_over:  # the alarm rang while it was turned off
            return
        _offer(folder, end_work)
        signal.setitimer(signal.ITIMER_REAL, OFFER_S)  # not before this one was answered

    before = signal.signal(signal.SIGALRM, offer)
    signal.siginterrupt(signal.SIGALRM, False)  # what waits in the system goes on waiting
    signal.setitimer(signal.ITIMER_REAL, OFFER_S)
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _draw_inputs(task: Task, is_smallest: bool) -> tuple[LoadedTask, str, list[Any]]:
    """The case to call, " at n=8" for a shape not the task's own (else ""), its inputs on the host ([] above
    AHEAD_BYTES). `is_smallest`: the shape of fewest input bytes; further dtypes are left out."""
    import torch

    from foundry.tools.task import bundle, loading

    shapes = [{}, *(shape for shape, dtype in loading.case_keys(loading.load(task))[1:] if is_smallest and not dtype)]
    cases = [loading.load(task, overrides=shape) for shape in shapes]
    nowhere = torch.device("meta")  # has shapes and no values
    sizes = [sum(item.nbytes for item in bundle.tensors_in(case.inputs(SEED, nowhere))) for case in cases]
    at = sizes.index(min(sizes))
    where = f" at {', '.join(f'{name}={size}' for name, size in shapes[at].items())}" if at else ""
    return cases[at], where, cases[at].inputs(SEED) if sizes[at] <= AHEAD_BYTES else []


if __name__ == "__main__":
    replay(Path(sys.argv[1]))
