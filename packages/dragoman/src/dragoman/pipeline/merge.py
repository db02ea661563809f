"""Merging of the streams of several prompts or choices into one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from ..core.events import Event, Finished, PromptTokens, Started, Usage
from .driver import Batches, BatchStream
from .engine_calls import translate_engine_exception
from .output_queue import OutputQueue


class _PromptEnd:
    """Marks the end of one prompt's stream.

    error: its failure; None if it succeeded.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def merge_prompts(prompts: Sequence[BatchStream]) -> BatchStream:
    """Merge the streams of prompts: choice i of prompt p becomes choice p * n + i.

    `Started` is sent once all prompts have started.
    """
    return BatchStream(_merge_concurrently(prompts, len(prompts)))


def merge_choices(choices: Sequence[BatchStream]) -> BatchStream:
    """Merge the choices of one prompt, each of which has its own stream. Usage counts
    the prompt once per choice.
    """
    return BatchStream(_merge_concurrently(choices, n_prompts=1))


async def _merge_concurrently(streams: Sequence[BatchStream], n_prompts: int) -> Batches:
    queue: OutputQueue[tuple[int, list[Event] | _PromptEnd]] = OutputQueue()
    tasks = [
        asyncio.create_task(_forward_batches(index, batches, queue))
        for index, batches in enumerate(streams)
    ]
    try:
        async for batch in _read_merged(queue, _MergeState(len(streams), n_prompts)):
            yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward_batches(
    index: int, batches: BatchStream, queue: OutputQueue[tuple[int, list[Event] | _PromptEnd]]
) -> None:
    task = asyncio.current_task()
    try:
        async with aclosing(batches):
            async for batch in batches:
                queue.put((index, batch))
    except BaseException as error:
        failure = translate_engine_exception(error, task)
        if not isinstance(failure, Exception):
            raise
        queue.put((index, _PromptEnd(failure)))
    else:
        queue.put((index, _PromptEnd()))


async def _read_merged(
    queue: OutputQueue[tuple[int, list[Event] | _PromptEnd]], merge_state: _MergeState
) -> Batches:
    while merge_state.n_running:
        events: list[Event] = []
        await queue.wait_for_items()
        for index, item in queue.take_all():
            if isinstance(item, _PromptEnd):
                if item.error is not None:
                    raise item.error
                merge_state.n_running -= 1
            else:
                events += [
                    merged_event
                    for event in item
                    for merged_event in merge_state.read(index, event)
                ]
        if events:
            yield events
    yield [merge_state.build_end()]


class _MergeState:
    """The streams that have started, and the summed usage.

    n_streams: number of streams.
    n_prompts: number of prompts; all streams have the same number of choices.
    """

    def __init__(self, n_streams: int, n_prompts: int) -> None:
        self.n_running = n_streams
        self._n_prompts = n_prompts
        self._started: list[Started | None] = [None] * n_streams
        self._finished: list[Finished] = []
        self._pending: list[tuple[int, Event]] = []

    def read(self, index: int, event: Event) -> list[Event]:
        """Add an event of prompt `index`. Return the events that the merged stream can
        now emit.
        """
        match event:
            case Started():
                self._started[index] = event
                started = [event for event in self._started if event is not None]
                if len(started) < len(self._started):
                    return []
                merged_start = Started(
                    _sum_known([event.prompt_tokens for event in started]),
                    _sum_known([event.cached_tokens for event in started]),
                    sum(event.choices for event in started),
                    self._n_prompts,
                    tuple(applied_edit for event in started for applied_edit in event.edited),
                    _sum_known([event.written_tokens for event in started]),
                    tuple(
                        dict.fromkeys(warning for event in started for warning in event.warnings)
                    ),
                    min(event.elapsed for event in started),
                    any(event.is_estimate for event in started),
                )
                pending = self._pending
                self._pending = []
                return [
                    merged_start,
                    *(self._renumber(index, pending_event) for index, pending_event in pending),
                ]
            case Finished():
                self._finished.append(event)
                return []
            # Held back: `Started` comes first, and its counts are sums over all
            # prompts.
            case _ if None in self._started:
                self._pending.append((index, event))
                return []
            case _:
                return [self._renumber(index, event)]

    def _renumber(self, index: int, event: Event) -> Event:
        if isinstance(event, PromptTokens):
            return msgspec.structs.replace(event, prompt=index)
        assert not isinstance(event, (Started, Finished))
        first_started = self._started[0]
        assert first_started is not None
        return msgspec.structs.replace(event, choice=index * first_started.choices + event.choice)

    def build_end(self) -> Finished:
        usages = [finished.usage for finished in self._finished]
        usage = Usage(
            _sum_known([usage.prompt for usage in usages]),
            _sum_known([usage.completion for usage in usages]),
            _sum_known([usage.cached for usage in usages]),
            _sum_known([usage.reasoning for usage in usages]),
            _sum_known([usage.written for usage in usages]),
            any(usage.is_estimate for usage in usages),
        )
        warnings = (warning for finished in self._finished for warning in finished.warnings)
        return Finished(usage, warnings=tuple(dict.fromkeys(warnings)))


def _sum_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None if one count is unknown."""
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if len(known_counts) == len(counts) else None
