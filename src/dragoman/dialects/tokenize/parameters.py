"""The support of every parameter of /tokenize and /detokenize."""

from __future__ import annotations

from ..parameter_table import ParameterTable, accept, honour, reject

TOKENIZE = ParameterTable(
    (
        *honour("tokenize", "model", note="optional if the server has a default model"),
        *honour("tokenize", "prompt", note="a string; alternative to messages"),
        *honour("tokenize", "messages", "tools", note="as in chat"),
        *honour("tokenize", "add_special_tokens", note="true by default for a prompt, false for messages"),
        *honour("tokenize", "return_token_strs"),
        *honour("tokenize", "add_generation_prompt", "continue_final_message", note="as in chat"),
        *honour("tokenize", "chat_template", "chat_template_kwargs", "documents", note="as in chat"),
        *reject("tokenize", "media_io_kwargs", "media processing is configured by the server", {}),
        *reject("tokenize", "mm_processor_kwargs", "media processing is configured by the server", {}),
    )
)
DETOKENIZE = ParameterTable(
    (
        *honour("detokenize", "model", note="optional if the server has a default model"),
        *honour("detokenize", "tokens"),
        *honour("detokenize", "return_token_strs", note="each token's text, and which tokens are control tokens"),
        *accept("detokenize", "skip_special_tokens", note="ignored, as in vLLM: every token is decoded"),
    )
)
