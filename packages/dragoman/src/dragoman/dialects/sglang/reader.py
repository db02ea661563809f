"""Parses a body of SGLang's /generate into a GenerationCall."""

from __future__ import annotations

from ...core.errors import RequestError
from ...core.field_names import FieldNames
from ...core.request import Constraint, GenerateRequest, GenerationLimits, JsonSchema, Regex
from ..bounds import (
    MAX_CHOICES,
)
from ..chunk_envelope import ResponseId
from ..constraint_fields import (
    MAX_GRAMMAR,
    MAX_REGEX,
    check_text_size,
    read_grammar,
    read_schema_or_text,
    require_at_most_one,
)
from ..field_errors import invalid_value, missing_parameter
from ..generation_fields import SamplingFields, read_stop_strings, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..parameter_table import read_part
from ..request_body import BodySchema, ParsedBody, prefix_param
from .wire import SGLANG, SGLANG_PARAMS, SglangBody, SglangSamplingParams
from .writer import SglangRenderOptions, SglangWriter

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
