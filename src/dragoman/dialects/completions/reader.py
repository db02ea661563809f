"""Parses a Completions body to a GenerationCall with one request for each prompt."""

from __future__ import annotations

from msgspec import Raw

from ...core.request import GenerateRequest
from ..base import GenerationCall, Header, ReaderOptions
from ..body import BodySchema, ParsedBody, invalid_value, missing_parameter
from ..constraints import read_constraint_fields
from ..envelope import ResponseId
from ..fields import check_logprobs, check_metadata, check_service_tier, get_max_logprobs, resolve_model
from .parameters import COMPLETIONS
from .wire import CompletionsBody
from .writer import CompletionsRenderOptions, CompletionsWriter

ID_PREFIX = "cmpl-"
MAX_PROMPTS = 2_048
# The default of OpenAI's API and of vLLM.
DEFAULT_MAX_TOKENS = 16

_SCHEMA = BodySchema(CompletionsBody)


def read_completions(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data)
    _require_prompt(parsed.fields)
    body = parsed.decode(_SCHEMA)
    warnings, unknown = COMPLETIONS.classify_body(parsed, _SCHEMA)
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    requests = _build_requests(body, options)
    render_options = _build_render_options(body, options)
    id = ResponseId(ID_PREFIX, body.request_id)

    def writer(header: Header) -> CompletionsWriter:
        return CompletionsWriter(id.apply_to(header), render_options)

    return GenerationCall(requests, bool(body.stream), ID_PREFIX, writer, tuple(warnings), unknown)


def _require_prompt(fields: dict[str, Raw]) -> None:
    if "prompt" in fields:
        return
    if "messages" in fields:
        raise missing_parameter("prompt", " A body with 'messages' is a chat request: POST it to /v1/chat/completions.")
    if "input" in fields:
        raise missing_parameter("prompt", " A body with 'input' is a Responses request: POST it to /v1/responses.")
    if "prompt_embeds" not in fields:
        raise missing_parameter("prompt")


def _build_requests(body: CompletionsBody, options: ReaderOptions) -> tuple[GenerateRequest, ...]:
    prompts = read_prompts(body.prompt)
    choices = body.read_choice_count(options, len(prompts))
    logprobs = _read_logprobs(body, options)
    # An echoed prompt has as many alternatives as the answer.
    counts = [count for count in (body.read_prompt_logprobs(), logprobs if body.echo else None) if count is not None]
    prompt_logprobs, logprob_ids = max(counts) if counts else None, body.read_logprob_ids(logprobs)
    if logprob_ids and body.echo:
        # As in vLLM: the logprobs of an echoed prompt have no such alternatives.
        raise invalid_value("logprob_token_ids", "it cannot be combined with 'echo'")
    model, best_of = resolve_model(body.model, options), _read_best_of(body, choices)
    sampling, limits, extras = (
        body.build_sampling(),
        body.read_limits(options, _read_max_tokens(body)),
        body.build_extras(),
    )
    constraint, constraint_param = read_constraint_fields(body)
    return_prompt = bool(body.echo or body.return_token_ids) or prompt_logprobs is not None
    return tuple(
        GenerateRequest(
            model=model,
            prompt=prompt,
            choices=choices,
            best_of=best_of,
            sampling=sampling,
            limits=limits,
            constraint=constraint,
            constraint_param=constraint_param,
            logprobs=logprobs,
            logprob_ids=logprob_ids,
            prompt_logprobs=prompt_logprobs,
            return_prompt=return_prompt,
            special_tokens_in_text=body.skip_special_tokens is False,
            add_special_tokens=body.add_special_tokens is not False,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            extras=extras,
        )
        for prompt in prompts
    )


def read_prompts(prompt: str | list[str | int | list[int]] | None) -> tuple[str | tuple[int, ...], ...]:
    """One entry for each prompt: its text or its token ids."""
    if prompt is None:
        raise missing_parameter("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid_value("prompt", "it must not be an empty array")
    # OpenAI's field is overloaded: an array of integers is one prompt, an array of anything else several.
    ids = tuple(entry for entry in prompt if isinstance(entry, int))
    if len(ids) == len(prompt):
        return (ids,)
    if len(prompt) > MAX_PROMPTS:
        raise invalid_value("prompt", f"expected at most {MAX_PROMPTS} prompts, got {len(prompt)}")
    if ids or len({type(entry) for entry in prompt}) > 1:
        raise invalid_value("prompt", "expected strings, token ids or arrays of token ids, but not a mixture")
    return tuple(_read_prompt(entry, f"prompt[{i}]") for i, entry in enumerate(prompt))


def _read_prompt(prompt: str | int | list[int], param: str) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, int) or not prompt:
        raise invalid_value(param, "it must not be an empty array")
    return tuple(prompt)


def _read_max_tokens(body: CompletionsBody) -> int | None:
    """The token limit. 0 is valid only if the request asks for something besides new tokens."""
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        raise invalid_value(
            "max_tokens", "0 needs 'echo' or 'prompt_logprobs'; otherwise expected -1 or an integer >= 1"
        )
    return None if max_tokens == -1 else max_tokens


def _read_best_of(body: CompletionsBody, n: int) -> int | None:
    if not body.best_of:
        return None
    if body.best_of < n:
        raise invalid_value("best_of", f"it must not be less than n={n}")
    if body.stream and body.best_of > n:
        raise invalid_value("best_of", "results cannot be streamed when it is greater than 'n'")
    return body.best_of


def _read_logprobs(body: CompletionsBody, options: ReaderOptions) -> int | None:
    count = check_logprobs(body.logprobs, "logprobs")
    max_logprobs = get_max_logprobs(options.profile)
    if count is not None and count > max_logprobs:
        raise invalid_value("logprobs", f"expected an integer <= {max_logprobs}")
    return count


def _build_render_options(body: CompletionsBody, options: ReaderOptions) -> CompletionsRenderOptions:
    include_usage, continuous_usage = body.read_usage_options()
    return CompletionsRenderOptions(
        profile=options.profile,
        logprobs=len(body.logprob_token_ids) + 1 if body.logprob_token_ids else _read_logprobs(body, options),
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=options.tokens_as_ids
        if body.return_tokens_as_token_ids is None
        else body.return_tokens_as_token_ids,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        service_tier=body.service_tier is not None,
        weight_versions=bool(body.return_weight_versions),
        echo=bool(body.echo),
        special_tokens_in_text=body.skip_special_tokens is False,
    )
