"""Other roundings that PyTorch could have had, and their effect on its answer. In the judge; imports torch.

A float64 run has no wider truth, and a result that is rounded to an integer moves by a whole step if it lies at a
half. So the reference runs again with each result of a rounding operator moved by about a unit in the last place.
Another library, another order of summation or a fused multiply-add would do the same (Monte Carlo arithmetic).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError

# Operators whose results are rounded once. An operator that is not listed moves nothing.
_ONCE = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "true_divide", "reciprocal", "sqrt", "rsqrt", "pow", "square", "hypot"),
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2", "sinc", "atan2"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("erf", "erfc", "erfinv", "lgamma", "digamma", "special_i0", "special_i1", "special_ndtri", "xlogy"),
        *("sigmoid", "silu", "gelu", "mish", "softplus", "elu", "log_sigmoid_forward", "hardsigmoid", "hardswish"),
        *("addcmul", "addcdiv", "lerp", "leaky_relu", "deg2rad", "rad2deg", "special_entr", "special_erfcx"),
    )
)
# Operators that round in intermediate results: their inputs are moved too.
_ON_THE_WAY = frozenset(
    (
        *("sum", "mean", "prod", "var", "std", "var_mean", "std_mean", "nansum", "cumsum", "cumprod", "logcumsumexp"),
        *("logsumexp", "linalg_vector_norm", "norm", "_softmax", "_log_softmax", "_safe_softmax", "trace"),
        *("mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "dot", "vdot", "addmv", "addr", "linear", "_cdist_forward"),
        *("convolution", "convolution_overrideable", "cudnn_convolution", "mkldnn_convolution", "_conv_depthwise2d"),
        *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm"),
        *("_native_batch_norm_legit_no_training", "native_layer_norm", "native_group_norm", "_fused_rms_norm"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention", "_efficient_attention_forward"),
        *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "grid_sampler_2d"),
        *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d", "grid_sampler_3d"),
        *("index_add", "scatter_add", "scatter_reduce", "index_reduce", "segment_reduce", "_embedding_bag", "renorm"),
        *("linalg_inv_ex", "linalg_solve_triangular", "_linalg_solve_ex", "linalg_cholesky_ex", "triangular_solve"),
        *("_linalg_svd", "linalg_qr", "_linalg_eigh", "_linalg_det", "linalg_lu_factor_ex", "lu_unpack", "linalg_lu"),
        *("_fft_r2c", "_fft_c2r", "_fft_c2c", "matrix_exp", "linalg_matrix_exp"),
    )
)
_FIRST_ALONE = "batch_norm"  # the other arguments of such operators are state that they change
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
# Trailing zero bits of a number whose arithmetic was probably exact, such as that of small integers.
_EXACT_BITS = {torch.float64: 24, torch.float32: 8, torch.float16: 4, torch.bfloat16: 3}
_FACTORS = (-7046029254386353131, -4417276706812531889)  # odd factors that mix the bits of an int64
_PIECE = 1 << 22  # elements at a time


class OtherRoundings(TorchDispatchMode):
    """A dispatch mode that moves rounding operators' results by up to `units` units in the last place.

    Equal results of one operator move alike; `way` chooses the moves. A number with few bits counts as exact and
    stays, so that ties of exact arithmetic (multiples of a sixteenth, counts) stay ties.
    """

    def __init__(self, way: int, units: float = 1.0) -> None:
        """`way` is the number of the draw of moves, `units` their largest size in units in the last place."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._way, self._units = way, units

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and moves its rounded results, or for some operators its operands, by units in the last
        place."""
        named = dict(kwargs or {})
        full = func.overloadpacket.__name__
        name = full.removesuffix("_")
        if name not in _ONCE and name not in _ON_THE_WAY:
            return func(*args, **named)
        salt = self._way * 1_000_003 + sum(map(ord, name))
        if name in _ON_THE_WAY and full == name and "out" not in named:
            count = 1 if _FIRST_ALONE in name else len(args)
            plain = func(*args, **named) if _FIRST_ALONE not in name else None
            args = [*(self._moved_inside(item, salt) for item in args[:count]), *args[count:]]
            return self._result(func(*args, **named), plain, salt)
        result = func(*args, **named)
        if full != name:
            args[0].copy_(self._moved(args[0], salt))
            return args[0]
        return self._result(result, None, salt)

    def _moved_inside(self, argument: Any, salt: int) -> Any:
        """An argument with its floating tensors moved."""
        if isinstance(argument, list | tuple):
            return type(argument)(self._moved_inside(item, salt) for item in argument)
        return self._moved(argument, ~salt, keeps_exact=False) if isinstance(argument, torch.Tensor) else argument

    def _result(self, result: Any, plain: Any, salt: int) -> Any:
        """The result moved; a result that is exact for unmoved arguments stays."""
        if isinstance(result, list | tuple):
            plains = plain if plain is not None else [None] * len(result)
            return type(result)(self._result(*pair, salt) for pair in zip(result, plains, strict=True))
        if not isinstance(result, torch.Tensor):
            return result
        moved = self._moved(result, salt)
        if plain is not None and result.dtype in _BITS:
            moved = torch.where(is_exact(plain), plain, moved)
        return moved

    def _moved(self, tensor: torch.Tensor, salt: int, *, keeps_exact: bool = True) -> torch.Tensor:
        """A copy of the tensor with each element moved by up to `units` units in the last place.

        The move is a hash of the element's bits and `salt`. Infinities stay, and exact elements if `keeps_exact`.
        """
        if tensor.dtype not in _BITS or not tensor.numel():
            return tensor
        moved = tensor.clone(memory_format=torch.contiguous_format)
        flat = moved.view(-1)
        unit = self._units * torch.finfo(tensor.dtype).eps
        for start in range(0, flat.numel(), _PIECE):
            piece = flat[start : start + _PIECE]
            bits = piece.view(_BITS[tensor.dtype]).long()
            mixed = (bits ^ (salt * 0x9E3779B1)) * _FACTORS[0]
            mixed = (mixed ^ (mixed >> 31)) * _FACTORS[1]
            step = piece * ((mixed >> 40).double() * (unit / 2.0**23)).to(piece.dtype)
            stays = ~torch.isfinite(step)
            piece += step.masked_fill_(stays | is_exact(piece) if keeps_exact else stays, 0.0)
        return moved


def with_roundings(run: Callable[[], list[torch.Tensor]], units: float, ways: int) -> Iterator[list[torch.Tensor]]:
    """Yields the outputs of `run` with results moved by up to `units` units in the last place, in `ways` ways.

    Yields fewer if `run` fails so, for example for lack of memory.
    """
    with contextlib.suppress(torch.OutOfMemoryError, TaskError):
        for way in range(1, ways + 1):
            with OtherRoundings(way, units):
                outputs = run()
            yield outputs


def is_exact(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of the floating numbers with few bits, as exact arithmetic gives them."""
    low = (1 << _EXACT_BITS[tensor.dtype]) - 1
    return (tensor.contiguous().view(_BITS[tensor.dtype]) & low) == 0
