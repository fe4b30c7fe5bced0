"""Gates over a built library: the names it imports, and system calls that its machine code makes by itself.

A name can be hidden from a reader of source text; the loader needs it in clear.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.binary.convicting import convicts, is_lead
from foundry.tools.audit.binary.dependence import dependence_gate
from foundry.tools.audit.binary.elf import Imports, is_device_code, read_code, read_imports
from foundry.tools.process.child import Limits, run_command
from foundry.tools.protocol.reasons import in_words, make_gate
from foundry.tools.task.operators import COPIES, FREE
from foundry.tools.words import words

_MATHS = words(
    "exp exp2 exp10 expm1 log log2 log10 log1p pow sqrt cbrt sin cos tan asin acos atan atan2 sinh cosh tanh "
    "asinh acosh atanh erf erfc tgamma lgamma fmod remainder fmin fmax fma floor ceil round rint nearbyint "
    "trunc ldexp frexp modf hypot copysign lround llround lrint llrint nextafter logb ilogb scalbn sincos "
    "fdim j0 j1 y0 y1"
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
        "__sched_cpucount __sched_cpualloc __sched_cpufree munmap mlock munlock "
        "getpagesize reallocarray getenv bsearch lrand48 atoi atol atof mmap mmap64 "
        "isnan isinf finite __isnan __isinf __isnanf __isinff __finite __finitef __fpclassify __signbit __signbitf "
        "valloc memalign malloc_usable_size stpcpy __stpcpy_chk __strcpy_chk explicit_bzero bzero rand srand "
        "rand_r random srandom drand48 erand48 qsort_r lgamma_r lgammaf_r nan nanf nanl abs labs llabs strtok strspn "
        "strcspn strpbrk memmem memccpy mempcpy __mempcpy_chk __strcat_chk strcat strncat strnlen sched_yield "
        "__pthread_key_create __once_proxy __cpu_model __cpu_indicator_init __ctype_b_loc __ctype_tolower_loc "
        "__ctype_toupper_loc toupper tolower isdigit isspace sscanf __isoc99_sscanf __isoc23_sscanf vfprintf putc "
        "random initstate srand48 call_once getpid gettid getauxval malloc_trim mallinfo mallinfo2 strcoll swab atexit "
        "exit "  # error macros call it: an evaluation that ends so is a failed one
        "__vfprintf_chk __memset_explicit_chk __cxa_vec_new __cxa_vec_delete __cxa_deleted_virtual __stack_chk_guard"
    )
)
_ALLOWED_PATTERNS = re.compile(
    rf"(?:(?:{'|'.join(_MATHS)})[fl]?|__(?:{'|'.join(_MATHS)})f?_finite|_ZGV\w+|__cxa_\w+|GOMP_\w+|omp_get_\w+|"
    r"omp_(?:set_num_threads|in_parallel)|c?(?:real|imag|abs|arg|conj|exp|log|pow|sqrt|sinh?|cosh?|tanh?|proj)[fl]?|"
    r"[jy][01n][fl]?|nexttoward[fl]?|__(?:powi|float)\w+|(?:mtx|cnd|tss)_\w+|is(?:alnum|alpha|lower|punct|upper|xdigit)|l{0,2}div|"
    r"ffsl{0,2}|strn?casecmp|(?:imax)?abs|strto[iu]max|[jmn]rand48|atoll|__kmpc_\w+|_Zn[wa]\w*|_Zd[la]\w*|_ZSt\w+|_ZNK?R?S[abdiost]\w*|"
    r"remquo[fl]?|scalbln[fl]?|significand[fl]?|omp_(?:init|set|unset|destroy|test)_(?:nest_)?lock|"
    r"pthread_(?:mutex|cond|rwlock|once|key|self|spin|barrier|attr|getspecific|setspecific|equal|join|getaffinity)\w*|_ZT[VITS]\w*|_ZN9__gnu_cxx\w*|_ZN10__cxxabiv1\w*|__(?:trunc|extend|float|fix|mul|div|udiv|umod|mod|popcount|clz|ctz)\w*[0-9])"
)
# Imports of a C++ runtime that is linked statically: wide characters, locales, messages, unwinding.
_RUNTIMES = re.compile(
    r"_Unwind_\w+|_?_?wc\w+|_?_?wmem\w+|_?_?mb\w+|btowc|__\w+_l|strto(?:f|d|ld)_l|(?:new|dup|free|use|set)locale|"
    r"__(?:new|dup|free|use)locale|d?c?gettext|bind(?:_)?textdomain\w*|iconv(?:_open|_close)?|__ctype_get_mb_cur_max|"
    r"strerror(?:_r)?|_ITM_\w+|_ZGTt\w+|fputc"
)
# System functions that such a runtime calls itself: a generator's first seed, waiting for another thread, the size of
# the memory kept for exceptions. PyTorch's headers, too, have functions that no extension calls.
_HEADER_CALLERS = {"cudaEventElapsedTime": re.compile(r"_ZNK?3c104cuda\w+|_ZNK?2at4cuda\w+")}
_RUNTIME_CALLERS = {
    **dict.fromkeys(
        words("open close read __read_chk ioctl getentropy arc4random"),
        re.compile(r"_ZNK?St13random_device\w+|_ZNSt12_GLOBAL__N_1\d+__libc_(?:getentropy|arc4random)\w*"),
    ),
    "syscall": re.compile(r"__cxa_guard_(?:acquire|release|abort)"),
}
# Functions by which an extension module takes numbers and reports errors; none runs Python code.
_PYTHON_VALUES = re.compile(
    r"Py(?:Arg|Long|Float|Bool|Bytes|ByteArray|Buffer|Tuple|List|Unicode|Mem|Err|Exc|Capsule)_\w+|PyModule_(?:Create2|"
    r"Add\w*|FromDefAndSpec2)|PyModuleDef_Init|Py_BuildValue|_Py_(?:None|True|False)Struct|_Py_Dealloc|"
    r"Py_(?:Inc|Dec)Ref|PyEval_(?:Save|Restore)Thread|PyObject_(?:GetBuffer|CheckBuffer|Free)|_PyArg_\w+|"
    r"PyType_(?:FromSpec|Ready|GenericNew|GenericAlloc)|_PyObject_New"  # types of its own
)
# C++ names that a library defines itself but no header does inline: they start or read something of the system.
_NEVER_INLINE = re.compile(r"_ZNSt6thread(?:15_M_start_thread|6detach)\w*|_ZNSt6chrono3_V2\w+3nowEv")
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
_LAYOUTS = frozenset(  # operators that PyTorch composes of views and copies
    words(
        "to item _local_scalar_dense empty_memory_format arange flatten_using_ints expand_as view_as reshape_as "
        "numpy_T mT mH movedim_int movedim_intlist swapaxes swapdims unflatten_int type_as to_other to_dtype_layout "
        "to_prim_Device resolve_conj resolve_neg size_int stride_int is_nonzero data set_data scalar_tensor"
    )
)
_INTERPRETER = re.compile(
    r"PyImport_\w+|PyRun_\w+|PyEval_EvalCode\w*|Py_CompileString\w*|PyMarshal_\w+|PySys_\w+|PyFrame_GetLocals"
)
# nvcc links the CUDA runtime into a library, with hashes for the names of its own functions; native_rules refuses a
# source that takes such a name.
_CUDA_RUNTIME = re.compile(r"libcudart_static_[0-9a-f]{40}")
_OF_CUDA_RUNTIME = re.compile(rf"{_CUDA_RUNTIME.pattern}|(?:__)?cuda[A-Z]\w+")
# The same runtime, linked as a library of its own: torch's load_inline does so, and nvcc with -cudart shared.
_CUDA_LIBRARY = re.compile(r"libcudart\.so[.\d]*")
_CUDA_CALLS = re.compile(r"(?:__)?cuda[A-Z]\w+")
_TORCH_LIBRARIES = re.compile(r"lib(?:torch\w*|c10\w*|cudart|cuda|nvrtc|dl|rt)\.so[.\d]*")
_DOORS = r"\t((?:syscall|sysenter|int\s+\$0x80|rdtscp?|rdpmc)\b[^\n]*)"
_FIRST_ARGUMENT = r"%(?:[er]?di|dil)\b"  # register of a function's first argument, on x86-64
_END = "end-of-the-machine-code"
_LIMITS = Limits(wall_s=20.0, memory_bytes=2 << 30, cpu_s=20, tasks=16)
_SAYS_NOTHING = Reason(ReasonKind.UNKNOWN, "")


def symbol_gates(library: Path, *, torch_binding: bool = False) -> list[Gate]:
    """Gates "symbols" and "libraries" of a built shared library, and "dependent launches" where it has device code.

    `torch_binding` judges an extension built against torch's headers: it may name PyTorch's types and allocator.
    """
    if is_device_code(library):
        alone = Gate("symbols", True, "device code of one file; nothing of another library is linked into it")
        return [alone, *filter(None, [dependence_gate(library)])]
    try:
        imports = read_imports(library)
    except (OSError, ValueError) as error:
        return [make_gate("symbols", [Reason(ReasonKind.UNREADABLE, str(error))], "")]
    found = _objections(imports, torch_binding)
    excused = dict(_HEADER_CALLERS) if torch_binding else {}
    if not any(name.startswith("libstdc++") for name in imports.libraries):
        excused |= _RUNTIME_CALLERS
    brings_cuda = b"libcudart_static_" in library.read_bytes()
    if brings_cuda:
        others = {name: f"|{excused[name].pattern}" if name in excused else "" for name in found}
        excused = {name: re.compile(_CUDA_RUNTIME.pattern + other) for name, other in others.items()}
    harmless = _only_called_by(library, excused, found)
    harmless |= {"syscall"} if "syscall" in found.keys() - harmless and _only_waits(library) else set()
    strange = [reason for symbol, reason in found.items() if symbol not in harmless]
    of_cuda = _calls_of_cuda(library) if brings_cuda else []
    strange += [reason for reason in map(convicts, of_cuda) if reason]
    if not imports.symbols:
        strange.append(Reason(ReasonKind.ASKS_NOTHING, ""))
    known = _TORCH_LIBRARIES if torch_binding else _LIBRARIES
    foreign = [
        name
        for name in imports.libraries
        if not (_LIBRARIES.fullmatch(name) or known.fullmatch(name) or _CUDA_LIBRARY.fullmatch(name))
    ]
    good = f"{len(imports.symbols)} outside functions, all of the C, maths and OpenMP libraries"
    names = {*of_cuda, *(symbol.split("@")[0] for symbol in imports.symbols)}
    leads = sorted(filter(is_lead, names))
    good += f"; what these do is seen in runs: {', '.join(leads)}" if leads else ""
    return [
        make_gate("symbols", strange, good),
        make_gate(
            "libraries",
            [Reason(ReasonKind.LINKED, name) for name in foreign],
            "the library links nothing but the system's own and CUDA's runtime",
        ),
        *filter(None, [dependence_gate(library)]),
    ]


def _objections(imports: Imports, torch_binding: bool) -> dict[str, Reason]:
    """Imported names that are not allowed, with their reasons. Threads are no reason if the library joins them."""
    names = [symbol.split("@")[0] for symbol in imports.symbols]
    judgements = {name: _judge(name, torch_binding) for name in names}
    if any(map(_CUDA_LIBRARY.fullmatch, imports.libraries)):
        calls = filter(_CUDA_CALLS.fullmatch, names)
        judgements |= {name: convicts(name) for name in calls}
    judgements.update((name, _judge_own(name)) for name in imports.own if name not in judgements)
    joined = _joins_its_threads(imports)
    return {
        name: reason
        for name, reason in judgements.items()
        if reason and not (joined and reason.kind == ReasonKind.THREADS)
    }


def _only_called_by(library: Path, callers: Mapping[str, re.Pattern[str]], symbols: Collection[str]) -> set[str]:
    """The symbols that are used only by functions matching `callers`, read from names in the machine code.

    A library without function names is excused nothing.
    """
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


def _only_waits(library: Path) -> bool:
    """True if the library calls syscall, and each time for futex: its number is set right before the call.

    No jump may lead between the two. False if the code cannot be read.

    The headers of C++20 wait by it (std::latch, std::barrier, std::atomic::wait, std::jthread).
    """
    jumps, calls = set[int](), list[tuple[int, int]]()  # targets of jumps; address ranges that no jump may enter
    function, last = "", ""
    for line in (_machine_code(library, rf">:$|{_FIRST_ARGUMENT}|\bj\w+ +[0-9a-f]+ <|<syscall@") or "").splitlines():
        if line.endswith(">:"):
            function = line[line.find("<") + 1 : -2]
            last = ""
            continue
        if jump := re.search(r"\bj\w+ +([0-9a-f]+) <", line):
            jumps.add(int(jump[1], 16))
        if "<syscall@" in line and not function.endswith("@plt"):
            number = re.fullmatch(r" *([0-9a-f]+):\tmov +\$0xca,%edi", last.rstrip())
            call = re.fullmatch(r" *([0-9a-f]+):\t(?:call|jmp) +[0-9a-f]+ <syscall@plt>", line.rstrip())
            if number is None or call is None:
                return False
            calls.append((int(number[1], 16), int(call[1], 16)))
        elif re.search(_FIRST_ARGUMENT, line):
            last = line
    return bool(calls) and not any(start < place <= end for start, end in calls for place in jumps)


def _calls_of_cuda(library: Path) -> list[str]:
    """CUDA runtime functions that a library with a static CUDA runtime calls, the runtime's own calls excluded."""
    reference = r"<(cuda[A-Z]\w*)>$"
    found: dict[str, None] = {}
    function = ""
    for line in (_machine_code(library, f">:$|{reference}") or "").splitlines():
        if line.endswith(">:"):
            function = line[line.find("<") + 1 : -2]
        elif not _OF_CUDA_RUNTIME.fullmatch(function) and (match := re.search(reference, line)):
            found[match[1]] = None
    return list(found)


def instruction_gate(library: Path) -> Gate:
    """Gate "instructions": the machine code contains no system call and no clock instruction of its own."""
    door, unread = "", "its machine code could not be read to the end"
    try:
        code = read_code(library)
        if shutil.which("objdump") is None:
            unread = "its machine code cannot be read: objdump is not installed"
        elif not code.sections:
            unread = "it has no section headers that tell where its machine code is, as every compiler's library has"
        elif not code.data or not _disassembles(library):
            unread = "objdump finds no instruction in it"
        else:
            listed = [_machine_code(library, _DOORS)]
            if code.machine == "EM_X86_64":  # sections and symbols may hide a part from objdump: all that may run
                listed.append(_bare_code(code.data))
            if None not in listed:
                unread = ""
                door = next((found[1].strip() for text in listed if text and (found := re.search(_DOORS, text))), "")
    except (OSError, ValueError) as error:
        unread = f"the built library cannot be read: {error}"
    reasons = [Reason(ReasonKind.UNDECIDED, unread)] if unread else []
    if door:
        what = "a clock, which tells a timed call from a checked one" if door.startswith("rd") else ""
        what = what or "a system call past every library"
        reasons = [Reason(ReasonKind.CONDUCT, f"its machine code has {door!r}: {what}")]
    return make_gate("instructions", reasons, "no system call and no clock of its own in the machine code")


def _bare_code(data: bytes) -> str | None:
    """System calls and clock instructions in raw x86-64 machine code, as lines of objdump; None if it could not be
    read."""
    with tempfile.NamedTemporaryFile(prefix="code-") as bare:
        bare.write(data)
        bare.flush()
        return _machine_code(Path(bare.name), _DOORS, "-D", "-b", "binary", "-m", "i386:x86-64")


def _machine_code(library: Path, pattern: str, *how: str) -> str | None:
    """Lines of a library's disassembly that match a pattern; None if it could not be read to the end.

    Only matching lines are kept, because a disassembly may have gigabytes. A last marker line proves that it is
    complete.
    """
    command = (
        'file=$1 pattern=$2 end=$3; shift 3; { objdump --no-show-raw-insn "$@" "$file" && echo "$end"; } '
        '| LC_ALL=C grep -aP "$pattern|^$end\\$"'
    )
    try:
        done = run_command(["sh", "-c", command, "sh", str(library), pattern, _END, *(how or ("-d",))], _LIMITS)
    except OSError:
        return None
    text = done.output.rstrip("\n")
    return None if done.reason or not text.endswith(_END) else text.removesuffix(_END)


def _disassembles(library: Path) -> bool:
    """True if objdump prints any instruction; of an unknown machine it prints nothing and reports no error."""
    command = 'objdump -d --no-show-raw-insn "$1" | LC_ALL=C grep -aqPm1 ":\\t[a-z]"'
    try:
        done = run_command(["sh", "-c", command, "sh", str(library)], _LIMITS)
    except OSError:
        return False
    return not done.reason and done.returncode == 0


def imports_torch(library: Path) -> bool:
    """True if a built library is linked against PyTorch, as extensions are."""
    try:
        return any(name.startswith(("libtorch", "libc10")) for name in read_imports(library).libraries)
    except (OSError, ValueError):
        return False


def why_not(name: str, *, only_known_bad: bool) -> str:
    """Says why a function that was looked up by name is not allowed; "" if it is."""
    if name.startswith("mmap"):
        return f"looks up {name}, which maps memory that may run"
    reason = convicts(name) if only_known_bad else _judge(name, False)
    return in_words(reason, "looks up") if reason else ""


def _joins_its_threads(imports: Imports) -> bool:
    """True if a library joins its threads and detaches none. That they end with the call is also observed at run
    time."""
    names = {symbol.split("@")[0] for symbol in imports.symbols}
    waits = bool(names & {"pthread_join", "_ZNSt6thread4joinEv", "thrd_join"})
    lets_go = {"pthread_detach", "_ZNSt6thread6detachEv", "thrd_detach"}
    return waits and not lets_go & {*names, *imports.own}


def _judge(name: str, torch_binding: bool) -> Reason | None:
    """The reason against an imported name; None if it is allowed. An unknown name is a reason, too."""
    if name in _ALLOWED:
        return None
    if torch_binding and (judgement := _judge_binding(name)) is not _SAYS_NOTHING:
        return judgement
    if not _PYTHON_VALUES.fullmatch(name) and (reason := convicts(name)):
        return reason
    is_known = is_lead(name) or any(known.fullmatch(name) for known in (_ALLOWED_PATTERNS, _RUNTIMES, _PYTHON_VALUES))
    return None if is_known else Reason(ReasonKind.UNKNOWN, name)


def _judge_own(name: str) -> Reason | None:
    """The reason against a name that the library defines itself and exports; None if it is allowed.

    The loader takes the first definition in the process, which for the system's functions is the system's.
    """
    if name.startswith("PyInit_") or (name.startswith("_Z") and not _NEVER_INLINE.fullmatch(name)):
        return None
    reason = None if name in _ALLOWED or _PYTHON_VALUES.fullmatch(name) else convicts(name)
    return reason if reason and reason.kind != ReasonKind.TORCH_INTERNAL else None


def _judge_binding(name: str) -> Reason | None:
    """The reason against an imported name of an extension of torch; None if allowed, _SAYS_NOTHING if torch does not
    explain it."""
    if name.startswith(("Sleef_", "cpuinfo_")):  # vector mathematics behind at::vec, like libmvec; facts of the CPU
        return None
    if _REGISTERS.match(name):  # registers operators; their public names are judged from the text
        return None
    if operator := _DISPATCHED.fullmatch(name):
        kind = re.sub(r"_(?:memory_format|Scalar|Tensor|dtype|device|start|int|dim)$", "", operator["name"])
        is_free = bool({kind, operator["name"]} & (FREE | COPIES | _LAYOUTS))
        return None if is_free else Reason(ReasonKind.TORCH_OPERATOR, operator["name"])
    if _BESIDE_DISPATCHER.match(name):
        return Reason(ReasonKind.TORCH_INTERNAL, name)
    if _INTERPRETER.fullmatch(name):
        return Reason(ReasonKind.RUNS_PYTHON, name)
    if name.startswith("cuda") and (reason := convicts(name)):
        return reason
    return None if _BINDING.fullmatch(name) or name.startswith("pthread_mutex") else _SAYS_NOTHING
