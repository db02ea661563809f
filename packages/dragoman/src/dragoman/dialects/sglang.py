"""SGLang's /generate: parses its body into a GenerationCall, and renders the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ..core.errors import DragomanError, FieldNames, RequestError
from ..core.events import (
    Alternative,
    ChoiceEvent,
    ChoiceFinished,
    Event,
    FinishReason,
    Finished,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    WeightSpan,
)
from ..core.message import Reasoning, Refusal, Text
from ..core.reply import Choice, Reply
from ..core.request import Constraint, GenerateRequest, GenerationLimits, JsonSchema, Regex
from .base import GenerationCall, Header, Profile, ReaderOptions
from .body import BodySchema, ParsedBody, invalid_value, missing_parameter, prefix_param
from .envelope import DONE, KEEPALIVE_COMMENT, ResponseId
from .errors import render_openai_error
from .fields import (
    AtLeastOne,
    Count,
    CountOrUnlimited,
    Int64,
    MAX_CHOICES,
    MAX_GRAMMAR,
    MAX_REGEX,
    Penalty,
    Probability,
    RequestId,
    SamplingFields,
    TokenId,
    check_text_size,
    read_grammar,
    read_schema_or_text,
    read_stop_strings,
    require_at_most_one,
    resolve_model,
)
from .json_encoding import clamp_logprob, escape_line_breaks, replace_surrogates
from .parameter_table import Note, ParameterTable, accept, read_part, reject, warn

MAX_TOP_LOGPROBS = 20

DEFAULT_MAX_NEW_TOKENS = 128
"""The default of SGLang's SamplingParams; an explicit null is the rest of the context.
"""


class SglangSamplingParams(Struct, frozen=True, kw_only=True):
    """SGLang's SamplingParams, without the fields that have no meaning on the wire."""

    max_new_tokens: Annotated[
        Count | None, Note("128 by default, as in SGLang; null is the rest of the context")
    ] = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: Count | None = None
    n: AtLeastOne | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Note("0 is greedy")] = None
    top_p: Probability | None = None
    top_k: Annotated[CountOrUnlimited | None, Note("-1 disables it")] = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None,
        Note("keys are token ids, values -100 to 100"),
    ] = None
    sampling_seed: Int64 | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: Annotated[bool | None, Note("true includes the stop string in the text")] = None
    json_schema: Annotated[Raw, Note("a string or an object; at most one constraint")] = Raw()
    regex: str | None = None
    ebnf: str | None = None


class SglangBody(Struct, frozen=True, kw_only=True):
    """A body of /generate.

    model: an extension; SGLang serves one model.
    """

    text: Annotated[
        str | list[str] | None, Note("one or several raw texts, without a chat template")
    ] = None
    input_ids: Annotated[
        list[TokenId | list[TokenId]] | None, Note("one or several prompts, used unchanged")
    ] = None
    sampling_params: Annotated[Raw, Note("see below; one object for all prompts")] = Raw()
    return_logprob: bool | None = None
    logprob_start_len: Annotated[
        CountOrUnlimited | None, Note("-1, the default, returns the answer only")
    ] = None
    top_logprobs_num: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None,
        Note("0 to 20, requires return_logprob"),
    ] = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    stream: Annotated[bool | None, Note("each event has the full text so far")] = None
    rid: Annotated[RequestId | None, Note("echoed as `meta_info.id`; generated if missing")] = None
    lora_path: Annotated[str | None, Note("the name of a loaded adapter")] = None
    priority: Annotated[Int64 | None, Note("higher runs first")] = None
    extra_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_024)] | None,
        Note("cached prefixes are shared only between equal values"),
    ] = None
    model: Annotated[str | None, Note("extension to SGLang: selects one of several models")] = None


SGLANG = ParameterTable(
    "sglang",
    (SglangBody,),
    (
        *accept("log_metrics", "no_logs", "custom_labels", note="internal to the server"),
        *accept("routing_key", "session_id", "routed_dp_rank", note="a hint for routers"),
        *accept("data_parallel_rank", "modalities", note="a hint for routers"),
        *reject("input_embeds", "prompts must be texts or token ids", []),
        *reject("image_data", "send images to Chat Completions", []),
        *reject("video_data", "send media to Chat Completions", []),
        *reject("audio_data", "send media to Chat Completions", []),
        *reject("token_ids_logprob", "logprobs are available only for the most likely tokens", []),
        *reject("return_hidden_states", "hidden states are not returned", False),
        *reject("return_routed_experts", "routed experts are not reported", False),
        *reject("return_sampling_mask", "sampling masks are not returned", False),
        *reject("return_entropy", "entropies are not returned", False),
        *reject("return_flat_raw_top_logprobs", "flat logprobs are not supported", False),
        *reject("return_flat_raw_output_top_logprobs", "flat logprobs are not supported", False),
        *reject("session_params", "sessions are not supported"),
        *reject("custom_logit_processor", "requests cannot contain code"),
        *reject("positional_embed_overrides", "prompts must be texts or token ids"),
        *reject("max_thinking_tokens", "reasoning is not separated from text for raw prompts"),
        *reject("watermark", "watermarking is not supported", False),
        *reject("bootstrap_host", "disaggregated prefill is not supported"),
        *reject("bootstrap_port", "disaggregated prefill is not supported"),
        *reject("bootstrap_room", "disaggregated prefill is not supported"),
    ),
)

SGLANG_PARAMS = ParameterTable(
    "sglang_params",
    (SglangSamplingParams,),
    (
        *warn("stream_interval", "every token is sent immediately", 1),
        *accept("spaces_between_special_tokens", note="no effect: decoding follows the tokenizer"),
        *reject("stop_regex", "only strings and token ids are supported", []),
        *reject("structural_tag", "use json_schema, regex or ebnf"),
        *reject("beam_width", "beam search is not supported", 1),
        *reject("custom_params", "there is no plugin that uses it", {}),
        *reject("watermark", "watermarking is not supported", False),
    ),
)


ID_PREFIX = "gen-"
_SAMPLING = SamplingFields(SglangSamplingParams, {"sampling_seed": "seed"})
_CORE_NAMES = (
    ("cache_salt", "extra_key"),
    ("logprobs", "return_logprob"),
    ("top_logprobs", "top_logprobs_num"),
    ("prompt_logprobs", "logprob_start_len"),
    ("max_tokens", "sampling_params.max_new_tokens"),
    ("min_tokens", "sampling_params.min_new_tokens"),
    ("include_stop", "sampling_params.no_stop_trim"),
    ("(n|stop|stop_token_ids|ignore_eos)", r"sampling_params.\1"),
    *_SAMPLING.list_paths("sampling_params"),
)
_BODY_SCHEMA = BodySchema(SglangBody)
_PARAMS_SCHEMA = BodySchema(SglangSamplingParams)

RawPrompt = str | tuple[int, ...]


def read_sglang(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data)
    body = parsed.decode(_BODY_SCHEMA)
    warnings, unknown = SGLANG.classify_body(parsed, _BODY_SCHEMA)
    prompts = _read_prompts(body)
    model = body.lora_path or resolve_model(body.model, options)
    with prefix_param("sampling_params"):
        params, param_warnings, unknown_params = read_part(
            bytes(body.sampling_params), _PARAMS_SCHEMA, SGLANG_PARAMS, "sampling_params"
        )
        n = params.n or 1
        prompt_count = len(prompts)
        if n > options.max_n:
            raise invalid_value("n", f"expected an integer <= {options.max_n}")
        if n * prompt_count > MAX_CHOICES:
            raise invalid_value(
                "n", f"{prompt_count} prompts with n={n} make more than {MAX_CHOICES} choices"
            )
        requests = tuple(
            _build_request(prompt, model, body, params, options, prompt_count) for prompt in prompts
        )
    # An array of prompts, even with a single entry, makes the response an array.
    is_batch = isinstance(body.text, list) or any(
        isinstance(ids, list) for ids in body.input_ids or ()
    )
    render_options = SglangRenderOptions(
        as_list=is_batch or n > 1,
        logprobs=body.top_logprobs_num or 0 if body.return_logprob else None,
        token_texts=bool(body.return_text_in_logprobs),
        logprob_start=_read_logprob_start(body),
        prompt_token_ids=bool(body.return_prompt_token_ids),
        profile=options.profile,
    )
    field_names = FieldNames(
        ("model", "lora_path" if body.lora_path else "model"),
        ("prompt", "text" if body.input_ids is None else "input_ids"),
        *_CORE_NAMES,
    )
    id = ResponseId("", body.rid)

    def writer(header: Header) -> SglangWriter:
        return SglangWriter(id.apply_to(header), render_options)

    return GenerationCall(
        requests,
        bool(body.stream),
        ID_PREFIX,
        writer,
        (*warnings, *param_warnings),
        (*unknown, *unknown_params),
        field_names=field_names,
    )


def _read_prompts(body: SglangBody) -> tuple[RawPrompt, ...]:
    if (body.text is None) == (body.input_ids is None):
        if body.text is None:
            raise missing_parameter("text")
        raise RequestError("Send either `text` or `input_ids`.", param="input_ids")
    if body.input_ids is None:
        texts = (body.text,) if isinstance(body.text, str) else tuple(body.text or ())
        if not texts:
            raise invalid_value("text", "it must not be an empty array")
        return texts
    # A flat array of ids is one prompt; an array of arrays is several.
    id_lists = [tuple(ids) for ids in body.input_ids if isinstance(ids, list)]
    flat_ids = tuple(id for id in body.input_ids if isinstance(id, int))
    if id_lists and flat_ids:
        raise invalid_value(
            "input_ids", "expected token ids or arrays of token ids, but not a mixture"
        )
    prompts = tuple(id_lists) if id_lists else (flat_ids,)
    if () in prompts:
        raise invalid_value("input_ids", "it must not be an empty array")
    return prompts


def _build_request(
    prompt: RawPrompt,
    model: str,
    body: SglangBody,
    params: SglangSamplingParams,
    options: ReaderOptions,
    prompt_count: int,
) -> GenerateRequest:
    scores_prompt = _read_logprob_start(body) is not None
    max_tokens = params.max_new_tokens
    min_tokens = params.min_new_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid_value(
            "min_new_tokens", f"it must not be greater than max_new_tokens={max_tokens}"
        )
    if max_tokens == 0 and not scores_prompt:
        raise invalid_value(
            "max_new_tokens", "0 needs 'logprob_start_len'; otherwise expected an integer >= 1"
        )
    limits = GenerationLimits(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=read_stop_strings(params.stop, options.max_stop),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        include_stop=bool(params.no_stop_trim),
        ignore_eos=bool(params.ignore_eos),
    )
    top = body.top_logprobs_num or 0
    constraints: list[tuple[str, Constraint]] = []
    if (schema := read_schema_or_text(params.json_schema, "json_schema")) is not None:
        constraints.append(("json_schema", JsonSchema(schema)))
    if params.regex is not None:
        constraints.append(("regex", Regex(check_text_size(params.regex, MAX_REGEX, "regex"))))
    if params.ebnf is not None:
        constraints.append(
            ("ebnf", read_grammar(check_text_size(params.ebnf, MAX_GRAMMAR, "ebnf")))
        )
    constraint, constraint_param = require_at_most_one(constraints, "sampling_params.")
    # SGLang runs the highest priority first, whereas the lowest runs first here.
    return GenerateRequest(
        model=model,
        prompt=prompt,
        choices=params.n or 1,
        sampling=_SAMPLING.read(params),
        limits=limits,
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=top if body.return_logprob else None,
        prompt_logprobs=top if scores_prompt else None,
        # The lengths of several prompts are known only from their tokens.
        return_prompt=bool(body.return_prompt_token_ids) or prompt_count > 1,
        special_tokens_in_text=params.skip_special_tokens is False,
        priority=-(body.priority or 0),
        cache_salt=body.extra_key or "",
    )


def _read_logprob_start(body: SglangBody) -> int | None:
    """Return the index of the first prompt token whose logprob is requested; None if
    none is.
    """
    start = body.logprob_start_len
    return start if body.return_logprob and start is not None and start >= 0 else None


# Rendering. Each event of a stream contains the whole answer so far.

LogprobTriple = tuple[float | None, int, str | None]
"""SGLang's triple: logprob, token id, and the token's text if requested."""


class SglangRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options of SGLang's /generate.

    as_list: the response is an array.
    logprobs: maximum alternatives for each token; None for no logprobs.
    token_texts: add the tokens' texts to logprobs.
    logprob_start: index of the first prompt token with a logprob; None for none.
    prompt_token_ids: return the prompt's ids.
    """

    as_list: bool = False
    logprobs: int | None = None
    token_texts: bool = False
    logprob_start: int | None = None
    prompt_token_ids: bool = False
    profile: Profile = Profile.OPENAI


DEFAULT_OPTIONS = SglangRenderOptions()


class SglangStopReason(Struct, frozen=True, tag_field="type", tag="stop"):
    matched: str | int | None


class SglangLengthReason(Struct, frozen=True, tag_field="type", tag="length"):
    length: int


class SglangAbortReason(Struct, frozen=True, tag_field="type", tag="abort"):
    message: str
    status_code: None = None
    err_type: None = None


class SglangMeta(Struct, frozen=True):
    """The `meta_info` of an answer.

    weight_version: version of the weights that sampled the last token; null before the
        end, as it may still change.
    """

    id: str
    finish_reason: SglangStopReason | SglangLengthReason | SglangAbortReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    reasoning_tokens: int
    weight_version: str | None
    weight_versions: tuple[WeightSpan, ...] | UnsetType
    input_token_logprobs: list[LogprobTriple] | UnsetType
    output_token_logprobs: list[LogprobTriple] | UnsetType
    output_token_logprobs_length: int | UnsetType
    input_top_logprobs: list[list[LogprobTriple] | None] | UnsetType
    output_top_logprobs: list[list[LogprobTriple] | None] | UnsetType


class SglangResponse(Struct, frozen=True):
    text: str
    output_ids: list[int]
    meta_info: SglangMeta
    prompt_token_ids: list[int] | UnsetType
    index: int | UnsetType = UNSET


class _ChoiceState:
    """The state of one choice."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[Token] = []
        self.reasoning_tokens = 0
        self.finish: ChoiceFinished | None = None

    @classmethod
    def from_choice(cls, index: int, choice: Choice) -> _ChoiceState:
        state = cls()
        state.text = "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))
        state.tokens = list(choice.tokens)
        state.reasoning_tokens = sum(
            not token.markup
            for part in choice.parts
            if isinstance(part, Reasoning)
            for token in part.tokens
        )
        state.finish = ChoiceFinished(index, choice.reason, choice.stop, weights=choice.weights)
        return state


class SglangWriter:
    """Renders one answer, streamed or full."""

    def __init__(self, header: Header, options: SglangRenderOptions = DEFAULT_OPTIONS) -> None:
        self._header = header
        self._options = options
        self._choices: list[_ChoiceState] = []
        self._prompts: list[PromptTokens | None] = []
        self._prompt_counts: tuple[int, int | None] = (0, None)

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
            case Started(prompt_tokens, cached_tokens, choices, prompts):
                self._choices = [_ChoiceState() for _ in range(choices)]
                self._reset(prompt_tokens, cached_tokens, [None] * prompts)
                return b""
            case PromptTokens():
                self._prompts[event.prompt] = event
                return b""
            case Finished():
                return b""
            case _:
                return self._render_event(event.choice, event)

    def render_full(self, reply: Reply) -> bytes:
        self._choices = [
            _ChoiceState.from_choice(index, choice) for index, choice in enumerate(reply.choices)
        ]
        self._reset(reply.usage.prompt, reply.usage.cached, list(reply.prompts))
        answers = [self._build_answer(index) for index in range(len(self._choices))]
        return escape_line_breaks(
            msgspec.json.encode(answers if self._options.as_list else answers[0])
        )

    def _reset(
        self, prompt_tokens: int, cached_tokens: int | None, prompts: list[PromptTokens | None]
    ) -> None:
        self._prompts = prompts
        self._prompt_counts = (prompt_tokens, cached_tokens)

    def _render_event(self, choice: int, event: ChoiceEvent) -> bytes:
        state = self._choices[choice]
        state.tokens += event.tokens
        match event:
            case TextDelta(_, text) | RefusalDelta(_, text):
                state.text += text
            case ReasoningDelta():
                state.reasoning_tokens += sum(not token.markup for token in event.tokens)
            case ChoiceFinished():
                state.finish = event
            case _:
                """A tool call is not part of the text, as in Completions."""
        answer = self._build_answer(choice)
        if self._options.as_list:
            answer = msgspec.structs.replace(answer, index=choice)
        # Quadratic in the answer's length, as SGLang's own format is: each event
        # repeats all of the text and ids.
        return b"data: %s\n\n" % escape_line_breaks(msgspec.json.encode(answer))

    def _build_answer(self, index: int) -> SglangResponse:
        options = self._options
        choices_per_prompt = len(self._choices) // max(1, len(self._prompts))
        state = self._choices[index]
        prompt = self._prompts[index // choices_per_prompt]
        prompt_tokens, cached = self._prompt_counts
        if len(self._prompts) > 1:
            # For several prompts the counts are a sum, and the cached tokens of each
            # are unknown.
            prompt_tokens = 0 if prompt is None else len(prompt.tokens)
            cached = None
        weights = None if state.finish is None else state.finish.weights
        scored_prompt: Sequence[Token] = ()
        if prompt is not None and options.logprob_start is not None:
            scored_prompt = prompt.tokens[options.logprob_start :]
        has_logprobs = options.logprobs is not None
        has_top_logprobs = bool(options.logprobs)
        meta = SglangMeta(
            id=f"{self._header.id}_{index}" if options.as_list else self._header.id,
            finish_reason=None
            if state.finish is None
            else _build_finish_reason(state.finish, state.tokens),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(state.tokens),
            cached_tokens=cached,
            reasoning_tokens=state.reasoning_tokens,
            weight_version=weights[-1].version if weights else None,
            weight_versions=UNSET if weights is None else weights,
            input_token_logprobs=[self._build_triple(token) for token in scored_prompt]
            if has_logprobs
            else UNSET,
            output_token_logprobs=[self._build_triple(token) for token in state.tokens]
            if has_logprobs
            else UNSET,
            output_token_logprobs_length=len(state.tokens) if has_logprobs else UNSET,
            input_top_logprobs=[self._build_top(token) for token in scored_prompt]
            if has_top_logprobs
            else UNSET,
            output_top_logprobs=[self._build_top(token) for token in state.tokens]
            if has_top_logprobs
            else UNSET,
        )
        prompt_ids = (
            UNSET
            if prompt is None or not options.prompt_token_ids
            else [token.id for token in prompt.tokens]
        )
        return SglangResponse(
            replace_surrogates(state.text), [token.id for token in state.tokens], meta, prompt_ids
        )

    def _build_triple(self, token: Token | Alternative) -> LogprobTriple:
        """Build a triple. The first token of a prompt has no logprob, because nothing
        precedes it.
        """
        logprob = None if token.logprob is None else clamp_logprob(token.logprob)
        return (
            logprob,
            token.id,
            replace_surrogates(token.text) if self._options.token_texts else None,
        )

    def _build_top(self, token: Token) -> list[LogprobTriple] | None:
        max_top = self._options.logprobs or 0
        return (
            None
            if token.logprob is None
            else [self._build_triple(alternative) for alternative in token.top[:max_top]]
        )


def _build_finish_reason(
    finish: ChoiceFinished, tokens: Sequence[Token]
) -> SglangStopReason | SglangLengthReason | SglangAbortReason:
    match finish.reason:
        case FinishReason.STOP:
            # SGLang reports the id of the end token that was sampled as what matched.
            last = tokens[-1].id if tokens and tokens[-1].special else None
            return SglangStopReason(last if finish.stop is None else finish.stop)
        case FinishReason.LENGTH:
            return SglangLengthReason(len(tokens))
        case FinishReason.CONTENT_FILTER:
            return SglangAbortReason("The content was filtered.")
        case FinishReason.ABORT:
            return SglangAbortReason("The request was aborted.")
