"""Where a kernel stands in the archive: memory use, algorithm and synchronisation, each 0 to 3, read from its source.

            0                     1                           2                          3
  d_mem     scalar or strided     coalesced or vectorised     tiles in shared or cache   tiles, registers, prefetch
  d_algo    direct                fused single pass           reformulated               new algorithm
  d_sync    none                  barriers                    warp or team collectives   device-wide (atomics, grid)

Comments do not count. Every candidate carries Foundry's whole run-time header, but only functions that the kernel calls
count. The rules look at what code does with memory, loops and synchronisation; a few techniques (Winograd, split-K) are
recognised by name. There are few rules on purpose: a cell keeps kernels diverse, it does not judge them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from foundry.knowledge.candidate import Build, Coordinates
from foundry.knowledge.compiler.lowered import Lowered
from foundry.tools.audit.text.native import native_texts, runtime_headers, strip_comments
from foundry.tools.audit.text.source import Unreadable, read_source

# Vectors of at least this many bytes, in this share of the moves and arithmetic, make a CPU build vectorised.
VECTOR_BYTES = 32
VECTOR_SHARE = 0.25


def read_coordinates(text: str, build: Build, lowered: Lowered | None = None) -> Coordinates:
    """The cell of a candidate file. For a library candidate it comes from its templates; for any other it is read from
    the C++ or CUDA text and the build's resources. A file without native text is (0, 0, 0)."""
    if lowered is not None and lowered.recipe.authored is None:
        return lowered.coordinates
    own = native_code(text)
    if not own.strip():
        return Coordinates(0, 0, 0)
    code = own + "\n" + "\n".join(_called_of_header(own))
    if re.search(r"__global__", own):
        return Coordinates(_cuda_memory(code, build), algorithm(own), _cuda_synchronisation(code))
    return Coordinates(_cpu_memory(code, build), algorithm(own), _cpu_synchronisation(code))


def native_code(text: str) -> str:
    """The file's C++ and CUDA texts without comments and Foundry's run-time header; strings stay, asm is in them."""
    source = read_source(text)
    if isinstance(source, Unreadable):
        return ""
    return "\n".join(strip_comments(part, strings=False) for _, part in native_texts(source))


def _called_of_header(code: str) -> list[str]:
    """Functions of the run-time headers that the code calls by name, and those that they call. A call of an object's
    method is none: a header's function of that name, in whatever header, is another."""
    functions = _header_functions("__global__" in code)
    called: dict[str, str] = {}
    pending = [code]
    while pending:
        names = set(re.findall(r"(?<!\.)(?<!->)\b(\w+)\s*(?:<[^<>;()]*>\s*)?\(", pending.pop()))
        for name in names & functions.keys() - called.keys():
            called[name] = functions[name]
            pending.append(functions[name])
    return list(called.values())


@functools.cache
def _header_functions(is_cuda: bool) -> dict[str, str]:
    """Name -> body of each function of the run-time header; overloads are joined."""
    found: dict[str, str] = {}
    for header in runtime_headers(".cuh" if is_cuda else ".h"):
        code = strip_comments(header, strings=False)
        for match in re.finditer(r"\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?\{", code):
            end = _closing(code, match.end())
            if match[1] not in ("if", "for", "while", "switch"):
                found[match[1]] = found.get(match[1], "") + code[match.end() : end] + "\n"
    return found


def _closing(code: str, start: int) -> int:
    """Position of the brace that closes the block whose opening brace ends at `start`."""
    depth = 1
    for position in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        if depth == 0:
            return position
    return len(code)


def _has(code: str) -> Callable[[str], bool]:
    return lambda pattern: re.search(pattern, code) is not None


# ---------------------------------------------------------------- memory


def _cuda_memory(code: str, build: Build) -> int:
    has = _has(code)
    if has(r"__shared__") or has(r"\bwgmma\b|\bcp\.async") or build.resources.shared_bytes > 1024:
        registers = has(_REGISTER_TILE) or has(r"\bwmma::fragment|\bmma\.sync|\bwgmma")
        ahead = has(r"cp\.async|__pipeline_|cuda::pipeline|memcpy_async|\^=?\s*1\b|%\s*(?:STAGES|[234])\b")
        return 3 if registers and ahead else 2
    vector = has(
        r"\b(?:float|double|int|uint|half|__half|longlong|ushort)[248]\s*[*&>(]|\bVec<|load_vec<|int4\b|float4\b"
    )
    return 1 if vector or _is_coalesced(code) else 0


# acc[4][8]: a two-dimensional local array of small constant sizes, as register tiles are written.
_REGISTER_TILE = (
    r"\b(?:float|double|V|Vector|__m\d+|[A-Z]\w*|half2?)\s+\w+\s*\[\s*\w+\s*\]\s*\[\s*\w+\s*\]\s*(?:=\s*\{|;)"
)


def _is_coalesced(code: str) -> bool:
    """Some index ends in + threadIdx.x with factor one, directly or through a variable, and none multiplies it."""
    names = "|".join(["threadIdx\\.x", *re.findall(r"\b(\w+)\s*=[^;=]*?\+\s*\(?\w*\)?\s*threadIdx\.x\s*;", code)])
    strided = re.search(rf"\[[^\]]*\b(?:{names})\s*\*\s*(?!1\b)\w+[^\]]*\]", code)
    plain = re.search(rf"\[[^\]]*\b(?:{names})\s*\]", code) or re.search(
        rf"for\s*\([^;]*=\s*(?:\(\w+\)\s*)?(?:{names})\s*;", code
    )
    return plain is not None and strided is None


def _cpu_memory(code: str, build: Build) -> int:
    has = _has(code)
    tiled = _loops_over_tiles(code)
    registers = has(_REGISTER_TILE)
    vectorised = has(
        r"#\s*pragma\s+omp\s+(?:parallel\s+for\s+|for\s+)?simd|_mm(?:256|512)?_\w+|vector_size|\bfloat\w*x\d+_t\b"
    )
    vectorised = vectorised or _vector_share(build) >= VECTOR_SHARE
    if tiled and registers and (vectorised or has(r"__builtin_prefetch|_mm_prefetch")):
        return 3
    if tiled or registers:
        return 2
    return 1 if vectorised else 0


def _loops_over_tiles(code: str) -> bool:
    """A loop that steps by a tile, with a loop inside that starts where the tile does (not unrolling by hand)."""
    for match in re.finditer(r"for\s*\(\s*\w+\s+(\w+)\s*=[^;]*;[^;]*;\s*\1\s*\+=\s*(\w+)\s*\)", code):
        name, step = match.groups()
        if step == "1":
            continue
        inside = code[match.end() : match.end() + 4000]
        if re.search(rf"for\s*\([^;]*=\s*{name}\b[^;]*;", inside) or re.search(
            rf"for\s*\(\s*\w+\s+(\w+)\s*=\s*0\s*;\s*\1\s*<\s*(?:{step}|\w*(?:min|count|rest|depth|rows)\w*)\b[^;]*;",
            inside,
        ):
            return True
    return False


_NOT_VECTORS = ("scalar_float", "integer", "convert", "other")


def _vector_share(build: Build) -> float:
    """Share of vector instructions among moves and arithmetic, from the build's instruction mix."""
    mix = build.resources.instruction_mix
    if build.resources.vector_bytes < VECTOR_BYTES or not mix:
        return 0.0
    vector = sum(mix.get(name, 0) for name in ("fma", "vector_float", "vector_move", "stream"))
    return vector / max(1, vector + sum(mix.get(name, 0) for name in _NOT_VECTORS))


# ---------------------------------------------------------------- algorithm

_NEW_ALGORITHM = r"(?i)winograd|strassen|\bfft|butterfl|decoupled_look_?back|bluestein"
_TERM = r"\w+(?:\[[^\]]*\])?"
_DECAY = rf"exp2?f?\s*\(\s*{_TERM}\s*-\s*{_TERM}\s*\)"  # exp(old maximum - new maximum)
_WELFORD = r"\b(\w+)\s*\+=\s*(\w+)\s*/\s*[^;]+;[^}]{0,200}\+=\s*\2\s*\*"
_SPLIT = r"\bsplit_?k\b|\bim2col\b|\bcol2im\b|\bpartial\w*\s*\["
_FUNCTIONS = (
    r"\b(?:expf?|exp2f?|logf?|log1pf?|tanhf?|erff?|sqrtf?|rsqrtf?|powf?|fmaxf?|fminf?|max|min|fabsf?|sigmoid|gelu|silu|"
    r"\w+_(?:exp|tanh|erf|sigmoid))\s*\("
)


def algorithm(code: str) -> int:
    """Coordinate d_algo, 0 to 3: how far the computation is from its definition; for C++ and CUDA."""
    if re.search(_NEW_ALGORITHM, code):
        return 3
    if _rescales(code):
        return 2
    if re.search(_WELFORD, code) or re.search(_SPLIT, code, re.IGNORECASE):
        return 2
    return 1 if _is_fused(code) else 0


def _rescales(code: str) -> bool:
    """Online softmax: a running value is multiplied by exp(old maximum - new maximum), at once or through a name."""
    names = re.findall(rf"\b(\w+)\s*=\s*[^;]*{_DECAY}", code)
    factor = "|".join([rf"[\w:]*{_DECAY}", *(rf"\b{name}\b" for name in names)])
    multiplied = rf"({_TERM})\s*(?:\*=\s*(?:{factor})|=\s*(?:\1\s*\*\s*(?:{factor})|(?:{factor})\s*\*\s*\1))"
    return re.search(multiplied, code) is not None


def _is_fused(code: str) -> bool:
    """One store gets the value of several operations: two functions, or a function and an operator, or two operators
    besides a contraction's multiply-add."""
    functions = len(re.findall(_FUNCTIONS, code))
    operators = 0
    for statement in re.findall(r"[^;{}]*=(?!=)[^;{}]*;", code):
        right = re.sub(r"\[[^\[\]]*\]", "", statement.split("=", 1)[1])  # index arithmetic does not count
        if re.search(r"(?:blockIdx|threadIdx|blockDim|\bint\b|\blong\b|size_t|const\s+auto)", statement):
            continue
        operators += len(re.findall(r"(?<=[\w)\]])\s*[-+*/]\s*(?=[\w(])", right))
    contraction = len(re.findall(r"\+=\s*[^;]*\*", code))
    return functions + max(0, operators - contraction) >= 2


# ---------------------------------------------------------------- synchronisation


def _cuda_synchronisation(code: str) -> int:
    has = _has(code)
    if has(r"\batomic\w+\s*\(|\bred\.global|grid\.sync|this_grid|cluster\.sync|__threadfence\s*\(|cuda::atomic"):
        return 3
    if has(r"__shfl\w*\s*\(|__reduce_\w+_sync|tiled_partition|__ballot_sync|\bwarp_\w+\s*\(|\bteam_\w+\s*\("):
        return 2
    return 1 if has(r"__syncthreads|__barrier_sync|bar\.sync|mbarrier|\.arrive") else 0


def _cpu_synchronisation(code: str) -> int:
    has = _has(code)
    if has(r"#\s*pragma\s+omp\s+(?:atomic|critical|flush)|std::atomic|__atomic_|__sync_|omp_set_lock"):
        return 3
    if has(r"#\s*pragma\s+omp\s+(?:parallel\s+)?for[^\n]*\breduction\s*\(|#\s*pragma\s+omp\s+parallel\s+reduction"):
        return 2
    regions = len(re.findall(r"#\s*pragma\s+omp\s+parallel\b", code))
    inner = len(re.findall(r"#\s*pragma\s+omp\s+for\b(?![^\n]*nowait)", code))
    return 1 if has(r"#\s*pragma\s+omp\s+barrier") or regions > 1 or inner > 1 else 0
