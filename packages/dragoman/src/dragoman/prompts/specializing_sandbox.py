"""A sandbox that renders a template with opaque texts, see `template_specialization`."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import CodeType
from typing import Any

import jinja2
from jinja2.runtime import Context

from .sandbox import Sandbox
from .template_specialization import NotSpecializable, OpaqueMethod, OpaqueText, Specializer

Value = Any
_TYPE_TESTS = frozenset(
    [
        *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping"),
        *("none", "number", "sequence", "string", "true", "undefined"),
    ]
)
"""Tests whose result is the same for all strings."""
_UNUSED_FILTERS = frozenset({"d", "default", "string"})
"""Filters that return a string that is not empty as it is."""


class SpecializingSandbox(Sandbox):
    """The sandbox, which also accepts opaque texts. It charges them to the specializer
    instead of the budget.
    """

    specializer: Specializer

    def __init__(self) -> None:
        super().__init__()
        self.filters = {name: _build_filter(name, filter) for name, filter in self.filters.items()}
        self.tests = {name: _build_test(name, test) for name, test in self.tests.items()}

    def build(self, code: CodeType) -> jinja2.Template:
        """Build a template of compiled code."""
        template = jinja2.Template.from_code(self, code, dict(self.globals))

        def join(values: Iterable[Value]) -> Value:
            return self.specializer.join(map(_to_text, values))

        # The code calls these for what it writes, and for `~`.
        template.root_render_func.__globals__.update(str=_to_text, str_join=join)
        return template

    def concat(self, pieces: Iterable[Value]) -> Value:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.specializer.join(pieces)

    def charge_value(self, value: Value) -> Value:
        if type(value) is OpaqueText:
            self.budget.spend_chars(self.specializer.charge(value))
            return value
        _refuse_within(value)
        return super().charge_value(value)

    def check_result(self, value: Value) -> Value:
        return (
            self.charge_value(value) if type(value) is OpaqueText else super().check_result(value)
        )

    def getattr(self, obj: Value, attribute: str) -> Value:
        if type(obj) is OpaqueText:
            return obj.find_method(attribute)
        if type(obj) is OpaqueMethod:
            raise NotSpecializable(attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Value, *args: Value, **kwargs: Value) -> Value:
        if type(__obj) is not OpaqueMethod:
            return super().call(__context, __obj, *args, **kwargs)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if kwargs:
            raise NotSpecializable("keyword arguments")
        for value in args:
            __self.charge_value(value)
        return __self.check_result(__obj.call(args))

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        if type(left) is not OpaqueText and type(right) is not OpaqueText:
            return super().call_binop(context, operator, left, right)
        if operator != "+" or not {type(left), type(right)} <= {str, OpaqueText}:
            raise NotSpecializable(operator)
        return self.specializer.join((self.charge_value(left), self.charge_value(right)))


def _build_filter(name: str, filter: Callable[..., Value]) -> Callable[..., Value]:
    @wraps(filter)
    def apply(*args: Value, **kwargs: Value) -> Value:
        types = {*map(type, args), *map(type, kwargs.values())}
        if OpaqueText not in types and OpaqueMethod not in types:
            return filter(*args, **kwargs)
        text, *others = args
        if name in _UNUSED_FILTERS:
            return text if type(text) is OpaqueText else filter(*args, **kwargs)
        if name != "trim" or type(text) is not OpaqueText or kwargs or len(others) > 1:
            raise NotSpecializable(name)
        return text.trim(str.strip, *(others or (None,)))

    return apply


def _build_test(name: str, test: Callable[..., Value]) -> Callable[..., Value]:
    @wraps(test)
    def apply(*args: Value, **kwargs: Value) -> Value:
        texts = (*args, *kwargs.values())
        if OpaqueText not in map(type, texts):
            return test(*args, **kwargs)
        if name not in _TYPE_TESTS:
            raise NotSpecializable(name)
        return test(*(arg.value if type(arg) is OpaqueText else arg for arg in args), **kwargs)

    return apply


def _to_text(value: Value) -> Value:
    return value if type(value) is OpaqueText else str(value)


def _refuse_within(value: Value) -> None:
    """Refuse a container with an opaque text, whose share of the budget is unknown."""
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is OpaqueText:
            raise NotSpecializable("container")
        if isinstance(item, Mapping):
            pending += item.values()
        elif isinstance(item, (list, tuple)):
            pending += item
