"""A warm process (zygote) that has imported torch, and the workers forked from it in milliseconds.

The main process holds a `Zygote` and never imports torch itself. The zygote stays single-threaded and touches neither
CUDA nor OpenMP, so that forking from it is safe; each worker gets a session of its own, limits, and a channel. When the
main process ends in any way, the zygote sees the end of its channel, kills every worker with all it started, and exits
too. It adopts and kills processes that a worker left behind.

Starting takes seconds, but not all must be waited for: the main process goes on at once, `early` workers are forked
as soon as torch is imported, and modules that only other workers need are imported while those work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from foundry.knowledge.errors import FoundryError, MissingTool
from foundry.tools.process import child as process
from foundry.tools.process import sandbox
from foundry.tools.process.channel import (
    MAY_PAUSE,
    PAUSE,
    Channel,
    ChannelClosed,
    ChannelGarbled,
    ChannelTimeout,
    Message,
    close_all,
    read_plain,
)
from foundry.tools.process.child import POLL_S, Limits
from foundry.tools.process.environment import ALLOWED, STEADY, VISIBLE_GPUS, bytecode_place
from foundry.tools.process.held_gpu import HeldGpu
from foundry.tools.process.linux import FILES, MEANS, NETWORK, SIGNALS
from foundry.tools.process.messages import A, Done, Malformed, NotDone, Question, T
from foundry.tools.process.procfs import gpu_files
from foundry.tools.process.sandbox import Sandbox

START_S = 120.0  # seconds; torch may be imported from a cold disk
ANSWER_S = 60.0  # seconds for an answer of the warm process, which may be importing the largest module
TRIAL_S = 60.0  # seconds for the trial of a sandbox with a GPU, which many processes may be starting to use
ERROR_BYTES = 1 << 20  # bytes of a worker's standard error that are kept
DYING_POLL_S = 0.004  # seconds between two looks at workers that are dying
FORK_POLL_S = 0.001  # seconds between two looks at waiting forks
FOLDER_POLL_S = 0.5  # seconds between two readings of the size of a worker's folders
# Means left out in each attempt, from the whole sandbox downwards; on some machines several attempts are the same.
_LEFT_OUT: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({NETWORK}),
    frozenset({FILES, SIGNALS}),
    frozenset({NETWORK, FILES, SIGNALS}),
)
ALWAYS = ("session", "limits", "environment")  # isolation that works on every kernel

# Modules that inspect a task and draw its inputs.
PRELOAD = ("torch", "foundry.tools.grade.judge.serve", "foundry.tools.task.intake")
# Modules that trace a task or run a candidate. They are imported one at a time, so that no request waits long.
# torch._dynamo is half of the time: each worker's first use of export or of a dispatch mode would import it again.
LATER = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
    "torch.export._trace",
    "foundry.tools.audit.acts.provenance",
    "foundry.tools.grade.runner.runner",
    "foundry.tools.grade.runner.ablate",
    "foundry.tools.grade.judge.audit_runs",
)


class WorkerDied(Exception):
    """A worker ended, or had to be ended, before it answered."""

    def __init__(self, outcome: str, evidence: str) -> None:
        """`outcome` is "crash" or "timeout"; `evidence` says how it ended."""
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
        """Wraps a process that the zygote has forked. `errors`: memory file of its standard error; `watched`: folders
        whose size is limited."""
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
        pause: Callable[[], None] | None = None,
        extend: Callable[[bytes], float | None] = lambda _: None,
    ) -> tuple[Message, list[int]]:
        """Sends one message and waits for its answer; see `exchange`."""
        body = json.dumps(message if pause is None else {**message, MAY_PAUSE: True}).encode()
        return self.exchange(body, read_plain, handles, timeout_s=timeout_s, tick=tick, pause=pause, extend=extend)

    def ask(
        self,
        question: Question[A],
        *,
        timeout_s: float | None = None,
        extend: Callable[[bytes], float | None] = lambda _: None,
    ) -> tuple[Done[A] | NotDone, list[int]]:
        """Sends one question and waits for its answer; see `exchange`."""
        return self.exchange(question.encoded(), question.read, timeout_s=timeout_s, extend=extend)

    def exchange(
        self,
        body: bytes,
        read: Callable[[bytes], T],
        handles: Sequence[int] = (),
        *,
        timeout_s: float | None = None,
        tick: Callable[[], None] = lambda: None,
        pause: Callable[[], None] | None = None,
        extend: Callable[[bytes], float | None] = lambda _: None,
    ) -> tuple[T, list[int]]:
        """Sends one text and waits for its answer, reading the worker's usage and calling `tick` meanwhile.

        With `pause` the worker may ask between two of its steps if it should wait; that time is not counted. `extend`
        is given each message: if it returns a number, the message is no answer yet, and the answer may take so many
        seconds more. Use `extend` only for workers that run no candidate.

        Raises WorkerDied if the worker ends first, breaks a limit or sends no message; it is gone then.
        """
        seconds = self.limits.wall_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + seconds
        try:
            self.channel.send_text(body, handles)
            while True:
                while not self.channel.ready(POLL_S):
                    tick()
                    if reason := self.excess():
                        self.end()
                        raise WorkerDied("crash", reason)
                    if time.monotonic() > deadline:
                        self.end()
                        raise WorkerDied("timeout", f"did not finish in {seconds:g} s")
                answer, extra = self.channel.receive_text(0.0)
                if (more_s := extend(answer)) is not None:
                    deadline = time.monotonic() + more_s
                    seconds = more_s
                    continue
                if pause is None or answer != PAUSE:
                    return read(answer), extra
                asked = time.monotonic()
                pause()
                deadline += time.monotonic() - asked
                self.channel.send({})
        except (ChannelClosed, ChannelTimeout) as error:
            raise WorkerDied("crash", self.end()) from error
        except (ChannelGarbled, Malformed) as error:
            self.end()
            raise WorkerDied("crash", f"sent something that is no answer: {error}") from error

    def excess(self) -> str:
        """Says which limit the worker's tree breaks, or ""; also truncates its standard error."""
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

    def end(self, *, waits: bool = True) -> str:
        """Kills the worker and all it started; returns how it ended: `was killed by SIGSEGV: ...`.

        Without `waits` the caller need not know that, and the call returns before the kernel has released the
        process.
        """
        with self._lock:
            if not self._ended:
                self._ended = self._zygote.end(self.pid, waits=waits)
                if last := self.last_words():
                    self._ended += f": {last}"
                self.channel.close()
                close_all([self._errors, *self._folder_locks])
            return self._ended

    @property
    def alive(self) -> bool:
        """True while the worker runs."""
        return not self._ended and self._zygote.is_alive(self.pid)

    def last_words(self) -> str:
        """The most telling line of what the worker wrote to its standard error, or ""."""
        size = os.fstat(self._errors).st_size
        tail = os.pread(self._errors, 8192, max(0, size - 8192)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip(" \x00")]
        telling = [line for line in lines if "rror" in line or "terminate called" in line or "corrupt" in line]
        return (telling or lines or [""])[-1][:300]


class Zygote:
    """The main process's handle on the warm process, which the next fork starts again if it died. Thread-safe. Close
    it."""

    def __init__(
        self, threads: int, preload: Sequence[str], later: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Starts the warm process, which imports `preload` at once and `later` on request; returns before it is
        ready."""
        self._modules = [",".join(preload), ",".join(later)]
        own = {"OMP_NUM_THREADS": str(threads), **environment, **bytecode_place()}
        self._environment = {name: value for name, value in os.environ.items() if name in ALLOWED} | STEADY | own
        self._lock = threading.RLock()
        self._closed = self._imported_all = False
        self._forks, self._forks_change = 0, threading.Lock()  # number of forks that wait for their turn
        self._up: Future[None] = Future()
        self._means: Future[tuple[str, ...]] = Future()  # means of confinement that candidates get
        self._child, self._control, self._errors = self._launch()
        self._held = HeldGpu(self._environment)
        threading.Thread(target=self._come_up, name="zygote", daemon=True).start()

    @classmethod
    def begin(
        cls,
        *,
        threads: int,
        preload: Sequence[str] = PRELOAD,
        later: Sequence[str] = LATER,
        environment: Mapping[str, str] | None = None,
    ) -> Zygote:
        """Starts the process and returns at once; later calls wait for it as needed."""
        sandbox.prepare_gpu()
        return cls(threads, preload, later, environment or {})

    @classmethod
    def start(
        cls,
        *,
        threads: int,
        preload: Sequence[str] = PRELOAD,
        later: Sequence[str] = LATER,
        environment: Mapping[str, str] | None = None,
    ) -> Zygote:
        """Starts the process and waits until torch is imported (1 s warm). Raises MissingTool if it cannot be."""
        zygote = cls.begin(threads=threads, preload=preload, later=later, environment=environment)
        zygote.wait()
        return zygote

    def wait(self, gpu: str = "") -> None:
        """Waits until workers can be forked. Raises MissingTool, FoundryError.

        `gpu` is a UUID: if there are several GPUs, workers see from now on only this one.
        """
        self._up.result()
        files = gpu_files()
        name = f"GPU-{gpu}"
        if len(files) > 1 and name in files and self._environment.get(VISIBLE_GPUS) != name:
            self._environment[VISIBLE_GPUS] = name  # holds for a restarted process, too
            self._ask({"op": "see", "gpu": name}, again=True)

    def settle(self) -> None:
        """Waits until the process is idle, so that timing is undisturbed. Raises MissingTool, FoundryError."""
        self._import_all()
        self._means.result()

    def _import_all(self) -> None:
        """Imports the remaining modules, one at a time; forks come first."""
        self.wait()
        while not self._imported_all:
            while self._forks:
                time.sleep(FORK_POLL_S)
            self._imported_all = not self._ask({"op": "import"}, again=True)["left"]

    def go_on(self) -> None:
        """Imports the remaining modules in the background; forks come first."""
        if not self._imported_all:
            threading.Thread(target=self._settle_quietly, name="zygote", daemon=True).start()

    def _settle_quietly(self) -> None:
        """Waits until the process is ready, ignoring errors: the next caller that needs it gets them."""
        with contextlib.suppress(FoundryError):  # the next caller that needs the process gets the error
            self.settle()

    @property
    def isolation(self) -> tuple[str, ...]:
        """The means of isolation that candidates get here; waits until they are known."""
        return (*ALWAYS, *self._means.result())

    def _launch(self) -> tuple[subprocess.Popen[bytes], Channel, int]:
        """Starts the warm process; returns it, its channel and its standard error."""
        ours, theirs = Channel.pair()
        errors = os.memfd_create("zygote")
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "foundry.tools.process.warm", str(theirs.fileno()), *self._modules],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=self._environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        return child, ours, errors

    def _come_up(self) -> None:
        """Waits in a thread for the process, then finds the isolation means that a candidate's sandbox can use here."""
        try:
            with self._lock:
                self._await_ready()
            self._up.set_result(None)
            self._means.set_result(self._agree_on_means())
        except Exception as error:  # delivered to the callers that wait
            for future in (self._up, self._means):
                if not future.done():
                    future.set_exception(error)

    def _await_ready(self) -> None:
        """Waits until the warm process has imported torch; raises MissingTool with its last words."""
        sandbox.available()  # tried once, while torch is imported
        try:
            self._control.receive(START_S)
        except (ChannelClosed, ChannelTimeout, ChannelGarbled) as error:
            self._child.kill()
            self._child.wait()
            self._control.close()
            lines = os.pread(self._errors, 1 << 16, 0).decode(errors="replace").strip().splitlines()
            raise MissingTool(
                f"the worker process did not start: {lines[-1] if lines else error}", "check that torch imports"
            ) from error
        finally:
            os.close(self._errors)

    def _agree_on_means(self) -> tuple[str, ...]:
        """Tries a candidate's sandbox on a worker; returns the means that every candidate gets.

        Means are left out if Python or the GPU cannot be used with them: root in a user namespace cannot read other
        users' private files, and a driver may need what a sandbox hides.
        """
        kept = [tuple(name for name in sandbox.available().active if name not in left_out) for left_out in _LEFT_OUT]
        best: tuple[tuple[str, ...], int] = ((), 0)
        for means in dict.fromkeys(kept):  # sequentially: each makes a context if there is a GPU
            attempt = self._try_means(means)
            # The GPU may answer in no attempt, while many others start on it; then the last shuts out least.
            best = attempt if attempt[1] >= best[1] else best
            if best[1] == sandbox.ALL_USABLE:
                break
        return best[0]

    def _try_means(self, means: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """Forks a worker confined by `means`; returns (means that were active, score of what still worked in it)."""
        with tempfile.TemporaryDirectory() as folder:
            confined = Sandbox("candidate", temporary=folder)
            limits = Limits(wall_s=TRIAL_S)
            worker = self._fork("foundry.tools.process.sandbox:report", limits, sandbox=confined, means=means)
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
        early: bool = False,
    ) -> Worker:
        """A new worker running `entry` ("package.module:function", called with its Channel) in 6-9 ms.

        A sandbox confines it before the entry's module is imported, as far as the kernel can. `folder_locks` are
        open files that are closed when the worker has ended. An `early` worker does not wait for modules that only
        other workers need. Raises MissingTool, FoundryError.
        """
        if early:
            self.wait()
        else:
            self._import_all()
        return self._fork(
            entry,
            limits,
            directory=directory,
            environment=environment,
            sandbox=sandbox,
            folder_locks=folder_locks,
            means=self._means_of(sandbox),
        )

    def _means_of(self, asked: Sandbox | None) -> Sequence[str]:
        """The isolation means for a worker; a task's own code gets all available ones."""
        if asked is None or asked.form == "task":
            return sandbox.available().active
        return self._means.result()

    def _fork(
        self,
        entry: str,
        limits: Limits,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
        folder_locks: Sequence[int] = (),
        means: Sequence[str],
    ) -> Worker:
        """Has the warm process fork a worker under these limits, sandbox and means; starts it again if it died."""
        ours, theirs = Channel.pair()
        errors = os.memfd_create("worker")
        fcntl.fcntl(errors, fcntl.F_SETFL, os.O_APPEND)  # it can then be truncated while it is written
        message: Message = {
            "op": "fork",
            "entry": entry,
            "limits": asdict(limits),
            "directory": str(directory) if directory else "",
            "environment": dict(environment or {}),
            "sandbox": asdict(sandbox) if sandbox else None,
            "means": list(means),
        }
        self._count_fork(1)
        try:
            answer = self._ask(message, [theirs.fileno(), errors], again=True)
        finally:
            self._count_fork(-1)
            theirs.close()
        watched = sandbox.writable if sandbox else ()
        return Worker(
            self,
            pid=int(answer["pid"]),
            channel=ours,
            errors=errors,
            limits=limits,
            directory=directory,
            watched=watched,
            folder_locks=folder_locks,
        )

    def _count_fork(self, more: int) -> None:
        """Adds to the number of forks that wait for their turn."""
        with self._forks_change:
            self._forks += more

    def end(self, pid: int, *, waits: bool = True) -> str:
        """Kills a worker's tree; with `waits`, returns how the worker ended, in words."""
        try:
            return str(self._ask({"op": "end" if waits else "kill", "pid": pid})["ended"])
        except FoundryError:  # the zygote is gone, and its workers with it
            return "ended with the worker process"

    def await_dying(self) -> None:
        """Waits until the kernel has released all workers that were killed without waiting, or gives up on them."""
        with contextlib.suppress(FoundryError):
            while self._ask({"op": "dying"})["count"]:
                time.sleep(DYING_POLL_S)

    def is_alive(self, pid: int) -> bool:
        """Asks the zygote; True while the worker of this pid runs."""
        return bool(self._ask({"op": "state", "pid": pid})["alive"])

    @property
    def pid(self) -> int:
        """Process id of the warm process, which is the parent of all workers."""
        return self._child.pid

    def close(self) -> None:
        """Ends the warm process and with it every worker; kills it if torch is not imported yet."""
        self._closed = True
        if not self._up.done():
            self._child.kill()  # torch is not imported yet, so there is nothing to wait for
        with self._lock:
            self._reap()
        self._held.close()

    def _reap(self) -> None:
        """Closes the channel and waits for the warm process to end; kills it after 5 s."""
        self._control.close()
        try:
            self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill_tree(self._child.pid)
            self._child.wait()

    def _ask(self, message: Message, handles: Sequence[int] = (), *, again: bool = False) -> Message:
        """Sends a request and returns its answer; with `again` a warm process that is gone is restarted, once. Raises
        FoundryError if it is gone for good."""
        with self._lock:
            try:
                self._control.send(message, handles)
                return self._control.receive(ANSWER_S)[0]
            except (ChannelClosed, ChannelTimeout, ChannelGarbled, OSError, ValueError) as error:
                if self._closed or not again:
                    raise FoundryError(f"the worker process is gone: {error}", "resume the run") from error
                self._reap()
                self._child, self._control, self._errors = self._launch()
                self._await_ready()
                self._imported_all = False
                return self._ask(message, handles)
