"""vLLM's /inference/v1/generate, which maps token ids to token ids without any text.

Also renders a chat request as such a body (vLLM's /v1/chat/completions/render), which
yields the same tokens as the chat request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from ..core.engine import TokenRequest
from ..core.errors import DragomanError, FieldNames, RequestError
from ..core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    Finished,
    PromptTokens,
    Started,
    Token,
)
from ..core.reply import Reply
from ..core.request import GenerateRequest
from .base import GenerationCall, Header, Profile, ReaderOptions
from .body import (
    BodySchema,
    ParsedBody,
    invalid_value,
    missing_parameter,
    prefix_param,
    read_json_object,
)
from .envelope import (
    DONE,
    KEEPALIVE_COMMENT,
    ResponseId,
    render_finish_reason,
    render_kv_transfer,
    render_weight_versions,
)
from .errors import render_openai_error
from .fields import (
    AtLeastOne,
    CountOrUnlimited,
    DecodingFields,
    Int64,
    Logprobs,
    MAX_CHOICES,
    RequestId,
    StreamOptions,
    TokenId,
    check_logprobs,
    read_stop_strings,
    read_structured_outputs,
    require_at_most_one,
    resolve_model,
)
from .json_encoding import clamp_logprob, encode_field, encode_string
from .logprobs import render_prompt_logprobs, render_token_ids, render_usage
from .parameter_table import Note, ParameterTable, accept, read_part, reject


class VllmSamplingParams(DecodingFields, frozen=True, kw_only=True):
    """vLLM's SamplingParams, without the fields that have no meaning on the wire."""

    n: AtLeastOne | None = None
    max_tokens: Annotated[
        CountOrUnlimited | None, Note("16 by default, as in vLLM; -1 is the rest of the context")
    ] = None
    stop: Annotated[str | list[str] | None, Note("matched against the decoded text")] = None
    logprobs: Annotated[Logprobs | None, Note("0 to 20; -1 is refused")] = None
    prompt_logprobs: Annotated[Logprobs | None, Note("not with stream; -1 is refused")] = None


class GenerateBody(Struct, frozen=True, kw_only=True):
    token_ids: Annotated[
        Annotated[list[TokenId], Meta(min_length=1)], Note("the prompt, used unchanged")
    ]
    sampling_params: Annotated[Raw, Note("see below; the default is the model's own")] = Raw()
    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, Note("include_usage")] = None
    request_id: Annotated[RequestId | None, Note("echoed; generated if missing")] = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    priority: Annotated[Int64 | None, Note("lower runs first")] = None
    kv_transfer_params: Annotated[Raw, Note("for engines that support it")] = Raw()


GENERATE = ParameterTable(
    "generate", (GenerateBody,), reject("features", "only token input is supported", {})
)

SAMPLING_PARAMS = ParameterTable(
    "sampling_params",
    (VllmSamplingParams,),
    (
        *accept("output_kind", "detokenize", "skip_clone", note="internal to vLLM"),
        *accept("flat_logprobs", "skip_reading_prefix_cache", note="internal to vLLM"),
        *accept("spaces_between_special_tokens", note="there is no text output"),
        *reject("logits_processors", "requests cannot contain code", []),
        *reject("extra_args", "there is no plugin that uses it", {}),
        *reject(
            "thinking_token_budget", "reasoning is not separated from text for token prompts", -1
        ),
        *reject("repetition_detection", "not supported"),
        *reject("logprob_token_ids", "logprobs are available only for the most likely tokens", []),
        *reject("best_of", "use n", 1),
    ),
)


# Writing responses.


class GenerateRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options of /inference/v1/generate.

    logprobs, prompt_logprobs: maximum alternatives for each token; None omits logprobs.
    include_usage: end a stream with usage.
    """

    profile: Profile = Profile.OPENAI
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_usage: bool = False


DEFAULT_OPTIONS = GenerateRenderOptions()


class GenerateTopLogprob(Struct, frozen=True):
    """An alternative.

    token: `token_id:` and the id, as chat logprobs with token ids have it.
    token_id: the id.
    """

    token: str
    token_id: int
    logprob: float
    rank: int | None
    bytes: None = None


class GenerateTokenLogprob(Struct, frozen=True):
    token: str
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[GenerateTopLogprob]
    bytes: None = None


class GenerateWriter:
    """Renders one answer, streamed or full."""

    def __init__(self, header: Header, options: GenerateRenderOptions = DEFAULT_OPTIONS) -> None:
        self._options = options
        self._head = b'{"request_id":%s,"choices":[' % encode_string(header.id)

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % render_openai_error(error, self._options.profile)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started() | PromptTokens():
                return b""
            case Finished(usage=token_usage):
                return (
                    self._render_chunk(b"", b',"usage":' + render_usage(token_usage))
                    if self._options.include_usage
                    else b""
                )
            case ChoiceFinished(choice, reason, _, tokens, params, weights):
                finish = self._render_choice(
                    choice, tokens, reason, render_weight_versions(weights)
                )
                return self._render_chunk(finish, encode_field("kv_transfer_params", params))
            case _:
                return (
                    self._render_chunk(self._render_choice(event.choice, event.tokens, None))
                    if event.tokens
                    else b""
                )

    def render_full(self, reply: Reply) -> bytes:
        choices = (
            self._render_choice(
                i, choice.tokens, choice.reason, render_weight_versions(choice.weights)
            )
            for i, choice in enumerate(reply.choices)
        )
        prompt = reply.prompts[0] if reply.prompts else None
        prompt_scores = b"null"
        if self._options.prompt_logprobs is not None and prompt is not None:
            prompt_scores = render_prompt_logprobs(prompt, self._options.prompt_logprobs)
        extra = b',"prompt_logprobs":%s%s' % (
            prompt_scores,
            render_kv_transfer(reply.kv_transfer_params, Profile.VLLM),
        )
        return b'%s%s]%s,"usage":%s}' % (
            self._head,
            b",".join(choices),
            extra,
            render_usage(reply.usage),
        )

    def _render_chunk(self, choices: bytes, extra: bytes = b"") -> bytes:
        return b"data: %s%s]%s}\n\n" % (self._head, choices, extra)

    def _render_choice(
        self, index: int, tokens: Sequence[Token], reason: FinishReason | None, extra: bytes = b""
    ) -> bytes:
        """Render a choice, or a piece of one.

        reason: None if the choice has not finished.
        extra: additional fields, each after a comma.
        """
        finish_reason = (
            b"null" if reason is None else render_finish_reason(reason, self._options.profile)
        )
        logprobs = b"null"
        max_top = self._options.logprobs
        if max_top is not None:
            entries: list[GenerateTokenLogprob] = []
            for token in tokens:
                top = [
                    GenerateTopLogprob(
                        f"token_id:{other.id}", other.id, clamp_logprob(other.logprob), rank
                    )
                    for rank, other in enumerate(token.top[:max_top], start=1)
                ]
                name = f"token_id:{token.id}"
                logprob = clamp_logprob(token.logprob)
                entries.append(GenerateTokenLogprob(name, token.id, logprob, token.rank, top))
            logprobs = b'{"content":%s}' % msgspec.json.encode(entries)
        return b'{"index":%d,"logprobs":%s,"finish_reason":%s,"token_ids":%s%s}' % (
            index, logprobs, finish_reason, render_token_ids(tokens), extra,
        )  # fmt: skip


# Reading requests.

ID_PREFIX = "gen-"
DEFAULT_MAX_TOKENS = 16
"""The default of vLLM's SamplingParams."""

# All core names but those of top-level fields belong to `sampling_params`.
_TOP_LEVEL = "|".join(GenerateBody.__struct_fields__)
_FIELD_NAMES = FieldNames(
    ("prompt", "token_ids"), (rf"(?!(?:{_TOP_LEVEL})\b)(\w+)", r"sampling_params.\1")
)

_BODY_SCHEMA = BodySchema(GenerateBody)
_PARAMS_SCHEMA = BodySchema(VllmSamplingParams)


def read_generate(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body. Raises only RequestError."""
    parsed = ParsedBody(data)
    if "token_ids" not in parsed.fields:
        raise missing_parameter("token_ids")
    body = parsed.decode(_BODY_SCHEMA)
    warnings, unknown = GENERATE.classify_body(parsed, _BODY_SCHEMA)
    with prefix_param("sampling_params"):
        params, param_warnings, unknown_params = read_part(
            bytes(body.sampling_params), _PARAMS_SCHEMA, SAMPLING_PARAMS, "sampling_params"
        )
        request = _build_request(body, params, options)
    render_options = GenerateRenderOptions(
        profile=options.profile,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        include_usage=bool(
            body.stream and body.stream_options and body.stream_options.include_usage
        ),
    )
    id = ResponseId("", body.request_id)

    def writer(header: Header) -> GenerateWriter:
        return GenerateWriter(id.apply_to(header), render_options)

    return GenerationCall(
        (request,),
        bool(body.stream),
        ID_PREFIX,
        writer,
        (*warnings, *param_warnings),
        (*unknown, *unknown_params),
        field_names=_FIELD_NAMES,
    )


def _build_request(
    body: GenerateBody, params: VllmSamplingParams, options: ReaderOptions
) -> GenerateRequest:
    n = params.n or 1
    prompt_logprobs = check_logprobs(params.prompt_logprobs, "prompt_logprobs")
    if n > min(options.max_n, MAX_CHOICES):
        raise invalid_value("n", f"expected an integer <= {min(options.max_n, MAX_CHOICES)}")
    # vLLM rejects this too: only a full response has the prompt's logprobs.
    if prompt_logprobs is not None and body.stream:
        raise RequestError(
            "'prompt_logprobs' are not available when 'stream' is enabled.", param="prompt_logprobs"
        )
    max_tokens = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
    if max_tokens == 0:
        raise invalid_value("max_tokens", "expected -1 or an integer >= 1")
    constraint, constraint_param = require_at_most_one(
        read_structured_outputs(params), "sampling_params."
    )
    extras = params.build_extras()
    transfer_params = read_json_object(body.kv_transfer_params, "kv_transfer_params")
    if transfer_params is not None:
        extras = msgspec.structs.replace(extras, kv_transfer_params=transfer_params)
    return GenerateRequest(
        model=resolve_model(body.model, options),
        prompt=tuple(body.token_ids),
        choices=n,
        sampling=params.build_sampling(),
        limits=params.build_limits(
            None if max_tokens == -1 else max_tokens,
            read_stop_strings(params.stop, options.max_stop),
        ),
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=check_logprobs(params.logprobs, "logprobs"),
        prompt_logprobs=prompt_logprobs,
        priority=body.priority or params.priority or 0,
        cache_salt=body.cache_salt or params.cache_salt or "",
        extras=extras,
    )


# Rendering a chat request as a body.


class RenderedGenerateBody(Struct, frozen=True):
    request_id: str
    token_ids: tuple[int, ...]
    sampling_params: dict[str, Any]
    model: str
    features: None = None
    stream: bool = False
    stream_options: None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Raw = Raw(b"null")


def render_generate_body(
    request_id: str, request: GenerateRequest, token_request: TokenRequest
) -> bytes:
    """Render a request as a body of /inference/v1/generate.

    request: the client's request.
    token_request: the engine's request for its first choice. Parameters that the server
        added are omitted.
    """
    transfer = token_request.extras.kv_transfer_params or "null"
    limits = request.limits
    sampling = msgspec.structs.asdict(token_request.sampling)
    # Omitted: they are token ids here, but texts in a body.
    del sampling["bad_words"]
    params: dict[str, Any] = {
        "n": request.choices,
        **sampling,
        "logit_bias": {str(id): bias for id, bias in token_request.sampling.logit_bias} or None,
        "max_tokens": token_request.max_tokens,
        "min_tokens": token_request.min_tokens,
        "stop": list(limits.stop),
        "stop_token_ids": list(limits.stop_token_ids),
        "include_stop_str_in_output": limits.include_stop,
        "ignore_eos": limits.ignore_eos,
        "logprobs": request.logprobs,
        "prompt_logprobs": request.prompt_logprobs,
    }
    return msgspec.json.encode(
        RenderedGenerateBody(
            request_id,
            token_request.prompt,
            params,
            request.model,
            cache_salt=request.cache_salt or None,
            priority=request.priority,
            kv_transfer_params=Raw(transfer.encode()),
        )
    )
