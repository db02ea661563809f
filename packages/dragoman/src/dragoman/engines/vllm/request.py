"""Converts a TokenRequest to vLLM's sampling parameters and prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.errors import RequestError, Unsupported
from ...core.token_engine import (
    TokenRequest,
)
from . import backend
from .backend import (
    SamplingParams,
    StructuredOutputs,
    VllmPrompt,
)
from .features import COPIED_PARAMETERS, ReasoningDelimiters
from .vision import get_image

_EMPTY_SALTS = ("", "\n")
"""The pipeline's salt if neither the server nor the client sets one."""

_SEED_MASK = (1 << 63) - 1
"""vLLM's seeds are 64-bit, and -1 means none; here every integer is a valid seed."""


def build_sampling_params(
    request: TokenRequest, eos: int | None, delimiters: ReasoningDelimiters | None
) -> SamplingParams:
    """Build sampling parameters.

    eos: the token that ends the output of a grammar.
    delimiters: those that vLLM was started with; None if the engine does not support
        reasoning budgets.

    vLLM's own end-of-sequence handling is off: only the stop ids that the pipeline has
    determined end the output.

    Raises: RequestError naming the field.
    """
    sampling = request.sampling
    stop_ids = request.stop_token_ids
    structured: StructuredOutputs | None = None
    if request.grammar is not None:
        if request.grammar.startswith("{"):
            message = (
                "This model's engine does not support a grammar together with tools or reasoning."
            )
            raise Unsupported(message, param="response_format")
        # vLLM uses llguidance, as the pipeline does, so a grammar allows the same
        # tokens.
        structured = backend.sampling.StructuredOutputsParams(grammar=request.grammar)
        # In vLLM a grammar can only end with this token, so the token has to end the
        # output too.
        stop_ids = stop_ids if eos is None else stop_ids | {eos}
    budget = request.reasoning_budget
    if budget is not None and (
        delimiters != (budget.begin_ids, budget.end_ids) or budget.forced_ids != budget.end_ids
    ):
        raise Unsupported(
            "This model's engine does not support reasoning budgets.", param="thinking_token_budget"
        )
    try:
        return backend.sampling.SamplingParams(
            **{name: getattr(sampling, name) for name in COPIED_PARAMETERS},
            seed=None if sampling.seed is None else sampling.seed & _SEED_MASK,
            logit_bias=dict(sampling.logit_bias) or None,
            allowed_token_ids=None
            if sampling.allowed_token_ids is None
            else list(sampling.allowed_token_ids),
            # vLLM's public field takes words and tokenizes them; here they are token
            # ids already.
            _bad_words_token_ids=[list(word) for word in sampling.bad_words] or None,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=sorted(stop_ids),
            ignore_eos=True,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            structured_outputs=structured,
            thinking_token_budget=None if budget is None else budget.max_tokens,
            extra_args=_build_extra_args(request),
            detokenize=False,
            output_kind=backend.sampling.RequestOutputKind.DELTA,
            skip_clone=True,
        )
    except backend.ClientError as error:
        raise build_request_error(error) from error


def build_prompt(request: TokenRequest) -> VllmPrompt:
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
    """Return the arguments of `generate` that select an engine core, read from the same
    fields as in vLLM's server.
    """
    extras = request.extras
    routing: dict[str, Any] = {}
    if extras.data_parallel_rank is not None:
        routing["data_parallel_rank"] = extras.data_parallel_rank
    session_id: object = extras.session_id
    if session_id is None and extras.vllm_xargs is not None:
        session_id = msgspec.json.decode(extras.vllm_xargs, type=dict[str, Any]).get("session_id")
    if isinstance(session_id, str) and session_id:
        routing["session_id"] = session_id
    return routing


def build_request_error(error: Exception) -> RequestError:
    """Build the error of a request that vLLM rejects, with the field if vLLM names it."""
    parameter: object = vars(error).get("parameter")
    message = str(error.args[0]) if error.args else str(error)
    return RequestError(message, param=parameter if isinstance(parameter, str) else None)


def _build_extra_args(request: TokenRequest) -> dict[str, Any] | None:
    """Build `extra_args` in the form of vLLM's own server."""
    extras = request.extras
    extra_args: dict[str, Any] = {}
    if extras.vllm_xargs is not None:
        extra_args |= msgspec.json.decode(extras.vllm_xargs, type=dict[str, Any])
    if extras.kv_transfer_params is not None:
        extra_args["kv_transfer_params"] = msgspec.json.decode(extras.kv_transfer_params)
    return extra_args or None
