"""The messages between an engine process and its front ends, encoded as MessagePack in
frames of `ipc.frames`.

A front end has one connection for its sequences. Each control call has its own
connection, so that gigabytes of weights do not delay tokens.
"""

from __future__ import annotations

from numbers import Integral, Real

import msgspec
from msgspec import Struct

from ...core.capabilities import Capabilities
from ...core.encoder_requests import EmbeddingInfo, EmbedRequest
from ...core.engine_control import PauseMode
from ...core.errors import (
    Conflict,
    ContextTooLong,
    DragomanError,
    EngineError,
    EngineTimeout,
    NotFound,
    Overloaded,
    QueueFull,
    RequestError,
    Unsupported,
)
from ...core.request import Extras, Sampling
from ...core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    ReasoningBudget,
    Sampled,
    Scheduled,
    WeightVersionSet,
)
from ...core.trace_context import SpanContext
from ...core.weight_updates import WeightHistory, WeightsInMemory, WeightsOnDisk
from ...ipc.frames import build_frame


class EngineDescription(Struct, frozen=True):
    """The properties of an engine that a front end must know before it is connected.

    embedding_info: properties of its embedder; None without one.
    has_control, is_trainable, has_cache, has_adapters: whether it supports
        EngineControl, Trainable, PrefixCache and HostedAdapters.
    """

    capabilities: Capabilities
    max_model_len: int
    num_kv_tokens: int | None = None
    embedding_info: EmbeddingInfo | None = None
    has_control: bool = False
    is_trainable: bool = False
    has_cache: bool = False
    has_adapters: bool = False


class AttachFrontEnd(Struct, frozen=True, array_like=True, tag="attach"):
    """The first message of the connection for sequences. The engine sends its state now
    and whenever it changes.
    """


class AddRequest(Struct, frozen=True, array_like=True, tag="add"):
    """A TokenRequest, without the fields that only its own process can use.

    is_constrained: whether it has a matcher, which the engine process builds from the
        grammar.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    min_tokens: int
    stop_token_ids: frozenset[int]
    logprobs: int | None
    logprob_ids: tuple[int, ...]
    prompt_logprobs: int | None
    grammar: str | None
    closes_at_limit: bool
    reasoning_budget: ReasoningBudget | None
    priority: int
    cache_salt: str
    extras: Extras
    choice: int
    trace: SpanContext | None
    is_constrained: bool


class AbortRequest(Struct, frozen=True, array_like=True, tag="abort"):
    id: str


class PauseCall(Struct, frozen=True, array_like=True, tag="pause"):
    mode: PauseMode
    clear_cache: bool


class ResumeCall(Struct, frozen=True, array_like=True, tag="resume"):
    pass


class SleepCall(Struct, frozen=True, array_like=True, tag="sleep"):
    level: int
    mode: PauseMode


class WakeUpCall(Struct, frozen=True, array_like=True, tag="wake_up"):
    pass


class AbortAllCall(Struct, frozen=True, array_like=True, tag="abort_all"):
    pass


class UpdateWeightsCall(Struct, frozen=True, array_like=True, tag="update_weights"):
    weights: WeightsOnDisk | WeightsInMemory
    version: str | None


class SetWeightVersionCall(Struct, frozen=True, array_like=True, tag="set_weight_version"):
    version: str


class ResetCacheCall(Struct, frozen=True, array_like=True, tag="reset_cache"):
    pass


class LoadAdapterCall(Struct, frozen=True, array_like=True, tag="load_adapter"):
    name: str
    path: str


class UnloadAdapterCall(Struct, frozen=True, array_like=True, tag="unload_adapter"):
    name: str


class EmbeddingCall(Struct, frozen=True, array_like=True, tag="embed"):
    request: EmbedRequest


EngineCall = (
    PauseCall
    | ResumeCall
    | SleepCall
    | WakeUpCall
    | AbortAllCall
    | UpdateWeightsCall
    | SetWeightVersionCall
    | ResetCacheCall
    | LoadAdapterCall
    | UnloadAdapterCall
    | EmbeddingCall
)
FrontEndMessage = AttachFrontEnd | AddRequest | AbortRequest | EngineCall


class SentError(Struct, frozen=True, array_like=True):
    """A DragomanError that can be encoded.

    kind: name of the class.
    limit, prompt, at_least: fields of ContextTooLong.
    """

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    limit: int = 0
    prompt: int = 0
    at_least: bool = False

    @classmethod
    def of(cls, error: DragomanError) -> SentError:
        fields = error.message, error.param, error.code, error.retry_after
        if isinstance(error, ContextTooLong):
            return cls(ContextTooLong.__name__, *fields, error.limit, error.prompt, error.at_least)
        # The nearest class that the other process can build: engines may raise their
        # own subclasses.
        kind = next((base for base in type(error).__mro__ if base in _ERRORS.values()), EngineError)
        return cls(kind.__name__, *fields)

    def build(self) -> DragomanError:
        if self.kind == ContextTooLong.__name__:
            return ContextTooLong(
                limit=self.limit, prompt=self.prompt, at_least=self.at_least, param=self.param
            )
        return _ERRORS[self.kind](
            self.message, param=self.param, code=self.code, retry_after=self.retry_after
        )


_ERRORS: dict[str, type[DragomanError]] = {
    kind.__name__: kind
    for kind in (
        RequestError,
        Unsupported,
        NotFound,
        Conflict,
        EngineError,
        Overloaded,
        QueueFull,
        EngineTimeout,
    )
}


class SentRejection(Struct, frozen=True, array_like=True, tag=6):
    """A `core.engine.Rejected` that can be encoded."""

    id: str
    error: SentError


SentOutput = (
    Scheduled | PromptLogprobs | Sampled | WeightVersionSet | Ended | Failed | SentRejection
)


class OutputBatch(Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The outputs of a front end's sequences in one step, in order; of several steps if
    the front end reads slowly.
    """

    outputs: list[SentOutput]


class EngineState(Struct, frozen=True, array_like=True, tag=1):
    """The state of the engine, which is sent to all front ends.

    epoch: identifies the engine process.
    version: increases with each change.
    kv_cache_usage, ready, reason: as in `Health`.
    adapters: names and paths of the loaded adapters.
    """

    epoch: int
    version: int
    ready: bool
    reason: str | None
    kv_cache_usage: float | None
    is_paused: bool
    sleep_level: int
    weight_version: str
    adapters: tuple[tuple[str, str], ...]


class EngineChanges(Struct, frozen=True):
    """Changes at run time that a new engine process must restore.

    adapters: names and paths of the loaded adapters.
    """

    weights: WeightHistory
    adapters: tuple[tuple[str, str], ...]


class CallResult(Struct, frozen=True, array_like=True, tag=2):
    """The answer to an EngineCall.

    state: the engine's state after the call.
    value: the result in MessagePack.
    error: the error of a failed call; otherwise None.
    """

    state: EngineState
    value: msgspec.Raw
    error: SentError | None


EngineMessage = OutputBatch | EngineState | CallResult


def _convert_number(value: object) -> int | float:
    """Convert numbers of numpy, which third-party engines may deliver."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")


_encode = msgspec.msgpack.Encoder(enc_hook=_convert_number).encode
decode_front_end_message = msgspec.msgpack.Decoder(FrontEndMessage).decode
decode_engine_message = msgspec.msgpack.Decoder(EngineMessage).decode


def encode_frame(message: FrontEndMessage | EngineMessage) -> bytes:
    return build_frame(_encode(message))
