"""Parses a Completions body.

A body with several prompts becomes one request for each.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ...core.request import GenerateRequest
from ..chunk_envelope import ResponseId
from ..constraint_fields import read_constraint_fields
from ..field_errors import invalid_value, missing_parameter
from ..generation_fields import (
    FORMAT_FIELDS,
    ResponseFormat,
    check_logprobs,
    check_metadata,
    check_service_tier,
    get_max_logprobs,
    resolve_model,
)
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..request_body import BodySchema, ParsedBody
from ..unknown_fields import NestedRules
from .wire import COMPLETIONS, CompletionsBody, CompletionsPromptFields
from .writer import CompletionsRenderOptions, CompletionsWriter

ID_PREFIX = "cmpl-"
MAX_PROMPTS = 2_048
# The default of OpenAI's API and of vLLM.
DEFAULT_MAX_TOKENS = 16

_PROMPT_FIELDS = BodySchema(CompletionsPromptFields)
_BODY = BodySchema(CompletionsBody, NestedRules(tagged={ResponseFormat: FORMAT_FIELDS}))


class _CompletionsPlan(Struct, frozen=True):
    """What the fields of a body besides `CompletionsPromptFields` say.

    request: without its prompt.
    """

    body: CompletionsBody
    request: GenerateRequest
    writer: Callable[[Header], CompletionsWriter]
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]


def read_completions(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a Completions body. Raises only RequestError."""
    parsed = ParsedBody(data)
    # Checked before decoding, whose error cannot name the route that the client meant.
    if "prompt" not in parsed.fields:
        if "messages" in parsed.fields:
            raise missing_parameter(
                "prompt",
                " A body with 'messages' is a chat request: POST it to /v1/chat/completions.",
            )
        if "input" in parsed.fields:
            raise missing_parameter(
                "prompt", " A body with 'input' is a Responses request: POST it to /v1/responses."
            )
        # `classify_body` rejects `prompt_embeds` with a more specific error than that
        # of a missing prompt.
        if "prompt_embeds" not in parsed.fields:
            raise missing_parameter("prompt")
    plan = options.plans.find_or_build(
        _CompletionsPlan,
        parsed.fields,
        CompletionsPromptFields.__struct_fields__,
        (options,),
        lambda fields: _build_plan(fields, options),
    )
    body = plan.body
    fields = parsed.decode(_PROMPT_FIELDS)
    prompts = read_prompts(fields.prompt)
    body.read_choice_count(options, len(prompts))
    request = plan.request
    if suffix := fields.suffix:
        if body.echo:
            # The model sees the suffix before the answer, so that no echo could show the
            # prompt where it belongs.
            raise invalid_value("suffix", "it cannot be combined with 'echo'")
        if not all([isinstance(prompt, str) for prompt in prompts]):
            raise invalid_value("suffix", "it needs prompts that are texts")
        request = replace(request, suffix=suffix)
    return GenerationCall(
        tuple([replace(request, prompt=prompt) for prompt in prompts]),
        bool(body.stream),
        ID_PREFIX,
        plan.writer,
        plan.warnings,
        plan.unknown,
    )


def _build_plan(data: bytes, options: ReaderOptions) -> _CompletionsPlan:
    """data: the body without `CompletionsPromptFields`."""
    parsed = ParsedBody(data)
    body = parsed.decode(_BODY)
    warnings, unknown = COMPLETIONS.classify_body(parsed, _BODY)
    check_metadata(body.metadata)
    check_service_tier(body.service_tier, warnings)
    request = _build_request(body, options)
    render_options = _build_render_options(body, options)
    id = ResponseId(ID_PREFIX, body.request_id)

    def writer(header: Header) -> CompletionsWriter:
        return CompletionsWriter(id.apply_to(header), render_options)

    return _CompletionsPlan(body, request, writer, tuple(warnings), unknown)


def _build_request(body: CompletionsBody, options: ReaderOptions) -> GenerateRequest:
    """Build the request without its prompt."""
    choices = body.read_choice_count(options)
    logprobs = _read_logprobs(body, options)
    # An echoed prompt gets as many alternatives as the answer.
    counts = [
        count
        for count in (body.read_prompt_logprobs(), logprobs if body.echo else None)
        if count is not None
    ]
    prompt_logprobs = max(counts) if counts else None
    logprob_ids = body.read_logprob_ids(logprobs)
    if logprob_ids and body.echo:
        # As in vLLM: the logprobs of an echoed prompt have no such alternatives.
        raise invalid_value("logprob_token_ids", "it cannot be combined with 'echo'")
    best_of = body.best_of or None
    if best_of is not None and best_of < choices:
        raise invalid_value("best_of", f"it must not be less than n={choices}")
    if best_of is not None and body.stream and best_of > choices:
        raise invalid_value("best_of", "results cannot be streamed when it is greater than 'n'")
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    # Without new tokens there must be something else to return.
    if max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        raise invalid_value(
            "max_tokens",
            "0 needs 'echo' or 'prompt_logprobs'; otherwise expected -1 or an integer >= 1",
        )
    limits = body.read_limits(options, None if max_tokens == -1 else max_tokens)
    constraint, constraint_param = read_constraint_fields(body)
    return GenerateRequest(
        model=resolve_model(body.model, options),
        prompt="",
        choices=choices,
        best_of=best_of,
        sampling=body.build_sampling(),
        limits=limits,
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=logprobs,
        logprob_ids=logprob_ids,
        prompt_logprobs=prompt_logprobs,
        return_prompt=bool(body.echo or body.return_token_ids) or prompt_logprobs is not None,
        special_tokens_in_text=body.skip_special_tokens is False,
        add_special_tokens=body.add_special_tokens is not False,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        extras=body.build_extras(),
    )


def read_prompts(
    prompt: str | list[str | int | list[int]] | None,
) -> tuple[str | tuple[int, ...], ...]:
    """Split the field into prompts, each a text or token ids. Raises RequestError."""
    if prompt is None:
        raise missing_parameter("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid_value("prompt", "it must not be an empty array")
    # OpenAI's field is overloaded: an array of integers is one prompt, an array of
    # anything else several.
    ids = tuple(entry for entry in prompt if isinstance(entry, int))
    if len(ids) == len(prompt):
        return (ids,)
    if len(prompt) > MAX_PROMPTS:
        raise invalid_value("prompt", f"expected at most {MAX_PROMPTS} prompts, got {len(prompt)}")
    if ids or len({type(entry) for entry in prompt}) > 1:
        raise invalid_value(
            "prompt", "expected strings, token ids or arrays of token ids, but not a mixture"
        )
    prompts: list[str | tuple[int, ...]] = []
    for i, entry in enumerate(prompt):
        if isinstance(entry, int) or entry == []:
            raise invalid_value(f"prompt[{i}]", "it must not be an empty array")
        prompts.append(entry if isinstance(entry, str) else tuple(entry))
    return tuple(prompts)


def _read_logprobs(body: CompletionsBody, options: ReaderOptions) -> int | None:
    count = check_logprobs(body.logprobs, "logprobs")
    max_logprobs = get_max_logprobs(options.profile)
    if count is not None and count > max_logprobs:
        raise invalid_value("logprobs", f"expected an integer <= {max_logprobs}")
    return count


def _build_render_options(
    body: CompletionsBody, options: ReaderOptions
) -> CompletionsRenderOptions:
    include_usage, continuous_usage = body.read_usage_options()
    return CompletionsRenderOptions(
        profile=options.profile,
        logprobs=len(body.logprob_token_ids) + 1
        if body.logprob_token_ids
        else _read_logprobs(body, options),
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
