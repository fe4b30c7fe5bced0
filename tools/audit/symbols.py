"""What a built library asks of others: its undefined symbols and needed libraries, read from the ELF file itself.

A name can be hidden from a reader of source text; the dynamic linker needs it in clear.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from foundry.knowledge.candidate import Gate
from foundry.tools.words import words

_MATHS = words(
    "exp exp2 exp10 expm1 log log2 log10 log1p pow sqrt cbrt sin cos tan asin acos atan atan2 sinh cosh tanh "
    "asinh acosh atanh erf erfc tgamma lgamma fmod remainder fmin fmax fma floor ceil round rint nearbyint "
    "trunc ldexp frexp modf hypot copysign lround llround lrint llrint nextafter logb ilogb scalbn sincos "
    "fdim"
)
_ALLOWED = frozenset(
    words(
        "memcpy memmove memset memcmp malloc calloc realloc free aligned_alloc posix_memalign abort "
        "__stack_chk_fail __cxa_finalize __gmon_start__ _ITM_deregisterTMCloneTable _ITM_registerTMCloneTable "
        "__tls_get_addr __cxa_atexit __cxa_guard_acquire __cxa_guard_release __cxa_begin_catch __cxa_end_catch "
        "__cxa_throw __cxa_allocate_exception __cxa_free_exception __cxa_rethrow __cxa_pure_virtual "
        "__cxa_throw_bad_array_new_length __gxx_personality_v0 _Unwind_Resume __assert_fail sched_getcpu "
        "__memcpy_chk __memset_chk __memmove_chk strlen qsort __errno_location madvise printf fprintf puts "
        "putchar fputs fputc perror snprintf vprintf fwrite fflush __printf_chk __fprintf_chk __snprintf_chk "
        "stderr stdout"
    )
)
_ALLOWED_PATTERNS = re.compile(
    rf"(?:(?:{'|'.join(_MATHS)})[fl]?|__(?:{'|'.join(_MATHS)})f?_finite|_ZGV\w+|GOMP_\w+|omp_get_\w+|"
    r"omp_(?:set_num_threads|in_parallel)|__kmpc_\w+|_Zn[wa]\w*|_Zd[la]\w*|_ZSt\w+|_ZNSt\w*|_ZNKSt\w*|_ZTV\w*|_ZTI\w*|"
    r"_ZTS\w*|__(?:trunc|extend|float|fix|mul|div|udiv|umod|mod|popcount|clz|ctz)\w*[0-9])"
)
_FORBIDDEN = re.compile(
    r"(?P<vendor>[sdcz](?:gemm|gemv|symm|syrk|trsm|dot|axpy)_?|cblas_\w+|cublas\w+|cudnn\w+|cusparse\w+|mkl_\w+|MKL_\w+|"
    r"dnnl\w*|LAPACKE_\w+)|(?P<torch>_ZN?K?(?:2at|3c10|5torch)\w+|.*_ops.*call.*)|"
    r"(?P<python>Py\w+|_Py\w+)|(?P<system>dlopen|dlsym|dlmopen|socket|connect|fork|vfork|exec\w+|system|popen|open(?:64|at)?|"
    r"fopen(?:64)?|mmap(?:64)?|mprotect|ptrace|sigaction|signal|getenv|secure_getenv|setenv|syscall|shm_open|kill|"
    r"process_vm_\w+|clock_gettime|gettimeofday|write|read|_ZNSt6chrono\w+|_ZNSt\d+basic_\w*stream\w*)|"
    r"(?P<thread>pthread_\w+|_ZNSt6thread\w+|thrd_\w+|_ZNSt\w*_M_start_thread\w*)"
)
_MEANING = {
    "vendor": "a vendor's matrix or network library",
    "torch": "an operator of PyTorch",
    "python": "the Python interpreter",
    "system": "the operating system",
    "thread": "threads that may outlive the call",
}
_LIBRARIES = re.compile(
    r"(?:libm|libc|libgcc_s|libstdc\+\+|libgomp|libomp|libmvec|libpthread|ld-linux[\w-]*)(?:-[0-9a-f]+)?\.so[.\d]*"
)
# A binding through torch's extension headers (load_inline) may name PyTorch's types and allocator, not its operators.
_BINDING = re.compile(r"_ZN?K?(?:2at|3c10|5torch)\w*|Py\w+|_Py\w+|_ZN8pybind11\w*|pthread_\w+|_ZNSt\w*|cuda\w+")
_OPERATOR = re.compile(r"_ZN2at4_ops(?!\d*(?:empty|zeros)\w*)\w+|_ZN2at(?:3cpu|4cuda|6native)\w+")


@dataclass(frozen=True)
class Imports:
    """Undefined dynamic symbols and the libraries named as needed."""

    symbols: tuple[str, ...]
    libraries: tuple[str, ...]


def read_imports(path: Path) -> Imports:
    """From the dynamic section of a 64-bit little-endian ELF file; raises ValueError when it is something else."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path.name} is not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + index * size) for index in range(count)]
    symbols: list[str] = []
    libraries: list[str] = []
    for section in sections:
        kind, start, length, link, entry = section[1], section[4], section[5], section[6], section[9]
        if kind == 11 and entry:  # SHT_DYNSYM
            strings = sections[link][4]
            for position in range(start, start + length, entry):
                name, _, _, index = struct.unpack_from("<IBBH", data, position)
                if index == 0 and name:
                    symbols.append(_string(data, strings + name))
        elif kind == 6:  # SHT_DYNAMIC
            strings = sections[link][4]
            for position in range(start, start + length, 16):
                tag, value = struct.unpack_from("<QQ", data, position)
                if tag == 1:  # DT_NEEDED
                    libraries.append(_string(data, strings + value))
    return Imports(tuple(symbols), tuple(libraries))


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("utf-8", errors="replace")


def symbol_gates(library: Path, *, torch_binding: bool = False) -> list[Gate]:
    """Gates "symbols" and "libraries" of a built shared library.

    `torch_binding` judges an extension built against torch's headers: it may name PyTorch's types and allocator.
    """
    if library.suffix == ".cubin":
        return [Gate("symbols", True, "device code of one file; nothing of another library is linked into it")]
    try:
        imports = read_imports(library)
    except (OSError, ValueError, struct.error, IndexError) as error:
        return [Gate("symbols", False, f"the built library cannot be read: {error}")]
    strange = [reason for symbol in imports.symbols if (reason := _judge(symbol, torch_binding))]
    foreign = [] if torch_binding else [name for name in imports.libraries if not _LIBRARIES.fullmatch(name)]
    return [
        Gate(
            "symbols",
            not strange,
            "; ".join(strange[:4])
            if strange
            else f"{len(imports.symbols)} outside functions, all of the C, maths and OpenMP libraries",
        ),
        Gate(
            "libraries",
            not foreign,
            f"the library links {', '.join(foreign)}" if foreign else "the library links nothing but the system's own",
        ),
    ]


def _judge(symbol: str, torch_binding: bool) -> str:
    """Why a symbol is not allowed, "" when it is."""
    name = symbol.split("@")[0]
    if torch_binding:
        if _OPERATOR.fullmatch(name):
            return f"calls {name}, an operator of PyTorch"
        if _BINDING.fullmatch(name):
            return ""
    if name in _ALLOWED:
        return ""
    match = _FORBIDDEN.fullmatch(name)
    if match and match.lastgroup:
        return f"calls {name}, which is {_MEANING[match.lastgroup]}"
    if _ALLOWED_PATTERNS.fullmatch(name):
        return ""
    return f"calls {name}, which is not known to be harmless"
