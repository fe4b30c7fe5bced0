"""A warm process that has imported torch, and the workers forked from it in milliseconds.

The main process holds a `Zygote` and never imports torch itself. The zygote stays single-threaded and touches neither
CUDA nor OpenMP, so that forking from it is safe; each worker gets a session of its own, limits, and a channel. When
the main process ends in any way, the zygote sees the end of its channel, kills every worker with all it started, and
goes too. Processes that a worker left behind are adopted by the zygote and killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from foundry.knowledge.errors import FoundryError, MissingTool
from foundry.tools import process, sandbox
from foundry.tools.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout, Message, close_all
from foundry.tools.process import POLL_S, Limits
from foundry.tools.sandbox import Sandbox
from foundry.tools.sandbox_kernel import MEANS, NETWORK

START_S = 120.0  # import torch from a cold disk
FORK_S = 20.0
CRASHED = 70  # exit code of a worker whose entry function raised
ERROR_BYTES = 1 << 20  # what a worker writes beyond this is dropped
FOLDER_POLL_S = 0.5  # how often the size of a worker's folders is read
DEATH_S = 3.0  # a killed process may be held up in a driver; it is reaped later then
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
    | {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TORCH_CUDA_ARCH_LIST"}
)
# torch._dynamo is what the first use of a dispatch mode or of export imports: a second in each worker otherwise.
PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.export",
    "foundry.tools.audit.provenance",
    "foundry.tools.runner",
    "foundry.tools.judge",
    "foundry.tools.intake",
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
        leases: Sequence[int] = (),
    ) -> None:
        self.pid = pid
        self.directory = directory
        self.channel = channel
        self.limits = limits
        self._watched = [Path(folder) for folder in watched]
        self._leases = leases
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
                close_all([self._errors, *self._leases])
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
        self._arguments = [sys.executable, "-P", "-m", "foundry.tools.zygote"]
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

        Root in a user namespace cannot read other users' private files; where Python lies in such a folder, it goes
        without the namespaces.
        """
        means = sandbox.available().active
        for attempt in (means, [name for name in means if name != NETWORK]):
            self._means = tuple(attempt)
            worker = self.fork("foundry.tools.sandbox:report", Limits(wall_s=FORK_S), sandbox=Sandbox("candidate"))
            try:
                answer, _ = worker.request({})
            except WorkerDied:
                continue
            finally:
                worker.end()
            if answer["usable"]:
                self._means = tuple(name for name in MEANS if name in answer["active"])
                break
        else:
            self._means = ()
        self.isolation = (*ALWAYS, *self._means)

    def fork(
        self,
        entry: str,
        limits: Limits,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
        leases: Sequence[int] = (),
    ) -> Worker:
        """A new worker running `entry` ("package.module:function", called with its Channel) in 6-9 ms.

        A sandbox confines it before the entry's module is imported, as far as the kernel can. `leases` are open files
        that are closed when the worker has ended.
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
        return Worker(self, int(answer["pid"]), ours, errors, limits, directory, watched, leases)

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


# ---------------------------------------------------------------- inside the warm process


class _Server:
    """The loop of the warm process: forks on request, reaps, kills what workers leave behind."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._workers: set[int] = set()
        self._ended: dict[int, str] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._control.send({"ready": True})
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while True:
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._reap()
            if self._control.ready(0.0):
                try:
                    message, handles = self._control.receive()
                except (ChannelClosed, ChannelGarbled):
                    break
                self._control.send(self._answer(message, handles))
        for pid in list(self._workers):
            self._end(pid)
        self._kill_orphans()

    def _answer(self, message: Message, handles: list[int]) -> Message:
        if message["op"] == "fork":
            return {"pid": self._fork(message, handles)}
        pid = int(message["pid"])
        if message["op"] == "end":
            return {"ended": self._end(pid)}
        return {"alive": pid in self._workers}

    def _fork(self, message: Message, handles: list[int]) -> int:
        pid = os.fork()
        if pid == 0:
            self._become_worker(message, handles)
        close_all(handles)
        self._workers.add(pid)
        return pid

    def _become_worker(self, message: Message, handles: list[int]) -> None:
        """Never returns: runs the entry function and exits, whatever happens."""
        code = CRASHED
        channel = Channel.from_handle(handles[0])  # kept to the end: its closing tells the main process of our death
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            close_all([self._wake_read, self._wake_write])
            asked = sandbox.from_message(message["sandbox"]) if message["sandbox"] else None
            expendable = asked is not None and asked.form == "candidate"
            process.confine(Limits(**message["limits"]), expendable=expendable)
            _redirect(handles[1])
            os.environ.update(message["environment"])
            tempfile.tempdir = None  # found anew, in the worker's own directory
            if message["directory"]:
                os.chdir(message["directory"])
            if asked is not None:
                sandbox.enter(asked, message["means"])
            module, _, function = str(message["entry"]).partition(":")
            getattr(importlib.import_module(module), function)(channel)
            code = 0
        except ChannelClosed:
            code = 0  # whoever gave the orders is gone
        except BaseException:  # the process ends here: everything must be written down first
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)

    def _end(self, pid: int) -> str:
        if pid in self._workers:
            process.kill_tree(pid)
            if not self._wait(pid):
                self._workers.discard(pid)
                return "was killed by SIGKILL, but the kernel still holds it"
        self._kill_orphans()
        return self._ended.pop(pid, "was gone already")

    def _wait(self, pid: int) -> bool:
        """Whether a killed worker could be reaped in good time."""
        deadline = time.monotonic() + DEATH_S
        pause = 0.0005
        while time.monotonic() < deadline:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._note(pid, status)
                return True
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return False

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._note(pid, status)
        self._kill_orphans()

    def _note(self, pid: int, status: int) -> None:
        if pid in self._workers:
            self._workers.discard(pid)
            self._ended[pid] = process.describe_exit(status)
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _kill_orphans(self) -> None:
        """Children that are no workers were left behind by one that died: end them, whatever session they are in."""
        deadline = time.monotonic() + DEATH_S
        while time.monotonic() < deadline:
            mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            orphans = [int(pid) for pid in mine if int(pid) not in self._workers]
            if not orphans:
                return
            for pid in orphans:
                process.kill_tree(pid)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        time.sleep(0.0005)  # it dies as soon as it gets a core


def _redirect(errors: int) -> None:
    """Standard output and error go to the given file, standard input is empty."""
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.close(errors)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def main() -> None:
    """Entry of the warm process: `python -m foundry.tools.zygote HANDLE MODULE...`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's business
    control = Channel.from_handle(int(sys.argv[1]))
    process.adopt_orphans()
    for name in sys.argv[2:]:
        importlib.import_module(name)
    sandbox.prepare()
    gc.collect()
    gc.freeze()  # workers do not copy pages only to count references
    _Server(control).serve()


if __name__ == "__main__":
    main()
