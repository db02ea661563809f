"""Renders OpenAI's decisions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.events import Usage
from ...core.reply import Reply
from ..interfaces import Header
from ..json_encoding import replace_surrogates
from .openai_wire import (
    ChoiceAnswer,
    ChoiceProbability,
    Decision,
    DecisionAnswer,
    DecisionQuestion,
    DecisionUsage,
    InputTokensDetails,
    OutputTokensDetails,
    PredicateAnswer,
    RefusedAnswer,
    ScoreAnswer,
    ScoreProbability,
)
from .questions import LabelProbabilities, Question, read_probabilities
from .whole_writer import WholeWriter


class OpenAIDecisionWriter(WholeWriter):
    """Renders the answers to a body's questions.

    wire_questions: the questions as the client sent them, which the answers repeat.
    questions: the same as the model reads them.
    """

    def __init__(
        self,
        header: Header,
        wire_questions: Sequence[DecisionQuestion],
        questions: Sequence[Question],
    ) -> None:
        self._header = header
        self._wire_questions = wire_questions
        self._questions = questions

    def render_full(self, reply: Reply) -> bytes:
        answers = [
            _build_answer(wire, read_probabilities(choice, question))
            for wire, question, choice in zip(
                self._wire_questions, self._questions, reply.choices, strict=True
            )
        ]
        usage = _build_usage(reply.usage)
        return msgspec.json.encode(Decision(replace_surrogates(self._header.model), answers, usage))


def _build_answer(wire: DecisionQuestion, probabilities: LabelProbabilities) -> DecisionAnswer:
    values = probabilities.values
    if not values:
        return RefusedAnswer(wire.name)
    if wire.choices is not None and wire.type == "choice":
        return ChoiceAnswer(
            wire.name,
            wire.choices[probabilities.best].value,
            [
                ChoiceProbability(choice.value, value)
                for choice, value in zip(wire.choices, values, strict=True)
            ],
            probabilities.confidence,
        )
    if wire.levels is not None and wire.type == "score":
        return ScoreAnswer(
            wire.name,
            probabilities.expected_index,
            [
                ScoreProbability(index, level.label, value)
                for index, (level, value) in enumerate(zip(wire.levels, values, strict=True))
            ],
            probabilities.confidence,
        )
    return PredicateAnswer(wire.name, values[1])


def _build_usage(usage: Usage) -> DecisionUsage | None:
    if usage.prompt is None or usage.completion is None:
        return None
    return DecisionUsage(
        usage.prompt,
        InputTokensDetails(usage.cached or 0, usage.written or 0),
        usage.completion,
        OutputTokensDetails(usage.reasoning or 0),
        usage.prompt + usage.completion,
    )
