"""A warm process that has imported torch, and the workers forked from it in milliseconds.

The main process holds a `Zygote` and never imports torch itself. The zygote stays single-threaded and touches neither
CUDA nor OpenMP, so that forking from it is safe; each worker gets a session of its own, limits, and a channel. When
the main process ends in any way, the zygote sees the end of its channel, kills every worker with all it started, and
goes too. Processes that a worker left behind are adopted by the zygote and killed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from foundry.knowledge.errors import FoundryError, MissingTool
from foundry.tools.process import child as process
from foundry.tools.process import sandbox
from foundry.tools.process.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout, Message, close_all
from foundry.tools.process.child import POLL_S, Limits
from foundry.tools.process.linux import FILES, MEANS, NETWORK, SIGNALS
from foundry.tools.process.sandbox import Sandbox

START_S = 120.0  # import torch from a cold disk
FORK_S = 20.0
ERROR_BYTES = 1 << 20  # what a worker writes beyond this is dropped
FOLDER_POLL_S = 0.5  # how often the size of a worker's folders is read
_LEFT_OUT: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({NETWORK}),
    frozenset({NETWORK, FILES, SIGNALS}),
)
ALWAYS = ("session", "limits", "environment")  # isolation that needs nothing of the kernel's newer means

# Large temporaries of eager PyTorch otherwise go through mmap in some processes and not in others, which makes the
# same code several times slower by page faults and every speedup over it a fiction; passive waiting keeps one
# process's threads from spinning on the cores while another one is timed.
STEADY = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "OMP_DYNAMIC": "false",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's; its threads would be lost in a fork
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is a GPU must not initialise CUDA before a fork
}
# Nothing else of the user's environment, above all no key, reaches code that a model may have written.
ALLOWED = frozenset(
    {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "FOUNDRY_HOME"}
    | {"LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "FOUNDRY_BUILD_CACHE"}
    | {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}  # which GPU is the first: the one that is locked
    | {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TORCH_CUDA_ARCH_LIST"}
)
# torch._dynamo is what the first use of a dispatch mode or of export imports: a second in each worker otherwise.
PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.export",
    "foundry.tools.audit.acts.provenance",
    "foundry.tools.grade.runner.runner",
    "foundry.tools.grade.judge.judge",
    "foundry.tools.task.intake",
)


class WorkerDied(Exception):
    """A worker ended, or had to be ended, before it answered."""

    def __init__(self, outcome: str, evidence: str) -> None:
        self.outcome = outcome  # "crash" or "timeout"
        self.evidence = evidence
        super().__init__(evidence)


class Worker:
    """A forked process as the main process sees it. One request at a time; blocking, for use in a thread."""

    def __init__(
        self,
        zygote: Zygote,
        pid: int,
        channel: Channel,
        errors: int,
        limits: Limits,
        directory: Path | None,
        watched: Sequence[str] = (),
        folder_locks: Sequence[int] = (),
    ) -> None:
        self.pid = pid
        self.directory = directory
        self.channel = channel
        self.limits = limits
        self._watched = [Path(folder) for folder in watched]
        self._folder_locks = folder_locks
        self._next_look = 0.0
        self._zygote = zygote
        self._errors = errors
        self._ended = ""
        self._lock = threading.Lock()

    def request(
        self,
        message: Message,
        handles: Sequence[int] = (),
        *,
        timeout_s: float | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> tuple[Message, list[int]]:
        """Sends one message and waits for its answer, reading the worker's usage and calling `tick` meanwhile.

        Raises WorkerDied when the worker ends first, breaks a limit or sends no message; it is gone then.
        """
        seconds = self.limits.wall_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + seconds
        try:
            self.channel.send(message, handles)
            while not self.channel.ready(POLL_S):
                tick()
                if reason := self.excess():
                    self.end()
                    raise WorkerDied("crash", reason)
                if time.monotonic() > deadline:
                    self.end()
                    raise WorkerDied("timeout", f"did not finish in {seconds:g} s")
            return self.channel.receive(0.0)
        except (ChannelClosed, ChannelTimeout) as error:
            raise WorkerDied("crash", self.end()) from error
        except ChannelGarbled as error:
            self.end()
            raise WorkerDied("crash", f"sent something that is no answer: {error}") from error

    def excess(self) -> str:
        """Which limit the worker's tree breaks, in words, or ""; also bounds what it wrote."""
        if self._ended:
            return ""
        if os.fstat(self._errors).st_size > ERROR_BYTES:
            os.ftruncate(self._errors, 0)
        if reason := process.excess(self.pid, self.limits):
            return reason
        if time.monotonic() < self._next_look:
            return ""
        self._next_look = time.monotonic() + FOLDER_POLL_S
        return next((said for folder in self._watched if (said := process.folder_excess(folder, self.limits))), "")

    def end(self) -> str:
        """Kills the worker and all it started; returns how it had ended: `was killed by SIGSEGV: ...`."""
        with self._lock:
            if not self._ended:
                self._ended = self._zygote.end(self.pid)
                if last := self.last_words():
                    self._ended += f": {last}"
                self.channel.close()
                close_all([self._errors, *self._folder_locks])
            return self._ended

    @property
    def alive(self) -> bool:
        return not self._ended and self._zygote.is_alive(self.pid)

    def last_words(self) -> str:
        """The most telling line of what the worker wrote to its standard error, or ""."""
        size = os.fstat(self._errors).st_size
        tail = os.pread(self._errors, 8192, max(0, size - 8192)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip(" \x00")]
        telling = [line for line in lines if "rror" in line or "terminate called" in line or "corrupt" in line]
        return (telling or lines or [""])[-1][:300]


class Zygote:
    """The main process's handle on the warm process. Thread-safe. Close it, or leave it to die with this process.

    A warm process that dies is started again by the next fork. `isolation` names the means that candidates get here.
    """

    def __init__(self, threads: int, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = [sys.executable, "-P", "-m", "foundry.tools.process.warm"]
        self._preload = list(preload)
        self._settings = {**STEADY, "OMP_NUM_THREADS": str(threads), **environment}
        self._lock = threading.RLock()
        self._closed = False
        self._means: tuple[str, ...] = ()
        self.isolation: tuple[str, ...] = ()
        self._child, self._control = self._launch()

    @classmethod
    def start(
        cls, *, threads: int, preload: Sequence[str] = PRELOAD, environment: Mapping[str, str] | None = None
    ) -> Zygote:
        """Starts the process and waits until torch is imported (1.5 s warm). Raises MissingTool when it cannot be."""
        sandbox.prepare_gpu()
        zygote = cls(threads, preload, environment or {})
        zygote._agree_on_means()
        return zygote

    def _launch(self) -> tuple[subprocess.Popen[bytes], Channel]:
        ours, theirs = Channel.pair()
        errors = os.memfd_create("zygote")
        kept = {name: value for name, value in os.environ.items() if name in ALLOWED}
        child = subprocess.Popen(
            [*self._arguments, str(theirs.fileno()), *self._preload],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={**kept, **self._settings},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        sandbox.available()  # tried once, while torch is imported
        try:
            ours.receive(START_S)
        except (ChannelClosed, ChannelTimeout, ChannelGarbled) as error:
            child.kill()
            child.wait()
            ours.close()
            lines = os.pread(errors, 1 << 16, 0).decode(errors="replace").strip().splitlines()
            raise MissingTool(
                f"the worker process did not start: {lines[-1] if lines else error}", "check that torch imports"
            ) from error
        finally:
            os.close(errors)
        return child, ours

    def _agree_on_means(self) -> None:
        """Tries a candidate's sandbox on a worker of its own: what works there is what every candidate gets.

        Means after which Python or the GPU could not be used are left out: root in a user namespace cannot read other
        users' private files, and a driver may want what a sandbox hides.
        """
        best: tuple[tuple[str, ...], int] = ((), 0)
        for left_out in _LEFT_OUT:
            attempt = self._try_means([name for name in sandbox.available().active if name not in left_out])
            best = attempt if attempt[1] > best[1] else best
            if best[1] == sandbox.ALL_USABLE:
                break
        self._means = best[0]
        self.isolation = (*ALWAYS, *self._means)

    def _try_means(self, means: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """What was active in a worker that was to be confined by `means`, and how much still worked in it."""
        self._means = tuple(means)
        with tempfile.TemporaryDirectory() as folder:
            confined = Sandbox("candidate", temporary=folder)
            worker = self.fork("foundry.tools.process.sandbox:report", Limits(wall_s=FORK_S), sandbox=confined)
            try:
                answer, _ = worker.request({})
            except WorkerDied:
                return (), 0
            finally:
                worker.end()
        return tuple(name for name in MEANS if name in answer["active"]), int(answer["works"])

    def fork(
        self,
        entry: str,
        limits: Limits,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
        folder_locks: Sequence[int] = (),
    ) -> Worker:
        """A new worker running `entry` ("package.module:function", called with its Channel) in 6-9 ms.

        A sandbox confines it before the entry's module is imported, as far as the kernel can. `folder_locks` are open
        files that are closed when the worker has ended.
        """
        ours, theirs = Channel.pair()
        errors = os.memfd_create("worker")
        fcntl.fcntl(errors, fcntl.F_SETFL, os.O_APPEND)  # so that it can be cut short while it is written
        message: Message = {
            "op": "fork",
            "entry": entry,
            "limits": asdict(limits),
            "directory": str(directory) if directory else "",
            "environment": dict(environment or {}),
            "sandbox": asdict(sandbox) if sandbox else None,
            "means": list(self._means),
        }
        try:
            answer = self._ask(message, [theirs.fileno(), errors], again=True)
        finally:
            theirs.close()
        watched = sandbox.writable if sandbox else ()
        return Worker(self, int(answer["pid"]), ours, errors, limits, directory, watched, folder_locks)

    def end(self, pid: int) -> str:
        """Kills a worker's tree; returns how the worker ended, in words."""
        try:
            return str(self._ask({"op": "end", "pid": pid})["ended"])
        except FoundryError:  # the zygote is gone, and its workers with it
            return "ended with the worker process"

    def is_alive(self, pid: int) -> bool:
        return bool(self._ask({"op": "state", "pid": pid})["alive"])

    @property
    def pid(self) -> int:
        """Of the warm process, which is the parent of all workers."""
        return self._child.pid

    def close(self) -> None:
        """Ends the zygote and every worker."""
        with self._lock:
            self._closed = True
            self._bury()

    def _bury(self) -> None:
        self._control.close()
        try:
            self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill_tree(self._child.pid)
            self._child.wait()

    def _ask(self, message: Message, handles: Sequence[int] = (), *, again: bool = False) -> Message:
        """A request and its answer; with `again` a warm process that is gone is started anew, once."""
        with self._lock:
            try:
                self._control.send(message, handles)
                return self._control.receive(FORK_S)[0]
            except (ChannelClosed, ChannelTimeout, ChannelGarbled, OSError, ValueError) as error:
                if self._closed or not again:
                    raise FoundryError(f"the worker process is gone: {error}", "resume the run") from error
                self._bury()
                self._child, self._control = self._launch()
                return self._ask(message, handles)
