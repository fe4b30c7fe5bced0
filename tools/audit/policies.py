"""Practices that are no cheats, and which of the policies open, fair and strict refuse them.

Integrity holds at every level. A label names the practice; a policy allows it, or a gate says why it does not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from foundry.knowledge.candidate import Gate
from foundry.knowledge.task import OWN_PARAMETERS, REFERENCE_ELSEWHERE, AccuracyClass, Policy
from foundry.tools.audit.text.definitions import links_vendor, relaxed_maths
from foundry.tools.audit.text.forbidden import OTHER_COMPILERS, is_or_is_in
from foundry.tools.audit.text.leads import Lead
from foundry.tools.audit.text.native import native_texts, strip_comments
from foundry.tools.audit.text.source import CandidateSource, foundry_literals, methods_of
from foundry.tools.protocol.orders import OTHER_MODE, OTHER_STRIDES

# label -> (policies that refuse it, gate, why)
_REFUSED: dict[str, tuple[frozenset[Policy], str, str]] = {
    "cuda-graph": (
        frozenset({"strict"}),
        "graphs",
        "it replays a CUDA graph; strict times the launches that a user pays for",
    ),
    "tf32": (frozenset({"strict"}), "tf32", "it multiplies in TF32; strict asks for IEEE float32"),
    "shape-specialised": (
        frozenset({"strict"}),
        "shape locks",
        "it is compiled for its task's shapes and refuses others; strict asks for kernels of any shape",
    ),
    "untracked-weights": (
        frozenset({"strict"}),
        "prepared weights",
        "it lays weights out in its constructor and does not follow later changes; strict asks to track them",
    ),
    OWN_PARAMETERS: (
        frozenset({"strict"}),
        "own parameters",
        "it was judged with the parameters that its own constructor makes; strict asks for the reference's",
    ),
    REFERENCE_ELSEWHERE: (
        frozenset({"strict"}),
        "other shapes",
        "it runs the task's own forward for shapes it was not compiled for; strict asks for kernels of any shape",
    ),
    "algebra": (
        frozenset({"strict"}),
        "algebra",
        "it computes the same function from other operations than the task's; strict asks for the task's own",
    ),
    "foreign": (
        frozenset({"strict"}),
        "foreign operators",
        "it leaves an operator to PyTorch that is not written for one task (a sort, an FFT, a factorisation); strict "
        "asks for code of its own",
    ),
    "own-strides": (
        frozenset({"fair", "strict"}),
        OTHER_STRIDES,
        "it is silently wrong on inputs that are transposed in memory: follow their strides, copy (x.contiguous()) or "
        "raise an exception; policy open allows it",
    ),
    "own-mode": (
        frozenset({"fair", "strict"}),
        OTHER_MODE,
        "it is silently wrong in the other of model.train() and model.eval(): compute that mode too, leave it to "
        "Model.forward, or raise an exception where self.training is not what it was made for; policy open allows it",
    ),
    "not-asked": (
        frozenset({"strict"}),
        "questions",
        "some questions were not asked, because time or memory was short; strict asks all",
    ),
    "one-sided": (
        frozenset({"strict"}),
        "decisions",
        "the task's Python reads values and went the same way for every question; strict asks for questions that take "
        "the other side",
    ),
    "approximation": (
        frozenset({"fair", "strict"}),
        "approximations",
        "it declares an approximation, which policy open allows",
    ),
}
_OTHER_LIBRARIES = frozenset({"numpy", "scipy", "cupy", "numba", "cutlass", "jax", "onnxruntime", "mkl"})


def open_labels(source: CandidateSource, leads: Iterable[Lead]) -> set[str]:
    """Labels of practices that only policy "open" allows: vendor libraries, other compilers, other libraries."""
    found = {"vendor-library"} if links_vendor(source) else set()
    if any(is_or_is_in(lead.subject, OTHER_COMPILERS) for lead in leads):
        found.add("other-compiler")
    if {path.split(".")[0] for path in source.aliases.values()} & _OTHER_LIBRARIES:
        found.add("other-library")
    return found


def practices(source: CandidateSource) -> set[str]:
    """Labels of practices seen in the file, and of those that it declares in FOUNDRY["labels"]."""
    labels: set[str] = set()
    about = foundry_literals(source.tree).get("FOUNDRY")
    if isinstance(about, dict):
        labels |= {spelled(label) for label in about.get("labels", []) if isinstance(label, str)}
        if about.get("shapes"):
            labels.add("shape-specialised")
    if _refuses_shapes(source):
        labels.add("shape-specialised")
    native = "\n".join(strip_comments(part) for _, part in native_texts(source))
    tracks = re.search(r"\bfoundry_prepare\b|\b_version\b", source.text) is not None
    if tracks or _prepares_in_constructor(source):
        labels |= {"prepared-weights"} if tracks else {"prepared-weights", "untracked-weights"}
    if re.search(r"CUDAGraph|cuda\.graph\b|cudaGraphLaunch|cuGraphLaunch|make_graphed_callables", source.text):
        labels.add("cuda-graph")
    instructions = "\n".join(strip_comments(part, strings=False) for _, part in native_texts(source))
    if (
        re.search(r"\.tf32\b", instructions)  # inline assembly is a string
        or re.search(r"tf32\b|wmma::precision", native)
        or _is_tf32_in_triton(source)
    ):
        labels.add("tf32")
    if re.search(r"MADV_HUGEPAGE|MAP_HUGETLB", native):
        labels.add("huge-pages")
    if relaxed_maths(source):
        labels.add("relaxed-maths")
    return labels


def spelled(label: str) -> str:
    """A label in its one spelling: "huge_pages" and "huge-pages" are the same."""
    return label if ":" in label else label.replace("_", "-")


def policy_gates(labels: Collection[str], policy: Policy, accuracy: AccuracyClass | None = None) -> list[Gate]:
    """A failed gate for each practice that the policy refuses; `accuracy` is the accuracy class of the outputs."""
    found: list[Gate] = []
    for label, (policies, gate, why) in _REFUSED.items():
        is_there = label in labels or any(other.startswith(label + ":") for other in labels)
        if is_there and policy in policies:
            found.append(Gate(gate, False, why))
    if policy == "strict" and accuracy not in (None, "ieee"):
        found.append(
            Gate("accuracy class", False, f"its outputs are of class {accuracy}; strict asks for IEEE float32")
        )
    return found


def _refuses_shapes(source: CandidateSource) -> bool:
    """True if the model's forward compares a shape with numbers and raises."""
    for node in ast.walk(source.methods["forward"]) if "forward" in source.methods else ():
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            test = ast.unparse(node.test)
            if re.search(r"\.(?:shape|size\(\))\s*(?:!=|==)\s*[\(\[]?\d|not in", test) and ".shape" in test:
                return True
    return False


def _prepares_in_constructor(source: CandidateSource) -> bool:
    """True if the constructor rearranges weights (contiguous, pack, transpose, permute)."""
    constructor = source.methods.get("__init__") or methods_of(source.model).get("__init__")
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("contiguous", "pack", "transpose", "permute")
        for node in (ast.walk(constructor) if constructor else ())
    )


def _is_tf32_in_triton(source: CandidateSource) -> bool:
    """True if a Triton product may use TF32, which is Triton's default for float32."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.dot", "triton.language.dot"):
            words = {item.arg: ast.unparse(item.value) for item in node.keywords}
            if words.get("allow_tf32") != "False" and words.get("input_precision", "").strip("'\"") != "ieee":
                return True
    return False
