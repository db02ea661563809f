"""The registry of this process's models: looked up by name, loaded on demand."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

from ..core.errors import EngineError, ModelNotFound, Overloaded, RequestError
from .engine_calls import translate_engine_exception
from .lora_adapters import Adapter
from .model_lifecycle import ModelSlot, ModelSpec, ModelState, SlotHistory
from .served_model import ServedModel

log = logging.getLogger(__name__)

HEALTH_CHECK_INTERVAL = 0.25
"""Seconds between two health checks of each engine."""


class Models:
    """The served models, in listing order; the first is the default.

    served: the models. A ServedModel is loaded from `start` to `stop`, a ModelSpec on
        demand.
    memory: maximum bytes of all models on demand together; None means no limit.

    An alias may be a pattern with `*` and `?`, which matches several names.
    """

    def __init__(
        self,
        served: Sequence[ServedModel | ModelSpec],
        *,
        memory: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not served:
            raise ValueError("at least one model must be served")
        self._memory = memory
        self._sleep = sleep
        self._clock = clock
        self._watchers: set[asyncio.Event] = set()
        self._set_slots(tuple(ModelSlot(spec, clock) for spec in served))
        # One load or unload at a time, since whether a model fits into memory depends
        # on the loaded models.
        self._load_lock = asyncio.Lock()
        self._loads: dict[ModelSlot, asyncio.Task[None]] = {}
        self._closed = asyncio.Event()
        self.on_start_failure: Callable[[str, BaseException], None] | None = None
        """Called when a model that is loaded from the start cannot be loaded, with its
        name and the cause.
        """
        self.on_unusable_process: Callable[[], None] | None = None
        """Called when a failed engine cannot be restarted in this process; None if no
        other process can take over.
        """
        self.waits_for_loads = False
        """Whether `start` returns only when the models that are loaded from the start
        have been loaded.
        """
        self._poll_tasks: dict[ModelSlot, asyncio.Task[None]] = {}
        self._retiring: dict[ModelSlot, asyncio.Task[None]] = {}
        self._permitted: tuple[str, ...] = ()
        self._unrestricted = self
        """All models, if this is a view that `restrict` has returned."""

    def _set_slots(self, slots: tuple[ModelSlot, ...]) -> None:
        self._slots = slots
        for slot in slots:
            slot.on_change = self._notify_watchers
        names = [(name, slot) for slot in slots for name in (slot.name, *slot.aliases)]
        self._patterns = [(name, slot) for name, slot in names if is_name_pattern(name)]
        # Reversed, so that the first of several models with the same alias is found.
        self._by_name = {name: slot for name, slot in reversed(names) if not is_name_pattern(name)}

    def replace_models(self, served: Sequence[ModelSlot | ModelSpec]) -> None:
        """Replace the served models while the server runs.

        served: slots that continue to be served, and specs of new models. Any other
        slot gets no new requests, and is unloaded when its last request has ended.
        """
        slots = tuple(
            item if isinstance(item, ModelSlot) else ModelSlot(item, self._clock) for item in served
        )
        if not slots:
            raise ValueError("at least one model must be served")
        former = self._slots
        self._set_slots(slots)
        for slot in slots:
            if slot not in former:
                self._poll_tasks[slot] = asyncio.create_task(self._poll_forever(slot))
                if slot.is_starting:
                    self.begin_load(slot)
        for slot in former:
            if slot not in slots:
                self._poll_tasks.pop(slot).cancel()
                task = self._retiring[slot] = asyncio.create_task(self._retire(slot))
                # Running requests end normally: a separate task waits for them and then
                # unloads the model.
                task.add_done_callback(lambda _, slot=slot: self._retiring.pop(slot))

    async def _retire(self, slot: ModelSlot) -> None:
        """Unload a slot that is no longer served, after its requests have ended."""
        load_task = self._loads.get(slot)
        if load_task is not None:
            # `wait` does not raise the load's error: a failed load leaves nothing to
            # unload.
            await asyncio.wait([load_task])
        # Polled, as a slot has no event for "no generation runs" and the unload is not
        # urgent.
        while slot.is_busy or (slot.model is not None and slot.model.progress.running):
            await self._sleep(HEALTH_CHECK_INTERVAL)
            # Otherwise the requests of an engine that fails now would never end.
            await self._handle_failure(slot)
        await slot.retire()

    def build_histories(self) -> dict[str, SlotHistory]:
        """Build what a new process takes over, by model name."""
        return {slot.name: slot.build_history() for slot in self._slots}

    def succeed(self, histories: Mapping[str, SlotHistory]) -> None:
        """Take over from the models of the process that this one has replaced; before
        `start`.
        """
        for slot in self._slots:
            if slot.name in histories:
                slot.succeed(histories[slot.name])

    def restrict(self, permitted: tuple[str, ...]) -> Models:
        """Return a view in which only models with these names, aliases or adapters
        exist; names may be patterns.
        """
        # A shallow copy shares loads and locks: a model that one API key has loaded is
        # loaded for all. The slots are read from the unrestricted models, whose memory
        # limit covers all of them and which a reload changes.
        view = copy.copy(self)
        view._permitted = permitted
        return view

    def _is_permitted(self, *names: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in self._permitted)

    def __iter__(self) -> Iterator[ServedModel]:
        """The loaded models."""
        return (slot.model for slot in self.slots if slot.model is not None)

    @property
    def slots(self) -> tuple[ModelSlot, ...]:
        """All models, loaded or not."""
        slots = self._unrestricted._slots
        if not self._permitted:
            return slots
        return tuple(slot for slot in slots if self._is_permitted(slot.name, *slot.aliases))

    def list_names(self) -> list[tuple[ModelSlot, str]]:
        """List each name that a request may state, with its model: names and aliases,
        then adapters. Patterns are omitted, since they are not names of a model.
        """
        slots = self.slots
        names = [(slot, name) for slot in slots for name in (slot.name, *slot.aliases)]
        return [
            *((slot, name) for slot, name in names if not is_name_pattern(name)),
            *((slot, name) for slot in slots for name in _list_adapters(slot)),
        ]

    @property
    def is_closed(self) -> bool:
        """Whether new requests are rejected because the process shuts down. Views share
        this state.
        """
        return self._closed.is_set()

    @property
    def default(self) -> str | None:
        """The model for requests that name none; None if several are served."""
        slots = self.slots
        return slots[0].name if len(slots) == 1 else None

    def find_slot(self, name: str) -> ModelSlot:
        """Find a model by name, alias or adapter. Raises ModelNotFound."""
        served = self._unrestricted
        slot = served._by_name.get(name)
        for other in served._slots if slot is None else ():
            if name in _list_adapters(other):
                slot = other
                break
        if slot is None:
            slot = next(
                (slot for pattern, slot in served._patterns if fnmatchcase(name, pattern)), None
            )
        if (
            slot is not None
            and self._permitted
            and not self._is_permitted(name, slot.name, *slot.aliases)
        ):
            slot = None  # The error must not reveal models that the API key may not use.
        if slot is None:
            short_name = name if len(name) <= 100 else name[:100] + "..."
            raise ModelNotFound(
                f"The model `{short_name}` does not exist. Served here: "
                f"{', '.join(slot.name for slot in self.slots)}.",
                param="model",
            )
        return slot

    def find_loaded(self, name: str) -> ServedModel:
        """Return a loaded model. Raises ModelNotFound, or Overloaded if it is not
        loaded now.
        """
        return self.find_slot(name).acquire_model()

    async def load_and_find(self, name: str) -> ServedModel:
        """Return the model, after loading it if necessary. Raises ModelNotFound,
        Overloaded, EngineError.

        Unless a lease is taken (as `admit` does) the model may be unloaded at the
        caller's next await.
        """
        slot = self.find_slot(name)
        if self.is_closed:
            raise Overloaded("The server is shutting down; retry later.")
        if slot.state in (ModelState.UNLOADED, ModelState.DRAINING):
            load_task = self.begin_load(slot)
            slot.raise_if_loading()
            await slot.wait_until_loaded(load_task)
        return slot.acquire_model()

    def begin_load(self, slot: ModelSlot) -> asyncio.Task[None]:
        """Load a model in the background, unless that has already begun. Return the
        task.
        """
        load_task = self._loads.get(slot)
        if load_task is None:
            load_task = asyncio.create_task(self._unrestricted._load_slot(slot))
            self._loads[slot] = load_task
            slot.is_loading = True
            load_task.add_done_callback(lambda task: self._finish_load(slot, task))
        return load_task

    async def unload(self, slot: ModelSlot) -> None:
        """Unload a model on demand: at once if it is idle, else when its last request
        has finished.
        """
        # An idle time of 0 seconds has always passed, so a model in use is unloaded by
        # the poll that finds it idle.
        slot.keep_for(0)
        async with self._load_lock:
            if slot.has_expired:
                await slot.drain_and_unload()

    async def load_adapter(
        self, base: ServedModel, adapter: Adapter, *, replace: bool = False
    ) -> None:
        """Load an adapter. Raises RequestError if the name is in use, or the engine
        does not accept the adapter.
        """
        if base.adapters is None:
            raise RequestError(
                "This model's engine does not support adapters.", param="base_model_name"
            )
        if adapter.name in self._unrestricted._by_name:
            raise RequestError(
                f"`{adapter.name}` is the name of a served model.", param="lora_name"
            )
        await base.adapters.load(adapter, replace=replace)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter.

        Raises:
            ModelNotFound: the name is unknown.
            Overloaded: the adapter's model is not loaded.
            RequestError: the name is not an adapter's.
        """
        self.find_loaded(name)
        for model in self:
            if model.adapters is not None and name in model.adapters:
                await model.adapters.unload(name)
                return
        raise RequestError(f"`{name}` is not an adapter.", param="lora_name")

    async def start(self) -> None:
        for slot in self._slots:
            if slot.spec is not None:
                slot.spec.progress.cancelled.clear()
            if slot.model is not None:
                await slot.start()
            elif slot.is_starting:
                self.begin_load(slot)
        if self.waits_for_loads:
            await asyncio.gather(*self._loads.values())
        self._poll_tasks = {
            slot: asyncio.create_task(self._poll_forever(slot)) for slot in self._slots
        }

    def close(self) -> None:
        """Reject all new requests from now on; running requests finish."""
        self._closed.set()
        self._notify_watchers()

    async def watch(self, interval: float) -> AsyncGenerator[None]:
        """Yield at once, after each change of a model's state, and every `interval`
        seconds, until `close`.
        """
        has_changed = asyncio.Event()
        self._watchers.add(has_changed)
        try:
            while not self.is_closed:
                # Cleared before the yield, so that a change during it is not lost.
                has_changed.clear()
                yield
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await has_changed.wait()
        finally:
            self._watchers.discard(has_changed)

    def _notify_watchers(self) -> None:
        for has_changed in self._watchers:
            has_changed.set()

    async def stop(self) -> None:
        slots = (*self._slots, *self._retiring)
        for slot in slots:
            if slot.spec is not None:
                # A load runs in a thread, which cannot be cancelled from outside.
                slot.spec.progress.cancelled.set()
        tasks = [*self._poll_tasks.values(), *self._loads.values(), *self._retiring.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in slots:
            await slot.stop()

    async def poll(self, slot: ModelSlot) -> None:
        """One health check: stop a failed engine's work and schedule its restart;
        unload an idle model.
        """
        slot.note_progress()
        await self._handle_failure(slot)
        if slot.retry_due:
            await slot.restart()
            if slot.is_starting:
                self.begin_load(slot)
            if slot.needs_new_process and self.on_unusable_process is not None:
                self.on_unusable_process()
        if slot.has_expired:
            async with self._load_lock:
                # Again: a request may have used the model while this waited for the
                #     lock.
                if slot.has_expired:
                    await slot.drain_and_unload()

    async def _handle_failure(self, slot: ModelSlot) -> None:
        """Stop a failed engine. Generations that it has not ended by the next call are
        ended here.
        """
        slot.fail_generations()
        if slot.has_new_failure:
            await slot.stop_failed()

    async def _poll_forever(self, slot: ModelSlot) -> None:
        task = asyncio.current_task()
        while True:
            await self._sleep(HEALTH_CHECK_INTERVAL)
            try:
                await self.poll(slot)
            except BaseException as error:
                if (
                    not isinstance(error, Exception)
                    and translate_engine_exception(error, task) is error
                ):
                    raise
                # The poll loop must survive any error of one check.
                log.exception("monitoring %s failed", slot.name)

    async def _load_slot(self, slot: ModelSlot) -> None:
        # Outside the lock: a download takes minutes, in which other models can be
        # loaded.
        await slot.download()
        async with self._load_lock:
            # It may have been loaded while this task waited for the lock.
            if slot.state is not ModelState.UNLOADED:
                return
            required = slot.required_memory
            # Unload least recently used models until the new one fits; running requests
            # finish first.
            while (
                self._memory is not None
                and sum(other.memory for other in self._slots) + required > self._memory
            ):
                candidates = [
                    other
                    for other in self._slots
                    if other.memory and other.state is not ModelState.DRAINING
                ]
                if not candidates:
                    raise EngineError(
                        f"The model `{slot.name}` needs more memory than --model-memory-limit "
                        f"allows for all."
                    )
                # Idle models first, however recently used: waiting for a busy one can
                # take as long as its longest response.
                await min(
                    candidates, key=lambda other: (other.is_busy, other.last_used)
                ).drain_and_unload()
            await slot.load()

    def _finish_load(self, slot: ModelSlot, task: asyncio.Task[None]) -> None:
        """Remove a finished load. The task's exception is retrieved even if no request
        waits for it any more.
        """
        del self._loads[slot]
        slot.is_loading = False
        error = None if task.cancelled() else task.exception()
        if error is not None and slot.is_starting and self.on_start_failure is not None:
            self.on_start_failure(slot.name, error.__cause__ or error)


def is_name_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _list_adapters(slot: ModelSlot) -> tuple[str, ...]:
    """List the loaded adapters, or those that will be loaded with the model."""
    if slot.model is not None:
        return tuple([adapter.name for adapter in slot.model.adapters or ()])
    return () if slot.spec is None else slot.spec.adapters
