"""Loads a GGUF file: starts llama.cpp, checks that both tokenizers agree, and builds
the engine.

The engines of pooling models, for embeddings and scores, are defined here too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.embeddings import (
    EmbedRequest,
    EmbeddingInfo,
    Embeddings,
    Pooling,
    RelevanceScores,
    ScoreRequest,
)
from ...core.engine import Health, Tokenizer, check_ids
from ...core.errors import EngineError, Overloaded
from ..arrays import build_embeddings, compute_sigmoid
from ..batching import EngineConfig, EngineLimits
from ..hardware import compute_kv_budget, count_usable_cores
from .client import LlamaCppConnection, complete, tokenize
from .completion_state import find_impossible_end
from .engine import LlamaCppEngine, MARGIN_TOKENS
from .gguf import (
    GgufMetadata,
    compute_bytes_per_token,
    find_end_tokens,
    read_dimensions,
    read_max_positions,
    read_pooling_type,
)
from .process import LaunchSettings, LlamaCppProcess
from .tokens import TokenText
from .vision import ImageToken, LlamaCppVision, build_prompt_writer

log = logging.getLogger(__name__)

MAX_KV_BYTES = 2 << 30
"""Largest default size of the KV cache, bytes."""

_BATCH = 2048
_UBATCH = 512

_KV_TYPES: dict[str, Literal["F16", "BF16", "F32"]] = {
    "auto": "F16",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
}

_POOLINGS = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
"""Poolings by llama.cpp's llama_pooling_type."""
_RANK_POOLING = 4
"""llama.cpp's LLAMA_POOLING_TYPE_RANK, of rerankers."""

_DEFAULT_MAX_INPUT_TOKENS = 8192
"""Default maximum input of a pooling model, tokens: an input is computed in one step,
which takes memory.
"""

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
    process = _start_checked(LlamaCppProcess(launch), tokenizer, metadata)
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
        has_native_grammars=_ends_grammars(process, metadata, eog),
    )
    return LoadedGguf(engine, vision)


def _ends_grammars(process: LlamaCppProcess, metadata: GgufMetadata, eog: frozenset[int]) -> bool:
    """Whether llama.cpp samples each end token at the end of a grammar.

    If not, a warning is logged, and only Dragoman applies grammars.
    """
    names = metadata.get_texts("tokenizer.ggml.tokens")
    end_tokens = {id: names[id] for id in sorted(eog)}
    impossible = find_impossible_end(
        end_tokens, lambda body: complete(process.socket, process.key, body)
    )
    if impossible is not None:
        log.warning(
            "%s: llama.cpp does not end a grammar with %s; Dragoman applies grammars itself, "
            "which is slower",
            metadata.path,
            impossible,
        )
    return impossible is None


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


def _start_checked(
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
        kv_type=_KV_TYPES[options.dtype],
        gpu_layers=options.gpu_layers,
        threads=_choose_threads(options.threads),
        flash_attention=not options.deterministic,
    )


def _choose_threads(threads: int | None) -> int | None:
    """Choose the number of threads. llama.cpp's default, one per physical core, ignores
    affinity and CPU quota.
    """
    cores = count_usable_cores()
    return cores if threads is None and cores < (os.cpu_count() or 1) else threads


# Pooling models in GGUF files: embeddings of texts, or scores of text pairs.


class _PoolingEngine:
    """The base of pooling engines. Inputs are computed one at a time, so that results
    do not depend on a batch.
    """

    def __init__(
        self, connection: LlamaCppConnection, vocab: int, max_tokens: int, max_waiting: int
    ) -> None:
        self._connection = connection
        self._vocab = vocab
        self._max_waiting = max_waiting
        self.max_tokens = max_tokens
        self._slot = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[list[NDArray[np.float32]]]] = set()

    async def start(self) -> None:
        await self._connection.start()

    async def stop(self) -> None:
        """Stop. Pending requests fail as their connections close."""
        tasks = list(self._tasks)
        await self._connection.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def health(self) -> Health:
        count = len(self._tasks)
        running = min(count, 1)
        problem = self._connection.problem
        return Health(
            problem is None, problem, count - running, running, self._connection.is_broken
        )

    async def _compute(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        check_ids([id for ids in inputs for id in ids], self._vocab, "input")
        if len(self._tasks) > self._max_waiting:
            raise Overloaded(
                f"{len(self._tasks)} requests are already queued or running; retry later."
            )
        task = asyncio.create_task(self._embed(inputs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            # Cancelled by `stop`, not by the client.
            if task.cancelled() and not self._connection.is_open:
                raise EngineError("The engine is shutting down.") from None
            task.cancel()
            raise

    async def _embed(self, inputs: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
        async with self._slot:
            return await self._connection.client.embed(inputs)


class LlamaCppEmbedder(_PoolingEngine):
    """Implements `core.engine.Embedder`."""

    def __init__(
        self,
        connection: LlamaCppConnection,
        vocab: int,
        embedding_info: EmbeddingInfo,
        max_waiting: int,
    ) -> None:
        super().__init__(connection, vocab, embedding_info.max_tokens, max_waiting)
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def embed(self, request: EmbedRequest) -> Embeddings:
        vectors = await self._compute(request.inputs)
        check_numbers(vectors)
        return build_embeddings(vectors, request, self._embedding_info)


class LlamaCppScorer(_PoolingEngine):
    """Implements `core.engine.Scorer`: a score is the first output of a reranker's
    head.
    """

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        vectors = await self._compute([pair.ids for pair in request.pairs])
        check_numbers([numbers[:1] for numbers in vectors])
        numbers = [float(numbers[0]) for numbers in vectors]
        use_sigmoid = request.activation is None or request.activation
        scores = tuple(map(compute_sigmoid, numbers)) if use_sigmoid else tuple(numbers)
        return RelevanceScores(scores, sum(len(pair.ids) for pair in request.pairs))


def check_numbers(vectors: Sequence[NDArray[np.float32]]) -> None:
    """Raise EngineError for a vector with non-finite numbers."""
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise EngineError("llama.cpp returned invalid numbers.")


def load_pooling_engine(
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    *,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
    options: LlamaCppOptions | None = None,
) -> LlamaCppEmbedder | LlamaCppScorer:
    """Load a pooling engine, for embeddings or scores. max_model_len: maximum input,
    tokens.
    """
    pooling = read_pooling_type(metadata)
    longest = read_max_positions(metadata)
    resolved = options or LlamaCppOptions()
    if pooling is None or (pooling != _RANK_POOLING and pooling not in _POOLINGS):
        raise EngineError(
            f"{metadata.path}: a model with pooling {pooling} does not support embeddings"
        )
    if max_model_len is not None and not 1 < max_model_len <= longest:
        raise EngineError(
            f"max_model_len must be between 2 and the model's {longest}, not {max_model_len}"
        )
    tokens = max_model_len or min(longest, _DEFAULT_MAX_INPUT_TOKENS)
    launch = LaunchSettings(
        path=str(metadata.path),
        context=tokens,
        sequences=1,
        batch=tokens,
        ubatch=tokens,
        kv_type=_KV_TYPES[resolved.dtype],
        gpu_layers=resolved.gpu_layers,
        threads=_choose_threads(resolved.threads),
        pooling=pooling,
    )
    connection = LlamaCppConnection(_start_checked(LlamaCppProcess(launch), tokenizer, metadata))
    if pooling == _RANK_POOLING:
        return LlamaCppScorer(connection, tokenizer.vocab_size, tokens, max_waiting)
    embedding_info = EmbeddingInfo(read_dimensions(metadata), tokens, _POOLINGS[pooling])
    return LlamaCppEmbedder(connection, tokenizer.vocab_size, embedding_info, max_waiting)
