"""Checks that a candidate leaves its process as it found it: functions, flags, hooks, signals, children.

`snapshot` is taken before the candidate's code is loaded; `differences` lists later changes, each with the gate that
it fails. Side effects of honest code (imports, a parked OpenMP pool, a CUDA context, compiler settings in the
environment) do not count. Imports torch.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional
import torch.nn.modules.module as module_hooks
from pydantic import BaseModel
from torch._dynamo.mutation_guard import install_generation_tagging_init

from foundry.tools.process import imports, procfs
from foundry.tools.protocol.orders import FUNCTIONS, PROCESSES, STATE
from foundry.tools.words import words

Snapshot = dict[str, Any]


class Model(torch.nn.Module):
    """Stands in for a benchmark's reference: code that slows down `__main__.Model` slows down this class too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns its input."""
        return x


Model.__module__ = "__main__"
_MODULES = (torch, torch.nn.functional, torch.cuda, torch.nn.init, ctypes, time, builtins, gc, json, os, mmap, sys)
_CLASSES = (
    torch.Tensor,
    torch._C.TensorBase,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.cuda.Event,
    torch.cuda.Stream,
    BaseModel,
    json.JSONEncoder,
    json.JSONDecoder,
    Model,
)
_OURS = "foundry."
_PERSISTING_L2_CACHE_SIZE = 6  # CUlimit
_CONSTANTS = (bool, int, float, str, bytes)

# Variables that compilers and their wrappers read, so that honest files set them.
_FREE_ENVIRONMENT = tuple(
    words(
        "TORCH_ NVCC_ CUDA_HOME CUDA_PATH CUDA_ARCH CUDA_MODULE_LOADING CUDAHOSTCXX CC CXX CFLAGS CXXFLAGS LDFLAGS "
        "MAX_JOBS NINJA PATH TORCHINDUCTOR_ _TORCHINDUCTOR_ TRITON_ LD_LIBRARY_PATH LIBRARY_PATH CPATH TMPDIR TEMP "
        "DISTUTILS_ SETUPTOOLS_ VSLANG PYTORCH_NVML_BASED_CUDA_CHECK "
        "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF KMP_DUPLICATE_LIB_OK KMP_INIT_AT_FORK"
    )
)
_COMPILERS = re.compile(r"lib(?:triton|LLVM|cuda|nvrtc|nvJitLink|nvptxcompiler)\b[\w.+-]*\.so[.\d]*")
_WRITABLE = ("/tmp/", "/dev/shm/")  # writable for every candidate, besides its working directory
_MAY_BE_REPLACED = ("distutils", "_distutils_hack", "setuptools", "pkg_resources")  # packages that replace each other
_OVERRIDABLE = words(
    "copy_ empty.memory_format mm addmm bmm add.Tensor mul.Tensor clone equal convolution native_layer_norm _softmax "
    "relu sum.dim_IntList uniform_ normal_"
)
DENORMALS = "denormal numbers"
_TORCH = str(Path(torch.__file__).parent)
_HOOKS = [name for name, value in vars(module_hooks).items() if name.startswith("_global_") and isinstance(value, dict)]

# torch.compile counts modules by an __init__ and a __setstate__ of its own.
_DYNAMOS_OWN = tuple(
    code for code in install_generation_tagging_init.__code__.co_consts if isinstance(code, types.CodeType)
)


def snapshot(*, thorough: bool = False) -> Snapshot:
    """The watched state, as live objects. `thorough` reads the mapped machine code too (10 ms)."""
    return {
        FUNCTIONS: _functions(),
        "constants": _constants(),
        "modules": dict(sys.modules),
        "environment": dict(os.environ),
        "flags": _flags(),
        "CUDA flags": _cuda_flags(),
        "hooks": _hooks(),
        "operators": {name: torch._C._dispatch_dump(f"aten::{name}") for name in _OVERRIDABLE},
        "overridden": _overridden() if thorough else [],
        "signals": _signals(),
        "children": procfs.children(),
        "files": procfs.open_files(),
        "thorough": thorough,
        "mapped": procfs.mapped_code(),
        "patched": procfs.patched_code() if thorough else [],
    }


def differences(before: Snapshot, after: Snapshot) -> list[tuple[str, str]]:
    """(gate, the change in words) for each change that breaks a rule.

    After a thorough snapshot also calls of the interpreter and the C library that lead elsewhere than before.
    """
    found = [(FUNCTIONS, text) for text in _changed_functions(before[FUNCTIONS], after[FUNCTIONS])]
    patched = [path for path in after["patched"] if path in before["mapped"]]
    found += [(FUNCTIONS, f"the machine code of {path} was patched") for path in patched]
    if after["thorough"]:
        found += [(FUNCTIONS, text) for text in imports.find_redirected(before["mapped"])]
    found += [(STATE, text) for text in _changed_state(before, after)]
    found += [(PROCESSES, text) for text in _left_behind(before, after)]
    return found


def private() -> tuple[Callable[..., Snapshot], Callable[[Snapshot, Snapshot], list[tuple[str, str]]]]:
    """Copies of `snapshot` and `differences` with names of their own, which later assignments to modules or builtins
    miss."""
    names: dict[str, Any] = {**globals(), "__builtins__": dict(vars(builtins))}
    for name, value in list(names.items()):
        if isinstance(value, types.FunctionType) and value.__module__ == __name__:
            copy = types.FunctionType(value.__code__, names, name, value.__defaults__, value.__closure__)
            copy.__kwdefaults__ = value.__kwdefaults__
            names[name] = copy
    return names["snapshot"], names["differences"]


# ---------------------------------------------------------------- functions


def _owners() -> Iterator[tuple[str, Any]]:
    """(name, object) of each module and class whose functions are watched."""
    for module in _MODULES:
        yield module.__name__, module
    for kind in _CLASSES:
        yield _name_of(kind), kind
    for name, kind in list(vars(torch.nn).items()):
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind is not torch.nn.Module:
            yield f"torch.nn.{name}", kind
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            yield name, module
            for kind in list(vars(module).values()):
                if isinstance(kind, type) and kind.__module__ == name:
                    yield _name_of(kind), kind


def _name_of(kind: type) -> str:
    """ "module.qualified name" of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _functions() -> dict[str, tuple[Any, dict[str, tuple[Any, ...]]]]:
    """Owner -> (owner, its names -> (object, code, defaults, keyword defaults, C entry point))."""
    found: dict[str, tuple[Any, dict[str, tuple[Any, ...]]]] = {}
    for owner, thing in _owners():
        found[owner] = (thing, {name: _identity(value) for name, value in list(vars(thing).items()) if _is_code(value)})
    return found


def _is_code(value: Any) -> bool:
    """True for a function, method or property."""
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


def _identity(value: Any) -> tuple[Any, ...]:
    """A function's identity: object, code, defaults and C entry point, which replacing or patching it changes."""
    inner = value
    if isinstance(value, staticmethod | classmethod):
        inner = value.__func__
    elif isinstance(value, property):
        inner = value.fget
    if isinstance(inner, types.FunctionType):
        code = inner.__code__
        body = code.co_code if (inner.__module__ or "").startswith(_OURS) else b""
        keywords = tuple((name, id(default)) for name, default in (inner.__kwdefaults__ or {}).items())
        return (value, code, inner.__defaults__, keywords, body)
    return (value, None, None, (), procfs.entry_point(inner))


def _changed_functions(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Functions that were replaced, removed, hidden, or whose code was changed, in words."""
    found: list[str] = []
    for owner, (thing, known) in before.items():
        now = after[owner][1] if owner in after else {}
        for name, old in known.items():
            new = now.get(name)
            if new is None:
                found.append(f"{owner}.{name} was removed or is no function any more")
            elif new[0] is not old[0] and new[1] not in _DYNAMOS_OWN:
                found.append(f"{owner}.{name} was replaced")
            elif new[0] is old[0] and (new[1] is not old[1] or new[2] is not old[2] or new[3:] != old[3:]):
                found.append(f"the code of {owner}.{name} was changed")
        added = [name for name in now if name not in known]
        found += [f"{owner}.{name} now hides {what}" for name in added for what in _hidden(thing, name)]
    return found


def _hidden(owner: Any, name: str) -> list[str]:
    """The names that a new name of a module or class hides."""
    if isinstance(owner, type):
        return [f"{base.__name__}.{name}" for base in owner.__mro__[1:-1] if name in vars(base)][:1]
    return [f"the built-in {name}"] if hasattr(builtins, name) and owner is not builtins else []


def _constants() -> dict[str, Any]:
    """Plain values (limits, patterns, names) in the grader's own modules, by "module.name"."""
    return {
        f"{name}.{key}": value
        for name, module in list(sys.modules.items())
        if name.startswith(_OURS)
        for key, value in list(vars(module).items())
        if isinstance(value, _CONSTANTS) and not key.startswith("__")
    }


# ---------------------------------------------------------------- state


def _flags() -> dict[str, Any]:
    """Settings of PyTorch and the process that a candidate must not change, by the name that a user knows."""
    backends = torch.backends
    flags: dict[str, Any] = {
        **procfs.arithmetic(),  # first: the others are compared in this arithmetic
        "whether mallopt maps blocks of 96 KB one by one": _maps_small_blocks(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_num_interop_threads()": torch.get_num_interop_threads(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": str(torch.get_default_device()),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.backends.mkldnn.enabled": torch._C._get_mkldnn_enabled(),
        "torch.backends.cudnn.enabled": torch._C._get_cudnn_enabled(),
        "torch.backends.cudnn.deterministic": backends.cudnn.deterministic,
        "scaled dot product backends": (
            torch._C._get_flash_sdp_enabled(),
            torch._C._get_mem_efficient_sdp_enabled(),
            torch._C._get_math_sdp_enabled(),
        ),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "autocast on CUDA": torch.is_autocast_enabled("cuda"),
        "torch function modes": torch._C._len_torch_function_stack(),
        "torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "the process's cores": os.sched_getaffinity(0),
        "the process's priority": os.getpriority(os.PRIO_PROCESS, 0),
        "the working directory": str(Path.cwd()),
        "sys.getswitchinterval()": sys.getswitchinterval(),
        "bfloat16 in float32 matrix products": _setting(
            getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"
        )
        == "bf16",
    }
    return flags


def _cuda_flags() -> dict[str, Any]:
    """Settings that change the results of a GPU."""
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    flags = {f"torch.backends.cuda.matmul.{name}": _setting(torch.backends.cuda.matmul, name) for name in names}
    flags["torch.backends.cudnn.allow_tf32"] = _setting(torch.backends.cudnn, "allow_tf32")
    if _is_cuda_in_use():
        flags["the current CUDA stream"] = torch.cuda.current_stream().cuda_stream
        flags["the bytes of the L2 cache set aside for lines that persist"] = _set_aside_bytes()
    return flags


def _set_aside_bytes() -> int:
    """Bytes of the L2 cache that this context keeps for persisting lines; 0 if the driver does not tell."""
    found = ctypes.c_size_t(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuCtxGetLimit(ctypes.byref(found), _PERSISTING_L2_CACHE_SIZE)
    except (OSError, AttributeError):
        return 0
    return found.value


class _Mallinfo(ctypes.Structure):
    """C struct mallinfo2 of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in words("arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost")
    ]


# Looked up here, before the candidate's look-ups are watched.
_LIBC = ctypes.CDLL(None)
_MALLOC, _FREE, _MALLINFO = _LIBC.malloc, _LIBC.free, getattr(_LIBC, "mallinfo2", None)
_MALLOC.restype, _MALLOC.argtypes, _FREE.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if _MALLINFO is not None:
    _MALLINFO.restype = _Mallinfo


def _maps_small_blocks() -> bool:
    """True if the C library gets a block of 96 KB by mmap.

    Its default is 128 KB and more, unless mallopt lowers it; then this process's tensors cost page faults (glibc
    from 2.33).
    """
    if _MALLINFO is None:
        return False
    before, size = _MALLINFO(), 96 << 10
    blocks = [_MALLOC(size) for _ in range(before.fordblks // size + 4)]  # more than the free memory holds
    mapped = _MALLINFO().hblks > before.hblks
    for block in blocks:
        _FREE(block)
    return bool(mapped)


def _setting(owner: Any, name: str) -> Any:
    """The value of a setting; the message if torch refuses because old and new names of the setting disagree."""
    try:
        return getattr(owner, name)
    except (RuntimeError, AttributeError) as error:  # torch refuses when old and new names of a setting disagree
        return str(error)[:80]


def _is_cuda_in_use() -> bool:
    """True if this process has initialised CUDA through PyTorch."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _hooks() -> dict[str, Any]:
    """Registered code that runs at other code's calls: traces, profilers, exception hooks, timers, module hooks."""
    return {
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
        "sys.excepthook": sys.excepthook,
        "sys.displayhook": sys.displayhook,
        "gc.callbacks": list(gc.callbacks),
        "the interval timers": tuple(signal.getitimer(kind)[1] for kind in (signal.ITIMER_REAL, signal.ITIMER_PROF)),
        **{f"torch.nn.modules.module.{name}": list(vars(module_hooks)[name].values()) for name in _HOOKS},
    }


def _operators() -> dict[str, str]:
    """PyTorch's dispatch table for each of its own operators (0.1 s)."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return {name: torch._C._dispatch_dump(name) for name in names}


# Read before any candidate runs; worker processes are forked from a process that has it.
_FIRST_OPERATORS = _operators()


def _overridden() -> list[str]:
    """PyTorch's operators that got a kernel since, except from files of PyTorch's own, some of which are loaded late.

    A kernel that is replaced counts as inactive.
    """
    found = []
    for name, now in _operators().items():
        before = _FIRST_OPERATORS.get(name, now)
        new = set(now.splitlines()) - set(before.splitlines()) if now != before else set[str]()
        if any(f"registered at {_TORCH}/" not in line and "(inactive)" not in line for line in new):
            found.append(name)
    return found


def _signals() -> dict[str, Any]:
    """Masks and handlers of all signals."""
    masks = procfs.signal_masks()
    python = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {**masks, "handlers": python, "addresses": procfs.signal_handlers()}


def _changed_state(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Changes of constants, flags, hooks, modules, environment and signals, in words."""
    yield from _changed_values(before["constants"], after["constants"])
    flags = dict(after["flags"])
    if flags[DENORMALS] != before["flags"][DENORMALS] and procfs.flushes_by_flag(before["mapped"]):
        flags[DENORMALS] = before["flags"][DENORMALS]  # -ffast-math, which the audit labels or refuses
    yield from _changed_values(before["flags"], flags)
    if _is_cuda_in_use():
        yield from _changed_values(before["CUDA flags"], after["CUDA flags"])
    for name, old in before["hooks"].items():
        if after["hooks"][name] != old:
            yield f"{name} was set: code that runs at other code's calls"
    for name in before["operators"]:
        if before["operators"][name] != after["operators"][name]:
            yield f"PyTorch's own aten::{name} was given another kernel"
    for name in after["overridden"]:
        yield f"PyTorch's own {name} was given another kernel"
    for name, module in before["modules"].items():
        if after["modules"].get(name) is not module and not name.startswith(_MAY_BE_REPLACED):
            yield f"sys.modules[{name!r}] was replaced"
    for name in before["environment"].keys() | after["environment"].keys():
        is_free = any(name.startswith(item) for item in _FREE_ENVIRONMENT)
        if before["environment"].get(name) != after["environment"].get(name) and not is_free:
            yield f"the environment variable {name} was changed"
    yield from _changed_signals(before["signals"], after["signals"], before["flags"]["the working directory"])


def _changed_values(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Values that differ, in words."""
    for name, old in before.items():
        if name in after and after[name] != old:
            yield f"{name} went from {old!r} to {after[name]!r}"[:200]


def _changed_signals(before: dict[str, Any], after: dict[str, Any], folder: str) -> Iterator[str]:
    """Signals that are newly ignored, blocked or handled, in words."""
    for mask, change in (("SigIgn", "is ignored now"), ("SigBlk", "is blocked now")):
        new = after[mask] & ~before[mask]
        for number in range(1, 65):
            if new >> (number - 1) & 1:
                yield f"{_signal_name(number)} {change}"
    scratch = (os.path.realpath(folder) + "/", *_WRITABLE)
    for number, address in after["addresses"].items():
        if address > 1 and address != before["addresses"].get(number) and not _is_a_compilers(address, scratch):
            yield f"{_signal_name(number)} has a handler now"
    for number, handler in before["handlers"].items():
        if after["handlers"].get(number) != handler:
            yield f"the handler of {_signal_name(number)} was replaced"


def _is_a_compilers(address: int, scratch: tuple[str, ...]) -> bool:
    """True if a handler belongs to Triton's compiler or the driver's, which remove their files when a signal ends
    the process."""
    path = procfs.file_of(address)
    return bool(_COMPILERS.fullmatch(Path(path).name)) and not path.startswith(scratch)


def _signal_name(number: int) -> str:
    """Name of a signal, or "signal N" for one without a name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


# ---------------------------------------------------------------- processes


def _left_behind(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Children, sockets and files that were left open, in words."""
    for pid, command in after["children"].items():
        if pid not in before["children"]:
            yield f"a child process was left running ({command or _begun_as(pid)})"
    scratch = [os.path.realpath(path) for path in (before["flags"]["the working directory"], *_build_folders(after))]
    for number, name in after["files"].items():
        if before["files"].get(number) == name:
            continue
        if name.endswith(":internet"):
            yield "a network socket was left open"
        elif name.endswith(":local") and not _is_cuda_in_use():
            yield "a socket to another process was left open"
        elif name.startswith("writes ") and not name.removeprefix("writes ").startswith(tuple(scratch)):
            yield f"{name.removeprefix('writes ')} was left open for writing"


def _begun_as(pid: int) -> str:
    """The command of a child whose name a sandbox hides, as subprocess recorded it."""
    begun = [item for item in gc.get_objects() if issubclass(type(item), subprocess.Popen)]
    command = next((item.args for item in begun if item.pid == pid), None)
    if command is None:
        return f"process {pid}, which subprocess did not start: a fork, or a library's"
    return command if isinstance(command, str) else " ".join(map(str, command))


def _build_folders(state: Snapshot) -> list[str]:
    """Folders into which compilers' wrappers write."""
    environment = state["environment"]
    names = ("TMPDIR", "FOUNDRY_BUILD_CACHE", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    home = environment.get("HOME", "/")
    return [environment[name] for name in names if environment.get(name)] + [f"{home}/.cache", f"{home}/.triton"]
