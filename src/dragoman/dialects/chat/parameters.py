"""What becomes of every parameter of Chat Completions."""

from __future__ import annotations

from ..parameter_table import ParameterTable, accept, honour, reject, warn
from ..shared_parameters import SHARED_HONOURED, build_shared_rows

DIALECT = "chat"

_HONOURED = (
    ("messages", "all roles; text, image_url, input_audio, audio_url, file, refusal and thinking parts"),
    ("max_completion_tokens", "goes before max_tokens"),
    ("logprobs", ""),
    ("top_logprobs", "0 to 20, needs logprobs; -1 is refused"),
    ("tools", "function and custom, whose regex is enforced; lark and hosted tools give a warning"),
    ("tool_choice", "all forms"),
    ("parallel_tool_calls", ""),
    ("functions", "legacy; the answer then has function_call"),
    ("function_call", "legacy"),
    ("reasoning_effort", "none turns reasoning off"),
    ("thinking_token_budget", "-1 and null are no budget"),
    ("include_reasoning", "false hides the reasoning; its tokens still count"),
    ("chat_template", "where the server allows it"),
    ("chat_template_kwargs", "those that the server allows; enable_thinking and thinking turn reasoning on or off"),
    ("documents", ""),
    ("add_generation_prompt", ""),
    ("continue_final_message", "needs a last message of the assistant"),
    ("return_prompt_text", ""),
    ("store", "true stores the completion; a warning where the server has no store"),
    ("verbosity", "checked; low and high give a warning, since no model here is told"),
)


_UNSUPPORTED = (
    *accept(DIALECT, "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", note="caching is automatic"),
    *warn(DIALECT, "prediction", "the prediction was not used; the answer is the same without"),
    *reject(DIALECT, "modalities", "only text comes out", ["text"], []),
    *reject(DIALECT, "audio", "only text comes out"),
    *reject(DIALECT, "web_search_options", "there is no web search"),
    *reject(DIALECT, "moderation", "there is no moderation"),
    *reject(DIALECT, "echo", "a chat prompt is not repeated; see return_prompt_text", False),
    *reject(DIALECT, "best_of", "use n", 1),
    *reject(DIALECT, "media_io_kwargs", "how media is read is the server's setting", {}),
    *reject(DIALECT, "mm_processor_kwargs", "how media is read is the server's setting", {}),
)

CHAT = ParameterTable(
    (
        *(row for name, note in (*_HONOURED, *SHARED_HONOURED) for row in honour(DIALECT, name, note=note)),
        *build_shared_rows(DIALECT),
        *_UNSUPPORTED,
    )
)
