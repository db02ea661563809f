"""Loads a GGUF file of a generative model: starts llama.cpp, then builds the engine."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ...core.errors import EngineError
from ...core.tokenizer import Tokenizer
from ..batching import EngineConfig, EngineLimits
from ..hardware import compute_kv_budget, count_usable_cores
from ..llamacpp_child import LaunchSettings
from .client import tokenize
from .engine import MARGIN_TOKENS, LlamaCppEngine
from .gguf_metadata import GgufMetadata
from .gguf_settings import (
    compute_bytes_per_token,
    find_end_tokens,
    read_max_positions,
    read_pooling_type,
)
from .image_prompt import build_prompt_writer
from .process import LlamaCppProcess
from .server_lifecycle import LlamaCppConnection
from .token_text import TokenText
from .vision import ImageToken, LlamaCppVision

log = logging.getLogger(__name__)

MAX_KV_BYTES = 2 << 30
"""Largest default size of the KV cache, bytes."""

_BATCH = 2048
_UBATCH = 512

KV_TYPES: dict[str, Literal["F16", "BF16", "F32"]] = {
    "auto": "F16",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
}


# Texts on which tokenizers typically differ: contractions, white space, Unicode,
# digits, mixed case.
_TEST_TEXTS = (
    "Hello, world! It's 12345 o'clock, don't you think?",
    "  two  spaces\n\n\tand a tab \r\n \n",
    "Größe, naïve, 東京タワー, Привет, שלום, 한국어, 😀👍🏽 ½ ② ﬁ",
    "def f(x): return {'a': [1, 2.50], \"b\": x**2}  # !?;:/\\|~^`@$%&",
    "I'LL WE'VE HE'S camelCase snake_case HTTPServer x1y22z333",
)


class LlamaCppOptions(Struct, frozen=True):
    """Options of llama.cpp.

    dtype: type of the KV cache; weights stay as in the file.
    gpu_layers, threads: as in LaunchSettings.
    deterministic: disables flash attention on a CPU, where it makes a sequence's logits
        depend much more on the rest of the batch.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    gpu_layers: int = -1
    threads: int | None = None
    deterministic: bool = False


class Projector(Struct, frozen=True):
    """A multimodal projector file. token: the image placeholder."""

    metadata: GgufMetadata
    token: ImageToken


class LoadedGguf(Struct, frozen=True):
    """A loaded model. vision: None without a projector."""

    engine: LlamaCppEngine
    vision: LlamaCppVision | None


def load(
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    limits: EngineLimits,
    options: LlamaCppOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
    projector: Projector | None = None,
) -> LoadedGguf:
    """Load the engine for a GGUF file. Blocking. Afterwards llama.cpp runs, but the
    engine is not started yet.

    tokenizer: built from the file's vocabulary.

    Raises: EngineError if the model is not supported, or llama.cpp tokenizes a text
        differently.
    """
    config = _build_config(metadata, limits)
    if config.max_model_len > config.num_kv_tokens:
        raise EngineError(
            f"max_model_len {config.max_model_len} is more than the {config.num_kv_tokens} tokens "
            f"of the KV cache"
        )
    eog = find_end_tokens(metadata)
    launch = _build_launch(metadata, config, options or LlamaCppOptions())
    kv_bytes = launch.context * compute_bytes_per_token(metadata)
    log.info("%s: KV cache of %d tokens, %d MiB", metadata.path, launch.context, kv_bytes >> 20)
    if projector is not None:
        if projector.metadata.architecture != "clip" or not projector.metadata.get_flag(
            "clip.has_vision_encoder"
        ):
            raise EngineError(f"{projector.metadata.path} is not a projector for images")
        launch = msgspec.structs.replace(
            launch,
            mmproj=str(projector.metadata.path),
            # Random, so that no client can insert the marker into a text.
            marker=f"<__media_{secrets.token_hex(16)}__>",
            # Models with non-causal attention within an image need all of its tokens in
            # one ubatch.
            ubatch=launch.batch,
        )
    process = start_checked(LlamaCppProcess(launch), tokenizer, metadata)
    size = max(metadata.vocab_size, tokenizer.vocab_size)
    token_bytes = [tokenizer.token_bytes(id) for id in range(size)]
    vision = None
    prompt_writer = None
    if projector is not None:
        try:
            vision = LlamaCppVision(process, launch.marker, projector.token)
            prompt_writer = build_prompt_writer(process, token_bytes, launch.marker)
        except EngineError as error:
            process.stop()
            raise EngineError(f"{projector.metadata.path}: {error.message}") from error
    engine = LlamaCppEngine(
        LlamaCppConnection(process),
        TokenText(token_bytes),
        eog,
        config,
        clock,
        prompt_writer,
    )
    return LoadedGguf(engine, vision)


def measure_kv_cache(metadata: GgufMetadata, limits: EngineLimits) -> int:
    """Measure the bytes of the KV cache that llama.cpp allocates for a generative
    model. Raises EngineError.
    """
    if read_pooling_type(metadata) is not None:
        return 0
    launch = _build_launch(metadata, _build_config(metadata, limits), LlamaCppOptions())
    return launch.context * compute_bytes_per_token(metadata)


def _build_config(metadata: GgufMetadata, limits: EngineLimits) -> EngineConfig:
    return limits.build_config(
        max_positions=read_max_positions(metadata),
        num_kv_tokens=max(compute_kv_budget(MAX_KV_BYTES) // compute_bytes_per_token(metadata), 1),
        max_num_batched_tokens=_BATCH,
    )


def start_checked(
    process: LlamaCppProcess, tokenizer: Tokenizer, metadata: GgufMetadata
) -> LlamaCppProcess:
    """Start the process and check that it tokenizes as the tokenizer does."""
    process.start()
    try:
        check_tokenizer(
            tokenizer, lambda text: tokenize(process.socket, process.key, text), str(metadata.path)
        )
    except EngineError:
        process.stop()
        raise
    return process


def check_tokenizer(
    tokenizer: Tokenizer, tokenize_there: Callable[[str], Sequence[int]], name: str
) -> None:
    """Compare tokenizers. Raises EngineError at the first text that they tokenize
    differently.
    """
    for text in _TEST_TEXTS:
        if tokenizer.encode(text, special=False) != list(tokenize_there(text)):
            raise EngineError(
                f"{name}: llama.cpp tokenizes {text!r} differently from its vocabulary; it cannot "
                f"be served yet"
            )


def _build_launch(
    metadata: GgufMetadata, config: EngineConfig, options: LlamaCppOptions
) -> LaunchSettings:
    sequences = config.scheduler.max_num_seqs
    batch = config.scheduler.max_num_batched_tokens
    longest = sequences * config.max_model_len
    return LaunchSettings(
        path=str(metadata.path),
        # The margin leaves room for generated but unreported tokens at the end of the
        # context.
        context=min(config.num_kv_tokens, longest) + MARGIN_TOKENS * sequences,
        unified=config.num_kv_tokens < longest,
        sequences=sequences,
        batch=batch,
        ubatch=min(batch, _UBATCH),
        kv_type=KV_TYPES[options.dtype],
        gpu_layers=options.gpu_layers,
        threads=choose_threads(options.threads),
        flash_attention=not options.deterministic,
    )


def choose_threads(threads: int | None) -> int | None:
    """Choose the number of threads. llama.cpp's default, one per physical core, ignores
    affinity and CPU quota.
    """
    cores = count_usable_cores()
    return cores if threads is None and cores < (os.cpu_count() or 1) else threads
