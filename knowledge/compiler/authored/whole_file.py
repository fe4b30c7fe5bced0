"""Texts that an author's whole file names by one line each: the target's header, Foundry's build, the task's model.

A task that no tracer follows has no graph to wrap a kernel for, so its author writes the Python around it. With these
lines that is a few lines more than the kernel, and the file is built as the library's own: in a second, with the
compiler's errors, its registers and its machine code. `expand` writes the texts out; `agents/words/source.py` shows a
file with the lines in their place.
"""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping

from foundry.knowledge.compiler.cpu import module as cpu_module
from foundry.knowledge.compiler.cuda import module as cuda_module
from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.file.assemble import split_task
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.device import Device, TargetName

HEADER, BUILD, MODEL = "// @foundry header@", "# @foundry build@", "# @foundry model@"  # lines of an author's file
_BEGIN, _END = "----- begin", "----- end"  # stand behind such a line once it is written out
REGION = re.compile(
    rf"^(// @foundry header@|# @foundry build@|# @foundry model@) {_BEGIN}$.*?^\1 {_END}[^\n]*$",
    re.DOTALL | re.MULTILINE,
)
_LINE = re.compile(r"^(// @foundry header@|# @foundry build@|# @foundry model@)(?! -----)[^\n]*$", re.MULTILINE)
# Of a target's module template: what finds, compiles and loads SOURCE.
_LOADERS: Mapping[TargetName, tuple[str, str]] = {
    "cpu": ("def _machine():", "def _load():"),
    "cuda": ("def _compiler():", "class _Map:"),
}
_IMPORTS: Mapping[TargetName, str] = {
    "cpu": "ctypes hashlib json os pathlib platform subprocess tempfile",
    "cuda": "ctypes hashlib json os pathlib shutil subprocess sysconfig tempfile threading",
}
_VALUE = '''def _value(value, whole, real):
    """An argument as native code takes it: the pointer of a tensor, or a number of one of two types."""
    if isinstance(value, torch.Tensor):
        if not value.is_contiguous():
            raise ValueError(f"a tensor with strides {value.stride()} is not contiguous: pass x.contiguous()")
        return ctypes.c_void_p(value.data_ptr())
    return real(value) if isinstance(value, float) else whole(value)
'''
_CALLS: Mapping[TargetName, str] = {
    "cpu": '''_LIBRARY = ctypes.CDLL(_library_path())


def call(function, *values):
    """Calls a function of SOURCE with pointers, `long` and `double`; returns what a function of type `long` does."""
    found = getattr(_LIBRARY, function)
    found.restype = ctypes.c_long
    return found(*[_value(value, ctypes.c_long, ctypes.c_double) for value in values])
''',
    "cuda": '''def launch(kernel, grid, block, *values, shared_bytes=0):
    """Launches a kernel of SOURCE on the current stream with pointers of tensors, `long long` and `float`."""
    driver, function = _driver(), ctypes.c_void_p()
    module = _module(torch.cuda.current_device())
    _succeed(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()), kernel)
    if shared_bytes:
        _succeed(driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes), kernel)
    sizes = [(*extents, 1, 1, 1)[:3] for extents in (grid, block)]
    stream = torch.cuda.current_stream().cuda_stream
    config = _Config(*sizes[0], *sizes[1], shared_bytes, stream, None, 0)
    given = [_value(value, ctypes.c_longlong, ctypes.c_float) for value in values]
    places = (ctypes.c_void_p * max(len(given), 1))(*[ctypes.addressof(value) for value in given])
    _succeed(driver.cuLaunchKernelEx(ctypes.byref(config), function, places, None), f"launching {kernel}")
''',
}


def expand(text: str, device: Device, task_source: str, overrides: Mapping[str, int]) -> str:
    """The author's file with each of its lines written out; a file that has none stays as it is."""
    target = device.target

    def written(found: re.Match[str]) -> str:
        line = found[1]
        if line == HEADER:
            inside = read_library_text("cpu/runtime.h") if target == "cpu" else runtime_header()
            at = text.count("\n", _source_start(text, found.start()), found.start()) + 1
            return f'{line} {_BEGIN}\n{inside.strip()}\n#line {at} "kernel"\n{line} {_END}'
        inside = _build(device) if line == BUILD else split_task(task_source, overrides)[1]
        return f"{line} {_BEGIN}\n{inside.strip()}\n{line} {_END}"

    return _LINE.sub(written, text)


def _source_start(text: str, position: int) -> int:
    """Where the string that holds the header begins: the compiler's messages count the lines of the author's code."""
    return max(text.rfind('"""', 0, position), 0)


def _build(device: Device) -> str:
    """Python text: FOUNDRY, the loader of the target's module files, and one function that calls into SOURCE."""
    target = device.target
    first, last = _LOADERS[target]
    template = read_library_text(f"{target}/module.py.txt")
    loader = template[template.index(first) : template.index(last)].rstrip()
    flags = cpu_module.FLAGS if target == "cpu" else cuda_module.FLAGS
    about: dict[str, object] = {"target": target, "compiler": "g++" if target == "cpu" else "nvcc", "flags": [*flags]}
    if target == "cuda":
        about |= {"arch": device.arch, "launches": {}}
    imports = "\n".join(f"import {name}" for name in [*_IMPORTS[target].split(), "torch"])
    told = pprint.pformat(about, width=110, sort_dicts=False)
    return f"{imports}\n\nFOUNDRY = {told}\n\n\n{loader}\n\n\n{_VALUE}\n\n{_CALLS[target]}"
