"""The support of every parameter of Responses."""

from __future__ import annotations

from ..fields import DecodingFields
from ..parameter_table import (
    SHARED_HONOURED,
    ParameterSupport,
    ParameterTable,
    accept,
    build_shared_rows,
    honour,
    reject,
    warn,
)

DIALECT = "responses"

_HONOURED = (
    ("model", "optional if the server has a default model"),
    (
        "input",
        "a string, or items: messages of all roles with text, refusal, input_image, input_file and input_audio parts; "
        "function and custom calls and their outputs; calls and outputs of shell, local_shell, apply_patch, computer "
        "and tool_search, whose found tools can be called from then on; additional_tools; configuration_update, of "
        "which the last one replaces reasoning.effort or text.format; reasoning, item_reference, compaction and "
        "compaction_trigger. Items of hosted tools are omitted with a warning",
    ),
    ("instructions", "a system message before all others"),
    ("previous_response_id", "a stored response with status completed or incomplete; not together with conversation"),
    ("conversation", "an id, or an object with an id; receives the input and output of a stored response"),
    ("store", "true by default; without a store the response has false, with a warning if true was requested"),
    ("background", "true requires store"),
    ("stream", ""),
    ("stream_options", "include_obfuscation: true is refused; usage is always included"),
    (
        "include",
        "message.output_text.logprobs; reasoning.encrypted_content, which only this server can decrypt, for the same "
        "API key. Other values belong to hosted tools and have no effect",
    ),
    (
        "tools",
        "function, namespace, and custom with an enforced regex; shell and local_shell, apply_patch, computer, "
        "computer_use_preview and tool_search with execution client as functions, whose calls are items of their own "
        "types; lark grammars, hosted tools and a shell in a container give a warning",
    ),
    ("tool_choice", "all forms; a hosted tool is refused"),
    ("parallel_tool_calls", ""),
    ("max_tool_calls", "limits calls of hosted tools; there are none"),
    ("max_output_tokens", "1 or more; -1 and null are the rest of the context"),
    ("text", "format text, json_object and json_schema; verbosity: low and high have no effect and give a warning"),
    (
        "reasoning",
        "effort (none turns reasoning off); with summary the reasoning is returned as a summary, otherwise as "
        "reasoning_text; context and mode give a warning",
    ),
    ("top_logprobs", "0 to 20; more than 0 includes the logprobs"),
    (
        "truncation",
        "auto omits the oldest whole turns (calls together with their results) of a conversation that does not fit; "
        "a warning gives the number of omitted messages; the instructions, the last question and the last turn remain",
    ),
    ("metadata", "at most 16 keys of 64 characters with values of 512 characters; echoed"),
    ("user", "echoed; identifies the end user, has no effect"),
    ("safety_identifier", "echoed; identifies the end user, has no effect"),
    ("prompt_cache_key", "echoed; caching is automatic"),
    ("service_tier", "there is one tier, reported as `default`; other values give a warning"),
    ("stop", "vLLM's: a string or a list; maximum count set by the server"),
    ("include_reasoning", "vLLM's: false hides the reasoning; its tokens still count"),
    ("thinking_token_budget", "-1 and null mean no budget"),
    ("chat_template", "if the server allows it"),
    ("chat_template_kwargs", "keys that the server allows; enable_thinking and thinking turn reasoning on or off"),
)

_NOTES = dict(SHARED_HONOURED)
_USE_CHAT = "a response has no field for them; use /v1/chat/completions"

_UNSUPPORTED = (
    *accept(DIALECT, "prompt_cache_retention", "prompt_cache_options", note="caching is automatic"),
    *accept(DIALECT, "client_metadata", note="metadata of agents; has no effect"),
    *warn(
        DIALECT,
        "context_management",
        "automatic compaction is not supported; end the input with a compaction_trigger",
        [],
    ),
    *reject(DIALECT, "prompt", "stored prompts are not supported"),
    *reject(DIALECT, "moderation", "moderation is not supported"),
    *reject(DIALECT, "n", "a response has exactly one answer", 1),
    *reject(DIALECT, "best_of", "a response has exactly one answer", 1),
    *reject(DIALECT, "max_tokens", "use max_output_tokens"),
    *reject(DIALECT, "max_completion_tokens", "use max_output_tokens"),
    *reject(DIALECT, "response_format", "use text.format", {"type": "text"}),
    *reject(DIALECT, "reasoning_effort", "use reasoning.effort"),
    *reject(DIALECT, "logprobs", "use top_logprobs, or include message.output_text.logprobs", False),
    *reject(DIALECT, "prompt_logprobs", _USE_CHAT),
    *reject(DIALECT, "logprob_token_ids", _USE_CHAT, []),
    *reject(DIALECT, "return_token_ids", _USE_CHAT, False),
    *reject(DIALECT, "return_tokens_as_token_ids", _USE_CHAT, False),
    *reject(DIALECT, "enable_response_messages", "raw messages are not returned", False),
    *reject(DIALECT, "previous_input_messages", "send the conversation in input"),
    *reject(DIALECT, "media_io_kwargs", "media processing is configured by the server", {}),
    *reject(DIALECT, "mm_processor_kwargs", "media processing is configured by the server", {}),
)


def _build_rows() -> tuple[ParameterSupport, ...]:
    shared = ((name, _NOTES[name]) for name in DecodingFields.__struct_fields__)
    own_rows = tuple(row for name, note in (*_HONOURED, *shared) for row in honour(DIALECT, name, note=note))
    names = {row.name for row in own_rows}
    return (*own_rows, *(row for row in build_shared_rows(DIALECT) if row.name not in names), *_UNSUPPORTED)


RESPONSES = ParameterTable(_build_rows())
