"""The warm process: forks workers on request, reaps them, kills processes that they leave behind.

It stays single-threaded and touches neither CUDA nor OpenMP, so that forking from it is safe.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from foundry.tools.process import child, sandbox
from foundry.tools.process.channel import Channel, ChannelClosed, ChannelGarbled, Message, close_all
from foundry.tools.process.child import Limits
from foundry.tools.process.environment import VISIBLE_GPUS

CRASHED = 70  # exit code of a worker whose entry function raised
DEATH_S = 3.0  # seconds to wait for a killed process; a driver may hold it longer, and it is reaped later then


class Server:
    """The loop of the warm process."""

    def __init__(self, control: Channel, later: Sequence[str]) -> None:
        """Answers on `control`; `later` are modules to import on request."""
        self._control = control
        self._later = list(later)  # modules that are imported one by one, on request
        self._pid = os.getpid()
        self._workers: set[int] = set()
        self._ended: dict[int, str] = {}
        self._dying: dict[int, float] = {}  # workers killed without waiting, and when
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Answers requests until the main process is gone, then kills all workers."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._control.send({"ready": True})
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        try:
            while True:
                poller.poll()
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._reap()
                if self._control.ready(0.0):
                    self._control.send(self._answer(*self._control.receive()))
        except (ChannelClosed, ChannelGarbled):
            pass  # the main process is gone: it may have ended without reading an answer
        finally:
            for pid in list(self._workers):
                self._end(pid)
            self._kill_orphans()

    def _import_next(self) -> None:
        """Imports the next module; after the last one, computes the sandbox anew."""
        if self._later:
            import_all([self._later.pop(0)])
        if not self._later:
            sandbox.prepare()  # candidates may read all modules imported by now

    def _answer(self, message: Message, handles: list[int]) -> Message:
        """Carries out one request (import, see, fork, dying, kill, end, alive) and returns its answer."""
        if message["op"] == "import":
            self._import_next()
            return {"left": len(self._later)}
        if message["op"] == "see":
            os.environ[VISIBLE_GPUS] = str(message["gpu"])
            sandbox.prepare()
            return {}
        if message["op"] == "fork":
            return {"pid": self._fork(message, handles)}
        if message["op"] == "dying":
            return {"count": sum(time.monotonic() - killed < DEATH_S for killed in self._dying.values())}
        pid = int(message["pid"])
        if message["op"] == "kill":
            self._kill(pid)
            return {"ended": "was not needed any more"}
        if message["op"] == "end":
            return {"ended": self._end(pid)}
        return {"alive": pid in self._workers}

    def _fork(self, message: Message, handles: list[int]) -> int:
        """Forks a process that becomes a worker; returns its process id."""
        pid = os.fork()
        if pid == 0:
            self._become_worker(message, handles)
        close_all(handles)
        self._workers.add(pid)
        return pid

    def _become_worker(self, message: Message, handles: list[int]) -> None:
        """In the forked child: confines the process, enters the sandbox, runs the entry function and exits. Never
        returns."""
        code = CRASHED
        channel = Channel.from_handle(handles[0])  # open to the end: its closing tells the main process that we ended
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            close_all([self._wake_read, self._wake_write])
            asked = sandbox.from_message(message["sandbox"]) if message["sandbox"] else None
            expendable = asked is not None and asked.form == "candidate"
            child.confine(Limits(**message["limits"]), expendable=expendable)
            if os.getppid() != self._pid:  # the parent ended before this process had asked to die with it
                return
            _redirect(handles[1])
            _leave_no_bytecode()
            os.environ.update(message["environment"])
            tempfile.tempdir = None  # chosen anew, in the worker's own directory
            if message["directory"]:
                os.chdir(message["directory"])
            if asked is not None:
                sandbox.enter(asked, message["means"])
            module, _, function = str(message["entry"]).partition(":")
            getattr(importlib.import_module(module), function)(channel)
            code = 0
        except ChannelClosed:
            code = 0  # the main process is gone
        except BaseException:  # the process ends here: everything must be written down first
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)

    def _kill(self, pid: int) -> None:
        """Kills a worker without waiting for its end: a GPU's driver takes a tenth of a second to release a process."""
        if pid in self._workers:
            child.kill_tree(pid)
            self._dying[pid] = time.monotonic()
        else:
            self._ended.pop(pid, None)

    def _end(self, pid: int) -> str:
        """Kills a worker, waits until it is gone and returns how it ended, in words."""
        if pid in self._workers:
            child.kill_tree(pid)
            if not self._wait(pid):
                self._workers.discard(pid)
                return "was killed by SIGKILL, but the kernel still holds it"
        self._kill_orphans()
        return self._ended.pop(pid, "was gone already")

    def _wait(self, pid: int) -> bool:
        """Waits for a killed worker's end and reaps it: True; False if it is not gone after DEATH_S seconds."""
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
        """Reaps all children that have ended, then kills processes that workers left behind."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._note(pid, status)
        self._kill_orphans()

    def _note(self, pid: int, status: int) -> None:
        """Records how a worker ended, unless it was killed on purpose, and kills its process group."""
        if pid in self._workers:
            self._workers.discard(pid)
            if self._dying.pop(pid, None) is None:
                self._ended[pid] = child.describe_exit(status)
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _kill_orphans(self) -> None:
        """Kills children that are not workers: a worker that died left them behind, in any session."""
        deadline = time.monotonic() + DEATH_S
        while time.monotonic() < deadline:
            mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            orphans = [int(pid) for pid in mine if int(pid) not in self._workers]
            if not orphans:
                return
            for pid in orphans:
                child.kill_tree(pid)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        time.sleep(0.0005)  # it ends as soon as it gets a core


def _redirect(errors: int) -> None:
    """Sends standard output and error to the given file and empties standard input."""
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.close(errors)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _leave_no_bytecode() -> None:
    """Stops this process and its children from writing compiled modules: only the warm process writes them."""
    sys.dont_write_bytecode, sys.pycache_prefix = True, None
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ.pop("PYTHONPYCACHEPREFIX", None)


def import_all(names: Sequence[str]) -> None:
    """Imports modules and freezes their objects, so that workers do not copy pages only to count references."""
    gc.disable()  # the collector would scan permanent objects a hundred times: a fifth of the import time
    for name in names:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # keeps the collector off shared pages in workers


def main() -> None:
    """Entry of the warm process: `python -m foundry.tools.process.warm HANDLE MODULE,... MODULE,...`.

    The first modules are imported at once, the second on request.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    control = Channel.from_handle(int(sys.argv[1]))
    child.adopt_orphans()
    first, later = (names.split(",") if names else [] for names in sys.argv[2:4])
    import_all(first)
    sandbox.prepare()
    Server(control, later).serve()


if __name__ == "__main__":
    main()
