"""Names that a candidate's own Python may not use, with what each does in words."""

from __future__ import annotations

import re
from collections.abc import Collection

from foundry.tools.words import words

# Modules a candidate may import; what it uses of them is judged where it uses it.
ALLOWED_IMPORTS = frozenset(
    words(
        "torch ctypes math typing typing_extensions dataclasses functools collections hashlib json os pathlib "
        "platform shutil subprocess sys tempfile itertools __future__ enum operator struct contextlib warnings "
        "cuda triton abc copy fcntl threading logging textwrap string re types numbers time uuid errno sysconfig "
        "numpy array stat locale pprint decimal fractions statistics heapq bisect glob importlib io atexit traceback "
        "datetime timeit random inspect gc zlib base64 binascii queue signal weakref concurrent multiprocessing "
        "contextvars shlex site argparse pickle asyncio secrets cmath unittest fnmatch getpass mmap socket select "
        "graphlib keyword pkgutil zipfile code ast "
        "rich tqdm loguru colorama tabulate packaging einops ninja pybind11 filelock"  # words, layouts
    )
)
# Environment variables that configure threads and compilers: these may be set too.
SETTINGS = re.compile(
    r"(?:OMP|KMP|GOMP|MKL|TORCH|CUDA|NVCC|TRITON|PYTORCH_NVCC|XDG|NVIDIA|CCACHE)_\w+|MAX_JOBS|CC|CXX|C(?:XX|PP)?FLAGS|LDFLAGS|"
    r"PATH|HOME|TMP|TEMP|TMPDIR|USER|USE_NINJA|FOUNDRY_BUILD_CACHE|\w*(?:THREADS|CORES|CACHE_DIR|CACHE|BUILD_DIR|ARCH|FLAGS|"
    r"VERBOSE|QUIET|DEBUG|TRACE|LOG_?LEVEL|COMPILER)\w*"
)
# A variable by any other name is nobody's but the candidate's, and unset where it is graded as where it is used: what
# is measured is what it does without. These say who is looking, or are secrets.
_TELLING = re.compile(
    r"(?:\w*_)?(?:PY_?TEST|CI|GITHUB|GITLAB|JENKINS|KERNEL_?BENCH\w*|GRAD(?:E|ER|ING)|JUDGE|EVAL\w*|TESTS?|TESTING|"
    r"VERIFY\w*|AUDIT\w*|FOUNDRY|SANDBOX|WORKER|PHASE|STAGE|KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(?:_\w*)?",
    re.IGNORECASE,
)


def may_ask_for(variable: str) -> bool:
    """Whether a kernel may read a variable of the environment."""
    return bool(SETTINGS.fullmatch(variable)) or not _TELLING.fullmatch(variable)


# Parameters are drawn with these in a constructor; anywhere else they can only serve to know the grader's inputs.
RANDOM = words(
    "torch.rand torch.randn torch.randint torch.rand_like torch.randn_like torch.randperm torch.normal torch.bernoulli"
)

OTHER_COMPILERS = words("torch.jit torch.compile torch.fx torch._dynamo torch._inductor")

# (rule, what it does, dotted names). A name covers everything below it: "subprocess" covers subprocess.run.
_TABLE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("dynamic_code", "runs code made at run time", words("exec eval compile __import__")),
    (
        "dynamic_code",
        "loads code at run time",
        words("importlib runpy marshal pickle dill types.FunctionType types.CodeType"),
    ),
    ("dynamic_code", "reaches names that cannot be read here", words("globals locals vars base64 zlib codecs")),
    (
        "dynamic_code",
        "hands the work to another compiler",
        OTHER_COMPILERS,
    ),
    (
        "introspection",
        "looks into the process that grades it",
        words(
            "gc inspect traceback tracemalloc linecache sys._getframe sys.modules sys.settrace sys.setprofile "
            "sys.meta_path sys.argv sys._current_frames"
        ),
    ),
    (
        "introspection",
        "reaches memory that is not its own",
        words(
            "ctypes.pythonapi ctypes.py_object ctypes.string_at ctypes.memmove ctypes.memset ctypes.CFUNCTYPE "
            "ctypes.PYFUNCTYPE ctypes.util"
        ),
    ),
    (
        "global_state",
        "reaches PyTorch's dispatcher",
        words("torch._C torch.library torch.utils._python_dispatch torch.overrides torch._subclasses"),
    ),
    (
        "global_state",
        "changes state that the reference and the grader share",
        words(
            "torch.set_num_threads torch.set_num_interop_threads torch.set_default_dtype torch.set_default_device "
            "torch.set_float32_matmul_precision torch.use_deterministic_algorithms torch.set_flush_denormal "
            "torch.set_grad_enabled torch.set_printoptions setattr delattr os.putenv os.chdir os.umask os.nice "
            "os.sched_setaffinity os.setpriority os.sched_setscheduler os.sched_setparam resource.setrlimit"
        ),
    ),
    (
        "hooks",
        "leaves code behind that runs later",
        words(
            "atexit signal weakref.finalize faulthandler torch.autograd.graph torch.nn.modules.module torch.monitor "
            "sys.addaudithook sys.excepthook"
        ),
    ),
    (
        "threads",
        "works outside the call that is timed",
        words(
            "threading multiprocessing concurrent asyncio _thread queue torch.multiprocessing torch.cuda.Stream "
            "torch.cuda.stream torch.Stream torch.futures os.fork os.spawnv"
        ),
    ),
    (
        "files",
        "touches files, processes or the environment",
        words(
            "open input io mmap socket urllib http requests ssl os.open os.read os.write "
            "os.system os.popen os.execv os.execvp os.kill os.listdir os.scandir os.walk os.pipe os.dup2 subprocess "
            "shutil tempfile pathlib glob torch.load torch.save torch.hub torch.from_file fcntl pty "
            "torch.utils.cpp_extension.load"
        ),
    ),
    (
        "precomputed",
        "can regenerate the inputs of the grader",
        words(
            "torch.manual_seed torch.seed torch.Generator torch.cuda.manual_seed torch.random random get_inputs"
        ),
    ),
    ("precomputed", "can regenerate the inputs of the grader", RANDOM),
    (
        "phase_detection",
        "reads the state of random numbers, which tells one call from another",
        words(
            "torch.initial_seed torch.get_rng_state torch.default_generator torch.cuda.initial_seed "
            "torch.cuda.get_rng_state torch.cuda.default_generators torch.random.initial_seed "
            "torch.random.get_rng_state random.getstate torch.set_rng_state torch.random.default_generator"
        ),
    ),
    ("imports", "loads a foreign library", words("torch.ops.load_library torch.classes")),
    (
        "phase_detection",
        "reads or replaces a clock",
        words("time datetime timeit torch.cuda.Event torch.utils.benchmark torch.profiler"),
    ),
)  # fmt: skip

_RULES = {name: (rule, meaning) for rule, meaning, names in _TABLE for name in names}


# What a candidate may need to build, load and tune its kernels: watching its process decides (audit/conduct.py),
# because what counts is when it happens and to what.
_SEEN_AT_RUN_TIME = words(
    "open io os.open os.read os.write os.listdir os.scandir os.walk os.popen os.system subprocess "
    "shutil tempfile pathlib glob fcntl importlib torch.utils.cpp_extension.load torch.ops.load_library time datetime "
    "timeit torch.cuda.Event torch.utils.benchmark traceback ctypes.util atexit weakref.finalize"
)
_HARMLESS = words(
    "threading.local threading.Lock threading.RLock threading.get_ident threading.current_thread "
    "torch._C._cuda_getCurrentRawStream torch._C._cuda_getDevice traceback.print_exc traceback.format_exc "
    "zlib.crc32 zlib.adler32 base64.b64encode base64.b32encode base64.b16encode base64.urlsafe_b64encode "
    "base64.b85encode inspect.cleandoc inspect.getdoc inspect.signature inspect.Signature inspect.Parameter "
    "inspect.BoundArguments inspect.Signature.bind inspect.Signature.bind_partial inspect.BoundArguments.args "
    "inspect.BoundArguments.kwargs inspect.BoundArguments.apply_defaults torch.jit.ignore torch.jit.unused "
    "torch.jit.export torch.jit.is_scripting torch.jit.is_tracing inspect.isclass inspect.isfunction weakref.ref "
    "multiprocessing.cpu_count multiprocessing.current_process threading.Event threading.Condition threading.Semaphore "
    "threading.main_thread threading.active_count gc.collect pickle.dumps"
)


def is_seen_at_run_time(path: str) -> bool:
    """Whether watching the process settles what a static mention of the name cannot."""
    return is_or_is_in(path.removeprefix("builtins."), _SEEN_AT_RUN_TIME)


def is_or_is_in(path: str, names: Collection[str]) -> bool:
    """Whether a dotted path is one of the names or lies below one."""
    parts = path.split(".")
    return any(".".join(parts[:length]) in names for length in range(1, len(parts) + 1))


def forbidden(path: str) -> tuple[str, str] | None:
    """(rule, meaning) of a dotted path's longest forbidden prefix, by whole components; None when it is harmless."""
    parts = path.removeprefix("builtins.").split(".")
    if ".".join(parts) in _HARMLESS:
        return None
    for length in range(len(parts), 0, -1):
        found = _RULES.get(".".join(parts[:length]))
        if found:
            return found
    return None
