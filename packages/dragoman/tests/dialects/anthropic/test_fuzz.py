"""For any input the readers return a request or raise RequestError, never another
exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dragoman.core.errors import RequestError
from dragoman.dialects.anthropic import read_count_tokens, read_messages, render_anthropic_error
from dragoman.dialects.anthropic.content_blocks import (
    HOSTED_CALLS,
    HOSTED_RESULTS,
    IGNORED_TYPES,
    TOOL_CHANGES,
    VISIBLE_TYPES,
)
from dragoman.dialects.anthropic.wire import (
    MESSAGES,
    AnthropicWireTool,
    BlockSource,
    ToolChange,
    WireContentBlock,
)
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.dialects.tool_input import INVALID_JSON_KEY
from dragoman_check.rules.anthropic import check_error
from tests.pictures import PIXEL_URL

JsonObject = dict[str, Any]
Reader = Callable[[bytes, ReaderOptions], object]
READERS: list[Reader] = [read_messages, read_count_tokens]
OPTIONS = ReaderOptions(default_model="m")
BLOCKS = (
    *VISIBLE_TYPES,
    "thinking",
    "tool_use",
    "tool_result",
    "compaction",
    *TOOL_CHANGES,
    *HOSTED_CALLS,
    *HOSTED_RESULTS[:2],
    *IGNORED_TYPES,
)
TOOLS = (
    "custom",
    "bash_20250124",
    "computer_20251124",
    "text_editor_20250728",
    "web_search_20250305",
)
WORDS = (
    *BLOCKS,
    *TOOLS,
    "user",
    "assistant",
    "system",
    "base64",
    "url",
    "file",
    "content",
    "image/png",
    "text/plain",
)
MODES = (
    "enabled",
    "adaptive",
    "between_tools",
    "any",
    "tool",
    "tool_reference",
    "json_schema",
    "next_user_message",
)
URLS = (
    PIXEL_URL,
    "data:image/png;base64,AA==",
    "data:;base64,!",
    "http://x",
    "file:///etc/passwd",
    "AA==",
)
KEYS = sorted(
    {"role", "clear_at", "effort", "format", "schema", "budget_tokens", "display", "edits", "keep",
    INVALID_JSON_KEY}
    | set(WireContentBlock.__struct_fields__)
    | set(BlockSource.__struct_fields__)
    | set(ToolChange.__struct_fields__)
    | set(AnthropicWireTool.__struct_fields__)
)  # fmt: skip
NAMES = sorted(row.name for row in MESSAGES.rows)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from((*WORDS, *MODES, *URLS))
    | st.text(st.characters(), max_size=6)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
fields = st.dictionaries(st.sampled_from(KEYS), values, max_size=5)
OF_MESSAGES: dict[str, Any] = {"clear_at": values, "output_config": values}


@st.composite
def blocks(draw: DrawFn) -> JsonObject:
    return {**draw(fields), "type": draw(st.sampled_from(BLOCKS))}


@st.composite
def messages(draw: DrawFn) -> JsonObject:
    role = draw(st.sampled_from(("user", "assistant", "system")))
    content = draw(st.lists(blocks(), max_size=3) | values)
    return {
        **draw(st.fixed_dictionaries({}, optional=OF_MESSAGES)),
        "role": role,
        "content": content,
    }


@st.composite
def tools(draw: DrawFn) -> JsonObject:
    return {"name": "f", **draw(fields), "type": draw(st.sampled_from(TOOLS))}


@st.composite
def bodies(draw: DrawFn) -> JsonObject:
    body: JsonObject = {"max_tokens": draw(st.just(5) | values)}
    body["messages"] = draw(st.lists(messages(), max_size=3) | values)
    body["tools"] = draw(st.lists(tools(), max_size=2) | values)
    return body | draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=3))


def read(reader: Reader, body: bytes) -> None:
    """Parse a body. An error must be a short, printable 400; other exceptions are
    raised.
    """
    try:
        reader(body, OPTIONS)
    except RequestError as error:
        refusal = error
    else:
        return
    assert refusal.status == 400
    assert 0 < len(refusal.message) < 2_000
    check_error(json.loads(render_anthropic_error(refusal, "req_1")))


@pytest.mark.parametrize("reader", READERS)
@given(body=st.binary(max_size=200))
def test_readers_arbitrary_bytes_raise_only_request_error(reader: Reader, body: bytes):
    read(reader, body)


@pytest.mark.parametrize("reader", READERS)
@given(body=bodies())
def test_readers_arbitrary_json_raises_only_request_error(reader: Reader, body: object):
    """json.dumps writes NaN, Infinity and lone surrogates too."""
    read(reader, json.dumps(body).encode())


@pytest.mark.parametrize("reader", READERS)
@given(body=bodies(), cut=st.integers(0, 400), noise=st.binary(max_size=3))
def test_readers_damaged_json_raises_only_request_error(
    reader: Reader, body: object, cut: int, noise: bytes
):
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    read(reader, data[:cut] + noise + data[cut + 1 :])
