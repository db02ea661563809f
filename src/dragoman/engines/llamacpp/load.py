"""Loads a GGUF file: starts llama.cpp on it, and tries whether it reads text as we do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ...core.embed import EmbedTraits, Pooling
from ...core.engine import Tokenizer
from ...core.errors import EngineError
from ..batching import EngineConfig, EngineLimits
from .client import tokenize
from .engine import MARGIN, LlamaCppEngine
from .gguf import Metadata
from .held import Spelling
from .link import Link
from .model import bytes_per_token, dimensions, ends, max_positions, pooling_type
from .process import Launch, Process
from .reader import LlamaCppEmbedder, LlamaCppScorer
from .vision import LlamaCppVision, Token, words

_KV_ROOM = 2 << 30
"""Bytes for keys and values, unless their number is told."""

_BATCH, _UBATCH = 2048, 512

_KV_TYPES: dict[str, Literal["F16", "BF16", "F32"]] = {
    "auto": "F16",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
}

_POOLINGS = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
_RANK = 4
"""By llama.cpp's llama_pooling_type."""

_LONGEST_INPUT = 8192
"""Tokens, unless more are asked for: an input is computed in one step, which takes memory."""

_TRIALS = (
    "Hello, world! It's 12345 o'clock, don't you think?",
    "  two  spaces\n\n\tand a tab \r\n \n",
    "Größe, naïve, 東京タワー, Привет, שלום, 한국어, 😀👍🏽 ½ ② ﬁ",
    "def f(x): return {'a': [1, 2.50], \"b\": x**2}  # !?;:/\\|~^`@$%&",
    "I'LL WE'VE HE'S camelCase snake_case HTTPServer x1y22z333",
)


class LlamaCppOptions(Struct, frozen=True):
    """dtype: numbers of the cache of keys and values; weights stay as the file has them. The rest is as in Launch."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    gpu_layers: int = -1
    threads: int | None = None


class Projector(Struct, frozen=True):
    """A file with what makes images into what the model reads. token: stands for them in ids."""

    metadata: Metadata
    token: Token


class Loaded(Struct, frozen=True):
    """vision: of a model with a projector."""

    engine: LlamaCppEngine
    vision: LlamaCppVision | None


def load(
    metadata: Metadata,
    tokenizer: Tokenizer,
    limits: EngineLimits,
    options: LlamaCppOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
    projector: Projector | None = None,
) -> Loaded:
    """The engine for a GGUF file; blocking. llama.cpp runs already, the engine is not started yet.

    tokenizer: of the file's own vocabulary. Raises EngineError where the model cannot be served, or llama.cpp would
    read a text as other tokens than the tokenizer.
    """
    config = limits.config(
        max_positions=max_positions(metadata),
        num_kv_tokens=_KV_ROOM // bytes_per_token(metadata),
        max_num_batched_tokens=_BATCH,
    )
    if config.max_model_len > config.num_kv_tokens:
        raise EngineError(
            f"max_model_len {config.max_model_len} is more than the {config.num_kv_tokens} tokens of the KV cache"
        )
    eog = ends(metadata)
    launch = _launch(metadata, config, options or LlamaCppOptions())
    if projector is not None:
        # A text with it in it can come from nobody but this process.
        launch = _seeing(launch, projector, marker=f"<__media_{secrets.token_hex(16)}__>")
    process = _compared(Process(launch), tokenizer, metadata)
    size = max(metadata.vocab_size, tokenizer.vocab_size)
    spelled = [tokenizer.token_bytes(id) for id in range(size)]
    if projector is None:
        return Loaded(LlamaCppEngine(Link(process), Spelling(spelled), eog, config, clock), None)
    try:
        vision, told = LlamaCppVision(process, launch.marker, projector.token), words(process, spelled, launch.marker)
    except EngineError as error:
        process.stop()
        raise EngineError(f"{projector.metadata.path}: {error.message}") from error
    return Loaded(LlamaCppEngine(Link(process), Spelling(spelled), eog, config, clock, told), vision)


def load_reader(
    metadata: Metadata,
    tokenizer: Tokenizer,
    *,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
    options: LlamaCppOptions | None = None,
) -> LlamaCppEmbedder | LlamaCppScorer:
    """The same for a file whose model makes vectors or scores. max_model_len: tokens of an input."""
    pooling, most, said = pooling_type(metadata), max_positions(metadata), options or LlamaCppOptions()
    if pooling is None or (pooling != _RANK and pooling not in _POOLINGS):
        raise EngineError(f"{metadata.path}: a model with pooling {pooling} does not support embeddings")
    if max_model_len is not None and not 1 < max_model_len <= most:
        raise EngineError(f"max_model_len must be between 2 and the model's {most}, not {max_model_len}")
    tokens = max_model_len or min(most, _LONGEST_INPUT)
    launch = Launch(
        path=str(metadata.path),
        context=tokens,
        sequences=1,
        batch=tokens,
        ubatch=tokens,
        kv_type=_KV_TYPES[said.dtype],
        gpu_layers=said.gpu_layers,
        threads=said.threads,
        pooling=pooling,
    )
    link = Link(_compared(Process(launch), tokenizer, metadata))
    if pooling == _RANK:
        return LlamaCppScorer(link, tokenizer.vocab_size, tokens, max_waiting)
    traits = EmbedTraits(dimensions(metadata), tokens, _POOLINGS[pooling])
    return LlamaCppEmbedder(link, tokenizer.vocab_size, traits, max_waiting)


def _compared(process: Process, tokenizer: Tokenizer, metadata: Metadata) -> Process:
    """Started, and found to read texts as the tokenizer does."""
    process.start()
    try:
        compare(tokenizer, lambda text: tokenize(process.socket, process.key, text), str(metadata.path))
    except EngineError:
        process.stop()
        raise
    return process


def compare(tokenizer: Tokenizer, theirs: Callable[[str], Sequence[int]], name: str) -> None:
    """Raises EngineError at the first text that both do not read alike."""
    for text in _TRIALS:
        if tokenizer.encode(text, special=False) != list(theirs(text)):
            raise EngineError(
                f"{name}: llama.cpp reads {text!r} as other tokens than its vocabulary says; it cannot be served yet"
            )


def _launch(metadata: Metadata, config: EngineConfig, options: LlamaCppOptions) -> Launch:
    sequences = config.scheduler.max_num_seqs
    batch = config.scheduler.max_num_batched_tokens
    longest = sequences * config.max_model_len
    return Launch(
        path=str(metadata.path),
        # What is at the end of its context still has room for the tokens that are on their way.
        context=min(config.num_kv_tokens, longest) + MARGIN * sequences,
        unified=config.num_kv_tokens < longest,
        sequences=sequences,
        batch=batch,
        ubatch=min(batch, _UBATCH),
        kv_type=_KV_TYPES[options.dtype],
        gpu_layers=options.gpu_layers,
        threads=options.threads,
    )


def _seeing(launch: Launch, projector: Projector, *, marker: str) -> Launch:
    if projector.metadata.architecture != "clip" or not projector.metadata.flag("clip.has_vision_encoder"):
        raise EngineError(f"{projector.metadata.path} is not a projector for images")
    # Where the tokens of an image look at each other they have to be computed in one step.
    return msgspec.structs.replace(launch, mmproj=str(projector.metadata.path), marker=marker, ubatch=launch.batch)
