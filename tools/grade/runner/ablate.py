"""Runs a candidate with its own native code disabled (ablation). Runs in a runner (imports torch).

`install` must precede the candidate's text. From then on Python cannot reach native code that the candidate built or
loaded: functions of libraries opened by ctypes and cffi, of extension modules and of operators that they register, and
launches of device code. An output that is still right was then computed by other code, whatever its name.

There are two ways, because a candidate may test if its native code works:

- "silent": a ctypes function returns zero without being called.
- "undone": it is called in a forked child, so that its return value is genuine and its effects are lost.

Functions of extensions return tensors of shapes that only they know, so they run in both ways, and everything they
wrote or returned is overwritten. Numbers they return are zero under "silent".
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import os
import re
import select
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch._ops

Way = Literal["silent", "undone"]

CHILD_S = 20.0  # seconds that a native function may take in its forked child
# NVIDIA's own libraries keep working (a module must load, a context must exist); only launches of device code are cut.
_VENDOR_RUNTIME = re.compile(r"lib(?:cuda|cudart|nvrtc|nvidia-[\w-]+)(?:\.so|-|\b)")
_LAUNCH = re.compile(r"cu(?:da)?(?:Graph)?Launch\w*")


class Silenced:
    """Names of the native functions that were called and did nothing."""

    def __init__(self, way: Way) -> None:
        """`way` is "silent" (functions do nothing) or "undone"; `names` collects the functions that were asked for."""
        self.way = way
        self.names: set[str] = set()


def install(way: Way) -> Silenced:
    """Cuts the process off from native code that is loaded from now on, for good."""
    silenced = Silenced(way)
    torch.set_num_threads(1)  # a pool of threads would not survive the forks of `undone`
    _cut_ctypes(silenced)
    _cut_cffi(silenced)
    _cut_extensions(silenced)
    _cut_operators(silenced)
    _cut_launches(silenced)
    return silenced


# ---------------------------------------------------------------- ctypes


def _cut_ctypes(silenced: Silenced) -> None:
    """Replaces ctypes' constructors, so that calls of libraries opened from now on, or of an address, do nothing."""
    plain_init = ctypes.CDLL.__init__

    @functools.wraps(plain_init)
    def init(self: ctypes.CDLL, *args: Any, **kwargs: Any) -> None:
        """Opens a library and replaces its kind of function pointers."""
        plain_init(self, *args, **kwargs)
        vars(self)["_FuncPtr"] = _cut(vars(self)["_FuncPtr"], str(self._name), silenced)

    ctypes.CDLL.__init__ = init  # type: ignore[method-assign]
    for name in ("CFUNCTYPE", "PYFUNCTYPE"):
        plain = getattr(ctypes, name)

        def make(*args: Any, plain: Callable[..., Any] = plain, **kwargs: Any) -> Any:
            """Makes a type of function pointers as before; calls of its functions do nothing."""
            return _cut(plain(*args, **kwargs), "", silenced)

        setattr(ctypes, name, make)


def _cut(kind: Any, library: str, silenced: Silenced) -> Any:
    """A class of function pointers like `kind` whose calls do nothing or are undone; a CUDA runtime's harmless ones
    still work."""
    own = {name: getattr(kind, name) for name in ("_flags_", "_restype_", "_argtypes_") if hasattr(kind, name)}
    is_runtime = bool(_VENDOR_RUNTIME.match(library.rsplit("/", 1)[-1]))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Records the name and does nothing, or runs the real function in a child whose writes are lost ("undone").

        Calls of the CUDA runtime that launch no kernel pass.
        """
        name = str(getattr(self, "__name__", "a function pointer"))
        if is_runtime and not _LAUNCH.match(name):
            return kind.__call__(self, *args, **kwargs)
        silenced.names.add(name)
        real = functools.partial(kind.__call__, self, *args, **kwargs)
        if silenced.way == "undone" and not _on_cuda():
            return _in_child(real, self.restype)
        return _nothing(self.restype)

    return type(kind)("_Cut", (kind,), {**own, "__call__": call})


def _on_cuda() -> bool:
    """True if CUDA is initialised: such a process cannot be forked."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _nothing(restype: Any) -> Any:
    """The Python value of a ctypes function that returns zero bytes."""
    if restype is None:
        return None
    if not isinstance(restype, type):
        return 0  # a callable that checks the returned int
    value = restype()
    return getattr(value, "value", value)


def _in_child(real: Callable[[], Any], restype: Any) -> Any:
    """Runs a function in a forked child, whose writes are lost; its integer result.

    Returns a zero of type `restype` if it gives none within CHILD_S seconds; the child is killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            value = real()
            os.write(writing, str(int(value)).encode() if isinstance(value, int) else b"")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        answer = os.read(reading, 64) if select.select([reading], [], [], CHILD_S)[0] else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return int(answer) if answer else _nothing(restype)


# ---------------------------------------------------------------- cffi

Found = Callable[[str, str, Any, Any], Any]  # (library, name, type, function) -> the function that the candidate gets


class FollowedLibrary:
    """A library opened by cffi, each function of which passes through `found` on its way to the candidate."""

    def __init__(self, library: Any, path: str, found: Found) -> None:
        """Wraps a library; `found` is called with each function that is loaded from it."""
        self._library, self._path, self._found = library, path, found

    def load_function(self, kind: Any, name: str) -> Any:
        """Loads a function and returns what `found` makes of it."""
        return self._found(self._path, name, kind, self._library.load_function(kind, name))

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the library's own."""
        return getattr(self._library, name)


def follow_cffi(opens: Callable[[Any], None], found: Found) -> None:
    """Calls `opens` before cffi opens a library (ABI mode), and `found` for each function looked up in it.

    cffi's other ways to native code are not cut, so a candidate that needs them fails the ablation.
    """
    if importlib.util.find_spec("_cffi_backend") is None:
        return
    backend = importlib.import_module("_cffi_backend")
    plain = backend.load_library

    def load_library(path: Any = None, *args: Any) -> FollowedLibrary:
        """Opens a library by cffi, after telling `opens`, and wraps it."""
        opens(path)
        return FollowedLibrary(plain(path, *args), str(path), found)

    backend.load_library = load_library  # type: ignore[attr-defined]


def _cut_cffi(silenced: Silenced) -> None:
    """Replaces functions of libraries that cffi opens from now on by ones that do nothing or are undone."""

    def cut(path: str, name: str, kind: Any, function: Any) -> Any:
        """A replacement for a native function that cffi looked up."""
        result = getattr(kind, "result", None)
        restype = None if result is None or result.kind == "void" else ctypes.c_long

        def call(*args: Any) -> Any:
            """Records the name and does nothing, or runs the real function in a child."""
            silenced.names.add(name)
            if silenced.way == "undone" and not _on_cuda():
                return _in_child(functools.partial(function, *args), restype)
            return _nothing(restype)

        return call

    follow_cffi(lambda path: None, cut)


# ---------------------------------------------------------------- extensions and the operators they register


def _cut_extensions(silenced: Silenced) -> None:
    """Cuts extension modules loaded from now on (load, load_inline, importlib), except those of installed packages."""
    loader = importlib.machinery.ExtensionFileLoader
    plain = loader.exec_module
    installed = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})

    def exec_module(self: Any, module: Any) -> None:
        """Loads an extension module; disables its native functions unless it is an installed package's."""
        plain(self, module)
        if not str(self.path).startswith(installed):
            _cut_members(module, silenced)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _cut_members(holder: Any, silenced: Silenced) -> None:
    """Cuts the functions of a module, and methods of the classes it exports."""
    for name, member in list(vars(holder).items()):
        if isinstance(member, type):
            _cut_members(member, silenced)
        elif callable(member) and (not name.startswith("__") or name == "__call__"):
            setattr(holder, name, _undone(member, name, silenced))


def _cut_operators(silenced: Silenced) -> None:
    """Wraps PyTorch's operator calls, so that operators registered from now on are undone."""
    known = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
        plain: Callable[..., Any] = kind.__call__

        def call(self: Any, /, *args: Any, plain: Callable[..., Any] = plain, **kwargs: Any) -> Any:
            """Runs a PyTorch operator; undoes it if it was not known before the candidate's text ran."""
            name = str(getattr(self, "_name", None) or getattr(self, "_qualified_op_name", "")).split(".")[0]
            if name in known:
                return plain(self, *args, **kwargs)
            return _undone(functools.partial(plain, self), name, silenced)(*args, **kwargs)

        kind.__call__ = call  # type: ignore[method-assign,assignment]


def _undone(real: Callable[..., Any], name: str, silenced: Silenced) -> Callable[..., Any]:
    """Wraps `real`: afterwards every tensor holds its old content and the results hold nothing of use."""

    def call(*args: Any, **kwargs: Any) -> Any:
        """Runs the real function, undoes its writes to known memory and returns its result emptied."""
        silenced.names.add(name)
        held = [(memory, memory.clone()) for memory in _memories()]
        result = real(*args, **kwargs)
        for memory, before in held:
            if not torch.equal(memory, before):  # the grader's own copies cannot even be written
                memory.copy_(before)
        return _emptied(result, {memory.data_ptr() for memory, _ in held}, silenced.way)

    return call


def _memories() -> Iterator[torch.Tensor]:
    """The bytes behind every tensor alive in this process, each memory once."""
    seen: set[int] = set()
    for item in gc.get_objects():
        if type(item) in (torch.Tensor, torch.nn.Parameter) and item.layout is torch.strided and not item.is_meta:
            storage = item.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                with torch.no_grad():
                    yield torch.empty(0, dtype=torch.uint8, device=item.device).set_(storage)


def _emptied(result: Any, known: set[int], way: Way) -> Any:
    """A native function's result without its content: new tensors filled with NaN or 0, floats 0, integers 0 if `way`
    is silent.

    Tensors in memory that was known before stay.
    """
    if isinstance(result, torch.Tensor):
        if result.untyped_storage().data_ptr() not in known:
            with torch.no_grad():
                result.detach().fill_(float("nan") if result.is_floating_point() else 0)
        return result
    if isinstance(result, list | tuple) and type(result) in (list, tuple):
        return type(result)(_emptied(item, known, way) for item in result)
    if isinstance(result, dict):
        return {key: _emptied(item, known, way) for key, item in result.items()}
    if isinstance(result, float) or (way == "silent" and isinstance(result, int)):
        return type(result)(0)
    return result


# ---------------------------------------------------------------- device code


def _cut_launches(silenced: Silenced) -> None:
    """Cuts launches of Triton, of PyTorch's own run-time compiler and of NVIDIA's Python bindings."""

    def nothing(name: str, value: Any = None) -> Callable[..., Any]:
        """A function that records `name` and returns `value`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            """Records the name and returns the value."""
            silenced.names.add(name)
            return value

        return call

    if importlib.util.find_spec("triton") is not None:
        autotuner = importlib.import_module("triton.runtime.autotuner")
        jit = importlib.import_module("triton.runtime.jit")
        for kind in (jit.JITFunction, autotuner.Autotuner, autotuner.Heuristics):
            kind.run = nothing("a Triton kernel")
    kernel = getattr(sys.modules.get("torch.cuda._utils"), "_CudaKernel", None)
    if kernel is not None:
        kernel.__call__ = nothing("a kernel of torch.cuda._compile_kernel")
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None:
        driver = importlib.import_module("cuda.bindings.driver")
        for name in filter(_LAUNCH.match, dir(driver)):
            setattr(driver, name, nothing(name, (driver.CUresult.CUDA_SUCCESS,)))
