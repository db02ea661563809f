"""A Completions body to a Call: one request a prompt."""

from __future__ import annotations

from typing import TypeGuard

from msgspec import Raw

from ...core.request import GenerateRequest
from ..base import Call, Header, ReaderOptions
from ..body import Body, Shape, invalid, missing
from ..constraints import read_constraint
from ..envelope import AnswerId
from ..fields import alternatives, check_metadata, check_service_tier, model_of, most_logprobs
from .parameters import COMPLETIONS
from .wire import CompletionsBody
from .writer import CompletionsView, CompletionsWriter

ID_PREFIX = "cmpl-"
MAX_PROMPTS = 2_048
DEFAULT_MAX_TOKENS = 16

_SHAPE = Shape(CompletionsBody)


def read_completions(data: bytes, options: ReaderOptions) -> Call:
    """Raises RequestError, and nothing else."""
    parsed = Body(data)
    _require_prompt(parsed.fields)
    body = parsed.read(_SHAPE)
    warnings, unknown = COMPLETIONS.judge(parsed.others(_SHAPE.names))
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    requests = _requests(body, options)
    view = _view(body, options)
    id = AnswerId(ID_PREFIX, body.request_id)

    def writer(header: Header) -> CompletionsWriter:
        return CompletionsWriter(id.over(header), view)

    return Call(requests, bool(body.stream), ID_PREFIX, writer, tuple(warnings), unknown)


def _require_prompt(fields: dict[str, Raw]) -> None:
    if "prompt" in fields:
        return
    if "messages" in fields:
        raise missing("prompt", " A body with 'messages' is a chat request: POST it to /v1/chat/completions.")
    if "input" in fields:
        raise missing("prompt", " A body with 'input' is a Responses request: POST it to /v1/responses.")
    if "prompt_embeds" not in fields:
        raise missing("prompt")


def _requests(body: CompletionsBody, options: ReaderOptions) -> tuple[GenerateRequest, ...]:
    prompts = read_prompts(body.prompt)
    choices = body.choices(options, len(prompts))
    logprobs = _logprobs(body, options)
    scored = _scored_prompt(body, logprobs)
    model, best_of = model_of(body.model, options), _best_of(body, choices)
    sampling, limits, extras = body.sampling(), body.limits(options, _max_tokens(body)), body.extras()
    constraint = read_constraint(body)
    returned = bool(body.echo or body.return_token_ids) or scored is not None
    return tuple(
        GenerateRequest(
            model=model,
            prompt=prompt,
            choices=choices,
            best_of=best_of,
            sampling=sampling,
            limits=limits,
            constraint=constraint,
            logprobs=logprobs,
            prompt_logprobs=scored,
            return_prompt=returned,
            special_tokens_in_text=body.skip_special_tokens is False,
            add_special_tokens=body.add_special_tokens is not False,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            extras=extras,
        )
        for prompt in prompts
    )


def read_prompts(prompt: str | list[str | int | list[int]] | None) -> tuple[str | tuple[int, ...], ...]:
    """One a prompt: its text or its token ids."""
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid("prompt", "it must not be an empty array")
    if _all_ids(prompt):
        return (tuple(prompt),)
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"expected at most {MAX_PROMPTS} prompts, got {len(prompt)}")
    if any(isinstance(one, int) for one in prompt) or len({type(one) for one in prompt}) > 1:
        raise invalid("prompt", "expected strings, token ids or arrays of token ids, but not a mixture")
    return tuple(_one(one, f"prompt[{i}]") for i, one in enumerate(prompt))


def _all_ids(prompt: list[str | int | list[int]]) -> TypeGuard[list[int]]:
    return all(isinstance(one, int) for one in prompt)


def _one(prompt: str | int | list[int], param: str) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, int) or not prompt:
        raise invalid(param, "it must not be an empty array")
    return tuple(prompt)


def _max_tokens(body: CompletionsBody) -> int | None:
    """0 makes sense only where something else than new tokens was asked for."""
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if most == 0 and not body.echo and body.prompt_logprobs is None:
        raise invalid("max_tokens", "0 needs 'echo' or 'prompt_logprobs'; otherwise expected -1 or an integer >= 1")
    return None if most == -1 else most


def _best_of(body: CompletionsBody, n: int) -> int | None:
    if not body.best_of:
        return None
    if body.best_of < n:
        raise invalid("best_of", f"it must not be less than n={n}")
    if body.stream and body.best_of > n:
        raise invalid("best_of", "results cannot be streamed when it is greater than 'n'")
    return body.best_of


def _logprobs(body: CompletionsBody, options: ReaderOptions) -> int | None:
    count = alternatives(body.logprobs, "logprobs")
    most = most_logprobs(options.profile)
    if count is not None and count > most:
        raise invalid("logprobs", f"expected an integer <= {most}")
    return count


def _scored_prompt(body: CompletionsBody, logprobs: int | None) -> int | None:
    """An echoed prompt has logprobs as the answer has."""
    asked = [count for count in (body.scored_prompt(), logprobs if body.echo else None) if count is not None]
    return max(asked) if asked else None


def _view(body: CompletionsBody, options: ReaderOptions) -> CompletionsView:
    include_usage, continuous_usage = body.includes_usage()
    return CompletionsView(
        profile=options.profile,
        logprobs=_logprobs(body, options),
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        service_tier=body.service_tier is not None,
        weight_versions=bool(body.return_weight_versions),
        echo=bool(body.echo),
        special_tokens_in_text=body.skip_special_tokens is False,
    )
