"""Types and nesting of PyTorch's values: dtypes, specs, nested tuples, lists and dicts. Imports torch."""

from __future__ import annotations

import inspect
import keyword
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import torch

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import Arrangement, DType, TensorSpec
from foundry.tools.task.form.calls import Keywords

_DTYPES: dict[torch.dtype, DType] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
}
if hasattr(torch, "float8_e8m0fnu"):  # new in PyTorch 2.7
    _DTYPES[torch.float8_e8m0fnu] = "float8_e8m0fnu"


def dtype_name(dtype: torch.dtype) -> DType:
    """The vocabulary's name of a torch dtype; raises TaskError for one that no kernel here handles."""
    if dtype not in _DTYPES:
        raise TaskError(f"tensors of {dtype} are not supported", f"known are {', '.join(_DTYPES.values())}")
    return _DTYPES[dtype]


def torch_dtype(name: DType) -> torch.dtype:
    """PyTorch's dtype of this name. Raises StopIteration for an unknown one."""
    return next(dtype for dtype, known in _DTYPES.items() if known == name)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape and strides (elements) and dtype of a dense tensor; raises TaskError for sparse ones."""
    if tensor.layout is not torch.strided:
        raise TaskError(f"{tensor.layout} tensors are not supported")
    shape = tuple(int(size) for size in tensor.shape)
    return TensorSpec(shape, tuple(int(step) for step in tensor.stride()), dtype_name(tensor.dtype))


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype in which PyTorch computes everywhere.

    Complex numbers become pairs along a new last dimension (a view if possible), 8-bit floats become float32.
    """
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return tensor.float() if is_eight_bits(tensor.dtype) else tensor


def from_real(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Converts `value` back to the dtype and layout of `like`. Values beyond an 8-bit float's range become its
    largest."""
    if like.is_complex():
        return torch.empty_like(like).copy_(torch.view_as_complex(value.contiguous()))
    if not is_eight_bits(like.dtype):
        return value
    most = torch.finfo(like.dtype).max
    return torch.empty_like(like).copy_(torch.where(torch.isinf(value), value, value.clamp(-most, most)))


def is_eight_bits(dtype: torch.dtype) -> bool:
    """True for the floating types of 8 bits."""
    return dtype.is_floating_point and dtype.itemsize == 1


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors of one dtype hold the same numbers, NaN equal to NaN and -0.0 equal to 0.0."""
    if one.dtype != other.dtype:
        return False
    a, b = as_real(one), as_real(other)
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) or torch.equal(_without_nan(a), _without_nan(b))  # the first needs no memory


def _without_nan(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with NaN and infinities replaced by finite numbers; others than floating ones as they are."""
    return torch.nan_to_num(tensor) if tensor.is_floating_point() else tensor


def arrange(result: Any) -> tuple[Arrangement, list[Any]]:
    """(arrangement of nested tuples, lists, dicts, dataclasses and named tuples; their leaves in order).

    Subclasses are read by the base class's methods, and records without their descriptors, because either could begin
    to compute. A dict with other keys than strings is a leaf.
    """
    if type(result) is Keywords:
        return _arranged("keywords", list(result.values()), tuple(result))
    if fields := _record_fields(result):
        found, leaves = _arranged("record", list(fields.values()), tuple(fields))
        return replace(found, name=type(result).__name__), leaves
    if issubclass(type(result), tuple):
        return _arranged("tuple", list(tuple.__iter__(result)))
    if issubclass(type(result), list):
        return _arranged("list", list(list.__iter__(result)))
    if issubclass(type(result), dict) and all(type(key) is str for key in dict.keys(result)):
        return _arranged("dict", list(dict.values(result)), tuple(dict.keys(result)))
    return Arrangement(), [result]


def _arranged(
    kind: Literal["tuple", "list", "dict", "keywords", "record"], held: list[Any], keys: tuple[str, ...] = ()
) -> tuple[Arrangement, list[Any]]:
    """The arrangement of one container and its leaves in order."""
    parts = [arrange(item) for item in held]
    return Arrangement(kind, tuple(part for part, _ in parts), keys), [leaf for _, own in parts for leaf in own]


def _record_fields(result: Any) -> dict[str, Any]:
    """The fields and values of a dataclass or named tuple; {} for anything else, and for names that a named tuple may
    not have."""
    names = inspect.getattr_static(type(result), "_fields", ())
    if issubclass(type(result), tuple) and type(names) is tuple:
        found = dict(zip(names, tuple.__iter__(result), strict=False))
    elif type(declared := inspect.getattr_static(type(result), "__dataclass_fields__", None)) is dict:
        if issubclass(type(result), dict):  # those of packages are dicts as well
            return {}
        found = {name: inspect.getattr_static(result, name, None) for name in declared}
    else:
        return {}
    plain = all(type(name) is str and name.isidentifier() and name[0] != "_" for name in found)
    return found if plain and not any(map(keyword.iskeyword, found)) else {}


def rebuilt(arrangement: Arrangement, leaves: Iterator[Any]) -> Any:
    """Rebuilds a nested value from an arrangement and its leaves."""
    if arrangement.kind == "leaf":
        return next(leaves)
    items = [rebuilt(item, leaves) for item in arrangement.items]
    if arrangement.kind == "record":
        return record_type(arrangement.name, *arrangement.keys)(*items)
    if arrangement.kind in ("dict", "keywords"):
        made = dict if arrangement.kind == "dict" else Keywords
        return made(zip(arrangement.keys, items, strict=True))
    return items if arrangement.kind == "list" else tuple(items)


@cache
def record_type(name: str, *fields: str) -> Any:
    """A named tuple's class: what a candidate returns for a record."""
    return namedtuple(name, fields)


def flatten(result: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    return arrange(result)[1]


def dict_keys(result: Any) -> list[str]:
    """The keys that lead to each leaf in a dict, in order: "['boxes']['scores']"."""

    def walk(arrangement: Arrangement, path: str) -> Iterator[str]:
        """Yields the path of dict keys to each leaf below a dict."""
        if arrangement.kind == "leaf" and path:
            yield path
        for step, item in zip(arrangement.steps, arrangement.items, strict=True):
            yield from walk(item, path + step * (arrangement.kind in ("dict", "keywords")))

    return list(walk(arrange(result)[0], ""))


def placed(value: Any, device: torch.device | None) -> Any:
    """A nested value with its tensors moved to a device."""
    if device is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(placed(item, device) for item in value)
    if isinstance(value, dict):
        made = Keywords if type(value) is Keywords else dict
        return made((key, placed(item, device)) for key, item in value.items())
    return value
