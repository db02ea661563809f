"""For any input the reader returns a ResponsesCall or raises RequestError, never
another exception.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dragoman.core.errors import RequestError
from dragoman.dialects.interfaces import Header, Profile, ReaderOptions
from dragoman.dialects.openai_errors import render_openai_error
from dragoman.dialects.responses import assign_ids, read_responses
from dragoman.dialects.responses.item_reader import (
    COMPACTION_TRIGGER,
    HOSTED_TYPES,
    PART_TYPES,
    READ_TYPES,
    REFERENCE_TYPES,
)
from dragoman.dialects.responses.wire import (
    RESPONSES,
    ResponsesContentPart,
    ResponsesNamedTool,
    ResponsesWireTool,
    WireItem,
)
from tests.pictures import PIXEL_URL

from ..sealing_key import ReadableSealingKey
from .bodies import with_rows

JsonObject = dict[str, Any]
SEALED = ReaderOptions(default_model="m", sealing_key=ReadableSealingKey())
KINDS = (*READ_TYPES, *REFERENCE_TYPES, *HOSTED_TYPES[:6])
TOOLS = ("function", "custom", "namespace", "web_search", "allowed_tools")
WORDS = (
    *KINDS,
    *PART_TYPES,
    *TOOLS,
    "user",
    "assistant",
    "developer",
    "auto",
    "none",
    "required",
    "completed",
    "grammar",
)
URLS = (PIXEL_URL, "data:;base64,!", "http://x", "file:///etc/passwd", "AA==", "json_schema")
KEYS = sorted(
    {
        "effort",
        "summary",
        "format",
        "schema",
        "verbosity",
        "syntax",
        "definition",
        "mode",
        "url",
        "stdout",
        "id",
    }
    | set(ResponsesContentPart.__struct_fields__)
    | set(WireItem.__struct_fields__)
    | set(ResponsesWireTool.__struct_fields__)
    | set(ResponsesNamedTool.__struct_fields__)
)
NAMES = sorted(row.name for row in RESPONSES.rows)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from((*WORDS, *URLS))
    | st.text(st.characters(), max_size=6)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
texts = st.text(st.characters(), max_size=6)
parts: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_TYPES), "text": texts},
    optional={key: texts for key in ("refusal", "image_url", "file_id")},
)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "role": st.sampled_from(("user", "assistant", "system", "developer")),
    "content": texts | st.lists(parts, max_size=2) | st.none(),
    "summary": st.lists(parts, max_size=2),
    "output": texts | st.lists(parts, max_size=2),
    "call_id": texts,
    "name": texts,
    "namespace": texts,
    "id": texts,
    "arguments": texts | values,
    "encrypted_content": texts,
}


@st.composite
def items(draw: DrawFn) -> JsonObject:
    likely = draw(st.fixed_dictionaries({}, optional=LIKELY))
    odd = draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=1))
    return {**likely, **odd, "type": draw(st.sampled_from(KINDS) | st.none())}


@st.composite
def tools(draw: DrawFn) -> JsonObject:
    tool = {
        "name": draw(st.sampled_from(("f", "g"))),
        **draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=2)),
    }
    kind = draw(st.sampled_from(TOOLS))
    inner = [{"type": "function", "name": "h"}, tool]
    return {**tool, "type": kind, **({"tools": inner} if kind == "namespace" else {})}


@st.composite
def bodies(draw: DrawFn) -> JsonObject:
    body: JsonObject = {"input": draw(st.lists(items(), max_size=4) | values)}
    body["tools"] = draw(st.lists(tools(), max_size=2) | values)
    return body | draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=3))


FOUND: list[JsonObject] = [
    {"type": "function", "name": "k"},
    {"type": "namespace", "name": "g", "tools": [{"type": "custom", "name": "n"}]},
]
MUST: dict[str, JsonObject] = {
    "item_reference": {"id": "i3"},
    "compaction": {"encrypted_content": "compaction:ab"},
    "additional_tools": {"tools": FOUND},
    "configuration_update": {"reasoning": {"effort": "low"}},
    "shell_call": {"action": {"commands": ["ls\u2028"]}},
    "local_shell_call": {"action": {"type": "exec", "command": []}},
    "apply_patch_call": {"operation": {"type": "delete_file", "path": "é"}},
    "computer_call": {"actions": [{"type": "wait"}]},
    "computer_call_output": {"output": {"type": "computer_screenshot", "image_url": PIXEL_URL}},
    "tool_search_call": {"arguments": {"query": "x"}},
    "tool_search_output": {"tools": FOUND},
}
# Valid items and tools, so that their conversion is tested rather than their rejection.
phrases = st.text('ab é😀"\\\n\x85\u2028', max_size=4)
good_parts: st.SearchStrategy[Any] = st.sampled_from(
    (
        {"type": "input_image", "image_url": PIXEL_URL},
        {"type": "input_image", "file_id": "file-1", "detail": "low"},
        {"type": "input_file", "file_data": "AA==", "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    )
) | st.fixed_dictionaries(
    {"type": st.sampled_from(PART_TYPES[:6]), "text": phrases, "refusal": phrases}
)
good_items: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "type": st.sampled_from([kind for kind in KINDS if kind != COMPACTION_TRIGGER]),
        "role": st.sampled_from(("user", "assistant", "assistant", "system", "developer")),
        "content": phrases | st.lists(good_parts, max_size=2),
        "output": phrases | st.lists(good_parts, max_size=2),
        "call_id": st.sampled_from(("c1", "c2")),
        "name": st.sampled_from(("h", "f")),
        "arguments": phrases,
        "input": phrases,
        "encrypted_content": st.text("ab", min_size=1, max_size=3),
    },
    optional={"id": st.sampled_from(("i1", "i2", "")), "namespace": st.sampled_from(("g", "k")),
    "status": phrases,
              "summary": st.lists(good_parts, max_size=2), "phase": st.just("commentary")},
).map(lambda item: item | MUST.get(str(item["type"]), {}))  # fmt: skip
good_bodies: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"input": st.lists(good_items, min_size=1, max_size=5)},
    optional={
        "instructions": phrases,
        "tools": st.just(
            [{"type": "namespace", "name": "g", "tools": [{"type": "function", "name": "h"}]}]
        ),
    },
)


@given(good_bodies)
def test_stored_input_gives_equal_conversation(body: JsonObject):
    parsed = read_responses(json.dumps(body).encode(), SEALED)
    stored = assign_ids(parsed.input, "resp_1")
    again = read_responses(b'{"input":[%s]}' % b",".join(row for _, row in stored), SEALED)
    assert len(stored) == len(parsed.input) == len(body["input"])
    assert with_rows(parsed, *(row for _, row in stored)).call.requests == parsed.call.requests
    assert parsed.with_history([], parsed.input).call.requests == parsed.call.requests
    assert tuple((item.id, item.render(item.id or "")) for item in again.input) == stored


def read(body: bytes) -> None:
    """Parse a body. An error must be a short, printable 400; other exceptions are
    raised.
    """
    try:
        parsed = read_responses(body, SEALED)
    except RequestError as error:
        _check(error)
        return
    for id, row in assign_ids(parsed.input, "resp_1"):
        assert json.loads(row)["id"] == id
    rows = [row for _, row in assign_ids(parsed.input, "resp_1")]
    # A hosted tool's call is named after its item, which gets its id when it is stored.
    if all(item.id or item.type not in HOSTED_TYPES for item in parsed.input):
        assert with_rows(parsed, *rows).call.requests == parsed.call.requests
    begun = parsed.call.writer(Header("resp_1", 1, "m")).keepalive.decode()
    for event in begun.split("\n\n")[:-1]:
        assert len(event.splitlines()) == 2
        json.loads(event.split("data: ", 1)[1])


def _check(error: RequestError) -> None:
    assert error.status == 400
    assert 0 < len(error.message) < 2_000
    render_openai_error(error, Profile.OPENAI).decode()


@given(body=st.binary(max_size=200))
def test_reader_arbitrary_bytes_raise_only_request_error(body: bytes):
    read(body)


@given(body=bodies())
def test_reader_arbitrary_json_raises_only_request_error(body: object):
    """json.dumps writes NaN, Infinity and lone surrogates too."""
    read(json.dumps(body).encode())


@given(body=bodies(), cut=st.integers(0, 400), noise=st.binary(max_size=3))
def test_reader_damaged_json_raises_only_request_error(body: object, cut: int, noise: bytes):
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    read(data[:cut] + noise + data[cut + 1 :])
