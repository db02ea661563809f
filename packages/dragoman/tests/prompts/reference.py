"""Render a chat template as transformers does: plain Jinja, without our sandbox limits."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.prompts.templates import TOKENS

NOW = datetime(2026, 2, 3, 4, 5, 6)


class TemplateRejected(jinja2.TemplateError):
    pass


def raise_exception(message: str) -> NoReturn:
    raise TemplateRejected(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def render_reference(source: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    extensions: list[type[Extension]] = [loopcontrols]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    environment.filters.update({"tojson": tojson})
    names: dict[str, Any] = {"raise_exception": raise_exception, "strftime_now": NOW.strftime}
    environment.globals.update(names)
    template = environment.from_string(
        source.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    )
    values = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        **TOKENS,
        **variables,
    }
    return template.render(messages=messages, **values)
