"""A model that this process serves: its backend, its adapters, its settings and details
of its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from ..constraints.bounded import BoundedCompiler
from ..core.control import EngineControl, Scriptable, Simulated, Trainable
from ..core.engine import (
    AdapterLoader,
    Capabilities,
    Embedder,
    Encoder,
    Engine,
    PrefixCache,
    Scorer,
    TextEncoder,
    TokenEngine,
    Tokenizer,
)
from ..core.errors import NotFound, RequestError
from ..core.images import ImageProcessor
from ..core.metrics import StatsSource
from ..core.request import Sampling
from ..core.syntax import ReasoningFormat, ToolFormat
from ..prompts.render import Renderer
from ..prompts.request_templates import RequestTemplates
from ..prompts.template import InfillTokens, TokenizerInfo, find_infill_tokens
from ..prompts.tokenizer import HfTokenizer
from .choice import Vocabulary
from .engine_calls import DeliveryRounds, Progress
from .request_queue import RequestQueue


@dataclass(frozen=True, slots=True)
class TokenBackend:
    """A token engine and its vocabulary. The pipeline handles templates, text, stop
    strings and constraints.

    eos: ids that end a response.
    renderer: renders conversations; None for a model without a chat template.
    request_templates: renders chat templates from requests; None if these are not
        allowed.
    embedder: computes embeddings with the same tokenizer, if any.
    cache: the engine's prefix cache; None if it reports none.
    vision: image preprocessing; None for a model without vision.
    """

    engine: TokenEngine
    tokenizer: HfTokenizer
    vocabulary: Vocabulary
    compiler: BoundedCompiler
    eos: frozenset[int]
    renderer: Renderer | None = None
    request_templates: RequestTemplates | None = None
    embedder: Embedder | None = None
    cache: PrefixCache | None = None
    vision: ImageProcessor | None = None


@dataclass(frozen=True, slots=True)
class EventBackend:
    """An event engine, which takes unrendered requests.

    tokenizer: the engine's tokenizer; None if it provides none.
    cache: the engine's prefix cache; None if it cannot be reset.
    """

    engine: Engine
    tokenizer: Tokenizer | None = None
    cache: PrefixCache | None = None


@dataclass(frozen=True, slots=True)
class EmbedderBackend:
    """A model that computes embeddings and generates no text."""

    engine: Embedder
    tokenizer: HfTokenizer


@dataclass(frozen=True, slots=True)
class ScorerBackend:
    """A cross-encoder, which scores pairs of texts and generates no text."""

    engine: Scorer
    tokenizer: HfTokenizer


@dataclass(frozen=True, slots=True)
class TextEncoderBackend:
    """A model on a remote server, which tokenizes texts and embeds or scores them, and
    generates no text.
    """

    engine: TextEncoder
    tokenizer: None = None


EncoderBackend = EmbedderBackend | ScorerBackend | TextEncoderBackend
"""The backends of models that generate no text."""


_NO_GUARD = nullcontext()


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Details of a model and its files. None means unknown.

    engine: name of the engine that runs it.
    reason: the reason for choosing this engine.
    source: path of the file or directory.
    revision: the commit of a model from a hub.
    format: format of the files, `safetensors` or `gguf`.
    family: the architecture, such as `llama` or `qwen3`.
    quantization: quantization of the weights, such as `Q4_K_M` or `awq`.
    dtype: data type of most weights.
    size: size of the weights, in bytes.
    parameters: number of weights.
    trained_length: the longest context that the model was trained for, in tokens.
    kv_bytes_per_token: bytes per token in the KV cache.
    """

    engine: str | None = None
    reason: str | None = None
    source: str | None = None
    revision: str | None = None
    format: str | None = None
    family: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    size: int | None = None
    parameters: int | None = None
    trained_length: int | None = None
    kv_bytes_per_token: int | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model.

    max_model_len: maximum tokens of prompt and response together.
    created: Unix time, in seconds.
    stats_source: metrics of an engine that counts its own work; None if the pipeline
        counts.
    control: pauses the engine; None if it cannot be paused.
    trainable: replaces the engine's weights; None if they cannot be replaced.
    scriptable: sets the engine's replies; None if they cannot be set.
    simulation: control of a simulated engine; None for any other.
    adapters: LoRA adapters that can be named instead of the model; None if they are not
        supported.
    usage_guard: held during use to prevent unloading; None for a model that is never
        unloaded.
    tokenizer_info: the data that a client needs to tokenize by itself; None if unknown.
    progress: progress counters of its generations.
    delivery_rounds: delivery of all its generations, whose tokens arrive together at
        the end of a step.
    details: details of its files.
    queue: queue of generations.
    encoding_queue: queue of embedding and scoring requests.
    """

    name: str
    backend: TokenBackend | EventBackend | EncoderBackend
    max_model_len: int
    created: int
    aliases: tuple[str, ...] = ()
    owned_by: str = "dragoman"
    root: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int | None = None
    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    stats_source: StatsSource | None = None
    control: EngineControl | None = None
    trainable: Trainable | None = None
    scriptable: Scriptable | None = None
    simulation: Simulated | None = None
    adapters: Adapters | None = None
    usage_guard: AbstractContextManager[None] | None = None
    tokenizer_info: TokenizerInfo | None = None
    progress: Progress = field(default_factory=Progress, compare=False)
    delivery_rounds: DeliveryRounds = field(default_factory=DeliveryRounds, compare=False)
    details: ModelDetails = field(default_factory=ModelDetails)
    queue: RequestQueue = field(default_factory=RequestQueue, compare=False)
    encoding_queue: RequestQueue = field(default_factory=RequestQueue, compare=False)
    marker_ids: frozenset[int] = field(init=False)
    """Control tokens whose text the parsers need; the same set for every request."""
    call_opener_ids: tuple[tuple[int], ...] = field(init=False)
    """The tokens that open a tool call, each as a sequence."""

    def __post_init__(self) -> None:
        special: Mapping[str, int] = {}
        if isinstance(self.backend, TokenBackend):
            special = self.backend.tokenizer.special_tokens
        markers = [
            marker
            for parser in (self.tools, self.reasoning)
            if parser is not None
            for marker in parser.markers
        ]
        # A marker may consist of several control tokens, or of one and text:
        # `<|action_start|><|plugin|>`.
        marker_ids = frozenset(
            id for text, id in special.items() if any(text in marker for marker in markers)
        )
        call_openers = () if self.tools is None else self.tools.call_openers
        call_opener_ids = tuple((special[marker],) for marker in call_openers if marker in special)
        object.__setattr__(self, "marker_ids", marker_ids)
        object.__setattr__(self, "call_opener_ids", call_opener_ids)

    def find_response_name(self, requested: str) -> str:
        """Return the model name for responses: an adapter's own name, but the model's
        name for an alias.
        """
        return requested if self.adapters is not None and requested in self.adapters else self.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities for generation; a model that only encodes has none."""
        match self.backend:
            case TokenBackend() | EventBackend():
                return self.backend.engine.capabilities
            case EmbedderBackend() | ScorerBackend() | TextEncoderBackend():
                return Capabilities()

    @property
    def text_encoder(self) -> TextEncoder | None:
        """The remote engine that embeds or scores texts, in addition to generation or
        instead of it, if any.
        """
        match self.backend:
            case TextEncoderBackend(engine=engine):
                return engine
            case EventBackend(engine=engine) if (
                isinstance(engine, TextEncoder) and engine.encoding_tasks
            ):
                return engine
            case _:
                return None

    @property
    def engines(self) -> tuple[Engine | TokenEngine | Encoder, ...]:
        """All engines, each of which is started and may fail."""
        engine = self.backend.engine
        embedder = self.backend.embedder if isinstance(self.backend, TokenBackend) else None
        return (engine,) if embedder is None else (engine, embedder)

    @property
    def infill_tokens(self) -> InfillTokens | None:
        """The tokens of fill-in-the-middle prompts; None for a model that was not
        trained on them.
        """
        backend = self.backend
        return (
            find_infill_tokens(backend.tokenizer.special_tokens)
            if isinstance(backend, TokenBackend)
            else None
        )

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.backend.tokenizer

    def close_workers(self) -> None:
        """Kill the processes that compile grammars and render templates.

        Requests that wait for them fail with Overloaded.
        """
        if isinstance(self.backend, TokenBackend):
            self.backend.compiler.close()
            if self.backend.request_templates is not None:
                self.backend.request_templates.close()

    def keep_loaded(self) -> AbstractContextManager[None]:
        """Context manager that prevents the model from being unloaded. Raises
        Overloaded if it was just unloaded.
        """
        return _NO_GUARD if self.usage_guard is None else self.usage_guard


# LoRA adapters: names that clients select and that the engine resolves. Loaded and
# unloaded at run time.


class Adapter(Struct, frozen=True):
    """A LoRA adapter.

    name: the model name that clients use.
    path: directory of its weights; engines without real weights never open it.
    """

    name: str
    path: str


class Adapters:
    """The loaded adapters of one model, in the order in which they were loaded.

    adapters: the adapters that the engine has at startup.
    loader: the engine, if it must load the weights; None if it only needs the names.
    is_remote: paths refer to another machine, which checks them.
    """

    def __init__(
        self,
        adapters: tuple[Adapter, ...] = (),
        loader: AdapterLoader | None = None,
        *,
        is_remote: bool = False,
    ) -> None:
        self._loader = loader
        self._is_remote = is_remote
        self._adapters = {adapter.name: adapter for adapter in adapters}

    @property
    def reads_files(self) -> bool:
        """Whether an adapter's path is opened on this machine."""
        return self._loader is not None and not self._is_remote

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._adapters.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    async def load(self, adapter: Adapter, *, replace: bool = False) -> None:
        """Load an adapter.

        replace: replace a loaded adapter of the same name.

        Raises:
            RequestError: an adapter of this name is loaded (as in vLLM), or the engine
                cannot use the weights.
        """
        if adapter.name in self._adapters and not replace:
            raise RequestError(
                f"The lora adapter '{adapter.name}' has already been loaded.",
                param="lora_name",
                code="already_loaded",
            )
        if self._loader:
            await self._loader.load_adapter(adapter.name, adapter.path)
        self._adapters[adapter.name] = adapter

    def drop(self, name: str) -> None:
        """Remove an adapter that the engine does not have."""
        self._adapters.pop(name, None)

    def replace_all(self, adapters: Iterable[Adapter]) -> None:
        """Adopt the adapters of an engine in another process, which another front end
        may have changed.
        """
        self._adapters = {adapter.name: adapter for adapter in adapters}

    async def unload(self, name: str) -> None:
        if self._adapters.pop(name, None) is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        if self._loader:
            await self._loader.unload_adapter(name)


def read_adapter(text: str) -> Adapter:
    """Parse `NAME=PATH`, or vLLM's JSON object with `name` and `path`. Raises
    ValueError.
    """
    if text.lstrip().startswith("{"):
        return msgspec.json.decode(text, type=Adapter)
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ValueError(f"an adapter is NAME=PATH, not {text[:60]!r}")
    return Adapter(name, path)
