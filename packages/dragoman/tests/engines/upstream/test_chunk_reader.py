"""Chunks of all kinds of upstreams become one legal stream of events."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import EngineError, RequestError
from dragoman.core.event_grammar import check_events
from dragoman.core.events import Alternative, Event, FinishReason, PromptTokens, Started, Token
from dragoman.core.message import Reasoning, Text, ToolCall
from dragoman.core.reply import Reply, ReplyBuilder
from dragoman.core.request import GenerateRequest
from dragoman.engines.upstream.chunk_reader import ChunkReader
from dragoman.engines.upstream.wire import UpstreamChunk


def events(*chunks: dict[str, Any], choices: int = 1) -> list[Event]:
    numbers = count()
    reading = ChunkReader(
        GenerateRequest("m", "hi", choices=choices), lambda: f"made_{next(numbers)}"
    )
    output = [
        event for chunk in chunks for event in reading.feed(msgspec.convert(chunk, UpstreamChunk))
    ]
    return list(check_events([*output, *reading.close()]))


def reply(*chunks: dict[str, Any], choices: int = 1) -> Reply:
    fold = ReplyBuilder()
    for event in events(*chunks, choices=choices):
        fold.feed(event)
    return fold.build()


def delta(index: int = 0, /, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields}]}


def end(reason: str = "stop", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason, **fields}]}


def call(
    index: int | None, arguments: str, id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def test_feed_accepts_both_reasoning_field_names() -> None:
    (choice,) = reply(
        delta(reasoning="a"), delta(reasoning_content="b"), delta(content="c"), end()
    ).choices
    assert choice.parts == (Reasoning("ab"), Text("c"))


def detail(text: str, signature: str) -> dict[str, Any]:
    return {"type": "reasoning.text", "text": text, "signature": signature}


def test_signatures_stay_with_their_texts() -> None:
    fields = {"reasoning": "ab", "reasoning_details": [detail("a", "1"), detail("b", "2")]}
    sealed = (Reasoning("a", seal="anthropic:1"), Reasoning("b", seal="anthropic:2"))
    whole = {"choices": [{"index": 0, "message": fields, "finish_reason": "stop"}]}
    assert reply(whole).choices[0].parts == sealed
    assert reply(delta(**fields), end()).choices[0].parts == sealed
    assert reply(delta(role="assistant"), end(message=fields)).choices[0].parts == sealed


def test_signature_in_final_message_is_in_reasoning() -> None:
    message = {"reasoning": "hm", "reasoning_details": [detail("hm", "1")]}
    (choice,) = reply(delta(reasoning="hm"), end(message=message)).choices
    assert choice.parts == (Reasoning("hm", seal="anthropic:1"),)
    streamed = delta(reasoning="hm", reasoning_details=message["reasoning_details"])
    (choice,) = reply(streamed, end(message=message)).choices
    assert choice.parts == (Reasoning("hm", seal="anthropic:1"),)


def test_started_contains_usage_of_first_chunk() -> None:
    usage = {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    assert events({**delta(content="a"), "usage": usage}, end())[0] == Started(7, 4)


@pytest.mark.parametrize("zeros", [{"prompt_tokens": 0, "completion_tokens": 0}, {}])
def test_zeros_do_not_replace_known_usage(zeros: dict[str, Any]) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    known = {"prompt_tokens": 9, "completion_tokens": 3, **details}
    zeros = {**zeros, "prompt_tokens_details": {"cached_tokens": 0}}
    chunks = ({**delta(content="a"), "usage": known}, {**end(), "usage": zeros})
    usage = reply(*chunks).usage
    assert (usage.prompt, usage.completion, usage.cached) == (9, 3, 4)


def test_missing_usage_details_stay_none() -> None:
    usage = reply(delta(content="a"), end()).usage
    assert (usage.cached, usage.reasoning) == (None, None)


def test_empty_finish_reason_does_not_finish_choice() -> None:
    """SGLang 0.4 and former versions of Ollama send it in all chunks but the last."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": ""}]}
    assert reply(chunk, chunk, end()).choices[0].parts == (Text("aa"),)
    with pytest.raises(EngineError, match="cut off"):
        reply(chunk)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("end_turn", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("max_tokens", FinishReason.LENGTH),
        ("model_length", FinishReason.CONTEXT_LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
    ],
)
def test_finish_reasons_are_mapped(word: str, reason: FinishReason) -> None:
    assert reply(end(word)).choices[0].reason is reason


def test_unknown_finish_reason_raises() -> None:
    with pytest.raises(EngineError, match="insufficient"):
        reply(delta(content="a"), end("insufficient_system_resource"))


@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
def test_matched_stop_string_is_reported(field: str) -> None:
    assert reply(end(**{field: "END"})).choices[0].stop == "END"


def test_stream_without_finish_reason_raises() -> None:
    with pytest.raises(EngineError, match="was cut off"):
        reply(delta(content="a"))
    with pytest.raises(EngineError, match="was cut off"):
        reply()
    with pytest.raises(EngineError, match="was cut off"):
        reply(delta(content="a"), end(), choices=2)


def test_non_streamed_response_is_read_as_one_chunk() -> None:
    message = {"content": "Hi", "tool_calls": [call(None, "{}", "c", "f")]}
    (choice,) = reply(
        {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    ).choices
    assert choice.parts == (Text("Hi"), ToolCall("c", "f", "{}"))


def test_error_chunk_type_depends_on_stream_start() -> None:
    refusal = {
        "error": {"message": "No.", "type": "invalid_request_error", "param": "n", "code": 400}
    }
    with pytest.raises(RequestError, match="No") as found:
        events(refusal)
    assert found.value.param == "n"
    with pytest.raises(EngineError, match="No"):
        events(delta(content="a"), refusal)


@given(st.lists(st.sampled_from("ab"), min_size=1).map("".join), st.data())
def test_interleaved_tool_calls_are_emitted_sequentially(order: str, data: st.DataObject) -> None:
    """Two calls whose deltas arrive in any order: each is emitted whole, in the order
    of their starts.
    """
    arguments = {"a": '{"x": "}{", "y": [1]}', "b": '{"z": {}}'}
    left = dict(arguments)
    chunks = [
        delta(tool_calls=[call("ab".index(which), "", f"id_{which}", which)])
        for which in dict.fromkeys(order)
    ]
    for which in [*order, *dict.fromkeys(order)]:
        last = which not in order[1:] or len(chunks) > len(order)
        size = len(left[which]) if last else data.draw(st.integers(0, len(left[which])))
        chunks.append(delta(tool_calls=[call("ab".index(which), left[which][:size])]))
        left[which] = left[which][size:]
    rest = [
        delta(tool_calls=[call("ab".index(which), left[which])])
        for which in dict.fromkeys(order)
        if left[which]
    ]
    (choice,) = reply(*chunks, *rest, end("tool_calls")).choices
    assert choice.list_calls() == tuple(
        ToolCall(f"id_{which}", which, arguments[which]) for which in dict.fromkeys(order)
    )


def test_sequential_tool_calls_are_emitted_immediately() -> None:
    reading = ChunkReader(GenerateRequest("m", "hi"), lambda: "made")
    reading.feed(msgspec.convert(delta(tool_calls=[call(0, '{"a":', "c", "f")]), UpstreamChunk))
    assert len(reading.feed(msgspec.convert(delta(tool_calls=[call(0, "1}")]), UpstreamChunk))) == 1
    assert (
        len(
            reading.feed(msgspec.convert(delta(tool_calls=[call(1, "{", "d", "g")]), UpstreamChunk))
        )
        == 2
    )


def test_tool_call_without_id_gets_generated_id() -> None:
    assert (
        reply(delta(tool_calls=[call(0, "{}", None, "f")]), end()).choices[0].list_calls()[0].id
        == "made_0"
    )


def test_tool_calls_with_same_index_are_separated_by_id() -> None:
    chunks = [delta(tool_calls=[call(0, "{}", id, "f")]) for id in ("one", "two")]
    assert [each.id for each in reply(*chunks, end()).choices[0].list_calls()] == ["one", "two"]


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("id", ["", None])
def test_tool_calls_without_ids_are_separated_by_name(index: int | None, id: str | None) -> None:
    calls = [call(index, '{"a": 1}', id, "f"), call(index, '{"a": 2}', id, "f")]
    for chunks in ([delta(tool_calls=calls)], [delta(tool_calls=[one]) for one in calls]):
        found = reply(*chunks, end()).choices[0].list_calls()
        assert [(one.id, one.arguments) for one in found] == [
            ("made_0", '{"a": 1}'),
            ("made_1", '{"a": 2}'),
        ]


def test_repeated_tool_call_name_does_not_start_new_call() -> None:
    chunks = [delta(tool_calls=[call(0, text, "c", "f")]) for text in ('{"a":', "1}", "", "\n")]
    (found,) = reply(*chunks, end()).choices[0].list_calls()
    assert found.arguments.strip() == '{"a":1}'


def test_tool_call_without_name_raises() -> None:
    for others in ([], [call(1, "{}", "d", "f")]):
        with pytest.raises(EngineError, match="without a name"):
            reply(delta(tool_calls=[call(0, "{}", "c"), *others]), end())


def test_logprobs_tokens_have_ids_bytes_and_alternatives() -> None:
    entry: dict[str, Any] = {
        "token": "token_id:9",
        "logprob": -0.5,
        "bytes": [0xF0, 0x9F],
        "top_logprobs": [],
    }
    entry["top_logprobs"] = [{**entry, "token": "token_id:8", "top_logprobs": None}]
    chunk = {
        "choices": [
            {
                "index": 0,
                "delta": {"content": "x"},
                "logprobs": {"content": [entry]},
                "token_ids": [9],
            }
        ]
    }
    (token,) = reply(chunk, end()).choices[0].tokens
    assert (token.id, token.text, token.raw, token.top[0].id) == (9, "\ufffd", b"\xf0\x9f", 8)


def test_final_chunk_tokens_are_trailing_tokens() -> None:
    (choice,) = reply(delta(content="a"), end(token_ids=[2])).choices
    assert choice.trailing_tokens == (Token(2, ""),)


@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.text(max_size=4) | st.integers(), st.lists, max_leaves=4).map(
        lambda value: json.dumps({"choices": value, "usage": value}).encode()
    )
)
def test_feed_arbitrary_json_raises_only_known_errors(data: bytes) -> None:
    try:
        chunk = msgspec.json.decode(data, type=UpstreamChunk)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    reading = ChunkReader(GenerateRequest("m", "hi"), lambda: "made")
    try:
        reading.feed(chunk)
        reading.close()
    except (EngineError, RequestError):
        pass


def read_prompt(ids: list[int], rows: Any, top: int = 1) -> tuple[Token, ...]:
    request = GenerateRequest("m", "hi", prompt_logprobs=top, return_prompt=True)
    choice = {"index": 0, "text": "!", "prompt_token_ids": ids, "prompt_logprobs": rows}
    [_, prompt, *_] = ChunkReader(request, str).feed(
        msgspec.convert({"choices": [choice]}, UpstreamChunk)
    )
    assert isinstance(prompt, PromptTokens)
    return prompt.tokens


def test_prompt_token_is_in_alternatives_only_by_rank() -> None:
    own = {"logprob": -3.0, "rank": 9, "decoded_token": "b"}
    best = {"logprob": -0.5, "rank": 1, "decoded_token": "c"}
    first, second, third = read_prompt([7, 8, 9], [None, {"8": own, "3": best}, {"9": best}])
    assert (first.id, first.logprob) == (7, None)
    assert (second.logprob, second.rank, second.top) == (-3.0, 9, (Alternative(3, "c", -0.5),))
    assert third.top == (Alternative(9, "c", -0.5),)
    assert read_prompt([9, 9], [None, {"9": best}], top=0)[1].top == ()


def test_read_prompt_skips_invalid_token_ids() -> None:
    entry = {"logprob": -0.5, "rank": 1}
    for key in ("9" * 5000, "x", "-1"):
        assert [one.id for one in read_prompt([7, 8], [None, {"8": entry, key: entry}])[1].top] == [
            8
        ]


@pytest.mark.parametrize("rows", [None, [], [None], [None, {"5": {"logprob": -1.0}}]])
def test_read_prompt_logprobs_of_other_prompt_raise(rows: Any) -> None:
    with pytest.raises(EngineError, match="did not return the logprobs of the prompt"):
        read_prompt([7, 8], rows)
