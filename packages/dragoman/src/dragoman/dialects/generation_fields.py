"""The fields that generating endpoints share, parsed into the canonical request.

The fields of the structs are supported. Those that are only accepted or rejected are
rows of `parameter_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Raw, Struct

from ..core.errors import RequestError, Unsupported
from ..core.request import NO_SAMPLING_OPTIONS, Extras, GenerationLimits, SamplingOptions
from .bounds import (
    INT32,
    MAX_CHOICES,
    MAX_LOGPROB_IDS,
    MAX_LOGPROBS,
    AtLeastOne,
    Count,
    CountOrUnlimited,
    Int64,
    Logprobs,
    Penalty,
    Probability,
    RequestId,
    TokenId,
)
from .field_errors import abbreviate, check_one_of, invalid_value, missing_parameter, parse_digits
from .interfaces import Profile, ReaderOptions
from .parameter_table import Note
from .request_body import read_json_object, read_json_value
from .unknown_fields import TaggedFields

_MAX_LISTED_KEYS = 8
"""Maximum invalid keys of `logit_bias` that an error lists."""


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(Struct, frozen=True):
    """vLLM's `structured_outputs`, with one constraint.

    close_at_limit: an extension of this server, for any constraint; see
        GenerationLimits.
    """

    json: Raw = Raw()
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Raw = Raw()
    close_at_limit: bool | None = None


class JsonSchemaFormat(Struct, frozen=True):
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    schema: Raw = Raw()
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """OpenAI's `response_format`. Clients of llama.cpp and Together send `schema`
    together with `json_object`.
    """

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Raw = Raw()


FORMAT_FIELDS = TaggedFields(
    "type",
    {
        "text": frozenset(),
        "json_object": frozenset({"schema"}),
        "json_schema": frozenset({"json_schema"}),
    },
)
"""The fields of a `ResponseFormat`."""


class DecodingFields(Struct, frozen=True, kw_only=True):
    """Sampling and stop parameters of all generating dialects; most are vLLM's.

    None: the client sent null or nothing.
    """

    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None, Note("0 to 2; 0 is greedy")
    ] = None
    top_p: Probability | None = None
    top_k: Annotated[CountOrUnlimited | None, Note("0 and -1 disable it")] = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    seed: Annotated[Int64 | None, Note("a signed 64-bit integer")] = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None,
        Note("keys are token ids, values -100 to 100"),
    ] = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: list[Annotated[str, Meta(min_length=1)]] | None = None

    min_tokens: Count | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    truncate_prompt_tokens: Annotated[
        CountOrUnlimited | None, Note("keeps only the last N tokens; -1 is the model's limit")
    ] = None

    structured_outputs: Annotated[
        StructuredOutputs | None,
        Note(
            "json, regex, choice, grammar, json_object; structural_tag is refused. With "
            "close_at_limit (ours; may "
            "stand alone), the last tokens within the limit end the answer legally"
        ),
    ] = None
    guided_json: Annotated[Raw, Note("as structured_outputs.json")] = Raw()
    guided_regex: Annotated[str | None, Note("as structured_outputs.regex")] = None
    guided_choice: Annotated[list[str] | None, Note("as structured_outputs.choice")] = None
    guided_grammar: Annotated[str | None, Note("as structured_outputs.grammar")] = None

    skip_special_tokens: bool | None = None
    add_special_tokens: Annotated[
        bool | None,
        Note(
            "special tokens that the tokenizer adds to a text, in addition to the chat template's"
        ),
    ] = None
    priority: Annotated[
        Int64 | None, Note("lower runs first, among the requests of the same key")
    ] = None
    request_id: Annotated[RequestId | None, Note("becomes the suffix of the response id")] = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    kv_transfer_params: Annotated[
        Raw,
        Note("for engines that support it; prompt_token_ids are used as the ids of a conversation"),
    ] = Raw()
    vllm_xargs: Annotated[Raw, Note("for engines that support it")] = Raw()

    def build_sampling(self) -> SamplingOptions:
        return _DECODING_SAMPLING.read(self)

    def build_limits(
        self, max_tokens: int | None, stop: tuple[str, ...], max_tokens_name: str = "max_tokens"
    ) -> GenerationLimits:
        """Build the limits of the request. Raises RequestError.

        max_tokens, stop: values that the dialect has resolved from its own fields.
        max_tokens_name: name of the field that max_tokens comes from, for errors.
        """
        min_tokens = self.min_tokens or 0
        if max_tokens is not None and min_tokens > max_tokens:
            raise invalid_value(
                "min_tokens", f"it must not be greater than {max_tokens_name}={max_tokens}"
            )
        if self.truncate_prompt_tokens == 0:
            raise invalid_value("truncate_prompt_tokens", "expected -1 or an integer >= 1")
        return GenerationLimits(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop=bool(self.include_stop_str_in_output),
            ignore_eos=bool(self.ignore_eos),
            truncate_prompt=self.truncate_prompt_tokens,
            close_at_limit=None
            if self.structured_outputs is None
            else self.structured_outputs.close_at_limit,
        )

    def build_extras(self) -> Extras:
        return Extras(
            kv_transfer_params=read_json_object(self.kv_transfer_params, "kv_transfer_params"),
            vllm_xargs=read_json_object(self.vllm_xargs, "vllm_xargs"),
        )


def _read_logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    wrong_keys = [key for key in bias if (id := parse_digits(key, 10)) is None or id > INT32]
    if wrong_keys:
        listed = ", ".join(abbreviate(key) for key in wrong_keys[:_MAX_LISTED_KEYS])
        more = (
            f" and {len(wrong_keys) - _MAX_LISTED_KEYS} more"
            if len(wrong_keys) > _MAX_LISTED_KEYS
            else ""
        )
        raise invalid_value("logit_bias", f"its keys must be token ids, not {listed}{more}")
    return tuple((int(key), value) for key, value in bias.items())


_SAMPLING_CONVERTERS: Mapping[str, Callable[[Any], object]] = {
    # In vLLM and SGLang -1 means no limit, in the core 0.
    "top_k": lambda top_k: max(top_k, 0),
    "logit_bias": _read_logit_bias,
    "allowed_token_ids": tuple,
    "bad_words": tuple,
}
"""Converts values from the wire, by the core's name of the field."""


class SamplingFields:
    """Builds SamplingOptions from the fields of a wire struct.

    renames: the core's names of fields that the struct names differently, by the
        struct's name.
    core_names: the names of all fields in `SamplingOptions`, by the struct's name.
    """

    def __init__(self, struct: type[Struct], renames: Mapping[str, str] | None = None) -> None:
        core_names = {name: name for name in struct.__struct_fields__} | dict(renames or {})
        sampling_names = SamplingOptions.__struct_fields__
        self.core_names = {
            name: core for name, core in core_names.items() if core in sampling_names
        }
        self._get_values = attrgetter(*self.core_names)
        self._unset_values = (None,) * len(self.core_names)
        present_names = tuple(self.core_names.values())
        # Reorders values to the order of `SamplingOptions`. Index -1 is a None that
        # `read` appends for missing fields.
        self._arrange = itemgetter(
            *[present_names.index(name) if name in present_names else -1 for name in sampling_names]
        )
        self._converters = tuple(
            (index, _SAMPLING_CONVERTERS[name])
            for index, name in enumerate(sampling_names)
            if name in present_names and name in _SAMPLING_CONVERTERS
        )

    def read(self, params: Struct, **overrides: float | None) -> SamplingOptions:
        """Read the sampling options from a wire struct. Raises RequestError.

        overrides: values by core name that replace the struct's.
        """
        values = self._get_values(params)
        # Fast path: most requests set none of them.
        if values == self._unset_values and not overrides:
            return NO_SAMPLING_OPTIONS
        options: list[Any] = [*self._arrange((*values, None))]
        for index, convert in self._converters:
            if options[index] is not None:
                options[index] = convert(options[index])
        sampling = SamplingOptions(*options)
        return msgspec.structs.replace(sampling, **overrides) if overrides else sampling

    def list_paths(self, path: str) -> tuple[tuple[str, str], ...]:
        """List the fields' names for `FieldNames`.

        path: path of the struct in the body.
        """
        renamed = [
            (core, f"{path}.{name}") for name, core in self.core_names.items() if core != name
        ]
        equal_names = "|".join(name for name, core in self.core_names.items() if core == name)
        return (*renamed, (f"({equal_names})", rf"{path}.\1"))


_DECODING_SAMPLING = SamplingFields(DecodingFields)


class GenerationFields(DecodingFields, frozen=True, kw_only=True):
    """The fields that Chat Completions and Completions share. None: the client sent
    null or nothing.
    """

    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    stream: bool | None = None
    stream_options: Annotated[
        StreamOptions | None,
        Note("include_usage, continuous_usage_stats; include_obfuscation: true is refused"),
    ] = None
    n: AtLeastOne | None = None
    metadata: Annotated[
        dict[str, str] | None,
        Note(
            "validated: at most 16 keys of 64 characters with values of 512 characters; has no "
            "effect"
        ),
    ] = None
    service_tier: Annotated[
        str | None, Note("there is one tier, reported as `default`; other values give a warning")
    ] = None
    max_tokens: Annotated[
        CountOrUnlimited | None, Note("-1 and null are the rest of the context")
    ] = None
    stop: Annotated[
        str | list[str] | None, Note("a string or a list; maximum count set by the server")
    ] = None
    response_format: Annotated[
        ResponseFormat | None,
        Note("text, json_object, json_schema; at most one constraint per request"),
    ] = None
    prompt_logprobs: Annotated[Logprobs | None, Note("not with stream; -1 is refused")] = None
    logprob_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=MAX_LOGPROB_IDS)] | None,
        Note(
            "with logprobs: their alternatives are these tokens and the sampled one; at most 1024"
        ),
    ] = None
    return_token_ids: Annotated[
        bool | None, Note("in both profiles; logprobs then list every token")
    ] = None
    return_tokens_as_token_ids: Annotated[bool | None, Note("logprobs then list every token")] = (
        None
    )
    return_weight_versions: Annotated[
        bool | None, Note("null if the engine does not report weight versions")
    ] = None
    cache_hit_threshold: Annotated[
        Probability | None,
        Note(
            "for engines that support it: a request with a smaller share of its prompt in the "
            "prefix cache ends with cache_threshold"
        ),
    ] = None
    session_id: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None,
        Note("a hint for routers and for vLLM, also as the header x-session-id"),
    ] = None

    def build_extras(self) -> Extras:
        return msgspec.structs.replace(
            super().build_extras(),
            session_id=self.session_id or None,
            cache_hit_threshold=self.cache_hit_threshold,
        )

    def read_limits(
        self, options: ReaderOptions, max_tokens: int | None, max_tokens_name: str = "max_tokens"
    ) -> GenerationLimits:
        """Read `stop` and build the limits of the request; see `build_limits`."""
        return self.build_limits(
            max_tokens, read_stop_strings(self.stop, options.max_stop), max_tokens_name
        )

    def read_choice_count(self, options: ReaderOptions, prompts: int = 1) -> int:
        n = self.n or 1
        if n > options.max_n:
            raise invalid_value("n", f"expected an integer <= {options.max_n}")
        # The limit applies to all prompts together: each choice is a sequence of its
        # own in the engine.
        if n * prompts > MAX_CHOICES:
            raise invalid_value(
                "n", f"{prompts} prompts with n={n} make more than {MAX_CHOICES} choices"
            )
        return n

    def read_usage_options(self) -> tuple[bool, bool]:
        """Return whether a stream ends with usage, and whether every chunk carries it.
        Raises RequestError.
        """
        options = self.stream_options
        if options is None:
            return False, False
        if not self.stream:
            raise RequestError(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                param="stream_options",
                code="invalid_value",
            )
        if options.include_obfuscation:
            raise Unsupported(
                "'stream_options.include_obfuscation' is not supported here: chunks are not "
                "padded.",
                param="stream_options.include_obfuscation",
            )
        include_usage = bool(options.include_usage)
        return include_usage, include_usage and bool(options.continuous_usage_stats)

    def read_logprob_ids(self, logprobs: int | None) -> tuple[int, ...]:
        """Return the tokens whose logprobs are listed at each position. Raises
        RequestError.

        logprobs: the requested alternatives; None, for no logprobs, is an error
            together with ids.
        """
        ids = tuple(dict.fromkeys(self.logprob_token_ids or ()))
        if ids and logprobs is None:
            raise RequestError(
                "'logprob_token_ids' needs 'logprobs'.",
                param="logprob_token_ids",
                code="invalid_value",
            )
        return ids

    def read_prompt_logprobs(self) -> int | None:
        """Return the number of alternatives for each prompt token; None for no
        logprobs. Raises RequestError.
        """
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError(
                "'prompt_logprobs' are not available when 'stream' is enabled.",
                param="prompt_logprobs",
            )
        return check_logprobs(self.prompt_logprobs, "prompt_logprobs")


def check_logprobs(count: int | None, param: str) -> int | None:
    if count == -1:
        raise Unsupported(
            f"'{param}' of -1, the whole vocabulary, is not supported here; the maximum is "
            f"{MAX_LOGPROBS}.",
            param=param,
        )
    return count


def resolve_model(model: str | None, options: ReaderOptions) -> str:
    if model:
        return model
    if options.default_model is None:
        raise missing_parameter("model")
    return options.default_model


def read_stop_strings(
    stop: str | list[str] | None, max_stop: int, param: str = "stop"
) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(texts) > max_stop:
        raise invalid_value(param, f"expected at most {max_stop} strings, got {len(texts)}")
    if "" in texts:
        raise invalid_value(param, "a stop string must not be empty")
    return texts


def check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > 16:
        raise invalid_value("metadata", f"expected at most 16 keys, got {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > 64:
            raise invalid_value("metadata", f"key {abbreviate(key)} is longer than 64 characters")
        if len(value) > 512:
            raise invalid_value(
                "metadata", f"the value of {abbreviate(key)} is longer than 512 characters"
            )


def check_service_tier(tier: str | None, warnings: list[str]) -> None:
    if tier is None:
        return
    check_one_of(tier, ("auto", "default", "flex", "scale", "priority", "fast"), "service_tier")
    if tier not in ("auto", "default"):
        warnings.append(f"service_tier: '{tier}' is not available; 'default' was used")


def get_max_logprobs(profile: Profile) -> int:
    """Return the limit of Completions' `logprobs`: 5 in OpenAI, 20 in vLLM."""
    return 5 if profile is Profile.OPENAI else MAX_LOGPROBS


THINKING_KWARGS = ("enable_thinking", "thinking")
"""The kwargs with which chat templates switch thinking on or off."""


def read_thinking_switch(kwargs: Raw) -> bool | None:
    """Return the value of the thinking switch in `chat_template_kwargs`; None if it is
    not set.
    """
    value = read_json_value(kwargs, "chat_template_kwargs")
    if not isinstance(value, dict):
        return None
    values = cast(dict[str, object], value)
    for name in THINKING_KWARGS:
        if isinstance(switch := values.get(name), bool):
            return switch
    return None
