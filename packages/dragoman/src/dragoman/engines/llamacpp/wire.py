"""Wire types of llama.cpp's API (tools/server/README.md, `POST /completion`), as far as
used.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class TopLogprob(Struct, frozen=True):
    """An alternative. logprob: None stands for minus infinity or NaN."""

    id: int
    logprob: float | None


class ScoredToken(Struct, frozen=True):
    """A sampled token. logprob: None if the model's logits are not finite."""

    id: int
    logprob: float | None
    top_logprobs: tuple[TopLogprob, ...] = ()


class PromptProgress(Struct, frozen=True):
    """Progress of prompt processing, in tokens.

    total: tokens of the prompt.
    cache: tokens reused from the cache.
    processed: tokens processed so far.
    """

    total: int = 0
    cache: int = 0
    processed: int = 0


class LlamaCppErrorBody(Struct, frozen=True):
    message: str = ""
    type: str = ""


class CompletionChunk(Struct, frozen=True):
    """One event of a completion, or a non-streamed one.

    tokens_predicted: number of tokens so far, including unreported ones (see
        `token_text.TokenText`).
    stop: whether it is the last event.
    """

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    tokens_predicted: int = 0
    stop_type: str = "none"
    prompt_progress: PromptProgress | None = None
    completion_probabilities: tuple[ScoredToken, ...] = ()
    error: LlamaCppErrorBody | None = None


decode_chunk = msgspec.json.Decoder(CompletionChunk).decode


class MultimodalPrompt(Struct, frozen=True):
    """A prompt with images: a text with a marker for each image, and the images in
    base64.
    """

    prompt_string: str
    multimodal_data: tuple[str, ...]


SAMPLERS = ("penalties", "top_k", "temperature", "min_p", "top_p")
"""vLLM's samplers; llama.cpp's defaults differ.

top_k comes before temperature, which leaves the same tokens and gives the later
samplers fewer of them.
"""


class CompletionBody(Struct, frozen=True):
    """The body of a request to `/completion`. samplers: in the order of their
    application.
    """

    prompt: tuple[int, ...] | MultimodalPrompt
    n_predict: int
    id_slot: int
    stream: bool
    cache_prompt: bool
    temperature: float
    seed: int
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    samplers: tuple[str, ...] = SAMPLERS
    return_tokens: bool = False
    return_progress: bool = False
    logit_bias: tuple[tuple[int, float | bool], ...] = ()
    n_probs: int = 0
    grammar: str = ""
    response_fields: tuple[str, ...] = ()


class ServerTokens(Struct, frozen=True):
    tokens: tuple[int, ...]


class InputTokensResponse(Struct, frozen=True):
    """Token count of a conversation."""

    input_tokens: int


class EmbeddingItem(Struct, frozen=True):
    """An embedding.

    embedding: a list with one vector, since the model pools; null is a non-finite
    number. For a reranker only the first value, the score, is valid: llama.cpp leaves
    the others uninitialized.
    """

    index: int
    embedding: tuple[tuple[float | None, ...], ...]
