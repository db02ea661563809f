"""The structs of OpenAI's `/v1/decisions`.

As in the openai SDK 3.52 (`types/decision.py`, `types/decision_create_params.py`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, accept, reject
from ..request_body import BodySchema
from ..unknown_fields import NestedRules, TaggedFields
from .questions import MAX_OPTIONS, MAX_QUESTIONS


class DecisionPart(Struct, frozen=True, kw_only=True):
    """A part of a text.

    data: an object or an array of objects, shown to the model as JSON.
    """

    type: str
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
    data: Raw = Raw()
    refusal: str | None = None


DecisionContent = str | list[DecisionPart]


class DecisionItem(Struct, frozen=True, kw_only=True):
    """A message, a call of a tool, or its output."""

    type: str = "message"
    role: str | None = None
    content: DecisionContent | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: DecisionContent | None = None


class ChoiceOption(Struct, frozen=True):
    """A choice.

    value: a boolean differs from a string with the same text.
    """

    value: str | bool
    description: str = ""


class ScoreLevel(Struct, frozen=True):
    label: str
    description: str = ""


_SEVERAL = Meta(min_length=2, max_length=MAX_OPTIONS)


class DecisionQuestion(Struct, frozen=True, kw_only=True):
    """A question: `predicate`, `choice` or `score`."""

    type: str
    instructions: DecisionContent
    name: str | None = None
    choices: Annotated[list[ChoiceOption], _SEVERAL] | None = None
    levels: Annotated[list[ScoreLevel], _SEVERAL] | None = None


class DecisionBody(Struct, frozen=True, kw_only=True):
    """A body of /v1/decisions."""

    model: str | None = None
    input: Annotated[
        str | list[DecisionItem],
        Note("a text, or messages and calls of tools with their outputs"),
    ]
    questions: Annotated[
        Annotated[list[DecisionQuestion], Meta(min_length=1, max_length=MAX_QUESTIONS)],
        Note(
            f"predicate, choice or score; 2 to {MAX_OPTIONS} choices or levels each, where OpenAI "
            "takes 255 choices"
        ),
    ]
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_024)] | None, Note("vLLM's extension")
    ] = None


DECISIONS = ParameterTable(
    "decisions",
    (DecisionBody,),
    (
        *accept("prompt_cache_key", "prompt_cache_options", note="caching is automatic"),
        *accept("safety_identifier", note="identifies the end user; has no effect"),
        *reject("stream", "a decision is one object", False),
        *reject("joint", "each question is read by itself", False),
    ),
)
_TEXT_FIELDS = frozenset({"text"})
_IMAGE_FIELDS = frozenset({"image_url", "detail"})
_CALL_LABELS = frozenset({"id", "status"})
DECISION_SCHEMA = BodySchema(
    DecisionBody,
    NestedRules(
        accepted={
            DecisionPart: frozenset({"prompt_cache_breakpoint", "annotations", "logprobs"}),
            DecisionItem: _CALL_LABELS,
        },
        tagged={
            DecisionPart: TaggedFields(
                "type",
                {
                    "input_text": _TEXT_FIELDS,
                    "output_text": _TEXT_FIELDS,
                    "input_image": _IMAGE_FIELDS,
                    "input_json": frozenset({"data"}),
                    "refusal": frozenset({"refusal"}),
                },
            ),
            DecisionQuestion: TaggedFields(
                "type",
                {
                    "predicate": frozenset({"instructions", "name"}),
                    "choice": frozenset({"instructions", "name", "choices"}),
                    "score": frozenset({"instructions", "name", "levels"}),
                },
            ),
        },
    ),
)
DECISION_REQUEST = JsonBody(
    "DecisionRequest",
    (DecisionBody,),
    DECISIONS,
    example={
        "input": "The parcel arrived broken.",
        "questions": [{"type": "predicate", "instructions": "The customer is unhappy."}],
    },
)


class PredicateAnswer(Struct, frozen=True, tag_field="type", tag="predicate"):
    name: str | None
    probability: float


class ChoiceProbability(Struct, frozen=True):
    value: str | bool
    probability: float


class ChoiceAnswer(Struct, frozen=True, tag_field="type", tag="choice"):
    name: str | None
    choice: str | bool
    probabilities: list[ChoiceProbability]
    confidence: float


class ScoreProbability(Struct, frozen=True):
    value: int
    label: str
    probability: float


class ScoreAnswer(Struct, frozen=True, tag_field="type", tag="score"):
    name: str | None
    score: float
    probabilities: list[ScoreProbability]
    confidence: float


class RefusedAnswer(Struct, frozen=True, tag_field="type", tag="refusal"):
    """None of the options is among the tokens that the engine reports."""

    name: str | None


DecisionAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusedAnswer


class InputTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class DecisionUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Decision(Struct, frozen=True):
    """The answers, in the order of the questions.

    usage: null if the engine counts nothing.
    """

    model: str
    answers: list[DecisionAnswer]
    usage: DecisionUsage | None
