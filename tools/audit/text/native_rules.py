"""Rules over the candidate's C++ or CUDA text: a kernel reads its arguments, computes, writes its results."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import replace

from foundry.knowledge.library.file.texts import library_texts
from foundry.knowledge.task import Policy
from foundry.tools.audit.text.clocks import CLOCKS, clocks_are_apart
from foundry.tools.audit.text.forbidden import may_ask_for
from foundry.tools.audit.text.native_races import race_findings
from foundry.tools.audit.text.native_state import state_findings
from foundry.tools.audit.text.registered import registration_findings
from foundry.tools.audit.text.source import CandidateSource, Finding, foundry_literals, string_constants
from foundry.tools.process.child import Limits, run_command
from foundry.tools.words import words

# word -> (rule, what it means); a word is an identifier followed by "(" or "::" or used as a type
_SYSTEM = words(
    "system popen fork vfork execl execlp execv execve execvp dlopen dlsym dlmopen socket connect listen sendto "
    "recvfrom fopen freopen fdopen fread open openat creat mprotect ptrace process_vm_readv "
    "process_vm_writev sigaction signal raise kill getenv secure_getenv setenv putenv syscall ioctl shm_open "
    "posix_spawn readlink unlink chmod dup2 setjmp longjmp backtrace clock_gettime gettimeofday "
    "cudaEventElapsedTime"
)
_SYSTEM_TYPES = words("ifstream ofstream fstream filesystem steady_clock system_clock high_resolution_clock environ")
_SYSTEM_HEADERS = re.compile(
    r"^\s*#\s*include\s*<(fcntl\.h|sys/(?!(?:mman|types|sysinfo)\.h)[^>]*|dlfcn\.h|fstream|filesystem|netinet/.*|arpa/.*|signal\.h|"
    r"csignal|pybind11/embed\.h|link\.h|spawn\.h|semaphore\.h)>",
    re.MULTILINE,
)
_THREADS = words(
    "pthread_create std::thread std::jthread std::async std::launch thrd_create cudaStreamCreate "
    "cudaStreamCreateWithFlags cudaStreamCreateWithPriority cuStreamCreate cudaLaunchHostFunc "
    "cudaStreamAddCallback getStreamFromPool getStreamFromExternal setCurrentCUDAStream "
    "cudaThreadExchangeStreamCaptureMode"
)
_DEVICE_STATE = words(
    "cudaDeviceSetLimit cudaCtxResetPersistingL2Cache cudaStreamSetAttribute cudaDeviceReset cudaSetDeviceFlags "
    "cudaDeviceSetCacheConfig cudaMallocHost omp_set_num_threads omp_set_dynamic omp_set_schedule "
    "accessPolicyWindow"
)
_SYSTEM_USE = re.compile(rf"(?<![\w.>])(?:({'|'.join(_SYSTEM)})\s*\(|({'|'.join(_SYSTEM_TYPES)})\b)")
_PYTHON_USE = re.compile(
    r"\b((?:PyObject_(?:Call|Vectorcall|GetAttr|SetAttr|GetItem)|PyVectorcall_|PyImport_|PyRun_|PyEval_Eval|PyCode_|"
    r"PyFunction_|PyFrame_|PySys_|PyMarshal_|PyDict_|PyCallable_|Py_Compile)\w*)"
)
_THREAD_USE = re.compile(rf"(?<!\w)({'|'.join(_THREADS)})\b")
_DEVICE_USE = re.compile(rf"\b({'|'.join(_DEVICE_STATE)})\b")
# The settings of a thread's arithmetic, and setting them to what a variable kept.
_ARITHMETIC = re.compile(
    r"\b(_mm_setcsr|_MM_SET_(?:FLUSH_ZERO|DENORMALS_ZERO|ROUNDING)_MODE|__builtin_ia32_ldmxcsr|fesetround|fesetenv|"
    r"v?ldmxcsr)\b"
)
_ARITHMETIC_BACK = re.compile(
    r"\b(?:_mm_setcsr|__builtin_ia32_ldmxcsr|fesetround|fesetenv|_MM_SET_\w+_MODE)\s*\(\s*&?(?:[a-z]\w*|FE_TONEAREST|_MM_(?:FLUSH|DENORMALS)_ZERO_OFF)\s*\)"
)
_VENDOR = re.compile(
    r"\b(cublas\w*|cudnn\w*|cusparse\w*|cusolver\w*|cufft\w*|cutensor\w*|mkl_\w+|cblas_\w+|dnnl\w*|openblas\w*|"
    r"[sdcz](?:gemm|gemv|syrk|trsm)_|cub::Device\w+|thrust::\w+)\b"
)
_TORCH_CALL = re.compile(
    r"\b(?:at|torch|c10)::(?:native::|_ops::|cpu::|cuda::|nn::functional::|special::|linalg::)?(\w+)"
)
_INCLUDE = re.compile(r"(?m)^[ \t]*#[ \t]*include\b.*$")
_HEADER = re.compile(r"(?!/)(?!.*\.\.)[\w/.+-]+\.(?:h|hpp|cuh|inl)")  # a header of a search path, by any quotes
# What a torch binding in C++ needs: types, allocation, checks and the current stream.
_TORCH_BINDING = frozenset(
    words(
        "Tensor TensorOptions TensorAccessor PackedTensorAccessor32 PackedTensorAccessor64 RestrictPtrTraits "
        "empty empty_like empty_strided zeros zeros_like optional nullopt ScalarType Half BFloat16 kFloat "
        "kFloat32 kFloat16 kHalf kBFloat16 kDouble kInt kInt32 kInt64 kLong kBool kByte kCUDA kCPU dtype device "
        "Device DeviceType getCurrentCUDAStream stream CUDAStream CUDAGuard OptionalCUDAGuard device_of "
        "check_type ArrayRef IntArrayRef List ivalue AutoGradMode NoGradGuard kStrided MemoryFormat Scalar "
        "toString autograd cuda cpu native detail impl InferenceMode parallel_for get_num_threads get_thread_num "
        "in_parallel_region divup ceil_div acc_type opmath_type BFloat16x2 Layout Generator TensorList TensorRef "
        "TensorBase TensorArg IValue string_view irange SmallVector complex toType elementSize typeMetaToScalarType "
        "vec Vectorized full full_like ones ones_like new_empty scalar_tensor Warning warn Error IndexError ValueError"
    )
)
_UNREADABLE = re.compile(
    r"\.incbin|\.(?:byte|[248]byte|long|quad|word)\s+(?:0x|\d)|#\s*embed\b|\bsyscall\b|\bint\s+\$0x80|\blibcudart_static"
)
_RELAXED_FLAGS = {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "--use_fast_math",
                  "-use_fast_math", "-fassociative-math", "-freciprocal-math"}  # fmt: skip
_FLAG = re.compile(
    r"-O[0-3sz]|-Ofast|-g|-std=(?:c|gnu)\+\+\d\w|-m[\w.=+-]+|-f[\w=+-]+|-W[\w=+-]*|-D\w+(?:=[\w.]*)?|-shared|-pipe|"
    r"-fopenmp(?:-simd)?|-pthread|-x|c\+\+|-l(?:m|gomp|mvec|cudart|cuda)|--?gpu-architecture=\w+|-arch=\w+|"
    r"-gencode(?:=[\w=,_]+)?|arch=\w+,code=\w+|-cubin|--cubin|-ptx|-lineinfo|--?use_fast_math|--?expt-[\w-]+|"
    r"--?ftz=\w+|--?fmad=\w+|--?prec-(?:div|sqrt)=\w+|-Xptxas(?:=[\w=,-]+)?|-v|--?maxrregcount=\d+|--?extra-device-vectorization|"
    r"--?diag-suppress=[\d,]+|-Xcompiler(?:=[\w=,-]+)?|--param(?:=[\w=-]+)?|[\w-]+=\d+|-rdc=false|--?restrict|-lto|-flto"
)  # fmt: skip
_FORBIDDEN_FLAG = re.compile(
    r"-f(?:plugin|profile-use|dump|opt-info|include)\S*|-Wl\S*|-Wa\S*|-Wp\S*|-wrapper|-specs\S*"
)


def native_findings(source: CandidateSource, policy: Policy) -> Iterator[Finding]:
    """Every broken rule of the native texts in the file, and of the flags they are compiled with."""
    texts = list(native_texts(source))
    tunes = clocks_are_apart(source, [strip_comments(text) for _, text in texts])
    for line, text in texts:
        found = [item for item in _text_findings(line, text, policy) if not (tunes and _is_clock(item))]
        yield from found
        if re.search(r"^\s*#\s*define\b", text, re.MULTILINE):  # what macros make of it
            known = {(finding.rule, finding.what) for finding in found}
            for finding in _text_findings(line, expanded(text), policy):
                if (finding.rule, finding.what) not in known and not (tunes and _is_clock(finding)):
                    yield finding
    yield from _flag_findings(source, policy)


def _is_clock(finding: Finding) -> bool:
    return finding.rule == "native_system" and finding.subject in CLOCKS


def native_texts(source: CandidateSource) -> Iterator[tuple[int, str]]:
    """(line of the file, text) of the string constants that are C++ or CUDA, Foundry's own run-time header cut out.

    The header's lines are left empty, so that line numbers stay right.
    """
    for statement in source.own:
        for constant in string_constants(statement):
            text = str(constant.value)
            if _looks_native(text):
                for header in runtime_headers():
                    text = text.replace(header, "\n" * header.count("\n"))
                yield constant.lineno, text


def _looks_native(text: str) -> bool:
    return bool(re.search(r"#\s*include|__global__|extern\s+\"C\"|\b(?:void|float|int|double|asm)\b[^;]*[;{]", text))


@functools.cache
def runtime_headers(*endings: str) -> tuple[str, ...]:
    """Texts of the library's run-time headers, as they are pasted into candidates."""
    wanted = endings or (".h", ".cuh")
    return tuple(text for name, text in library_texts().items() if name.endswith(wanted))


def strip_comments(text: str, *, strings: bool = True) -> str:
    """C++ text without comments (and, by default, without the contents of string and character literals)."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if found.startswith("/"):
            return "\n" * found.count("\n") or " "
        return '""' if strings else found

    return pattern.sub(blank, text.replace("\\\n", " \n"))


@functools.lru_cache(maxsize=64)
def expanded(text: str) -> str:
    """The text after the preprocessor, line by line where it was, without headers; the text itself where it fails."""
    without = re.sub(r"^([ \t]*)#([ \t]*include\b)", r"\1//\2", text, flags=re.MULTILINE)
    command = ["g++", "-E", "-fopenmp", "-D__CUDACC__", "-x", "c++", "-"]
    try:
        done = run_command(command, Limits(wall_s=5.0, memory_bytes=1 << 30, cpu_s=5, tasks=16), stdin=without.encode())
    except OSError:
        return text
    if done.returncode or done.reason:
        return text
    lines: dict[int, str] = {}
    number, is_own = 1, False
    for part in done.output.splitlines():
        marker = re.match(r'# (\d+) "([^"]*)"', part)
        if marker:
            number, is_own = int(marker[1]), marker[2] == "<stdin>"
        else:
            if is_own:
                lines[number] = f"{lines.get(number, '')} {part}"
            number += 1
    return "\n".join(lines.get(index, "") for index in range(1, max(lines, default=0) + 1))


def _text_findings(line: int, text: str, policy: Policy) -> Iterator[Finding]:
    code = strip_comments(text)
    with_strings = strip_comments(text, strings=False)

    def finding(rule: str, position: int, what: str) -> Finding:
        return Finding(rule, line + code.count("\n", 0, position), what)

    for match in _SYSTEM_USE.finditer(code):
        if match[1] == "getenv" and not _asks_for_secrets(with_strings):
            continue
        name = str(match[1] or match[2])
        found = finding("native_system", match.start(), f"uses {name}, which reaches outside the kernel")
        yield replace(found, subject=name)
    for match in _SYSTEM_HEADERS.finditer(code):
        yield finding("native_system", match.start(), f"includes <{match.group(1)}>")
    for match in _PYTHON_USE.finditer(code):
        yield finding("native_system", match.start(), f"uses {match[1]}, which runs Python code from inside the kernel")
    for match in _THREAD_USE.finditer(code):
        what = f"uses {match[1]}: work may go on after the call"
        yield replace(finding("native_threads", match.start(), what), by_watching=_waits(match[1], code))
    for match in _DEVICE_USE.finditer(code):
        if not _is_thread_setter(code, match.start()):
            found = finding("global_state", match.start(), f"uses {match[1]}, which changes the device for everyone")
            yield replace(found, by_watching=match[1] == "omp_set_num_threads")  # PyTorch's count is looked at after
    settings = list(_ARITHMETIC.finditer(code))
    is_restored = bool(settings) and any(back.start() > settings[0].start() for back in _ARITHMETIC_BACK.finditer(code))
    for match in () if is_restored else settings:
        what = f"uses {match[1]} and does not set back how the thread rounds or treats denormal numbers"
        yield finding("global_state", match.start(), what)
    yield from _hidden_findings(line, code, with_strings)
    yield from state_findings(line, code)
    yield from race_findings(line, code)
    yield from registration_findings(line, code)
    if policy != "open":
        yield from _vendor_findings(line, code)
    if policy == "strict":
        for match in re.finditer(r"\b__(?:expf|logf|sinf|cosf|powf|fdividef|tanhf)\b", code):
            yield finding("maths", match.start(), f"uses the approximate {match.group()}")


def _asks_for_secrets(with_strings: str) -> bool:
    """Whether getenv is asked for anything but what a kernel may ask for, or for a name that is put together."""
    names = re.findall(r"getenv\s*\(\s*\"(\w*)\"\s*\)", with_strings)
    return len(names) != len(re.findall(r"\bgetenv\s*\(", with_strings)) or not all(map(may_ask_for, names))


def _waits(name: str, code: str) -> bool:
    """Threads of one call that are joined; whether all of them are is seen at run time."""
    is_thread = name in ("pthread_create", "std::thread", "std::jthread", "std::async", "std::launch", "thrd_create")
    waits = re.search(r"\.\s*join\s*\(|pthread_join|thrd_join|\.\s*(?:get|wait)\s*\(", code)
    return is_thread and waits is not None and not re.search(r"\bdetach\s*\(|pthread_detach", code)


def _is_thread_setter(code: str, position: int) -> bool:
    """Foundry's own entry point that hands PyTorch's thread count to the library's OpenMP runtime."""
    before = code[:position].rsplit("\n", 1)[-1]
    return "void foundry_threads(void* count)" in before


def _hidden_findings(line: int, code: str, with_strings: str) -> Iterator[Finding]:
    for match in re.finditer(r"^\s*#\s*include\s*\"([^\"]*)\"", with_strings, re.MULTILINE):
        if _HEADER.fullmatch(match.group(1)):
            continue
        yield Finding(
            "native_hidden", line + with_strings.count("\n", 0, match.start()), f"includes {match.group(1)!r}"
        )
    for match in re.finditer(r"#\s*include\s*(<\s*(?:/|\.\.)[^>]*>|[A-Za-z_]\w*)", code):
        yield Finding("native_hidden", line + code.count("\n", 0, match.start()), f"includes {match.group(1)}")
    for match in _UNREADABLE.finditer(with_strings):
        yield Finding(
            "native_hidden", line + with_strings.count("\n", 0, match.start()), f"uses {match.group().strip()}"
        )
    for match in re.finditer(r"^\s*#\s*define.*##", code, re.MULTILINE):
        where = line + code.count("\n", 0, match.end())
        yield Finding("native_hidden", where, "pastes tokens into names", by_watching=True)


def _vendor_findings(line: int, code: str) -> Iterator[Finding]:
    code = _INCLUDE.sub("", code)  # a header alone computes nothing
    for match in _VENDOR.finditer(code):
        where = line + code.count("\n", 0, match.start())
        yield Finding("native_vendor", where, f"uses {match.group(1)}, a vendor's operator")
    for match in _TORCH_CALL.finditer(code):
        name = match.group(1)
        if name not in _TORCH_BINDING and not name.startswith("k"):
            where = line + code.count("\n", 0, match.start())
            what = f"uses {match.group()}, an operator of PyTorch"
            yield Finding("native_vendor", where, what, by_watching=True)  # what is linked in decides


def _flag_findings(source: CandidateSource, policy: Policy) -> Iterator[Finding]:
    about = foundry_literals(source.tree).get("FOUNDRY")
    flags = about.get("flags", []) if isinstance(about, dict) else []
    line = next((node.lineno for node in source.own if isinstance(node, ast.Assign) and _is_foundry(node)), 0)
    compiler = about.get("compiler", "g++") if isinstance(about, dict) else "g++"
    if compiler not in ("g++", "nvcc", "clang++"):
        yield Finding("build_flags", line, f"asks for the compiler {compiler!r}")
    for flag in flags if isinstance(flags, list) else [flags]:
        text = str(flag)
        if _FORBIDDEN_FLAG.fullmatch(text) or not _FLAG.fullmatch(text):
            what = f"passes {text!r} to the compiler, which does more than optimise"
            yield Finding("build_flags", line, what, subject=text)
        elif policy == "strict" and text in _RELAXED_FLAGS:
            yield Finding("maths", line, f"compiles with {text}")
    for node in ast.walk(source.tree):  # load_inline(extra_cuda_cflags=[...])
        if isinstance(node, ast.keyword) and node.arg and node.arg.startswith("extra_") and policy == "strict":
            for constant in string_constants(node.value):
                if constant.value in _RELAXED_FLAGS:
                    yield Finding("maths", constant.lineno, f"compiles with {constant.value}")


def _is_foundry(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "FOUNDRY" for target in node.targets)


def relaxed_maths(source: CandidateSource) -> bool:
    """Whether the build relaxes IEEE rules; allowed and labelled except under strict."""
    return any(constant.value in _RELAXED_FLAGS for constant in string_constants(source.tree))
