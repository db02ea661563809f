"""What becomes of every parameter of /tokenize and /detokenize."""

from __future__ import annotations

from ..support import Rules, accepted, honoured, refused

TOKENIZE = Rules(
    (
        *honoured("tokenize", "model", note="optional if the server has a default model"),
        *honoured("tokenize", "prompt", note="a string; alternative to messages"),
        *honoured("tokenize", "messages", "tools", note="as in chat"),
        *honoured("tokenize", "add_special_tokens", note="true by default for a prompt, false for messages"),
        *honoured("tokenize", "return_token_strs"),
        *honoured("tokenize", "add_generation_prompt", "continue_final_message", note="as in chat"),
        *honoured("tokenize", "chat_template", "chat_template_kwargs", "documents", note="as in chat"),
        *refused("tokenize", "media_io_kwargs", "media processing is configured by the server", {}),
        *refused("tokenize", "mm_processor_kwargs", "media processing is configured by the server", {}),
    )
)
DETOKENIZE = Rules(
    (
        *honoured("detokenize", "model", note="optional if the server has a default model"),
        *honoured("detokenize", "tokens"),
        *accepted("detokenize", "skip_special_tokens", note="ignored, as in vLLM: every token is decoded"),
    )
)
