"""The interface of an engine that emits events, with the optional ones of only some
engines.

There are two kinds of engines. An `Engine` emits events: an upstream server, a script.
A `TokenEngine` (see `token_engine`) maps token ids to token ids: a model that runs in
this process, the simulator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from .capabilities import Capabilities
from .events import Event
from .request import GenerateRequest


class Health(Struct, frozen=True):
    """The health of an engine.

    Attributes:
        ready: new requests are accepted.
        reason: why it is not ready.
        waiting: number of requests in its queue.
        running: number of requests that it generates for.
        failed: it has crashed and cannot become ready again without a restart.
        kv_cache_usage: share of the KV cache that requests hold, 0 to 1; None if there
            is none, or if it is not known.
    """

    ready: bool = True
    reason: str | None = None
    waiting: int = 0
    running: int = 0
    failed: bool = False
    kv_cache_usage: float | None = None


@runtime_checkable
class Engine(Protocol):
    """An engine that emits events."""

    @property
    def capabilities(self) -> Capabilities:
        """What requests may ask for."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        """Yield one valid event stream (see `events`).

        Closing the generator aborts the work; there is no other way to cancel.

        Raises:
            RequestError: before Started, if the request cannot be served.
            EngineError: the engine failed.
        """
        ...

    async def start(self) -> None:
        """Start the engine. Called once, on the server's event loop."""
        ...

    async def stop(self) -> None:
        """Release all resources. Running requests fail with EngineError."""
        ...

    def health(self) -> Health:
        """Return the current health. Called often; must not wait."""
        ...


EventDelivery = Callable[[list[Event]], bool]
"""Takes the next events of a stream, all of them deltas, while the stream's consumer
waits. Does not raise.

Returns False if it cannot take them now: then the stream must yield them.
"""


@runtime_checkable
class DirectEngine(Protocol):
    """An event engine that can deliver deltas without resuming a coroutine for each."""

    def generate_directly(
        self, request: GenerateRequest, deliver: EventDelivery
    ) -> AsyncGenerator[Event]:
        """Generate as `Engine.generate` does, but pass deltas to `deliver` while the
        consumer waits for an event.

        Events that start or end the answer are always yielded, and errors are raised.
        """
        ...


@runtime_checkable
class PromptCounter(Protocol):
    """An event engine that counts the tokens of a prompt without answering it."""

    async def count_prompt_tokens(self, request: GenerateRequest) -> int:
        """Count the prompt tokens that this request's usage would report, even beyond
        the context length.

        Raises RequestError.
        """
        ...


@runtime_checkable
class HasContextLength(Protocol):
    """An engine or an executor that knows its context length."""

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt and answer together."""
        ...


@runtime_checkable
class HasKvCapacity(Protocol):
    """An engine that knows the capacity of its KV cache."""

    @property
    def num_kv_tokens(self) -> int: ...


class AdapterLoader(Protocol):
    """An engine that loads adapters (LoRA): weights applied on top of the model for the
    requests that name them.
    """

    async def load_adapter(self, name: str, path: str) -> None:
        """Load the adapter from the directory `path`, replacing one of that name.
        Running requests are not affected.

        Raises:
            RequestError: the model cannot use this adapter; nothing has changed.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Running requests that use it are not affected. Unknown
        names are ignored.
        """
        ...


class PrefixCache(Protocol):
    """An engine whose prefix cache can be inspected and reset."""

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int | None:
        """Count the tokens of this prompt that are in the cache now; None if unknown.
        Has no side effect.
        """
        ...

    async def reset_prefix_cache(self) -> bool | None:
        """Invalidate all cached blocks. Running sequences are not affected.

        Returns False, and changes nothing, if the engine cannot reset while blocks are
        in use (as in vLLM).
        """
        ...
