"""Records a constructor's calls to torch's dispatcher that make and fill tensors, in order. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.opgraph import HERE, LITERAL, Argument, MakingCall, Ref

LARGEST_TABLE = 64 << 10  # bytes of a tensor that may stand in a kernel's file as its elements
_ALL_TABLES = 4 * LARGEST_TABLE  # bytes of all of them together

Geometry = tuple[int, torch.dtype, int, tuple[int, ...], tuple[int, ...], bool]


class CannotReplay(Exception):
    """The model's tensors cannot be made again without its class; the message says why in half a sentence."""


@dataclass(frozen=True)
class _Recorded:
    """A call with the storages that it reads and those that it writes or makes."""

    call: MakingCall
    reads: frozenset[int]
    makes: frozenset[int]
    is_random: bool
    problem: str = ""  # the reason why a file cannot make the call


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that keeps the calls which make or change tensors.

    Tensors are known by their storage and their layout in it, because parameters, `.data` and views made outside of
    the dispatcher are other objects on the same storage.
    """

    def __init__(self) -> None:
        """An empty recording."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._here = torch.empty(0).device
        self._recorded: list[_Recorded] = []
        self._names: dict[Geometry, str] = {}
        self._bases: dict[int, tuple[str, torch.dtype]] = {}  # storage -> name and dtype of one tensor in it
        self._alive: dict[int, StorageWeakRef] = {}  # a weak reference keeps the address from being used again
        self._filled: set[int] = set()  # storages that were written to
        self._count = 0
        self._table_bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function and keeps the call if it makes or changes tensors; arguments that cannot be replayed are its
        problem."""
        options = dict(kwargs or {})
        first_problem = ""
        arguments = []
        names = {}
        try:
            arguments = [self._argument(item) for item in args]
            names = {key: self._argument(item) for key, item in options.items() if not _is_left_out(key, item)}
        except CannotReplay as error:
            first_problem = str(error)
        before = [(item, _geometry(item)) for item in _written(function, args, options)]
        result = function(*args, **options)
        self._keep(
            function,
            arguments,
            names,
            given=list(_tensors([*args, *options.values()])),
            before=before,
            result=result,
            problem=first_problem,
        )
        return result

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name under which a tensor is made. Raises CannotReplay.

        Records new calls for another view of known memory, and for a tensor that no recorded call made.
        """
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise CannotReplay(f"it holds a tensor that is not plain memory ({tensor.layout}, {tensor.device.type})")
        geometry = _geometry(tensor)
        if geometry in self._names:
            return self._names[geometry]
        storage = geometry[0]
        if storage not in self._bases:
            return self._literal(tensor)
        base, dtype = self._bases[storage]
        if dtype is not tensor.dtype or tensor.is_conj() or tensor.is_neg():
            raise CannotReplay("it looks at one tensor's memory as another type")
        view: list[Argument] = [Ref(base), list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset())]
        name = self._new_name(tensor)
        self._add(MakingCall("aten.as_strided.default", view, {}, [name]), [tensor], [])
        return name

    def is_filled(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's memory was written to; else it holds what was there before."""
        return tensor.untyped_storage()._cdata in self._filled

    def calls_behind(self, held: Iterable[torch.Tensor]) -> list[MakingCall]:
        """The calls that the tensors need, and all random ones, which advance the random streams. Raises
        CannotReplay."""
        needed = {tensor.untyped_storage()._cdata for tensor in held}
        kept: list[MakingCall] = []
        for recorded in reversed(self._recorded):
            if not (recorded.is_random or recorded.makes & needed):
                continue
            if recorded.problem:
                raise CannotReplay(recorded.problem)
            needed |= recorded.reads | recorded.makes
            kept.append(recorded.call)
        return kept[::-1]

    # -- recording

    def _keep(
        self,
        function: Any,
        args: list[Argument],
        kwargs: dict[str, Argument],
        given: list[torch.Tensor],
        before: list[tuple[torch.Tensor, Geometry]],
        result: Any,
        problem: str,
    ) -> None:
        """Records one call, if it makes, changes or randomly draws tensors, and names its results."""
        results = list(result) if isinstance(result, tuple | list) else [result]
        for tensor, geometry in before:
            if (after := _geometry(tensor)) != geometry and geometry in self._names:
                self._names[after] = self._names.pop(geometry)
        made = [item for item in _tensors(results) if _geometry(item) not in self._names]
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        if not (made or before or is_random):
            return
        if function.namespace != "aten":
            problem = problem or f"its constructor calls {function}, which is no operator of torch"
        kind = function._schema.name.removeprefix("aten::")
        if not kind.startswith(("empty", "new_empty")):
            looked_at = {item.untyped_storage()._cdata for item in given}
            new = {item.untyped_storage()._cdata for item in made} - looked_at
            self._filled |= new | {item.untyped_storage()._cdata for item, _ in before}
        if made and not given and "dtype" in {item.name for item in function._schema.arguments}:
            kwargs["dtype"] = _dtype_text(made[0].dtype)  # the default dtype may differ at the replay
        names = []
        for item in results:
            is_new = isinstance(item, torch.Tensor) and _geometry(item) not in self._names
            names.append(self._new_name(item) if is_new else "")
        call = MakingCall(str(function), args, kwargs, names)
        self._add(call, [*made, *(item for item, _ in before)], given, is_random=is_random, problem=problem)

    def _add(
        self,
        call: MakingCall,
        made: Sequence[torch.Tensor],
        read: Sequence[torch.Tensor],
        *,
        is_random: bool = False,
        problem: str = "",
    ) -> None:
        """Records a call with the tensors that it made and read."""
        reads, makes = (frozenset(item.untyped_storage()._cdata for item in found) for found in (read, made))
        self._recorded.append(_Recorded(call, reads, makes, is_random, problem))

    def _new_name(self, tensor: torch.Tensor) -> str:
        """A new name for a tensor, under which its layout is known from now on."""
        name = f"v{self._count}"
        self._count += 1
        storage = tensor.untyped_storage()
        self._names[_geometry(tensor)] = name
        self._bases.setdefault(storage._cdata, (name, tensor.dtype))
        self._alive.setdefault(storage._cdata, StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return name

    def _literal(self, tensor: torch.Tensor) -> str:
        """Records a call that makes a tensor from its elements; returns its name. Notes a problem if it is too large
        for a file."""
        self._table_bytes += tensor.nbytes
        problem = ""
        if tensor.nbytes > LARGEST_TABLE or self._table_bytes > _ALL_TABLES:
            problem = (
                f"its constructor takes a tensor of {tensor.nbytes >> 10} KB from outside of torch, and a file holds "
                f"{LARGEST_TABLE >> 10} KB at most"
            )
        digits = (
            "" if problem else tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()
        )
        name = self._new_name(tensor)
        self._filled.add(tensor.untyped_storage()._cdata)
        arguments: list[Argument] = [_dtype_text(tensor.dtype), list(tensor.shape), digits]
        self._add(MakingCall(LITERAL, arguments, {}, [name]), [tensor], [], problem=problem)
        return name

    def _argument(self, item: Any) -> Argument:
        """An argument of a call as data: names for tensors, texts for dtypes and devices. Raises CannotReplay."""
        if isinstance(item, torch.Tensor):
            return Ref(self.name_of(item))
        if item is None or isinstance(item, bool | int | float | str):
            return item
        if isinstance(item, tuple | list):
            return [self._argument(member) for member in item]
        if isinstance(item, torch.dtype | torch.memory_format | torch.layout):
            return _dtype_text(item)
        if isinstance(item, torch.device):
            is_here = item.type == self._here.type and item.index in (None, self._here.index)
            return HERE if is_here else str(item)
        raise CannotReplay(f"its constructor gives torch a {type(item).__name__}, which a file cannot hold")


def _is_left_out(key: str, item: Any) -> bool:
    """True for pin_memory if false, and for generator, layout and memory_format if None: defaults that need not be
    recorded. Other options are always recorded."""
    return (key == "pin_memory" and not item) or (item is None and key in ("generator", "layout", "memory_format"))


def _dtype_text(item: torch.dtype | torch.memory_format | torch.layout) -> str:
    """The name without "torch."."""
    return str(item).removeprefix("torch.")


def _geometry(tensor: torch.Tensor) -> Geometry:
    """(storage, dtype, offset, shape, strides, is conjugated or negated)."""
    lies_otherwise = tensor.is_conj() or tensor.is_neg()
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.dtype, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), lies_otherwise


def _tensors(items: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested tuples and lists."""
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, tuple | list):
            yield from _tensors(item)


def _written(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensor arguments that a call changes."""
    found = []
    for index, item in enumerate(function._schema.arguments):
        if item.alias_info is not None and item.alias_info.is_write:
            found.append(args[index] if index < len(args) else kwargs.get(item.name))
    return list(_tensors(found))
