"""Hoists sub-expressions that are constant along a row out of the loop over the row, so that each row computes them
once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    Emit,
    EmitRow,
    Expr,
    Gather,
    Iota,
    Let,
    Load,
    Named,
    Reduction,
    RowKernel,
)


def hoist_row_constants(kernel: RowKernel) -> RowKernel:
    """The kernel with each row constant computed by a Let stage before its first use."""
    hoist = _Hoist(len(kernel.outer), kernel.name.removeprefix("k_"))
    for stage in kernel.stages:
        if isinstance(stage, Emit):
            hoist.stages.append(Emit(replace(stage.store, value=hoist.expression(stage.store.value))))
        elif isinstance(stage, Reduction):
            hoist.stages.append(replace(stage, value=hoist.expression(stage.value)))
        else:
            hoist.stages.append(stage)
    return replace(kernel, stages=tuple(hoist.stages))


@dataclass
class _Hoist:
    """State of hoisting over one kernel: memo tables by node identity; `kept` keeps nodes alive so that identities
    stay unique."""

    rank: int  # number of outer dimensions
    base: str
    stages: list[Reduction | Let | Emit | EmitRow] = field(default_factory=list)
    lets: dict[int, Named] = field(default_factory=dict)
    constant: dict[int, bool] = field(default_factory=dict)
    changed: dict[int, Expr] = field(default_factory=dict)
    kept: list[Expr] = field(default_factory=list)

    def expression(self, expr: Expr) -> Expr:
        """The expression with its row constants replaced by names; appends the Let stages that compute them."""
        self.kept.append(expr)
        return self._visit(expr)

    def _visit(self, node: Expr) -> Expr:
        """The node with its row constants replaced by names, memoised."""
        known = self.changed.get(id(node))
        if known is None:
            if isinstance(node, Apply | Gather) and self._same_along_row(node) and not _only_constants(node):
                known = self._let(node)
            elif isinstance(node, Apply):
                known = replace(node, args=tuple(self._visit(argument) for argument in node.args))
            elif isinstance(node, Gather):
                known = replace(node, index=self._visit(node.index))
            else:
                known = node
            self.changed[id(node)] = known
        return known

    def _same_along_row(self, node: Expr) -> bool:
        """True if the node has the same value at each element of a row."""
        known = self.constant.get(id(node))
        if known is None:
            if isinstance(node, Apply):
                known = all([self._same_along_row(argument) for argument in node.args])
            elif isinstance(node, Gather):
                known = self._same_along_row(node.index) and not any(node.view.strides[self.rank :])
            elif isinstance(node, Load | Iota):
                known = not any(node.view.strides[self.rank :])
            else:
                known = True
            self.constant[id(node)] = known
        return known

    def _let(self, node: Expr) -> Named:
        """The name for a row constant; appends its Let stage at the first use."""
        if id(node) not in self.lets:
            self.lets[id(node)] = Named(f"{self.base}_row{len(self.lets)}", node.dtype)
            self.stages.append(Let(self.lets[id(node)].name, node))
        return self.lets[id(node)]


def _only_constants(expr: Expr) -> bool:
    """True if the expression reads no memory, such as a cast of a constant: not worth a name."""
    return all(isinstance(node, Const | Apply) for node in views.nodes(expr))
