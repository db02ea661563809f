"""The support of every parameter of Ollama's /api/chat, /api/generate, /api/embed, /api/embeddings and of `options`."""

from __future__ import annotations

from ..parameter_table import ParameterSupport, ParameterTable, accept, honour, reject, warn

CHAT, GENERATE, OPTIONS = "ollama_chat", "ollama_generate", "ollama_options"
EMBED, EMBEDDINGS, MODEL = "ollama_embed", "ollama_embeddings", "ollama_model"

_SHARED = (
    ("model", "a name, an alias, or either followed by `:latest`; optional if the server has a default model"),
    ("stream", "true by default"),
    ("format", "`json` or a JSON Schema, both enforced"),
    ("options", "see below"),
    ("keep_alive", "seconds or a Go duration; for models that are loaded on demand; needs the right to control models"),
    ("think", "a boolean, or low, medium, high; rejected where the model does not support thinking"),
    ("truncate", "true drops the oldest turns; without it a prompt that is too long is rejected, unlike in Ollama"),
    ("logprobs", "of every token that has text, thinking and calls included"),
    ("top_logprobs", "0 to 20"),
)


def _build_shared(dialect: str) -> tuple[ParameterSupport, ...]:
    return (
        *(row for name, note in _SHARED for row in honour(dialect, name, note=note)),
        *warn(dialect, "shift", "an answer ends where the context is full", False),
        *reject(dialect, "_debug_render_only", "use /v1/chat/completions/render", False),
    )


OLLAMA_CHAT = ParameterTable(
    (
        *_build_shared(CHAT),
        *honour(CHAT, "messages", note="images in Base64; an assistant's message at the end is continued"),
        *honour(CHAT, "tools", note="functions"),
    )
)
OLLAMA_GENERATE = ParameterTable(
    (
        *_build_shared(GENERATE),
        *honour(GENERATE, "prompt", note="rendered by the chat template unless `raw`"),
        *honour(GENERATE, "suffix", note="rejected where the model has no tokens for fill-in-the-middle"),
        *honour(GENERATE, "images", note="Base64"),
        *honour(GENERATE, "system"),
        *honour(GENERATE, "template", note="a Jinja template, with `--trust-request-chat-template`"),
        *honour(GENERATE, "context", note="token ids before the prompt; for engines of tokens"),
        *honour(GENERATE, "raw"),
        *reject(GENERATE, "width", "images are not generated", 0),
        *reject(GENERATE, "height", "images are not generated", 0),
        *reject(GENERATE, "steps", "images are not generated", 0),
    )
)

_HONOURED_OPTIONS = (
    ("num_ctx", "the server's context applies; a larger one causes a warning, and nothing is cut off in silence"),
    ("num_predict", "-1, -2 and 0 are the rest of the context"),
    ("seed", "-1 is random"),
    ("stop", "a string or a list"),
    ("temperature", "0 is greedy"),
    ("top_k", "0 and below disable it"),
    ("top_p", ""),
    ("min_p", ""),
    ("repeat_penalty", "1 disables it"),
    ("presence_penalty", "-2 to 2"),
    ("frequency_penalty", "-2 to 2"),
)
_LOAD_TIME = ("numa", "num_batch", "num_gqa", "num_gpu", "main_gpu", "low_vram", "f16_kv", "use_mmap", "use_mlock")
OLLAMA_OPTIONS = ParameterTable(
    (
        *(row for name, note in _HONOURED_OPTIONS for row in honour(OPTIONS, name, note=note)),
        *accept(OPTIONS, "num_keep", note="the context is never shifted"),
        *accept(OPTIONS, "mirostat_tau", "mirostat_eta", note="no effect without mirostat"),
        *accept(OPTIONS, "vocab_only", "logits_all", "embedding_only", note="no effect on an answer"),
        *(
            row
            for name in (*_LOAD_TIME, "num_thread")
            for row in warn(OPTIONS, name, "the server's settings determine how a model is loaded")
        ),
        *warn(OPTIONS, "repeat_last_n", "penalties apply to the whole context", -1),
        *warn(OPTIONS, "penalize_newline", "penalties apply to all tokens", True),
        *reject(OPTIONS, "typical_p", "use top_p", 1, 1.0),
        *reject(OPTIONS, "tfs_z", "use top_p", 1, 1.0),
        *reject(OPTIONS, "mirostat", "use top_p", 0),
        *reject(OPTIONS, "rope_frequency_base", "set it when the model is loaded", 0, 0.0),
        *reject(OPTIONS, "rope_frequency_scale", "set it when the model is loaded", 0, 0.0, 1, 1.0),
    )
)

OLLAMA_EMBED = ParameterTable(
    (
        *honour(EMBED, "model", "input", "dimensions"),
        *honour(EMBED, "truncate", note="true by default"),
        *honour(EMBED, "keep_alive", note="as in chat"),
        *accept(EMBED, "options", note="none of them affects an embedding"),
    )
)
OLLAMA_EMBEDDINGS = ParameterTable(
    (
        *honour(EMBEDDINGS, "model", "prompt"),
        *honour(EMBEDDINGS, "keep_alive", note="as in chat"),
        *accept(EMBEDDINGS, "options", note="none of them affects an embedding"),
    )
)
OLLAMA_MODEL = ParameterTable(
    (
        *honour(MODEL, "model", note="of `/api/show` and `/api/pull`"),
        *honour(MODEL, "name", note="the deprecated name of `model`"),
        *honour(MODEL, "stream", note="of `/api/pull`: true by default"),
        *accept(MODEL, "insecure", "username", "password", note="deprecated in Ollama too"),
        *accept(MODEL, "verbose", note="all that is known is returned"),
        *reject(MODEL, "system", "there is no Modelfile to override", ""),
        *reject(MODEL, "template", "there is no Modelfile to override", ""),
        *reject(MODEL, "options", "there is no Modelfile to override", {}),
    )
)
