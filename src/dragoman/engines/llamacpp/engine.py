"""The engine over llama.cpp's server: which sequences it has, and what they are told. A `core.engine.TokenEngine`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from contextlib import aclosing
from functools import partial

import msgspec

from ...core.engine import Capabilities, Deliver, Ended, Failed, Health, Refused, TokenOutput, TokenRequest
from ...core.errors import DragomanError, EngineError, QueueFull, RequestError, Unsupported
from ..batching import EngineConfig, check_request
from .answer import Answer, NoRoom
from .capabilities import capabilities
from .held import Spelling
from .link import Link
from .slots import Slots, keyed
from .vision import Words
from .wire import Body

log = logging.getLogger(__name__)

MARGIN = 8
"""Tokens a slot beyond what sequences may have: llama.cpp is always somewhat ahead of what is known here."""

MOST_REFUSALS = 100

_CUT = (
    "This answer to images cannot resume after preemption: llama.cpp accepts it only as text and "
    "would tokenize it differently."
)


class _Live:
    """A sequence that waits or runs. rank: lower runs first. refusals: how often llama.cpp had no room for it.

    begun: llama.cpp has said something of it in the slot that it has.
    """

    def __init__(self, answer: Answer, deliver: Deliver, number: int) -> None:
        self.answer, self.deliver = answer, deliver
        self.rank = (answer.request.priority, number)
        self.task: asyncio.Task[None] | None = None
        self.refusals = 0
        self.begun = False

    @property
    def keys(self) -> tuple[int, ...]:
        """Its tokens, as slots know them."""
        return keyed(self.answer.tokens, self.answer.request.images)

    @property
    def length(self) -> int:
        return len(self.answer.request.prompt) + len(self.answer.said)


class LlamaCppEngine:
    """Not started yet, over a process that may be.

    Sequences wait here and get a slot each. When their tokens no longer fit together the least urgent one gives up
    its slot and goes on later, as in vLLM. words: of a model that sees.
    """

    def __init__(
        self,
        link: Link,
        spelling: Spelling,
        eog: frozenset[int],
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        words: Words | None = None,
    ) -> None:
        self._words = words
        self._link, self._spelling, self._eog, self._config = link, spelling, eog, config
        self._clock, self._heard = clock, 0.0
        self._live: dict[str, _Live] = {}
        self._waiting: list[_Live] = []
        self._running: list[_Live] = []
        self._slots = self._new_slots()
        self._arrived = 0
        self._capabilities = capabilities(len(spelling), images=words is not None)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._config.max_model_len

    @property
    def pid(self) -> int | None:
        """Of llama.cpp's process, while there is one."""
        return self._link.pid

    async def start(self) -> None:
        await self._link.start()
        self._slots = self._new_slots()

    async def stop(self) -> None:
        live, self._live = self._live, {}
        tasks = [one.task for one in live.values() if one.task is not None]
        self._waiting.clear()  # so that nobody takes the place of those who go
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.stop()
        for one in live.values():
            one.deliver(Failed(one.answer.request.id, "The engine is shutting down."))

    def health(self) -> Health:
        trouble, failed, config = self._link.trouble, self._link.broken, self._config
        silent = self._clock() - self._heard if self._running else 0.0
        if trouble is None and silent > min(config.stall_after, config.step_timeout):
            trouble, failed = f"no message from llama.cpp for {silent:.0f} s", silent > config.step_timeout
        return Health(trouble is None, trouble, len(self._waiting), len(self._running), failed)

    def cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """As PrefixCache.cached_tokens."""
        return self._slots.cached_tokens(prompt, cache_salt)

    async def reset_prefix_cache(self) -> bool | None:
        """As PrefixCache.reset_prefix_cache."""
        self._slots.forget()
        return True

    def add(self, request: TokenRequest, deliver: Deliver) -> None:
        """As TokenEngine.add."""
        if not self._link.open:
            raise EngineError("The engine is not running.")
        if request.id in self._live:
            raise ValueError(f"a sequence {request.id!r} is already running")
        if request.images and self._words is None:
            raise Unsupported("This model was loaded without a projector and does not accept images.", param="messages")
        check_request(request, len(self._spelling), self.max_model_len)
        if request.prompt_logprobs is not None or request.thought is not None:
            raise Unsupported("The llamacpp engine does not support prompt logprobs and reasoning budgets.")
        if len(self._live) >= self._config.scheduler.max_num_seqs + self._config.max_num_waiting:
            raise QueueFull(f"{len(self._live)} sequences are already queued or running; retry later.")
        self._arrived += 1
        live = _Live(self._answer(request), deliver, self._arrived)
        self._live[request.id] = live
        insort(self._waiting, live, key=lambda one: one.rank)
        self._admit()

    def abort(self, id: str) -> None:
        live = self._live.pop(id, None)
        if live is None:
            return
        if live.task is None:
            self._waiting.remove(live)
        else:
            live.task.cancel()

    def _answer(self, request: TokenRequest) -> Answer:
        seed, left = request.sampling.seed, self.max_model_len - len(request.prompt)
        return Answer(
            msgspec.structs.replace(request, max_tokens=min(request.max_tokens, left)),
            self._spelling,
            self._eog,
            seed=random.getrandbits(32) if seed is None else seed,
            context=self.max_model_len,
        )

    def _new_slots(self) -> Slots:
        scheduler = self._config.scheduler
        return Slots(scheduler.max_num_seqs, caching=scheduler.enable_prefix_caching)

    def _admit(self) -> None:
        """Those whose turn it is, as far as there are slots and room for what they have now."""
        while self._waiting and self._slots.free and self._may_join(self._waiting[0]):
            live = self._waiting.pop(0)
            if not self._running:
                self._heard = self._clock()
            self._running.append(live)
            slot, cached = self._slots.take(live.keys, live.answer.request.cache_salt)
            live.begun = False
            live.task = asyncio.create_task(self._serve(live, slot, cached))
            # Not in the task itself: one that is cancelled before its first step takes no step at all.
            live.task.add_done_callback(partial(self._leave, live, slot))

    def _may_join(self, live: _Live) -> bool:
        """Whether there is room for it, and for some tokens more of each."""
        together = [*self._running, live]
        return not self._running or self._length(together) + MARGIN * len(together) <= self._config.num_kv_tokens

    def _length(self, sequences: list[_Live]) -> int:
        return sum(one.length for one in sequences)

    async def _serve(self, live: _Live, slot: int, cached: bool) -> None:
        request, answer = live.answer.request, live.answer
        try:
            await self._complete(live, slot, cached)
        except NoRoom as error:
            live.refusals += 1
            if live.refusals > MOST_REFUSALS:
                self._tell(live, Failed(request.id, error.message))
        except RequestError as error:
            self._tell(live, Failed(request.id, _CUT) if answer.said else Refused(request.id, error))
        except DragomanError as error:
            self._tell(live, Failed(request.id, error.message))
        except Exception:
            # A matcher that fails, say: it takes nobody else with it, and its sequence does not wait for ever.
            log.exception("%s failed", request.id)
            self._tell(live, Failed(request.id, "The engine failed."))

    def _leave(self, live: _Live, slot: int, _: asyncio.Task[None]) -> None:
        request = live.answer.request
        live.task = None
        self._running.remove(live)
        # Of a slot in which nothing was begun it is not known whose tokens it holds.
        self._slots.give(slot, live.keys if live.begun else (), request.cache_salt)
        if self._live.get(request.id) is live:
            # It has neither ended nor been aborted: it gave way to others.
            insort(self._waiting, live, key=lambda one: one.rank)
        if self._link.open:
            self._admit()

    async def _complete(self, live: _Live, slot: int, cached: bool) -> None:
        answer = live.answer
        while not answer.over:
            before = len(answer.said)
            body, cached = await self._body(answer, slot, cached), True
            async with aclosing(self._link.client.complete(body)) as chunks:
                async for chunk in chunks:
                    self._heard, live.begun = self._clock(), True
                    for output in answer.feed(chunk):
                        self._tell(live, output)
                    if answer.over or answer.stale:
                        break
                    self._make_room()
            if not answer.over and not answer.stale and len(answer.said) == before:
                raise EngineError("llama.cpp ended an answer without an explanation.")

    async def _body(self, answer: Answer, slot: int, cached: bool) -> Body:
        body, images = answer.body(slot, cached=cached), answer.request.images
        if not images or self._words is None:
            return body
        prompt = await self._words.tell(self._link.client, answer.tokens, images)
        return msgspec.structs.replace(body, prompt=prompt)

    def _make_room(self) -> None:
        """The least urgent sequence gives way when they do not fit together. One alone always does.

        Whoever is leaving already is left to hang up in peace: it has no room any more.
        """
        staying = [one for one in self._running if one.task is not None and not one.task.cancelling()]
        if len(staying) > 1 and self._length(staying) > self._config.num_kv_tokens:
            task = max(staying, key=lambda one: one.rank).task
            if task is not None:
                task.cancel()

    def _tell(self, live: _Live, output: TokenOutput) -> None:
        """A receiver that raises takes nothing away from the others."""
        if self._live.get(live.answer.request.id) is not live:
            return
        if isinstance(output, (Ended, Failed, Refused)):
            del self._live[live.answer.request.id]
        try:
            live.deliver(output)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the receiver of {live.answer.request.id} raised", "exception": error}
            )
