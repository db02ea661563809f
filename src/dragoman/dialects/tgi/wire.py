"""The structs of TGI's and LightLLM's bodies, with their names: shapes and bounds only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..fields import MAX_LOGPROBS, AtLeastOne, Count, CountOrUnlimited, Penalty, Probability, TokenId

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
    """TGI's parameters, then those that only LightLLM has or names differently."""

    max_new_tokens: AtLeastOne | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: CountOrUnlimited | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    return_full_text: bool | None = None
    truncate: AtLeastOne | None = None
    grammar: TgiGrammar | None = None
    adapter_id: str | None = None

    return_details: bool | None = None
    n: AtLeastOne | None = None
    stop_sequences: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    min_new_tokens: Count | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    regular_constraint: str | None = None
    guided_json: Raw = Raw()
    guided_grammar: str | None = None


class TgiBody(Struct, frozen=True, kw_only=True):
    """A body of /generate. Token ids as `inputs` are LightLLM's.

    model: an extension; TGI and LightLLM serve one model.
    """

    inputs: str | list[TokenId]
    parameters: Raw = Raw()
    stream: bool | None = None
    add_special_tokens: bool | None = None
    model: str | None = None
