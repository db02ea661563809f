"""Embeddings and scores of any model of the transformers library: of encoders, of causal
models that modules.json declares to embed texts, such as Qwen3-Embedding, and of
rerankers, with a classification head or generative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineError
from ..batched_encoder import BatchedEmbedder, BatchedScorer, EncoderInput
from ..encoder_config import ScoringConfig, read_task, returns_segments
from ..hardware import count_usable_cores
from ..pooled_outputs import EmbeddingHead, build_embedding_info, check_max_model_len
from ..sentence_modules import LogitScore, PoolingConfig, RerankerConfig
from .backend import Network, Tensor, library, torch
from .load_network import TransformersOptions, load_network

Floats = NDArray[np.float32]
Output: TypeAlias = Any
"""What a network of the library returns."""


class _TextNetwork:
    """Implements `BatchNetwork`. Texts of the same length are computed together, without
    padding.
    """

    def __init__(
        self,
        network: Network,
        finish: Callable[[Output], Sequence[Floats]],
        *,
        has_segments: bool,
        max_texts: int | None = None,
        keeps_last_logits: bool = False,
    ) -> None:
        """finish: maps the network's output to the result of each text.
        has_segments: whether it is given token types.
        max_texts: texts of one call; None is unlimited.
        keeps_last_logits: whether it computes the logits of the last token only.
        """
        self._network = network
        self._finish = finish
        parameters = signature(network.forward).parameters
        self._has_segments = has_segments and "token_type_ids" in parameters
        self._max_texts = max_texts
        self._options: dict[str, object] = {}
        if "use_cache" in parameters or hasattr(network.config, "use_cache"):
            self._options["use_cache"] = False
        if keeps_last_logits:
            self._options["logits_to_keep"] = 1

    @property
    def vocab(self) -> int:
        vocab: int = self._network.config.get_text_config().vocab_size
        return vocab

    def compute(self, batch: Sequence[EncoderInput]) -> list[Floats]:
        indices_by_length: dict[int, list[int]] = {}
        for index, item in enumerate(batch):
            indices_by_length.setdefault(len(item.ids), []).append(index)
        results: dict[int, Floats] = {}
        for indices in indices_by_length.values():
            step = self._max_texts or len(indices)
            for start in range(0, len(indices), step):
                group = indices[start : start + step]
                values = self._run([batch[index] for index in group])
                results.update(zip(group, values, strict=True))
        return [results[index] for index in range(len(batch))]

    def _run(self, items: Sequence[EncoderInput]) -> Sequence[Floats]:
        inputs = {"input_ids": self._build_tensor([item.ids for item in items])}
        if self._has_segments:
            types = [item.types or (0,) * len(item.ids) for item in items]
            inputs["token_type_ids"] = self._build_tensor(types)
        with torch.inference_mode():
            return self._finish(self._network(**inputs, **self._options))

    def _build_tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, device=self._network.device)


class _Config(msgspec.Struct):
    architectures: tuple[str, ...] = ()


def load(
    directory: Path,
    options: TransformersOptions,
    *,
    reranker: RerankerConfig | None = None,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
) -> BatchedEmbedder | BatchedScorer:
    """Load an engine, not started yet.

    reranker: of a generative reranker; its tokens are known. None for other models.
    max_model_len: tokens of an input, at most the model's positions; by default as
        configured in the directory.

    Raises: EngineError for an unsupported model.
    """
    config = msgspec.json.decode((directory / "config.json").read_bytes(), type=_Config)
    task = reranker or read_task(directory, config.architectures[0] if config.architectures else "")
    match task:
        case PoolingConfig():
            auto_class = library.AutoModel
        case ScoringConfig():
            auto_class = library.AutoModelForSequenceClassification
        case RerankerConfig():
            auto_class = library.AutoModelForCausalLM
    # Embeddings are pooled from the hidden states, as `modules.json` says; many checkpoints
    # lack the pooler of their class. A classifier reads it.
    pooler = "pooler" if isinstance(task, PoolingConfig) else None
    network = load_network(directory, options, auto_class, unread_module=pooler)
    if network.device.type == "cpu":
        torch.set_num_threads(options.threads or count_usable_cores())
    max_positions = _find_max_positions(network)
    check_max_model_len(max_model_len, max_positions)
    has_segments = returns_segments(directory, network.config.model_type)
    max_tokens = max_model_len or min(max_positions, task.max_tokens or max_positions)
    match task:
        case PoolingConfig():
            head = EmbeddingHead(directory, task, network.config.get_text_config().hidden_size)

            def embed(output: Output) -> list[Floats]:
                states: Floats = output.last_hidden_state.float().cpu().numpy()
                return [head.compute(rows) for rows in states]

            info = build_embedding_info(task, head.dimensions, max_positions, max_model_len)
            return BatchedEmbedder(
                _TextNetwork(network, embed, has_segments=has_segments), info, max_waiting
            )
        case ScoringConfig():

            def classify(output: Output) -> Sequence[Floats]:
                logits: Floats = output.logits.float().cpu().numpy()
                return list(logits)

            # The library needs the padding token to find the last one of several texts.
            needs_padding = network.config.get_text_config().pad_token_id is None
            classifier = _TextNetwork(
                network,
                classify,
                has_segments=has_segments,
                max_texts=1 if needs_padding else None,
            )
            return BatchedScorer(
                classifier, task.activation, max_tokens, max_waiting, query_prompt=task.prompt
            )
        case RerankerConfig():
            if task.logits is None:
                raise EngineError(f"{directory}: no LogitScore module names the tokens of a score")
            logits = task.logits
            generator = _TextNetwork(
                network,
                lambda output: _compare_logits(output, logits),
                has_segments=False,
                keeps_last_logits=True,
            )
            return BatchedScorer(generator, task.activation or "Sigmoid", max_tokens, max_waiting)


def _compare_logits(output: Output, tokens: LogitScore) -> list[Floats]:
    last: Floats = output.logits[:, -1].float().cpu().numpy()
    scores = last[:, tokens.true_id]
    if tokens.false_id is not None:
        scores = scores - last[:, tokens.false_id]
    return list(scores[:, None])


def _find_max_positions(network: Network) -> int:
    """Find the longest input: RoBERTa's family counts positions from the padding id + 1."""
    positions: int = (
        getattr(network.config.get_text_config(), "max_position_embeddings", 0) or 1 << 20
    )
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (
                0 if module.padding_idx is None else module.padding_idx + 1
            )
    return positions
