"""A model that this process serves: its backend, its settings, details of its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ..core.capabilities import Capabilities, Feature
from ..core.encoder import Encoder, TextEncoder
from ..core.engine import Engine
from ..core.engine_control import EngineControl
from ..core.engine_stats import StatsSource
from ..core.request import Sampling
from ..core.scriptable_engine import Scriptable
from ..core.simulated_engine import Simulated
from ..core.syntax import ReasoningFormat, ToolFormat
from ..core.token_engine import TokenEngine
from ..core.tokenizer import Tokenizer
from ..core.weight_updates import Trainable
from ..prompts.fill_in_the_middle import InfillTokens, find_infill_tokens
from ..prompts.tokenizer_info import TokenizerInfo
from .engine_backends import (
    EmbedderBackend,
    EncoderBackend,
    EventBackend,
    ScorerBackend,
    TextEncoderBackend,
    TokenBackend,
)
from .engine_progress import Progress
from .lora_adapters import Adapters
from .output_queue import DeliveryRounds
from .request_queue import RequestQueue

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
    def supports_suffix(self) -> bool:
        """Whether a request may have a suffix: the model has tokens for it, or its
        engine takes prompts with a suffix itself.
        """
        return self.infill_tokens is not None or Feature.SUFFIX in self.capabilities.features

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
