"""A model that this process serves: a name, an engine, and what is needed to speak to it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ..constraints.bounded import BoundedCompiler
from ..core.control import EngineControl, Scriptable, Trainable
from ..core.engine import Capabilities, Embedder, Encoder, Engine, PrefixCache, Scorer, TokenEngine, Tokenizer
from ..core.metrics import StatsSource
from ..core.request import Sampling
from ..core.syntax import ReasoningFormat, ToolFormat
from ..core.vision import ImageProcessor
from ..prompts.render import Renderer
from ..prompts.request_templates import RequestTemplates
from ..prompts.template import TokenizerInfo
from ..prompts.tokenizer import HfTokenizer
from .adapters import Adapters
from .detokenizer import Vocabulary
from .engine_calls import Progress
from .queue_limits import TokenBudget


@dataclass(frozen=True, slots=True)
class TokenBackend:
    """An engine of tokens and its vocabulary. Templates, text, stops and constraints are the pipeline's work.

    eos: ids that end an answer by themselves. renderer: makes prompts of conversations; None for a model that
    knows none. request_templates: renders those that requests bring along; None where they may not. embedder: makes
    vectors of the same tokens. cache: what the engine keeps of prompts, where it tells. vision: how it takes images;
    None for one that sees none. room: for prompts that wait for the engine.
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
    queue_budget: TokenBudget = field(default_factory=TokenBudget)


@dataclass(frozen=True, slots=True)
class EventBackend:
    """An engine of events: it takes the request as it is. tokenizer: where it lends one."""

    engine: Engine
    tokenizer: Tokenizer | None = None


@dataclass(frozen=True, slots=True)
class EmbedderBackend:
    """A model that makes vectors of texts, and no answers."""

    engine: Embedder
    tokenizer: HfTokenizer


@dataclass(frozen=True, slots=True)
class ScorerBackend:
    """A cross-encoder: it says how close two texts are, and nothing else."""

    engine: Scorer
    tokenizer: HfTokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """max_model_len: prompt and answer together, in tokens. created: Unix seconds.

    monitored: an engine that counts its own work; the pipeline counts that of the others. control: of an engine that
    can be held; trainable: whose weights can be replaced; directed: that can be told what to say. adapters: those that
    can be named instead of the model; None for one that knows none. presence: held by whoever uses it, that it may not
    be let go meanwhile; None for one that always stays. tokenizer_info: what a client needs to know to do the
    tokenizer's work itself, where it is known. progress: counts what its generations do.
    """

    name: str
    backend: TokenBackend | EventBackend | EmbedderBackend | ScorerBackend
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
    adapters: Adapters | None = None
    usage_guard: AbstractContextManager[None] | None = None
    tokenizer_info: TokenizerInfo | None = None
    progress: Progress = field(default_factory=Progress, compare=False)
    marker_ids: frozenset[int] = field(init=False)
    """Control tokens whose text the parsers need; the same set for every request."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "marker_ids", self._find_marker_ids())

    def _find_marker_ids(self) -> frozenset[int]:
        if not isinstance(self.backend, TokenBackend):
            return frozenset()
        special = self.backend.tokenizer.special_tokens
        markers = [marker for parser in (self.tools, self.reasoning) if parser is not None for marker in parser.markers]
        return frozenset(special[marker] for marker in markers if marker in special)

    def find_response_name(self, requested: str) -> str:
        """What an answer says that it comes from: an adapter is named, an alias is not."""
        return requested if self.adapters is not None and requested in self.adapters else self.name

    @property
    def capabilities(self) -> Capabilities:
        """Of generating: one that only reads has none."""
        match self.backend:
            case TokenBackend() | EventBackend():
                return self.backend.engine.capabilities
            case EmbedderBackend() | ScorerBackend():
                return Capabilities()

    @property
    def engines(self) -> tuple[Engine | TokenEngine | Encoder, ...]:
        """All that has to be started, and may be ill."""
        engine = self.backend.engine
        embedder = self.backend.embedder if isinstance(self.backend, TokenBackend) else None
        return (engine,) if embedder is None else (engine, embedder)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.backend.tokenizer

    def close_workers(self) -> None:
        """Kill the processes that compile grammars and render templates. Requests that wait for them get Overloaded."""
        if isinstance(self.backend, TokenBackend):
            self.backend.compiler.close()
            if self.backend.request_templates is not None:
                self.backend.request_templates.close()

    def keep_loaded(self) -> AbstractContextManager[None]:
        """While this is entered the model stays. Raises Overloaded if it has just gone."""
        return nullcontext() if self.usage_guard is None else self.usage_guard
