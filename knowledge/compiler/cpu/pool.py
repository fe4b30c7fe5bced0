"""Pooling for the CPU: windows as a column combine of whole input rows, then a short combine along the row.

For each output row, the input rows of its window are combined element by element into a padded line. The line is
contiguous, borders included, so this is vector code. Every output then takes its few neighbours from that line. Maxima
with indices walk their windows directly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, loops_over, nest, print_function, share_loops
from foundry.knowledge.compiler.cpu.space import (
    Space,
    choose_threads,
    indent,
    register_type,
    traffic_bytes,
    vector_widths,
)
from foundry.knowledge.compiler.ir.kernels import Named, Plan, PoolKernel, PrintedKernel, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, affine, loader
from foundry.knowledge.compiler.ir.views import distinct, views_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device


def print_pool(kernel: PoolKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a PoolKernel, in one of the forms of the module's docstring.

    `choices` may hold "vector" (bytes of a register), "algorithm" ("separable" or "direct"), "schedule" ("static" or
    "dynamic") and "threads". A value that is not legal for this kernel gives way to the default.
    """
    return _PoolPrinter(kernel, plan, device, Tuning(choices)).print_kernel()


class _PoolPrinter:
    """Prints one pool; declares its tunables in `tuning`."""

    def __init__(self, kernel: PoolKernel, plan: Plan, device: Device, tuning: Tuning) -> None:
        self._kernel, self._plan, self._tuning = kernel, plan, tuning
        self._values = [kernel.value, *[store.value for store in kernel.stores]]
        self._spatial = len(kernel.input_size)
        self._adaptive = not kernel.kernel
        self._kind = register_type(kernel.dtype)
        self._indexed = any(isinstance(n, Named) and n.name == "index" for n in distinct(self._values))
        views = [*views_of(self._values), *[store.view for store in kernel.stores]]
        outer = len(kernel.outer)
        self._space = Space.merge(kernel.outer, [View(v.offset, v.strides[:outer]) for v in views])
        widths = vector_widths(device)
        width = tuning.number(
            "vector", widths, widths[0], "vector", "bytes of a register; short rows prefer narrow ones"
        )
        self._simd = "#pragma omp simd" if width == widths[0] else f"#pragma omp simd simdlen({width // 4})"
        forms = ["direct"] if self._indexed else ["separable", "direct"]
        meaning = "separable combines rows first and shares them; direct visits every window element by element"
        self._form = tuning.text("algorithm", forms, forms[0], "algorithm", meaning)
        self._order = tuning.text("schedule", ("static", "dynamic"), "static", "parallel", "who takes which output row")
        self._threads = choose_threads(tuning, device, traffic_bytes(self._values, kernel.stores, plan))

    def print_kernel(self) -> PrintedKernel:
        """The printed kernel: threads share the output rows, in the chosen form."""
        kernel = self._kernel
        work = self._separable() if self._form == "separable" else self._direct()
        heads = loops_over("n", self._space.sizes)
        heads += [f"for (int64_t o{d} = 0; o{d} < {kernel.output_size[d]}; ++o{d})" for d in range(self._spatial - 1)]
        body = share_loops(heads, work, self._order, self._threads)
        window = "adaptive" if self._adaptive else " x ".join(map(str, kernel.kernel))
        about = f"{kernel.op} over {window} windows, {self._form}"
        function = Function(kernel.name, about, body, self._values, kernel.stores)
        return print_function(function, self._plan, self._tuning, template="pool")

    # -- geometry

    def _offset(self, spatial: Sequence[str]) -> Callable[[View], str]:
        """A function that gives the C text of a view's offset at the current outer indices and the `spatial` ones."""
        names = [f"n{d}" for d in range(len(self._space.sizes))]
        outer = len(self._kernel.outer)

        def text(view: View) -> str:
            """C text of the view's offset."""
            strides = self._space.strides(View(view.offset, view.strides[:outer])) if outer else ()
            inner = zip(view.strides[outer:], spatial, strict=True)
            return affine(view.offset, [*zip(strides, names, strict=False), *inner])

        return text

    def _window(self, dim: int) -> list[str]:
        """C++ statements that define for output position o<dim>: `start`, the input element of the window's first step,
        which may be negative; `first` and `last`, the range of window steps that are inside the input."""
        kernel, o = self._kernel, f"o{dim}"
        size, out = kernel.input_size[dim], kernel.output_size[dim]
        if self._adaptive:
            return [
                f"[[maybe_unused]] const int64_t start{dim} = {o} * {size} / {out}, first{dim} = 0;",
                f"[[maybe_unused]] const int64_t last{dim} = (({o} + 1) * {size} + {out - 1}) / {out} - start{dim};",
            ]
        window, step, dilation = kernel.kernel[dim], kernel.stride[dim], kernel.dilation[dim]
        lines = [f"[[maybe_unused]] const int64_t start{dim} = {o} * {step} - {kernel.padding[dim]};"]
        first = f"start{dim} < 0 ? {_steps(f'-start{dim}', dilation)} : 0" if kernel.padding[dim] else "0"
        lines.append(f"[[maybe_unused]] const int64_t first{dim} = {first};")
        reach = (out - 1) * step - kernel.padding[dim] + (window - 1) * dilation
        if reach < size:
            lines.append(f"[[maybe_unused]] const int64_t last{dim} = {window};")
        else:
            inside = _steps(f"{size} - start{dim}", dilation)
            lines.append(f"[[maybe_unused]] const int64_t last{dim} = {inside} < {window} ? {inside} : {window};")
        return lines

    def _extent(self, dim: int) -> str:
        """C text of the number of window elements along `dim` by which an average divides."""
        kernel = self._kernel
        if self._adaptive or not kernel.count_include_pad:
            return f"(last{dim} - first{dim})"
        limit = kernel.input_size[dim] + kernel.padding[dim]
        reach = (kernel.output_size[dim] - 1) * kernel.stride[dim] - kernel.padding[dim] + kernel.kernel[dim]
        if reach <= limit:
            return str(kernel.kernel[dim])
        return f"math::minimum((int64_t){kernel.kernel[dim]}, {limit} - start{dim})"

    def _divide(self, acc: str) -> str:
        """C text of the result: `acc`, divided by the window's elements for an average."""
        kernel = self._kernel
        if kernel.op != "avg":
            return acc
        if kernel.divisor is not None:
            return f"{acc} / ({self._kind}){kernel.divisor}"
        count = " * ".join(self._extent(dim) for dim in range(self._spatial))
        return f"{acc} / ({self._kind})({count})"

    @property
    def _neutral(self) -> str:
        """C text of the value that a window's result begins with."""
        return f"lowest<{self._kind}>()" if self._kernel.op == "max" else f"({self._kind})0"

    def _combine(self, a: str, b: str) -> str:
        """C text of two values combined: their maximum or sum."""
        return f"math::maximum({a}, {b})" if self._kernel.op == "max" else f"{a} + {b}"

    def _value(self, spatial: Sequence[str]) -> tuple[list[str], str]:
        """(C++ statements, C text of the pooled value) at the `spatial` indices."""
        offset = self._offset(spatial)
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, prefix="v")
        text = emitter.value(self._kernel.value)
        return emitter.lines, text

    def _store(self) -> list[str]:
        """C++ statements that store the result of a window from `acc` and `index`."""
        offset = self._offset([f"o{d}" for d in range(self._spatial)])
        names = {"acc": "acc", "index": "index"}
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), names)
        emitter.store_all(self._kernel.stores, offset, self._plan.buffers)
        return emitter.lines

    # -- separable

    def _separable(self) -> list[str]:
        """C++ statements for one output row: combine the window's rows into a line, then neighbours of the line."""
        kernel, last = self._kernel, self._spatial - 1
        width, out = kernel.input_size[last], kernel.output_size[last]
        if self._adaptive:
            pad, used, length = 0, width, width
        else:
            pad = kernel.padding[last]
            length = (out - 1) * kernel.stride[last] + (kernel.kernel[last] - 1) * kernel.dilation[last] + 1
            used = min(width, length - pad)
        lines = [f"alignas(64) {self._kind} line[{max(length, pad + used)}]; fill(line, {self._neutral});"]
        for dim in range(last):
            lines += self._window(dim)
        spatial = [f"(start{d} + k{d}{_times(kernel.dilation, d)})" for d in range(last)]
        before, value = self._value([*spatial, "w"])
        target = f"line[w + {pad}]" if pad else "line[w]"
        inner = [
            self._simd,
            f"for (int64_t w = 0; w < {used}; ++w) {{",
            indent([*before, f"{target} = {self._combine(target, value)};"], 1),
            "}",
        ]
        heads = [f"for (int64_t k{d} = first{d}; k{d} < last{d}; ++k{d})" for d in range(last)]
        lines += nest(heads, inner)
        return [*lines, *self._along()]

    def _along(self) -> list[str]:
        """The C++ loop that combines neighbours of the line into each output of the row."""
        kernel, last = self._kernel, self._spatial - 1
        out = kernel.output_size[last]
        if self._adaptive:
            body = [
                *self._window(last),
                f"{self._kind} sum = {self._neutral};",
                f"for (int64_t k = 0; k < last{last}; ++k) sum = {self._combine('sum', f'line[start{last} + k]')};",
            ]
            pragma: list[str] = []
        else:
            window, step, dilation = kernel.kernel[last], kernel.stride[last], kernel.dilation[last]
            at = affine(0, [(step, f"o{last}"), (dilation, "k")])
            body = [
                *(self._window(last) if kernel.op == "avg" and kernel.divisor is None else []),
                f"{self._kind} sum = {self._neutral};",
                f"#pragma GCC unroll {min(window, 16)}",
                f"for (int k = 0; k < {window}; ++k) sum = {self._combine('sum', f'line[{at}]')};",
            ]
            pragma = [self._simd]
        body += [f"const {self._kind} acc = {self._divide('sum')};", *self._store()]
        return [*pragma, f"for (int64_t o{last} = 0; o{last} < {out}; ++o{last}) {{", indent(body, 1), "}"]

    # -- direct

    def _direct(self) -> list[str]:
        """C++ statements for one output row that walk every window element by element."""
        kernel, last = self._kernel, self._spatial - 1
        body = [line for dim in range(self._spatial) for line in self._window(dim)]
        spatial = [f"(start{d} + k{d}{_times(kernel.dilation, d)})" for d in range(self._spatial)]
        before, value = self._value(spatial)
        if self._indexed:
            steps = [math.prod(kernel.input_size[d + 1 :]) for d in range(self._spatial)]
            corner = [f"(start{d} + first{d}{_times(kernel.dilation, d)})" for d in range(self._spatial)]
            first = affine(0, zip(steps, corner, strict=True))
            body += [f"{self._kind} sum = {self._neutral};", f"int64_t index = {first};"]
            visit = [
                *before,
                f"const {self._kind} v = {value};",
                "const bool take = (v > sum) | (v != v);",
                "sum = take ? v : sum;",
                f"index = take ? {affine(0, zip(steps, spatial, strict=True))} : index;",
            ]
        else:
            body.append(f"{self._kind} sum = {self._neutral};")
            visit = [*before, f"sum = {self._combine('sum', value)};"]
        heads = [f"for (int64_t k{d} = first{d}; k{d} < last{d}; ++k{d})" for d in range(self._spatial)]
        body += nest(heads, visit)
        body += [f"const {self._kind} acc = {self._divide('sum')};", *self._store()]
        return [f"for (int64_t o{last} = 0; o{last} < {kernel.output_size[last]}; ++o{last}) {{", indent(body, 1), "}"]


def _steps(distance: str, dilation: int) -> str:
    """C text of the number of window steps that cover `distance` elements."""
    return f"({distance})" if dilation == 1 else f"({distance} + {dilation - 1}) / {dilation}"


def _times(dilation: tuple[int, ...], dim: int) -> str:
    """C text that multiplies a window step by the dilation; "" if it is 1."""
    return f" * {dilation[dim]}" if dilation and dilation[dim] != 1 else ""
