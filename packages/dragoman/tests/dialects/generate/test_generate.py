"""Requests and responses of /inference/v1/generate."""

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
)
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import GenerateRequest, GenerationLimits, Regex, SamplingOptions
from dragoman.dialects.interfaces import GenerationCall, Header
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.vllm_generate.reader import read_generate
from dragoman.dialects.vllm_generate.wire import (
    GENERATE,
    SAMPLING_PARAMS,
    GenerateBody,
    VllmSamplingParams,
)
from dragoman.dialects.vllm_generate.writer import GenerateRenderOptions, GenerateWriter

from ..bodies import OPTIONS

HEADER = Header("gen-1", 7, "m")


def generate(params: object = None, **fields: object) -> GenerationCall:
    body = {"token_ids": [5, 6], "sampling_params": params, **fields}
    return read_generate(msgspec.json.encode(body), OPTIONS)


def request(params: object = None, **fields: object) -> GenerateRequest:
    return generate(params, **fields).requests[0]


def test_generate_defaults_match_vllm():
    assert request() == GenerateRequest("tiny", (5, 6), limits=GenerationLimits(max_tokens=16))
    assert request({}) == request()
    assert request(dict.fromkeys(VllmSamplingParams.__struct_fields__, None)) == request()


def test_generate_sampling_params_are_parsed():
    parsed = request(
        {
            "n": 2,
            "temperature": 0.5,
            "top_k": -1,
            "seed": 3,
            "max_tokens": -1,
            "min_tokens": 2,
            "stop": "END",
            "stop_token_ids": [9],
            "ignore_eos": True,
            "logprobs": 1,
            "prompt_logprobs": 0,
            "structured_outputs": {"regex": "a+"},
        },
        model="other",
        priority=-3,
        cache_salt="s",
        kv_transfer_params={"x": 1},
    )
    assert parsed.sampling == SamplingOptions(temperature=0.5, top_k=0, seed=3)
    assert parsed.limits == GenerationLimits(
        min_tokens=2, stop=("END",), stop_token_ids=(9,), ignore_eos=True
    )
    assert (parsed.choices, parsed.logprobs, parsed.prompt_logprobs) == (2, 1, 0)
    assert parsed.constraint == Regex("a+")
    assert (parsed.model, parsed.priority, parsed.cache_salt) == ("other", -3, "s")
    assert parsed.extras.kv_transfer_params == '{"x":1}'


@pytest.mark.parametrize(
    ("params", "fields", "param"),
    [
        ({}, {"token_ids": []}, "token_ids"),
        ({}, {"token_ids": "text"}, "token_ids"),
        ({}, {"features": {"mm": 1}}, "features"),
        ({"temperature": -1}, {}, "sampling_params.temperature"),
        ({"n": 0}, {}, "sampling_params.n"),
        ({"n": 129}, {}, "sampling_params.n"),
        ({"max_tokens": 0}, {}, "sampling_params.max_tokens"),
        ({"max_tokens": 1, "min_tokens": 2}, {}, "sampling_params.min_tokens"),
        ({"stop": [""]}, {}, "sampling_params.stop"),
        ({"prompt_logprobs": 1}, {"stream": True}, "sampling_params.prompt_logprobs"),
        ({"logprobs": -1}, {}, "sampling_params.logprobs"),
        ([1], {}, "sampling_params"),
    ],
)
def test_generate_invalid_field_is_rejected_with_full_path(
    params: object, fields: dict[str, object], param: str
):
    with pytest.raises(RequestError) as caught:
        generate(params, **fields)
    assert caught.value.param == param


def test_generate_missing_tokens_and_unknown_fields_are_named():
    with pytest.raises(RequestError, match="token_ids"):
        read_generate(b"{}", OPTIONS)
    assert generate({"colour": 1}, shade=2).unknown == ("shade", "sampling_params.colour")


def test_generate_honoured_parameters_match_struct_fields():
    for rules, body in ((GENERATE, GenerateBody), (SAMPLING_PARAMS, VllmSamplingParams)):
        honoured = {row.name for row in rules.rows if row.status is SupportStatus.HONOURED}
        assert honoured == set(body.__struct_fields__)


OTHERS = [
    row
    for row in (*GENERATE.rows, *SAMPLING_PARAMS.rows)
    if row.status is not SupportStatus.HONOURED
]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: f"{row.dialect}-{row.name}")
def test_generate_parameter_status_matches_reader_effect(row: ParameterSupport):
    def ask(value: object) -> GenerationCall:
        return (
            generate({row.name: value})
            if row.dialect == "sampling_params"
            else generate(**{row.name: value})
        )

    for harmless in (None, *row.harmless):
        assert ask(harmless).warnings == ()
    if row.status is SupportStatus.REFUSED:
        with pytest.raises(Unsupported):
            ask({"x": 1})
    else:
        assert ask({"x": 1}).unknown == ()


TOKENS = (
    Token(7, "A", -0.5, (Alternative(7, "A", -0.5), Alternative(8, "B", -1.5)), rank=1),
    Token(2, "<end>", -2.0, (Alternative(7, "A", -0.25),), rank=2, special=True),
)
EVENTS: tuple[Event, ...] = (
    Started(3, 1),
    PromptTokens(0, "xy", (Token(5, "x"), Token(6, "y", -0.75, rank=1))),
    TextDelta(0, "A", TOKENS[:1]),
    ChoiceFinished(0, FinishReason.STOP, tokens=TOKENS[1:], kv_transfer_params='{"block": 1}'),
    Finished(Usage(3, 2, 1)),
)


def render_full(view: GenerateRenderOptions) -> Any:
    fold = ReplyBuilder()
    for event in EVENTS:
        fold.feed(event)
    return json.loads(GenerateWriter(HEADER, view).render_full(fold.build()))


def test_generate_logprobs_have_vllm_and_client_token_names():
    """TRL 1.16 and renderers 0.1.12 read `token`; vLLM's own type has `token_id`."""
    answer = render_full(GenerateRenderOptions(logprobs=2, prompt_logprobs=0))
    (choice,) = answer["choices"]
    assert choice["token_ids"] == [7, 2]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["token_id"], first["logprob"], first["rank"]) == (
        "token_id:7",
        7,
        -0.5,
        1,
    )
    assert [(top["token"], top["token_id"], top["rank"]) for top in first["top_logprobs"]] == [
        ("token_id:7", 7, 1),
        ("token_id:8", 8, 2),
    ]
    assert answer["prompt_logprobs"] == [
        None,
        {"6": {"logprob": -0.75, "rank": 1, "decoded_token": "y"}},
    ]
    assert answer["request_id"] == "gen-1"
    assert answer["kv_transfer_params"] == {"block": 1}
    assert choice["finish_reason"] == "stop"


def test_generate_unrequested_fields_are_null():
    answer = render_full(GenerateRenderOptions())
    assert answer["choices"][0]["logprobs"] is None
    assert answer["prompt_logprobs"] is None


def test_generate_stream_equals_full_response():
    view = GenerateRenderOptions(logprobs=1, include_usage=True)
    writer = GenerateWriter(HEADER, view)
    sent = b"".join(map(writer.feed, EVENTS)) + writer.end
    *lines, done = [line.removeprefix("data: ") for line in sent.decode().split("\n\n") if line]
    assert done == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    expected = render_full(view)
    assert [id for choice in choices for id in choice["token_ids"]] == expected["choices"][0][
        "token_ids"
    ]
    scored = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert scored == expected["choices"][0]["logprobs"]["content"]
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
    assert chunks[-1]["usage"] == expected["usage"]
    assert chunks[1]["kv_transfer_params"] == {"block": 1}
