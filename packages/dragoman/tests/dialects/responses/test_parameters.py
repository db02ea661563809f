"""The table of parameters matches the reader: every field has a row, and every row is
correct.
"""

from __future__ import annotations

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from dragoman.core.errors import Unsupported
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.responses.wire import RESPONSES, ResponsesBody, ResponsesInputFields

from .bodies import JsonObject, call, read_error

STRANGE = {"x": "no value that any field would take for harmless"}
OTHERS = [row for row in RESPONSES.rows if row.status is not SupportStatus.HONOURED]
# From vLLM 0.33: what its ResponsesRequest has beyond OpenAI's fields.
VLLM = """logit_bias include_reasoning top_k min_p skip_special_tokens spaces_between_special_tokens
include_stop_str_in_output presence_penalty frequency_penalty watermarking request_id session_id media_io_kwargs
mm_processor_kwargs priority mm_payload return_mm_kwargs cache_salt enable_response_messages previous_input_messages
structured_outputs repetition_penalty seed stop stop_token_ids ignore_eos vllm_xargs kv_transfer_params
ec_transfer_params chat_template_kwargs"""  # noqa: E501


def test_honoured_parameters_match_struct_fields():
    honoured = {row.name for row in RESPONSES.rows if row.status is SupportStatus.HONOURED}
    structs = (ResponsesInputFields, ResponsesBody)
    assert honoured == {name for struct in structs for name in struct.__struct_fields__}


def test_parameter_table_has_unique_names():
    names = [row.name for row in RESPONSES.rows]
    assert len(names) == len(set(names))


def test_parameter_table_covers_sdk_and_vllm_fields():
    names = {row.name for row in RESPONSES.rows}
    assert set(ResponseCreateParamsBase.__annotations__) <= names
    assert set(VLLM.split()) <= names


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_parameter_status_matches_reader_effect(row: ParameterSupport):
    for harmless in (None, *row.harmless):
        assert call(**{row.name: harmless}).warnings == ()
    match row.status:
        case SupportStatus.REFUSED:
            error = read_error(**{row.name: STRANGE})
            assert isinstance(error, Unsupported)
            assert error.param == row.name
        case SupportStatus.WARNED:
            (warning,) = call(**{row.name: STRANGE}).warnings
            assert warning.startswith(f"{row.name}: ")
        case _:
            assert call(**{row.name: STRANGE}).warnings == ()
            assert call(**{row.name: STRANGE}).unknown == ()


def test_unknown_fields_are_reported():
    assert call(foo=1).unknown == ("foo",)


@pytest.mark.parametrize("options", [{}, {"completion_window": "soonest", "continuation_id": "a"}])
def test_background_options_are_accepted_without_background(options: JsonObject):
    assert call(background_options=options).warnings == ()


def test_completion_window_needs_background_without_stream():
    window = {"completion_window": "8h"}
    assert call(background=True, background_options=window).warnings == ()
    for fields in ({}, {"background": True, "stream": True}):
        error = read_error(background_options=window, **fields)
        assert error.param == "background_options.completion_window"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"mode": "never"}, "prompt_cache_options.mode"),
        ({"ttl": "5m"}, "prompt_cache_options.ttl"),
        ({"prewarm": True}, "prompt_cache_options.prewarm"),
    ],
)
def test_prompt_cache_option_is_rejected_by_name(options: JsonObject, param: str):
    assert call(prompt_cache_options={"mode": "explicit", "ttl": "12h"}).warnings == ()
    assert read_error(prompt_cache_options=options).param == param


def test_prompt_cache_comparison_is_reported():
    (warning,) = call(prompt_cache_options={"comparison_response_id": "resp_1"}).warnings
    assert warning.startswith("prompt_cache_options.comparison_response_id is ignored")
