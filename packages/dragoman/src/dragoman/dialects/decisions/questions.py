"""A question with its options: how a model reads it, and what its answer means."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from msgspec import Struct

from ...core.message import Image, Message, Part, Role, Text
from ...core.reply import Choice
from ...core.request import (
    Conversation,
    GenerateRequest,
    GenerationLimits,
    ReasoningOptions,
    SamplingOptions,
    TemplateOptions,
)

LABELS = string.ascii_uppercase
"""A capital letter is one token at the start of an answer in every common vocabulary,
unlike most words and all numbers above 9.
"""
MAX_OPTIONS = len(LABELS)
MAX_QUESTIONS = 400
"""OpenAI's limit."""
QuestionPart = Text | Image
NO_TEMPLATE_OPTIONS = TemplateOptions()


class AnswerOption(Struct, frozen=True):
    """An answer that a question allows. description: empty for none."""

    name: str
    description: str = ""


class Question(Struct, frozen=True):
    """A question.

    instructions: what is asked; may be empty.
    options: 2 to MAX_OPTIONS answers.
    """

    instructions: tuple[QuestionPart, ...]
    options: tuple[AnswerOption, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The letters of the options, in order."""
        return tuple(LABELS[: len(self.options)])

    def write_parts(self) -> tuple[QuestionPart, ...]:
        """Write the question as the model reads it, after the input."""
        lines = [
            f"{label}: {option.name}" + (f" - {option.description}" if option.description else "")
            for label, option in zip(self.labels, self.options, strict=True)
        ]
        options = "\n".join([*lines, "Answer with the letter of one option only."])
        if not self.instructions:
            return (Text(options),)
        return (Text("Question: "), *self.instructions, Text(f"\n{options}"))


class LabelProbabilities(Struct, frozen=True):
    """What an answer's first token says of a question.

    values: the probability of each option, which add up to 1; empty if no label is
        among the tokens that the engine reports.
    mass: probability of all labels together, of the whole vocabulary.
    is_label: the most likely token is a label.
    """

    values: tuple[float, ...]
    mass: float
    is_label: bool

    @property
    def best(self) -> int:
        """Index of the most likely option; the first of several."""
        return max(range(len(self.values)), key=self.values.__getitem__)

    @property
    def confidence(self) -> float:
        """Probability of the most likely option, of the whole vocabulary: low if the
        model would rather have answered something else.
        """
        return max(self.values, default=0.0) * self.mass

    @property
    def expected_index(self) -> float:
        """The mean index of ordered options."""
        return sum(index * value for index, value in enumerate(self.values))


def read_probabilities(choice: Choice, question: Question) -> LabelProbabilities:
    """Read the probabilities of a question's options from the answer's first token."""
    tokens = choice.tokens
    logprobs: dict[str, float] = {}
    if tokens:
        token = tokens[0]
        seen = [(alternative.text, alternative.logprob) for alternative in token.top]
        if token.logprob is not None:
            seen.append((token.text, token.logprob))
        for text, logprob in seen:
            # Some vocabularies have a letter with and without a space before it.
            label = text.strip()
            logprobs[label] = max(logprob, logprobs.get(label, -math.inf))
    found = [logprobs.get(label, -math.inf) for label in question.labels]
    weights = [math.exp(logprob) for logprob in found]
    mass = min(1.0, math.fsum(weights))
    top = max(found)
    if top == -math.inf:
        return LabelProbabilities((), 0.0, is_label=False)
    # Of logprobs so low that their exponentials are all 0, too.
    scaled = [math.exp(logprob - top) for logprob in found]
    total = math.fsum(scaled)
    return LabelProbabilities(
        tuple(weight / total for weight in scaled),
        mass,
        is_label=tokens[0].text.strip() in question.labels,
    )


def build_request(
    model: str,
    history: Sequence[Message],
    question: Question,
    *,
    template: TemplateOptions = NO_TEMPLATE_OPTIONS,
    priority: int = 0,
    cache_salt: str = "",
) -> GenerateRequest:
    """Build the request whose first token answers a question.

    history: the input. It comes first, so that the questions share its prefix.
    """
    parts: tuple[Part, ...] = question.write_parts()
    messages = list(history)
    # Many chat templates reject two user messages in a row.
    if messages and messages[-1].role is Role.USER:
        messages[-1] = Message(Role.USER, (*messages[-1].parts, Text("\n\n"), *parts))
    else:
        messages.append(Message(Role.USER, parts))
    return GenerateRequest(
        model=model,
        prompt=Conversation(
            tuple(messages), reasoning=ReasoningOptions(enabled=False), template=template
        ),
        sampling=SamplingOptions(temperature=0.0),
        limits=GenerationLimits(max_tokens=1),
        logprobs=0,
        logprob_texts=question.labels,
        add_special_tokens=False,
        priority=priority,
        cache_salt=cache_salt,
    )
