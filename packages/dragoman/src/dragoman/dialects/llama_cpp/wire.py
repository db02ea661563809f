"""The structs of llama.cpp's request bodies, with the support of every parameter."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..bounds import MAX_LOGPROBS, CountOrUnlimited, Int64, Penalty, Probability, TokenId
from ..generation_fields import SamplingFields
from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, accept, reject, warn


class LlamaCppBody(Struct, frozen=True, kw_only=True):
    """The fields that /completion and /infill share."""

    model: Annotated[str | None, Note("selects one of several models")] = None
    n_predict: Annotated[
        CountOrUnlimited | None, Note("-1 and null: the rest of the context; 0 is refused")
    ] = None
    max_tokens: Annotated[CountOrUnlimited | None, Note("another name of n_predict")] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Note("0 is greedy; the defaults of sampling are the model's own, not llama.cpp's"),
    ] = None
    top_k: Annotated[CountOrUnlimited | None, Note("0 and -1 disable it")] = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        Note("over the whole context, not only the last `repeat_last_n` tokens"),
    ] = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[Int64 | None, Note("-1 and 4294967295 are random")] = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Meta(ge=-100, le=100)]]
        | list[tuple[TokenId, Annotated[float, Meta(ge=-100, le=100)] | bool]]
        | None,
        Note("pairs of a token id and a value of -100 to 100, or false, which is -100"),
    ] = None
    ignore_eos: bool | None = None
    stop: Annotated[str | list[str] | None, Note("removed from the text")] = None
    grammar: Annotated[str | None, Note("GBNF; at most one constraint")] = None
    json_schema: Annotated[Raw, Note("a JSON Schema; at most one constraint")] = Raw()
    n_probs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Note("alternatives of each token in `completion_probabilities`, 0 to 20"),
    ] = None
    return_tokens: Annotated[bool | None, Note("always in a stream")] = None
    response_fields: Annotated[
        list[str] | None, Note("the fields of the response; `a/b` selects one of an object")
    ] = None
    stream: bool | None = None


class LlamaCppCompletionBody(LlamaCppBody, frozen=True, kw_only=True):
    """A body of /completion."""

    prompt: Annotated[
        str | list[TokenId | str | list[TokenId]] | None,
        Note("one prompt: a text or token ids"),
    ] = None
    add_special_tokens: Annotated[
        bool | None, Note("an extension: add the tokenizer's special tokens to a text")
    ] = None


class InfillExtra(Struct, frozen=True):
    """A part of another file."""

    text: str
    filename: str | None = None


class LlamaCppInfillBody(LlamaCppBody, frozen=True, kw_only=True):
    """A body of /infill."""

    input_prefix: Annotated[
        str | None, Note("needs a model with tokens for fill-in-the-middle")
    ] = None
    input_suffix: Annotated[str | None, Note("empty: the text continues the prefix")] = None
    input_extra: Annotated[
        list[InfillExtra] | None, Note("texts of other files, put before the prefix")
    ] = None
    prompt: Annotated[
        str | None, Note("text after the prefix, such as the start of the cursor's line")
    ] = None


_OTHERS = (
    *accept(
        "cache_prompt", "n_keep", "n_discard", "n_cache_reuse", note="the engine's cache decides"
    ),
    *accept("id_slot", "slot_id", note="the scheduler decides"),
    *warn("samplers", "the order of samplers is fixed here"),
    *warn("repeat_last_n", "penalties cover the whole context", 64, -1),
    *warn("min_keep", "it has no effect here", 0),
    *warn("n_indent", "it has no effect here", 0),
    *warn("t_max_predict_ms", "the time of an answer is not limited here", 0, -1),
    *warn("t_max_prompt_ms", "the time of a prompt is not limited here", 0, -1),
    *warn("timings_per_token", "chunks have no timings", False),
    *warn("return_progress", "the progress of a prompt is not reported", False),
    *warn("sse_ping_interval", "keep-alives have the server's interval", -1),
    *reject("typical_p", "use top_p", 1, 1.0),
    *reject("dynatemp_range", "the temperature is constant", 0, 0.0),
    *accept("dynatemp_exponent", note="without dynatemp_range it has no effect"),
    *reject("mirostat", "use top_p or min_p", 0),
    *accept("mirostat_tau", "mirostat_eta", note="without mirostat they have no effect"),
    *reject("xtc_probability", "use top_p or min_p", 0, 0.0),
    *accept("xtc_threshold", note="without xtc_probability it has no effect"),
    *reject("dry_multiplier", "use repeat_penalty", 0, 0.0),
    *accept(
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        note="without dry_multiplier they have no effect",
    ),
    *reject("top_n_sigma", "use top_p or min_p", -1, -1.0, 0, 0.0),
    *reject("adaptive_target", "use top_p or min_p", -1, -1.0),
    *reject("post_sampling_probs", "probabilities are those before sampling", False),
    *reject("lora", "select an adapter by the model's name", []),
    *reject("n_cmpl", "send a request for each answer", 1),
    *reject("n", "send a request for each answer", 1),
    *reject("image_data", "send images to /v1/chat/completions", []),
)

COMPLETION = ParameterTable("llama_cpp_completion", (LlamaCppCompletionBody,), _OTHERS)
INFILL = ParameterTable("llama_cpp_infill", (LlamaCppInfillBody,), _OTHERS)

COMPLETION_REQUEST = JsonBody(
    "LlamaCppCompletionRequest",
    (LlamaCppCompletionBody,),
    COMPLETION,
    example={"prompt": "Once upon a time", "n_predict": 8},
)
INFILL_REQUEST = JsonBody(
    "LlamaCppInfillRequest",
    (LlamaCppInfillBody,),
    INFILL,
    example={"input_prefix": "def add(a, b):\n", "n_predict": 8},
)

LLAMA_CPP_SAMPLING = SamplingFields(LlamaCppBody, {"repeat_penalty": "repetition_penalty"})
