"""The table of parameters matches the reader: every field has a row, and every row is
correct.
"""

from __future__ import annotations

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from dragoman.core.errors import Unsupported
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.responses.wire import RESPONSES, ResponsesBody

from .bodies import call, read_error

STRANGE = {"x": "no value that any field would take for harmless"}
OTHERS = [row for row in RESPONSES.rows if row.status is not SupportStatus.HONOURED]
# From vLLM 0.33: what its ResponsesRequest has beyond OpenAI's fields.
VLLM = """logit_bias include_reasoning top_k min_p skip_special_tokens spaces_between_special_tokens
include_stop_str_in_output presence_penalty frequency_penalty watermarking request_id session_id media_io_kwargs
mm_processor_kwargs priority mm_payload return_mm_kwargs cache_salt enable_response_messages previous_input_messages
structured_outputs repetition_penalty seed stop stop_token_ids ignore_eos vllm_xargs kv_transfer_params
ec_transfer_params chat_template_kwargs"""  # noqa: E501
NEW = {"access_programs", "image"}
"""Fields that the SDK has, but no documentation: unknown here, and reported as such."""


def test_honoured_parameters_match_struct_fields():
    honoured = {row.name for row in RESPONSES.rows if row.status is SupportStatus.HONOURED}
    assert honoured == set(ResponsesBody.__struct_fields__)


def test_parameter_table_has_unique_names():
    names = [row.name for row in RESPONSES.rows]
    assert len(names) == len(set(names))


def test_parameter_table_covers_sdk_and_vllm_fields():
    names = {row.name for row in RESPONSES.rows}
    assert set(ResponseCreateParamsBase.__annotations__) - names == NEW
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
