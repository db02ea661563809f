"""What llama.cpp's own API says, as far as it is read here (tools/server/README.md, `POST /completion`)."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class TopLogprob(Struct, frozen=True):
    id: int
    logprob: float


class ScoredToken(Struct, frozen=True):
    id: int
    logprob: float
    top_logprobs: tuple[TopLogprob, ...] = ()


class PromptProgress(Struct, frozen=True):
    """total: tokens of the prompt. cache: those that were there already."""

    total: int = 0
    cache: int = 0
    processed: int = 0


class LlamaCppErrorBody(Struct, frozen=True):
    message: str = ""
    type: str = ""


class CompletionChunk(Struct, frozen=True):
    """One event of a completion, or the whole of one.

    tokens_predicted: so far, those included that are not told of (see `held`). stop: it is the last one.
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
    """A prompt with images: a text with a marker for each, and base64."""

    prompt_string: str
    multimodal_data: tuple[str, ...]


class CompletionBody(Struct, frozen=True):
    """A request of `/completion`. The samplers are vLLM's, in its order; llama.cpp's own defaults are others."""

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
    samplers: tuple[str, ...] = ("penalties", "temperature", "min_p", "top_k", "top_p")
    return_tokens: bool = False
    return_progress: bool = False
    logit_bias: tuple[tuple[int, float | bool], ...] = ()
    n_probs: int = 0
    grammar: str = ""
    response_fields: tuple[str, ...] = ()


class TokenizeResponse(Struct, frozen=True):
    tokens: tuple[int, ...]


class InputTokensResponse(Struct, frozen=True):
    """Of a conversation."""

    input_tokens: int


class EmbeddingItem(Struct, frozen=True):
    """embedding: one vector, since the model pools. null: no number; behind the score of a reranker llama.cpp leaves
    whatever lay there."""

    index: int
    embedding: tuple[tuple[float | None, ...], ...]
