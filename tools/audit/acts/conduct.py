"""Judges the observed behaviour of a candidate's process: files, processes, libraries, calls of a steady forward.

While a file is loaded it may compile and load its own kernels; a forward in steady state may only compute. Free of
torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from foundry import tools
from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import Policy
from foundry.tools.audit.acts.looks import LOOKS_AWAY, kind_of
from foundry.tools.audit.acts.observed import Event, Observations
from foundry.tools.audit.acts.shell import commands
from foundry.tools.audit.binary.symbols import imports_torch, instruction_gate, symbol_gates, why_not
from foundry.tools.audit.text.forbidden import ALLOWED_IMPORTS, Suspicion, forbidden
from foundry.tools.machine.installed import is_installed, is_of_system
from foundry.tools.protocol.orders import PROCESS_EVENTS
from foundry.tools.protocol.reasons import in_words, make_gate
from foundry.tools.task.operators import COPIES, FREE
from foundry.tools.words import words

MAPPED_CODE = "mapped code"
_PROGRAMS = re.compile(
    r"(?:[\w-]*-)?(?:c\+\+|g\+\+|gcc|cc|cpp|clang|clang\+\+|nvcc|hipcc|icp?x|ninja|make|cmake|ld|lld|gold|as|ar|nm|strip|"
    r"objdump|readelf|ptxas|fatbinary|cudafe\+\+|cuobjdump|nvdisasm|nvlink|c\+\+filt|which|file|where|whereis|uname|lscpu|"
    r"nproc|getconf|ldconfig|nvidia-smi|sysctl|arch|hostname|true|echo|cd|mkdir|set|export|test|\[|pwd|ls|cat|cp|mv|rm|touch|"
    r"tee|grep|head|tail|printf|sort|tr|wc|cut|fi|for|done|exit|umask|ulimit|chmod|dirname|basename|realpath|readlink)(?:-[\d.]+)?"
)
_SHELL = re.compile(r"(?:\S*/)?(?:sh|bash|dash)(?:\s+-\w+)*\s+-\w*c\s+(?P<command>.*)", re.DOTALL)
_SETTINGS = re.compile(  # environment variables that an extension's build reads
    r"TORCH_CUDA_ARCH_LIST|TORCH_EXTENSIONS_DIR|MAX_JOBS|CUDA_HOME|CUDA_PATH|CC|CXX|CFLAGS|CXXFLAGS|NVCC\w*|PATH|"
    r"CUDA_LAUNCH_BLOCKING|TORCH_CUDA_ARCH|PYTORCH_NVCC|TRITON_CACHE_DIR|USE_NINJA|(?:TORCH_EXTENSIONS|CCACHE)_\w+|"
    r"\w*(?:CACHE_DIR|BUILD_DIR|VERBOSE|LOG_?LEVEL)|CPPFLAGS|LDFLAGS|CPATH|TMPDIR|PYTHONUNBUFFERED|TORCH_SHOW_\w+"
)
_OWN_FILES = re.compile(
    r"/proc/(?:cpuinfo|meminfo|stat|loadavg|version|sys/kernel/.*|self/(?:maps|status|cgroup|cpuset|mountinfo))"
)
_GRADER = str(Path(tools.__file__).parent) + "/"
_SYSTEM_LIBRARIES = re.compile(
    r"(?:libm|libc|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp|libomp|libiomp5|libmvec|libatomic|libffi|libz|"
    r"liblzma|libbz2|libcrypto|libssl|libexpat|libuuid|libsqlite3|libreadline|libtinfo|libncursesw?|libnsl|libnuma|"
    r"libcuda|libcudart|libnvrtc(?:-builtins)?|libnvJitLink|libnvidia-[\w-]+|libnvptxcompiler|libcupti|ld-linux[\w-]*|"
    r"libmemusage|libpython3|libutil|libresolv|libcrypt)(?:[-.][\w.-]*)?"
)
_OTHER_LIBRARIES = (ReasonKind.LINKED, ReasonKind.LOADED, ReasonKind.MAPPED)
_OTHERS_WORK = (ReasonKind.VENDOR, ReasonKind.TORCH_OPERATOR, ReasonKind.TORCH_INTERNAL, *_OTHER_LIBRARIES)
_RUNTIME = re.compile(r"lib(?:cuda|cudart|nvrtc)\b")
_RUNTIME_FILE = re.compile(r"lib(?:cuda|cudart|nvrtc)\.so[.\d]*")


def conduct_gates(seen: Observations, policy: Policy, *, on_cpu: bool) -> list[Gate]:
    """Gates "process events", "steady calls", "mapped code" and the symbols of every library the candidate built.

    `seen` is an Observer's report, with the steady forward's calls. Reads the built libraries, so they must still
    exist.
    """
    events = seen.get("events", [])
    bad = list(dict.fromkeys(_event_findings(events)))
    if printed := seen.get("printed", ""):
        bad.append(_conduct(f"when its process ends it prints {printed[:80]!r}; a kernel reports nothing"))
    ran = sorted(
        {_program(one) for _, event, what, _ in events if event == "subprocess.Popen" for one in _commands(what)}
    )
    honest = f"while loading it ran {', '.join(ran)}; " if ran else ""
    gates = [
        make_gate(PROCESS_EVENTS, bad, honest + "forward touched no file, process, network or code"),
        make_gate("steady calls", list(_steady_findings(seen, policy, on_cpu=on_cpu)), "forward calls its own kernels"),
    ]
    gates += _arithmetic_gates(seen.get("arithmetic", {}), policy)
    foreign, own = _sorted_libraries(seen.get("libraries", []), events)
    if policy == "open":
        foreign = [reason for reason in foreign if reason.kind not in _OTHER_LIBRARIES]
    elif on_cpu:
        foreign += _unnamed(seen.get("unnamed", {}), set(seen.get("prepared_by", ())))
    gates.append(make_gate(MAPPED_CODE, foreign, f"{len(own)} libraries of its own, nothing foreign"))
    kept, tritons = seen.get("kept", {}), seen.get("tritons", [])
    for path in own:
        if path in tritons:  # written and loaded by Triton: the kernels that it launches are judged as kernels
            continue
        place = Path(path)
        if path in kept and not place.exists():  # deleted after it was loaded
            place = Path(kept[path])
        for gate in symbol_gates(place, torch_binding=imports_torch(place)):
            gates.append(apply_policy(replace(gate, gate=f"{gate.gate} ({place.name})"), policy))
        doors = instruction_gate(place)
        gates.append(replace(doors, gate=f"{doors.gate} ({place.name})"))
    return gates


def apply_policy(gate: Gate, policy: Policy) -> Gate:
    """A gate of symbols or libraries under a policy: "open" turns a failure caused only by other libraries into a
    pass."""
    is_others = bool(gate.reasons) and all(reason.kind in _OTHERS_WORK for reason in gate.reasons)
    if gate.passed or policy != "open" or not is_others:
        return gate
    return Gate(gate.gate, True, f"allowed under open: {gate.evidence}")


def _arithmetic_gates(found: Mapping[str, str], policy: Policy) -> list[Gate]:
    """Gate "denormal numbers", only if they are flushed to zero. Compiler flags do so unnoticed: "fair" passes and
    names it."""
    if found.get("denormal numbers") in (None, "kept"):
        return []
    reason = Reason(ReasonKind.FLUSHES, "")
    return [Gate("denormal numbers", policy != "strict", in_words(reason), (reason,))]


def _conduct(what: str, line: int = 0) -> Reason:
    """A reason of kind CONDUCT: behaviour that no kernel needs."""
    return Reason(ReasonKind.CONDUCT, what, line)


# ---------------------------------------------------------------- events


def _event_findings(events: Sequence[Event]) -> Iterator[Reason]:
    """Reasons against the interpreter's audit events, given as (phase, event, argument, line)."""
    for phase, event, what, line in events:
        reason = _event_reason(phase, event, what)
        if reason:
            is_prying = event == "open" and _is_prying(what)
            kind = ReasonKind.PRIES if is_prying else kind_of(event)
            yield Reason(kind, f"{reason} ({_when(phase)})", line)


def _event_reason(phase: str, event: str, what: str) -> str:
    """Says in words why an event of the candidate's Python is not allowed in this phase; "" if it is."""
    if event in LOOKS_AWAY:
        return LOOKS_AWAY[event]
    if event == "import":
        root = what.split(".")[0]
        if root in ALLOWED_IMPORTS:
            return ""
        if phase in ("first", "steady"):
            return f"imports {what} inside forward"
        return f"imports {what}, which the task does not import in these words"
    if event == "os.putenv":
        return "" if _SETTINGS.fullmatch(what) else f"changes the environment variable {what}"
    if event == "ctypes.dlsym":
        return _symbol_reason(what)
    if event == "open":
        return _file_reason(phase, what)
    if event in ("subprocess.Popen", "os.system", "os.posix_spawn"):
        if phase == "steady":
            return f"runs {what[:60]!r} in every call"
        command = f"sh -c {what}" if event == "os.system" else what
        strange = [part.strip() for part in _commands(command) if not _is_of_a_build(part)]
        return f"runs {strange[0][:80]!r}, which is no compiler" if strange else ""
    if phase == "steady" and event == "ctypes.dlopen" and not _RUNTIME_FILE.fullmatch(what.rsplit("/", 1)[-1]):
        return f"loads {what} in every call"  # CUDA's driver and runtime are loaded already, so they bring no new code
    return ""


def _is_prying(what: str) -> bool:
    """True if a file belongs to the grader or describes another process."""
    return what.startswith(_GRADER) or re.match(r"/proc/\d+/", what) is not None


def _file_reason(phase: str, what: str) -> str:
    """Says why opening a file ("path mode") is not allowed in this phase; "" if it is."""
    path = what.rsplit(" ", 1)[0]
    if path.startswith("/proc/") and not _OWN_FILES.fullmatch(path):
        return f"opens {path}, which belongs to a process"
    if path.startswith(_GRADER):
        return f"opens {path}, a file of the grader"
    return f"opens {path} in every call" if phase == "steady" else ""


def _symbol_reason(what: str) -> str:
    """Says why a function looked up by hand ("library name") is not allowed; of other libraries, only harmless ones
    are."""
    library, _, name = what.rpartition(" ")
    if not library or not name or _RUNTIME.match(library.rsplit("/", 1)[-1]):
        return why_not(name, only_known_bad=True)
    if is_installed(library) or library == "None" or "/" not in library:
        return why_not(name, only_known_bad=False)
    return ""


def _commands(command: str) -> list[str]:
    """Splits a command line into its single commands."""
    shell = _SHELL.match(command)
    return commands(shell["command"]) if shell else [command]


def _is_of_a_build(command: str) -> bool:
    """True if a command runs a compiler, a linker or another program that builds need."""
    program = _program(command)
    return not program or _PROGRAMS.fullmatch(program) is not None


_BEFORE = frozenset(words("env exec nice ccache command -v if then else elif do ! time"))


def _program(command: str) -> str:
    """The name of the program that a command runs; with its path if that path is relative."""
    parts = command.split()
    while parts and (re.fullmatch(r"\w+=\S*", parts[0]) or parts[0] in _BEFORE):
        parts.pop(0)
    return parts[0].rsplit("/", 1)[-1] if parts and parts[0][0] in "/$" else "".join(parts[:1])


def _when(phase: str) -> str:
    """The phase of a run in words: "while loading", "in every call", ..."""
    return {"load": "while loading", "build": "while constructing the model", "first": "in the first call"}.get(
        phase, "in every call"
    )


# ---------------------------------------------------------------- calls of a steady forward


def _steady_findings(seen: Observations, policy: Policy, *, on_cpu: bool) -> Iterator[Reason]:
    """Reasons against calls and PyTorch operators of a forward in steady state."""
    beside = [name for name in seen.get("beside", ()) if name.split(".")[-1] not in FREE | COPIES]
    if beside and policy != "open":
        yield _conduct(
            f"PyTorch runs {', '.join(beside[:4])} on another thread, or its dispatcher was told to look away"
        )
    yield from _call_findings(seen.get("calls", ()), policy, on_cpu=on_cpu)


def _is_settled(rule: tuple[Suspicion, str], path: str, *, on_cpu: bool) -> bool:
    """True if a run decides about a forbidden name, so that the name alone counts nothing.

    Threads are observed like the caller, work after the call is measured, and calls on a CPU are repeated under
    other clocks.
    """
    if rule[0] is Suspicion.THREADS:
        return path.split(".")[0] in ("threading", "concurrent", "queue", "_queue", "asyncio")
    return rule[0] is Suspicion.CLOCK and on_cpu and path.split(".")[0] in ("time", "timeit", "datetime")


def _call_findings(calls: Sequence[tuple[str, int, float]], policy: Policy, *, on_cpu: bool) -> Iterator[Reason]:
    """Reasons against functions that a steady forward calls; `calls` holds (name, line, share of the processor
    time)."""
    joins = any(_JOIN.match(name) for name, _, _ in calls)
    for name, line, share in calls:
        path = name.replace("_io.open", "open").removeprefix("builtins.").removeprefix(".")
        rule = None if _LOCKS.match(path) or path == "globals" else forbidden(path)  # globals() is judged from the text
        if rule and _is_settled(rule, path, on_cpu=on_cpu):
            continue
        if rule and path.split(".")[0] != "torch":  # PyTorch's functions are judged from the dispatcher's log
            is_prying = path.split(".")[0] == "gc" and rule[0] is Suspicion.INTROSPECTION
            words = f"calls {path} in every call, which {rule[1]}"
            yield Reason(ReasonKind.PRIES if is_prying else ReasonKind.CONDUCT, words, line)
        elif _STREAM.match(path) and not joins:
            yield _conduct(f"calls {path} in every call and waits for no stream: work may go on after it", line)
        elif path.split(".")[0] in _COMPUTING and not _ARRAY_MEMORY.fullmatch(path) and policy != "open":
            yield _conduct(f"calls {path} in every call, another library's function", line)
        elif share > LARGEST_SHARE and _is_of_python(name) and policy != "open":
            percent = f"{100 * share:.0f} %"
            words = f"{path} takes {percent} of each call's processor time: let the kernel compute instead"
            yield _conduct(words, line)


def _is_of_python(name: str) -> bool:
    """True for a function of Python's standard library or of PyTorch's storages, which no dispatcher sees."""
    root = name.lstrip(".").split(".")[0]
    return root in sys.stdlib_module_names or root == "builtins" or (root == "torch" and "Storage" in name)


LARGEST_SHARE = 0.25  # share of a call's processor time allowed to one function outside the kernel

_STREAM = re.compile(r"torch\.cuda\.(?:stream\b|set_stream\b|StreamContext|streams\.Stream\.__new__)")
_JOIN = re.compile(
    r"torch\.cuda\.(?:synchronize|streams\.(?:Stream|Event)\.(?:wait_stream|wait_event|wait|synchronize))"
)
_LOCKS = re.compile(  # names that make a binding thread-safe
    r"_?thread(?:ing)?\.(?:r?lock\b|Lock\b|RLock\b|_RLock\b|Condition\b|Semaphore\b|get_ident|get_native_id|_local|local)",
    re.IGNORECASE,
)
_ARRAY_MEMORY = re.compile(  # NumPy functions that make, view or point to memory
    r"numpy\..*(?:ctypes|_internal)\S*|numpy\.(?:\w+\.)*(?:empty|zeros|asarray|ascontiguousarray|asanyarray|frombuffer|"
    r"empty_like|zeros_like|dtype|_?array_equal(?:_dispatcher)?|(?:may_share|shares)_memory)|"
    r"numpy\.ndarray\.(?:reshape|view|ravel|transpose|copy|fill|squeeze|setflags)"
)
_COMPUTING = frozenset(words("numpy scipy numba cupy jax tensorflow sklearn mkl pandas onnxruntime"))


# ---------------------------------------------------------------- mapped code


def _sorted_libraries(libraries: Sequence[str], events: Sequence[Event]) -> tuple[list[Reason], list[str]]:
    """Sorts loaded libraries into (reasons against foreign ones, paths of the candidate's own)."""
    opened = {what: line for _, event, what, line in events if event == "ctypes.dlopen"}
    written = {what.rsplit(" ", 1)[0]: line for _, event, what, line in events if event == "open" and _writes(what)}
    reasons: list[Reason] = []
    own: list[str] = []
    for path, line in opened.items():
        name = path.rsplit("/", 1)[-1]
        is_foreign = is_installed(path) or ("/" not in path and path != "None")
        if is_foreign and not _SYSTEM_LIBRARIES.fullmatch(name):
            reasons.append(Reason(ReasonKind.LOADED, path, line))
    for path in libraries:
        if path in written:
            reasons.append(Reason(ReasonKind.WRITTEN, path, written[path]))
        if not is_installed(path):
            own.append(path)
        elif is_of_system(path) and not _SYSTEM_LIBRARIES.fullmatch(path.rsplit("/", 1)[-1]):
            reasons.append(Reason(ReasonKind.MAPPED, path))
    return list(dict.fromkeys(reasons)), own


def _writes(what: str) -> bool:
    """True if an open event ("path mode") opens the file for writing."""
    return bool(re.search(r"[wax+]", what.rsplit(" ", 1)[-1])) and what.rsplit(" ", 1)[-1] != "None"


def _unnamed(sizes: Mapping[str, int], prepared_by: set[str]) -> list[Reason]:
    """Reasons against executable memory without a file behind it, in phases where only the candidate's own lines ran.

    PyTorch's matrix products and convolutions compile code of their own: `prepared_by` names those that prepared
    weights.
    """
    phases = ["load", "steady"] if prepared_by & _COMPILED_ON_USE else ["load", "first", "steady"]
    found = [(phase, sizes[phase]) for phase in phases if sizes.get(phase)]
    words = [f"{size} bytes of code without a file appeared {_when(phase)}" for phase, size in found]
    return [Reason(ReasonKind.UNNAMED_CODE, what) for what in words]


_COMPILED_ON_USE = frozenset(
    words(
        "mm addmm bmm baddbmm matmul linear conv1d conv2d conv3d convolution mkldnn_linear mkldnn_convolution einsum "
        "_scaled_dot_product_flash_attention_for_cpu lstm gru mkldnn_rnn_layer"
    )
)
