"""Inserts hooks into a template's syntax tree before it is compiled. Pure.

Hooks are attributes of the environment, which no name in a template can shadow: `step` in every loop iteration and
macro call, `literal` and `written` for all output, `check_result` for results of filters, `small` for arguments that
are a width.
"""

from __future__ import annotations

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

WIDTH_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "truncate", "wordwrap"})
"""Filters whose arguments determine how much text they create."""
CONTAINER_FILTERS = frozenset(
    [
        *("attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "join", "last", "length"),
        *("list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice"),
        *("sort", "sum", "tojson", "unique"),
    ]
)
"""Filters that do not print the container that they receive."""


class HookInserter(NodeTransformer):
    """Inserts the budget's hooks into a syntax tree."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._insert_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._insert_step(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._insert_step(node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        literal = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        node.nodes = [
            child if isinstance(child, nodes.TemplateData) else self._build_hook_call("written", child)
            for child in node.nodes
        ]
        if literal:
            node.nodes.insert(0, self._build_hook_call("literal", nodes.Const(literal, lineno=node.lineno)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [self._build_hook_call("written", part) for part in node.nodes]
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.name in WIDTH_FILTERS:
            node.args = [self._build_hook_call("small", argument) for argument in node.args]
            for keyword in node.kwargs:
                keyword.value = self._build_hook_call("small", keyword.value)
        if node.node is None or _has_no_input(node):
            return node
        if node.name not in CONTAINER_FILTERS:
            node.node = self._build_hook_call("written", node.node)
        return self._build_hook_call("check_result", node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._hook_literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return node if node.ctx != "load" else self._hook_literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._hook_literal(node)

    def _hook_literal(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._build_hook_call("written", node) if any(node.find_all(nodes.Name)) else node

    def _insert_step(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.ExprStmt(self._build_hook_call("step"))
        node.body.insert(0, step.set_lineno(node.lineno).set_environment(self._environment))
        return node

    def _build_hook_call(self, name: str, *args: nodes.Expr) -> nodes.Expr:
        call = nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
        call.set_lineno(args[0].lineno if args else 0).set_environment(self._environment)
        return call


def _has_no_input(node: nodes.Filter) -> bool:
    """Whether it is a filter block, whose input is the rendered block."""
    node_input: nodes.Expr | None = node
    while isinstance(node_input, nodes.Filter):
        node_input = node_input.node
    return node_input is None
