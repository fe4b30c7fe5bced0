"""Floating-point operations of one ATen operator, from shapes alone (no torch).

Contractions count exactly: two operations per multiply-add. Everything else counts a small documented factor per
element, because a roofline needs the order of magnitude, not each instruction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from foundry.tools.words import words

Shape = Sequence[int]

# Moves, fills and masks: no arithmetic.
MOVES = frozenset(
    words(
        "view permute transpose t expand slice select unsqueeze squeeze reshape contiguous clone to _to_copy "
        "copy cat stack split chunk unbind flatten unflatten narrow expand_as view_as alias detach lift_fresh "
        "lift_fresh_copy empty zeros ones full zeros_like ones_like full_like empty_like arange tril triu where "
        "masked_fill gather index index_select select_scatter slice_scatter scatter embedding flip roll repeat "
        "pad constant_pad_nd fill one_hot item dropout unfold as_strided _unsafe_view new_zeros new_ones "
        "new_full new_empty eye diagonal diag broadcast_tensors movedim swapaxes"
    )
)

# Operations per input element of the operators that read their input more than once or evaluate a polynomial.
PER_INPUT_ELEMENT = {
    "softmax": 5,  # max, subtract, exp, sum, divide
    "_softmax": 5,
    "log_softmax": 5,
    "_log_softmax": 5,
    "logsumexp": 4,
    "layer_norm": 8,  # mean 1, variance 3, normalise 2, affine 2
    "native_layer_norm": 8,
    "rms_norm": 5,
    "_fused_rms_norm": 5,
    "group_norm": 8,
    "native_group_norm": 8,
    "instance_norm": 8,
    "batch_norm": 8,
    "_native_batch_norm_legit_functional": 8,
    "_native_batch_norm_legit": 8,
    "native_batch_norm": 8,
    "_native_batch_norm_legit_no_training": 4,
    "cross_entropy_loss": 5,
    "nll_loss_nd": 1,
    "mse_loss": 3,
    "l1_loss": 3,
    "smooth_l1_loss": 5,
    "huber_loss": 5,
    "kl_div": 4,
    "binary_cross_entropy": 8,
    "cosine_similarity": 6,
    "triplet_margin_loss": 9,
    "linalg_vector_norm": 2,
    "norm": 2,
    "std": 4,
    "var": 4,
    "var_mean": 4,
    "mean": 1,
    "sum": 1,
    "amax": 1,
    "amin": 1,
    "max": 1,
    "min": 1,
    "argmax": 1,
    "argmin": 1,
    "prod": 1,
    "cumsum": 1,
    "cumprod": 1,
    "logcumsumexp": 4,
}

# Operations per output element of transcendental functions, about what a vectorised polynomial takes.
PER_OUTPUT_ELEMENT = {
    **dict.fromkeys(words("exp exp2 expm1 log log2 log10 log1p sin cos tan sigmoid tanh erf"), 8),
    **dict.fromkeys(
        words("asin acos atan sinh cosh atan2 hypot pow softplus log_sigmoid elu selu celu silu"),
        10,
    ),
    **dict.fromkeys(["gelu", "mish", "logaddexp"], 12),
    **dict.fromkeys(["sqrt", "rsqrt", "reciprocal", "div"], 1),
    **dict.fromkeys(["hardswish", "hardsigmoid", "addcmul", "addcdiv", "lerp", "softsign"], 3),
}


def operator_flops(
    kind: str, arguments: Sequence[Any], keywords: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> int:
    """FLOPs of `aten.<kind>`.

    `inputs` are the shapes of its tensor arguments in order (members of tensor lists included), `outputs` those of
    its results. `arguments` and `keywords` are all its arguments as ATen orders them; a tensor's place may hold
    anything.
    """
    kind = kind.rstrip("_") if kind.endswith("_") and not kind.endswith("__") else kind
    if kind in MOVES or not outputs:
        return 0
    contraction = _contraction_flops(kind, arguments, keywords, inputs, outputs)
    if contraction is not None:
        return contraction
    if kind in PER_INPUT_ELEMENT:
        return PER_INPUT_ELEMENT[kind] * (math.prod(inputs[0]) if inputs else 0)
    if "pool" in kind:
        return _pool_flops(kind, arguments, inputs, outputs)
    if kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return _recurrence_flops(inputs, outputs)
    if kind == "pow" and len(arguments) > 1 and arguments[1] in (2, 3):
        return int(arguments[1] - 1) * math.prod(outputs[0])
    return PER_OUTPUT_ELEMENT.get(kind, 1) * math.prod(outputs[0])


def known_flops(
    kind: str, arguments: Sequence[Any], keywords: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> int:
    """`operator_flops`, or one operation for each input element if the arguments are unusual."""
    try:
        return int(operator_flops(kind, arguments, keywords, inputs, outputs))
    except (LookupError, TypeError, ValueError):
        return sum(math.prod(shape) for shape in inputs)


def _contraction_flops(
    kind: str, arguments: Sequence[Any], keywords: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> int | None:
    """Twice the multiply-adds of matrix products, convolutions and attention; None for any other operator."""
    out = math.prod(outputs[0])
    if kind in ("mm", "bmm", "matmul", "mv", "dot", "linear", "_addmm_activation"):
        extra = out if kind == "linear" and len(inputs) > 2 else 0
        return 2 * out * inputs[0][-1] + extra if inputs and inputs[0] else None
    if kind in ("addmm", "baddbmm", "addbmm", "addmv"):
        return 2 * out * inputs[1][-1] + 2 * out
    if kind == "bilinear":
        return 2 * out * inputs[2][1] * inputs[2][2]
    if kind == "einsum":
        return _einsum_flops(arguments, inputs)
    if kind == "convolution" or kind.startswith(("conv1d", "conv2d", "conv3d", "conv_transpose")):
        return _convolution_flops(kind, arguments, inputs, outputs)
    if kind == "cdist":
        return 3 * out * inputs[0][-1]  # subtract, multiply, add
    if "scaled_dot_product" in kind:
        query, key, value = inputs[0], inputs[1], inputs[2]
        pairs = math.prod(query[:-1]) * key[-2]
        return 2 * pairs * (query[-1] + value[-1]) + 5 * pairs
    return None


def _convolution_flops(kind: str, arguments: Sequence[Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Direct convolution: each output (each input when transposed) meets kernel volume x channels/groups weights."""
    weight = inputs[1]
    transposed = "transpose" in kind or (kind == "convolution" and len(arguments) > 6 and arguments[6] is True)
    points = math.prod(inputs[0]) if transposed else math.prod(outputs[0])
    bias = math.prod(outputs[0]) if len(inputs) > 2 else 0
    return 2 * points * math.prod(weight[1:]) + bias


def _einsum_flops(arguments: Sequence[Any], inputs: Sequence[Shape]) -> int:
    """Two operations per point of the whole index space; with an ellipsis, of the product of the largest shape."""
    equation = str(arguments[0]).replace(" ", "")
    sizes: dict[str, int] = {}
    for letters, shape in zip(equation.split("->")[0].split(","), inputs, strict=False):
        if "." in letters or len(letters) != len(shape):
            return 2 * max(math.prod(item) for item in inputs)
        sizes.update(zip(letters, shape, strict=True))
    return 2 * math.prod(sizes.values())


def _pool_flops(kind: str, arguments: Sequence[Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Operations of a pool: one for each element of each window; for adaptive pools one for each input element."""
    if "adaptive" in kind:
        return math.prod(inputs[0])
    spatial = 3 if "3d" in kind else 2 if "2d" in kind else 1
    window = arguments[1] if len(arguments) > 1 else 1
    sizes = list(window) if isinstance(window, list | tuple) else [window]
    sizes = sizes * spatial if len(sizes) == 1 else sizes
    return math.prod(outputs[0]) * math.prod(int(size) for size in sizes)


def _recurrence_flops(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Every weight matrix (two dimensions) meets every time step and batch row once."""
    steps = math.prod(outputs[0][:-1])
    return 2 * steps * sum(math.prod(shape) for shape in inputs[1:] if len(shape) == 2)
