"""The interface of an engine that maps token ids to token ids.

For token engines the pipeline implements detokenization, stop strings, n choices and
usage once for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from .capabilities import Capabilities
from .engine import Health
from .errors import DragomanError
from .events import FinishReason
from .matcher import Matcher
from .prompt_images import PromptImage
from .request import NO_EXTRAS, Extras, GenerateRequest, Sampling
from .trace_context import SpanContext


class ReasoningBudget(Struct, frozen=True):
    """A limit on reasoning tokens, after which the engine forces the end of reasoning.

    max_tokens: reasoning tokens before `forced_ids` are forced, unless reasoning has
        ended by itself.
    begin_ids: ids that begin reasoning.
    end_ids: ids that end it.
    forced_ids: ids that the engine forces at the limit.
    is_open: the prompt already ends inside reasoning, so that no `begin_ids` are
        expected.
    """

    max_tokens: int
    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    is_open: bool


class TokenRequest(Struct, frozen=True):
    """One sequence for a TokenEngine.

    Attributes:
        id: unique among running sequences.
        prompt: token ids.
        max_tokens: at least 1.
        sampling: the effective sampling parameters.
        min_tokens: tokens before which no stop token may end the sequence.
        stop_token_ids: sampling one of them ends the sequence (the token is delivered);
            masked before min_tokens.
        logprobs: as in GenerateRequest.
        logprob_ids: as in GenerateRequest.
        prompt_logprobs: as in GenerateRequest.
        matcher: belongs to this request alone.
        grammar: the matcher's grammar in llguidance's format, for an engine with an
            llguidance of its own (vLLM) or in another process.
        closes_at_limit: the matcher ends the answer within max_tokens, as the parameter
            `close_at_limit` demands.
        reasoning_budget: a limit on reasoning tokens.
        priority: as in GenerateRequest.
        cache_salt: as in GenerateRequest.
        extras: the client's extras that the engine supports.
        origin: the client's request, for engines that read text and tools (the
            simulator, a script). Engines that run a model do not need it.
        choice: index of this sequence among the choices of `origin`.
        images: in prompt order; only for an engine with Feature.IMAGES.
        arrival_time: seconds on the event loop's clock when the client's request
            arrived; None is now.
        trace: as in GenerateRequest.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    matcher: Matcher | None = None
    grammar: str | None = None
    closes_at_limit: bool = False
    reasoning_budget: ReasoningBudget | None = None
    priority: int = 0
    cache_salt: str = ""
    extras: Extras = NO_EXTRAS
    origin: GenerateRequest | None = None
    choice: int = 0
    images: tuple[PromptImage, ...] = ()
    arrival_time: float | None = None
    trace: SpanContext | None = None


class Scheduled(Struct, frozen=True, array_like=True, tag=0):
    """The sequence has left the queue.

    Attributes:
        id: id of the sequence.
        cached_tokens: prompt tokens found in the prefix cache.
        written_tokens: prompt tokens that the prefill writes to it; None if unknown.
        elapsed: seconds since it left the queue: an engine may report it only after a
            step.
    """

    id: str
    cached_tokens: int
    written_tokens: int | None = None
    elapsed: float = 0.0


class TokenLogprob(Struct, frozen=True, gc=False, array_like=True):
    """The logprobs at one position.

    Attributes:
        logprob: natural logarithm of the token's probability.
        rank: rank of the sampled token; None if unknown.
        top: (id, logprob) pairs, most likely first.
    """

    logprob: float
    rank: int | None
    top: tuple[tuple[int, float], ...]


class PromptLogprobs(Struct, frozen=True, array_like=True, tag=1):
    """The logprobs of the prompt.

    Attributes:
        id: id of the sequence.
        logprobs: one for each prompt token; the first is None because nothing precedes
            it.
    """

    id: str
    logprobs: tuple[TokenLogprob | None, ...]


# One object for each token: not tracked by the garbage collector, and encoded without
# field names.
class Sampled(Struct, frozen=True, gc=False, array_like=True, tag=2):
    """A sampled token of a sequence.

    Attributes:
        id: id of the sequence.
        token: the token's id.
        logprobs: its logprobs, if requested.
    """

    id: str
    token: int
    logprobs: TokenLogprob | None = None


class WeightVersionSet(Struct, frozen=True, array_like=True, tag=3):
    """All following tokens of this sequence are sampled by weights of this version."""

    id: str
    version: str


class Ended(Struct, frozen=True, array_like=True, tag=4):
    """The last output of a sequence that finished; the only one if it never ran.

    Attributes:
        id: id of the sequence.
        reason: why it ended.
        stop: the stop token that was sampled; it has already been delivered.
        kv_transfer_params: where a decode instance can fetch the KV cache: JSON text of
            an object (vLLM's disaggregated prefill). None if there is nothing to fetch.
        was_closed: the matcher ended the answer at its token limit. Only set by an
            engine in another process, which has a matcher of its own; otherwise the
            request's matcher knows it.
    """

    id: str
    reason: FinishReason
    stop: int | None = None
    kv_transfer_params: str | None = None
    was_closed: bool = False


class Failed(Struct, frozen=True, array_like=True, tag=5):
    """The last output of a sequence that failed in the engine.

    Attributes:
        id: id of the sequence.
        message: what failed; sent to the client.
        cuts_connection: an injected fault: the connection is closed without an error
            event.
    """

    id: str
    message: str
    cuts_connection: bool = False


class Rejected(Struct, frozen=True):
    """The last output of a sequence whose request turned out to be invalid after `add`.

    It is the only output, unless a grammar becomes unsatisfiable during generation.

    Attributes:
        id: id of the sequence.
        error: a RequestError, or Overloaded.
    """

    id: str
    error: DragomanError


TokenOutput = Scheduled | PromptLogprobs | WeightVersionSet | Sampled | Ended | Failed | Rejected
"""What a TokenEngine delivers for a sequence."""


OutputCallback = Callable[[TokenOutput], None]
"""The callback of a sequence, which takes its outputs in order."""


class TokenEngine(Protocol):
    """An engine that maps token ids to token ids. Methods are called on the event loop
    and must not block it.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What requests may ask for."""
        ...

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """Queue a sequence.

        `deliver` is called on the event loop: Scheduled, PromptLogprobs if requested,
        Sampled for each token, then Ended or Failed; or Rejected alone. Engines that
        track weight versions deliver WeightVersionSet before the first token and
        whenever the weights change.

        Raises:
            Overloaded: the queue is full.
        """
        ...

    def abort(self, id: str) -> None:
        """Free the sequence within one step and deliver nothing more. Unknown ids are
        ignored.
        """
        ...

    async def start(self) -> None:
        """Start the engine. Called once, on the server's event loop."""
        ...

    async def stop(self) -> None:
        """Release all resources. Running sequences fail."""
        ...

    def health(self) -> Health:
        """Return the current health. Called often; must not wait."""
        ...
