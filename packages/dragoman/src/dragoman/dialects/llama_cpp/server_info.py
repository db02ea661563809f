"""The responses of /props, /slots and /apply-template."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.request import Sampling


class LlamaCppParams(Struct, frozen=True):
    """The defaults of a request. seed: 4294967295 is random."""

    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int = 2**32 - 1


class LlamaCppDefaults(Struct, frozen=True):
    n_ctx: int
    params: LlamaCppParams


class LlamaCppModalities(Struct, frozen=True):
    vision: bool
    audio: bool


class LlamaCppProps(Struct, frozen=True):
    """The body of /props.

    model_path: the model's name; the server's folders are nobody's business.
    chat_template: empty if the engine does not tell it.
    """

    default_generation_settings: LlamaCppDefaults
    model_path: str
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: LlamaCppModalities
    build_info: str
    is_sleeping: bool = False


class LlamaCppSlot(Struct, frozen=True):
    """A request that runs, or the place for the next one.

    id: index in the list.
    """

    id: int
    n_ctx: int
    is_processing: bool


class LlamaCppPrompt(Struct, frozen=True):
    prompt: str


def build_defaults(n_ctx: int, sampling: Sampling, max_new_tokens: int | None) -> LlamaCppDefaults:
    params = LlamaCppParams(
        -1 if max_new_tokens is None else max_new_tokens,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
    return LlamaCppDefaults(n_ctx, params)


def render_slots(n_running: int, n_ctx: int) -> bytes:
    """Serialize one slot for each running request, and an idle one."""
    slots = [LlamaCppSlot(i, n_ctx, i < n_running) for i in range(n_running + 1)]
    return msgspec.json.encode(slots)
