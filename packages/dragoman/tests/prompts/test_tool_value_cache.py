"""The cache of the values of tools, and renderings that share its values."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.prompts.reference import NOW
from tests.prompts.templates import SOURCES, template
from tests.prompts.test_render import TOKENIZERS

from dragoman.core.errors import RequestError
from dragoman.core.message import FunctionTool, Message, Role, Text, Tool
from dragoman.core.request import Conversation
from dragoman.prompts.chat_template import ChatTemplate, TemplateLimits
from dragoman.prompts.render import Renderer
from dragoman.prompts.template_messages import build_tool_values
from dragoman.prompts.tool_value_cache import ToolValueCache

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}}


def build_tools(name: str) -> tuple[Tool, ...]:
    return (FunctionTool(name, "finds a value", json.dumps(SCHEMA)),)


class Conversions:
    """Counts the strings that a cache converts."""

    def __init__(self, max_chars: int) -> None:
        self.count = 0
        self.cache = ToolValueCache(self._visit, max_chars)

    def _visit(self, text: str) -> str:
        self.count += 1
        return text

    def count_for(self, owner: str | None, tools: tuple[Tool, ...]) -> int:
        before = self.count
        values = self.cache.find_or_build(owner, tools).values
        count = self.count - before
        assert values == build_tool_values(tools, str)
        return count


def test_tool_value_cache_entry_per_owner_and_tools() -> None:
    conversions = Conversions(10_000)
    assert conversions.count_for("a", build_tools("f"))
    assert not conversions.count_for("a", build_tools("f"))
    assert conversions.count_for("a", build_tools("g"))
    assert conversions.count_for("b", build_tools("f"))
    assert conversions.count_for(None, build_tools("f"))
    assert not conversions.count_for("a", ())


def test_tool_value_cache_full_evicts_least_recently_used() -> None:
    size = len(msgspec.json.encode(build_tools("a")))
    conversions = Conversions(2 * size)
    for name in "ab":
        conversions.count_for("", build_tools(name))
    assert not conversions.count_for("", build_tools("a"))
    assert conversions.count_for("", build_tools("c"))
    assert [bool(conversions.count_for("", build_tools(name))) for name in "acb"] == [
        False,
        False,
        True,
    ]
    assert conversions.cache.n_chars <= 2 * size
    # More than the whole cache.
    large = tuple(tool for name in "def" for tool in build_tools(name))
    assert all(conversions.count_for("", large) for _ in range(2))


@pytest.mark.parametrize("name", SOURCES)
def test_render_same_tools_again_gives_same_prompt(name: str) -> None:
    renderer = Renderer(template(name), TOKENIZERS["byte level"])
    tools = build_tools("find")
    for text in ("Hello", "Another <|im_end|> question"):
        conversation = Conversation((Message(Role.USER, (Text(text),)),), tools)
        plain = renderer.render(conversation, now=NOW)
        cached = [renderer.render(conversation, now=NOW, cache_owner="") for _ in range(2)]
        assert cached == [plain, plain]


TOOL_FORMS = """\
{%- for message in messages %}{{ message.content | length }}{% endfor %}
{%- for tool in tools %}
    {{- tool | tojson }}{{ tool | tojson(indent=2) }}{{ tool | tojson(separators=(',', ':')) }}
    {{- tool.function | tojson(sort_keys=true) }}{{ tool.function | tojson(ensure_ascii=true) }}
{%- endfor %}
"""


def test_render_cached_tools_in_each_form_of_json() -> None:
    renderer = Renderer(ChatTemplate(TOOL_FORMS), TOKENIZERS["byte level"])
    tools = build_tools("find_é")
    conversation = Conversation((Message(Role.USER, (Text("Hello"),)),), tools)
    plain = renderer.render(conversation, now=NOW)
    cached = [renderer.render(conversation, now=NOW, cache_owner="") for _ in range(3)]
    assert cached == [plain] * 3


def test_render_cached_tools_take_same_budget() -> None:
    conversation = Conversation((Message(Role.USER, (Text("Hello"),)),), build_tools("find"))
    outcomes: list[tuple[bool, ...]] = []
    for owner in (None, ""):
        fits: list[bool] = []
        for characters in range(1000, 4000, 50):
            limits = TemplateLimits(characters=characters, per_character=0)
            renderer = Renderer(ChatTemplate(TOOL_FORMS, limits=limits), TOKENIZERS["byte level"])
            for _ in range(2):
                try:
                    renderer.render(conversation, now=NOW, cache_owner=owner)
                except RequestError:
                    fits.append(False)
                else:
                    fits.append(True)
        outcomes.append(tuple(fits))
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0]) == {False, True}


def test_render_template_cannot_change_shared_tools() -> None:
    source = "{{ tools[0].function.update({'name': 'other'}) }}"
    renderer = Renderer(ChatTemplate(source), TOKENIZERS["byte level"])
    conversation = Conversation((Message(Role.USER, (Text("Hello"),)),), build_tools("find"))
    with pytest.raises(RequestError):
        renderer.render(conversation, now=NOW, cache_owner="")
