"""Renders the answers of `/v1/systemone`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...core.reply import Reply
from ..interfaces import Header
from ..json_encoding import replace_surrogates
from .questions import LabelProbabilities, Question, read_probabilities
from .systemone_wire import (
    NoulAnswer,
    SystemOneAnswer,
    SystemOneChoice,
    SystemOneDiagnostics,
    SystemOneResponse,
    SystemOneScore,
    SystemOneUsage,
)
from .whole_writer import WholeWriter


class SystemOneWriter(WholeWriter):
    """Renders the answers to a body's questions. types: their types, by id."""

    def __init__(
        self, header: Header, types: Mapping[str, str], questions: Mapping[str, Question]
    ) -> None:
        self._header = header
        self._types = types
        self._questions = questions

    def render_full(self, reply: Reply) -> bytes:
        answers: dict[str, SystemOneAnswer] = {}
        diagnostics: dict[str, SystemOneDiagnostics] = {}
        for (id, question), choice in zip(self._questions.items(), reply.choices, strict=True):
            probabilities = read_probabilities(choice, question)
            answers[id] = _build_answer(self._types[id], question, probabilities)
            diagnostics[id] = SystemOneDiagnostics(probabilities.mass, probabilities.is_label)
        usage = reply.usage
        return msgspec.json.encode(
            SystemOneResponse(
                self._header.id,
                self._header.created,
                replace_surrogates(self._header.model),
                answers,
                None
                if usage.prompt is None or usage.completion is None
                else SystemOneUsage(usage.prompt, usage.completion),
                diagnostics,
            )
        )


def _build_answer(
    kind: str, question: Question, probabilities: LabelProbabilities
) -> SystemOneAnswer:
    names = [option.name for option in question.options]
    if not probabilities.values:
        # This API has no refusal: all options are equally likely, with confidence 0.
        uniform = (1 / len(names),) * len(names)
        probabilities = msgspec.structs.replace(probabilities, values=uniform)
    values = probabilities.values
    confidence = probabilities.confidence
    match kind:
        case "noul":
            return NoulAnswer(values[0], dict(zip(names, values, strict=True)), confidence)
        case "choice":
            by_name = dict(zip(names, values, strict=True))
            return SystemOneChoice(names[probabilities.best], by_name, confidence)
        case _:
            return SystemOneScore(
                probabilities.expected_index,
                {str(index): name for index, name in enumerate(names)},
                {str(index): value for index, value in enumerate(values)},
                confidence,
            )
