"""Requirements on every candidate's file: the only rules over text that veto.

They are definitions, not guesses: the file can be read, its compiler only optimises, its arithmetic is what the
policy allows. One more rule is here because no run shows what it forbids; it names its exhibit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import Policy
from foundry.tools.audit.text.native import native_texts, strip_comments
from foundry.tools.audit.text.source import CandidateSource, Unreadable, foundry_literals, string_constants
from foundry.tools.protocol.reasons import make_gate

_COMPILERS = ("g++", "nvcc", "clang++")
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
_LINKS = re.compile(r"-l(?:openblas|blas|cblas|lapack|mkl\w*|dnnl|cublas\w*|cudnn\w*|cufft|cusparse|cusolver)")
_APPROXIMATE = re.compile(r"\b__(?:expf|logf|sinf|cosf|powf|fdividef|tanhf)\b")
# A definition with a body of a name that the CUDA runtime exports, or under which nvcc links it in. The loader and the
# linker then choose which function runs, and no call of forward shows it. Exhibit: false_event_clock.
_OF_THE_RUNTIME = re.compile(
    r"\b(cuda(?:Event|Stream|Device|Graph|Mem|Malloc|Free|Launch|Func|Get|Set|Host|Ctx|Thread|Peek|Module|Library)\w*|"
    r"cu(?:Event|Stream|Launch|Graph|Mem|Ctx|Module)\w*)\s*\([^(){};]*\)\s*\{|(libcudart_static)"
)


def definition_gates(source: CandidateSource | Unreadable, policy: Policy) -> list[Gate]:
    """The gates "readable", "build_flags", "native names" and "maths"; only "readable" if the file cannot be read."""
    if isinstance(source, Unreadable):
        return [make_gate("readable", [Reason(ReasonKind.NOT_READABLE, source.why, source.line)], "")]
    again = [node.lineno for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    twice = [Reason(ReasonKind.NOT_READABLE, "ModelNew is defined twice", line) for line in again[:-1]]
    gates = [
        make_gate("readable", twice, "the file parses and defines ModelNew"),
        make_gate("build_flags", list(_flags(source, policy)), "compiler flags only optimise"),
        make_gate("native names", list(_names(source)), "the kernel source takes no name of the CUDA runtime"),
    ]
    relaxed = list(_relaxed(source)) if policy == "strict" else []
    return [*gates, make_gate("maths", relaxed, "floating-point rules are those the policy allows")]


def links_vendor(source: CandidateSource) -> bool:
    """True if the build links a vendor's library, which policy "open" allows."""
    return any(_LINKS.fullmatch(flag) for flag in _asked(source)[1])


def relaxed_maths(source: CandidateSource) -> bool:
    """True if the build relaxes IEEE rules; allowed and labelled except under "strict"."""
    return any(constant.value in _RELAXED_FLAGS for constant in string_constants(source.tree))


def _asked(source: CandidateSource) -> tuple[str, list[str]]:
    """The compiler and the flags that the file requests in FOUNDRY."""
    about = foundry_literals(source.tree).get("FOUNDRY")
    about = about if isinstance(about, dict) else {}
    flags = about.get("flags", [])
    return str(about.get("compiler", "g++")), [str(flag) for flag in (flags if isinstance(flags, list) else [flags])]


def _flags(source: CandidateSource, policy: Policy) -> Iterator[Reason]:
    """Reasons against an unknown compiler or flag."""
    compiler, flags = _asked(source)
    line = next((node.lineno for node in source.own if isinstance(node, ast.Assign) and _is_foundry(node)), 0)
    if compiler not in _COMPILERS:
        yield Reason(ReasonKind.COMPILER, compiler, line)
    for flag in flags:
        is_known = _FLAG.fullmatch(flag) and not _FORBIDDEN_FLAG.fullmatch(flag)
        if not is_known and not (policy == "open" and _LINKS.fullmatch(flag)):
            yield Reason(ReasonKind.FLAG, flag, line)


def _names(source: CandidateSource) -> Iterator[Reason]:
    """Reasons against native functions that take a name of the CUDA runtime."""
    for line, text in native_texts(source):
        code = strip_comments(text, strings=False)
        for match in _OF_THE_RUNTIME.finditer(code):
            yield Reason(ReasonKind.TAKES_NAME, str(match[1] or match[2]), line + code.count("\n", 0, match.start()))


def _relaxed(source: CandidateSource) -> Iterator[Reason]:
    """Reasons against relaxed floating-point flags and approximate intrinsics."""
    for statement in source.own:
        for constant in string_constants(statement):
            if constant.value in _RELAXED_FLAGS:
                yield Reason(ReasonKind.RELAXED, str(constant.value), constant.lineno)
    for line, text in native_texts(source):
        code = strip_comments(text)
        for match in _APPROXIMATE.finditer(code):
            yield Reason(ReasonKind.RELAXED, match.group(), line + code.count("\n", 0, match.start()))


def _is_foundry(node: ast.Assign) -> bool:
    """True if the statement assigns FOUNDRY, the candidate's declaration about itself."""
    return any(isinstance(target, ast.Name) and target.id == "FOUNDRY" for target in node.targets)
