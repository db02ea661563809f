"""The engine's side: serves one TokenEngine to several front ends.

All front ends share the engine's queue, prefix cache, adapters and weights. When a
front end disconnects, its sequences are aborted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import msgspec

from ...core.capabilities import Feature
from ...core.encoder import Embedder
from ...core.engine import PrefixCache
from ...core.engine_control import EngineControl
from ...core.errors import DragomanError, EngineError, NotFound
from ...core.matcher import Matcher
from ...core.token_engine import (
    Ended,
    Failed,
    Rejected,
    Sampled,
    TokenEngine,
    TokenOutput,
    TokenRequest,
)
from ...core.weight_updates import Trainable, WeightHistory
from ...ipc.frames import FrameBuffer
from .messages import (
    AbortAllCall,
    AbortRequest,
    AddRequest,
    AttachFrontEnd,
    CallResult,
    EmbeddingCall,
    EngineCall,
    EngineChanges,
    EngineDescription,
    EngineMessage,
    EngineState,
    LoadAdapterCall,
    OutputBatch,
    PauseCall,
    ResetCacheCall,
    ResumeCall,
    SentError,
    SentOutput,
    SentRejection,
    SetWeightVersionCall,
    SleepCall,
    UnloadAdapterCall,
    UpdateWeightsCall,
    WakeUpCall,
    decode_front_end_message,
    encode_frame,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

STATE_INTERVAL = 0.25
"""Seconds between polls of the engine's state."""
MAX_UNSENT = 1 << 20
"""Maximum outputs that a front end may leave unread. One that hangs is disconnected
before they fill the memory.
"""

_FAILURE = "The engine failed; see the server's log."

MatcherBuilder = Callable[[AddRequest], Awaitable[Matcher]]
"""Builds the matcher of a constrained request. The front end has checked its grammar.
Raises DragomanError.
"""


class HostedAdapters(Protocol):
    """The interface to the engine's LoRA adapters."""

    def list_entries(self) -> Sequence[tuple[str, str]]:
        """List the names and paths of the loaded adapters."""
        ...

    async def load(self, name: str, path: str) -> None:
        """Load an adapter; it replaces one with the same name. Raises RequestError."""
        ...

    async def unload(self, name: str) -> None:
        """Unload an adapter. Unknown names are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class HostedEngine:
    """An engine and its optional parts; a part that it does not have is None."""

    engine: TokenEngine
    max_model_len: int
    build_matcher: MatcherBuilder
    num_kv_tokens: int | None = None
    cache: PrefixCache | None = None
    control: EngineControl | None = None
    trainable: Trainable | None = None
    embedder: Embedder | None = None
    adapters: HostedAdapters | None = None

    def describe(self) -> EngineDescription:
        """Describe the engine, without images: preprocessed images cannot be sent to
        another process.
        """
        capabilities = self.engine.capabilities
        return EngineDescription(
            msgspec.structs.replace(
                capabilities, features=capabilities.features - {Feature.IMAGES}
            ),
            self.max_model_len,
            self.num_kv_tokens,
            None if self.embedder is None else self.embedder.embedding_info,
            has_control=self.control is not None,
            is_trainable=self.trainable is not None,
            has_cache=self.cache is not None,
            has_adapters=self.adapters is not None,
        )


class EngineServer:
    """Serves an engine on a listening Unix socket.

    listener: stays open when the server stops, so that front ends can wait for the next
        engine process.
    inherited: the changes to restore from the previous engine process; None for the
        first one.
    on_change: called with the changes that a new process must restore, before the call
        that made them is answered.
    """

    def __init__(
        self,
        hosted: HostedEngine,
        listener: socket.socket,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        inherited: EngineChanges | None = None,
        on_change: Callable[[EngineChanges], None] = lambda _: None,
    ) -> None:
        self._hosted = hosted
        self._listener = listener
        self._sleep = sleep
        self._inherited = inherited
        self._on_change = on_change
        self._connections: set[_FrontEndConnection] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._state = self._read_state(0)
        self.failed = asyncio.Event()
        """Set when the engine has failed and cannot recover."""
        self.idle = asyncio.Event()
        """Set while no front end is attached."""
        self.idle.set()

    async def start(self) -> None:
        await self._hosted.engine.start()
        if self._hosted.embedder is not None:
            await self._hosted.embedder.start()
        if self._inherited is not None:
            await self._succeed(self._inherited)
        self._changes = self._read_changes()
        self._listener.setblocking(False)
        self._tasks = [
            asyncio.create_task(self._accept()),
            asyncio.create_task(self._watch_state()),
        ]

    async def stop(self) -> None:
        """Stop the engine; running sequences fail."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._hosted.embedder is not None:
            await self._hosted.embedder.stop()
        await self._hosted.engine.stop()
        # Last, so that the failures of running sequences are sent.
        for connection in tuple(self._connections):
            connection.close()

    async def _succeed(self, inherited: EngineChanges) -> None:
        """Restore the weights and adapters of the previous engine process, as far as
        possible.
        """
        hosted = self._hosted
        if hosted.trainable is not None:
            await hosted.trainable.succeed(inherited.weights)
        if hosted.adapters is None:
            return
        loaded = dict(hosted.adapters.list_entries())
        inherited_adapters = dict(inherited.adapters)
        for name in loaded.keys() - inherited_adapters.keys():
            await hosted.adapters.unload(name)
        for name, path in inherited_adapters.items():
            if loaded.get(name) == path:
                continue
            try:
                await hosted.adapters.load(name, path)
            except Exception as error:
                # Unloaded, so that requests for it fail rather than use another adapter
                # of the same name.
                log.error("the adapter %s cannot be loaded again from %s: %s", name, path, error)
                await hosted.adapters.unload(name)

    @property
    def state(self) -> EngineState:
        """The current state, with a new version if it has changed."""
        state = self._read_state(self._state.version)
        if state != self._state:
            self._state = msgspec.structs.replace(state, version=state.version + 1)
        return self._state

    def broadcast_state(self) -> None:
        """Call `on_change` if there are new changes, then send the state to all front
        ends if it has changed.
        """
        if (changes := self._read_changes()) != self._changes:
            self._changes = changes
            self._on_change(changes)
        before = self._state
        if self.state is not before:
            for connection in self._connections:
                connection.send_state(self._state)

    def attach(self, connection: _FrontEndConnection) -> None:
        self._connections.add(connection)
        self.idle.clear()

    def detach(self, connection: _FrontEndConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self.idle.set()

    def _read_state(self, version: int) -> EngineState:
        hosted = self._hosted
        health = self._hosted.engine.health()
        return EngineState(
            os.getpid(),
            version,
            health.ready,
            health.reason,
            health.kv_cache_usage,
            hosted.control is not None and hosted.control.is_paused,
            0 if hosted.control is None else hosted.control.sleep_level,
            "" if hosted.trainable is None else hosted.trainable.weight_version,
            () if hosted.adapters is None else tuple(hosted.adapters.list_entries()),
        )

    def _read_changes(self) -> EngineChanges:
        hosted = self._hosted
        history = None if hosted.trainable is None else hosted.trainable.history
        return EngineChanges(
            WeightHistory() if history is None else history,
            () if hosted.adapters is None else tuple(hosted.adapters.list_entries()),
        )

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                # For example too many open files; waiting connections are accepted
                # later.
                log.error("cannot accept a front end: %s", error)
                await self._sleep(STATE_INTERVAL)
                continue
            await loop.connect_accepted_socket(
                lambda: _FrontEndConnection(self, self._hosted), client
            )

    async def _watch_state(self) -> None:
        while True:
            await self._sleep(STATE_INTERVAL)
            health = self._hosted.engine.health()
            if health.failed:
                log.error("the engine has failed: %s", health.reason)
                self.failed.set()
            self.broadcast_state()


class _FrontEndConnection(asyncio.Protocol):
    """A connection from a front end: for its sequences, or for one control call."""

    def __init__(self, server: EngineServer, hosted: HostedEngine) -> None:
        self._server = server
        self._hosted = hosted
        self._buffer = FrameBuffer()
        self._outputs: list[SentOutput] = []
        self._matchers: dict[str, Matcher | None] = {}
        """The matchers of the sequences that have not ended, by id; None for an
        unconstrained one.
        """
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The task of a control call, and those that build matchers, by sequence id."""
        self._is_writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a protocol's
        self._is_writable = False
        self._server.detach(self)
        for task in self._tasks.values():
            task.cancel()
        ids = list(self._matchers)
        self._matchers = {}
        for id in ids:
            self._hosted.engine.abort(id)
        self._outputs.clear()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._flush()

    def data_received(self, data: bytes) -> None:
        for frame in self._buffer.feed(data):
            match decode_front_end_message(frame):
                case AddRequest(id=id, is_constrained=True) as request:
                    self._start_task(id, self._add_constrained(request))
                case AddRequest() as request:
                    self._add(request, None)
                case AbortRequest(id) if id in self._tasks:
                    # Its matcher is still being built, so the engine does not have it
                    # yet.
                    self._tasks[id].cancel()
                case AbortRequest(id):
                    if id in self._matchers:
                        del self._matchers[id]
                        self._hosted.engine.abort(id)
                case AttachFrontEnd():
                    self._server.attach(self)
                    self._send(self._server.state)
                case call:
                    self._start_task("call", self._answer(call))

    def close(self) -> None:
        # Even if the front end reads slowly: a transport that is closed still sends
        # what it has buffered.
        self._is_writable = True
        self._flush()
        self._transport.close()

    def send_state(self, state: EngineState) -> None:
        # Outputs that were delivered before the change are sent first.
        self._flush()
        self._send(state)

    def _send(self, message: EngineMessage) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def _start_task(self, name: str, work: Awaitable[None]) -> None:
        task = self._tasks[name] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _add_constrained(self, request: AddRequest) -> None:
        try:
            matcher = await self._hosted.build_matcher(request)
        except Exception as error:
            self._reject(request.id, error)
        else:
            self._add(request, matcher)

    def _add(self, request: AddRequest, matcher: Matcher | None) -> None:
        self._matchers[request.id] = matcher
        token_request = TokenRequest(
            id=request.id,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            min_tokens=request.min_tokens,
            stop_token_ids=request.stop_token_ids,
            logprobs=request.logprobs,
            logprob_ids=request.logprob_ids,
            prompt_logprobs=request.prompt_logprobs,
            matcher=matcher,
            grammar=request.grammar,
            closes_at_limit=request.closes_at_limit,
            reasoning_budget=request.reasoning_budget,
            priority=request.priority,
            cache_salt=request.cache_salt,
            extras=request.extras,
            choice=request.choice,
            trace=request.trace,
        )
        try:
            self._hosted.engine.add(token_request, self._deliver)
        except Exception as error:
            self._matchers.pop(request.id, None)
            self._reject(request.id, error)

    def _reject(self, id: str, error: Exception) -> None:
        self._enqueue(SentRejection(id, SentError.of(_convert_error(error))))

    def _deliver(self, output: TokenOutput) -> None:
        """Queue an output. The engine delivers all outputs of a step in one iteration
        of the event loop.
        """
        if type(output) is Sampled:
            self._enqueue(output)
            return
        if isinstance(output, Ended | Failed | Rejected):
            matcher = self._matchers.pop(output.id, None)
            if isinstance(output, Rejected):
                self._reject(output.id, output.error)
                return
            if isinstance(output, Ended) and matcher is not None and matcher.was_closed:
                output = msgspec.structs.replace(output, was_closed=True)
        self._enqueue(output)

    def _enqueue(self, output: SentOutput) -> None:
        if not self._outputs:
            # Called after the other outputs of this step are queued, so that they share
            # one frame and one write.
            asyncio.get_running_loop().call_soon(self._flush)
        self._outputs.append(output)
        if len(self._outputs) > MAX_UNSENT:
            log.error("a front end has not read %d outputs and is disconnected", len(self._outputs))
            self._transport.abort()

    def _flush(self) -> None:
        """Send the queued outputs in one frame; they stay queued while the front end
        reads slowly.
        """
        if self._outputs and self._is_writable:
            outputs = self._outputs
            self._outputs = []
            self._send(OutputBatch(outputs))

    async def _answer(self, call: EngineCall) -> None:
        value = None
        sent_error = None
        try:
            value = await _run_call(self._hosted, call)
        except Exception as error:
            sent_error = SentError.of(_convert_error(error))
        # Before the result, so that the change has been sent to all front ends when the
        # caller continues.
        self._server.broadcast_state()
        self._send(
            CallResult(self._server.state, msgspec.Raw(msgspec.msgpack.encode(value)), sent_error)
        )


async def _run_call(hosted: HostedEngine, call: EngineCall) -> object:
    """Run a call and return its result. Raises NotFound for a part that the engine does
    not have.
    """
    match call:
        case PauseCall(mode, clear_cache):
            await _require(hosted.control).pause(mode, clear_cache=clear_cache)
        case ResumeCall():
            await _require(hosted.control).resume()
        case SleepCall(level, mode):
            await _require(hosted.control).sleep(level, mode)
        case WakeUpCall():
            await _require(hosted.control).wake_up()
        case AbortAllCall():
            return await _require(hosted.control).abort_all()
        case UpdateWeightsCall(weights, version):
            return await _require(hosted.trainable).update_weights(weights, version)
        case SetWeightVersionCall(version):
            await _require(hosted.trainable).set_weight_version(version)
        case ResetCacheCall():
            return await _require(hosted.cache).reset_prefix_cache()
        case LoadAdapterCall(name, path):
            await _require(hosted.adapters).load(name, path)
        case UnloadAdapterCall(name):
            await _require(hosted.adapters).unload(name)
        case EmbeddingCall(request):
            return await _require(hosted.embedder).embed(request)
    return None


def _require(part: T | None) -> T:
    if part is None:
        raise NotFound("This engine does not support the call.", code="unsupported_endpoint")
    return part


def _convert_error(error: Exception) -> DragomanError:
    if isinstance(error, DragomanError):
        return error
    log.error("the engine raised %s", type(error).__name__, exc_info=error)
    return EngineError(_FAILURE)
