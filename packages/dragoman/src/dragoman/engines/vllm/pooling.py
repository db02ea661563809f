"""vLLM's pooling models as engines: embeddings of texts, and relevance scores of pairs
of texts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count

from msgspec import Struct

from ...core.encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    RelevanceScores,
    ScoreRequest,
)
from ...core.engine import Health
from ...core.engine_stats import EngineStats
from ...core.errors import DragomanError, EngineError, Overloaded, QueueFull
from ...core.request_checks import check_ids
from . import backend
from .backend import PoolingParams, PoolingResult
from .process import VllmProcess
from .request import build_request_error

log = logging.getLogger(__name__)


class PoolingLimits(Struct, frozen=True):
    """Limits of a pooling model.

    max_model_len: tokens of one input.
    max_num_waiting: inputs in progress above which requests are rejected.
    """

    max_model_len: int
    vocab_size: int
    max_num_waiting: int


class _PoolingEngine:
    """Runs inputs on vLLM, each as a request of its own."""

    def __init__(self, process: VllmProcess, limits: PoolingLimits) -> None:
        self._process = process
        self._limits = limits
        self._numbers = count()
        self._num_running = 0

    def stats(self) -> Sequence[EngineStats]:
        """Implements StatsSource.stats."""
        return self._process.counters.list_all()

    async def start(self) -> None:
        """Start vLLM and load the weights, which may take minutes. Raises EngineError."""
        await self._process.start()

    async def stop(self) -> None:
        await self._process.stop()

    def health(self) -> Health:
        # vLLM reports an input only when it is done, so all inputs in progress count as
        # running.
        return self._process.get_health(waiting=0, running=self._num_running)

    async def _run(
        self, inputs: Sequence[tuple[tuple[int, ...], PoolingParams]]
    ) -> list[PoolingResult]:
        """Run inputs and return their result tensors in the same order.

        inputs: pairs of token ids and parameters.
        """
        self._process.get_engine()
        for ids, _ in inputs:
            check_ids(ids, self._limits.vocab_size, "input")
        if self._num_running + len(inputs) > self._limits.max_num_waiting:
            raise QueueFull(f"{self._num_running} inputs are already queued; retry later.")
        self._num_running += len(inputs)
        tasks = [asyncio.create_task(self._run_one(ids, params)) for ids, params in inputs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # After an error or a cancellation some tasks still run: vLLM aborts their
            # requests.
            for task in tasks:
                task.cancel()
            self._num_running -= len(inputs)

    async def _run_one(self, ids: tuple[int, ...], params: PoolingParams) -> PoolingResult:
        llm = self._process.get_engine()
        id = f"pool-{next(self._numbers)}"
        try:
            results = [
                output
                async for output in llm.encode(backend.inputs.tokens_input(list(ids)), params, id)
            ]
        except backend.ClientError as error:
            raise build_request_error(error) from error
        except backend.RetryableError as error:
            raise Overloaded(str(error), code="engine_paused") from error
        except backend.BusyError as error:
            raise Overloaded(str(error)) from error
        except DragomanError:
            raise
        except Exception as error:  # vLLM's workers raise many types
            log.exception("vLLM failed on %s", id)
            raise EngineError("The engine failed while computing this request.") from error
        return results[-1].outputs.data


class VllmEmbedder(_PoolingEngine):
    """Implements `Embedder` of `core.engine` and `core.engine_stats.StatsSource`."""

    def __init__(
        self, process: VllmProcess, limits: PoolingLimits, embedding_info: EmbeddingInfo
    ) -> None:
        super().__init__(process, limits)
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Implements Embedder.embed. With vLLM, the last digits may depend on the other
        inputs of a batch.
        """
        full = self._embedding_info.dimensions
        dimensions = None if request.dimensions == full else request.dimensions
        params = backend.pooling.PoolingParams(
            task="embed", dimensions=dimensions, use_activation=request.normalize
        )
        # Cloned because vLLM writes the model's defaults into each object.
        vectors = await self._run([(ids, params.clone()) for ids in request.inputs])
        return Embeddings(
            tuple(vector.float().numpy().astype("<f4").tobytes() for vector in vectors),
            request.dimensions or full,
            sum(map(len, request.inputs)),
        )


class VllmScorer(_PoolingEngine):
    """Implements `Scorer` of `core.engine` and `core.engine_stats.StatsSource`.

    has_segments: whether the model distinguishes the two texts of a pair by token type
        ids.
    """

    def __init__(self, process: VllmProcess, limits: PoolingLimits, *, has_segments: bool) -> None:
        super().__init__(process, limits)
        self._has_segments = has_segments

    @property
    def max_tokens(self) -> int:
        return self._limits.max_model_len

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        inputs: list[tuple[tuple[int, ...], PoolingParams]] = []
        for pair in request.pairs:
            extra = None
            if self._has_segments:
                # vLLM's own function: the compressed form differs between versions.
                extra = {
                    "compressed_token_type_ids": backend.scoring.compress_token_type_ids(
                        list(pair.types)
                    )
                }
            params = backend.pooling.PoolingParams(
                task="classify", use_activation=request.activation, extra_kwargs=extra
            )
            inputs.append((pair.ids, params))
        numbers = await self._run(inputs)
        tokens = sum(len(pair.ids) for pair in request.pairs)
        return RelevanceScores(tuple(float(number.item()) for number in numbers), tokens)
