"""Notes which way the reference's Python went where it read values. Runs in the judge (imports torch)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from foundry.tools.grade.questions.integers.watching import tensors_of

Line = tuple[str, int]  # a file of the task, and a line in it
SEVERAL = object()  # stands for the answers of a line that were not all equal

_READ = frozenset(
    (
        *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.is_nonzero),
        *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
        *(torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose, torch.Tensor.__contains__),
    )
)
_CHOOSE = frozenset(("topk", "argmax", "argmin", "argsort", "sort", "multinomial", "max", "min"))
_USE = frozenset(
    (
        *("__getitem__", "__setitem__", "eq", "__eq__", "index_select", "gather", "take_along_dim", "one_hot"),
        *("bincount", "embedding", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_"),
    )
)


class Decisions:
    """The answers that the reference's Python read from values, by line of the task's files.

    `has_routes`: places of large elements (`topk`) chose what was computed. `has_run`: a run was noted; a reference
    that reads nothing in it goes the same way for all values, so that no other run of it needs to be.
    """

    def __init__(self, files: Iterable[str]) -> None:
        """Notes nothing yet; `files` are the task's."""
        self._files = frozenset(files)
        self._answers: dict[Line, Any] = {}
        self.has_run = self.has_routes = False

    def give_up(self) -> None:
        """Forgets what was noted, and notes nothing more."""
        self._answers.clear()
        self._files = frozenset()

    @property
    def reads(self) -> bool:
        """True if a run has read a value."""
        return bool(self._answers)

    @contextmanager
    def noting(self, given: Iterable[torch.Tensor]) -> Iterator[None]:
        """Notes what is read within the `with` body of tensors computed from those given (inputs and parameters)."""
        self.has_run = True
        with _Readings(self, given):
            yield

    def note(self, answer: Any) -> None:
        """Books what was read under the innermost line of the task that is being executed."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            line = frame.f_code.co_filename, frame.f_lineno
            self._answers[line] = answer if self._answers.get(line, answer) == answer else SEVERAL

    def join(self, other: Decisions) -> None:
        """Adds what was noted in another case of the same task."""
        for line, answer in other._answers.items():
            self._answers[line] = answer if self._answers.get(line, answer) == answer else SEVERAL

    def one_sided(self, main: str) -> dict[str, str]:
        """The answer, in words, of each line that read the same each time. A line of the file `main` has its number,
        one of another file that file's name before it."""
        found = {
            str(number) if file == main else f"{Path(file).name}:{number}": str(answer)
            for (file, number), answer in sorted(self._answers.items(), key=lambda item: item[0])
            if answer is not SEVERAL
        }
        return found


class _Readings(TorchFunctionMode):
    """A function mode that follows what is computed from given tensors, until Python reads it."""

    def __init__(self, decisions: Decisions, given: Iterable[torch.Tensor]) -> None:
        """Follows the given tensors; what is read from them goes to `decisions`."""
        super().__init__()
        self._decisions = decisions
        self._computed: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._computed.update({id(tensor): tensor for tensor in given})
        self._chosen: dict[int, torch.Tensor] = {}  # places of large elements, by their address

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs a function; notes readings of followed tensors, and follows what is computed from them or written with
        them."""
        result = func(*args, **(kwargs or {}))
        given = [item for item in _every([args, kwargs]) if isinstance(item, torch.Tensor)]
        if not any(id(item) in self._computed for item in given):
            return result
        name = getattr(func, "__name__", "")
        if func in _READ:
            self._decisions.note(_plain(result))
        elif name in ("__getitem__", "__setitem__", "arange"):
            for end in _ends([slice(*(*args, None)[:3])] if name == "arange" else args[1:]):
                self._decisions.note(int(end))
        self._follow_places(name, given, result)
        made = tensors_of([result]) if isinstance(result, torch.Tensor | tuple | list) else ()
        for item in (*made, *(given[:1] if _writes(name) else ())):
            self._computed[id(item)] = item
        return result

    def _follow_places(self, name: str, given: list[torch.Tensor], result: Any) -> None:
        """Notes if places of large elements choose rows, experts or classes."""
        if name in _CHOOSE:
            found = [item for item in tensors_of([result]) if not item.is_floating_point()]
            self._chosen |= {_place(item): item for item in found if given[0].is_floating_point()}
        elif name in _USE and any(_place(item) in self._chosen for item in given):
            self._decisions.has_routes = True


def _writes(name: str) -> bool:
    """True for a function that writes to its first argument."""
    return name == "__setitem__" or (name.startswith("__i") if name.startswith("__") else name.endswith("_"))


def _every(value: Any) -> Iterator[Any]:
    """The leaves of nested arguments."""
    if isinstance(value, Mapping):
        yield from _every(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _every(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _ends(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors that Python reads as ends of slices or ranges."""
    for item in arguments:
        if isinstance(item, tuple):
            yield from _ends(item)
        elif isinstance(item, slice):
            yield from (end for end in (item.start, item.stop, item.step) if isinstance(end, torch.Tensor))


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _plain(answer: Any) -> Any:
    """A value that was read, in a form that can be compared, and is short in words."""
    if isinstance(answer, bool | int | float):
        return answer
    return answer if isinstance(answer, list) and len(answer) <= 8 else f"{str(answer)[:40]}#{hash(str(answer))}"
