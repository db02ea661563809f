"""Templates are compiled once, render as in transformers, and have bounded cost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.prompts.reference import NOW, render_reference
from tests.prompts.templates import SOURCES, template
from tests.prompts.vocabularies import EMBEDDED

from dragoman.core.errors import RequestError
from dragoman.core.message import Message, Role, ToolCall
from dragoman.prompts.chat_template import ChatTemplate, TemplateLimits
from dragoman.prompts.template_loader import load_template
from dragoman.prompts.template_messages import MessageOptions, build_message_values

USER: dict[str, Any] = {"role": "user", "content": "Hello"}


def render(source: str, limits: TemplateLimits | None = None, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, limits).render(variables, now=NOW)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n    {{ m.content }}\n{% endfor %}\n",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% "
        "break %}{% endfor %}",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': '<é>'} | "
        "tojson(sort_keys=true) }}",
        "{{ {'a': 'é'} | tojson(ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
        "{{ strftime_now('%Y-%m-%d %H') }}{{ bos_token }}{{ eos_token }}",
        "{{ messages | map(attribute='content') | join(', ') }}{{ messages | join('|', "
        "attribute='role') }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content[:2] "
        "%}{% endfor %}"
        "{{ ns.x }}",
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}{{ m(1) "
        "}}"
        "{% call m(3) %}x{% endcall %}",
        "{% filter upper %}abc{{ messages[0].content }}{% endfilter %}{% set x | trim %}  y {% "
        "endset %}[{{ x }}]",
        "{{ '%s-%05.1f' | format('a', 2.5) }}{{ '%s' % 'b' }}{{ '{}'.format('c') }}{{ 'x' * 3 "
        "}}{{ 2 ** 10 }}",
        "{{ 'aXbXc'.split('X') }}{{ 'abc' | replace('b', 'zz') }}{{ 'abc'.replace('b', 'yy') }}{{ "
        "['a', 1] }}",
        "{{ undefined_thing }}{{ undefined_thing is defined }}{{ messages[5] is defined }}{{ none "
        "}}",
        "{{ messages[0].items() | list }}{{ messages[0] | items | list }}{{ dict(a=1) }}{{ "
        "range(3) | list }}",
        "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
        "{{ 'abc' | indent(4, true) }}{{ 'a b' | title }}{{ '  x ' | trim }}{{ 'abc' | center(9) "
        "}}{{ -1 | abs }}",
    ],
)
def test_template_render_matches_transformers(source: str) -> None:
    messages = [{"role": "system", "content": "Sys <b>"}, {"role": "user", "content": "Hello é"}]
    ours = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    assert ours.render(values, now=NOW) == render_reference(source, messages)


def test_template_generation_tags_are_ignored() -> None:
    assert (
        render("a{% generation %}b{% generation %}c{% endgeneration %}{% endgeneration %}d")
        == "abcd"
    )


def test_template_raise_exception_returns_message_to_client() -> None:
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception('No system messages, please.') }}")
    error = caught.value
    assert (error.status, error.param, error.message) == (
        400,
        "messages",
        "No system messages, please.",
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.x.y }}",
        "{{ 'a' + none }}",
        "{{ 1 / 0 }}",
        "{{ ''.join([1]) }}",
        "{{ {'a': undefined_thing} | tojson }}",
        "{% include 'other' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ none() }}",
        "{{ 'a'.encode('nothing') }}",
    ],
)
def test_template_runtime_error_returns_400(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source, messages=[USER])
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ x",
        "{% for %}",
        "{{ x | nothing }}",
        "{% generation %}",
        "{{ " + "(" * 5_000 + ")" * 5_000 + " }}",
        "{% if x %}" * 3_000,
        "{% if x %}" * 300 + "{% endif %}" * 300,
        "x" * 1_000_001,
        "{% extends 5 %}{% block a %}{% endblock %}{% block a %}{% endblock %}",
    ],
)
def test_template_compile_error_returns_400(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source)
    assert (caught.value.status, caught.value.param) == (400, "chat_template")


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ self.__init__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ ('{0.__class__}' | format)(1) }}",
    "{{ strftime_now.__self__.__class__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ messages | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_sandbox_hides_python_internals(source: str) -> None:
    text = ""
    with suppress(RequestError):
        text = render(source, messages=[USER])
    assert "class" not in text
    assert "environment" not in text


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** 100000 }}",
    "{% set ns = namespace(x=9) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor "
    "%}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor "
    "%}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x.replace('x', 'xx') "
    "%}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x | replace('x', "
    "'xx') %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% "
    "endset %}{% endfor %}",
    "{% set ns = namespace(x=['x']) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
    "endfor %}",
    "{% set ns = namespace(x=['x']) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
    "endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['x']) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
    "endfor %}"
    "{{ ns.x | tojson }}",
    "{% set ns = namespace(x=['x']) %}{% for a in range(99) %}{% set ns.x = dict(a=ns.x, b=ns.x) "
    "%}{% endfor %}"
    "{{ ns.x | string }}",
    "{% set ns = namespace(x=['x']) %}{% for a in range(99) %}{% set ns.x = [ns.x] * 2 %}{% "
    "endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['x' * 999999]) %}{% for a in range(18) %}{% set ns.x = ns.x + ns.x "
    "%}{% endfor %}"
    "{{ ns.x | string }}",
    "{{ 'x' | center(10 ** 10) }}",
    "{{ 'x'.ljust(10 ** 10) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ range(99999) | join('x' * 99999) }}",
    "{{ ('x' * 99999).join(range(9999) | map('string') | list) }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ 'a\\nb' | indent(1000000000) }}",
    "{{ 'a b' | wordwrap(1, wrapstring='x' * 100000000) }}",
    "{% filter upper %}{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endfilter %}",
    "{{ range(99999) | map('center', 99999) | list | length }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_template_step_limit_stops_endless_template(source: str) -> None:
    limits = TemplateLimits(characters=1_000_000, steps=20_000, seconds=60)
    with pytest.raises(RequestError) as caught:
        render(source, limits, messages=[USER])
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_template_time_limit_stops_slow_template() -> None:
    ticks = iter(range(10**9))
    slow = ChatTemplate("{% for a in range(99999) %}{% endfor %}", clock=lambda: float(next(ticks)))
    with pytest.raises(RequestError, match="longer than 10 seconds"):
        slow.render({}, now=NOW)


def test_template_character_budget_scales_with_input() -> None:
    source = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    limits = TemplateLimits(characters=1_000)
    template = ChatTemplate(source, limits=limits)
    messages = [{"role": "user", "content": "x" * 100_000}]
    with pytest.raises(RequestError, match="too much text"):
        template.render({"messages": messages}, now=NOW)
    assert len(template.render({"messages": messages}, now=NOW, characters=100_000)) == 100_000


@pytest.mark.parametrize("name", SOURCES)
def test_template_steps_per_message_stay_below_limit(name: str) -> None:
    """Templates of real models need few steps per message, far below the limit."""
    messages = [USER, {"role": "assistant", "content": "Hi"}] * 200 + [USER]
    template = ChatTemplate(
        SOURCES[name], {"bos_token": "<s>", "eos_token": "</s>"}, TemplateLimits(steps=5_000)
    )
    assert template.render({"messages": messages, "tools": None}, now=NOW)


def test_template_concurrent_threads_have_separate_budgets() -> None:
    template = ChatTemplate(
        "{% for a in range(n) %}x{% endfor %}", limits=TemplateLimits(steps=1_000)
    )

    def one(n: int) -> str:
        return template.render({"n": n}, now=NOW)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(0, 900, 9)))
    assert [len(text) for text in found] == list(range(0, 900, 9))


@pytest.mark.parametrize(
    ("name", "strings", "parts", "null_content", "developer", "tools"),
    [
        ("embedded", True, True, True, False, True),
        ("chatml", True, False, False, False, False),
        ("qwen3", True, False, True, False, True),
        ("llama3", True, False, True, False, True),
        ("mistral", True, False, False, False, False),
        ("parts", False, True, False, False, False),
        ("deepseek", True, False, True, False, False),
        ("harmony", True, False, True, True, True),
    ],
)
def test_template_features_detect_accepted_inputs(
    name: str, strings: bool, parts: bool, null_content: bool, developer: bool, tools: bool
) -> None:
    traits = template(name).features
    found = (
        traits.accepts_strings,
        traits.accepts_parts,
        traits.accepts_null_content,
        traits.supports_developer,
        traits.supports_tools,
    )
    assert found == (strings, parts, null_content, developer, tools)


TEXT_ARGUMENTS = """\
{%- for message in messages %}
    {%- for call in message.tool_calls or [] -%}
        {{ '>>>' + call.function.name + '\\n' + call.function.arguments }}
    {%- endfor %}
    {{- message.content or '' }}
{%- endfor %}"""
"""Functionary v3.2 renders the arguments of a call as the client sent them."""


def test_template_needing_string_arguments_gets_strings() -> None:
    created = ChatTemplate(TEXT_ARGUMENTS)
    assert created.features.needs_string_arguments
    assert created.features.accepts_null_content
    assert not any(template(name).features.needs_string_arguments for name in SOURCES)
    call = Message(Role.ASSISTANT, (ToolCall("c", "f", '{"city": "<b>", "n": 1}'),))
    values = build_message_values((call,), MessageOptions(created.features), lambda text: text)
    assert created.render({"messages": values}, now=NOW) == '>>>f\n{"city": "<b>", "n": 1}'


@pytest.mark.parametrize(
    ("line", "shows_names"),
    [
        ("{{ m.content }}", False),
        ("{{ m['name'] }}: {{ m.content }}", True),
        ("{% if m.name is defined %}{{ m.name }}{% endif %}{{ m.content }}", True),
        ("{{ m.content }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}", False),
    ],
)
def test_template_features_detect_use_of_names(line: str, shows_names: bool) -> None:
    source = f"{{% for m in messages %}}{line}{{% endfor %}}"
    assert ChatTemplate(source).features.shows_names == shows_names


def test_template_features_detect_variables_read() -> None:
    thinking = {name for name in SOURCES if template(name).features.supports_thinking}
    effort = {name for name in SOURCES if template(name).features.supports_reasoning_effort}
    assert thinking == {"embedded", "qwen3"}
    assert effort == {"harmony"}
    assert template("qwen3").features.split_separators == {"</think>", "<think>"}
    assert ChatTemplate("{{ messages[0].content | replace('a', '') }}").features.replaces_text


def test_load_template_embedded_model_directory() -> None:
    loaded = load_template(EMBEDDED)
    assert loaded is not None
    assert loaded.special_tokens["eos_token"] == "<|im_end|>"
    assert loaded.features.supports_tools


def test_load_template_from_tokenizer_config(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "chat_template": "{{ bos_token }}x",
        "bos_token": {"content": "<s>", "special": True},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_template(tmp_path)
    assert loaded is not None
    assert loaded.render({}, now=NOW) == "<s>x"
    assert load_template(tmp_path, "tool_use") is None


def test_load_template_selects_named_template(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    loaded = [load_template(tmp_path, name) for name in ("default", "tool_use", "rag")]
    assert [None if each is None else each.render({}, now=NOW) for each in loaded] == [
        "d",
        "t",
        None,
    ]


def test_load_template_prefers_processor_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "text", "bos_token": "<s>"}')
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ bos_token }}<image>"}')
    loaded = load_template(tmp_path)
    assert loaded is not None
    assert (loaded.source, dict(loaded.special_tokens)) == (
        "{{ bos_token }}<image>",
        {"bos_token": "<s>"},
    )
    assert load_template(tmp_path, "tool_use") is None


def test_load_template_missing_returns_none(tmp_path: Path) -> None:
    assert load_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer_config"):
        load_template(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('a\n'*9999)|indent(99999) }}",
        "{{ ('a\n'*9999)|indent('x' * 999) }}",
        "{{ ('a '*9999)|wordwrap(1, wrapstring='x' * 999) }}",
    ],
)
def test_template_widening_filters_charged_before_execution(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        ChatTemplate("{{ 'a\nb'|indent(2) }}{{ 'c d'|wordwrap(1) }}").render({}, now=NOW)
        == "a\n  bc\nd"
    )

    def make(*_: object) -> str:
        return "made"

    for name in ("do_indent", "do_wordwrap"):
        monkeypatch.setattr(f"dragoman.prompts.sandbox.{name}", make)
    with pytest.raises(RequestError, match="too much text"):
        ChatTemplate(source).render({}, now=NOW)


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ("{{ call.function.arguments }}", False),
        ("{{ call.function.arguments | tojson }}", False),
        # Functionary v3.2 concatenates the text of the arguments.
        ("{{ '>>>' + call.function.name + '\n' + call.function.arguments }}", True),
    ],
)
def test_template_features_detect_concatenated_arguments(arguments: str, needed: bool):
    source = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}" + arguments
    )
    assert (
        ChatTemplate(source + "{% endfor %}{% endfor %}").features.needs_string_arguments == needed
    )
