"""The tokens of a call, as its runs have counted them so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CountingRun(Protocol):
    """The run of one prompt, or of one choice of it.

    prompt_tokens, cached_tokens: None until the engine has started the prompt.
    n_tokens: generated tokens; reported by the engine, counted or estimated.
    """

    @property
    def prompt_tokens(self) -> int | None: ...

    @property
    def cached_tokens(self) -> int | None: ...

    @property
    def n_tokens(self) -> int: ...


class RunCounts:
    """The counts of runs, whether or not their events have passed the stages: several
    prompts or choices send nothing before all of them have started.

    runs: the runs of a prompt or of a call.
    events_carry_tokens: the events carry all tokens, so that stages can count them.
    """

    __slots__ = ("events_carry_tokens", "runs")

    def __init__(self, runs: Sequence[CountingRun], *, events_carry_tokens: bool) -> None:
        self.runs = tuple(runs)
        self.events_carry_tokens = events_carry_tokens

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens of the runs that have started; None if none has."""
        known = [run.prompt_tokens for run in self.runs if run.prompt_tokens is not None]
        return sum(known) if known else None

    @property
    def cached_tokens(self) -> int:
        return sum([run.cached_tokens or 0 for run in self.runs])

    @property
    def output_tokens(self) -> int:
        return sum([run.n_tokens for run in self.runs])
