"""Requests and responses of TGI's /generate."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dragoman.core.errors import (
    DragomanError,
    EngineError,
    Overloaded,
    RateLimited,
    RequestError,
    Unsupported,
)
from dragoman.core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.core.request import (
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    Regex,
    SamplingOptions,
)
from dragoman.dialects.interfaces import GenerationCall
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.tgi import (
    TgiRenderOptions,
    TgiWriter,
    is_tgi_body,
    map_tgi_status,
    read_tgi,
    render_tgi_error,
)
from dragoman.dialects.tgi.wire import TGI, TGI_PARAMS, TgiBody, TgiParameters

from ..bodies import OPTIONS

GREEDY = SamplingOptions(temperature=0.0)
ENDING = GenerationLimits(include_stop=True)


def generate(params: object = None, /, **fields: object) -> GenerationCall:
    return read_tgi(
        msgspec.json.encode({"inputs": "hello", "parameters": params, **fields}), OPTIONS
    )


def request(params: object = None, /, **fields: object) -> GenerateRequest:
    return generate(params, **fields).requests[0]


def test_minimal_request_uses_greedy_sampling_without_limit():
    assert request() == GenerateRequest("tiny", "hello", sampling=GREEDY, limits=ENDING)
    assert request({}) == request(dict.fromkeys(TgiParameters.__struct_fields__)) == request()


@pytest.mark.parametrize(
    "params", [{"do_sample": True}, {"top_k": 5}, {"top_p": 0.5}, {"temperature": 0.5}]
)
def test_sampling_field_enables_sampling(params: dict[str, object]):
    assert request(params).sampling.temperature == params.get("temperature")


def test_parameters_are_parsed():
    parsed = request(
        {
            "max_new_tokens": 9,
            "do_sample": True,
            "temperature": 0.5,
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.5,
            "top_k": 3,
            "top_p": 0.5,
            "seed": 7,
            "stop": ["END"],
            "truncate": 4,
            "best_of": 2,
            "details": True,
            "decoder_input_details": True,
            "top_n_tokens": 2,
            "adapter_id": "sql",
        },
        add_special_tokens=False,
    )
    assert parsed.sampling == SamplingOptions(
        temperature=0.5, top_p=0.5, top_k=3, repetition_penalty=1.2, frequency_penalty=0.5, seed=7
    )
    assert parsed.limits == GenerationLimits(
        max_tokens=9, stop=("END",), include_stop=True, truncate_prompt=4
    )
    assert (parsed.model, parsed.choices, parsed.best_of) == ("sql", 1, 2)
    assert (parsed.logprobs, parsed.prompt_logprobs, parsed.return_prompt) == (2, 0, True)
    assert not parsed.add_special_tokens


def test_token_ids_are_parsed():
    assert request(inputs=[5, 6]).prompt == (5, 6)


@pytest.mark.parametrize(
    ("params", "constraint"),
    [
        (
            {"grammar": {"type": "json", "value": {"type": "object"}}},
            JsonSchema('{"type":"object"}'),
        ),
        (
            {"grammar": {"type": "json", "value": '{"type":"object"}'}},
            JsonSchema('{"type":"object"}'),
        ),
        (
            {
                "grammar": {
                    "type": "json_schema",
                    "value": {"name": "x", "schema": {"type": "object"}},
                }
            },
            JsonSchema('{"type":"object"}'),
        ),
        ({"grammar": {"type": "regex", "value": "a+"}}, Regex("a+")),
    ],
)
def test_constraints_are_parsed(params: dict[str, object], constraint: object):
    assert request(params).constraint == constraint


@pytest.mark.parametrize(
    ("params", "fields", "param"),
    [
        ({}, {"inputs": None}, "inputs"),
        ({}, {"inputs": ""}, "inputs"),
        ({}, {"inputs": []}, "inputs"),
        (["x"], {}, "parameters"),
        ({"max_new_tokens": 0}, {}, "parameters.max_new_tokens"),
        ({"temperature": -1}, {}, "parameters.temperature"),
        ({"stop": [""]}, {}, "parameters.stop"),
        ({"best_of": 2}, {"stream": True}, "parameters.best_of"),
        ({"decoder_input_details": True}, {}, "parameters.decoder_input_details"),
        (
            {"decoder_input_details": True, "details": True},
            {"stream": True},
            "parameters.decoder_input_details",
        ),
        ({"top_n_tokens": 2}, {}, "parameters.top_n_tokens"),
        ({"return_full_text": True}, {"inputs": [5]}, "parameters.return_full_text"),
        ({"grammar": {"type": "yaml", "value": 1}}, {}, "parameters.grammar.type"),
        ({"grammar": {"type": "regex", "value": 1}}, {}, "parameters.grammar.value"),
        ({"grammar": {"type": "json", "value": None}}, {}, "parameters.grammar.value"),
        ({"grammar": {"type": "json_schema", "value": 1}}, {}, "parameters.grammar.value"),
    ],
)
def test_invalid_field_is_rejected_with_full_path(
    params: object, fields: dict[str, object], param: str
):
    with pytest.raises(RequestError) as caught:
        generate(params, **fields)
    assert caught.value.param == param
    assert param in json.loads(render_tgi_error(caught.value))["error"]


def test_honoured_parameters_match_struct_fields():
    for rules, body in ((TGI, TgiBody), (TGI_PARAMS, TgiParameters)):
        assert {row.name for row in rules.rows if row.status is SupportStatus.HONOURED} == set(
            body.__struct_fields__
        )


OTHERS = [row for row in (*TGI.rows, *TGI_PARAMS.rows) if row.status is not SupportStatus.HONOURED]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: f"{row.dialect}-{row.name}")
def test_parameter_status_matches_reader_effect(row: ParameterSupport):
    def ask(value: object) -> GenerationCall:
        return (
            generate({row.name: value})
            if row.dialect == "tgi_params"
            else generate(**{row.name: value})
        )

    for harmless in (None, *row.harmless):
        assert ask(harmless).warnings == ()
    if row.status is SupportStatus.REFUSED:
        with pytest.raises(Unsupported):
            ask({"x": 1})
    else:
        assert ask({"x": 1}).unknown == ()


def test_unknown_fields_are_reported_with_path():
    assert generate({"x": 1}, y=1).unknown == ("y", "parameters.x")


@pytest.mark.parametrize(
    ("body", "is_theirs"),
    [
        (b'{"inputs":"a"}', True),
        (b'{"text":"inputs"}', False),
        (b"[", False),
        (b"[]", False),
        (b'{"inputs":"\xff', False),
    ],
)
def test_body_with_inputs_is_detected_as_tgi(body: bytes, is_theirs: bool):
    assert is_tgi_body(body) is is_theirs


HI = Token(7, "Hi", -0.5, (Alternative(7, "Hi", -0.5), Alternative(8, "Ho", -1.5)), rank=1)
YOU = Token(9, " you", -1.5)
EOS = Token(2, "</s>", -0.25, special=True)
BEGIN: tuple[Event, ...] = (Started(3), TextDelta(0, "Hi", (HI,)))
DETAILED = TgiRenderOptions(details=True, logprobs=True, seed=5)


def feed_all(view: TgiRenderOptions, *events: Event) -> list[list[Any]]:
    """Return the output for each event."""
    writer = TgiWriter(view)
    pieces = [writer.feed(event).decode() for event in events]
    return [[json.loads(line[6:]) for line in each.splitlines() if line] for each in pieces]


def test_last_token_event_has_finish_details():
    _, (first,), _, (last,) = feed_all(
        DETAILED, *BEGIN, ChoiceFinished(0, FinishReason.STOP, None, (EOS,)), Finished(Usage(3, 2))
    )
    token = {
        "id": 7,
        "text": "Hi",
        "logprob": -0.5,
        "special": False,
    }
    nothing = {"generated_text": None, "details": None}
    assert first == {"index": 1, "token": token, **nothing}
    assert (last["token"]["id"], last["token"]["text"], last["token"]["special"]) == (
        2,
        "</s>",
        True,
    )
    assert last["generated_text"] == "Hi"
    assert last["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": 2,
        "input_length": 3,
        "seed": 5,
    }


@pytest.mark.parametrize(
    ("view", "reason", "stop", "expected"),
    [
        (TgiRenderOptions(details=True, max_tokens=2), FinishReason.LENGTH, None, "length"),
        (TgiRenderOptions(details=True, stops=("ou",)), FinishReason.STOP, "ou", "stop_sequence"),
    ],
)
def test_final_token_event_waits_for_finish_reason(
    view: TgiRenderOptions, reason: FinishReason, stop: str | None, expected: str
):
    end = (ChoiceFinished(0, reason, stop), Finished(Usage(3, 2)))
    *_, waits, _, (last,) = feed_all(view, *BEGIN, TextDelta(0, " you", (YOU,)), *end)
    assert waits == []
    assert (last["token"]["id"], last["generated_text"], last["index"]) == (9, "Hi you", 2)
    assert last["details"]["finish_reason"] == expected


def test_abort_sends_event_without_token():
    *_, (last,) = feed_all(
        DETAILED, *BEGIN, ChoiceFinished(0, FinishReason.ABORT), Finished(Usage(3, 1))
    )
    assert (last["token"]["id"], last["token"]["text"], last["generated_text"]) == (-1, "", "Hi")
    assert last["details"]["finish_reason"] == "length"


def test_missing_token_events_use_usage_count():
    events = (
        Started(3),
        TextDelta(0, "Hi"),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(3, 4)),
    )
    _, (text,), _, (last,) = feed_all(TgiRenderOptions(details=True), *events)
    assert (text["token"]["id"], text["token"]["text"], text["token"]["special"]) == (
        -1,
        "Hi",
        False,
    )
    assert (last["generated_text"], last["details"]["generated_tokens"]) == ("Hi", 4)


def test_estimated_prompt_count_waits_for_count():
    events = (
        Started(50, is_estimate=True),
        TextDelta(0, "Hi", (HI,)),
        ChoiceFinished(0, FinishReason.STOP, None, (EOS,)),
        Finished(Usage(12, 2)),
    )
    *_, (last,) = feed_all(TgiRenderOptions(details=True), *events)
    assert last["details"]["input_length"] == 12


def test_tokens_of_one_delta_share_text():
    both = feed_all(TgiRenderOptions(), Started(3), TextDelta(0, "Hi you", (HI, YOU)))[1]
    assert [each["token"]["text"] for each in both] == ["Hi", " you"]
    halves = (Token(5, "\ufffd", raw=b"\xc3"), Token(6, "\ufffd", raw=b"\xa9"))
    one = feed_all(TgiRenderOptions(), Started(3), TextDelta(0, "é", halves))[1]
    assert [(each["token"]["id"], each["token"]["text"]) for each in one] == [(5, ""), (6, "é")]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("no"), 422, "validation"),
        (RequestError("no", param="parameters.x"), 422, "validation"),
        (RateLimited("no"), 429, "overloaded"),
        (Overloaded("no"), 429, "overloaded"),
        (EngineError("no"), 424, "generation"),
    ],
)
def test_errors_have_tgi_form(error: DragomanError, status: int, kind: str):
    body = json.loads(render_tgi_error(error))
    assert map_tgi_status(error) == status
    assert body == {"error": f"{error.param}: no" if error.param else "no", "error_type": kind}
