"""What becomes of every parameter of Responses."""

from __future__ import annotations

from ..fields import DecodingFields
from ..parameter_table import ParameterSupport, ParameterTable, accept, honour, reject, warn
from ..shared_parameters import SHARED_HONOURED, build_shared_rows

DIALECT = "responses"

_HONOURED = (
    ("model", "optional where the server has a default model"),
    (
        "input",
        "a string, or items: messages of all roles with text, refusal, input_image, input_file and input_audio parts, "
        "function and custom calls and their outputs, reasoning, item_reference, compaction and "
        "compaction_trigger. Hosted tools' items are left out with a warning",
    ),
    ("instructions", "a system message before everything else"),
    ("previous_response_id", "a stored response that is completed or incomplete; not together with conversation"),
    ("conversation", "an id, or an object with one; gets the input and the output when the response is stored"),
    ("store", "true unless said; answered with false by a server without a store, with a warning if it was asked for"),
    ("background", "true needs store"),
    ("stream", ""),
    ("stream_options", "include_obfuscation: true is refused; usage always comes"),
    (
        "include",
        "message.output_text.logprobs; reasoning.encrypted_content, which only this server can read, for the same API "
        "key. The others belong to "
        "hosted tools and change nothing",
    ),
    ("tools", "function, namespace and custom, whose regex is enforced; lark and hosted tools give a warning"),
    ("tool_choice", "all forms; a hosted tool is refused"),
    ("parallel_tool_calls", ""),
    ("max_tool_calls", "bounds hosted tools' calls, of which there are none"),
    ("max_output_tokens", "1 or more; -1 and null are the rest of the context"),
    ("text", "format text, json_object and json_schema; verbosity is checked, low and high give a warning"),
    (
        "reasoning",
        "effort, of which none turns reasoning off; with summary the reasoning comes as a summary, else as "
        "reasoning_text; context and mode give a warning",
    ),
    ("top_logprobs", "0 to 20; more than 0 includes the logprobs"),
    (
        "truncation",
        "auto leaves out the oldest turns of a conversation that does not fit, whole ones, a call with its result, and "
        "says how many messages that were in a warning; the instructions, the last question and the last turn stay",
    ),
    ("metadata", "at most 16 keys of 64 characters with values of 512; echoed"),
    ("user", "echoed; identifies the end user, nothing here depends on it"),
    ("safety_identifier", "echoed; identifies the end user, nothing here depends on it"),
    ("prompt_cache_key", "echoed; caching is automatic"),
    ("service_tier", "there is one tier: the answer says `default`, and a warning if another one was asked for"),
    ("stop", "vLLM's: a string or a list; how many is a setting of the server"),
    ("include_reasoning", "vLLM's: false hides the reasoning; its tokens still count"),
    ("thinking_token_budget", "-1 and null are no budget"),
    ("chat_template", "where the server allows it"),
    ("chat_template_kwargs", "those that the server allows; enable_thinking and thinking turn reasoning on or off"),
)

_NOTES = dict(SHARED_HONOURED)
_USE_CHAT = "a response has no place for them; use /v1/chat/completions"

_UNSUPPORTED = (
    *accept(DIALECT, "prompt_cache_retention", "prompt_cache_options", note="caching is automatic"),
    *accept(DIALECT, "client_metadata", note="what agents say of themselves; nothing here depends on it"),
    *warn(
        DIALECT,
        "context_management",
        "conversations are not compacted by themselves; end the input in a compaction_trigger",
        [],
    ),
    *reject(DIALECT, "prompt", "there are no stored prompts"),
    *reject(DIALECT, "moderation", "there is no moderation"),
    *reject(DIALECT, "n", "a response is one answer", 1),
    *reject(DIALECT, "best_of", "a response is one answer", 1),
    *reject(DIALECT, "max_tokens", "use max_output_tokens"),
    *reject(DIALECT, "max_completion_tokens", "use max_output_tokens"),
    *reject(DIALECT, "response_format", "use text.format", {"type": "text"}),
    *reject(DIALECT, "reasoning_effort", "use reasoning.effort"),
    *reject(DIALECT, "logprobs", "use top_logprobs, or include message.output_text.logprobs", False),
    *reject(DIALECT, "prompt_logprobs", _USE_CHAT),
    *reject(DIALECT, "return_token_ids", _USE_CHAT, False),
    *reject(DIALECT, "return_tokens_as_token_ids", _USE_CHAT, False),
    *reject(DIALECT, "enable_response_messages", "raw messages are not returned", False),
    *reject(DIALECT, "previous_input_messages", "send the conversation as input"),
    *reject(DIALECT, "media_io_kwargs", "how media is read is the server's setting", {}),
    *reject(DIALECT, "mm_processor_kwargs", "how media is read is the server's setting", {}),
)


def _build_rows() -> tuple[ParameterSupport, ...]:
    shared = ((name, _NOTES[name]) for name in DecodingFields.__struct_fields__)
    own_rows = tuple(row for name, note in (*_HONOURED, *shared) for row in honour(DIALECT, name, note=note))
    names = {row.name for row in own_rows}
    return (*own_rows, *(row for row in build_shared_rows(DIALECT) if row.name not in names), *_UNSUPPORTED)


RESPONSES = ParameterTable(_build_rows())
