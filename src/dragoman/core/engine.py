"""What an engine has to do. It never hears of HTTP, of JSON on the wire or of dialects.

There are two kinds. An `Engine` speaks events: an upstream server, a script. A `TokenEngine` takes token
ids and gives token ids: a model that we step ourselves, the simulator; detokenising, stop strings, n
choices and usage are then the pipeline's work, the same for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from .embeddings import EmbeddingInfo, Embeddings, EmbedRequest, RelevanceScores, ScoreRequest
from .errors import ContextTooLong, DragomanError, RequestError, Unsupported
from .events import Event, FinishReason
from .request import Conversation, GenerateRequest, Sampling
from .vision import PromptImage


class Feature(StrEnum):
    """Something that not every engine can do; asking for it where it is missing is a 400 that names it."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    TOOLS = "tools"
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
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
"""What an engine can that lets a Matcher decide which tokens it may sample."""


class Capabilities(Struct, frozen=True):
    """parameters: the fields of SamplingOptions, Limits and Extras that are honoured; others are never ignored
    in silence. max_logprobs: most alternatives a token. native_tools, native_reasoning: the engine's own
    events tell calls and reasoning apart, so that no parser of ours runs.
    """

    features: frozenset[Feature] = frozenset()
    parameters: frozenset[str] = frozenset()
    max_logprobs: int = 0
    native_tools: bool = False
    native_reasoning: bool = False


class Health(Struct, frozen=True):
    """ready: new work is accepted. waiting, running: requests. reason: why it is not ready.

    failed: it has died, and will not become ready again unless it is stopped and started.
    """

    ready: bool = True
    reason: str | None = None
    waiting: int = 0
    running: int = 0
    failed: bool = False


@runtime_checkable
class Engine(Protocol):
    """An engine of events."""

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        """Yield one legal event stream (see `events`).

        Raise RequestError before yielding Started if the request cannot be served, EngineError when the
        engine fails. Closing the generator aborts the work; that is the only cancellation there is.
        """
        ...

    async def start(self) -> None:
        """Become ready. Called once, on the server's event loop."""
        ...

    async def stop(self) -> None:
        """Let go of everything. What is still running fails with EngineError."""
        ...

    def health(self) -> Health: ...


@runtime_checkable
class HasContextLength(Protocol):
    """An engine or an executor that knows its context length."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        ...


class Matcher(Protocol):
    """The state of one constrained answer: which token may come next."""

    def mask(self) -> bytes:
        """One bit a token id, little-endian within each byte; 1 is allowed. May be longer than the vocabulary."""
        ...

    def allows(self, token: int) -> bool:
        """Whether it may come next. Asking changes nothing, and costs less than a mask."""
        ...

    def advance(self, token: int) -> bool:
        """Accept a sampled token; False if the grammar does not allow it."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing may follow but the end."""
        ...


class ReasoningBudget(Struct, frozen=True):
    """After `tokens` tokens of reasoning force the ids `close`, unless the thought has ended by itself.

    A thought is over when the ids `end` have been sampled. open: the prompt has already begun one;
    otherwise it begins when the ids `begin` have been sampled.
    """

    max_tokens: int
    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    is_open: bool


class TokenRequest(Struct, frozen=True):
    """One sequence. `id` is unique among those running.

    max_tokens: at least 1. stop_token_ids: sampling one of them ends the sequence (the token is delivered);
    it is not allowed before min_tokens. logprobs, prompt_logprobs: as in GenerateRequest.
    A matcher belongs to this request alone. grammar: what it follows, as llguidance reads it, for an engine that brings
    its own llguidance. Extras: JSON text by name. images: in the order of the prompt, only
    for an engine with Feature.IMAGES.
    asked, choice: what the client asked for, and which of its choices this is: for engines that look at words and
    tools (a simulator, a script). One that computes has no use for them.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    matcher: Matcher | None = None
    grammar: str | None = None
    reasoning_budget: ReasoningBudget | None = None
    priority: int = 0
    cache_salt: str = ""
    extras: tuple[tuple[str, str], ...] = ()
    origin: GenerateRequest | None = None
    choice: int = 0
    images: tuple[PromptImage, ...] = ()


class Scheduled(Struct, frozen=True):
    """The sequence left the queue. cached_tokens: prompt tokens that need not be computed."""

    id: str
    cached_tokens: int


class TokenLogprob(Struct, frozen=True, gc=False):
    """What the model thought of one token. rank: None where it is not known. top: (id, logprob), best first."""

    logprob: float
    rank: int | None
    top: tuple[tuple[int, float], ...]


class PromptLogprobs(Struct, frozen=True):
    """scores: one a prompt token; the first is None, since nothing precedes it."""

    id: str
    logprobs: tuple[TokenLogprob | None, ...]


class Sampled(Struct, frozen=True, gc=False):
    id: str
    token: int
    logprobs: TokenLogprob | None = None


class WeightVersionSet(Struct, frozen=True):
    """The tokens of this sequence that follow were sampled by weights of this version."""

    id: str
    version: str


class Ended(Struct, frozen=True):
    """The last output of a sequence. stop: the stop token that was sampled (also already delivered).

    kv_transfer_params: where its keys and values can be fetched, for the one who goes on with it: JSON text of an
    object (vLLM's disaggregated prefill). None where there is nothing to fetch.
    """

    id: str
    reason: FinishReason
    stop: int | None = None
    kv_transfer_params: str | None = None


class Failed(Struct, frozen=True):
    """The last output of a sequence that the engine could not finish.

    cut: the connection is to break off without a word, since that failure was asked for.
    """

    id: str
    message: str
    cuts_connection: bool = False


class Rejected(Struct, frozen=True):
    """The last output of a sequence whose request is at fault, where the engine could not tell so when it was added:
    the only one, unless its grammar cannot be followed any further.

    error: a RequestError, or Overloaded.
    """

    id: str
    error: DragomanError


TokenOutput = Scheduled | PromptLogprobs | WeightVersionSet | Sampled | Ended | Failed | Rejected
OutputCallback = Callable[[TokenOutput], None]


class TokenEngine(Protocol):
    """An engine of tokens. All methods are called on the server's event loop and must not block it."""

    @property
    def capabilities(self) -> Capabilities: ...

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """Queue a sequence; raise Overloaded if the queue is full.

        `deliver` is called on the event loop: Scheduled, PromptScored if asked for, Sampled for each token,
        then Ended or Failed; or Refused alone. SampledBy, where the engine knows, before the first token and when the
        weights change.
        """
        ...

    def abort(self, id: str) -> None:
        """Free the sequence within one step; nothing is delivered any more. Unknown ids are ignored."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health: ...


class AdapterLoader(Protocol):
    """Takes up weights that are added to a model's own for those requests that name them (LoRA)."""

    async def load_adapter(self, name: str, path: str) -> None:
        """path: a directory. In the place of one of that name; requests that run keep theirs.

        Raises RequestError for what the model cannot take; then nothing has changed.
        """
        ...

    def unload_adapter(self, name: str) -> None:
        """Requests that run keep it. An unknown name is ignored."""
        ...


class PrefixCache(Protocol):
    """What an engine keeps of prompts that it has computed, for those who ask about it."""

    def cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int | None:
        """How many of these tokens would not have to be computed now; None where it does not tell. Asking changes
        nothing."""
        ...

    async def reset_prefix_cache(self) -> bool | None:
        """Find nothing any more of what was computed so far. What runs goes on undisturbed.

        False where that cannot be while something is in use (as in vLLM): then nothing has changed.
        """
        ...


class Tokenizer(Protocol):
    """Text to ids and back. Safe to use from several threads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Every added token, by its text."""
        ...

    @property
    def longest_token(self) -> int:
        """Bytes of the longest token's text: n tokens never hold more than n times as many."""
        ...

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        """special: text that reads like an added token becomes that token. add_special_tokens: as in
        transformers, what the post-processor puts around a text (a BOS)."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes that this id contributes to a text; those of its name for an added token."""
        ...

    def is_special(self, id: int) -> bool: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


class Encoder(Protocol):
    """What reads texts and writes none. All methods are called on the server's event loop and must not block it."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """What is still under way fails with EngineError."""
        ...

    def health(self) -> Health: ...


class Embedder(Encoder, Protocol):
    """Texts to vectors."""

    @property
    def embedding_info(self) -> EmbeddingInfo: ...

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Vectors in the order of the inputs; equal inputs have equal vectors, to the bit, whatever else runs.

        Raises RequestError for ids outside the vocabulary, Overloaded, EngineError. Cancelling it frees its work.
        """
        ...


class Scorer(Encoder, Protocol):
    """Pairs of texts to numbers: a cross-encoder."""

    @property
    def max_tokens(self) -> int:
        """Of one pair."""
        ...

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        """As Embedder.embed."""
        ...


def check_prompt(ids: tuple[int, ...], vocab_size: int, max_model_len: int) -> None:
    """Raises RequestError for ids that are not of this vocabulary, ContextTooLong where no room is left to answer."""
    if not ids:
        raise RequestError("The prompt is empty.", param="prompt")
    if len(ids) >= max_model_len:
        raise ContextTooLong(limit=max_model_len, prompt=len(ids), param="prompt")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise RequestError(f"The prompt contains token ids that are not in 0 to {vocab_size - 1}.", param="prompt")


def check_unenforced_tool_choice(request: TokenRequest) -> None:
    """For an engine that samples freely: what it calls cannot be enforced. Raises Unsupported."""
    prompt = None if request.origin is None else request.origin.prompt
    if not isinstance(prompt, Conversation) or not prompt.tools or prompt.tool_choice.mode == "none":
        return
    if prompt.tool_choice.mode != "auto":
        raise Unsupported("This engine cannot enforce a call: use `auto` or `none`.", param="tool_choice")
    if not prompt.parallel_tool_calls:
        raise Unsupported("This engine cannot limit the number of calls.", param="parallel_tool_calls")
