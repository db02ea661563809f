"""The models that this process serves: a name, an engine, and what is needed to speak to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..constraints.matcher import Compiler
from ..core.engine import Capabilities, Embedder, Encoder, Engine, Scorer, TokenEngine, Tokenizer
from ..core.errors import ModelNotFound
from ..core.request import Sampling
from ..core.syntax import ReasoningFormat, ToolFormat
from ..prompts.render import Renderer
from ..prompts.tokenizer import HfTokenizer
from .text import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenBackend:
    """An engine of tokens and its vocabulary. Templates, text, stops and constraints are the pipeline's work.

    eos: ids that end an answer by themselves. renderer: makes prompts of conversations; None for a model that
    knows none. trust_templates: requests may bring their own. embedder: makes vectors of the same tokens.
    """

    engine: TokenEngine
    tokenizer: HfTokenizer
    vocabulary: Vocabulary
    compiler: Compiler
    eos: frozenset[int]
    renderer: Renderer | None = None
    trust_templates: bool = False
    embedder: Embedder | None = None


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
    """max_model_len: prompt and answer together, in tokens. created: Unix seconds."""

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
        own = self.backend.engine
        beside = self.backend.embedder if isinstance(self.backend, TokenBackend) else None
        return (own,) if beside is None else (own, beside)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.backend.tokenizer


class Models:
    """All served models, in the order in which they are listed; the first is the default."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        if not served:
            raise ValueError("at least one model must be served")
        self._served = tuple(served)
        self._by_name = {name: model for model in reversed(self._served) for name in (*model.aliases, model.name)}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served)

    @property
    def default(self) -> str | None:
        """The model of a request that names none; None where several are served."""
        return self._served[0].name if len(self._served) == 1 else None

    def find(self, name: str) -> ServedModel:
        """Raises ModelNotFound."""
        model = self._by_name.get(name)
        if model is None:
            shown = name if len(name) <= 100 else name[:100] + "..."
            raise ModelNotFound(
                f"The model `{shown}` does not exist. Served here: {', '.join(m.name for m in self._served)}.",
                param="model",
            )
        return model

    async def start(self) -> None:
        for engine in self._engines():
            await engine.start()

    async def stop(self) -> None:
        for engine in self._engines():
            await engine.stop()

    def _engines(self) -> Iterator[Engine | TokenEngine | Encoder]:
        return (engine for model in self._served for engine in model.engines)
