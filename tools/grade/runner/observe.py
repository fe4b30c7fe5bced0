"""What a candidate's process does outside its tensors: interpreter events, mapped code, calls of a steady forward.

Runs in a runner. The hook is Python's own (PEP 578): no Python code can take it away again, and names, aliases and
assembled strings do not matter to it, because it sees the act.
"""

from __future__ import annotations

import _thread
import ctypes
import filecmp
import gc
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch

from foundry.tools.audit.acts.looks import LOOKS_AWAY, looks_away
from foundry.tools.grade.runner.ablate import follow_cffi
from foundry.tools.grade.runner.programs import Programs, plain
from foundry.tools.grade.runner.record import record_beside, record_hidden, time_operators
from foundry.tools.grade.runner.sentry import AtExit, line_of
from foundry.tools.process import procfs
from foundry.tools.process.channel import Message
from foundry.tools.words import words

Phase = Literal["load", "build", "first", "steady"]

OBSERVED_NS = 10**9  # for calls of one observation
LATE_NS = 3 * 10**8  # for calls before the closest look: a file may wait until it is not looked at any more
STEADY_CALLS = 3
NOTICEABLE_NS = 10**5  # of the processor, in one call of forward: so little is no work that a kernel is spared
IDLE_CALLS, IDLE_ROUNDS = 50, 9  # by the quickest round of which the cost of watching a call is measured
MOST_EVENTS = 400
MOST_KEPT = 32
_INSTALLED = (*{sysconfig.get_paths()[key] + "/" for key in ("stdlib", "platstdlib", "purelib", "platlib")}, "/usr/lib")
# event -> which of its arguments say what was done
_EVERYWHERE: dict[str, tuple[int, ...]] = {
    "open": (0, 1),
    "ctypes.dlopen": (0,),
    "ctypes.dlsym": (0, 1),
    "subprocess.Popen": (1,),
    "os.system": (0,),
    "os.exec": (0,),
    "os.fork": (),
    "os.forkpty": (),
    "os.posix_spawn": (0,),
    "os.kill": (),
    "socket.connect": (1,),
    "socket.bind": (1,),
    "socket.getaddrinfo": (0,),
    "socket.sendto": (1,),
    "sys.settrace": (),
    "sys.setprofile": (),
    "sys.addaudithook": (),
    "os.putenv": (0,),
}
# Libraries do these too; they count when the candidate's own line does them.
_BY_ITSELF: dict[str, tuple[int, ...]] = {
    "import": (0,),
    "exec": (),
    "compile": (),
    "marshal.loads": (),
    "code.__new__": (),
    "function.__new__": (),
    "object.__setattr__": (1,),
    "gc.get_objects": (),
    "gc.get_referrers": (),
    "gc.get_referents": (),
    "sys._getframe": (),
    "sys._current_frames": (),
    "ctypes.string_at": (),
    "mmap.__new__": (),
}
_RETURNS = frozenset(words("return c_return c_exception"))
_EVENTS = frozenset(words("call c_call")) | _RETURNS
_CODE_MAP = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ..x. \S+ \S+ \d+\s*(.*)$")


class Observer:
    """Started once in a process, before the candidate's text runs there. `where` is the candidate's file."""

    def __init__(self, where: str) -> None:
        self._where = self._timed_file = where
        self._seen: dict[tuple[str, str, str, int], None] = {}
        self._busy = False
        self._callback = ctypes.CFUNCTYPE(None)(lambda: None)  # ctypes makes its page of callbacks with the first one
        self._libraries, self._anonymous = executable_maps()
        self._unnamed: dict[str, int] = {}
        self._kept: dict[str, str] = {}
        self._triton = _triton_folder()
        self._tritons: set[str] = set()
        self._folder = tempfile.gettempdir()
        self._programs = Programs()
        self.phase: Phase = "load"
        self._calls: dict[tuple[str, int], float] | None = (
            None  # of a steady forward, while it is watched; their CPU time
        )
        self._outside: tuple[FrameType, tuple[str, int], float] | None = None  # one in flight, and when it began
        self._outermost: tuple[FrameType, float] | None = None  # of its own frames, and when it began
        self._own_ns = 0.0  # of the processor in such frames, on their thread
        self._told_ns = dict.fromkeys(_EVENTS, 0.0)  # of the processor, for being told of one
        self._noted_ns = dict.fromkeys(_EVENTS, 0.0)  # of the processor, for noting one besides
        self._watching_ns = 0.0  # of the processor, for all of that so far
        self.has_threads = False  # of Python's, since then
        self._at_exit = AtExit(where)
        _mark_arrays()
        follow_cffi(lambda path: sys.audit("ctypes.dlopen", path), _looked_up)  # as ctypes says of itself
        self._follow_threads()
        sys.addaudithook(self._note)

    @property
    def is_called_back(self) -> bool:
        """Whether the candidate holds a function that native code can call, from a thread of its own too (ctypes,
        cffi). Of threads that Python did not start nothing else is seen. Making one by other means shows elsewhere."""
        kinds = [type(item).__name__ for item in gc.get_objects()]
        return kinds.count("CThunkObject") > 1 or "__CDataOwnGC" in kinds  # one of ctypes' is our own

    def _follow_threads(self) -> None:
        """Threads that are started from now on are watched as this one is, whichever way they are started."""
        start = _thread.start_new_thread

        def started(function: Callable[..., Any], arguments: Any, keywords: Any = None) -> int:
            def run(*arguments: Any, **keywords: Any) -> None:
                self.has_threads = True
                sys.setprofile(self._note_call)
                function(*arguments, **keywords)

            return start(run, arguments, keywords or {})

        _thread.start_new_thread = _thread.start_new = started
        threading._start_new_thread = started  # type: ignore[attr-defined]

    def _note_call(self, frame: FrameType, event: str, argument: Any) -> None:
        """Profile function of every thread: what the candidate's own lines call outside its file, and the time that the
        processor takes for what comes back without calling a line of it."""
        self._watching_ns += self._told_ns[event]
        outside = self._outside
        is_return = event in _RETURNS
        if is_return:
            outermost = self._outermost
            if (outside is None or frame is not outside[0]) and (outermost is None or frame is not outermost[0]):
                return
        is_own = frame.f_code.co_filename == self._timed_file
        if not (is_own or is_return or (event == "call" and self._is_called_by_own(frame))) or self._calls is None:
            return
        begin_ns = time.thread_time_ns()
        now_ns = begin_ns - self._watching_ns
        if is_return:
            self._note_return(frame, is_python=event == "return", is_own=is_own, now_ns=now_ns)
        else:
            self._note_start(frame, argument if event == "c_call" else None, is_own=is_own, now_ns=now_ns)
        self._watching_ns += time.thread_time_ns() - begin_ns + self._noted_ns[event]

    def _is_called_by_own(self, frame: FrameType) -> bool:
        caller = frame.f_back
        return caller is not None and caller.f_code.co_filename == self._timed_file

    def _note_return(self, frame: FrameType, *, is_python: bool, is_own: bool, now_ns: float) -> None:
        if is_python and self._outermost is not None and frame is self._outermost[0]:
            self._own_ns += now_ns - self._outermost[1]
            self._outermost = None
        if self._outside is not None and frame is self._outside[0] and is_python != is_own and self._calls is not None:
            _, key, begin_ns = self._outside
            self._outside = None
            self._calls[key] += now_ns - begin_ns

    def _note_start(self, frame: FrameType, function: Any, *, is_own: bool, now_ns: float) -> None:
        """Notes a call: of the candidate's own function, of `function` of C by one, or of another function by one."""
        if is_own and function is None:
            self._outside = None
            self._outermost = self._outermost or (frame, now_ns)
            return
        caller = frame
        if is_own or frame.f_back is None:
            name = _path(function)
        else:
            name, caller = f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}", frame.f_back
            if frame.f_code.co_name in ("__array_ufunc__", "__array_function__"):
                name = f"numpy.{getattr(frame.f_locals.get('function'), '__name__', '?')}"
        if self._calls is not None:
            key = (name, caller.f_lineno)
            self._calls.setdefault(key, 0)
            self._outside = (frame, key, now_ns)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        wanted = _EVERYWHERE.get(event)
        is_own = wanted is None
        if is_own:
            wanted = _BY_ITSELF.get(event)
        if wanted is None or self._busy or len(self._seen) >= MOST_EVENTS:
            return
        self._busy = True  # looking at frames is an event too
        try:
            frame = sys._getframe(1)
            if event in ("ctypes.dlopen", "import"):
                self._keep(arguments[0] if event == "ctypes.dlopen" else arguments[1])
            if event == "import" and arguments[1] and self._is_triton_loading(frame):
                self._tritons.add(os.path.realpath(arguments[1]))
            if event in LOOKS_AWAY:
                line = line_of(frame, event, self._where) if looks_away(event, arguments) else 0
            else:
                line = self._line(frame) if not is_own or frame.f_code.co_filename == self._where else 0
            if line:
                words = [_plain(arguments[index]) for index in wanted if index < len(arguments)]
                if event == "subprocess.Popen":
                    words = self._programs.command(*arguments)
                elif event == "os.system":
                    words = self._programs.command("/bin/sh", ["sh", "-c", arguments[0]])[2:]
                elif event == "os.posix_spawn":
                    words = self._programs.command(arguments[0], arguments[1], None, arguments[2])
                self._seen[(self.phase, event, " ".join(words), line)] = None
        finally:
            self._busy = False

    def _keep(self, path: Any) -> None:
        """Copies a library of nobody else's before it is loaded: its file may be gone when it is read."""
        given = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) and path else ""
        name = str(Path(given).resolve()).removesuffix(" (deleted)") if given else ""
        is_in_memory = name.startswith("/memfd:")
        is_library = is_in_memory or re.search(r"\.so[.\d]*$", name)
        if not is_library or name.startswith(_INSTALLED) or len(self._kept) >= MOST_KEPT:
            return
        try:
            folder = tempfile.mkdtemp(prefix="loaded-", dir=self._folder)
            copy = shutil.copy(given, folder)
            is_another = is_in_memory and not filecmp.cmp(copy, self._kept.get(name, copy), shallow=False)
            self._kept[name] = os.devnull if is_another else copy  # two of one name cannot be told apart later
        except OSError:  # it cannot be loaded either
            return

    def _is_triton_loading(self, frame: FrameType | None) -> bool:
        """Whether Triton's driver for a device has built what is being imported: its launchers and helpers in C."""
        builders = 0
        while frame is not None and self._triton:
            name = frame.f_code.co_filename
            if name == f"{self._triton}/runtime/build.py":
                builders += 1
            elif not name.startswith("<frozen importlib"):
                return bool(builders and re.fullmatch(re.escape(self._triton) + r"/backends/\w+/driver\.py", name))
            frame = frame.f_back
        return False

    def _line(self, frame: FrameType | None) -> int:
        """The innermost line of the candidate's file on the stack, 0 when it is not there."""
        while frame is not None and frame.f_code.co_filename != self._where:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def enter(self, phase: Phase) -> None:
        """The next phase; code that appeared in unnamed memory meanwhile is the last one's."""
        _, anonymous = executable_maps()
        self._unnamed[self.phase] = sum(size for start, size in anonymous.items() if start not in self._anonymous)
        self._anonymous = {**self._anonymous, **anonymous}
        self.phase = phase

    def steady(self, run: Callable[[], Any]) -> list[list[Any]]:
        """Calls `run` three times and lists [name, line, share] of what the candidate's own lines called outside its
        file. `share` (0 to 1) is of the processor's time that its own frames and what they called took, 0 where that
        was next to nothing: the middle one of the three calls, one of which another process may disturb."""
        self.enter("steady")
        looks = [self._look(run) for _ in range(STEADY_CALLS)]
        keys = dict.fromkeys(key for look in looks for key in look)
        middle = STEADY_CALLS // 2
        return [[*key, sorted(look.get(key, 0.0) for look in looks)[middle]] for key in keys]

    def _look(self, run: Callable[[], Any]) -> dict[tuple[str, int], float]:
        """The share of each (name, line) in one call."""
        found: dict[tuple[str, int], float] = {}
        self._measure_watching()
        self._calls, self._outside, self._outermost, self._own_ns = found, None, None, 0.0
        self._watch(run)
        all_ns = max(1.0, self._own_ns, sum(found.values()))
        return {key: spent_ns / all_ns if spent_ns > NOTICEABLE_NS else 0.0 for key, spent_ns in found.items()}

    def _watch(self, run: Callable[[], Any]) -> None:
        """Calls `run` while this thread's calls are watched."""
        self._busy = True
        sys.setprofile(self._note_call)
        self._busy = False
        try:
            run()
        finally:
            self._busy = True
            sys.setprofile(None)
            self._busy = False
            self._calls = None

    def _measure_watching(self) -> None:
        """Sets what it takes to be told of one call or return, and to note it: some forty times what a function of
        Python's library takes that calls many small ones, so that no time may contain it."""
        for function, events in _KINDS:
            alone_ns = min(_idle_ns(function) for _ in range(IDLE_ROUNDS))
            for file, costs in ((self._where, self._told_ns), (__file__, self._noted_ns)):
                self._timed_file = file
                costs |= dict.fromkeys(events, 0.0)
                took_ns = self._idle_watched_ns(function) - alone_ns
                costs |= dict.fromkeys(events, max(0.0, took_ns) / (2 * IDLE_CALLS))
        self._timed_file = self._where

    def _idle_watched_ns(self, function: Callable[[int], Any]) -> float:
        """Time of the processor, in ns, for calls that do next to nothing, without what watching is known to take."""
        spent_ns: list[float] = []

        def run() -> None:
            for _ in range(IDLE_ROUNDS):
                before_ns = self._watching_ns
                spent_ns.append(_idle_ns(function) - (self._watching_ns - before_ns))

        self._calls, self._outside, self._outermost = {}, None, None
        self._watch(run)
        return min(spent_ns)

    def report(self) -> Message:
        """Everything noted so far, as JSON."""
        self.enter(self.phase)
        libraries, _ = executable_maps()
        return {
            "events": [list(item) for item in self._seen],
            "libraries": sorted(libraries - self._libraries),
            "kept": self._kept,
            "tritons": sorted(self._tritons),
            "unnamed": self._unnamed,
            "printed": self._at_exit.printed(),
            "arithmetic": procfs.arithmetic(),
        }


def watched_calls(
    observer: Observer,
    call: Callable[[bool], list[Any]],
    forward: Callable[[], Any],
    hide: Callable[[Callable[[], Any]], Any],
    message: Message,
    clock: Callable[[], int],
) -> Message:
    """What the process did since it was loaded; what a call in steady state calls, which comes after `late` others; the
    operators of the heaviest of the `calls` after it: whoever takes turns with PyTorch shows.

    `call` makes one, and gives PyTorch's operators in it if it is told to record them. `timed` asks what they take too:
    of `forward` alone, in one `hide`, because to hide the grader for each call takes as long as 0.3 ms of arithmetic.
    """
    observer.enter("first")
    first = call(True)
    stop = clock() + LATE_NS
    for _ in range(int(message["late"])):
        if clock() > stop:
            break
        call(False)
    calls = observer.steady(lambda: call(False))
    seen = observer.report()
    logs: list[list[Any]] = []
    begin = clock()
    while len(logs) < 2 or (len(logs) < message["calls"] and clock() - begin < OBSERVED_NS):
        logs.append(call(True))
    heaviest = max(logs, key=lambda log: sum(row["flops"] + row["bytes"] for row in log), default=[])
    beside = record_beside(lambda: call(False)) if observer.has_threads or observer.is_called_back else []
    beside += record_hidden(lambda: call(False), heaviest, clock)
    prepared_by = sorted({row["op"].split(".")[1] for row in first if "." in row["op"]})
    found = {**seen, "calls": calls, "operators": heaviest, "prepared_by": prepared_by, "beside": beside}
    if message["timed"]:
        share, longest = hide(lambda: time_operators(forward, clock))
        found |= {"torch_time": share, "longest": longest[:4]}
    return found


def _idle_ns(function: Callable[[int], Any]) -> int:
    """Time of the processor, in ns, for calls of a function that does next to nothing."""
    begin_ns = time.thread_time_ns()
    for _ in range(IDLE_CALLS):
        function(0)
    return time.thread_time_ns() - begin_ns


def _do_nothing(_: int) -> None: ...


_KINDS: tuple[tuple[Callable[[int], Any], tuple[str, ...]], ...] = (
    (_do_nothing, ("call", "return")),
    (abs, ("c_call", "c_return", "c_exception")),
)


def _looked_up(path: str, name: str, kind: Any, function: Any) -> Any:
    sys.audit("ctypes.dlsym", path, name)
    return function


def _triton_folder() -> str:
    """Where Triton is installed, "" when it is not; found before the candidate's code runs."""
    found = importlib.util.find_spec("triton")
    return str(Path(found.origin).parent) if found is not None and found.origin else ""


class Array(np.ndarray):
    """An array that came out of a tensor and tells of the arithmetic that is done with it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the plain array that it is for everybody else: nobody finds this class by its name while it is hidden."""
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        plain = [_unmarked(item) for item in inputs]
        options = {key: _unmarked(value) for key, value in kwargs.items()}
        result = getattr(function, method)(*plain, **options)
        return result.view(Array) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return super().__array_function__(function, types, args, kwargs)


def _watched_method(name: str) -> Callable[..., Any]:
    """A method of plain arrays as a function of Python's: where native code calls it, nothing else tells of it."""
    function = getattr(np.ndarray, name)

    def __array_function__(self: Array, *args: Any, **kwargs: Any) -> Any:
        return function(self.view(np.ndarray), *map(_unmarked, args), **kwargs)

    return __array_function__


for _name in words(
    "sort argsort partition argpartition searchsorted cumsum cumprod sum prod mean std var max min argmax argmin ptp "
    "any all clip dot round trace take choose compress repeat put nonzero conj conjugate byteswap"
):
    if hasattr(np.ndarray, _name):  # NumPy 2 has some of them no more
        setattr(Array, _name, _watched_method(_name))


def _unmarked(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_unmarked(item) for item in value)
    return value.view(np.ndarray) if isinstance(value, Array) else value


def _mark_arrays() -> None:
    """Lets arrays that come out of tensors tell of the arithmetic that is done with them.

    NumPy's operators are invisible to PyTorch's dispatcher and to Python's profiler.
    """
    plain_numpy = torch.Tensor.numpy

    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return plain_numpy(self, *args, **kwargs).view(Array)

    torch.Tensor.numpy = numpy  # type: ignore[method-assign,assignment]


def executable_maps() -> tuple[set[str], dict[str, int]]:
    """(files mapped as code, unnamed memory that may run: start -> bytes) of this process."""
    files: set[str] = set()
    anonymous: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        match = _CODE_MAP.match(line)
        if match is None:
            continue
        start, end, name = match.groups()
        if name.startswith("/"):
            files.add(name.removesuffix(" (deleted)"))
        elif not name.startswith("["):
            anonymous[start] = int(end, 16) - int(start, 16)
    return files, anonymous


def _path(function: Any) -> str:
    """`time.perf_counter` for a built-in function object."""
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ndarray):  # one that came out of a tensor is of a class of ours
        return f"numpy.ndarray.{function.__name__}"
    if not module and owner is not None and not isinstance(owner, type(sys)):
        module = type(owner).__module__
    return f"{module}.{getattr(function, '__qualname__', '?')}"


def _plain(value: Any) -> str:
    return str(value._name) if isinstance(value, ctypes.CDLL) else plain(value)
