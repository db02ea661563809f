"""The table of parameters matches the readers: every field has a row, and every row is
correct.
"""

from __future__ import annotations

import pytest

from dragoman.core.errors import Unsupported
from dragoman.core.request import SamplingOptions
from dragoman.dialects.chat.wire import CHAT, CHAT_PROMPT, ChatBody
from dragoman.dialects.completions.wire import COMPLETIONS, CompletionsBody, CompletionsPromptFields
from dragoman.dialects.generation_fields import DecodingFields
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.registry import list_parameters

from .bodies import chat, chat_refusal, completions, completions_refusal

STRANGE = {"x": "no value that any field would take for harmless"}
OTHERS = [
    row for row in (*CHAT.rows, *COMPLETIONS.rows) if row.status is not SupportStatus.HONOURED
]


def test_honoured_parameters_match_struct_fields():
    honoured = {row.name for row in CHAT.rows if row.status is SupportStatus.HONOURED}
    assert honoured == {
        name for struct in (*CHAT_PROMPT, ChatBody) for name in struct.__struct_fields__
    }
    honoured = {row.name for row in COMPLETIONS.rows if row.status is SupportStatus.HONOURED}
    structs = (CompletionsPromptFields, CompletionsBody)
    assert honoured == {name for struct in structs for name in struct.__struct_fields__}


def test_sampling_options_are_all_decoding_fields():
    assert set(SamplingOptions.__struct_fields__) <= set(DecodingFields.__struct_fields__)


def test_parameter_table_has_unique_names():
    names = [(row.dialect, row.name) for row in list_parameters()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: f"{row.dialect}-{row.name}")
def test_parameter_status_matches_reader_effect(row: ParameterSupport):
    call, refusal = (
        (chat, chat_refusal) if row.dialect == "chat" else (completions, completions_refusal)
    )
    for harmless in (None, *row.harmless):
        assert call(**{row.name: harmless}).warnings == ()
    match row.status:
        case SupportStatus.REFUSED:
            error = refusal(**{row.name: STRANGE})
            assert isinstance(error, Unsupported)
            assert error.param == row.name
        case SupportStatus.WARNED:
            (warning,) = call(**{row.name: STRANGE}).warnings
            assert warning.startswith(f"{row.name}: ")
        case _:
            assert call(**{row.name: STRANGE}).warnings == ()
            assert call(**{row.name: STRANGE}).unknown == ()


def test_best_of_true_is_rejected_unlike_one():
    assert isinstance(chat_refusal(best_of=True), Unsupported)
    assert chat(best_of=1).warnings == ()


def test_unknown_fields_are_reported_up_to_limit():
    assert chat(foo=1, bar=None).unknown == ("foo", "bar")
    many = chat(**{f"{i}" + "x" * 1_000: i for i in range(1_000)}).unknown
    assert len(many) == 32
    assert all(len(name) == 64 for name in many)


# From OpenAI's OpenAPI document 2.3.0 and vLLM 0.33.
OPENAI_CHAT = """metadata top_logprobs temperature top_p user safety_identifier prompt_cache_key prompt_cache_retention
prompt_cache_options messages model service_tier modalities verbosity reasoning_effort max_completion_tokens
frequency_penalty presence_penalty web_search_options response_format audio store moderation stream stop logit_bias
logprobs max_tokens n prediction seed stream_options tools tool_choice parallel_tool_calls function_call functions"""  # noqa: E501
VLLM_CHAT = """thinking_token_budget include_reasoning use_beam_search top_k min_p repetition_penalty watermarking
length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids
bad_words echo add_generation_prompt continue_final_message add_special_tokens documents chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id session_id
return_tokens_as_token_ids return_token_ids return_weight_versions routed_experts_prompt_start return_token_offsets
return_prompt_text mm_payload return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs
repetition_detection stream_interval"""  # noqa: E501
OPENAI_COMPLETIONS = """model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty
seed stop stream stream_options suffix temperature top_p user"""  # noqa: E501
VLLM_COMPLETIONS = """use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words prompt_embeds
add_special_tokens response_format structured_outputs priority request_id session_id return_tokens_as_token_ids
return_token_ids return_weight_versions routed_experts_prompt_start return_token_offsets mm_payload return_mm_kwargs
cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget
stream_interval"""  # noqa: E501


def test_parameter_table_covers_openai_and_vllm_fields():
    known = {(row.dialect, row.name) for row in list_parameters()}
    wanted = {("chat", name) for name in (OPENAI_CHAT + " " + VLLM_CHAT).split()}
    wanted |= {
        ("completions", name) for name in (OPENAI_COMPLETIONS + " " + VLLM_COMPLETIONS).split()
    }
    assert wanted - known == set()
