"""The scripted engine, which also records what it was sent and how each reply ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from dragoman import (
    DragomanError,
    Event,
    Finished,
    GenerateRequest,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    find_bundled_model,
)
from dragoman.core.errors import ConnectionDropped
from dragoman.engines.scripted import ScriptedEngine
from dragoman.prompts.hf_tokenizer import load_tokenizer

from .reply_queue import ReplyQueue
from .sent_request import Ending
from .traffic import Exchange, Traffic


class RecordingEngine(ScriptedEngine):
    """The scripted engine with a queue instead of a script."""

    def __init__(self, queue: ReplyQueue, traffic: Traffic) -> None:
        super().__init__(queue, tokenizer=load_tokenizer(find_bundled_model()))
        self._traffic = traffic

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        exchange = self._traffic.begin_generation(request)
        record = _ReplyRecord(exchange)
        try:
            async with aclosing(super().generate(request)) as events:
                async for event in events:
                    record.feed(event)
                    yield event
        except ConnectionDropped:
            exchange.is_dropped = True
            exchange.request.ending = _find_drop_ending(exchange)
            raise
        except DragomanError:
            exchange.request.ending = Ending.FAILED
            raise
        except (GeneratorExit, asyncio.CancelledError):
            if exchange.request.usage is None:
                exchange.request.ending = Ending.ABANDONED
            raise


def _find_drop_ending(exchange: Exchange) -> Ending:
    plan = exchange.plan
    if plan is not None and plan.entry.interruption is not None:
        if plan.entry.interruption.seconds:
            return Ending.STALLED
        if plan.ends_cleanly:
            return Ending.TRUNCATED
    return Ending.DROPPED


class _ReplyRecord:
    """Records the tool calls and the usage of a reply."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._request = exchange.request
        self._open_calls: dict[int, int] = {}

    def feed(self, event: Event) -> None:
        calls = self._request.tool_calls
        match event:
            case ToolCallStart(choice, id, name, custom=custom):
                self._open_calls[choice] = len(calls)
                calls.append(ToolCall(id, name, "", custom=custom))
            case ToolCallDelta(choice, arguments):
                index = self._open_calls[choice]
                call = calls[index]
                calls[index] = replace(call, arguments=call.arguments + arguments)
            case Finished(usage):
                self._request.usage = usage
                plan = self._exchange.plan
                is_malformed = plan is not None and plan.is_malformed
                # Now, as the client may return before the response is complete.
                self._request.ending = Ending.MALFORMED if is_malformed else Ending.COMPLETE
            case _:
                pass
