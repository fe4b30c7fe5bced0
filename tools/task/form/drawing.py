"""Draws the values of a task's input makers, case by case. Imports torch; runs the user's code, so only in workers."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.task.form.calls import MOST_DRAWN, as_arguments, chosen_groups
from foundry.tools.task.form.values import arrange

Made = TypeVar("Made")
_END = object()


def drawn_on(device: torch.device, make: Callable[[], Made]) -> Made:
    """The result of `make`, constructed on `device` if its code allows it, else on the host.

    A device's random streams give other numbers than the host's.
    """
    if not torch_device_of(device).is_host:
        with contextlib.suppress(Exception), device:  # a generator, or data, that only the host has
            return make()
    return make()


def seed_everything(seed: int) -> None:
    """Seeds the random numbers of Python, PyTorch and, if it is imported, NumPy."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextlib.contextmanager
def seeds_of_draw(seed: int) -> Iterator[None]:
    """Lets seeds that the code sets itself (`torch.manual_seed(0)` in get_inputs) depend on the draw's seed.

    Otherwise every draw would give the same inputs, and a kernel could keep the answer.
    """

    def mixed(own: object) -> int:
        return int.from_bytes(hashlib.sha256(f"{seed} {own!r}".encode()).digest()[:7], "little")

    class Generator(torch.Generator):
        def manual_seed(self, own: int) -> torch.Generator:
            return super().manual_seed(mixed(own))

    def reseed(function: Callable[[int], Any], largest: int) -> Callable[..., Any]:
        """A function that takes the code's seed and sets one below `largest`."""

        def seeded(own: object = None) -> Any:
            """The function called with a seed made of the code's and the draw's."""
            return function(mixed(own) % largest)

        return seeded

    with contextlib.ExitStack() as patches:
        seed_torch = reseed(torch.manual_seed, 2**63)
        for place in (torch, torch.random):
            patches.enter_context(mock.patch.object(place, "manual_seed", seed_torch))
        patches.enter_context(mock.patch.object(torch, "Generator", Generator))
        patches.enter_context(mock.patch.object(random, "seed", reseed(random.seed, 2**63)))
        if "numpy" in sys.modules:
            numpy_random = sys.modules["numpy"].random
            for name in ("seed", "default_rng"):
                function = reseed(getattr(numpy_random, name), 2**32)
                patches.enter_context(mock.patch.object(numpy_random, name, function))
            plain = numpy_random.RandomState  # a class: libraries ask whether a stream is one
            made = type(
                "RandomState", (plain,), {"__init__": lambda own, seed=None: plain.__init__(own, mixed(seed) % 2**32)}
            )
            patches.enter_context(mock.patch.object(numpy_random, "RandomState", made))
        yield


class InputMaker:
    """The maker of a task's inputs: get_inputs(), alone or as a generator of cases, or get_input_groups().

    The signature of `forward` decides about a dict or a pair (`as_arguments`).
    """

    def __init__(self, module: types.ModuleType, forward: Callable[..., Any] | None) -> None:
        """Finds the module's maker function and whether it gives several groups of inputs."""
        self._module, self._forward = module, forward
        self.name = "get_input_groups" if hasattr(module, "get_input_groups") else "get_inputs"
        self._make = getattr(module, self.name)
        self._gives_groups = self.name == "get_input_groups" or inspect.isgeneratorfunction(self._make)

    def draw(self, seed: int, group: int) -> list[Any]:
        """The arguments of forward in a case. Random streams start anew for each case of a generator. Raises TaskError
        if there is no such case."""
        if self._gives_groups:
            given = next(itertools.islice(self._each_group(seed), group, None), None)
            if given is None:
                raise TaskError(f"{self.name}() gives no case {group}", "let it give the same ones each time")
            return self._checked(given[0])
        seed_everything(seed)
        with seeds_of_draw(seed):
            return self._checked(self._make())

    def groups(self) -> list[int]:
        """Numbers of the cases to use, the first case first; drawn without memory (meta device) if the file's code
        allows it. Raises TaskError if there is none."""
        if not self._gives_groups:
            return [0]
        found = chosen_groups(drawn_on(torch.device("meta"), self._described))
        if not found:
            raise TaskError(f"{self.name}() gives no case", "yield one list of forward's arguments for each")
        return found

    def _each_group(self, seed: int) -> Iterator[list[Any]]:
        """Yields each case in a list, because a case may be None."""
        made = iter(self._make())
        while True:
            seed_everything(seed)
            with seeds_of_draw(seed):
                given = next(made, _END)
            if given is _END:
                return
            yield [given]

    def _described(self) -> list[tuple[Any, int]]:
        """For each of the first MOST_DRAWN cases: its arrangement with shapes and dtypes or values, and its number of
        elements."""
        found: list[tuple[Any, int]] = []
        for (given,) in itertools.islice(self._each_group(0), MOST_DRAWN):
            arrangement, leaves = arrange(self._checked(given))
            what = [(item.shape, item.dtype) if isinstance(item, torch.Tensor) else item for item in leaves]
            size = sum(item.numel() for item in leaves if isinstance(item, torch.Tensor))
            found.append(((arrangement, what), size))
        return found

    def _checked(self, given: Any) -> list[Any]:
        """The arguments in a maker's value; raises TaskError for a dict with other keys than strings and for an
        iterator."""
        arguments = as_arguments(given, self._forward)
        for index, value in enumerate(arrange(arguments)[1]):
            if isinstance(value, dict):
                raise TaskError(f"input {index} of {self.name}() is a dict with other keys than strings")
            if isinstance(value, Iterator):
                kind = type(value).__name__
                raise TaskError(f"{self.name}() returned a {kind}", "return a list, or yield a list for each case")
        return arguments
