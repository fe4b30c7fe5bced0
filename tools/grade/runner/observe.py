"""Observes a candidate's process: interpreter events, mapped code, calls of a steady forward. Runs in a runner.

The hook is Python's own (PEP 578): Python code cannot remove it, and names, aliases and assembled strings make no
difference, because it sees the act.
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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch

from foundry.tools.audit.acts.looks import LOOKS_AWAY, looks_away
from foundry.tools.audit.acts.observed import Observations, OperatorRow
from foundry.tools.grade.runner.ablate import follow_cffi
from foundry.tools.grade.runner.programs import Programs, plain
from foundry.tools.grade.runner.record import record_beside, record_hidden, time_operators
from foundry.tools.grade.runner.sentry import AtExit, line_of
from foundry.tools.process import procfs
from foundry.tools.words import words

Phase = Literal["load", "build", "first", "steady"]

OBSERVED_NS = 10**9  # ns of calls in one observation
LATE_NS = 3 * 10**8  # ns of calls before the closest look: a file may wait until it is no longer observed
STEADY_CALLS = 3
NOTICEABLE_NS = 10**5  # ns of processor time in one call of forward; less cannot replace a kernel's work
IDLE_CALLS, IDLE_ROUNDS = 50, 9  # calls and rounds that measure the cost of watching a call; the quickest round counts
MOST_EVENTS = 400
MOST_KEPT = 32
_INSTALLED = (*{sysconfig.get_paths()[key] + "/" for key in ("stdlib", "platstdlib", "purelib", "platlib")}, "/usr/lib")
# event -> indices of the arguments that describe the act
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
# Events that libraries cause too; they count if the candidate's own line causes them.
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
    """Records a process's acts; created once in a process, before the candidate's text runs there.

    `where` is the candidate's file.
    """

    def __init__(self, where: str) -> None:
        """Installs the audit hook and follows cffi and threads, and records which libraries are mapped already."""
        self._where = self._timed_file = where
        self._seen: dict[tuple[str, str, str, int], None] = {}
        self._busy = False
        # Made here, because ctypes makes its page of callbacks with the first one.
        self._callback = ctypes.CFUNCTYPE(None)(lambda: None)
        self._libraries, self._anonymous = executable_maps()
        self._unnamed: dict[str, int] = {}
        self._kept: dict[str, str] = {}
        self._triton = _triton_folder()
        self._tritons: set[str] = set()
        self._folder = tempfile.gettempdir()
        self._programs = Programs()
        self.phase: Phase = "load"
        # Call -> CPU time, while a steady forward is watched.
        self._calls: dict[tuple[str, int], float] | None = None
        self._outside: tuple[FrameType, tuple[str, int], float] | None = None  # one in progress, and its begin
        # The outermost of the candidate's own frames, and its begin.
        self._outermost: tuple[FrameType, float] | None = None
        self._own_ns = 0.0  # ns of processor time in such frames, on their thread
        self._told_ns = dict.fromkeys(_EVENTS, 0.0)  # ns of processor time for being told of one event
        self._noted_ns = dict.fromkeys(_EVENTS, 0.0)  # ns of processor time for recording one event besides
        self._watching_ns = 0.0  # ns of processor time for all of that so far
        self.has_threads = False  # Python threads were started since
        self._at_exit = AtExit(where)
        _mark_arrays()
        # The event that ctypes itself would raise.
        follow_cffi(lambda path: sys.audit("ctypes.dlopen", path), _looked_up)
        self._follow_threads()
        sys.addaudithook(self._note)

    @property
    def is_called_back(self) -> bool:
        """True if the candidate holds a function that native code can call, even from a thread of its own (ctypes,
        cffi).

        Nothing else shows threads that Python did not start. Callbacks made by other means show elsewhere.
        """
        kinds = [type(item).__name__ for item in gc.get_objects()]
        return kinds.count("CThunkObject") > 1 or "__CDataOwnGC" in kinds  # one of ctypes' is our own

    def _follow_threads(self) -> None:
        """Watches threads that are started from now on, by any function, like this thread."""
        start = _thread.start_new_thread

        def started(function: Callable[..., Any], arguments: Any, keywords: Any = None) -> int:
            """Starts a Python thread as usual, with the observer's profile hook in it."""

            def run(*arguments: Any, **keywords: Any) -> None:
                """Notes that there are threads, installs the profile hook and runs the thread's function."""
                self.has_threads = True
                sys.setprofile(self._note_call)
                function(*arguments, **keywords)

            return start(run, arguments, keywords or {})

        _thread.start_new_thread = _thread.start_new = started
        threading._start_new_thread = started  # type: ignore[attr-defined]

    def _note_call(self, frame: FrameType, event: str, argument: Any) -> None:
        """Records calls by the candidate's own lines to code outside its file, while `_calls` is kept. Adds their
        processor time, less the observer's own, unless they call back."""
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
        """True if the frame's caller is the candidate's own code."""
        caller = frame.f_back
        return caller is not None and caller.f_code.co_filename == self._timed_file

    def _note_return(self, frame: FrameType, *, is_python: bool, is_own: bool, now_ns: float) -> None:
        """Adds the time of the call in progress, or of the outermost own frame, when it returns at `now_ns`."""
        if is_python and self._outermost is not None and frame is self._outermost[0]:
            self._own_ns += now_ns - self._outermost[1]
            self._outermost = None
        if self._outside is not None and frame is self._outside[0] and is_python != is_own and self._calls is not None:
            _, key, begin_ns = self._outside
            self._outside = None
            self._calls[key] += now_ns - begin_ns

    def _note_start(self, frame: FrameType, function: Any, *, is_own: bool, now_ns: float) -> None:
        """Records a call: of the candidate's own function, or by one to a C `function` or to another Python
        function."""
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
        """Audit hook: records an event with its phase, arguments and the candidate's line."""
        wanted = _EVERYWHERE.get(event)
        is_own = wanted is None
        if is_own:
            wanted = _BY_ITSELF.get(event)
        if wanted is None or self._busy or len(self._seen) >= MOST_EVENTS:
            return
        self._busy = True  # looking at frames raises events too
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
        """Copies a library before it is loaded, unless it is installed: its file may be gone when the audit reads
        it."""
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
        except OSError:  # then it cannot be loaded either
            return

    def _is_triton_loading(self, frame: FrameType | None) -> bool:
        """True if Triton's driver for a device has built what is being imported: its launchers and helpers in C."""
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
        """The innermost line of the candidate's file on the stack, 0 if there is none."""
        while frame is not None and frame.f_code.co_filename != self._where:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def enter(self, phase: Phase) -> None:
        """Starts the next phase; code that appeared in unnamed memory until now belongs to the last one."""
        _, anonymous = executable_maps()
        self._unnamed[self.phase] = sum(size for start, size in anonymous.items() if start not in self._anonymous)
        self._anonymous = {**self._anonymous, **anonymous}
        self.phase = phase

    def steady(self, run: Callable[[], Any]) -> list[tuple[str, int, float]]:
        """Calls `run` three times and lists (name, line, share) of calls from the candidate's lines to code outside its
        file.

        `share` (0 to 1) is the part of the processor time of its own frames and their calls, 0 if it is next to
        nothing. The middle one of the three calls counts, because another process may disturb one.
        """
        self.enter("steady")
        looks = [self._shares_of_time(run) for _ in range(STEADY_CALLS)]
        keys = dict.fromkeys(key for look in looks for key in look)
        middle = STEADY_CALLS // 2
        return [(*key, sorted(look.get(key, 0.0) for look in looks)[middle]) for key in keys]

    def _shares_of_time(self, run: Callable[[], Any]) -> dict[tuple[str, int], float]:
        """The share of processor time of each (name, line) called in one run of `run`; 0 for calls too short to
        notice."""
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
        """Measures the cost of being told of a call or return, and of recording it.

        It is some forty times the cost of a small function of Python's library, so no time may contain it.
        """
        for function, events in _KINDS:
            alone_ns = min(_idle_ns(function) for _ in range(IDLE_ROUNDS))
            for file, costs in ((self._where, self._told_ns), (__file__, self._noted_ns)):
                self._timed_file = file
                costs |= dict.fromkeys(events, 0.0)
                took_ns = self._idle_watched_ns(function) - alone_ns
                costs |= dict.fromkeys(events, max(0.0, took_ns) / (2 * IDLE_CALLS))
        self._timed_file = self._where

    def _idle_watched_ns(self, function: Callable[[int], Any]) -> float:
        """Ns of processor time for calls that do next to nothing, without the known cost of watching."""
        spent_ns: list[float] = []

        def run() -> None:
            """Times an idle function IDLE_ROUNDS times under the hook, less the time that the hook itself recorded."""
            for _ in range(IDLE_ROUNDS):
                before_ns = self._watching_ns
                spent_ns.append(_idle_ns(function) - (self._watching_ns - before_ns))

        self._calls, self._outside, self._outermost = {}, None, None
        self._watch(run)
        return min(spent_ns)

    def report(self) -> Observations:
        """All records so far as JSON: events, new libraries, kept values, Triton kernels, unnamed code, printed text at
        exit."""
        self.enter(self.phase)
        libraries, _ = executable_maps()
        return {
            "events": list(self._seen),
            "libraries": sorted(libraries - self._libraries),
            "kept": self._kept,
            "tritons": sorted(self._tritons),
            "unnamed": self._unnamed,
            "printed": self._at_exit.printed(),
            "arithmetic": procfs.arithmetic(),
        }


@dataclass(frozen=True)
class WatchPlan:
    """Numbers of calls that are recorded, and of those before; whether PyTorch's operators are timed."""

    calls: int
    late: int
    timed: bool


def watched_calls(
    observer: Observer,
    call: Callable[[bool], list[OperatorRow]],
    forward: Callable[[], Any],
    hide: Callable[[Callable[[], Any]], Any],
    plan: WatchPlan,
    clock: Callable[[], int],
) -> Observations:
    """All observations: acts since loading, calls of a steady forward, and PyTorch's operators.

    `call` makes one call, and returns PyTorch's operators in it if told to record them. The steady calls come after
    `late` others; the operators are those of the heaviest of `calls` later ones, so that a candidate that alternates
    with PyTorch is seen. `timed` also asks for the operators' time, of `forward` alone in one `hide`, because hiding
    the grader for each call takes as long as 0.3 ms of arithmetic.
    """
    observer.enter("first")
    first = call(True)
    stop = clock() + LATE_NS
    for _ in range(plan.late):
        if clock() > stop:
            break
        call(False)
    calls = observer.steady(lambda: call(False))
    seen = observer.report()
    logs: list[list[OperatorRow]] = []
    begin = clock()
    while len(logs) < 2 or (len(logs) < plan.calls and clock() - begin < OBSERVED_NS):
        logs.append(call(True))
    heaviest = max(logs, key=lambda log: sum(row["flops"] + row["bytes"] for row in log), default=[])
    beside = record_beside(lambda: call(False)) if observer.has_threads or observer.is_called_back else []
    beside += record_hidden(lambda: call(False), heaviest, clock)
    prepared_by = sorted({row["op"].split(".")[1] for row in first if "." in row["op"]})
    seen |= {"calls": calls, "operators": heaviest, "prepared_by": prepared_by, "beside": beside}
    if plan.timed:
        share, longest = hide(lambda: time_operators(forward, clock))
        seen |= {"torch_time": share, "longest": longest}
    return seen


def _idle_ns(function: Callable[[int], Any]) -> int:
    """Ns of processor time for calls of a function that does next to nothing."""
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
    """Raises ctypes' audit event for a function that cffi looked up, and passes the function on."""
    sys.audit("ctypes.dlsym", path, name)
    return function


def _triton_folder() -> str:
    """Triton's folder, "" if it is not installed; found before the candidate's code runs."""
    found = importlib.util.find_spec("triton")
    return str(Path(found.origin).parent) if found is not None and found.origin else ""


class Array(np.ndarray):
    """A NumPy array made from a tensor, whose arithmetic passes through Python functions and so is observed."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as a plain array: this class cannot be found by name while it is hidden."""
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Runs a NumPy function on plain arrays and marks its result as observed, too."""
        plain = [_unmarked(item) for item in inputs]
        options = {key: _unmarked(value) for key, value in kwargs.items()}
        result = getattr(function, method)(*plain, **options)
        return result.view(Array) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Calls NumPy's function as usual; the call is observed, because this is Python."""
        return super().__array_function__(function, types, args, kwargs)


def _watched_method(name: str) -> Callable[..., Any]:
    """A method of plain arrays as a Python function, because nothing else shows calls of it by native code."""
    function = getattr(np.ndarray, name)

    def __array_function__(self: Array, *args: Any, **kwargs: Any) -> Any:
        """Calls the watched function with plain arrays in place of marked ones."""
        return function(self.view(np.ndarray), *map(_unmarked, args), **kwargs)

    return __array_function__


for _name in words(
    "sort argsort partition argpartition searchsorted cumsum cumprod sum prod mean std var max min argmax argmin ptp "
    "any all clip dot round trace take choose compress repeat put nonzero conj conjugate byteswap"
):
    if hasattr(np.ndarray, _name):  # NumPy 2 lacks some of them
        setattr(Array, _name, _watched_method(_name))


def _unmarked(value: Any) -> Any:
    """The plain array behind an Array, also inside a tuple."""
    if isinstance(value, tuple):
        return tuple(_unmarked(item) for item in value)
    return value.view(np.ndarray) if isinstance(value, Array) else value


def _mark_arrays() -> None:
    """Makes arrays from tensors observable: NumPy's operators are invisible to PyTorch's dispatcher and Python's
    profiler."""
    plain_numpy = torch.Tensor.numpy

    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The tensor's array, marked as one that came from a tensor."""
        return plain_numpy(self, *args, **kwargs).view(Array)

    torch.Tensor.numpy = numpy  # type: ignore[method-assign,assignment]


def executable_maps() -> tuple[set[str], dict[str, int]]:
    """(files mapped as code, unnamed executable memory: start -> bytes) of this process."""
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
    """The dotted name of a built-in function object: `time.perf_counter`."""
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ndarray):  # one from a tensor has a class of ours
        return f"numpy.ndarray.{function.__name__}"
    if not module and owner is not None and not isinstance(owner, type(sys)):
        module = type(owner).__module__
    return f"{module}.{getattr(function, '__qualname__', '?')}"


def _plain(value: Any) -> str:
    """A library's path, else the plain text of the value."""
    return str(value._name) if isinstance(value, ctypes.CDLL) else plain(value)
