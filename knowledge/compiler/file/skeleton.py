"""A stand-in for a task's class that needs more than torch: a tree of plain modules with the same tensors.

The constructor's calls to torch make the tensors, in their order, so that equal seeds give equal initial values.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence

from foundry.knowledge import syntax
from foundry.knowledge.compiler.file import arguments
from foundry.knowledge.compiler.file.python_text import argument_text, tuple_text, variable
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import HERE, LITERAL, Construction, HeldTensor, MakingCall, ModulePart

_DEVICES = {HERE: "device"}


def skeleton_text(constructions: Sequence[Construction]) -> str:
    """`class Model` and its builders. The constructor's arguments choose among several constructions.

    Of constructions with the same arguments the first is kept.
    """
    first = constructions[0]
    distinct: dict[str, Construction] = {}
    for construction in constructions:
        distinct.setdefault(construction.arguments, construction)
    builds = [_build(construction, index) for index, construction in enumerate(distinct.values())]
    names = {text: f"_build_{index}" for index, text in enumerate(distinct)}
    for text, construction in distinct.items():
        names.setdefault(construction.left, names[text])
    table = "".join(f"    {text!r}: {name},\n" for text, name in names.items())
    holes = {
        "DESCRIBE": _describe_text(),
        "BUILDS": "\n\n\n".join([*builds, f"_BUILDS = {{\n{table}}}"]),
        "TAKES": _parameters("self", first.takes),
        "GIVEN": given_text(first.takes),
        "FORWARD": _parameters("self", first.forward),
    }
    return fill(read_library_text("file/skeleton.py.txt"), holes).rstrip()


def _describe_text() -> str:
    """The source of `describe` without annotations, which would need an import, under a name of the file's own."""
    text = inspect.getsource(arguments.describe).rstrip()
    return (
        text.replace(": Any, seen: Any = None) -> str:", ", seen=None):", 1).replace("describe(", "_describe(") + "\n"
    )


def _parameters(first: str, others: str) -> str:
    """A signature's parameters: the first one and the others, if there are any."""
    return f"{first}, {others}" if others else first


def given_text(takes: str) -> str:
    """An expression for the constructor's arguments: `{"width": width}`."""
    spec = _signature(takes)
    names = [item.arg for item in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]]
    names += [item.arg for item in (spec.vararg, spec.kwarg) if item is not None]
    return f"{{{', '.join(f'{name!r}: {name}' for name in names)}}}"


def _signature(takes: str) -> ast.arguments:
    """Parses parameters; raises CannotLower for any other text."""
    tree = syntax.parse(f"def takes({takes}): pass")
    (function,) = tree.body
    if not isinstance(function, ast.FunctionDef) or len(function.body) != 1:
        raise CannotLower("the constructor's parameters cannot be read")
    return function.args


def _build(construction: Construction, index: int) -> str:
    """The Python function that builds one construction's tensors and modules, as text."""
    lines = ["device = torch.empty(0).device  # where torch makes tensors now"]
    lines += [_call(call) for call in construction.calls]
    lines += [line for part in construction.parts for line in _part(part)]
    shared = {item.same_as for item in construction.held if item.same_as is not None}
    names = {path: f"shared_{number}" for number, path in enumerate(sorted(shared))}
    for item in construction.held:
        lines += _hold(item, names)
    body = "\n".join(f"    {line}" for line in lines)
    return f"def _build_{index}(model):\n{body}"


def _call(call: MakingCall) -> str:
    """The Python line that repeats one recorded call."""
    if call.target == LITERAL:
        dtype, shape, digits = call.args
        assert isinstance(shape, list)
        return f"{call.results[0]} = _literal({argument_text(dtype, {})}, {tuple_text(shape)}, {digits!r}, device)"
    texts = [argument_text(argument, _DEVICES) for argument in call.args]
    texts += [f"{name}={argument_text(value, _DEVICES)}" for name, value in call.kwargs.items()]
    text = f"torch.ops.{call.target}({', '.join(texts)})"
    if not any(call.results):
        return text
    return f"{', '.join(variable(name) if name else '_' for name in call.results)} = {text}"


def _part(part: ModulePart) -> Iterator[str]:
    """Yields the Python line that makes one module, or that registers a shared one again."""
    if not part.path:
        yield f"model.training = {part.training}"
    elif part.same_as is not None:
        *above, name = part.path.split(".")
        yield f"_at(model, {above!r}).register_module({name!r}, _at(model, {part.same_as.split('.')!r}))"
    else:
        kind = f"torch.nn.{part.kind}" if part.kind else "None"
        yield f"_grow(model, {part.path!r}, {kind}, {part.training}, {part.version})"


def _hold(item: HeldTensor, names: dict[str, str]) -> Iterator[str]:
    """Lines that put a tensor in its place; `names` has the variables of tensors with several places."""
    if item.kind == "attribute":
        *above, name = item.path.split(".")
        yield f"_at(model, {above!r}).__dict__[{name!r}] = {variable(item.value)}"
        return
    text = variable(item.value) if item.value else "None"
    if item.same_as is not None:
        text = names[item.same_as]
    elif item.value and item.kind == "parameter":
        text = f"torch.nn.Parameter({text}, {item.requires_grad})"
    if item.path in names:
        yield f"{names[item.path]} = {text}"
        text = names[item.path]
    persistent = "" if item.kind == "parameter" else f", {item.kind == 'buffer'}"
    yield f"_hold(model, {item.path!r}, {text}{persistent})"
