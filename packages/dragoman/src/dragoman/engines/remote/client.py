"""The front end's side: a TokenEngine that forwards requests to the engine process,
with its control and embedder.

A front end connects when it starts, and again whenever the connection is lost: the
supervisor keeps the socket open, so the connection waits in its backlog until the next
engine process accepts it. Requests of the lost process fail: streams end with an error,
and requests that had not started are rejected as retryable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec

from ...core.capabilities import Capabilities
from ...core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest
from ...core.engine import Health
from ...core.engine_control import PauseMode
from ...core.errors import EngineError, Overloaded, Unsupported
from ...core.token_engine import Failed, OutputCallback, Rejected, Sampled, TokenRequest
from ...core.weight_updates import WeightHistory, Weights
from ...ipc.frames import FrameBuffer, read_frame
from ..active_sequences import ActiveSequence, ActiveSequences
from .messages import (
    AbortAllCall,
    AbortRequest,
    AddRequest,
    AttachFrontEnd,
    CallResult,
    EmbeddingCall,
    EngineCall,
    EngineDescription,
    EngineState,
    LoadAdapterCall,
    OutputBatch,
    PauseCall,
    ResetCacheCall,
    ResumeCall,
    SentOutput,
    SentRejection,
    SetWeightVersionCall,
    SleepCall,
    UnloadAdapterCall,
    UpdateWeightsCall,
    WakeUpCall,
    decode_engine_message,
    encode_frame,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

RECONNECT_INTERVAL = 0.5
"""Seconds between attempts to connect while no process listens on the socket."""
RESTART_TIME = 5.0
"""`Retry-After` while the engine process is being restarted, seconds."""

_LOST = "The engine process has ended unexpectedly and is being restarted; retry later."


class _EngineConnection(asyncio.Protocol):
    """The front end's long-lived connection, which carries its sequences."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._buffer = FrameBuffer()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(encode_frame(AttachFrontEnd()))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a protocol's
        # Called here rather than in a task that runs later, so that no request is sent
        # in between.
        self._client.lose_connection(self)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        for frame in self._buffer.feed(data):
            match decode_engine_message(frame):
                case OutputBatch(outputs):
                    self._client.receive_outputs(outputs)
                case EngineState() as state:
                    self._client.receive_state(self, state)
                case _:
                    pass  # The results of calls arrive on other connections.


class EngineClient:
    """Implements `core.token_engine.TokenEngine`, `core.engine.PrefixCache` and
    `core.engine.AdapterLoader`.

    path: path of the engine's socket.
    """

    def __init__(self, path: str, description: EngineDescription) -> None:
        self._path = path
        self.description = description
        self.on_adapters: Callable[[Sequence[tuple[str, str]]], None] | None = None
        """Called with the names and paths of the adapters when they may have changed:
        another front end may have loaded one.
        """
        self._active: ActiveSequences[ActiveSequence] = ActiveSequences()
        self._connection: _EngineConnection | None = None
        """None while the engine process does not respond."""
        self._state: EngineState | None = None
        self._connected = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._calls: set[asyncio.StreamWriter] = set()
        """The connections of control calls that have no answer yet."""
        self.control = EngineClientControl(self)
        """Pause, sleep and weight updates."""
        self.embedder = (
            None
            if description.embedding_info is None
            else RemoteEmbedder(self, description.embedding_info)
        )
        """Embeds with the engine's model; None without an embedder."""

    @property
    def capabilities(self) -> Capabilities:
        return self.description.capabilities

    @property
    def max_model_len(self) -> int:
        return self.description.max_model_len

    @property
    def state(self) -> EngineState | None:
        """The last known state; None before the first connection."""
        return self._state

    async def start(self) -> None:
        """Connect. Waits as long as the engine process takes to start."""
        self._connecting = asyncio.create_task(self._stay_connected())
        await self._connected.wait()

    async def stop(self) -> None:
        task = self._connecting
        self._connecting = None
        self._connection = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._connected.clear()
        self._active.fail_all()

    def health(self) -> Health:
        """Report the engine's health, with this front end's sequences: the counts of
        all front ends add up.
        """
        running = self._active.num_started
        waiting = len(self._active) - running
        state = self._state
        if self._connection is None or state is None:
            reason = (
                "the engine is not running"
                if self._connecting is None
                else "the engine process is not running"
            )
            return Health(ready=False, reason=reason, waiting=waiting, running=running)
        return Health(
            state.ready, state.reason, waiting, running, kv_cache_usage=state.kv_cache_usage
        )

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """See `TokenEngine.add`. What the engine rejects is delivered as Rejected."""
        if self._connecting is None:
            raise EngineError("The engine is not running.")
        connection = self._connection
        # uvloop closes a transport before it calls `connection_lost`, and writing to a
        # closed one raises.
        if connection is None or connection.transport.is_closing():
            raise Overloaded(_LOST, retry_after=RESTART_TIME)
        self._active.check_admission(request.id)
        if request.images:
            raise Unsupported("This engine does not accept images.", param="messages")
        if request.matcher is not None and request.grammar is None:
            raise Unsupported(
                "This engine supports only constraints that have a grammar.",
                param="response_format",
            )
        message = AddRequest(
            request.id,
            request.prompt,
            request.max_tokens,
            request.sampling,
            request.min_tokens,
            request.stop_token_ids,
            request.logprobs,
            request.logprob_ids,
            request.prompt_logprobs,
            request.grammar,
            request.closes_at_limit,
            request.reasoning_budget,
            request.priority,
            request.cache_salt,
            request.extras,
            request.choice,
            request.trace,
            request.matcher is not None,
        )
        connection.transport.write(encode_frame(message))
        # Last, so that a request that cannot be encoded leaves no sequence behind.
        self._active.add(ActiveSequence(request, deliver))

    def abort(self, id: str) -> None:
        sequence = self._active.pop(id)
        connection = self._connection
        if (
            sequence is not None
            and connection is not None
            and not connection.transport.is_closing()
        ):
            connection.transport.write(encode_frame(AbortRequest(id)))

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> None:
        """Unknown: the cache is in another process."""

    async def reset_prefix_cache(self) -> bool | None:
        """See `PrefixCache.reset_prefix_cache`."""
        return await self.call(ResetCacheCall(), bool | None)

    async def load_adapter(self, name: str, path: str) -> None:
        """See `AdapterLoader.load_adapter`."""
        await self.call(LoadAdapterCall(name, path), None)

    async def unload_adapter(self, name: str) -> None:
        """See `AdapterLoader.unload_adapter`."""
        try:
            await self.call(UnloadAdapterCall(name), None)
        except EngineError as error:
            # A new engine process does not have the adapter.
            log.warning("the adapter %s was not unloaded: %s", name, error.message)

    async def call(self, call: EngineCall, kind: type[T] | object) -> T:
        """Run a control call in the engine process; cancelling it here cancels it
        there. kind: type of the result.

        Raises:
            DragomanError: what the call raised.
            Overloaded: the engine process is not running, or has ended meanwhile.
        """
        connection = self._connection
        if connection is None:
            raise Overloaded(_LOST, retry_after=RESTART_TIME)
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
            # Added so that `lose_connection` can abort it: the socket outlives the
            # process, and a connection that was not accepted would wait for the next
            # process.
            self._calls.add(writer)
            try:
                if self._connection is not connection:
                    # Without this check the call would wait until the next engine
                    # process has started.
                    raise ConnectionResetError("the engine process has ended")
                writer.write(encode_frame(call))
                await writer.drain()
                message = decode_engine_message(await read_frame(reader))
            finally:
                self._calls.discard(writer)
                writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Overloaded(_LOST, retry_after=RESTART_TIME) from error
        assert isinstance(message, CallResult)
        # The state of a process that has been replaced meanwhile does not apply to its
        # successor.
        if self._state is not None and self._state.epoch == message.state.epoch:
            self._adopt_state(message.state)
        if message.error is not None:
            raise message.error.build()
        return msgspec.msgpack.decode(message.value, type=kind)

    def receive_outputs(self, outputs: list[SentOutput]) -> None:
        for output in outputs:
            sequence = self._active.get(output.id)
            if sequence is None:
                continue  # It was aborted.
            if type(output) is Sampled:
                sequence.send(output)
            elif isinstance(output, SentRejection):
                self._active.deliver(sequence, Rejected(output.id, output.error.build()))
            else:
                self._active.deliver(sequence, output)

    def receive_state(self, connection: _EngineConnection, state: EngineState) -> None:
        # Connected only now: before a process accepts it, a connection merely waits in
        # the socket's backlog.
        self._connection = connection
        self._adopt_state(state)
        self._connected.set()

    def _adopt_state(self, state: EngineState) -> None:
        """Keep a state, unless a later one is known: the results of calls come on other
        connections.
        """
        current = self._state
        if (
            current is not None
            and current.epoch == state.epoch
            and current.version >= state.version
        ):
            return
        self._state = state
        if self.on_adapters is not None:
            self.on_adapters(state.adapters)

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, connection = await loop.create_unix_connection(
                    lambda: _EngineConnection(self), self._path
                )
            except OSError:
                # No supervisor holds the socket, or its backlog is full.
                await asyncio.sleep(RECONNECT_INTERVAL)
                continue
            try:
                await connection.lost
            finally:
                connection.transport.close()

    def lose_connection(self, connection: _EngineConnection) -> None:
        """End all sequences, because the engine process has ended. Those that had not
        started are retryable.
        """
        # The connection was lost before a process accepted it, or after `stop`: no
        # request depends on it.
        if self._connection is not connection:
            return
        self._connection = None
        for writer in self._calls:
            writer.transport.abort()
        sequences = self._active.pop_all()
        if sequences:
            log.error("the engine process has ended; %d sequences fail", len(sequences))
        for sequence in sequences:
            if sequence.has_started:
                sequence.send(Failed(sequence.id, _LOST))
            else:
                sequence.send(Rejected(sequence.id, Overloaded(_LOST, retry_after=RESTART_TIME)))


class EngineClientControl:
    """Implements `core.engine_control.EngineControl` and
    `core.weight_updates.Trainable` for the engine that all front ends share.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    @property
    def is_paused(self) -> bool:
        return self._client.state is not None and self._client.state.is_paused

    @property
    def sleep_level(self) -> int:
        return 0 if self._client.state is None else self._client.state.sleep_level

    @property
    def weight_version(self) -> str:
        return "" if self._client.state is None else self._client.state.weight_version

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        await self._client.call(PauseCall(mode, clear_cache), None)

    async def resume(self) -> None:
        await self._client.call(ResumeCall(), None)

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        await self._client.call(SleepCall(level, mode), None)

    async def wake_up(self) -> None:
        await self._client.call(WakeUpCall(), None)

    async def abort_all(self) -> int:
        return await self._client.call(AbortAllCall(), int)

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        return await self._client.call(UpdateWeightsCall(weights, version), str)

    async def set_weight_version(self, version: str) -> None:
        await self._client.call(SetWeightVersionCall(version), None)

    @property
    def history(self) -> WeightHistory | None:
        """None: the weights are the engine process's."""
        return None

    async def succeed(self, history: WeightHistory) -> None:
        """Do nothing, see `history`."""
        del history


class RemoteEmbedder:
    """Implements `core.engine.Embedder`. It is started and stopped with its engine."""

    def __init__(self, client: EngineClient, embedding_info: EmbeddingInfo) -> None:
        self._client = client
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def health(self) -> Health:
        health = self._client.health()
        return Health(health.ready, health.reason)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        return await self._client.call(EmbeddingCall(request), Embeddings)
