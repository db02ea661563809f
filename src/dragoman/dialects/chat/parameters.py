"""The support of every parameter of Chat Completions."""

from __future__ import annotations

from ..parameter_table import SHARED_HONOURED, ParameterTable, accept, build_shared_rows, honour, reject, warn

DIALECT = "chat"

_HONOURED = (
    (
        "messages",
        "all roles; text, image_url, input_audio, audio_url, file, refusal and thinking parts; reasoning_details are "
        "read; prefix or partial continue a final assistant message; an output without its call is refused",
    ),
    ("max_completion_tokens", "takes precedence over max_tokens"),
    ("logprobs", ""),
    ("top_logprobs", "0 to 20, requires logprobs; -1 is refused"),
    ("tools", "function, and custom with an enforced regex; lark grammars and hosted tools give a warning"),
    ("tool_choice", "all forms"),
    ("parallel_tool_calls", ""),
    ("functions", "legacy; the answer has function_call"),
    ("function_call", "legacy"),
    ("reasoning_effort", "none turns reasoning off"),
    ("thinking_token_budget", "-1 and null mean no budget"),
    ("include_reasoning", "false hides the reasoning; its tokens still count"),
    ("chat_template", "if the server allows it"),
    ("chat_template_kwargs", "keys that the server allows; enable_thinking and thinking turn reasoning on or off"),
    ("documents", "a warning where the chat template does not read them"),
    ("add_generation_prompt", ""),
    ("continue_final_message", "requires a final assistant message"),
    ("return_prompt_text", ""),
    ("store", "true stores the completion; a warning if the server has no store"),
    ("verbosity", "validated; low and high have no effect and give a warning"),
)


_UNSUPPORTED = (
    *accept(DIALECT, "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", note="caching is automatic"),
    *warn(DIALECT, "prediction", "the prediction was not used; it does not affect the answer"),
    *reject(DIALECT, "modalities", "only text output is supported", ["text"], []),
    *reject(DIALECT, "audio", "only text output is supported"),
    *reject(DIALECT, "web_search_options", "web search is not supported"),
    *reject(DIALECT, "moderation", "moderation is not supported"),
    *reject(DIALECT, "echo", "chat prompts cannot be echoed; see return_prompt_text", False),
    *reject(DIALECT, "best_of", "use n", 1),
    *reject(DIALECT, "media_io_kwargs", "media processing is configured by the server", {}),
    *reject(DIALECT, "mm_processor_kwargs", "media processing is configured by the server", {}),
)

CHAT = ParameterTable(
    (
        *(row for name, note in (*_HONOURED, *SHARED_HONOURED) for row in honour(DIALECT, name, note=note)),
        *build_shared_rows(DIALECT),
        *_UNSUPPORTED,
    )
)
