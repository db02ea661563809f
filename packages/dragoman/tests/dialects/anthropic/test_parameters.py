"""The table of parameters matches the readers: every field has a row, and every row is
correct.
"""

from __future__ import annotations

import pytest

from dragoman.core.errors import Unsupported
from dragoman.dialects.anthropic.wire import (
    COUNT_TOKENS,
    MESSAGES,
    MESSAGES_PROMPT,
    MessagesBody,
)
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus

from .bodies import count, messages, read_error

STRANGE = {"x": "no value that any field would take for harmless"}
OTHERS = [row for row in MESSAGES.rows if row.status is not SupportStatus.HONOURED]
COUNTED = [row for row in COUNT_TOKENS.rows if row.status is not SupportStatus.HONOURED]


def test_honoured_parameters_match_struct_fields():
    honoured = {row.name for row in MESSAGES.rows if row.status is SupportStatus.HONOURED}
    prompt_fields = {name for struct in MESSAGES_PROMPT for name in struct.__struct_fields__}
    assert honoured == prompt_fields | set(MessagesBody.__struct_fields__)
    honoured = {row.name for row in COUNT_TOKENS.rows if row.status is SupportStatus.HONOURED}
    assert honoured == prompt_fields


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_parameter_status_matches_reader_effect(row: ParameterSupport):
    for harmless in (None, *row.harmless):
        assert messages(**{row.name: harmless}).warnings == ()
    match row.status:
        case SupportStatus.REFUSED:
            error = read_error(**{row.name: STRANGE})
            assert isinstance(error, Unsupported)
            assert error.param == row.name
        case SupportStatus.WARNED:
            (warning,) = messages(**{row.name: STRANGE}).warnings
            assert warning.startswith(f"{row.name}: ")
        case _:
            assert messages(**{row.name: STRANGE}).warnings == ()
            assert messages(**{row.name: STRANGE}).unknown == ()


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row.name)
def test_count_tokens_ignores_other_parameters(row: ParameterSupport):
    counted = count(**{row.name: STRANGE})
    assert (counted.warnings, counted.unknown) == ((), ())
    assert counted.conversation == count().conversation


# From anthropic 2.11 (with its betas) and vLLM 0.33.
ANTHROPIC = """max_tokens messages model billing_policy cache_control compaction container context_management
diagnostics fallback_credit_token fallbacks inference_geo mcp_servers metadata output_config service_tier speed
stop_sequences system thinking thread tool_choice tools betas user_profile_id workspace_id stream temperature top_p
top_k output_format"""  # noqa: E501
VLLM = """model messages max_tokens metadata output_config thinking stop_sequences stream system temperature
tool_choice tools top_k top_p mm_payload return_mm_kwargs cache_salt watermarking kv_transfer_params
ec_transfer_params vllm_xargs chat_template_kwargs"""  # noqa: E501


def test_parameter_table_covers_anthropic_and_vllm_fields():
    assert set(f"{ANTHROPIC} {VLLM}".split()) - {row.name for row in MESSAGES.rows} == set()
