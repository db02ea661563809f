"""The structs of `/v1/systemone`.

As in vLLM 0.33 (`entrypoints/generate/structured_decisions/protocol.py`) and Ollama's
SDK 0.6.3.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from ..bounds import Int64
from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, reject, warn
from ..request_body import BodySchema
from .questions import MAX_OPTIONS


class SystemOneQuestion(Struct, frozen=True, kw_only=True):
    """A question.

    type: `choice`, `noul` or `score`.
    criteria: descriptions by choice; of `true` and `false`; or levels in order.
    """

    type: str
    instructions: Raw = Raw()
    criteria: Raw = Raw()


class SystemOneBody(Struct, frozen=True, kw_only=True):
    """A body of /v1/systemone."""

    model: str | None = None
    state: Annotated[Raw, Note("what the questions are about: text, or any JSON")]
    questions: Annotated[
        dict[str, SystemOneQuestion],
        Note(f"choice, noul or score by id; at most {MAX_OPTIONS} options each"),
    ]
    instructions: Annotated[str | None, Note("a system message before the questions")] = None
    images: Annotated[list[str] | None, Note("URLs or data URLs, for models that see")] = None
    chat_template_kwargs: Annotated[Raw, Note("thinking must be off")] = Raw()
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    priority: Annotated[
        Int64 | None, Note("lower runs first, among the requests of the same key")
    ] = None


SYSTEMONE = ParameterTable(
    "systemone",
    (SystemOneBody,),
    (
        *warn("keep_alive", "a model stays loaded as the server's settings say"),
        *warn("request_id", "ids are the server's own"),
        *reject("stream", "a decision is one object", False),
        *reject("joint", "each question is read by itself", False),
        *reject("audio", "the questions are about text and images", []),
        *reject("videos", "the questions are about text and images", []),
    ),
)
SYSTEMONE_SCHEMA = BodySchema(SystemOneBody)
SYSTEMONE_REQUEST = JsonBody(
    "SystemOneRequest",
    (SystemOneBody,),
    SYSTEMONE,
    example={
        "state": "The parcel arrived broken.",
        "questions": {"unhappy": {"type": "noul", "instructions": "Is the customer unhappy?"}},
    },
)


class NoulAnswer(Struct, frozen=True, tag_field="type", tag="noul"):
    """The answer to a yes-no question.

    noul: the probability of yes.
    """

    noul: float
    probabilities: dict[str, float]
    confidence: float


class SystemOneChoice(Struct, frozen=True, tag_field="type", tag="choice"):
    choice: str
    probabilities: dict[str, float]
    confidence: float


class SystemOneScore(Struct, frozen=True, tag_field="type", tag="score"):
    """The answer to a question with levels.

    score: the expected index of the level.
    """

    score: float
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float


SystemOneAnswer = NoulAnswer | SystemOneChoice | SystemOneScore


class SystemOneUsage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class SystemOneDiagnostics(Struct, frozen=True):
    """How much an answer can be trusted.

    label_mass: probability of all labels, of the whole vocabulary.
    argmax_is_label: the most likely token is a label.
    """

    label_mass: float
    argmax_is_label: bool


class SystemOneResponse(Struct, frozen=True):
    """The answers, by the questions' ids. usage: null if the engine counts nothing."""

    id: str
    created: int
    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage | None
    diagnostics: dict[str, SystemOneDiagnostics]
    object: Literal["structured_decision"] = "structured_decision"
