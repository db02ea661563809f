"""The features and parameters that an engine declares to support."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Feature(StrEnum):
    """A feature that only some engines have. A request for a missing one is rejected
    with a 400 that names it.
    """

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    TOOLS = "tools"
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LOGPROB_TOKEN_IDS = "logprob_token_ids"
    REASONING_BUDGET = "reasoning_budget"
    TOKEN_IDS = "token_ids"
    IMAGES = "images"
    AUDIO = "audio"
    FILES = "files"
    SUFFIX = "suffix"
    LORA = "lora"


CONSTRAINT_FEATURES = frozenset(
    {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.REGEX, Feature.CHOICE, Feature.GRAMMAR}
)
"""The features of an engine that masks its logits with a Matcher."""


class Capabilities(Struct, frozen=True):
    """The features and parameters that an engine supports.

    Attributes:
        features: a request for any other feature is rejected.
        parameters: the supported fields of SamplingOptions, GenerationLimits and
            Extras; others are never ignored silently.
        max_logprobs: maximum alternatives for each token.
        native_tools: the engine's own events separate tool calls; our parsers do not
            run.
        native_reasoning: the engine's own events separate reasoning; our parsers do not
            run.
        max_alternatives: alternatives that it can report; a request for more gets a
            warning; None means all.
        verifies_reasoning: the engine seals its reasoning, and verifies the seals
            itself when clients send it back.
        has_one_choice: the engine generates one choice per request, so that n choices
            require n requests.
    """

    features: frozenset[Feature] = frozenset()
    parameters: frozenset[str] = frozenset()
    max_logprobs: int = 0
    native_tools: bool = False
    native_reasoning: bool = False
    max_alternatives: int | None = None
    verifies_reasoning: bool = False
    has_one_choice: bool = False
