"""Completion of the token counts that an event engine does not report."""

from __future__ import annotations

import msgspec

from ..core.answer_size import AnswerSize
from ..core.events import Finished, Started, Usage

ESTIMATE_WARNING = (
    "usage is an estimate from the text: the model's server has not reported all token counts"
)


class UsageCompletion:
    """Estimates the token counts of one prompt's answer where its engine knows none.

    prompt_tokens: an estimate of the prompt's tokens.
    size: the answer's size so far; the engine's events are added to it, before any
        parser.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._started = Started(None)
        self.size = AnswerSize()

    def start(self, started: Started) -> Started:
        """Return the event with an estimate of the prompt's tokens, if they are
        unknown so far.
        """
        if started.prompt_tokens is None:
            started = msgspec.structs.replace(
                started, prompt_tokens=self._prompt_tokens, is_estimate=True
            )
        self._started = started
        return started

    def finish(self, usage: Usage) -> Finished:
        """Return the end of the answer, with estimates of the unknown counts and then a
        warning for the client.
        """
        started = self._started
        is_estimate = usage.prompt is None and started.is_estimate
        prompt = started.prompt_tokens if usage.prompt is None else usage.prompt
        completion = usage.completion
        # Servers that do not count may say 0.
        if completion is None or (completion == 0 and self.size.characters):
            completion = self.size.count
            is_estimate = is_estimate or not (self.size.tokens and self.size.has_all_tokens)
        usage = msgspec.structs.replace(
            usage, prompt=prompt, completion=completion, is_estimate=is_estimate
        )
        finished = Finished(usage, warnings=(ESTIMATE_WARNING,) if is_estimate else ())
        self.size.add(finished)
        return finished
