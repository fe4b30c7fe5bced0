"""Names that a candidate's own Python may not use, with each one's effect in words."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from foundry.tools.words import words


class Suspicion(Enum):
    """Ways in which a name may be misused; `meaning` says it as a predicate of the name."""

    DYNAMIC = "makes or looks up code at run time"
    INTROSPECTION = "looks into the process that grades it"
    STATE = "changes what others use too"
    HOOKS = "leaves code behind that runs later"
    THREADS = "may work beside or after the call"
    FILES = "touches files, processes or the environment"
    PRECOMPUTED = "may know answers or inputs beforehand"
    CLOCK = "reads or replaces a clock"
    PHASE = "tells one call from another"
    KEPT = "is kept from one call to the next"
    SHORTCUT = "decides by an input's values or address"
    FALLBACK = "runs other code where the kernel fails"
    LAZY = "stands between the caller and the result"
    OTHERS_WORK = "may leave the work to other code"
    SYSTEM = "calls the operating system from the kernel"
    HIDDEN = "hides what is called"

    @property
    def meaning(self) -> str:
        """The predicate that says how names of this class may be misused."""
        return self.value


# Modules that a candidate may import; each use is judged at its place.
ALLOWED_IMPORTS = frozenset(
    words(
        "torch ctypes math typing typing_extensions dataclasses functools collections hashlib json os pathlib "
        "platform shutil subprocess sys tempfile itertools __future__ enum operator struct contextlib warnings "
        "cuda triton abc copy fcntl threading logging textwrap string re types numbers time uuid errno sysconfig "
        "numpy array stat locale pprint decimal fractions statistics heapq bisect glob importlib io atexit traceback "
        "datetime timeit random inspect gc zlib base64 binascii queue signal weakref concurrent multiprocessing "
        "contextvars shlex site argparse pickle asyncio secrets cmath unittest fnmatch getpass mmap socket select "
        "graphlib keyword pkgutil zipfile code ast cffi "
        "rich tqdm loguru colorama tabulate packaging einops ninja pybind11 filelock"  # messages, layouts, builds
    )
)
# Parameters are drawn with these in a constructor; anywhere else they can only serve to know the grader's inputs.
RANDOM = words(
    "torch.rand torch.randn torch.randint torch.rand_like torch.randn_like torch.randperm torch.normal torch.bernoulli"
)

OTHER_COMPILERS = words("torch.jit torch.compile torch.fx torch._dynamo torch._inductor")

# (suspicion, what it does, dotted names). A name covers everything below it: "subprocess" covers subprocess.run.
_TABLE: tuple[tuple[Suspicion, str, tuple[str, ...]], ...] = (
    (Suspicion.DYNAMIC, "runs code made at run time", words("exec eval compile __import__")),
    (
        Suspicion.DYNAMIC,
        "loads code at run time",
        words("importlib runpy marshal pickle dill types.FunctionType types.CodeType"),
    ),
    (Suspicion.DYNAMIC, "reaches names that cannot be read here", words("globals locals vars base64 zlib codecs")),
    (
        Suspicion.DYNAMIC,
        "hands the work to another compiler",
        OTHER_COMPILERS,
    ),
    (
        Suspicion.INTROSPECTION,
        "looks into the process that grades it",
        words(
            "gc inspect traceback tracemalloc linecache sys._getframe sys.modules sys.settrace sys.setprofile "
            "sys.meta_path sys.argv sys._current_frames"
        ),
    ),
    (
        Suspicion.INTROSPECTION,
        "reaches memory that is not its own",
        words(
            "ctypes.pythonapi ctypes.py_object ctypes.string_at ctypes.memmove ctypes.memset ctypes.CFUNCTYPE "
            "ctypes.PYFUNCTYPE ctypes.util"
        ),
    ),
    (
        Suspicion.STATE,
        "reaches PyTorch's dispatcher",
        words("torch._C torch.library torch.utils._python_dispatch torch.overrides torch._subclasses"),
    ),
    (
        Suspicion.STATE,
        "changes state that the reference and the grader share",
        words(
            "torch.set_num_threads torch.set_num_interop_threads torch.set_default_dtype torch.set_default_device "
            "torch.set_float32_matmul_precision torch.use_deterministic_algorithms torch.set_flush_denormal "
            "torch.set_grad_enabled torch.set_printoptions setattr delattr os.putenv os.chdir os.umask os.nice "
            "os.sched_setaffinity os.setpriority os.sched_setscheduler os.sched_setparam resource.setrlimit"
        ),
    ),
    (
        Suspicion.HOOKS,
        "leaves code behind that runs later",
        words(
            "atexit signal weakref.finalize faulthandler torch.autograd.graph torch.nn.modules.module torch.monitor "
            "sys.addaudithook sys.excepthook"
        ),
    ),
    (
        Suspicion.THREADS,
        "works outside the call that is timed",
        words(
            "threading multiprocessing concurrent asyncio _thread queue torch.multiprocessing torch.cuda.Stream "
            "torch.cuda.stream torch.Stream torch.futures os.fork os.spawnv"
        ),
    ),
    (
        Suspicion.FILES,
        "touches files, processes or the environment",
        words(
            "open input io mmap socket urllib http requests ssl os.open os.read os.write "
            "os.system os.popen os.execv os.execvp os.kill os.listdir os.scandir os.walk os.pipe os.dup2 subprocess "
            "shutil tempfile pathlib glob torch.load torch.save torch.hub torch.from_file fcntl pty "
            "torch.utils.cpp_extension.load"
        ),
    ),
    (
        Suspicion.PRECOMPUTED,
        "can regenerate the inputs of the grader",
        words(
            "torch.manual_seed torch.seed torch.Generator torch.cuda.manual_seed torch.random random get_inputs"
        ),
    ),
    (Suspicion.PRECOMPUTED, "can regenerate the inputs of the grader", RANDOM),
    (
        Suspicion.PHASE,
        "reads the state of random numbers, which tells one call from another",
        words(
            "torch.initial_seed torch.get_rng_state torch.default_generator torch.cuda.initial_seed "
            "torch.cuda.get_rng_state torch.cuda.default_generators torch.random.initial_seed "
            "torch.random.get_rng_state random.getstate torch.set_rng_state torch.random.default_generator"
        ),
    ),
    (Suspicion.OTHERS_WORK, "loads a foreign library", words("torch.ops.load_library torch.classes")),
    (
        Suspicion.CLOCK,
        "reads or replaces a clock",
        words("time datetime timeit torch.cuda.Event torch.utils.benchmark torch.profiler"),
    ),
)  # fmt: skip

_RULES = {name: (suspicion, meaning) for suspicion, meaning, names in _TABLE for name in names}


# Names that building, loading and tuning kernels may need: observation of the process decides (audit/acts/conduct.py),
# because only the moment and the object of their use tell right from wrong.
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
    """True if observing the process settles a suspicion that the text alone cannot."""
    return is_or_is_in(path.removeprefix("builtins."), _SEEN_AT_RUN_TIME)


def is_or_is_in(path: str, names: Collection[str]) -> bool:
    """True if a dotted path is one of the names or lies below one."""
    parts = path.split(".")
    return any(".".join(parts[:length]) in names for length in range(1, len(parts) + 1))


def forbidden(path: str) -> tuple[Suspicion, str] | None:
    """(suspicion, meaning) of a dotted path's longest forbidden prefix, by whole words; None if it is harmless."""
    parts = path.removeprefix("builtins.").split(".")
    if ".".join(parts) in _HARMLESS:
        return None
    for length in range(len(parts), 0, -1):
        found = _RULES.get(".".join(parts[:length]))
        if found:
            return found
    return None
