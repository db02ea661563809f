"""What becomes of every parameter of Messages and of count_tokens."""

from __future__ import annotations

from ..chat.parameters import SHARED_HONOURED, shared_hints
from ..fields import Decoding
from ..support import Rules, Support, accepted, honoured, refused, warned

DIALECT, COUNTING = "messages", "count_tokens"

_PROMPTING = (
    ("model", "optional if the server has a default model"),
    (
        "messages",
        "user, assistant, system; adjacent messages of the same role form one turn; a final assistant message is "
        "continued. Blocks: text, image, document, search_result, tool_use, tool_result, thinking; "
        "hosted tools' calls and "
        "results are replayed as far as they can be parsed; thinking and redacted_thinking that this server did not "
        "sign or encrypt for this key are handled as --reasoning-verification specifies",
    ),
    (
        "system",
        "a string or text blocks; Claude Code's billing header, which changes with each request, is omitted unless the "
        "server is configured to include it",
    ),
    (
        "tools",
        "custom tools, and bash, text_editor, computer and memory as functions; hosted tools are omitted with a "
        "warning. Deferred tools are included in the prompt; input_examples are added to the description",
    ),
    ("tool_choice", "auto, any, tool, none, disable_parallel_tool_use"),
    (
        "thinking",
        "enabled and adaptive turn it on, between_tools only after a tool result, disabled turns it off; the default "
        "is the model's. budget_tokens is enforced; display omitted returns no text",
    ),
    ("output_config", "effort, and format with json_schema"),
    ("output_format", "former name of output_config.format"),
    (
        "context_management",
        "clear_tool_uses_20250919 and clear_thinking_20251015; other edits are ignored with a warning",
    ),
    (
        "thread",
        "create and continue; without a store, a 400 that makes the official SDK send the whole conversation",
    ),
    ("chat_template", "if the server allows it"),
    ("chat_template_kwargs", "keys that the server allows; enable_thinking and thinking turn thinking on or off"),
)

_OWN = (
    ("max_tokens", "required; 0 only fills the prefix cache, -1 is the rest of the context"),
    ("stream", ""),
    ("stop_sequences", "maximum count set by the server"),
    ("metadata", "user_id has no effect"),
    ("service_tier", "auto and standard_only; there is one tier, reported as standard"),
)

_NOTES = dict(SHARED_HONOURED)

_HINTS = (
    *accepted(DIALECT, "cache_control", note="caching is automatic"),
    *accepted(DIALECT, "betas", note="beta headers of any value are accepted"),
    *accepted(DIALECT, "user_profile_id", "workspace_id", "billing_policy", note="this server has no accounts"),
    *accepted(DIALECT, "fallback_credit_token", note="this server does no billing"),
    *accepted(DIALECT, "stream_options", note="usage is always included"),
    *warned(DIALECT, "inference_geo", "the location cannot be selected"),
    *warned(DIALECT, "speed", "only the standard speed is available", "standard"),
    *warned(DIALECT, "fallbacks", "fallback models are not supported", [], "default"),
    *warned(DIALECT, "diagnostics", "cache diagnostics are not supported", {}, {"previous_message_id": None}),
    *refused(DIALECT, "container", "code execution containers are not supported"),
    *refused(DIALECT, "mcp_servers", "MCP servers are not supported", []),
    *refused(DIALECT, "compaction", "compaction is not supported in Messages"),
    *refused(DIALECT, "stop", "use stop_sequences", []),
    *refused(DIALECT, "response_format", "use output_config.format", {"type": "text"}),
    *refused(DIALECT, "n", "a message has exactly one answer", 1),
    *refused(DIALECT, "best_of", "a message has exactly one answer", 1),
    *refused(DIALECT, "logprobs", "a message has no field for them; use /v1/chat/completions", False),
    *refused(DIALECT, "top_logprobs", "a message has no field for them; use /v1/chat/completions", 0),
    *refused(DIALECT, "prompt_logprobs", "a message has no field for them; use /v1/chat/completions"),
    *refused(DIALECT, "return_token_ids", "a message has no field for them; use /v1/chat/completions", False),
)


def _rows() -> tuple[Support, ...]:
    shared = ((name, _NOTES[name]) for name in Decoding.__struct_fields__)
    rows = (row for name, note in (*_PROMPTING, *_OWN, *shared) for row in honoured(DIALECT, name, note=note))
    return (*rows, *shared_hints(DIALECT), *_HINTS)


MESSAGES = Rules(_rows())

_COUNTED = frozenset(name for name, _ in _PROMPTING)
COUNT_TOKENS = Rules(
    (
        *(row for name, note in _PROMPTING for row in honoured(COUNTING, name, note=note)),
        *(
            row
            for known in MESSAGES.rows
            if known.name not in _COUNTED
            for row in accepted(COUNTING, known.name, note="does not change the count")
        ),
    )
)
