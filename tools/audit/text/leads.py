"""Finds leads in a candidate's text: names that choose which runs the audit makes, and never reject by themselves.

A lead is a cheap guess by a word: a false one costs a second of running, so it needs no exceptions. The observed
behaviour is judged in tools/audit/acts.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from foundry.tools.audit.text.forbidden import ALLOWED_IMPORTS, Suspicion, forbidden, is_seen_at_run_time
from foundry.tools.audit.text.native import native_texts, strip_comments
from foundry.tools.audit.text.source import CandidateSource, methods_of
from foundry.tools.words import words

MOST_SHOWN = 4
LARGEST_TABLE = 4096
_PRIVATE = frozenset(
    words(
        "__code__ __globals__ __closure__ __builtins__ __subclasses__ __bases__ __mro__ f_back f_locals f_globals "
        "tb_frame gi_frame __defaults__ __wrapped__ __loader__ __spec__ from_address in_dll __setattr__ __setitem__ "
        "__delattr__ __dict__"
    )
)
_AROUND_FORWARD = frozenset(
    words("__call__ _call_impl __getattribute__ __torch_function__ __torch_dispatch__ __class__ __new__ __reduce__")
)
_OF_TORCH = frozenset(  # functions of PyTorch that a binding calls
    words(
        "empty empty_like empty_strided zeros zeros_like new_empty is_tensor no_grad inference_mode current_stream "
        "current_device synchronize get_device_properties get_num_threads float32 float16 bfloat16 float64 int32 int64 "
        "contiguous_format device dtype Size Tensor Module Parameter get_device_capability is_available finfo"
    )
)
_VALUES = frozenset(words("item tolist data_ptr any all equal allclose sum max min mean"))  # suspicious in a condition
_NATIVE: tuple[tuple[Suspicion, re.Pattern[str]], ...] = (
    (
        Suspicion.SYSTEM,
        re.compile(
            r"\b(system|popen|v?fork|exec[lv]\w*|dlopen|dlsym|dlmopen|socket|connect|f?open|freopen|openat|creat|mprotect|"
            r"ptrace|process_vm_\w+|sigaction|signal|raise|kill|(?:secure_)?getenv|setenv|putenv|syscall|ioctl|shm_open|"
            r"posix_spawn|setjmp|longjmp|backtrace|[io]?fstream|filesystem|environ|memfd_create|userfaultfd)\b"
        ),
    ),
    (
        Suspicion.CLOCK,
        re.compile(r"\b(clock_gettime|gettimeofday|\w+_clock|cu(?:da)?EventElapsedTime|__?rdtscp?|clock64)\b"),
    ),
    (
        Suspicion.THREADS,
        re.compile(
            r"(?<!\w)(pthread_create|std::(?:jthread|thread|async)|thrd_create|c[ud]\w*StreamCreate\w*|cudaLaunchHostFunc|"
            r"cudaStreamAddCallback|getStreamFrom\w+|setCurrentCUDAStream)\b"
        ),
    ),
    (
        Suspicion.STATE,
        re.compile(
            r"\b(cudaDeviceSetLimit|cuda\w*PersistingL2\w*|cudaStreamSetAttribute|cudaDeviceReset|accessPolicyWindow|"
            r"_mm_setcsr|_MM_SET_\w+|fesetround|fesetenv|v?ldmxcsr|TORCH_LIBRARY_IMPL|Dispatcher)\b"
        ),
    ),
    (
        Suspicion.KEPT,
        re.compile(
            r"\b((?:static|thread_local)\s+(?!(?:inline|constexpr|void)\b)(?!const\b[^*;={]*[=\[{])[\w:<>,\s*&]+?)\s*[=;\[{]"
        ),
    ),
    (
        Suspicion.OTHERS_WORK,
        re.compile(
            r"\b(cublas\w*|cudnn\w*|cusparse\w*|cusolver\w*|cufft\w*|mkl_\w+|cblas_\w+|dnnl\w*|[sdcz](?:gemm|gemv|syrk|trsm)_|"
            r"cub::Device\w+|thrust::\w+|(?:at|torch)::(?:_ops|cpu|native|linalg|nn)::\w+|Py(?:Object|Import|Run|Eval)_\w+)\b"
        ),
    ),
    (Suspicion.HIDDEN, re.compile(r"(\.incbin|#\s*embed|##|\basm\b|\b__asm__\b|\.(?:byte|long|quad)\s+\d)")),
)


@dataclass(frozen=True)
class Lead:
    """A suspicion about a name as it is written, at a line of the file."""

    suspicion: Suspicion
    subject: str
    line: int


def leads_of(source: CandidateSource) -> list[Lead]:
    """Every lead in the statements that are the candidate's own, the most telling first."""
    found = [lead for statement in source.own for lead in _in_python(source, statement)]
    found += _in_native(source)
    return sorted(dict.fromkeys(found), key=lambda lead: (is_seen_at_run_time(lead.subject), lead.line))


def in_words(leads: Iterable[Lead]) -> str:
    """The first MOST_SHOWN leads as one sentence."""
    found = list(leads)
    shown = "; ".join(f"line {lead.line}: {lead.subject} {lead.suspicion.meaning}" for lead in found[:MOST_SHOWN])
    return shown + (f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else "")


# ---------------------------------------------------------------- Python


def _in_python(source: CandidateSource, statement: ast.stmt) -> Iterator[Lead]:
    """Yields leads to suspicious code in one top-level statement of the candidate's own.

    Imports, names, classes, swallowed exceptions, globals, conditions, matrix products, calls, large tables, private
    names, stores.
    """
    longer = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node)
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in longer:
            yield from _names(source, node)
        elif isinstance(node, ast.ClassDef):
            yield from _classes(source, node)
        elif isinstance(node, ast.Try | ast.TryStar):
            for handler in node.handlers:
                if not isinstance(handler.body[-1], ast.Raise):
                    yield Lead(Suspicion.FALLBACK, "except", handler.lineno)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield Lead(Suspicion.KEPT, ", ".join(node.names), node.lineno)
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield from _conditions(node.test)
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield Lead(Suspicion.OTHERS_WORK, "@", node.lineno)
        elif isinstance(node, ast.Call):
            yield from _calls(source, node)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set) and len(node.elts) > LARGEST_TABLE:
            yield Lead(Suspicion.PRECOMPUTED, f"a table of {len(node.elts)} values", node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes) and len(node.value) > LARGEST_TABLE:
            yield Lead(Suspicion.PRECOMPUTED, f"{len(node.value)} bytes of data", node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _PRIVATE:
            yield Lead(Suspicion.INTROSPECTION, repr(node.value), node.lineno)
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _stores(source, node)


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Lead]:
    """Leads for imports outside the allowed modules."""
    base = [f"{node.module or ''}."] if isinstance(node, ast.ImportFrom) else [""]
    for name in (base[0] + alias.name for alias in node.names):
        if name.split(".")[0] not in ALLOWED_IMPORTS or name.endswith("*"):
            yield Lead(Suspicion.OTHERS_WORK, f"import {name}", node.lineno)


def _names(source: CandidateSource, node: ast.Name | ast.Attribute) -> Iterator[Lead]:
    """Yields leads for forbidden names, private attributes, conversions to NumPy, and hooks."""
    path = source.dotted(node)
    rule = forbidden(path)
    root = path.split(".")[0]
    is_foreign = root in {alias.split(".")[0] for alias in source.aliases.values()} or hasattr(builtins, root)
    if rule and is_foreign:
        yield Lead(rule[0], path, node.lineno)
    if isinstance(node, ast.Attribute):
        if node.attr in _PRIVATE and ast.unparse(node) != "self.__dict__":
            yield Lead(Suspicion.INTROSPECTION, f".{node.attr}", node.lineno)
        if node.attr in ("numpy", "__array__", "__dlpack__"):
            yield Lead(Suspicion.OTHERS_WORK, f".{node.attr}", node.lineno)
        if re.fullmatch(r"_?register_\w*hook", node.attr):
            yield Lead(Suspicion.HOOKS, node.attr, node.lineno)


def _classes(source: CandidateSource, node: ast.ClassDef) -> Iterator[Lead]:
    """Yields leads in a class.

    These are bases that delay, intercept or do the work, methods around forward, attributes set outside __init__ (state
    kept between calls), and a ModelNew that inherits its forward.
    """
    for base in map(source.dotted, node.bases):
        if base in ("torch.Tensor", "torch.nn.Parameter", "torch.Storage"):
            yield Lead(Suspicion.LAZY, f"class {node.name}({base})", node.lineno)
        elif base.endswith(("DispatchMode", "TorchFunctionMode")):
            yield Lead(Suspicion.STATE, f"class {node.name}({base})", node.lineno)
        elif base.startswith("torch.nn.") and base != "torch.nn.Module":
            yield Lead(Suspicion.OTHERS_WORK, f"class {node.name}({base})", node.lineno)
    for name, method in methods_of(node).items():
        if name in _AROUND_FORWARD:
            yield Lead(Suspicion.LAZY, f"{node.name}.{name}", method.lineno)
        if name != "__init__":
            for part in ast.walk(method):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and _is_self(part.value):
                    yield Lead(Suspicion.KEPT, ast.unparse(part), part.lineno)
    if node.name == "ModelNew" and "forward" not in source.methods:
        yield Lead(Suspicion.OTHERS_WORK, "the inherited forward", node.lineno)


def _conditions(test: ast.expr) -> Iterator[Lead]:
    """Leads for conditions that depend on an input's values or address."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VALUES:
            yield Lead(Suspicion.SHORTCUT, ast.unparse(node)[:60], node.lineno)


def _calls(source: CandidateSource, node: ast.Call) -> Iterator[Lead]:
    """Leads for calls of computed names, libraries, other operators and missing methods."""
    path = source.dotted(node.func)
    last = path.split(".")[-1]
    if path == "getattr" and (len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)):
        yield Lead(Suspicion.DYNAMIC, "getattr with a computed name", node.lineno)
    elif last in ("CDLL", "PyDLL", "LoadLibrary") and any(isinstance(part, ast.Constant) for part in node.args):
        yield Lead(Suspicion.OTHERS_WORK, ast.unparse(node)[:60], node.lineno)
    elif path.split(".")[0] in ("torch", "numpy", "scipy") and last not in _OF_TORCH:
        yield Lead(Suspicion.OTHERS_WORK, path, node.lineno)
    elif ast.unparse(node.func).startswith(("super().forward", "super().__call__")):
        yield Lead(Suspicion.OTHERS_WORK, "super().forward", node.lineno)
    elif isinstance(node.func, ast.Attribute) and _is_self(node.func.value) and last not in source.methods:
        yield Lead(Suspicion.OTHERS_WORK, ast.unparse(node.func), node.lineno)


def _stores(source: CandidateSource, node: ast.Attribute | ast.Subscript) -> Iterator[Lead]:
    """Yields a lead for an assignment to an attribute of an imported module, the reference or ModelNew; ctypes' types
    are fine."""
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        base = base.value
    path = source.dotted(base) if isinstance(base, ast.Attribute) else ""
    root = path.split(".")[0]
    foreign = {alias.split(".")[0] for alias in source.aliases.values()} | {"Model", "ModelNew", "builtins"}
    if root in foreign and not path.endswith((".argtypes", ".restype", ".errcheck")):
        yield Lead(Suspicion.STATE, f"{path} = ...", node.lineno)


def _is_self(node: ast.expr) -> bool:
    """True for the name `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


# ---------------------------------------------------------------- C++ and CUDA


def _in_native(source: CandidateSource) -> Iterator[Lead]:
    """Yields leads for suspicious patterns in the C++ and CUDA texts, with their lines."""
    for line, text in native_texts(source):
        code = strip_comments(text)
        for suspicion, pattern in _NATIVE:
            for match in pattern.finditer(code):
                subject = " ".join(match[1].split())[:60]
                yield Lead(suspicion, subject, line + code.count("\n", 0, match.start()))
