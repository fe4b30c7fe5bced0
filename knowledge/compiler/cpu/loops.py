"""Loops in C++, loops that a team of threads shares, and the function around the body of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.space import indent, list_parameters, page_advice
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.schedule.tuning import Tuning


def loop_head(name: str, end: int | str, begin: int | str = 0) -> str:
    """The head of a C++ loop over [begin, end), without its brace."""
    return f"for (int64_t {name} = {begin}; {name} < {end}; ++{name})"


def loops_over(prefix: str, sizes: Iterable[int]) -> list[str]:
    """The heads of nested loops over all dimensions, with indices prefix0, prefix1, ..."""
    return [loop_head(f"{prefix}{dim}", size) for dim, size in enumerate(sizes)]


def nest(heads: Sequence[str], body: Sequence[str]) -> list[str]:
    """C++ statements: `body` inside the loops `heads`, in a scope of its own."""
    lines = ["{", indent(body, 1), "}"]
    for head in reversed(heads):
        lines = [f"{head} {lines[0]}", *lines[1:]] if lines[0] == "{" else [f"{head} {{", indent(lines, 1), "}"]
    return lines


def share_loops(heads: Sequence[str], work: Sequence[str], schedule: str, threads: str) -> list[str]:
    """C++ loops whose iterations the threads share, collapsed into one. `threads`: OpenMP clause of
    `choose_threads`."""
    pragma = f"#pragma omp parallel for{_collapse(heads)} schedule({schedule}){threads}"
    return [pragma, *heads[:-1], f"{heads[-1]} {{", indent(work, 1), "}"]


def share_in_team(
    heads: Sequence[str],
    work: Sequence[str],
    schedule: str,
    threads: str,
    *,
    setup: Sequence[str] = (),
    fence: bool = False,
) -> list[str]:
    """Like `share_loops`, with `setup` executed once by each thread. `fence`: streaming stores end with a fence."""
    heads = heads or [loop_head("only", 1)]
    return [
        f"#pragma omp parallel{threads}",
        "{",
        *[f"  {line}" for line in setup],
        f"  #pragma omp for{_collapse(heads)} schedule({schedule}) nowait",
        *[f"  {head}" for head in heads[:-1]],
        f"  {heads[-1]} {{",
        indent(work, 2),
        "  }",
        *(["  stream_fence();"] if fence else []),
        "}",
    ]


def _collapse(heads: Sequence[str]) -> str:
    """The OpenMP clause that collapses these loops; "" for a single one."""
    return f" collapse({len(heads)})" if len(heads) > 1 else ""


def width_of_tile(tile: int, size: int) -> str:
    """The C++ declaration of `width`: rows of the tile that begins at `tile`. The last of `size` rows may not fill
    it."""
    if size % tile == 0:
        return f"constexpr int width = {tile};"
    return f"const int width = tile + {tile} < {size} ? {tile} : (int)({size} - tile);"


@dataclass(frozen=True)
class Function:
    """A C++ function and the comment `about` it.

    Its parameters are the buffers that it reads and writes, then `more`, each a declaration with its argument.
    """

    name: str
    about: str
    body: Sequence[str]
    reads: Sequence[ir.Expr]
    stores: Sequence[ir.Store]
    more: Sequence[tuple[str, str]] = ()

    def parameters(self, plan: ir.Plan) -> tuple[str, str]:
        """(C++ parameter list, argument list of a call)."""
        declared, passed = list_parameters(self.reads, self.stores, plan)
        all_declared = [*filter(None, [declared]), *(text for text, _ in self.more)]
        return ", ".join(all_declared), ", ".join([*filter(None, [passed]), *(text for _, text in self.more)])


def print_function(
    function: Function,
    plan: ir.Plan,
    tuning: Tuning,
    *,
    template: str,
    shared: Sequence[str] = (),
    workspace_bytes: int = 0,
    pages: bool = True,
) -> ir.PrintedKernel:
    """The printed kernel of one function, with the values and tunables of `tuning`. `shared` names library files below
    cpu/.

    With `pages` large fresh outputs may get huge pages, by a tunable that this declares."""
    name = function.name
    declared, passed = function.parameters(plan)
    advice, labels = page_advice(tuning, function.stores, plan) if pages else ([], ())
    return ir.PrintedKernel(
        functions=f"// {name}: {function.about}\nstatic void {name}({declared}) {{\n{indent(function.body, 1)}\n}}\n",
        call="\n".join([*advice, f"{name}({passed});"]),
        template=template,
        choices=tuning.values,
        tunables=tuple(tuning.tunables),
        workspace_bytes=workspace_bytes,
        labels=labels,
        shared=tuple(read_library_text(f"cpu/{text}") for text in shared),
    )
