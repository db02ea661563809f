"""A body of SGLang's /generate to a Call."""

from __future__ import annotations

from ...core.errors import RequestError
from ...core.request import Constraint, GenerateRequest, JsonSchema, Limits, Regex, SamplingOptions
from ..base import Call, Header, Profile, ReaderOptions
from ..body import Body, Shape, invalid, missing, within
from ..constraints import MAX_GRAMMAR, MAX_REGEX, grammar, only_one, schema_or_text, sized
from ..envelope import AnswerId
from ..fields import MAX_CHOICES, logit_bias, model_of, stop_strings
from ..support import read_part
from .parameters import SGLANG, SGLANG_PARAMS
from .wire import SamplingParams, SglangBody
from .writer import SglangView, SglangWriter

ID_PREFIX = "gen-"
_BODY, _PARAMS = Shape(SglangBody), Shape(SamplingParams)

Prompt = str | tuple[int, ...]


def read_sglang(data: bytes, options: ReaderOptions) -> Call:
    """Raises RequestError, and nothing else."""
    parsed = Body(data)
    body = parsed.read(_BODY)
    warnings, unknown = SGLANG.judge(parsed.others(_BODY.names))
    prompts, model = _prompts(body), body.lora_path or model_of(body.model, options)
    with within("sampling_params"):
        params, more, strange = read_part(bytes(body.sampling_params), _PARAMS, SGLANG_PARAMS, "sampling_params")
        _check_choices(params.n or 1, len(prompts), options)
        requests = tuple(_request(prompt, model, body, params, options, len(prompts)) for prompt in prompts)
    view = _view(body, options.profile, several=_is_batch(body) or (params.n or 1) > 1)
    id = AnswerId("", body.rid)

    def writer(header: Header) -> SglangWriter:
        return SglangWriter(id.over(header), view)

    return Call(requests, bool(body.stream), ID_PREFIX, writer, (*warnings, *more), (*unknown, *strange))


def _prompts(body: SglangBody) -> tuple[Prompt, ...]:
    if (body.text is None) == (body.input_ids is None):
        if body.text is None:
            raise missing("text")
        raise RequestError("Send either `text` or `input_ids`.", param="input_ids")
    if body.input_ids is not None:
        return _ids(body.input_ids)
    texts = (body.text,) if isinstance(body.text, str) else tuple(body.text or ())
    if not texts:
        raise invalid("text", "it must not be an empty array")
    return texts


def _ids(given: list[int | list[int]]) -> tuple[tuple[int, ...], ...]:
    """One prompt, or several."""
    lists = [tuple(ids) for ids in given if isinstance(ids, list)]
    numbers = tuple(id for id in given if isinstance(id, int))
    if lists and numbers:
        raise invalid("input_ids", "expected token ids or arrays of token ids, but not a mixture")
    prompts = tuple(lists) if lists else (numbers,)
    if () in prompts:
        raise invalid("input_ids", "it must not be an empty array")
    return prompts


def _is_batch(body: SglangBody) -> bool:
    """An array of prompts is answered with an array, also where it has only one."""
    return isinstance(body.text, list) or any(isinstance(ids, list) for ids in body.input_ids or ())


def _check_choices(n: int, prompts: int, options: ReaderOptions) -> None:
    if n > options.max_n:
        raise invalid("n", f"expected an integer <= {options.max_n}")
    if n * prompts > MAX_CHOICES:
        raise invalid("n", f"{prompts} prompts with n={n} make more than {MAX_CHOICES} choices")


def _request(
    prompt: Prompt, model: str, body: SglangBody, params: SamplingParams, options: ReaderOptions, prompts: int
) -> GenerateRequest:
    scored = _start(body) is not None
    top = body.top_logprobs_num or 0
    return GenerateRequest(
        model=model,
        prompt=prompt,
        choices=params.n or 1,
        sampling=_sampling(params),
        limits=_limits(params, options, scored=scored),
        constraint=only_one(_constraints(params)),
        logprobs=top if body.return_logprob else None,
        prompt_logprobs=top if scored else None,
        # How long each of several prompts was is told by its tokens.
        return_prompt=bool(body.return_prompt_token_ids) or prompts > 1,
        special_tokens_in_text=params.skip_special_tokens is False,
        priority=-(body.priority or 0),
        cache_salt=body.extra_key or "",
    )


def _start(body: SglangBody) -> int | None:
    """The first token of the prompt whose logprob is wanted."""
    start = body.logprob_start_len
    return start if body.return_logprob and start is not None and start >= 0 else None


def _sampling(params: SamplingParams) -> SamplingOptions:
    return SamplingOptions(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=None if params.top_k is None else max(params.top_k, 0),
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.sampling_seed,
        logit_bias=logit_bias(params.logit_bias),
    )


def _limits(params: SamplingParams, options: ReaderOptions, *, scored: bool) -> Limits:
    most, least = params.max_new_tokens, params.min_new_tokens or 0
    if most is not None and least > most:
        raise invalid("min_new_tokens", f"it must not be greater than max_new_tokens={most}")
    if most == 0 and not scored:
        raise invalid("max_new_tokens", "0 needs 'logprob_start_len'; otherwise expected an integer >= 1")
    return Limits(
        max_tokens=most,
        min_tokens=least,
        stop=stop_strings(params.stop, options.max_stop),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        include_stop=bool(params.no_stop_trim),
        ignore_eos=bool(params.ignore_eos),
    )


def _constraints(params: SamplingParams) -> list[tuple[str, Constraint]]:
    found: list[tuple[str, Constraint]] = []
    if (schema := schema_or_text(params.json_schema, "json_schema")) is not None:
        found.append(("json_schema", JsonSchema(schema)))
    if params.regex is not None:
        found.append(("regex", Regex(sized(params.regex, MAX_REGEX, "regex"))))
    if params.ebnf is not None:
        found.append(("ebnf", grammar(sized(params.ebnf, MAX_GRAMMAR, "ebnf"))))
    return found


def _view(body: SglangBody, profile: Profile, *, several: bool) -> SglangView:
    return SglangView(
        several=several,
        logprobs=body.top_logprobs_num or 0 if body.return_logprob else None,
        texts=bool(body.return_text_in_logprobs),
        start=_start(body),
        prompt_ids=bool(body.return_prompt_token_ids),
        profile=profile,
    )
