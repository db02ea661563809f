"""A TokenRequest in vLLM's words: its sampling parameters and its prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.engine import ThoughtLimit, TokenRequest
from ...core.errors import RequestError, Unsupported
from . import backend
from .backend import Prompt, SamplingParams, StructuredOutputs
from .facts import ThoughtMarks

_UNSALTED = ("", "\n")
"""What the pipeline makes of no salt of the server's and none of the client's."""

_SEEDS = (1 << 63) - 1
"""vLLM's seeds are 64-bit numbers of which -1 means none; here every number is a seed."""


def sampling_params(request: TokenRequest, eos: int | None, marks: ThoughtMarks | None) -> SamplingParams:
    """eos: the one token that vLLM's grammars end with. marks: None where the engine limits no thoughts.

    Ends are the stop ids of the request alone: which tokens end an answer the pipeline knows. Raises RequestError
    naming the field.
    """
    sampling, stops = request.sampling, request.stop_token_ids
    structured = None
    if request.grammar is not None:
        structured = _structured(request.grammar)
        stops = stops if eos is None else stops | {eos}
    try:
        return backend.sampling.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            seed=None if sampling.seed is None else sampling.seed & _SEEDS,
            logit_bias=dict(sampling.logit_bias) or None,
            allowed_token_ids=None if sampling.allowed_token_ids is None else list(sampling.allowed_token_ids),
            # vLLM's own field takes words and spells them; here they have been spelled.
            _bad_words_token_ids=[list(word) for word in sampling.bad_words] or None,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=sorted(stops),
            ignore_eos=True,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            structured_outputs=structured,
            thinking_token_budget=None if request.thought is None else _budget(request.thought, marks),
            extra_args=_extra_args(request),
            detokenize=False,
            output_kind=backend.sampling.RequestOutputKind.DELTA,
            skip_clone=True,
        )
    except backend.ClientError as error:
        raise refusal(error) from error


def prompt(request: TokenRequest) -> Prompt:
    salt = None if request.cache_salt in _UNSALTED else request.cache_salt
    return backend.inputs.tokens_input(list(request.prompt), cache_salt=salt)


def refusal(error: Exception) -> RequestError:
    """The field that vLLM names, where it names one. What it was set to stays out of the message."""
    parameter: object = vars(error).get("parameter")
    message = str(error.args[0]) if error.args else str(error)
    return RequestError(message, param=parameter if isinstance(parameter, str) else None)


def _structured(grammar: str) -> StructuredOutputs:
    """vLLM asks llguidance, as the pipeline does, and so the same grammar allows the same tokens."""
    if grammar.startswith("{"):
        raise Unsupported(
            "This model's engine does not support a grammar together with tools or reasoning.", param="response_format"
        )
    return backend.sampling.StructuredOutputsParams(grammar=grammar)


def _budget(thought: ThoughtLimit, marks: ThoughtMarks | None) -> int:
    if marks != (thought.begin, thought.end) or thought.close != thought.end:
        raise Unsupported("This model's engine does not support reasoning budgets.", param="thinking_token_budget")
    return thought.tokens


def _extra_args(request: TokenRequest) -> dict[str, Any] | None:
    """Where vLLM's own server puts them."""
    extras = dict(request.extras)
    found: dict[str, Any] = {}
    if "vllm_xargs" in extras:
        found |= msgspec.json.decode(extras["vllm_xargs"], type=dict[str, Any])
    if "kv_transfer_params" in extras:
        found["kv_transfer_params"] = msgspec.json.decode(extras["kv_transfer_params"])
    return found or None
