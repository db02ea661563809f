"""All models of this process: found by their names, loaded when they are asked for, looked after while here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from ..core.errors import EngineError, ModelNotFound, Overloaded, RequestError
from .adapters import Adapter
from .engine_calls import contain
from .residence import Offer, Place, State
from .served import EmbedderBackend, EventBackend, ScorerBackend, ServedModel, TokenBackend

__all__ = [
    "EmbedderBackend",
    "EventBackend",
    "Models",
    "Offer",
    "Place",
    "ScorerBackend",
    "ServedModel",
    "State",
    "TokenBackend",
]

log = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two looks at each engine."""


class Models:
    """In the order in which they are listed; the first is the default.

    A ServedModel is here from `start` to `stop`; an Offer while it is used. memory: bytes that all offers together
    may take; None is no bound. Names may hold `*` and `?`: such an alias stands for all names that fit it.
    """

    def __init__(
        self,
        served: Sequence[ServedModel | Offer],
        *,
        memory: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not served:
            raise ValueError("at least one model must be served")
        self._places = tuple(Place(one, clock) for one in served)
        self._memory, self._sleep = memory, sleep
        names = [(name, place) for place in self._places for name in (place.name, *place.aliases)]
        self._patterns = [(name, place) for name, place in names if is_pattern(name)]
        self._by_name = {name: place for name, place in reversed(names) if not is_pattern(name)}
        self._moving = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self.closed = False
        """Nothing new is let in: the process is about to end."""
        self._looking: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[ServedModel]:
        """Those that are loaded."""
        return (place.model for place in self._places if place.model is not None)

    @property
    def places(self) -> tuple[Place, ...]:
        """All of them, loaded or not."""
        return self._places

    @property
    def default(self) -> str | None:
        """The model of a request that names none; None where several are served."""
        return self._places[0].name if len(self._places) == 1 else None

    def place(self, name: str) -> Place:
        """Raises ModelNotFound."""
        place = self._by_name.get(name) or self._adapted(name)
        if place is None:
            place = next((place for pattern, place in self._patterns if fnmatchcase(name, pattern)), None)
        if place is None:
            shown = name if len(name) <= 100 else name[:100] + "..."
            raise ModelNotFound(
                f"The model `{shown}` does not exist. Served here: {', '.join(p.name for p in self._places)}.",
                param="model",
            )
        return place

    def _adapted(self, name: str) -> Place | None:
        """Where an adapter of this name is loaded."""
        loaded = ((place, place.model) for place in self._places if place.model is not None)
        return next((place for place, model in loaded if model.adapters is not None and name in model.adapters), None)

    def find(self, name: str) -> ServedModel:
        """One that is loaded. Raises ModelNotFound, and Overloaded where it is not here now."""
        return self.place(name).use()

    async def ready(self, name: str) -> ServedModel:
        """The model, which is loaded first where it is not. Raises ModelNotFound, Overloaded, EngineError.

        Unless it is held (`admit` does that) it may be let go as soon as the caller waits for anything.
        """
        place = self.place(name)
        if self.closed:
            raise Overloaded("The server is shutting down; retry later.")
        if place.state in (State.UNLOADED, State.LEAVING):
            loading = self._loads.get(place.name)
            if loading is None:
                loading = asyncio.create_task(self._bring(place))
                self._loads[place.name] = loading
                loading.add_done_callback(lambda done: self._loaded(place.name, done))
            await place.wait(loading)
        return place.use()

    async def load_adapter(self, base: ServedModel, adapter: Adapter, *, again: bool = False) -> None:
        """Raises RequestError for a name that something else has, and where the engine takes none, or not this one."""
        if base.adapters is None:
            raise RequestError("This model's engine does not support adapters.", param="base_model_name")
        if adapter.name in self._by_name:
            raise RequestError(f"`{adapter.name}` is the name of a served model.", param="lora_name")
        await base.adapters.load(adapter, again=again)

    def unload_adapter(self, name: str) -> None:
        """Raises NotFound."""
        self.find(name)
        for model in self:
            if model.adapters is not None and name in model.adapters:
                model.adapters.unload(name)
                return
        raise RequestError(f"`{name}` is not an adapter.", param="lora_name")

    async def start(self) -> None:
        for place in self._places:
            if place.model is not None:
                await place.start()
        self._looking = [asyncio.create_task(self._look(place)) for place in self._places]

    def close(self) -> None:
        """What is here goes on; for all else there is no model any more. It cannot be opened again."""
        self.closed = True

    async def stop(self) -> None:
        tasks = [*self._looking, *self._loads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for place in self._places:
            await place.stop()

    async def tend(self, place: Place) -> None:
        """One look: a dead engine's work is ended and the engine started again later; who is not asked for goes."""
        place.note_progress()
        if place.dead:
            await place.bury()
        if place.due:
            await place.revive()
        if place.expired:
            async with self._moving:
                if place.expired:
                    await place.leave()

    async def _look(self, place: Place) -> None:
        task = asyncio.current_task()
        while True:
            await self._sleep(LOOK)
            try:
                await self.tend(place)
            except BaseException as error:
                if not isinstance(error, Exception) and contain(error, task) is error:
                    raise
                # Whatever it was, the next look must come.
                log.exception("monitoring %s failed", place.name)

    async def _bring(self, place: Place) -> None:
        async with self._moving:
            if place.state is State.UNLOADED:
                await self._make_room(place)
                await place.load()

    async def _make_room(self, wanted: Place) -> None:
        """Lets go of the one that was used longest ago, and of more if needed; one that is used finishes first."""
        most = self._memory
        need = 0 if wanted.offer is None else wanted.offer.memory
        if most is None:
            return
        while sum(place.memory for place in self._places) + need > most:
            able = [place for place in self._places if place.memory and place.state is not State.LEAVING]
            if not able:
                raise EngineError(
                    f"The model `{wanted.name}` needs more memory than the limit for all models (--models-memory)."
                )
            await min(able, key=lambda place: (place.busy, place.last_used)).leave()

    def _loaded(self, name: str, done: asyncio.Task[None]) -> None:
        """Also where nobody waits any more its error has been seen."""
        del self._loads[name]
        if not done.cancelled():
            done.exception()


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name
