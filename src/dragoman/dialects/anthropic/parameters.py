"""What becomes of every parameter of Messages and of count_tokens."""

from __future__ import annotations

from ..chat.parameters import SHARED_HONOURED, shared_hints
from ..fields import Decoding
from ..support import Rules, Support, accepted, honoured, refused, warned

DIALECT, COUNTING = "messages", "count_tokens"

_PROMPTING = (
    ("model", "optional where the server has a default model"),
    (
        "messages",
        "user, assistant, system; neighbours of one role are one turn; a last message of the assistant is continued. "
        "Blocks: text, image, document, search_result, tool_use, tool_result, thinking; hosted tools' calls and "
        "results are replayed as far as they can be read; thinking and redacted_thinking that this server did not "
        "sign or seal for this key are a matter of --reasoning-verification",
    ),
    (
        "system",
        "a string or text blocks; Claude Code's billing header, which differs each time, is left out unless the server "
        "keeps it",
    ),
    (
        "tools",
        "custom ones, and bash, text_editor, computer and memory as functions; hosted ones are left out with a "
        "warning. Deferred ones are in the prompt; input_examples are added to the description",
    ),
    ("tool_choice", "auto, any, tool, none, disable_parallel_tool_use"),
    (
        "thinking",
        "enabled and adaptive turn it on, between_tools only behind a tool's result, disabled off; without it the "
        "model's default holds. budget_tokens is enforced; display omitted leaves the text out",
    ),
    ("output_config", "effort, and format json_schema"),
    ("output_format", "the old name of output_config.format"),
    (
        "context_management",
        "clear_tool_uses_20250919 and clear_thinking_20251015; others give a warning and are not made",
    ),
    (
        "thread",
        "create and continue; where nothing is kept, a 400 that makes the official SDK send the whole conversation",
    ),
    ("chat_template", "where the server allows it"),
    ("chat_template_kwargs", "those that the server allows; enable_thinking and thinking turn thinking on or off"),
)

_OWN = (
    ("max_tokens", "required; 0 only fills the cache, -1 is the rest of the context"),
    ("stream", ""),
    ("stop_sequences", "how many is a setting of the server"),
    ("metadata", "user_id changes nothing"),
    ("service_tier", "auto and standard_only; there is one tier, and the answer calls it standard"),
)

_NOTES = dict(SHARED_HONOURED)

_HINTS = (
    *accepted(DIALECT, "cache_control", note="caching is automatic"),
    *accepted(DIALECT, "betas", note="beta headers of any value are accepted"),
    *accepted(DIALECT, "user_profile_id", "workspace_id", "billing_policy", note="there is no account"),
    *accepted(DIALECT, "fallback_credit_token", note="there is nothing to pay"),
    *accepted(DIALECT, "stream_options", note="usage always comes"),
    *warned(DIALECT, "inference_geo", "the server is where it is"),
    *warned(DIALECT, "speed", "there is one speed", "standard"),
    *warned(DIALECT, "fallbacks", "there are no other models to fall back on", [], "default"),
    *warned(DIALECT, "diagnostics", "cache misses are not explained", {}, {"previous_message_id": None}),
    *refused(DIALECT, "container", "there is no container to run code in"),
    *refused(DIALECT, "mcp_servers", "the server connects to no MCP server", []),
    *refused(DIALECT, "compaction", "conversations are not summarised"),
    *refused(DIALECT, "stop", "use stop_sequences", []),
    *refused(DIALECT, "response_format", "use output_config.format", {"type": "text"}),
    *refused(DIALECT, "n", "a message is one answer", 1),
    *refused(DIALECT, "best_of", "a message is one answer", 1),
    *refused(DIALECT, "logprobs", "a message has no place for them; use /v1/chat/completions", False),
    *refused(DIALECT, "top_logprobs", "a message has no place for them; use /v1/chat/completions", 0),
    *refused(DIALECT, "prompt_logprobs", "a message has no place for them; use /v1/chat/completions"),
    *refused(DIALECT, "return_token_ids", "a message has no place for them; use /v1/chat/completions", False),
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
