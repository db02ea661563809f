"""Several prompts as one answer, and several candidates as their best: streams of events in, one out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from ..core.events import Event, Finished, PromptTokens, Started, Token, Usage, sampled
from .engine_calls import contain
from .mailbox import Mailbox

Batches = AsyncGenerator[list[Event]]


class _End:
    """One prompt is done, or has failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def merge(prompts: Sequence[Batches]) -> Batches:
    """Prompt p's choice i becomes choice p * n + i. `Started` comes when all prompts have started."""
    return prompts[0] if len(prompts) == 1 else _merge(prompts)


async def _merge(prompts: Sequence[Batches]) -> Batches:
    mailbox: Mailbox[tuple[int, list[Event] | _End]] = Mailbox()
    tasks = [asyncio.create_task(_pump(index, batches, mailbox)) for index, batches in enumerate(prompts)]
    try:
        async for batch in _merged(mailbox, len(prompts)):
            yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(index: int, batches: Batches, mailbox: Mailbox[tuple[int, list[Event] | _End]]) -> None:
    task = asyncio.current_task()
    try:
        async with aclosing(batches):
            async for batch in batches:
                mailbox.put((index, batch))
    except BaseException as error:
        failure = contain(error, task)
        if not isinstance(failure, Exception):
            raise
        mailbox.put((index, _End(failure)))
    else:
        mailbox.put((index, _End()))


async def _merged(mailbox: Mailbox[tuple[int, list[Event] | _End]], prompts: int) -> Batches:
    table = _Table(prompts)
    while table.running:
        out: list[Event] = []
        await mailbox.arrival()
        for index, letter in mailbox.take():
            if isinstance(letter, _End):
                if letter.error is not None:
                    raise letter.error
                table.running -= 1
            else:
                out += [event for each in letter for event in table.read(index, each)]
        if out:
            yield out
    yield [Finished(table.usage())]


class _Table:
    """Who has started, and the sums."""

    def __init__(self, prompts: int) -> None:
        self.running = prompts
        self._started: list[Started | None] = [None] * prompts
        self._usages: list[Usage] = []
        self._held: list[tuple[int, Event]] = []

    def read(self, index: int, event: Event) -> list[Event]:
        match event:
            case Started():
                self._started[index] = event
                return self._begin()
            case Finished(usage):
                self._usages.append(usage)
                return []
            case _ if None in self._started:
                self._held.append((index, event))
                return []
            case _:
                return [self._renumber(index, event)]

    def _begin(self) -> list[Event]:
        started = [each for each in self._started if each is not None]
        if len(started) < len(self._started):
            return []
        held, self._held = self._held, []
        whole = Started(
            sum(each.prompt_tokens for each in started),
            _sum([each.cached_tokens for each in started]),
            sum(each.choices for each in started),
            len(started),
            tuple(edit for each in started for edit in each.edited),
        )
        return [whole, *(self._renumber(index, event) for index, event in held)]

    def _renumber(self, index: int, event: Event) -> Event:
        if isinstance(event, PromptTokens):
            return msgspec.structs.replace(event, prompt=index)
        assert not isinstance(event, (Started, Finished))
        first = self._started[0]
        assert first is not None
        return msgspec.structs.replace(event, choice=index * first.choices + event.choice)

    def usage(self) -> Usage:
        return Usage(
            sum(usage.prompt for usage in self._usages),
            sum(usage.completion for usage in self._usages),
            _sum([usage.cached for usage in self._usages]),
            _sum([usage.reasoning for usage in self._usages]),
        )


def _sum(counts: Sequence[int | None]) -> int | None:
    """A sum with an unknown part is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


async def best(batches: Batches, keep: int) -> Batches:
    """Of all candidates the `keep` most likely ones a token, best first (OpenAI's best_of). Needs logprobs.

    Nothing can be said before every candidate is complete; usage counts all of them.
    """
    started, prompts, finished = Started(0), list[Event](), Finished(Usage(0, 0))
    said: dict[int, list[Event]] = {}
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                match event:
                    case Started():
                        started = event
                    case PromptTokens():
                        prompts.append(event)
                    case Finished():
                        finished = event
                    case _:
                        said.setdefault(event.choice, []).append(event)
    ranked = sorted(said.values(), key=_likelihood, reverse=True)[:keep]
    yield [msgspec.structs.replace(started, choices=keep), *prompts]
    for index, events in enumerate(ranked):
        yield [_as_choice(event, index) for event in events]
    yield [finished]


def _likelihood(events: list[Event]) -> float:
    tokens: list[Token] = [token for event in events for token in sampled(event)]
    known = [token.logprob for token in tokens if token.logprob is not None]
    return sum(known) / len(known) if known else 0.0


def _as_choice(event: Event, index: int) -> Event:
    assert not isinstance(event, (Started, PromptTokens, Finished))
    return msgspec.structs.replace(event, choice=index)
