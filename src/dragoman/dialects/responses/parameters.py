"""What becomes of every parameter of Responses."""

from __future__ import annotations

from ..fields import Decoding
from ..shared import SHARED_HONOURED, shared_hints
from ..support import Rules, Support, accepted, honoured, refused, warned

DIALECT = "responses"

_OWN = (
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
_ELSEWHERE = "a response has no place for them; use /v1/chat/completions"

_OTHERS = (
    *accepted(DIALECT, "prompt_cache_retention", "prompt_cache_options", note="caching is automatic"),
    *accepted(DIALECT, "client_metadata", note="what agents say of themselves; nothing here depends on it"),
    *warned(
        DIALECT,
        "context_management",
        "conversations are not compacted by themselves; end the input in a compaction_trigger",
        [],
    ),
    *refused(DIALECT, "prompt", "there are no stored prompts"),
    *refused(DIALECT, "moderation", "there is no moderation"),
    *refused(DIALECT, "n", "a response is one answer", 1),
    *refused(DIALECT, "best_of", "a response is one answer", 1),
    *refused(DIALECT, "max_tokens", "use max_output_tokens"),
    *refused(DIALECT, "max_completion_tokens", "use max_output_tokens"),
    *refused(DIALECT, "response_format", "use text.format", {"type": "text"}),
    *refused(DIALECT, "reasoning_effort", "use reasoning.effort"),
    *refused(DIALECT, "logprobs", "use top_logprobs, or include message.output_text.logprobs", False),
    *refused(DIALECT, "prompt_logprobs", _ELSEWHERE),
    *refused(DIALECT, "return_token_ids", _ELSEWHERE, False),
    *refused(DIALECT, "return_tokens_as_token_ids", _ELSEWHERE, False),
    *refused(DIALECT, "enable_response_messages", "raw messages are not returned", False),
    *refused(DIALECT, "previous_input_messages", "send the conversation as input"),
    *refused(DIALECT, "media_io_kwargs", "how media is read is the server's setting", {}),
    *refused(DIALECT, "mm_processor_kwargs", "how media is read is the server's setting", {}),
)


def _rows() -> tuple[Support, ...]:
    shared = ((name, _NOTES[name]) for name in Decoding.__struct_fields__)
    told = tuple(row for name, note in (*_OWN, *shared) for row in honoured(DIALECT, name, note=note))
    names = {row.name for row in told}
    return (*told, *(row for row in shared_hints(DIALECT) if row.name not in names), *_OTHERS)


RESPONSES = Rules(_rows())
