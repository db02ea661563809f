"""Requests and responses of SGLang's /generate."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dragoman.core.errors import RequestError, Unsupported
from dragoman.core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    TextDelta,
    Token,
    Usage,
    WeightSpan,
)
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import (
    ContextFreeGrammar,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    Regex,
    SamplingOptions,
)
from dragoman.dialects.interfaces import GenerationCall, Header
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.sglang.reader import read_sglang
from dragoman.dialects.sglang.wire import SGLANG, SGLANG_PARAMS, SglangBody, SglangSamplingParams
from dragoman.dialects.sglang.writer import SglangRenderOptions, SglangWriter

from ..bodies import OPTIONS

HEADER = Header("gen-1", 7, "m")


def generate(params: object = None, **fields: object) -> GenerationCall:
    body = {"input_ids": [5, 6], "sampling_params": params, **fields}
    return read_sglang(msgspec.json.encode(body), OPTIONS)


def request(params: object = None, **fields: object) -> GenerateRequest:
    return generate(params, **fields).requests[0]


def test_sglang_defaults_apply_without_params():
    assert request() == GenerateRequest("tiny", (5, 6), limits=GenerationLimits(max_tokens=128))
    assert request({}) == request()
    nulls = dict.fromkeys(SglangSamplingParams.__struct_fields__, None)
    assert request(nulls).limits == GenerationLimits(), "null means no limit"


def test_missing_model_error_names_field():
    with pytest.raises(RequestError) as rejected:
        read_sglang(b'{"input_ids": [5]}', msgspec.structs.replace(OPTIONS, default_model=None))
    assert rejected.value.param == "model"


def test_sampling_params_are_parsed():
    parsed = request(
        {
            "n": 2,
            "temperature": 0.5,
            "top_k": -1,
            "sampling_seed": 3,
            "max_new_tokens": 9,
            "min_new_tokens": 2,
            "stop": "END",
            "stop_token_ids": [9],
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "regex": "a+",
        },
        return_logprob=True,
        top_logprobs_num=2,
        logprob_start_len=0,
        priority=3,
        extra_key="s",
        lora_path="sql",
    )
    assert parsed.sampling == SamplingOptions(temperature=0.5, top_k=0, seed=3)
    assert parsed.limits == GenerationLimits(
        max_tokens=9, min_tokens=2, stop=("END",), stop_token_ids=(9,), include_stop=True
    )
    assert (parsed.choices, parsed.logprobs, parsed.prompt_logprobs) == (2, 2, 2)
    assert (parsed.constraint, parsed.special_tokens_in_text) == (Regex("a+"), True)
    assert (parsed.model, parsed.priority, parsed.cache_salt) == ("sql", -3, "s")


def test_logprobs_exclude_prompt_unless_requested():
    assert request(return_logprob=True).prompt_logprobs is None
    assert request(return_logprob=True, logprob_start_len=-1).prompt_logprobs is None
    assert request(logprob_start_len=0).logprobs is None
    assert request(return_logprob=True).logprobs == 0


@pytest.mark.parametrize(
    ("params", "constraint"),
    [
        ({"json_schema": '{"type":"object"}'}, JsonSchema('{"type":"object"}')),
        ({"json_schema": {"type": "object"}}, JsonSchema('{"type":"object"}')),
        ({"ebnf": 'root ::= "a"'}, ContextFreeGrammar('root ::= "a"', "gbnf")),
    ],
)
def test_constraints_are_parsed(params: dict[str, object], constraint: object):
    assert request(params).constraint == constraint


def test_multiple_prompts_become_multiple_requests():
    assert [each.prompt for each in generate(input_ids=[[1], [2, 3]]).requests] == [(1,), (2, 3)]
    assert [each.prompt for each in generate(input_ids=None, text=["a", "b"]).requests] == [
        "a",
        "b",
    ]
    assert all(each.return_prompt for each in generate(input_ids=[[1], [2, 3]]).requests)


@pytest.mark.parametrize(
    ("params", "fields", "param"),
    [
        ({}, {"input_ids": None}, "text"),
        ({}, {"text": "a"}, "input_ids"),
        ({}, {"input_ids": []}, "input_ids"),
        ({}, {"input_ids": [1, [2]]}, "input_ids"),
        ({}, {"input_ids": [[1], []]}, "input_ids"),
        ({}, {"input_ids": None, "text": []}, "text"),
        ({}, {"return_logprob": [True]}, "return_logprob"),
        ({}, {"top_logprobs_num": 21}, "top_logprobs_num"),
        ({"temperature": -1}, {}, "sampling_params.temperature"),
        ({"n": 129}, {}, "sampling_params.n"),
        ({"max_new_tokens": 0}, {}, "sampling_params.max_new_tokens"),
        ({"max_new_tokens": 1, "min_new_tokens": 2}, {}, "sampling_params.min_new_tokens"),
        ({"regex": "a", "ebnf": "b"}, {}, "sampling_params.ebnf"),
        (["x"], {}, "sampling_params"),
    ],
)
def test_invalid_field_is_rejected_with_full_path(
    params: object, fields: dict[str, object], param: str
):
    with pytest.raises(RequestError) as caught:
        generate(params, **fields)
    assert caught.value.param == param


def test_honoured_parameters_match_struct_fields():
    for rules, body in ((SGLANG, SglangBody), (SGLANG_PARAMS, SglangSamplingParams)):
        honoured = {row.name for row in rules.rows if row.status is SupportStatus.HONOURED}
        assert honoured == set(body.__struct_fields__)


OTHERS = [
    row for row in (*SGLANG.rows, *SGLANG_PARAMS.rows) if row.status is not SupportStatus.HONOURED
]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: f"{row.dialect}-{row.name}")
def test_parameter_status_matches_reader_effect(row: ParameterSupport):
    def ask(value: object) -> GenerationCall:
        return (
            generate({row.name: value})
            if row.dialect == "sglang_params"
            else generate(**{row.name: value})
        )

    for harmless in (None, *row.harmless):
        assert ask(harmless).warnings == ()
    match row.status:
        case SupportStatus.REFUSED:
            with pytest.raises(Unsupported):
                ask({"x": 1})
        case SupportStatus.WARNED:
            assert ask({"x": 1}).warnings
        case _:
            assert ask({"x": 1}).unknown == ()


HI = Token(7, "Hi", -0.5, (Alternative(7, "Hi", -0.5), Alternative(8, "Ho", -1.5)), rank=1)
EOS = Token(2, "</s>", -0.25, (Alternative(2, "</s>", -0.25),), rank=1, special=True)
PROMPT = (Token(5, "a"), Token(6, "b", -2.0, (Alternative(9, "c", -1.0),), rank=2))
SPANS = (WeightSpan("one", 0, 1), WeightSpan("two", 1, 2))
EVENTS: tuple[Event, ...] = (
    Started(2, 1),
    PromptTokens(0, "ab", PROMPT),
    TextDelta(0, "Hi", (HI,)),
    ChoiceFinished(0, FinishReason.STOP, None, (EOS,), weights=SPANS),
    Finished(Usage(2, 2, 1)),
)


def render_stream(view: SglangRenderOptions) -> list[Any]:
    writer = SglangWriter(HEADER, view)
    stream = b"".join(writer.feed(event) for event in EVENTS)
    return [json.loads(line[6:]) for line in stream.decode().splitlines() if line]


def test_stream_events_are_cumulative():
    first, last = render_stream(SglangRenderOptions())
    assert (first["text"], first["output_ids"], first["meta_info"]["finish_reason"]) == (
        "Hi",
        [7],
        None,
    )
    assert last == {
        "text": "Hi",
        "output_ids": [7, 2],
        "meta_info": {
            "id": "gen-1",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "cached_tokens": 1,
            "reasoning_tokens": 0,
            "weight_version": "two",
            "weight_versions": [
                {"version": "one", "start": 0, "end": 1},
                {"version": "two", "start": 1, "end": 2},
            ],
        },
    }


def test_estimated_prompt_count_is_null_in_stream():
    writer = SglangWriter(HEADER)
    writer.feed(Started(50, is_estimate=True))
    output = writer.feed(TextDelta(0, "Hi", (HI,)))
    assert json.loads(output[6:])["meta_info"]["prompt_tokens"] is None


def test_last_event_has_counts_reported_at_end():
    events: list[Event] = [
        Started(50, is_estimate=True),
        TextDelta(0, "Hi", (HI,)),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(7, 1, 4)),
    ]
    writer = SglangWriter(HEADER)
    *_, last = b"".join(map(writer.feed, events)).strip().split(b"\n\n")
    builder = ReplyBuilder()
    builder.feed_all(events)
    answer = json.loads(last[6:])
    assert answer == json.loads(SglangWriter(HEADER).render_full(builder.build()))
    assert (answer["meta_info"]["prompt_tokens"], answer["meta_info"]["cached_tokens"]) == (7, 4)


def test_logprobs_are_rendered_as_triples():
    *_, last = render_stream(
        SglangRenderOptions(logprobs=1, token_texts=True, logprob_start=0, prompt_token_ids=True)
    )
    meta = last["meta_info"]
    assert last["prompt_token_ids"] == [5, 6]
    assert meta["output_token_logprobs"] == [[-0.5, 7, "Hi"], [-0.25, 2, "</s>"]]
    assert meta["output_top_logprobs"] == [[[-0.5, 7, "Hi"]], [[-0.25, 2, "</s>"]]]
    assert meta["input_token_logprobs"] == [[None, 5, "a"], [-2.0, 6, "b"]]
    assert meta["input_top_logprobs"] == [None, [[-1.0, 9, "c"]]]
    plain = render_stream(SglangRenderOptions(logprobs=0))[-1]["meta_info"]
    assert (plain["output_token_logprobs"][0], plain["input_token_logprobs"]) == (
        [-0.5, 7, None],
        [],
    )
    assert "output_top_logprobs" not in plain


@pytest.mark.parametrize(
    ("reason", "stop", "finish"),
    [
        (FinishReason.STOP, "END", {"type": "stop", "matched": "END"}),
        (FinishReason.STOP, 9, {"type": "stop", "matched": 9}),
        (FinishReason.LENGTH, None, {"type": "length", "length": 1}),
        (FinishReason.CONTEXT_LENGTH, None, {"type": "length", "length": 1}),
        (
            FinishReason.ABORT,
            None,
            {
                "type": "abort",
                "message": "The request was aborted.",
                "status_code": None,
                "err_type": None,
            },
        ),
    ],
)
def test_finish_reasons_are_rendered(reason: FinishReason, stop: str | int | None, finish: object):
    writer = SglangWriter(HEADER)
    for event in (*EVENTS[:3], ChoiceFinished(0, reason, stop)):
        writer.feed(event)
    output = writer.feed(Finished(Usage(2, 2)))
    assert json.loads(output[6:])["meta_info"]["finish_reason"] == finish
