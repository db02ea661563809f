"""Loads a GGUF file: starts llama.cpp on it, and tries whether it reads text as we do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from ...core.engine import Tokenizer
from ...core.errors import EngineError
from ..batching import EngineConfig, EngineLimits
from .client import tokenize
from .engine import MARGIN, LlamaCppEngine
from .gguf import Metadata
from .held import Spelling
from .model import bytes_per_token, ends, max_positions
from .process import Launch, Process

_KV_ROOM = 2 << 30
"""Bytes for keys and values, unless their number is told."""

_BATCH, _UBATCH = 2048, 512

_KV_TYPES: dict[str, Literal["F16", "BF16", "F32"]] = {
    "auto": "F16",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
}

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


def load(
    metadata: Metadata, tokenizer: Tokenizer, limits: EngineLimits, options: LlamaCppOptions | None = None
) -> LlamaCppEngine:
    """The engine for a GGUF file; blocking. llama.cpp runs already, the engine is not started yet.

    tokenizer: of the file's own vocabulary. Raises EngineError where the model cannot be served, or llama.cpp would
    read a text as other tokens than the tokenizer.
    """
    config = limits.config(
        max_positions=max_positions(metadata),
        num_kv_tokens=_KV_ROOM // bytes_per_token(metadata),
        max_num_batched_tokens=_BATCH,
    )
    process = Process(_launch(metadata, config, options or LlamaCppOptions()))
    process.start()
    try:
        compare(tokenizer, lambda text: tokenize(process.socket, process.key, text), str(metadata.path))
    except EngineError:
        process.stop()
        raise
    size = max(metadata.vocab_size, tokenizer.vocab_size)
    spelling = Spelling([tokenizer.token_bytes(id) for id in range(size)])
    return LlamaCppEngine(process, spelling, ends(metadata), config)


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
    # What runs at the end of a longest context still has room for the tokens that are on their way.
    pool = min(config.num_kv_tokens, sequences * config.max_model_len)
    return Launch(
        path=str(metadata.path),
        context=pool + MARGIN * sequences,
        sequences=sequences,
        batch=batch,
        ubatch=min(batch, _UBATCH),
        kv_type=_KV_TYPES[options.dtype],
        gpu_layers=options.gpu_layers,
        threads=options.threads,
    )
