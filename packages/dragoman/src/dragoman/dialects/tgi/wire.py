"""The structs of TGI's request bodies, with the support of every parameter.

Only shapes and bounds are checked here; the reader interprets the values.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ..bounds import (
    MAX_LOGPROBS,
    AtLeastOne,
    CountOrUnlimited,
    Penalty,
    Probability,
    TokenId,
)
from ..generation_fields import SamplingFields
from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, accept, reject

MAX_BEST_OF = 20


class TgiGrammar(Struct, frozen=True):
    """A grammar.

    type: json, json_schema or regex.
    """

    type: str
    value: Raw


class TgiNamedSchema(Struct, frozen=True):
    """The value of a grammar of type json_schema."""

    schema: Raw
    name: str | None = None


class TgiParameters(Struct, frozen=True, kw_only=True):
    max_new_tokens: Annotated[
        AtLeastOne | None, Note("the default is the rest of the context, as in TGI 3")
    ] = None
    do_sample: Annotated[
        bool | None, Note("greedy without it, temperature, top_k and top_p, as in TGI")
    ] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Note("0 is greedy")] = None
    top_p: Probability | None = None
    top_k: Annotated[CountOrUnlimited | None, Note("-1 disables it")] = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    frequency_penalty: Annotated[Penalty | None, Note("-2 to 2, as in OpenAI's dialects")] = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[str | list[str] | None, Note("stays in the text, as in TGI")] = None
    best_of: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None,
        Note(
            "returns the candidate with the highest likelihood per token; no streaming if greater "
            "than 1"
        ),
    ] = None
    details: Annotated[
        bool | None,
        Note("requires an engine with logprobs; without it logprobs in a stream are null"),
    ] = None
    decoder_input_details: Annotated[
        bool | None, Note("logprobs of the prompt, as `prefill`; requires details, not with stream")
    ] = None
    top_n_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None, Note("0 to 20, requires details")
    ] = None
    return_full_text: Annotated[
        bool | None, Note("false by default on every route; not with token ids")
    ] = None
    truncate: AtLeastOne | None = None
    grammar: Annotated[
        TgiGrammar | None, Note("of type json, json_schema or regex; at most one constraint")
    ] = None
    adapter_id: Annotated[str | None, Note("the name of a loaded adapter")] = None


class TgiBody(Struct, frozen=True, kw_only=True):
    """A body of /generate.

    inputs: a text; token ids are an extension.
    model: an extension; TGI serves one model.
    """

    inputs: Annotated[
        str | list[TokenId],
        Note("raw text, without a chat template; or token ids"),
    ]
    parameters: Annotated[Raw, Note("see below")] = Raw()
    stream: Annotated[
        bool | None, Note("also on `/generate`; `/generate_stream` always streams")
    ] = None
    add_special_tokens: bool | None = None
    model: Annotated[str | None, Note("extension to TGI: selects one of several models")] = None


TGI = ParameterTable(
    "tgi",
    (TgiBody,),
    (*accept("options", note="for the hub's caches"),),
)

TGI_PARAMS = ParameterTable(
    "tgi_params",
    (TgiParameters,),
    (
        *reject("typical_p", "use top_p", 1, 1.0),
        *reject("watermark", "watermarking is not supported", False),
    ),
)


TGI_REQUEST = JsonBody(
    "TgiRequest",
    (TgiBody,),
    TGI,
    nested={"parameters": JsonBody("TgiRequestParameters", (TgiParameters,), TGI_PARAMS)},
    example={"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}},
)


class TgiInfo(Struct, frozen=True):
    """The body of /info.

    max_total_tokens: tokens of prompt and answer together.
    """

    model_id: str
    max_total_tokens: int
    max_stop_sequences: int
    version: str
    model_sha: None = None
    model_pipeline_tag: str = "text-generation"
    max_best_of: int = MAX_BEST_OF
    max_top_n_tokens: int = MAX_LOGPROBS
    router: str = "dragoman"


def render_tgi_info(model: str, max_total_tokens: int, max_stop: int, version: str) -> bytes:
    return msgspec.json.encode(TgiInfo(model, max_total_tokens, max_stop, version))


TGI_SAMPLING = SamplingFields(TgiParameters)
