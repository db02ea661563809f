"""The interfaces of engines.

There are two kinds. An `Engine` emits events: an upstream server, a script. A
`TokenEngine` maps token ids to token ids: a model that runs in this process, the
simulator. For token engines the pipeline implements detokenization, stop strings, n
choices and usage once for all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from .embeddings import (
    EmbedRequest,
    EmbeddingInfo,
    Embeddings,
    EncodingTask,
    RelevanceScores,
    ScoreRequest,
    TextEmbedRequest,
    TextPairs,
)
from .errors import ContextTooLong, DragomanError, RequestError, Unsupported
from .events import Event, FinishReason
from .images import PromptImage
from .request import Conversation, Extras, GenerateRequest, NO_EXTRAS, Sampling

MAX_LISTED_IDS = 10
"""Maximum invalid token ids that an error lists."""


class Feature(StrEnum):
    """A feature that only some engines have. A request for a missing one is rejected
    with a 400 that names it.
    """

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    TOOLS = "tools"
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LOGPROB_TOKEN_IDS = "logprob_token_ids"
    REASONING_BUDGET = "reasoning_budget"
    TOKEN_IDS = "token_ids"
    IMAGES = "images"
    AUDIO = "audio"
    FILES = "files"
    SUFFIX = "suffix"
    LORA = "lora"


CONSTRAINT_FEATURES = frozenset(
    {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.REGEX, Feature.CHOICE, Feature.GRAMMAR}
)
"""The features of an engine that masks its logits with a Matcher."""


class Capabilities(Struct, frozen=True):
    """The features and parameters that an engine supports.

    parameters: the supported fields of SamplingOptions, GenerationLimits and Extras;
        others are never ignored silently.
    max_logprobs: maximum alternatives for each token.
    max_alternatives: alternatives that it can report; a request for more gets a
        warning; None means all.
    native_tools, native_reasoning: the engine's own events separate tool calls and
        reasoning; our parsers do not run.
    verifies_reasoning: the engine seals its reasoning, and verifies the seals itself
        when clients send it back.
    has_one_choice: the engine generates one choice per request, so that n choices
        require n requests.
    """

    features: frozenset[Feature] = frozenset()
    parameters: frozenset[str] = frozenset()
    max_logprobs: int = 0
    native_tools: bool = False
    native_reasoning: bool = False
    max_alternatives: int | None = None
    verifies_reasoning: bool = False
    has_one_choice: bool = False


class Health(Struct, frozen=True):
    """The health of an engine.

    ready: new requests are accepted.
    reason: why it is not ready.
    waiting, running: number of requests.
    failed: it has crashed and cannot become ready again without a restart.
    kv_cache_usage: share of the KV cache that requests hold, 0 to 1; None if there is
        none, or if it is not known.
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
    def capabilities(self) -> Capabilities: ...

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

    def health(self) -> Health: ...


class EventReceiver(Protocol):
    """Takes events while the consumer of an engine's stream waits for the next: see
    `DirectEngine`.
    """

    @property
    def is_ready(self) -> bool:
        """Whether it can take events now. Otherwise the stream yields them."""
        ...

    def receive(self, events: list[Event]) -> None:
        """Take the next events of the stream, all of them deltas. Does not raise."""
        ...


@runtime_checkable
class DirectEngine(Protocol):
    """An event engine that can deliver deltas without resuming a coroutine for each."""

    def generate_directly(
        self, request: GenerateRequest, receiver: EventReceiver
    ) -> AsyncGenerator[Event]:
        """Generate as `Engine.generate` does, but pass deltas to `receiver` while the
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


class RemoteTokens(Struct, frozen=True):
    """The token ids of a prompt.

    texts: the text of each token; None unless requested.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...] | None = None


@runtime_checkable
class RemoteTokenizer(Protocol):
    """An event engine without a tokenizer of its own that can have another server
    tokenize.
    """

    async def tokenize_prompt(
        self, request: GenerateRequest, *, with_texts: bool = False
    ) -> RemoteTokens:
        """Tokenize a text, or a conversation that is rendered first. Raises
        RequestError.
        """
        ...

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        """Return the text of these ids, control tokens included. Raises RequestError."""
        ...


@runtime_checkable
class HasContextLength(Protocol):
    """An engine or an executor that knows its context length."""

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt and answer together."""
        ...


class Matcher(Protocol):
    """The state of one constrained answer: which tokens may come next."""

    def mask(self) -> bytes:
        """Return a bit mask over token ids, little-endian in each byte; 1 is allowed.

        It may be longer than the vocabulary.
        """
        ...

    def allows(self, token: int) -> bool:
        """Whether the token may come next. Has no side effect, and is cheaper than a
        mask.
        """
        ...

    def advance(self, token: int) -> bool:
        """Accept a sampled token; False if the grammar does not allow it."""
        ...

    def replace(self, token: int) -> int:
        """Return the token to append instead of a sampled one: another one if the
        answer must be closed at its limit.

        Only for engines whose capabilities list the parameter `close_at_limit`.
        """
        ...

    @property
    def finished(self) -> bool:
        """Whether only end-of-sequence may follow."""
        ...


@runtime_checkable
class ClosableMatcher(Protocol):
    """A matcher that can end the answer at its token limit."""

    @property
    def was_closed(self) -> bool:
        """Whether it replaced tokens of the model to end the answer."""
        ...


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

    id: unique among running sequences.
    max_tokens: at least 1.
    stop_token_ids: sampling one of them ends the sequence (the token is delivered);
        masked before min_tokens.
    logprobs, prompt_logprobs, logprob_ids: as in GenerateRequest.
    matcher: belongs to this request alone.
    grammar: the matcher's grammar in llguidance's format, for an engine with an
    llguidance of its own (vLLM) or in another process.
    closes_at_limit: the matcher ends the answer within max_tokens, as the parameter
        `close_at_limit` demands.
    extras: the client's extras that the engine supports.
    images: in prompt order; only for an engine with Feature.IMAGES.
    arrival_time: seconds on the event loop's clock when the client's request arrived;
        None is now.
    origin, choice: the client's request and the index of its choice, for engines that
    read text and tools (the simulator, a script). Engines that run a model do not need
    them.
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


class Scheduled(Struct, frozen=True, array_like=True, tag=0):
    """The sequence has left the queue.

    cached_tokens: prompt tokens found in the prefix cache.
    written_tokens: prompt tokens that the prefill writes to it; None if unknown.
    elapsed: seconds since it left the queue: an engine may report it only after a step.
    """

    id: str
    cached_tokens: int
    written_tokens: int | None = None
    elapsed: float = 0.0


class TokenLogprob(Struct, frozen=True, gc=False, array_like=True):
    """The logprobs at one position.

    rank: rank of the sampled token; None if unknown.
    top: (id, logprob) pairs, most likely first.
    """

    logprob: float
    rank: int | None
    top: tuple[tuple[int, float], ...]


class PromptLogprobs(Struct, frozen=True, array_like=True, tag=1):
    """The logprobs of the prompt.

    logprobs: one for each prompt token; the first is None because nothing precedes it.
    """

    id: str
    logprobs: tuple[TokenLogprob | None, ...]


# One object for each token: not tracked by the garbage collector, and encoded without
# field names.
class Sampled(Struct, frozen=True, gc=False, array_like=True, tag=2):
    """A sampled token of a sequence."""

    id: str
    token: int
    logprobs: TokenLogprob | None = None


class WeightVersionSet(Struct, frozen=True, array_like=True, tag=3):
    """All following tokens of this sequence are sampled by weights of this version."""

    id: str
    version: str


class Ended(Struct, frozen=True, array_like=True, tag=4):
    """The last output of a sequence that finished.

    stop: the stop token that was sampled; it has already been delivered.
    kv_transfer_params: where a decode instance can fetch the KV cache: JSON text of an
    object (vLLM's disaggregated prefill). None if there is nothing to fetch.
    was_closed: the matcher ended the answer at its token limit. Only set by an engine
    in another process, which has a matcher of its own; otherwise the request's matcher
    knows it.
    """

    id: str
    reason: FinishReason
    stop: int | None = None
    kv_transfer_params: str | None = None
    was_closed: bool = False


class Failed(Struct, frozen=True, array_like=True, tag=5):
    """The last output of a sequence that failed in the engine.

    cuts_connection: an injected fault: the connection is closed without an error event.
    """

    id: str
    message: str
    cuts_connection: bool = False


class Rejected(Struct, frozen=True):
    """The last output of a sequence whose request turned out to be invalid after `add`.

    It is the only output, unless a grammar becomes unsatisfiable during generation.

    error: a RequestError, or Overloaded.
    """

    id: str
    error: DragomanError


TokenOutput = Scheduled | PromptLogprobs | WeightVersionSet | Sampled | Ended | Failed | Rejected
OutputCallback = Callable[[TokenOutput], None]


class TokenEngine(Protocol):
    """An engine that maps token ids to token ids. Methods are called on the event loop
    and must not block it.
    """

    @property
    def capabilities(self) -> Capabilities: ...

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

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health: ...


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


class Tokenizer(Protocol):
    """Encodes text and decodes ids. Thread-safe."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """All added tokens, by their text."""
        ...

    @property
    def longest_token(self) -> int:
        """Length in bytes of the longest token's text: the upper bound for n tokens is
        n times this.
        """
        ...

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        """Encode a text.

        special: parse the names of added tokens in the text as those tokens.
        add_special_tokens: as in transformers: add what the post-processor puts around
            a text (a BOS).
        """
        ...

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that this id contributes to a text; for an added token,
        those of its name.
        """
        ...

    def is_special(self, id: int) -> bool: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


class Encoder(Protocol):
    """A model that reads texts and generates none. Methods are called on the event loop
    and must not block it.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Release all resources. Running requests fail with EngineError."""
        ...

    def health(self) -> Health: ...


class Embedder(Encoder, Protocol):
    """A model that maps texts to vectors."""

    @property
    def embedding_info(self) -> EmbeddingInfo: ...

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Return vectors in input order. Equal inputs yield bit-identical vectors,
        whatever else is in the batch.

        Cancelling the call frees its work.

        Raises:
            RequestError: an id is outside the vocabulary.
            Overloaded: the queue is full.
            EngineError: the engine failed.
        """
        ...


class Scorer(Encoder, Protocol):
    """A model that maps pairs of texts to numbers: a cross-encoder."""

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of one pair."""
        ...

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        """Return scores in input order. Raises the same errors as `Embedder.embed`."""
        ...


@runtime_checkable
class TextEncoder(Encoder, Protocol):
    """A model on another server that embeds or scores texts and tokenizes them itself."""

    @property
    def encoding_tasks(self) -> frozenset[EncodingTask]:
        """The tasks of the model; empty for one that only generates."""
        ...

    @property
    def scores_texts(self) -> bool:
        """Whether `score_texts` works. A model without it may still embed queries and
        documents.
        """
        ...

    async def embed_texts(self, request: TextEmbedRequest) -> Embeddings:
        """Return vectors in input order. Cancelling the call frees its work.

        Raises:
            RequestError: the model does not support the request.
            Overloaded: too many requests are running.
            EngineError: the engine failed.
        """
        ...

    async def score_texts(self, pairs: TextPairs) -> RelevanceScores:
        """Return scores in the order of the documents. Raises the same errors as
        `embed_texts`.
        """
        ...


def check_prompt(ids: tuple[int, ...], vocab_size: int, max_model_len: int) -> None:
    """Check that a prompt is in the vocabulary and leaves space for at least one token.

    Raises:
        RequestError: the prompt is empty, or an id is not in the vocabulary.
        ContextTooLong: the prompt fills the context.
    """
    if not ids:
        raise RequestError("The prompt is empty.", param="prompt")
    if len(ids) >= max_model_len:
        raise ContextTooLong(limit=max_model_len, prompt=len(ids), param="prompt")
    check_ids(ids, vocab_size, "prompt")


def check_ids(ids: Collection[int], vocab_size: int, param: str) -> None:
    """Raise RequestError if ids are not in the vocabulary. The error lists the first of
    them, each once.
    """
    # Two passes in C for the common case, instead of a Python loop over a long prompt.
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    unknown = list(dict.fromkeys(id for id in ids if not 0 <= id < vocab_size))
    listed = ", ".join(map(str, unknown[:MAX_LISTED_IDS]))
    num_unlisted = len(unknown) - MAX_LISTED_IDS
    more = f" and {num_unlisted} more" if num_unlisted > 0 else ""
    subject = f"Token id {listed} is" if len(unknown) == 1 else f"Token ids {listed}{more} are"
    raise RequestError(f"{subject} not in this model's vocabulary of {vocab_size}.", param=param)


def check_unenforced_tool_choice(request: TokenRequest) -> None:
    """Raise Unsupported for a tool choice that an engine without constrained decoding
    cannot enforce.
    """
    prompt = None if request.origin is None else request.origin.prompt
    if (
        not isinstance(prompt, Conversation)
        or not prompt.tools
        or prompt.tool_choice.mode == "none"
    ):
        return
    if prompt.tool_choice.mode != "auto":
        raise Unsupported(
            "This engine cannot enforce a tool call; use `auto` or `none`.", param="tool_choice"
        )
    if not prompt.parallel_tool_calls:
        raise Unsupported(
            "This engine cannot limit the number of tool calls.", param="parallel_tool_calls"
        )
