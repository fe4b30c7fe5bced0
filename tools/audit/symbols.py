"""What a built library asks of others: its undefined symbols and needed libraries, read from the ELF file itself.

A name can be hidden from a reader of source text; the dynamic linker needs it in clear.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from foundry.knowledge.candidate import Gate
from foundry.tools.audit.provenance import COPIES, FREE
from foundry.tools.process import Limits, run_command
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
        "stderr stdout strcmp strncmp strchr strrchr strstr strcpy strncpy strdup memchr strtol strtoul strtoll "
        "strtoull strtod strtof __isoc23_strtol __isoc23_strtoul __isoc23_strtoll __isoc23_strtoull sprintf vsnprintf "
        "__sprintf_chk __vsnprintf_chk __cxa_guard_abort __cxa_demangle __cxa_get_exception_ptr "
        "__cxa_current_exception_type __dynamic_cast __libc_single_threaded __cxa_thread_atexit __cxa_bad_cast "
        "__cxa_bad_typeid _dl_find_object __cxa_throw_bad_array_length sysconf get_nprocs sched_getaffinity "
        "__sched_cpucount __sched_cpualloc __sched_cpufree munmap getenv bsearch lrand48 atoi atol atof mmap mmap64 "
        "isnan isinf finite __isnan __isinf __isnanf __isinff __finite __finitef __fpclassify __signbit __signbitf "
        "valloc memalign malloc_usable_size stpcpy __stpcpy_chk __strcpy_chk explicit_bzero bzero rand srand "
        "rand_r random srandom drand48 erand48 qsort_r lgamma_r lgammaf_r nan nanf nanl abs labs llabs strtok strspn "
        "strcspn strpbrk memmem memccpy mempcpy __mempcpy_chk __strcat_chk strcat strncat strnlen sched_yield "
        "__pthread_key_create __once_proxy __cpu_model __cpu_indicator_init __ctype_b_loc __ctype_tolower_loc "
        "__ctype_toupper_loc toupper tolower isdigit isspace sscanf __isoc99_sscanf __isoc23_sscanf vfprintf putc "
        "exit "  # what an error macro does: an evaluation that ends so is a failed one
        "__vfprintf_chk __memset_explicit_chk __cxa_vec_new __cxa_vec_delete __cxa_deleted_virtual __stack_chk_guard"
    )
)
_ALLOWED_PATTERNS = re.compile(
    rf"(?:(?:{'|'.join(_MATHS)})[fl]?|__(?:{'|'.join(_MATHS)})f?_finite|_ZGV\w+|__cxa_\w+|GOMP_\w+|omp_get_\w+|"
    r"omp_(?:set_num_threads|in_parallel)|__kmpc_\w+|_Zn[wa]\w*|_Zd[la]\w*|_ZSt\w+|_ZNK?R?S[abdiost]\w*|"
    r"remquo[fl]?|scalbln[fl]?|significand[fl]?|omp_(?:init|set|unset|destroy|test)_(?:nest_)?lock|"
    r"pthread_(?:mutex|cond|rwlock|once|key|self|spin|barrier|attr|getspecific|setspecific|equal|join|getaffinity)\w*|_ZT[VITS]\w*|_ZN9__gnu_cxx\w*|_ZN10__cxxabiv1\w*|__(?:trunc|extend|float|fix|mul|div|udiv|umod|mod|popcount|clz|ctz)\w*[0-9])"
)
# What a C++ runtime brings along that is linked into the library: wide characters, locales, messages, unwinding.
_RUNTIMES = re.compile(
    r"_Unwind_\w+|_?_?wc\w+|_?_?wmem\w+|_?_?mb\w+|btowc|__\w+_l|strto(?:f|d|ld)_l|(?:new|dup|free|use|set)locale|"
    r"__(?:new|dup|free|use)locale|d?c?gettext|bind(?:_)?textdomain\w*|iconv(?:_open|_close)?|__ctype_get_mb_cur_max|"
    r"strerror(?:_r)?|_ITM_\w+|_ZGTt\w+|fputc"
)
# And what its own functions ask of the system: a generator's first seed, waiting for another thread's initialisation,
# the size of the memory kept for exceptions. PyTorch's headers, too, have functions that no extension calls.
_HEADER_CALLERS = {"cudaEventElapsedTime": re.compile(r"_ZNK?3c104cuda\w+|_ZNK?2at4cuda\w+")}
_RUNTIME_CALLERS = {
    **dict.fromkeys(
        words("open close read __read_chk ioctl getentropy arc4random"),
        re.compile(r"_ZNK?St13random_device\w+|_ZNSt12_GLOBAL__N_1\d+__libc_(?:getentropy|arc4random)\w*"),
    ),
    "syscall": re.compile(r"__cxa_guard_(?:acquire|release|abort)"),
    **dict.fromkeys(words("secure_getenv getenv"), re.compile(r"_GLOBAL__sub_I_eh_alloc\.cc")),
}
_FORBIDDEN = re.compile(
    r"(?P<vendor>[sdcz](?:gemm|gemv|symm|syrk|trsm|dot|axpy)_?|cblas_\w+|cublas\w+|cudnn\w+|cusparse\w+|mkl_\w+|MKL_\w+|"
    r"dnnl\w*|LAPACKE_\w+)|(?P<torch>_ZN?K?(?:2at|3c10|5torch)\w+|.*_ops.*call.*)|"
    r"(?P<python>Py\w+|_Py\w+)|(?P<system>dlopen|dlsym|dlmopen|socket|connect|fork|vfork|exec\w+|system|popen|open(?:64|at)?|"
    r"fopen(?:64)?|mprotect|pkey_mprotect|ptrace|sigaction|signal|secure_getenv|setenv|putenv|syscall|shm_open|kill|"
    r"process_vm_\w+|userfaultfd|memfd_create|pipe2?|dup[23]?|nanosleep|usleep|sleep|clock_gettime|clock|time|times|gettimeofday|write|read|_ZNSt6chrono\w+|_ZNSt10filesystem\w+|_exit|_Exit|quick_exit|on_exit|longjmp|_setjmp|_ZNSt\d+basic_(?:[io]?fstream|filebuf)\w*)|"
    r"(?P<thread>pthread_(?:create|detach)|_ZNSt6thread\w+|thrd_\w+|_ZNSt\w*_M_start_thread\w*)"
)
# What an extension module of its own needs to take numbers and give back errors; nothing that runs Python code.
_PYTHON_VALUES = re.compile(
    r"Py(?:Arg|Long|Float|Bool|Bytes|ByteArray|Buffer|Tuple|List|Unicode|Mem|Err|Exc|Capsule)_\w+|PyModule_(?:Create2|"
    r"Add\w*|FromDefAndSpec2)|PyModuleDef_Init|Py_BuildValue|_Py_(?:None|True|False)Struct|_Py_Dealloc|"
    r"Py_(?:Inc|Dec)Ref|PyEval_(?:Save|Restore)Thread|PyObject_(?:GetBuffer|CheckBuffer)|_PyArg_\w+"
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
_BINDING = re.compile(
    r"_ZN?K?[RO]?(?:2at|3c10|5torch|6caffe2)\w*|Py\w+|_Py\w+|_ZNK?8pybind11\w*|THP\w+|cuda\w+|__cuda(?:(?:Un)?[Rr]egister|LaunchKernel|PopCall|PushCall|GetKernel|InitModule)\w*|_Z\w*(?:2at|3c10)\w*"
)
_DISPATCHED = re.compile(r"_ZN2at4_ops\d+(?P<name>[a-z_]\w*?)(?:4call|10redispatch)E\w*")
_BESIDE_DISPATCHER = re.compile(
    r"_ZN2at(?:3cpu|4cuda(?!\d+(?:getCurrent(?:CUDAStream|DeviceProperties)|getDeviceProperties|warp_size))|6native|4meta|"
    r"10redispatch|27compositeexplicitautograd|27compositeimplicitautograd|6nested|7mkldnn|4blas)\w+|"
    r"_ZNK?5torch(?:3jit|2nn|3fft|6linalg|10executor|5dynamo|8inductor)\w+|_ZNK?3c1010Dispatcher\w+|_ZNK?5torch7Library5_impl\w+"
)
_REGISTERS = re.compile(
    r"_ZNK?[RO]?5torch(?:7Library|3jit\d+parseSchema|6detail|11CppFunction|7library)\w*|_ZN3c10\d+\w*FunctionSchema\w*"
)
_LAYOUTS = frozenset(  # operators that PyTorch puts together from views and copies
    words(
        "to item _local_scalar_dense empty_memory_format arange flatten_using_ints expand_as view_as reshape_as "
        "numpy_T mT mH movedim_int movedim_intlist swapaxes swapdims unflatten_int type_as to_other to_dtype_layout "
        "to_prim_Device resolve_conj resolve_neg size_int stride_int is_nonzero data set_data scalar_tensor"
    )
)
_INTERPRETER = re.compile(
    r"PyImport_\w+|PyRun_\w+|PyEval_EvalCode\w*|Py_CompileString\w*|PyMarshal_\w+|PySys_\w+|PyFrame_GetLocals"
)
_DEVICE = re.compile(
    r"cuda(?:StreamCreate\w*|LaunchHostFunc\w*|StreamAddCallback\w*|DeviceSetLimit|StreamSetAttribute\w*|DeviceReset|"
    r"SetDeviceFlags|CtxResetPersistingL2Cache|ThreadExchangeStreamCaptureMode|EventElapsedTime\w*|HostRegister)"
)


# nvcc links the CUDA runtime into a library, with hashes for the names of its own functions; native_rules refuses a
# source that takes such a name.
_CUDA_RUNTIME = re.compile(r"libcudart_static_[0-9a-f]{40}")
_OF_CUDA_RUNTIME = re.compile(rf"{_CUDA_RUNTIME.pattern}|(?:__)?cuda[A-Z]\w+")
_TORCH_LIBRARIES = re.compile(r"lib(?:torch\w*|c10\w*|cudart|cuda|nvrtc|dl|rt)\.so[.\d]*")
_DOORS = r"\t((?:syscall|sysenter|int\s+\$0x80|rdtscp?|rdpmc)\b[^\n]*)"
_END = "end-of-the-machine-code"
OPERATOR_OF_TORCH = "PyTorch's operator"
MOST_REASONS = 4  # that a gate names


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
    joined = _joins_its_threads(imports.symbols)
    found = {
        symbol.split("@")[0]: reason
        for symbol in imports.symbols
        if (reason := _judge(symbol, torch_binding)) and not (joined and "threads" in reason)
    }
    excused = dict(_HEADER_CALLERS) if torch_binding else {}
    if not any(name.startswith("libstdc++") for name in imports.libraries):
        excused |= _RUNTIME_CALLERS
    brings_cuda = b"libcudart_static_" in library.read_bytes()
    if brings_cuda:
        others = {name: f"|{excused[name].pattern}" if name in excused else "" for name in found}
        excused = {name: re.compile(_CUDA_RUNTIME.pattern + other) for name, other in others.items()}
    harmless = _only_called_by(library, excused, found)
    strange = [reason for symbol, reason in found.items() if symbol not in harmless]
    strange += _device_settings(library) if brings_cuda else []
    known = _TORCH_LIBRARIES if torch_binding else _LIBRARIES
    foreign = [name for name in imports.libraries if not (_LIBRARIES.fullmatch(name) or known.fullmatch(name))]
    return [
        Gate(
            "symbols",
            not strange,
            "; ".join(strange[:MOST_REASONS])
            if strange
            else f"{len(imports.symbols)} outside functions, all of the C, maths and OpenMP libraries",
        ),
        Gate(
            "libraries",
            not foreign,
            f"the library links {', '.join(foreign)}" if foreign else "the library links nothing but the system's own",
        ),
    ]


def _only_called_by(library: Path, callers: Mapping[str, re.Pattern[str]], symbols: Collection[str]) -> set[str]:
    """Those of the symbols that no function uses but their `callers`: said by the names in the library's machine code.
    Without names nothing is excused."""
    asked = [symbol for symbol in symbols if symbol in callers]
    if not asked:
        return set()
    users: dict[str, set[str]] = {symbol: set() for symbol in asked}
    function = ""
    references = rf"<({'|'.join(asked)})(?:@plt|@[A-Z][\w.]*)(?:\+0x[0-9a-f]+)?>"
    for line in (_machine_code(library, f">:$|{references}$") or "").splitlines():
        if line.endswith(">:"):
            function = line[line.find("<") + 1 : -2]
        elif not function.endswith("@plt") and (match := re.search(references, line)):
            users[match[1]].add(function)
    return {name for name, found in users.items() if found and all(map(callers[name].fullmatch, found))}


def _device_settings(library: Path) -> list[str]:
    """What a library with the CUDA runtime in it asks of that runtime beyond launches and memory."""
    reference = rf"<({_DEVICE.pattern})>$"
    found: dict[str, str] = {}
    function = ""
    for line in (_machine_code(library, f">:$|{reference}") or "").splitlines():
        if line.endswith(">:"):
            function = line[line.find("<") + 1 : -2]
        elif not _OF_CUDA_RUNTIME.fullmatch(function) and (match := re.search(reference, line)):
            found[match[1]] = f"calls {match[1]}, which leaves work or settings behind on the device"
    return list(found.values())


def instruction_gate(library: Path) -> Gate:
    """Gate "instructions": the library's machine code enters the kernel of the system by no door of its own."""
    if shutil.which("objdump") is None:
        return Gate("instructions", True, "not read, objdump is not installed")
    code = _machine_code(library, _DOORS)
    if code is None:
        return Gate("instructions", False, "its machine code could not be read to the end")
    found = re.search(_DOORS, code)
    if found:
        what = "a clock, which tells a timed call from a checked one" if found[1].startswith("rd") else ""
        what = what or "a system call past every library"
        return Gate("instructions", False, f"its machine code has {found[1].strip()!r}: {what}")
    return Gate("instructions", True, "no system call and no clock of its own in the machine code")


def _machine_code(library: Path, pattern: str) -> str | None:
    """The lines of its disassembly that a pattern is found in (it may well have gigabytes of others); None when it
    could not be read to the end, which the last line shows."""
    limits = Limits(wall_s=20.0, memory_bytes=2 << 30, cpu_s=20, tasks=16)
    command = '{ objdump -d --no-show-raw-insn "$1" && echo "$3"; } | LC_ALL=C grep -aP "$2|^$3\\$"'
    try:
        done = run_command(["sh", "-c", command, "sh", str(library), pattern, _END], limits)
    except OSError:
        return None
    text = done.output.rstrip("\n")
    return None if done.reason or not text.endswith(_END) else text.removesuffix(_END)


def imports_torch(library: Path) -> bool:
    """Whether a built library was linked against PyTorch, as extensions are."""
    try:
        return any(name.startswith(("libtorch", "libc10")) for name in read_imports(library).libraries)
    except (OSError, ValueError, struct.error, IndexError):
        return False


def why_not(name: str, *, only_known_bad: bool) -> str:
    """Why a function that was looked up by name is not allowed, "" when it is."""
    match = _FORBIDDEN.fullmatch(name)
    if name.startswith("mmap"):
        return f"looks up {name}, which maps memory that may run"
    if only_known_bad:
        return f"looks up {name}, which is {_MEANING[match.lastgroup]}" if match and match.lastgroup else ""
    return _judge(name, False).replace("calls", "looks up")


def _joins_its_threads(symbols: tuple[str, ...]) -> bool:
    """Threads of one call that are waited for are a way to compute; whether they are is also seen at run time."""
    names = {symbol.split("@")[0] for symbol in symbols}
    waits = bool(names & {"pthread_join", "_ZNSt6thread4joinEv", "thrd_join"})
    return waits and not names & {"pthread_detach", "_ZNSt6thread6detachEv", "thrd_detach"}


def _judge(symbol: str, torch_binding: bool) -> str:
    """Why a symbol is not allowed, "" when it is."""
    name = symbol.split("@")[0]
    if name in _ALLOWED:
        return ""
    if torch_binding and (reason := _judge_binding(name)) is not None:
        return reason
    match = None if _PYTHON_VALUES.fullmatch(name) else _FORBIDDEN.fullmatch(name)
    if match and match.lastgroup:
        return f"calls {name}, which is {_MEANING[match.lastgroup]}"
    if any(known.fullmatch(name) for known in (_ALLOWED_PATTERNS, _RUNTIMES, _PYTHON_VALUES)):
        return ""
    return f"calls {name}, which is not known to be harmless"


def _judge_binding(name: str) -> str | None:
    """The same for what torch's headers bring along; None where they say nothing about a symbol."""
    if name.startswith(("Sleef_", "cpuinfo_")):  # vector mathematics behind at::vec, as libmvec's; facts of the CPU
        return ""
    if _REGISTERS.match(name):  # operators of its own; names that are everybody's are read in the text
        return ""
    if operator := _DISPATCHED.fullmatch(name):
        kind = re.sub(r"_(?:memory_format|Scalar|Tensor|dtype|device|start|int|dim)$", "", operator["name"])
        return (
            ""
            if {kind, operator["name"]} & (FREE | COPIES | _LAYOUTS)
            else f"calls {OPERATOR_OF_TORCH} {operator['name']}"
        )
    if _BESIDE_DISPATCHER.match(name):
        return f"calls {name}, which is an operator of PyTorch beside its dispatcher"
    if _INTERPRETER.fullmatch(name):
        return f"calls {name}, which runs Python from inside the kernel"
    if _DEVICE.fullmatch(name):
        return f"calls {name}, which leaves work or settings behind on the device"
    return "" if _BINDING.fullmatch(name) or name.startswith("pthread_mutex") else None
