"""The backends of a served model: each kind of engine with what it needs to serve
requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..constraints.bounded_compiler import BoundedCompiler
from ..core.encoder import Embedder, Encoder, Scorer, TextEncoder
from ..core.engine import Engine
from ..core.prompt_images import ImageProcessor
from ..core.token_engine import TokenEngine
from ..core.tokenizer import Tokenizer
from ..prompts.hf_tokenizer import HfTokenizer
from ..prompts.pair_template import PairTemplate
from ..prompts.render import Renderer
from ..prompts.request_templates import RequestTemplates
from .composed_grammars import ComposedGrammars
from .detokenizer import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenBackend:
    """A token engine and its vocabulary. The pipeline handles templates, text, stop
    strings and constraints.

    eos: ids that end a response.
    renderer: renders conversations; None for a model without a chat template.
    request_templates: renders chat templates from requests; None if these are not
        allowed.
    embedder: computes embeddings with the same tokenizer, if any.
    vision: image preprocessing; None for a model without vision.
    grammars: those composed for its responses.
    """

    engine: TokenEngine
    tokenizer: HfTokenizer
    vocabulary: Vocabulary
    compiler: BoundedCompiler
    eos: frozenset[int]
    renderer: Renderer | None = None
    request_templates: RequestTemplates | None = None
    embedder: Embedder | None = None
    vision: ImageProcessor | None = None
    grammars: ComposedGrammars = field(default_factory=ComposedGrammars)


@dataclass(frozen=True, slots=True)
class EventBackend:
    """An event engine, which takes unrendered requests.

    tokenizer: the engine's tokenizer; None if it provides none.
    """

    engine: Engine
    tokenizer: Tokenizer | None = None


@dataclass(frozen=True, slots=True)
class EmbedderBackend:
    """A model that computes embeddings and generates no text."""

    engine: Embedder
    tokenizer: HfTokenizer


@dataclass(frozen=True, slots=True)
class ScorerBackend:
    """A cross-encoder, which scores pairs of texts and generates no text.

    template: how a pair is written; None encodes it with the special tokens of the
        tokenizer.
    query_prompt: put before every query, without a template.
    """

    engine: Scorer
    tokenizer: HfTokenizer
    template: PairTemplate | None = None
    query_prompt: str = ""


@dataclass(frozen=True, slots=True)
class TextEncoderBackend:
    """A model on a remote server, which tokenizes texts and embeds or scores them, and
    generates no text.
    """

    engine: TextEncoder
    tokenizer: None = None


@dataclass(frozen=True, slots=True)
class TranscriberBackend:
    """A model that turns speech into text, by its interface `Transcriber`, and generates
    no other text.
    """

    engine: Encoder
    tokenizer: None = None


EncoderBackend = EmbedderBackend | ScorerBackend | TextEncoderBackend | TranscriberBackend
"""The backends of models that generate no text."""
