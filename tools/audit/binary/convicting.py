"""Functions that a built library may not import, and why: cheats use them, and no run would show it.

A name that honest authors import too is only a lead: the gate mentions it, and the run decides how it was used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from foundry.knowledge.reasons import Reason, ReasonKind


@dataclass(frozen=True)
class Convicting:
    """A pattern of forbidden names, what they would do unseen, and museum exhibits that do it."""

    kind: ReasonKind
    names: str
    why: str
    exhibits: tuple[str, ...]


CONVICTING = (
    Convicting(
        ReasonKind.VENDOR,
        r"[sdcz](?:gemm|gemv|symm|syrk|trsm|dot|axpy)_?|cblas_\w+|cublas\w+|cudnn\w+|cusparse\w+|mkl_\w+|MKL_\w+|"
        r"dnnl\w*|LAPACKE_\w+",
        "a vendor computes, and without the candidate's own code nothing is right either",
        ("vendor_behind_operators", "product_under_its_own_name"),
    ),
    Convicting(
        ReasonKind.TORCH_INTERNAL,
        r"_ZN?K?(?:2at|3c10|5torch)\w+|.*_ops.*call.*",
        "PyTorch computes where the recorder of its operators does not look",
        ("operator_in_cpp", "script_unit"),
    ),
    Convicting(
        ReasonKind.PYTHON,
        r"Py\w+|_Py\w+",
        "Python computes where the recorder of its calls does not look",
        ("python_from_cpp",),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"dlopen|dlsym|dlmopen",
        "a function is called that no table of imports names",
        ("dlopen_product", "library_named_cubin"),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"fork|vfork|exec\w+|system|popen|ptrace|process_vm_\w+",
        "another process works, whose memory and time are not looked at",
        ("helper_process", "forked_worker_writes_later"),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"open(?:64|at)?|fopen(?:64)?|_ZNSt\d+basic_(?:[io]?fstream|filebuf)\w*|_ZNSt10filesystem\w+|write|read|pipe2?|"
        r"dup[23]?|memfd_create|shm_open|socket|connect",
        "answers are kept where they are not looked for: neither in memory that a run changes nor in one that it reads",
        ("pipe_memory", "cache_on_disk", "answer_on_disk"),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"mprotect|pkey_mprotect|sigaction|signal|userfaultfd|longjmp|_setjmp",
        "work is put off until somebody touches the answer, or other code is rewritten",
        ("page_fault_kernel", "lazy_pages", "patched_clock_in_libc"),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"syscall",
        "any of these by its number; excused where that is futex, by which C++'s headers let threads wait",
        ("still_clock", "raw_system_calls"),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"_exit|_Exit|quick_exit|on_exit",
        "the process ends before it is looked at",
        ("forged_result_and_exit",),
    ),
    Convicting(
        ReasonKind.SYSTEM,
        r"clock_gettime|clock|time|times|gettimeofday|_ZNSt6chrono\w+",
        "a timed call is told from a checked one; excused where answers are right whatever the clocks say",
        ("loop_clock", "clock_tells_a_loop"),
    ),
    Convicting(
        ReasonKind.THREADS,
        r"pthread_(?:create|detach)|_ZNSt6thread\w+|thrd_\w+|_ZNSt\w*_M_start_thread\w*",
        "work goes on after the call, for less time than a look takes; excused where the library waits for its threads",
        ("thread_in_cpp_writes_later", "thread_in_extension"),
    ),
    Convicting(
        ReasonKind.DEVICE,
        r"cudaEventElapsedTime\w*",
        "as a clock on the CPU, and on a GPU no run is made under other clocks",
        ("false_event_clock",),
    ),
    Convicting(
        ReasonKind.DEVICE,
        r"cudaStreamSetAttribute\w*",
        "a window of the cache stays on the caller's stream, which no reading of settings shows",
        ("persisting_cache", "kept_lines"),
    ),
)
# The uses of such functions are observed. Streams and host functions in a stream show in a copy that the caller's
# stream makes while the device is held, and in charged time. Device limits, scheduling, rounding, cores and signal
# masks
# show in settings compared before and after. Waiting and sleeping show in CPU time between calls and outputs that
# change
# later.
_LEADS = re.compile(
    r"cuda(?:StreamCreate\w*|LaunchHostFunc\w*|StreamAddCallback\w*|DeviceSetLimit|DeviceReset|SetDeviceFlags|"
    r"CtxResetPersistingL2Cache|ThreadExchangeStreamCaptureMode|HostRegister)|"
    r"(?:clock_)?nanosleep|u?sleep|setenv|putenv|unsetenv|secure_getenv|kill|raise|sem_\w+|mremap|posix_madvise|"
    r"sched_setaffinity|mallopt|pthread_(?:setaffinity_np|setname_np|setschedparam)|fe(?:get|set)(?:round|env)|feholdexcept|"
    r"feupdateenv|fe(?:clear|raise|test)except"
)
_CONVICTING = re.compile("|".join(f"(?P<row{number}>{row.names})" for number, row in enumerate(CONVICTING)))


def convicts(name: str) -> Reason | None:
    """The reason against a library that imports this name, or None."""
    match = _CONVICTING.fullmatch(name)
    return Reason(CONVICTING[int(str(match.lastgroup)[3:])].kind, name) if match and match.lastgroup else None


def is_lead(name: str) -> bool:
    """True if honest authors import the name too, so that only its use counts."""
    return _LEADS.fullmatch(name) is not None
