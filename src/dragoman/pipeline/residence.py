"""Models that come and go, and engines that die: who is here, who has to wait, who may be let go.

Knows no HTTP, and time only as a clock that is handed in. `Models` decides; a `Place` is what one model's state is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import anyio.to_thread

from ..core.engine import Encoder, Engine, TokenEngine
from ..core.errors import DragomanError, EngineError, Overloaded
from ..core.events import Event
from .served import EmbedderBackend, EventBackend, ScorerBackend, ServedModel, TokenBackend

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before an engine that died, or a model that could not be loaded, is tried again; doubled each time."""
WELL = 60.0
"""Seconds after which an engine that was started again counts as well."""
STOPPING = 10.0
"""Seconds that an engine which died may take to clean up after itself."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is loaded when somebody asks for it.

    load: blocking; makes the model, not started; raises DragomanError, OSError or ValueError. ttl: seconds without a
    request after which it is let go; None is never. memory: bytes that it takes.
    """

    name: str
    load: Callable[[], ServedModel]
    created: int
    aliases: tuple[str, ...] = ()
    ttl: float | None = None
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """What is told of a model, also while it is not loaded. abilities: words for what its clients may ask of it."""

    max_model_len: int
    abilities: tuple[str, ...]

    @classmethod
    def of(cls, model: ServedModel) -> Traits:
        words = {feature.value for feature in model.capabilities.features}
        match model.backend:
            case EmbedderBackend():
                words |= {"embeddings"}
            case ScorerBackend():
                words |= {"scoring"}
            case TokenBackend(embedder=embedder):
                words |= {"generation"} if embedder is None else {"generation", "embeddings"}
            case EventBackend():
                words |= {"generation"}
        if model.reasoning is not None:
            words |= {"reasoning"}
        return cls(model.max_model_len, tuple(sorted(words)))


class State(StrEnum):
    UNLOADED = "unloaded"
    LOADED = "loaded"
    LEAVING = "draining"
    """Nobody new is let in; those who are there finish."""
    ILL = "failed"
    """Its engine died, or it could not be loaded. It is tried again later."""


class Place:
    """One model's place in this process. Used as a context it keeps the model from being let go."""

    def __init__(self, offer: Offer | ServedModel, clock: Callable[[], float]) -> None:
        self.offer = offer if isinstance(offer, Offer) else None
        self.name, self.aliases, self.created = offer.name, offer.aliases, offer.created
        self.model = offer if isinstance(offer, ServedModel) else None
        self.state = State.UNLOADED if self.offer else State.LOADED
        self._clock = clock
        self._users = self._waiting = self._expected = 0
        self._change = asyncio.Event()
        self._failures = 0
        self.last_used = self.started = self.retry_at = self._progressed = clock()
        self._events_seen = 0
        self.traits = None if self.model is None else Traits.of(self.model)
        """Known once it has been loaded."""

    def __enter__(self) -> None:
        if self.state is not State.LOADED:
            # It went between being found and being used.
            raise Overloaded("The model is being unloaded; retry in a few seconds.")
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        self.last_used = self._clock()
        self._change.set()

    @property
    def busy(self) -> bool:
        """Somebody uses it, or has waited for it and has not come back yet."""
        return self._users > 0 or self._expected > 0

    async def wait(self, loading: asyncio.Task[None]) -> None:
        """For its being loaded. From then until this returns it stays."""
        self._waiting += 1
        try:
            # Who goes away does not take it away from the others who wait.
            await asyncio.shield(loading)
        finally:
            self._waiting -= 1
            self._expected = min(self._expected, self._waiting)
            self._change.set()

    @property
    def memory(self) -> int:
        """Bytes that it takes now."""
        return 0 if self.offer is None or self.model is None else self.offer.memory

    @property
    def expired(self) -> bool:
        offer = self.offer
        if offer is None or offer.ttl is None or self.busy or self.state is not State.LOADED:
            return False
        return self._clock() - self.last_used >= offer.ttl

    @property
    def dead(self) -> bool:
        """An engine of it will not become ready again by itself."""
        here = self.state in (State.LOADED, State.LEAVING) and self.model is not None
        return here and any(engine.health().failed for engine in self._engines())

    @property
    def due(self) -> bool:
        """It is time to try again."""
        return self.state is State.ILL and self._clock() >= self.retry_at

    def note_progress(self) -> None:
        """Called now and then: whether its generations have advanced since the last call. One that is held need not."""
        model = self.model
        if model is None:
            return
        events, held = model.progress.events, model.control is not None and model.control.is_paused
        if events != self._events_seen or not model.progress.running or held:
            self._events_seen, self._progressed = events, self._clock()

    @property
    def stalled_for(self) -> float:
        """Seconds for which requests have run without a single event, as of the last `note_progress`."""
        model = self.model
        if model is None or not model.progress.running or model.progress.events != self._events_seen:
            return 0.0
        return self._clock() - self._progressed

    def use(self) -> ServedModel:
        """The model, for a request that has come. Raises Overloaded while it is ill or not here."""
        if self.state is State.ILL:
            wait = max(1.0, self.retry_at - self._clock())
            raise Overloaded("The model's engine failed and is being restarted.", retry_after=wait)
        if self.model is None or self.state is not State.LOADED:
            raise Overloaded("The model is not loaded; retry in a few seconds.")
        self.last_used = self._clock()
        return self.model

    async def load(self) -> None:
        """Raises EngineError where that fails; it may be tried again after a pause."""
        assert self.offer is not None
        try:
            made = await anyio.to_thread.run_sync(self.offer.load)
            self.model = replace(made, presence=self)
            await self.start()
        except (DragomanError, OSError, ValueError) as error:
            log.exception("%s cannot be loaded", self.name)
            await self._give_up()
            raise EngineError(f"The model `{self.name}` could not be loaded; see the server's log.") from error
        self.traits = Traits.of(made)
        self._expected = self._waiting
        log.info("%s is loaded", self.name)

    async def start(self) -> None:
        for engine in self._engines():
            await engine.start()
        self.state = State.LOADED
        self.started = self.last_used = self._clock()

    async def leave(self) -> None:
        """Waits for those who use it, then lets it go."""
        await self._until(lambda: not self._expected)
        self.state = State.LEAVING
        await self._until(lambda: not self._users)
        await self.stop()
        self.model, self.state = None, State.UNLOADED
        log.info("%s is unloaded", self.name)

    async def _until(self, so: Callable[[], bool]) -> None:
        while not so():
            self._change.clear()
            await self._change.wait()

    async def stop(self) -> None:
        if self.model is not None:
            self.model.close_workers()
        for engine in self._engines():
            await engine.stop()

    async def bury(self) -> None:
        """Ends what its dead engine was doing: those who wait for it get their error now."""
        log.error("%s: the engine failed", self.name)
        await self._give_up()

    async def _give_up(self) -> None:
        self._fall_ill()
        try:
            async with asyncio.timeout(STOPPING):
                await self.stop()
        except Exception:
            log.exception("%s: the engine could not be stopped", self.name)

    async def revive(self) -> None:
        """Tries again. What was being loaded when it fell ill is loaded by the next request."""
        if self.model is None or (self.traits is None and self.offer is not None):
            self.model, self.state = None, State.UNLOADED
            return
        try:
            await self.start()
        except Exception:
            log.exception("%s: the engine could not be restarted", self.name)
            await self._give_up()
        else:
            log.info("%s: the engine was restarted", self.name)

    def _fall_ill(self) -> None:
        now = self._clock()
        if self.state is State.LOADED and now - self.started >= WELL:
            self._failures = 0
        self.retry_at = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, 32)
        self.state = State.ILL

    def _engines(self) -> tuple[Engine | TokenEngine | Encoder, ...]:
        return () if self.model is None else self.model.engines


class Kept(AsyncGenerator[list[Event]]):
    """The same batches; from now on until they are over, closed or forgotten their model stays.

    A generator would hold nothing before its first step, and nothing ever if it is dropped before that.
    """

    def __init__(self, presence: AbstractContextManager[None], batches: AsyncGenerator[list[Event]]) -> None:
        self._presence: AbstractContextManager[None] | None = presence
        self._batches = batches
        presence.__enter__()

    async def asend(self, value: None) -> list[Event]:
        return await self._step(self._batches.asend(value))

    async def athrow(self, *exception: Any) -> list[Event]:  # noqa: ANN401 - as the generator protocol has it
        return await self._step(self._batches.athrow(*exception))

    async def aclose(self) -> None:
        """Also when it is over already, which the inherited one takes for a generator that goes on."""
        try:
            await self._batches.aclose()
        finally:
            self._release()

    async def _step(self, step: Awaitable[list[Event]]) -> list[Event]:
        try:
            return await step
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.__exit__(None, None, None)

    def __del__(self) -> None:
        self._release()
