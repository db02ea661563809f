"""Chunks that repeat all bytes but the text of an earlier one, and near misses of them,
are read as if each were decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import DragomanError
from dragoman.core.events import Event
from dragoman.core.request import GenerateRequest
from dragoman.engines.upstream.chunk_reader import ChunkReader
from dragoman.engines.upstream.chunk_template import ChunkTemplate
from dragoman.engines.upstream.event_decoding import build_decoder, decode_data
from dragoman.engines.upstream.wire import UpstreamChunk

DECODER = build_decoder(UpstreamChunk)
VLLM = (
    b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":null}]}'
)

END = [
    b'{"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}' % index for index in range(2)
]
TEXTS = st.one_of(
    st.text(min_size=1, max_size=6).map(json.dumps),
    st.text(min_size=1, max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(
        (
            '"a"', '"b"', '"\\n"', '""', "null", '"\\ud83d"', '"\\ude00"', '"\\u0061"', '"\t"',
            '"\0"', '"a","content":"b"', '"a"}},{"index":1,"delta":{"content":"b"', '"content"',
            '"\udcff"', '"\udce9a"', '"a\\"', "1", '[{"type":"text","text":"a"}]', "",
        )
    ),
)  # fmt: skip
"""JSON strings, and bytes that are none; surrogates are bytes that are not UTF-8."""
KEYS = st.sampled_from(('"content"', '"reasoning"', '"reasoning_content"', '"conten\\u0074"'))
DELTA_FIELDS = (
    '"role":"assistant"', '"content":null', '"content":""', '"content":"a"', '"reasoning":""',
    '"reasoning":"a"', '"reasoning_content":"a"', '"tool_calls":[]', '"refusal":null',
    '"refusal":"r"', '"x":{"content":"a"}', '"content" :"a"',
    '"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]',
    '"reasoning_details":[{"type":"reasoning.text","text":"t"}]',
)  # fmt: skip
CHOICE_FIELDS = (
    '"index":1', '"index":2', '"finish_reason":null', '"finish_reason":"stop"',
    '"finish_reason":""', '"logprobs":null', '"token_ids":[7]', '"token_ids":[]',
    '"logprobs":{"content":[{"token":"a","logprob":-1.0}]}', '"text":"t"',
    '"message":{"content":"whole"}', '"delta":{}', '"usage":{"prompt_tokens":3}',
    '"error":{"message":"e"}', '"stop_reason":null', '"text":"content"',
)  # fmt: skip
CHUNK_FIELDS = (
    '"id":"1"', '"created":1', '"model":"content"', '"model":"\\u00e9"', '"x":NaN',
    '"usage":null', '"usage":{"prompt_tokens":3,"completion_tokens":1}',
    '"usage":{"prompt_tokens":4,"completion_tokens":2}', '"error":null',
    '"error":{"message":"e"}', '"choices":[]', '"object":"chat.completion.chunk"',
)  # fmt: skip
OTHER_CHOICES = ("", "", ",null", ',{"index":1,"delta":{"content":"o"}}')


@st.composite
def shapes(draw: st.DrawFn) -> str:
    """A chunk with `<text>` for its text, and up to two more fields at one place: also
    some that are twice in it, or make it an error.
    """

    def join(place: int, fields: Sequence[str], *wanted: str) -> str:
        more = draw(st.lists(st.sampled_from(fields), max_size=2)) if place == changed else []
        return "{" + ",".join(draw(st.permutations([*wanted, *more]))) + "}"

    changed = draw(st.integers(0, 3))
    delta = join(0, DELTA_FIELDS, f"{draw(KEYS)}:<text>")
    choice = join(1, CHOICE_FIELDS, f'"delta":{delta}')
    others = draw(st.sampled_from(OTHER_CHOICES)) if changed == 3 else ""
    chunk = join(2, CHUNK_FIELDS, f'"choices":[{choice}{others}]')
    return chunk.replace('":', draw(st.sampled_from(('":', '": ', '" : '))))


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Chunks of few shapes, so that most are repeated, and some lack a byte."""
    drawn = draw(st.lists(shapes(), min_size=1, max_size=2))
    chunks: list[bytes] = []
    for _ in range(draw(st.integers(4, 10))):
        chunk = draw(st.sampled_from(drawn)).replace("<text>", draw(TEXTS))
        data = chunk.encode("utf-8", "surrogateescape")
        if draw(st.sampled_from((False,) * 9 + (True,))):
            cut = draw(st.integers(0, len(data) - 1))
            data = data[:cut] + data[cut + 1 :]
        chunks.append(data)
    return chunks + END * draw(st.integers(0, 1))


def build_reader() -> ChunkReader:
    numbers = count()
    return ChunkReader(GenerateRequest("m", "hi", choices=2), lambda: f"made_{next(numbers)}")


def collect(
    reader: ChunkReader, read: Callable[[bytes], list[Event]], chunks: Sequence[bytes]
) -> list[object]:
    """The events of each chunk and of the end; instead of an error, its message."""
    results: list[object] = []
    for step in (*[partial(read, chunk) for chunk in chunks], reader.close):
        try:
            results.append(step())
        except DragomanError as error:
            results.append((type(error), error.message))
    return results


def assert_equals_decoded(chunks: Sequence[bytes]) -> None:
    reader = build_reader()
    decoding = build_reader()
    expected = collect(
        decoding, lambda data: decoding.feed(decode_data(DECODER, data, "chunk")), chunks
    )
    assert collect(reader, reader.read, chunks) == expected


@given(streams())
def test_repeated_chunks_equal_decoded_chunks(chunks: list[bytes]) -> None:
    assert_equals_decoded(chunks)


@pytest.mark.parametrize(
    "choice",
    [
        '{"delta":{"content":<text>},"logprobs":null}',
        '{"index":1,"delta":{"role":"assistant","reasoning_content":<text>}}',
        '{"delta":{"content":"","reasoning":<text>,"reasoning_content":null}}',
        '{"delta":{"content":<text>,"content":"z"}}',
        '{"delta":{"content":"z","content":<text>}}',
        '{"delta":{"content":<text>,"conten\\u0074":"z"}}',
        '{"delta":{"content" :"a","x":{"content":<text>}}}',
        '{"delta":{"content":"a","reasoning":<text>}}',
        '{"delta":{"content":<text>,"reasoning":"a"}}',
        '{"delta":{"reasoning":<text>,"reasoning_content":"a"}}',
        '{"delta":{"reasoning":"a","reasoning_content":<text>}}',
        '{"delta":{"content":<text>}},{"index":1,"delta":{"reasoning":"o"}}',
        '{"delta":{"content":<text>},"token_ids":[7]}',
        '{"delta":{"content":<text>},"logprobs":{"tokens":["a"],"token_logprobs":[-1.0]}}',
        '{"delta":{"content":<text>},"message":{"reasoning":"whole"}}',
        '{"delta":{"content":<text>},"finish_reason":"length"}',
        '{"delta":{"content":<text>},"usage":{"prompt_tokens":3}}',
        '{"delta":{"content":<text>},"error":{"message":"e"}}',
        '{"delta":{"content":<text>,"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}}',
    ],
)
def test_repeated_choice_equals_decoded_choice(choice: str) -> None:
    chunk = b'{"choices":[%b]}' % choice.encode()
    texts = (b'"a"', b'"a"', b'"b"', b'"\\n"', b'"\\ud83d"', b'"\\ude00"', b'"\xff"', b'""', b'"d"')
    assert_equals_decoded([chunk.replace(b"<text>", text) for text in texts] + END)


def learn(data: bytes) -> ChunkTemplate:
    template = ChunkTemplate()
    template.learn(data, DECODER.decode(data))
    return template


def test_template_reads_text_of_repeated_chunk() -> None:
    template = learn(VLLM % b'"a"')
    for text in ("b", "é\n\"'\\", " \U0001f600"):
        assert template.read_text(VLLM % json.dumps(text).encode()) == text
        assert template.read_text(VLLM % json.dumps(text, ensure_ascii=False).encode()) == text


def test_template_leaves_other_chunks_to_decoder() -> None:
    template = learn(VLLM % b'"a"')
    for text in (b'""', b"null", b'"', b"", b'"a","content":"b"', b'"\\ud83d"', b'"\xff"', b'"\n"'):
        assert template.read_text(VLLM % text) == ""
    for old, new in ((b'"m"', b'"n"'), (b'"created":1', b'"created":2'), (b"null}", b'"stop"}')):
        assert template.read_text((VLLM % b'"b"').replace(old, new)) == ""


def test_template_ends_when_every_chunk_differs() -> None:
    template = ChunkTemplate()
    chunk = VLLM % b'"a"'
    for number in range(9):
        data = chunk.replace(b'"created":1', b'"created":%d' % number)
        assert template.read_text(data) == ""
        template.learn(data, DECODER.decode(data))
    template.learn(chunk, DECODER.decode(chunk))
    assert template.read_text(chunk) == ""
