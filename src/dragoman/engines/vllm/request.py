"""Converts a TokenRequest to vLLM's sampling parameters and prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.engine import ReasoningBudget, TokenRequest
from ...core.errors import RequestError, Unsupported
from . import backend
from .backend import Prompt, SamplingParams, StructuredOutputs
from .config import ReasoningDelimiters
from .images import get_image

_EMPTY_SALTS = ("", "\n")
"""The pipeline's salt if neither the server nor the client sets one."""

_SEED_MASK = (1 << 63) - 1
"""vLLM's seeds are 64-bit, and -1 means none; here every integer is a valid seed."""


def build_sampling_params(
    request: TokenRequest, eos: int | None, delimiters: ReasoningDelimiters | None
) -> SamplingParams:
    """Build sampling parameters.

    eos: the token that ends vLLM's grammars.
    delimiters: None if the engine does not support reasoning budgets.

    Only the request's stop ids end the output: the pipeline determines them.

    Raises: RequestError naming the field.
    """
    sampling, stop_ids = request.sampling, request.stop_token_ids
    structured = None
    if request.grammar is not None:
        structured = _build_structured_outputs(request.grammar)
        # A grammar of vLLM can only end with this token, which then has to end the output too.
        stop_ids = stop_ids if eos is None else stop_ids | {eos}
    try:
        return backend.sampling.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            seed=None if sampling.seed is None else sampling.seed & _SEED_MASK,
            logit_bias=dict(sampling.logit_bias) or None,
            allowed_token_ids=None if sampling.allowed_token_ids is None else list(sampling.allowed_token_ids),
            # vLLM's public field takes words and tokenizes them; here they are token ids already.
            _bad_words_token_ids=[list(word) for word in sampling.bad_words] or None,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=sorted(stop_ids),
            ignore_eos=True,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            structured_outputs=structured,
            thinking_token_budget=None
            if request.reasoning_budget is None
            else _get_reasoning_budget(request.reasoning_budget, delimiters),
            extra_args=_build_extra_args(request),
            detokenize=False,
            output_kind=backend.sampling.RequestOutputKind.DELTA,
            skip_clone=True,
        )
    except backend.ClientError as error:
        raise build_request_error(error) from error


def build_prompt(request: TokenRequest) -> Prompt:
    salt = None if request.cache_salt in _EMPTY_SALTS else request.cache_salt
    if not request.images:
        return backend.inputs.tokens_input(list(request.prompt), cache_salt=salt)
    images = [get_image(image) for image in request.images]
    places = [
        backend.mm_types.PlaceholderRange(place.begin, place.end - place.begin, image.mask)
        for place, image in zip(request.images, images, strict=True)
    ]
    return backend.inputs.mm_input(
        list(request.prompt),
        backend.mm_types.MultiModalKwargsItems({"image": [image.item for image in images]}),
        {"image": [image.hash for image in images]},
        {"image": places},
        cache_salt=salt,
    )


def read_routing(request: TokenRequest) -> dict[str, Any]:
    """Arguments of `generate` that select an engine core, from where vLLM's own server reads them."""
    extras = dict(request.extras)
    routing: dict[str, Any] = {}
    if "data_parallel_rank" in extras:
        routing["data_parallel_rank"] = int(extras["data_parallel_rank"])
    session_id: object = None
    if "session_id" in extras:
        session_id = msgspec.json.decode(extras["session_id"])
    elif "vllm_xargs" in extras:
        session_id = msgspec.json.decode(extras["vllm_xargs"], type=dict[str, Any]).get("session_id")
    if isinstance(session_id, str) and session_id:
        routing["session_id"] = session_id
    return routing


def build_request_error(error: Exception) -> RequestError:
    """Build the error, with the field if vLLM names it. Values stay out of the message."""
    parameter: object = vars(error).get("parameter")
    message = str(error.args[0]) if error.args else str(error)
    return RequestError(message, param=parameter if isinstance(parameter, str) else None)


def _build_structured_outputs(grammar: str) -> StructuredOutputs:
    """vLLM uses llguidance, as the pipeline does, so a grammar allows the same tokens."""
    if grammar.startswith("{"):
        raise Unsupported(
            "This model's engine does not support a grammar together with tools or reasoning.", param="response_format"
        )
    return backend.sampling.StructuredOutputsParams(grammar=grammar)


def _get_reasoning_budget(budget: ReasoningBudget, delimiters: ReasoningDelimiters | None) -> int:
    if delimiters != (budget.begin_ids, budget.end_ids) or budget.forced_ids != budget.end_ids:
        raise Unsupported("This model's engine does not support reasoning budgets.", param="thinking_token_budget")
    return budget.max_tokens


def _build_extra_args(request: TokenRequest) -> dict[str, Any] | None:
    """Build extra arguments, placed as by vLLM's own server."""
    extras = dict(request.extras)
    extra_args: dict[str, Any] = {}
    if "vllm_xargs" in extras:
        extra_args |= msgspec.json.decode(extras["vllm_xargs"], type=dict[str, Any])
    if "kv_transfer_params" in extras:
        extra_args["kv_transfer_params"] = msgspec.json.decode(extras["kv_transfer_params"])
    return extra_args or None
