"""The lifecycle of a model: loading, unloading, restart of a failed engine.

`Models` (model_registry.py) schedules loads, evictions and restarts; a `ModelSlot`
holds the state of one model and performs the transitions. The clock is injected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from threading import Event as ThreadEvent
from typing import Literal

import anyio.to_thread
from msgspec import Struct, field

from ..core.capabilities import Feature
from ..core.encoder import Encoder
from ..core.engine import Engine
from ..core.errors import DragomanError, EngineError, Overloaded, ProcessUnusable
from ..core.token_engine import TokenEngine
from ..core.weight_updates import WeightHistory
from ..isolation.daemon_thread import run_in_daemon_thread
from .engine_backends import (
    EmbedderBackend,
    EventBackend,
    ScorerBackend,
    TextEncoderBackend,
    TokenBackend,
    TranscriberBackend,
)
from .lora_adapters import Adapter
from .served_model import ModelDetails, ServedModel

log = logging.getLogger(__name__)

MIN_BACKOFF = 0.5
MAX_BACKOFF = 60.0
"""Seconds before a failed engine or load is retried; doubled after each failure."""
HEALTHY_AFTER = 60.0
"""Seconds after a restart at which an engine counts as healthy again and the backoff is
reset.
"""
FAILED_STOP_TIMEOUT = 10.0
"""Seconds that a failed engine may take to clean up."""
DOWNLOAD_RETRY = 30.0
"""`Retry-After` during a download, seconds."""


class LoadProgress(Struct):
    """The progress of a load, written by its thread and read by the event loop.

    phase: what happens now.
    completed, total: bytes of the download.
    cancelled: set to end the download.
    """

    phase: Literal["downloading", "loading"] = "loading"
    completed: int = 0
    total: int = 0
    cancelled: ThreadEvent = field(default_factory=ThreadEvent)


class ModelSpec(Struct, frozen=True):
    """A model that is loaded on demand, or in the background from the start.

    name: the name in requests.
    load: builds the model without starting it; blocking; raises DragomanError, OSError
        or ValueError.
    created: Unix seconds.
    aliases: other names.
    ttl: idle timeout in seconds; None never unloads it.
    memory: bytes that it occupies once loaded.
    download: downloads what `load` needs; blocking; raises the same errors. Other
        models can be loaded meanwhile.
    progress: of `download` and `load`, which update it.
    is_eager: whether it is loaded at startup; the server is not ready until then.
    revision: its commit in the hub's repository.
    adapters: names of the adapters that it has once it is loaded.
    """

    name: str
    load: Callable[[], ServedModel]
    created: int
    aliases: tuple[str, ...] = ()
    ttl: float | None = None
    memory: int = 0
    download: Callable[[], None] | None = None
    progress: LoadProgress = field(default_factory=LoadProgress)
    is_eager: bool = False
    revision: str | None = None
    adapters: tuple[str, ...] = ()


class ModelSummary(Struct, frozen=True):
    """Model facts that stay available while it is not loaded.

    max_model_len: prompt and answer together, in tokens.
    capabilities: names of what clients may request of it.
    vocab_size: number of tokens, where the engine provides its tokenizer.
    max_alternatives: as in `Capabilities`.
    """

    max_model_len: int
    capabilities: tuple[str, ...]
    details: ModelDetails = field(default_factory=ModelDetails)
    vocab_size: int | None = None
    max_alternatives: int | None = None

    @classmethod
    def from_model(cls, model: ServedModel) -> ModelSummary:
        capabilities = {feature.value for feature in model.capabilities.features}
        match model.backend:
            case EmbedderBackend():
                capabilities |= {"embeddings"}
            case ScorerBackend():
                capabilities |= {"scoring"}
            case TokenBackend(embedder=embedder):
                capabilities |= {"generation"} if embedder is None else {"generation", "embeddings"}
            case EventBackend():
                capabilities |= {"generation"}
            case TranscriberBackend():
                capabilities |= {"transcription"}
            case TextEncoderBackend():
                pass
        if (encoder := model.text_encoder) is not None:
            capabilities |= {task.value for task in encoder.encoding_tasks}
        if model.formats.reasoning is not None:
            capabilities |= {"reasoning"}
        if model.infill_tokens is not None:
            capabilities |= {"infill"}
        if model.formats.tools is None and not model.capabilities.native_tools:
            # Only calls that a request demands can be enforced; what the model calls by
            # itself cannot be recognized.
            capabilities -= {Feature.TOOLS.value}
        vocab_size = None if model.tokenizer is None else model.tokenizer.vocab_size
        return cls(
            model.max_model_len,
            tuple(sorted(capabilities)),
            model.details,
            vocab_size,
            model.capabilities.max_alternatives,
        )


class SlotHistory(Struct, frozen=True):
    """What the process that replaces this one takes over for a model.

    n_failures: consecutive failures of the engine, for the backoff.
    n_restarts: number of restarts of the engine, including the one by that process.
    weights: updates of the weights; None if they cannot be replaced.
    adapters: names and paths of the adapters that were loaded; None if the model was
        not.
    """

    n_failures: int
    n_restarts: int
    weights: WeightHistory | None
    adapters: tuple[tuple[str, str], ...] | None


class ModelState(StrEnum):
    UNLOADED = "unloaded"
    LOADED = "loaded"
    DRAINING = "draining"
    """New requests are rejected; running ones finish."""
    FAILED = "failed"
    """The engine failed, or the model could not be loaded. It is retried later."""


class ModelSlot:
    """One model's slot in this process. Entered as a context manager, it prevents the
    model from being unloaded.
    """

    def __init__(self, spec: ModelSpec | ServedModel, clock: Callable[[], float]) -> None:
        self.spec = spec if isinstance(spec, ModelSpec) else None
        self.name = spec.name
        self.aliases = spec.aliases
        self.created = spec.created
        self.model = spec if isinstance(spec, ServedModel) else None
        self._state = ModelState.UNLOADED if self.spec else ModelState.LOADED
        self.on_change: Callable[[], None] | None = None
        """Called after a change of `state` or `is_loading`."""
        self._clock = clock
        self._n_users = self._n_waiting = 0
        self._n_resuming = 0
        """Requests whose load has finished and that have not resumed; the model is not
        unloaded before they have.
        """
        self._changed = asyncio.Event()
        self._n_failures = 0
        self.last_used = self.started_at = self.retry_at = self._progressed = clock()
        self._events_seen = 0
        self._ttl = None if self.spec is None else self.spec.ttl
        self._is_loading = self._is_restarting = self._is_unloading = False
        self._weight_history: WeightHistory | None = None
        """Of the model that was unloaded, for its successor."""
        self._inherited_adapters: tuple[tuple[str, str], ...] | None = None
        self.n_restarts = 0
        """Number of restarts of the engine after it failed."""
        self.needs_new_process = False
        """Whether the failed engine cannot be restarted in this process."""
        self.summary = None if self.model is None else ModelSummary.from_model(self.model)
        """Known once the model has been loaded."""

    def __enter__(self) -> None:
        if self.state is not ModelState.LOADED:
            # The model was unloaded between its lookup and its use.
            raise Overloaded("The model is being unloaded; retry in a few seconds.")
        self._n_users += 1

    def __exit__(self, *_: object) -> None:
        self._n_users -= 1
        self.last_used = self._clock()
        self._changed.set()

    @property
    def state(self) -> ModelState:
        return self._state

    @state.setter
    def state(self, state: ModelState) -> None:
        self._state = state
        self._report_change()

    @property
    def is_loading(self) -> bool:
        """Whether it is being loaded, or downloaded for that."""
        return self._is_loading

    @is_loading.setter
    def is_loading(self, is_loading: bool) -> None:
        self._is_loading = is_loading
        self._report_change()

    def _report_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    @property
    def is_busy(self) -> bool:
        """Whether a request uses the model, or has waited for it and has not resumed
        yet.
        """
        return self._n_users > 0 or self._n_resuming > 0

    @property
    def status(self) -> str:
        """The state in words: as `state`, and `downloading` or `loading` while that
        happens.
        """
        return (
            self.spec.progress.phase
            if self.spec is not None and self.is_loading
            else self.state.value
        )

    @property
    def download_progress(self) -> tuple[int, int] | None:
        """Bytes that have been downloaded, and of all; None if nothing is being
        downloaded.
        """
        if self.spec is None or self.status != "downloading":
            return None
        return self.spec.progress.completed, self.spec.progress.total

    @property
    def revision(self) -> str | None:
        """The commit of a model of a hub, known before it is loaded."""
        if self.spec is not None and self.spec.revision is not None:
            return self.spec.revision
        return None if self.summary is None else self.summary.details.revision

    @property
    def is_pinned(self) -> bool:
        """Whether the model is never unloaded."""
        return self.spec is None or self.spec.is_eager

    @property
    def is_starting(self) -> bool:
        """Whether the model is loaded from the start, and has not been loaded yet."""
        return self.spec is not None and self.spec.is_eager and self.summary is None

    def raise_if_loading(self) -> None:
        """Raise Overloaded if a new request should not wait: for a download, or for a
        server that starts.
        """
        spec = self.spec
        if spec is None or not self.is_loading:
            return
        progress = spec.progress
        # Minutes to hours: longer than clients and proxies hold a request open.
        if progress.phase == "downloading":
            percent = 100 * progress.completed // progress.total if progress.total else 0
            raise Overloaded(
                f"The model `{self.name}` is being downloaded ({percent} %); retry later.",
                retry_after=DOWNLOAD_RETRY,
            )
        if self.is_starting:
            raise Overloaded(
                f"The model `{self.name}` is being loaded; retry in a few seconds.", retry_after=5.0
            )

    async def wait_until_loaded(self, load_task: asyncio.Task[None]) -> None:
        """Wait until the model is loaded. It is not unloaded before this returns."""
        self._n_waiting += 1
        try:
            # Cancelling one waiting request must not cancel the load for the others.
            await asyncio.shield(load_task)
        finally:
            self._n_waiting -= 1
            # A waiting request that resumes or is cancelled gives back its reservation.
            self._n_resuming = min(self._n_resuming, self._n_waiting)
            self._changed.set()

    @property
    def _was_never_loaded(self) -> bool:
        """Whether the model has never been loaded, so that there is no engine to
        restart.
        """
        return self.model is None or (self.summary is None and self.spec is not None)

    @property
    def memory(self) -> int:
        """Bytes that it takes now, as a model on demand."""
        return 0 if self.model is None else self.required_memory

    @property
    def required_memory(self) -> int:
        """Bytes that it takes once loaded, as a model on demand; a pinned model does
        not count.
        """
        return 0 if self.spec is None or self.is_pinned else self.spec.memory

    @property
    def has_expired(self) -> bool:
        if self._ttl is None or self.is_busy or self.state is not ModelState.LOADED:
            return False
        return self._clock() - self.last_used >= self._ttl

    @property
    def expires_in(self) -> float | None:
        """Seconds until it is unloaded, unless it is used before; None is never."""
        return None if self._ttl is None else max(0.0, self.last_used + self._ttl - self._clock())

    def keep_for(self, seconds: float | None) -> None:
        """Override the idle timeout until the model is unloaded; None disables it. Only
        for models on demand.
        """
        assert self.spec is not None
        self._ttl = seconds

    @property
    def is_idle(self) -> bool:
        """Whether the model waits, unloaded, for a request that needs it."""
        return not self.is_pinned and self.state is ModelState.UNLOADED and not self.is_loading

    @property
    def is_up(self) -> bool:
        """Whether the model is loaded and its engines are ready."""
        is_loaded = self.state in (ModelState.LOADED, ModelState.DRAINING)
        return is_loaded and all(engine.health().ready for engine in self._find_engines())

    @property
    def has_new_failure(self) -> bool:
        """Whether an engine of a loaded model reports a failure that has not been
        handled yet.
        """
        is_loaded = (
            self.state in (ModelState.LOADED, ModelState.DRAINING) and self.model is not None
        )
        return is_loaded and any(engine.health().failed for engine in self._find_engines())

    @property
    def retry_due(self) -> bool:
        """Whether the backoff is over, and the model is not being unloaded."""
        return (
            self.state is ModelState.FAILED
            and self._clock() >= self.retry_at
            and not self._is_unloading
        )

    def note_progress(self) -> None:
        """Record whether generations have advanced since the last call. Called
        periodically; a paused engine need not advance.
        """
        model = self.model
        if model is None:
            return
        events = model.progress.events
        is_paused = model.interfaces.control is not None and model.interfaces.control.is_paused
        if events != self._events_seen or not model.progress.running or is_paused:
            self._events_seen = events
            self._progressed = self._clock()

    @property
    def stalled_for(self) -> float:
        """Seconds for which requests have run without a single event, as of the last
        `note_progress`.
        """
        model = self.model
        if (
            model is None
            or not model.progress.running
            or model.progress.events != self._events_seen
        ):
            return 0.0
        return self._clock() - self._progressed

    def acquire_model(self) -> ServedModel:
        """Return the model for a new request. Raises Overloaded while it has failed or
        is not loaded.
        """
        state = self.state
        if state is ModelState.FAILED:
            retry_after = max(1.0, self.retry_at - self._clock())
            if self._was_never_loaded:
                raise Overloaded(
                    f"The model `{self.name}` could not be loaded; the next attempt is in "
                    f"{retry_after:.0f} seconds.",
                    retry_after=retry_after,
                )
            raise Overloaded(
                "The model's engine failed and is being restarted.", retry_after=retry_after
            )
        if self.model is None or state is not ModelState.LOADED:
            raise Overloaded("The model is not loaded; retry in a few seconds.")
        self.last_used = self._clock()
        return self.model

    async def load(self) -> None:
        """Load and start the model. Raises EngineError on failure; it may be retried
        after the backoff.
        """
        assert self.spec is not None
        async with self._fail_on_error():
            model = await run_in_daemon_thread(self.spec.load)
            # Before the start, so that a lease of the first request already refers to
            # this slot.
            self.model = replace(model, usage_guard=self)
            await self.start()
        self.summary = ModelSummary.from_model(model)
        # `keep_for` holds until the model is unloaded, so every load begins with the
        # configured time.
        self._ttl = self.spec.ttl
        # Reserve the model for the requests that waited for this load, until each has
        # resumed: evicting it before would make all of them wait for another load.
        self._n_resuming = self._n_waiting
        log.info("%s is loaded", self.name)

    async def download(self) -> None:
        """Download the model's files, where that is necessary. Raises EngineError, as
        `load`.
        """
        if self.spec is not None and self.spec.download is not None:
            async with self._fail_on_error():
                await anyio.to_thread.run_sync(self.spec.download)

    @asynccontextmanager
    async def _fail_on_error(self) -> AsyncGenerator[None]:
        try:
            yield
        # Any exception: libraries raise RuntimeError for a full GPU, and a plugin's
        # engine can raise anything.
        except Exception as error:
            is_expected = isinstance(error, DragomanError | OSError | ValueError)
            log.error(
                "%s cannot be loaded: %s",
                self.name,
                error,
                exc_info=not is_expected or log.isEnabledFor(logging.DEBUG),
            )
            await self._fail_and_stop()
            raise EngineError(
                f"The model `{self.name}` could not be loaded; see the server's log."
            ) from error

    async def start(self) -> None:
        for engine in self._find_engines():
            await engine.start()
        if self._weight_history is not None and self.model is not None:
            trainable = self.model.interfaces.trainable
            if trainable is not None:
                await trainable.succeed(self._weight_history)
            self._weight_history = None
        await self._restore_adapters()
        self.state = ModelState.LOADED
        self.started_at = self.last_used = self._clock()

    def build_history(self) -> SlotHistory:
        """Build what a new process takes over from this slot."""
        model = self.model
        # Of a model on demand that was not loaded in this process either, those of the
        # previous one.
        adapters = self._inherited_adapters
        if model is not None and model.adapters is not None:
            adapters = tuple((adapter.name, adapter.path) for adapter in model.adapters)
        return SlotHistory(
            self._n_failures,
            self.n_restarts + self.needs_new_process,
            self._find_weight_history(),
            adapters,
        )

    def _find_weight_history(self) -> WeightHistory | None:
        """Return the history of the engine's weights, else that of its predecessor,
        which no engine has taken over yet.
        """
        trainable = None if self.model is None else self.model.interfaces.trainable
        own = None if trainable is None else trainable.history
        return self._weight_history if own is None else own

    def succeed(self, history: SlotHistory) -> None:
        """Take over from the slot of the process that this one has replaced."""
        self._n_failures = history.n_failures
        self.n_restarts = history.n_restarts
        self._weight_history = history.weights
        self._inherited_adapters = history.adapters

    async def _restore_adapters(self) -> None:
        """Load the adapters of the previous process, as far as possible."""
        adapters = None if self.model is None else self.model.adapters
        inherited = self._inherited_adapters
        self._inherited_adapters = None
        if adapters is None or inherited is None:
            return
        loaded = {adapter.name: adapter.path for adapter in adapters}
        for name in loaded.keys() - dict(inherited).keys():
            await adapters.unload(name)
        for name, path in inherited:
            if loaded.get(name) == path:
                continue
            try:
                await adapters.load(Adapter(name, path), replace=True)
            except Exception as error:
                # Without it, requests for it fail rather than use another adapter of
                # the same name.
                log.error("the adapter %s cannot be loaded again from %s: %s", name, path, error)
                if name in loaded:
                    await adapters.unload(name)

    async def drain_and_unload(self) -> None:
        """Wait for running requests, then unload the model."""
        # From now on a failed engine is not restarted: a restart would start an engine
        # that has been unloaded.
        self._is_unloading = True
        try:
            # Requests that have waited for the load come first: a draining model would
            # reject them.
            await self._wait_until(lambda: not self._n_resuming and not self._is_restarting)
            # The poll ends them only while the state is FAILED.
            self.fail_generations()
            self.state = ModelState.DRAINING
            await self._wait_until(lambda: not self._n_users)
            self._weight_history = self._find_weight_history()
            await self.stop()
            self.model = None
            self.state = ModelState.UNLOADED
        finally:
            self._is_unloading = False
        log.info("%s is unloaded", self.name)

    async def retire(self) -> None:
        """Unload the model for good. It must be idle; a request that has just found it
        is rejected.
        """
        self.state = ModelState.DRAINING
        await self.stop()
        self.model = None
        log.info("%s is not served any more", self.name)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        if self.model is not None:
            self.model.close_workers()
        for engine in self._find_engines():
            await engine.stop()

    async def stop_failed(self) -> None:
        """Stop the failed engine: requests that wait for it fail now."""
        log.error("%s: the engine failed", self.name)
        await self._fail_and_stop()

    def fail_generations(self) -> None:
        """End the generations that the engine left running when it failed and was
        stopped.
        """
        if self.state is ModelState.FAILED and self.model is not None:
            self.model.progress.fail_all(EngineError("The model's engine failed."))

    async def _fail_and_stop(self) -> None:
        # Before the stop, which can take seconds: requests are rejected from now on.
        now = self._clock()
        if self.state is ModelState.LOADED and now - self.started_at >= HEALTHY_AFTER:
            self._n_failures = 0
        self.retry_at = now + min(MAX_BACKOFF, MIN_BACKOFF * 2**self._n_failures)
        # Bound the exponent, so that 2**n stays in the range of a float.
        self._n_failures = min(self._n_failures + 1, 32)
        self.state = ModelState.FAILED
        try:
            # A failed engine may hang in its own shutdown, and with it the health
            # checks of this model.
            async with asyncio.timeout(FAILED_STOP_TIMEOUT):
                await self.stop()
        except Exception:
            log.exception("%s: the engine could not be stopped", self.name)

    async def restart(self) -> None:
        """Restart the engine. A model that failed while it was loading is loaded by the
        next request.
        """
        if self._was_never_loaded:
            self.model = None
            self.state = ModelState.UNLOADED
            return
        self._is_restarting = True
        try:
            await self.start()
        except Exception as error:
            self.needs_new_process = isinstance(error, ProcessUnusable)
            log.exception("%s: the engine could not be restarted", self.name)
            await self._fail_and_stop()
        else:
            self.n_restarts += 1
            log.info("%s: the engine was restarted", self.name)
        finally:
            self._is_restarting = False
            self._changed.set()

    def _find_engines(self) -> tuple[Engine | TokenEngine | Encoder, ...]:
        return () if self.model is None else self.model.engines
