"""A model that this process serves: its backend, its settings, details of its files."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ..core.capabilities import Capabilities, Feature
from ..core.encoder import Encoder, TextEncoder
from ..core.engine import Engine
from ..core.engine_interfaces import EngineInterfaces
from ..core.request import Sampling
from ..core.token_engine import TokenEngine
from ..core.tokenizer import Tokenizer
from ..prompts.fill_in_the_middle import InfillTokens, find_infill_tokens
from ..prompts.tokenizer_info import TokenizerInfo
from .engine_backends import (
    EmbedderBackend,
    EncoderBackend,
    EventBackend,
    ScorerBackend,
    TextEncoderBackend,
    TokenBackend,
    TranscriberBackend,
)
from .engine_progress import Progress
from .lora_adapters import Adapters
from .output_formats import OutputFormats, ParserTokens
from .output_queue import DeliveryRounds
from .request_plans import RequestPlans
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
    owned_by: the owner that lists of models state.
    root: the name of the model that it is based on.
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
    owned_by: str = "dragoman"
    root: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a request gets that does not say it.

    max_new_tokens: maximum tokens of a response; None for what the context leaves.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestQueues:
    """The queues of a model.

    generation: the queue of generations.
    encoding: the queue of embedding and scoring requests.
    """

    generation: RequestQueue = field(default_factory=RequestQueue)
    encoding: RequestQueue = field(default_factory=RequestQueue)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model.

    max_model_len: maximum tokens of prompt and response together.
    created: Unix time, in seconds.
    aliases: further names.
    details: details of its files.
    defaults: what a request gets that does not say it.
    formats: how it writes reasoning and tool calls.
    tokenizer_info: the data that a client needs to tokenize by itself; None if unknown.
    interfaces: the optional interfaces of its engine.
    adapters: LoRA adapters that can be named instead of the model; None if they are not
        supported.
    usage_guard: held during use to prevent unloading; None for a model that is never
        unloaded.
    queues: its queues of requests.
    progress: progress counters of its generations.
    delivery_rounds: delivery of all its generations, whose tokens arrive together at
        the end of a step.
    parser_tokens: tokens of its formats.
    plans: what it makes of the fields of requests.
    """

    name: str
    backend: TokenBackend | EventBackend | EncoderBackend
    max_model_len: int
    created: int
    aliases: tuple[str, ...] = ()
    details: ModelDetails = field(default_factory=ModelDetails)
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    formats: OutputFormats = field(default_factory=OutputFormats)
    tokenizer_info: TokenizerInfo | None = None
    interfaces: EngineInterfaces = field(default_factory=EngineInterfaces)
    adapters: Adapters | None = None
    usage_guard: AbstractContextManager[None] | None = None
    queues: RequestQueues = field(default_factory=RequestQueues, compare=False)
    progress: Progress = field(default_factory=Progress, compare=False)
    delivery_rounds: DeliveryRounds = field(default_factory=DeliveryRounds, compare=False)
    parser_tokens: ParserTokens = field(init=False)
    plans: RequestPlans = field(init=False, compare=False)

    def __post_init__(self) -> None:
        tokens = ParserTokens()
        if isinstance(self.backend, TokenBackend):
            tokens = self.formats.find_tokens(self.backend.tokenizer.special_tokens)
        object.__setattr__(self, "parser_tokens", tokens)
        object.__setattr__(self, "plans", RequestPlans())
        object.__setattr__(self, "interfaces", self.interfaces.complete(self.backend.engine))

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
            case EmbedderBackend() | ScorerBackend() | TextEncoderBackend() | TranscriberBackend():
                return Capabilities()

    @property
    def text_encoder(self) -> TextEncoder | None:
        """The remote engine that embeds or scores texts, in addition to generation or
        instead of it, if any.
        """
        if isinstance(self.backend, TextEncoderBackend):
            return self.backend.engine
        encoder = self.interfaces.text_encoder
        return encoder if encoder is not None and encoder.encoding_tasks else None

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
