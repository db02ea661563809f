"""Sandboxed Jinja for chat templates.

In addition to Jinja's immutable sandbox every rendering has a budget: each loop
iteration and macro call is a step, and every string is charged when it is created.
Hooks are inserted into the syntax tree before it is compiled, see `HookInserter`.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import do_indent, do_wordwrap
from jinja2.idtracking import VAR_LOAD_RESOLVE
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .shared_json import NOTHING_SHARED, JsonOptions, SharedJson

WIDTH_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "truncate", "wordwrap"})
"""Filters whose arguments determine how much text they create."""
CONTAINER_FILTERS = frozenset(
    [
        *(
            "attr",
            "batch",
            "count",
            "d",
            "default",
            "dictsort",
            "first",
            "groupby",
            "items",
            "join",
            "last",
            "length",
        ),
        *(
            "list",
            "map",
            "max",
            "min",
            "random",
            "reject",
            "rejectattr",
            "reverse",
            "select",
            "selectattr",
            "slice",
        ),
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
        n_chars = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        node.nodes = [
            child
            if isinstance(child, nodes.TemplateData)
            else self._build_hook_call("charge_value", child)
            for child in node.nodes
        ]
        if n_chars:
            node.nodes.insert(
                0, self._build_hook_call("charge_literal", nodes.Const(n_chars, lineno=node.lineno))
            )
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [self._build_hook_call("charge_value", part) for part in node.nodes]
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.name in WIDTH_FILTERS:
            node.args = [self._build_hook_call("check_width", argument) for argument in node.args]
            for keyword in node.kwargs:
                keyword.value = self._build_hook_call("check_width", keyword.value)
        # The innermost filter of a filter block has no input node: its input is the
        # rendered block.
        node_input: nodes.Expr | None = node
        while isinstance(node_input, nodes.Filter):
            node_input = node_input.node
        if node.node is None or node_input is None:
            return node
        if node.name not in CONTAINER_FILTERS:
            node.node = self._build_hook_call("charge_value", node.node)
        return self._build_hook_call("check_result", node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._hook_literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        # Any other context is the target of an assignment, which cannot be a call.
        return node if node.ctx != "load" else self._hook_literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._hook_literal(node)

    def _hook_literal(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        # A literal of constants alone is no longer than its source, whatever the
        # request holds.
        return (
            self._build_hook_call("charge_value", node) if any(node.find_all(nodes.Name)) else node
        )

    def _insert_step(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.ExprStmt(self._build_hook_call("step"))
        node.body.insert(0, step.set_lineno(node.lineno).set_environment(self._environment))
        return node

    def _build_hook_call(self, name: str, *args: nodes.Expr) -> nodes.Expr:
        call = nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
        call.set_lineno(args[0].lineno if args else 0).set_environment(self._environment)
        return call


Value = Any
"""Any value in a template; nearly all of Jinja's types are Any."""
_MAX_WIDTH = 100_000
"""Maximum integer where it could be a width or a count; for a string, a hundredth of
it.
"""
_ITEM_CHARS = 4
"""Characters charged for any value other than a string."""
# A width or precision of at least five digits in a format string, or one that is taken
# from an argument (`*`).
_WIDTH = re.compile(r"\d{5}|\*")
_MAX_BITS = 4096
"""Maximum bits of an integer product or power."""
_DICT_ATTRIBUTES = frozenset(dir(dict))
_MAX_INDENT = 16
"""Maximum indentation of `tojson`, in characters."""


class BudgetExceeded(jinja2.TemplateError):
    """The template does more work than its input warrants."""


class Budget:
    """The budget of one rendering.

    characters, steps: what is left. The hooks subtract from both themselves, since a
        call for each costs more than all that most of them do.
    """

    def __init__(
        self, characters: int, steps: int, seconds: float, clock: Callable[[], float]
    ) -> None:
        self.characters = characters
        self.steps = steps
        self._seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds

    def check_steps(self) -> None:
        if self.steps < 0:
            raise BudgetExceeded("it takes too many steps")
        if self._clock() > self._deadline:
            raise BudgetExceeded(f"it takes longer than {self._seconds:g} seconds")

    def spend_chars(self, characters: int) -> None:
        self.characters -= characters
        if self.characters < 0:
            raise _build_length_error()

    def spend_value(self, value: object) -> None:
        """Charge a value at its printed size, counting shared parts each time."""
        # Within the loop, since the parts can be shared so often that the walk would not
        # end; without a call for each part, since the schemas of tools have hundreds.
        left = self.characters
        pending: list[Value] = [value]
        while pending and left >= 0:
            item = pending.pop()
            if isinstance(item, str):
                left -= len(item)
                continue
            left -= _ITEM_CHARS
            if isinstance(item, dict):
                pending += item
                pending += item.values()
            elif isinstance(item, (list, tuple)):
                pending += item
        self.spend_chars(self.characters - left)


class _HookCodeGenerator(CodeGenerator):
    """Calls hooks directly: Jinja's sandbox would check for each call whether it is
    safe.

    undefined_names: the names that the template reads and does not define.
    """

    def __init__(self, environment: Sandbox) -> None:
        super().__init__(environment, None, None, optimized=environment.optimized)
        self.undefined_names: set[str] = set()

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        # Only `HookInserter` makes these nodes: no template source can name an
        # attribute of the environment.
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for number, argument in enumerate(node.args):
            self.write(", " if number else "")
            self.visit(argument, frame)
        self.write(")")

    def enter_frame(self, frame: Frame) -> None:
        super().enter_frame(frame)
        # As `jinja2.meta` finds them, which generates the whole code a second time.
        self.undefined_names |= {
            name
            for action, name in frame.symbols.loads.values()
            if action == VAR_LOAD_RESOLVE and name and name not in self.environment.globals
        }


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with the settings of transformers. `budget` and `shared_json` belong to one
    rendering, see `build_template`.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    budget: Budget
    shared_json: SharedJson = NOTHING_SHARED

    def __init__(self) -> None:
        extensions: list[type[Extension]] = [LoopControlExtension, _Generation]
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions
        )
        filters: dict[str, Value] = {
            "format": _format,
            "tojson": _tojson,
            "replace": _replace,
            "join": _join,
        }
        filters |= {"indent": _indent, "wordwrap": _wordwrap}
        self.filters.update(filters)
        names: dict[str, Value] = {"raise_exception": _raise_exception, "namespace": _Namespace}
        self.globals.update(names)
        # `lipsum` generates any amount of text in one call.
        self.globals.pop("lipsum")

    def parse_with_hooks(self, source: str) -> nodes.Template:
        """Parse a template and insert the hooks. Only this tree may be compiled: the
        code generator folds constants.
        """
        return HookInserter(self).visit(self.parse(source))

    def compile_tree(self, tree: nodes.Template) -> tuple[CodeType, frozenset[str]]:
        """Compile a tree with hooks; return also the names that it reads and does not
        define.
        """
        generator = _HookCodeGenerator(self)
        generator.visit(tree)
        source = generator.stream.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        return self._compile(source, "<template>"), frozenset(generator.undefined_names)

    def build_template(self, code: CodeType) -> SandboxedTemplate:
        """Build a template with its own environment, for one rendering at a time."""
        # An overlay shares filters and globals but has its own budget, so renderings
        # can run in parallel.
        environment = self.overlay()
        # A plain dictionary: Jinja copies the globals for every rendering, and its
        # chain of mappings is slow to copy.
        return SandboxedTemplate(
            environment, jinja2.Template.from_code(environment, code, dict(environment.globals))
        )

    def step(self) -> str:
        """Hook: count a loop iteration or a macro call."""
        budget = self.budget
        budget.steps -= 1
        # Reading the clock costs more than a step, so it is read every 256 steps.
        if budget.steps < 0 or not budget.steps & 0xFF:
            budget.check_steps()
        return ""

    def charge_literal(self, characters: int) -> str:
        """Hook: charge text of the template itself before it is printed."""
        budget = self.budget
        budget.characters -= characters
        if budget.characters < 0:
            raise _build_length_error()
        return ""

    def check_result(self, value: Value) -> Value:
        """Hook: charge a value that was created from values already charged."""
        if isinstance(value, (str, list, tuple, dict)):
            budget = self.budget
            budget.characters -= len(value)  # pyright: ignore[reportUnknownArgumentType]
            if budget.characters < 0:
                raise _build_length_error()
        return value

    def charge_value(self, value: Value) -> Value:
        """Hook: charge a value before it is printed."""
        if type(value) is str:  # Nearly every value.
            budget = self.budget
            budget.characters -= len(value)
            if budget.characters < 0:
                raise _build_length_error()
        else:
            self.budget.spend_value(value)
        return value

    def check_width(self, value: Value) -> Value:
        """Hook: bound a value that may be a width."""
        if (isinstance(value, int) and abs(value) > _MAX_WIDTH) or (
            isinstance(value, str) and len(value) > _MAX_WIDTH // 100
        ):
            raise BudgetExceeded("an argument is too large")
        return value

    def getattr(self, obj: Value, attribute: str) -> Value:
        """Get an attribute or item like the base class, but faster for dictionaries,
        which have few attributes.
        """
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Value, *args: Value, **kwargs: Value) -> Value:
        if type(__obj) is Macro:
            # A macro is no method and always safe to call, so it needs none of the
            # checks, which cost more than a short macro. Jinja passes the variables of a
            # surrounding loop or block to functions that ask for them, which none does.
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __self.check_result(__obj(__context.eval_ctx, *args, **kwargs))
        # Jinja's wrapper of the method `format` has the same `__name__` and `__self__`.
        method = vars(__obj).get("__wrapped__", __obj) if isinstance(__obj, _FUNCTION) else __obj
        if isinstance(method, _METHOD) and isinstance(method.__self__, str):
            __self._check_method(method.__name__, method.__self__, (*args, *kwargs.values()))
        if __obj is dict:
            __self.charge_value(kwargs)
        return __self.check_result(super().call(__context, __obj, *args, **kwargs))

    def call_filter(self, name: str, value: Value, *args: Value, **kwargs: Value) -> Value:
        """Apply a filter by name, for `map` and similar filters."""
        if name not in CONTAINER_FILTERS:
            self.charge_value(value)
        return self.check_result(super().call_filter(name, value, *args, **kwargs))

    def _check_method(self, name: str, owner: str, args: tuple[Any, ...]) -> None:
        for value in args:
            self.charge_value(value)
            if isinstance(value, int):
                self.check_width(value)
        match name, args:
            case "replace", (str(old), str(new), *_):
                self.budget.spend_chars(_count_replaced(owner, old, new))
            case "join", (list() | tuple() as items, *_):
                self.budget.spend_chars(len(owner) * len(items))
            case (("format" | "format_map"), _):
                _check_format(owner)
            # Its result grows with the product of the tab size and the number of tabs.
            case "expandtabs", _:
                raise BudgetExceeded("expandtabs is not allowed")
            case _:
                pass

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:  # noqa: ARG002
        if operator == "+" and type(left) is str and type(right) is str:  # Nearly always.
            budget = self.budget
            budget.characters -= len(left) + len(right)
            if budget.characters < 0:
                raise _build_length_error()
            return left + right
        match operator, left, right:
            case "+", (str() | list() | tuple()), (str() | list() | tuple()):
                self.budget.spend_chars(len(left) + len(right))
            case "*", (str() | list() | tuple()), int():
                self._check_repeat(left, right)
            case "*", int(), (str() | list() | tuple()):
                self._check_repeat(right, left)
            case "%", str(), _:
                _check_format(left)
                self.charge_value(right)
            case "*", int(), int() if left.bit_length() + right.bit_length() > _MAX_BITS:
                raise BudgetExceeded("a number is too large")
            case "**", int(), int() if left.bit_length() * abs(right) > _MAX_BITS:
                raise BudgetExceeded("a number is too large")
            case _:
                pass
        return self.binop_table[operator](left, right)

    def _check_repeat(self, sequence: str | list[Any] | tuple[Any, ...], times: int) -> None:
        self.budget.spend_chars(len(sequence) * max(times, 0))
        if not isinstance(sequence, str) and times > 1:
            self.check_width(times)
            for _ in range(times):
                self.budget.spend_value(sequence)


class SandboxedTemplate(NamedTuple):
    """A compiled template and its environment, whose `budget` must be set before each
    rendering.
    """

    environment: Sandbox
    template: jinja2.Template


class _Generation(Extension):
    """`{% generation %}` marks text for training; it has no effect on a prompt."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


_METHOD = types.BuiltinMethodType
_FUNCTION = types.FunctionType


def _build_length_error() -> BudgetExceeded:
    return BudgetExceeded("it produces too much text")


def _check_format(template: str) -> None:
    if _WIDTH.search(template):
        raise BudgetExceeded("a format is too wide")


def _count_replaced(text: str, old: str, new: str) -> int:
    """Return an upper bound of the result's characters."""
    return len(text) + text.count(old) * len(new)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _format(value: Value, *args: Value, **kwargs: Value) -> str:
    _check_format(str(value))
    return str(value) % (kwargs or args)


@pass_environment
def _tojson(
    environment: Sandbox,
    value: Value,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode plain JSON without HTML escapes, as in transformers."""
    texts = None if separators is not None else environment.shared_json.find_texts(value)
    options = JsonOptions(bool(ensure_ascii), indent, bool(sort_keys))
    budget = environment.budget
    if texts and (found := texts.get(options)) is not None:
        text, n_chars = found
        budget.spend_chars(n_chars)
        return text
    chars_before = budget.characters
    environment.charge_value(value)
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MAX_INDENT:
        raise BudgetExceeded("an indentation is too wide")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if texts is not None:
        texts[options] = text, chars_before - budget.characters
    return text


@pass_environment
def _replace(
    environment: Sandbox, text: Value, old: Value, new: Value, count: int | None = None
) -> str:
    source = str(text)
    old = str(old)
    new = str(new)
    environment.budget.spend_chars(_count_replaced(source, old, new))
    return source.replace(old, new, -1 if count is None else count)


@pass_environment
def _indent(
    environment: Sandbox,
    text: Value,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> str:
    source = str(text)
    lines = source.count("\n") + 1
    environment.budget.spend_chars(
        len(source) + lines * (len(width) if isinstance(width, str) else abs(width))
    )
    return do_indent(source, width, first, blank)


@pass_environment
def _wordwrap(
    environment: Sandbox,
    text: Value,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    """Wrap words; charged as if every character became a line."""
    source = str(text)
    environment.budget.spend_chars(len(source) * (1 + len(wrapstring or "\n")))
    return do_wordwrap(environment, source, width, break_long_words, wrapstring, break_on_hyphens)


@pass_environment
def _join(
    environment: Sandbox, value: Value, d: Value = "", attribute: str | int | None = None
) -> str:
    items = list(value)
    if attribute is not None:
        steps = attribute.split(".") if isinstance(attribute, str) else [attribute]
        for name in steps:
            items = [
                environment.getitem(item, int(name) if str(name).isdigit() else name)
                for item in items
            ]
    environment.budget.spend_chars(len(str(d)) * len(items))
    for item in items:
        environment.charge_value(item)
    return str(d).join("" if isinstance(item, Undefined) else str(item) for item in items)


class _Namespace(Namespace):
    """A namespace that does not print its values, which may be namespaces again."""

    def __repr__(self) -> str:
        return "<Namespace>"
