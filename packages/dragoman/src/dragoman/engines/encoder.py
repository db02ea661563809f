"""Engines over an encoder: embeddings of texts, or scores of text pairs; and their
loading.

The model is BERT or RoBERTa in numpy: token ids to a vector per token
(https://arxiv.org/abs/1810.04805). A text's vectors are bitwise independent of the rest
of its batch: texts share the matrix products, whose rows are independent, and each
attends to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from ..core.embeddings import (
    EmbedRequest,
    EmbeddingInfo,
    Embeddings,
    Pooling,
    RelevanceScores,
    ScoreRequest,
)
from ..core.engine import Health, check_ids
from ..core.errors import EngineError
from .arrays import (
    Batcher,
    BlockSizes,
    Linear,
    ROWS,
    Tensors,
    build_embeddings,
    compute_sigmoid,
    round_up,
)

# The configuration files of an encoder.

_BERT = "bert"
_ROBERTA = "roberta"
_FAMILIES = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForSequenceClassification": _BERT,
    "RobertaModel": _ROBERTA,
    "RobertaForMaskedLM": _ROBERTA,
    "RobertaForSequenceClassification": _ROBERTA,
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForMaskedLM": _ROBERTA,
    "XLMRobertaForSequenceClassification": _ROBERTA,
}
_CLASSIFIER_SUFFIX = "ForSequenceClassification"

T = TypeVar("T")


class EncoderConfig(Struct, frozen=True):
    """Dimensions of an encoder.

    positions: maximum number of tokens in an input.
    first_position: of a text's first token; RoBERTa counts from the padding id + 1.
    types: number of token types (segments).
    eps: added to the variance in LayerNorm.
    """

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    positions: int
    first_position: int
    types: int
    eps: float
    activation: str

    @property
    def prefix(self) -> str:
        """Prefix of the encoder's tensor names inside a task model: `bert.` or
        `roberta.`.
        """
        return f"{self.family}."


class PoolingConfig(Struct, frozen=True):
    """How token vectors are pooled to an embedding.

    max_tokens: `max_seq_length` of sentence_bert_config.json; None if it is not
        configured.
    matryoshka_dimensions: the only permitted lengths; empty permits all.
    """

    pooling: Pooling = Pooling.MEAN
    normalized: bool = True
    max_tokens: int | None = None
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()


class ScoringConfig(Struct, frozen=True):
    """A classification head with one label. sigmoid: whether a sigmoid is its last
    function.
    """

    sigmoid: bool = True


class _SentenceTransformers(Struct):
    activation_fn: str | None = None


class _File(Struct):
    """config.json."""

    architectures: list[str]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str | None = None
    pad_token_id: int | None = None
    is_decoder: bool = False
    id2label: dict[str, str] | None = None
    is_matryoshka: bool = False
    matryoshka_dimensions: list[int] | None = None
    sentence_transformers: _SentenceTransformers | None = None
    sbert_ce_default_activation_function: str | None = None


class _Module(Struct):
    type: str
    path: str = ""


class _Transformer(Struct):
    max_seq_length: int | None = None
    do_lower_case: bool = False


def read_config(directory: Path) -> tuple[EncoderConfig, PoolingConfig | ScoringConfig]:
    """Read the encoder's configuration and that of its head. Raises EngineError."""
    path = directory / "config.json"
    file = _decode(path, _File)
    architecture = file.architectures[0] if file.architectures else ""
    labels = 2 if file.id2label is None else len(file.id2label)
    checks = (
        (architecture not in _FAMILIES, f"architecture {architecture!r}"),
        (file.hidden_act not in ("gelu", "relu"), f"hidden_act {file.hidden_act!r}"),
        (
            file.position_embedding_type not in (None, "absolute"),
            f"position_embedding_type {file.position_embedding_type!r}",
        ),
        (file.is_decoder, "a decoder"),
        (
            file.num_attention_heads < 1 or file.hidden_size % file.num_attention_heads != 0,
            "a hidden_size that is not a multiple of the number of heads",
        ),
        (
            architecture.endswith(_CLASSIFIER_SUFFIX) and labels != 1,
            f"a classification into {labels} labels",
        ),
    )
    unsupported = next(
        (description for is_unsupported, description in checks if is_unsupported), None
    )
    if unsupported:
        raise EngineError(f"{path}: {unsupported} is not supported by the encoder engine")
    family = _FAMILIES[architecture]
    first = 0 if family == _BERT else (1 if file.pad_token_id is None else file.pad_token_id) + 1
    config = EncoderConfig(
        family=family,
        hidden=file.hidden_size,
        intermediate=file.intermediate_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        vocab=file.vocab_size,
        positions=file.max_position_embeddings - first,
        first_position=first,
        types=file.type_vocab_size,
        eps=file.layer_norm_eps,
        activation=file.hidden_act,
    )
    if architecture.endswith(_CLASSIFIER_SUFFIX):
        # Whether scores pass a sigmoid: the default of sentence-transformers'
        # cross-encoders.
        activation = (
            file.sentence_transformers.activation_fn if file.sentence_transformers else None
        )
        activation = activation or file.sbert_ce_default_activation_function
        name = "Sigmoid" if activation is None else activation.rpartition(".")[2]
        if name not in ("Sigmoid", "Identity"):
            raise EngineError(
                f"{path}: activation {activation!r} is not supported by the encoder engine"
            )
        return config, ScoringConfig(sigmoid=name == "Sigmoid")
    return config, _read_pooling(directory, file)


_POOLING_SWITCHES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_POOLING_NAMES = {
    "cls": Pooling.CLS,
    "mean": Pooling.MEAN,
    "max": Pooling.MAX,
    "lasttoken": Pooling.LAST,
}


def _read_pooling(directory: Path, file: _File) -> PoolingConfig:
    matryoshka = tuple(sorted(file.matryoshka_dimensions or ()))
    defaults = PoolingConfig(
        matryoshka=file.is_matryoshka or bool(matryoshka), matryoshka_dimensions=matryoshka
    )
    limits = _Transformer()
    limits_path = directory / "sentence_bert_config.json"
    if limits_path.exists():
        # Its maximum length may be less than the model's.
        limits = _decode(limits_path, _Transformer)
    if limits.do_lower_case:
        raise EngineError(
            f"{limits_path}: do_lower_case is not supported; use a normalizer in tokenizer.json"
        )
    # A plain BERT: sentence-transformers loads it with mean pooling, which is
    # PoolingConfig's default.
    if not (directory / "modules.json").exists():
        return msgspec.structs.replace(defaults, max_tokens=limits.max_seq_length)
    modules = _decode(directory / "modules.json", list[_Module])
    # Types are class paths of sentence-transformers, which have moved between packages;
    # their last part is stable.
    paths = {module.type.rpartition(".")[2]: module.path for module in modules}
    unknown = sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise EngineError(f"{directory / 'modules.json'}: the module {unknown[0]} is not supported")
    pooling = Pooling.MEAN
    if "Pooling" in paths:
        path = directory / paths["Pooling"] / "config.json"
        # One flag per mode, of which exactly one is on, or since sentence-transformers
        # 5 one name.
        fields = _decode(path, dict[str, Raw])
        name = msgspec.json.decode(fields["pooling_mode"]) if "pooling_mode" in fields else None
        modes = [
            key
            for key, value in fields.items()
            if key.startswith("pooling_mode_") and bytes(value) == b"true"
        ]
        if isinstance(name, str) and name in _POOLING_NAMES:
            pooling = _POOLING_NAMES[name]
        elif len(modes) == 1 and modes[0] in _POOLING_SWITCHES and name is None:
            pooling = _POOLING_SWITCHES[modes[0]]
        else:
            raise EngineError(
                f"{path}: the pooling {name or ', '.join(modes) or 'none'} is not supported"
            )
    return msgspec.structs.replace(
        defaults, pooling=pooling, normalized="Normalize" in paths, max_tokens=limits.max_seq_length
    )


def _decode(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error


Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class EncoderInput(Struct, frozen=True):
    """One text, or a pair. second: offset of the second text's segment; None for one
    text.
    """

    ids: tuple[int, ...]
    second: int | None = None


class LayerNorm:
    """Layer normalization. np.vecdot sums each row alone."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, name: str) -> None:
        self._weight = tensors.take(f"{name}.weight", config.hidden)
        self._bias = tensors.take(f"{name}.bias", config.hidden)
        self._ones = np.ones(config.hidden, np.float32)
        self._size = np.float32(config.hidden)
        self._eps = np.float32(config.eps)

    def __call__(self, rows: Floats) -> Floats:
        centered = rows - (np.vecdot(rows, self._ones) / self._size)[:, None]
        scale = np.sqrt(np.vecdot(centered, centered) / self._size + self._eps)
        return centered / scale[:, None] * self._weight + self._bias


class _Layer(Struct, frozen=True):
    qkv: Linear
    out: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    norm: LayerNorm


class Bert:
    """The weights of an encoder. `compute_states` may be called from one thread at a
    time.
    """

    def __init__(self, config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes) -> None:
        self.config = config
        prefix = (
            config.prefix if f"{config.prefix}embeddings.word_embeddings.weight" in tensors else ""
        )
        names = f"{prefix}embeddings."
        positions = config.positions + config.first_position
        self._tokens = tensors.take(f"{names}word_embeddings.weight", config.vocab, config.hidden)
        self._positions = tensors.take(
            f"{names}position_embeddings.weight", positions, config.hidden
        )
        self._types = tensors.take(
            f"{names}token_type_embeddings.weight", config.types, config.hidden
        )
        self._norm = LayerNorm(config, tensors, f"{names}LayerNorm")
        self._layers = [
            _load_layer(config, tensors, block_sizes, f"{prefix}encoder.layer.{index}.")
            for index in range(config.layers)
        ]
        self._activation = _gelu if config.activation == "gelu" else _relu
        # Old checkpoints store these index buffers as tensors.
        for name in ("position_ids", "token_type_ids"):
            tensors.drop(names + name)

    def compute_states(self, batch: Sequence[EncoderInput]) -> list[Floats]:
        """Compute [tokens, hidden] for each input."""
        lengths = [len(item.ids) for item in batch]
        ends = np.cumsum(lengths)
        spans = [
            slice(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)
        ]
        starts: dict[int, list[int]] = {}
        for span in spans:
            starts.setdefault(span.stop - span.start, []).append(span.start)
        # Rows as [texts, tokens]: texts of one length attend in one call.
        groups = [
            np.array(begins)[:, None] + np.arange(length) for length, begins in starts.items()
        ]
        total = sum(lengths)
        ids = np.fromiter((id for item in batch for id in item.ids), np.int64, total)
        positions = (
            np.concatenate([np.arange(length) for length in lengths]) + self.config.first_position
        )
        segments = np.zeros(total, np.int64)
        if self.config.types > 1:
            firsts = [len(item.ids) if item.second is None else item.second for item in batch]
            parts = [
                np.arange(length) >= first for length, first in zip(lengths, firsts, strict=True)
            ]
            segments = np.concatenate(parts).astype(np.int64)
        # Padded to a multiple of ROWS.
        embedded = np.zeros((round_up(total, ROWS), self.config.hidden), np.float32)
        embedded[:total] = self._tokens[ids] + self._types[segments] + self._positions[positions]
        rows = self._norm(embedded)
        for layer in self._layers:
            rows = layer.attention_norm(rows + layer.out(self._attend(layer.qkv(rows), groups)))
            rows = layer.norm(rows + layer.down(self._activation(layer.up(rows))))
        return [rows[span] for span in spans]

    def _attend(self, qkv: Floats, groups: list[Ints]) -> Floats:
        config = self.config
        width = config.hidden // config.heads
        mixed = np.zeros((len(qkv), config.hidden), np.float32)
        for group in groups:
            count, length = group.shape
            # Texts, heads, then the matrices of tokens.
            split = (
                qkv[group].reshape(count, length, 3, config.heads, width).transpose(2, 0, 3, 1, 4)
            )
            query, key, value = np.ascontiguousarray(split)
            # Softmax. np.vecdot sums each row alone.
            weights = query @ key.swapaxes(-1, -2)
            weights -= weights.max(axis=-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= np.vecdot(weights, np.ones(length, np.float32))[..., None]
            mixed[group] = (
                (weights @ value).transpose(0, 2, 1, 3).reshape(count, length, config.hidden)
            )
        return mixed


def _load_layer(
    config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes, prefix: str
) -> _Layer:
    hidden = config.hidden
    scale = np.float32((hidden // config.heads) ** -0.5)
    names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
    weights = [tensors.take(f"{name}.weight", hidden, hidden) for name in names]
    biases = [tensors.take(f"{name}.bias", hidden) for name in names]
    # The scale of attention is applied to the weights once instead of to every query.
    weights[0] = weights[0] * scale
    biases[0] = biases[0] * scale
    return _Layer(
        qkv=Linear(np.concatenate(weights).T, block_sizes, np.concatenate(biases)),
        out=load_linear(tensors, block_sizes, f"{prefix}attention.output.dense", hidden, hidden),
        attention_norm=LayerNorm(config, tensors, f"{prefix}attention.output.LayerNorm"),
        up=load_linear(
            tensors, block_sizes, f"{prefix}intermediate.dense", hidden, config.intermediate
        ),
        down=load_linear(
            tensors, block_sizes, f"{prefix}output.dense", config.intermediate, hidden
        ),
        norm=LayerNorm(config, tensors, f"{prefix}output.LayerNorm"),
    )


def load_linear(
    tensors: Tensors, block_sizes: BlockSizes, name: str, inner: int, outer: int
) -> Linear:
    """Load the layer of this name, from `inner` inputs to `outer` outputs."""
    weight = tensors.take(f"{name}.weight", outer, inner)
    return Linear(weight.T, block_sizes, tensors.take(f"{name}.bias", outer))


def _relu(rows: Floats) -> Floats:
    return np.maximum(rows, 0)


def _gelu(rows: Floats) -> Floats:
    """GELU: x * Phi(x), where Phi is the cumulative distribution function of the normal
        distribution.

    Phi is computed from erf, which is approximated by formula 7.1.26 of Abramowitz and
    Stegun, Handbook of Mathematical Functions; the absolute error of Phi is below 2e-7.
    """
    scaled = np.abs(rows) * np.float32(0.5**0.5)
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * scaled)
    series = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series *= t
        series += np.float32(coefficient)
    tail = series * t * np.exp(-scaled * scaled) * np.float32(0.5)
    return rows * np.where(rows > 0, np.float32(1) - tail, tail)


_MAX_BATCH_TOKENS = 4096
"""Tokens of a batch: larger matrix products are no faster."""


class _BatchedEngine:
    """An encoder on its own thread; `compute` maps the states of each text to a result."""

    def __init__(
        self, bert: Bert, compute: Callable[[Floats], Floats], max_tokens: int, max_waiting: int
    ) -> None:
        self._vocab = bert.config.vocab
        self.max_tokens = max_tokens
        self._batcher: Batcher[EncoderInput, Floats] = Batcher(
            lambda batch: [compute(states) for states in bert.compute_states(batch)],
            lambda item: len(item.ids),
            max_batch_tokens=_MAX_BATCH_TOKENS,
            max_waiting=max_waiting,
            name="encoder",
        )

    async def start(self) -> None:
        self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def _run(self, inputs: Iterable[EncoderInput]) -> list[Floats]:
        batch = tuple(inputs)
        check_ids([id for item in batch for id in item.ids], self._vocab, "input")
        return await self._batcher.run(batch)


class BertEmbedder(_BatchedEngine):
    """A `core.engine.Embedder`."""

    def __init__(self, bert: Bert, embedding_info: EmbeddingInfo, max_waiting: int = 1024) -> None:
        super().__init__(
            bert,
            lambda states: pool_states(states, embedding_info.pooling),
            embedding_info.max_tokens,
            max_waiting,
        )
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def embed(self, request: EmbedRequest) -> Embeddings:
        vectors = await self._run(EncoderInput(ids) for ids in request.inputs)
        return build_embeddings(vectors, request, self._embedding_info)


class BertScorer(_BatchedEngine):
    """A `core.engine.Scorer`. sigmoid: whether scores pass a sigmoid by default."""

    def __init__(
        self,
        bert: Bert,
        head: Callable[[Floats], Floats],
        *,
        sigmoid: bool,
        max_tokens: int,
        max_waiting: int = 1024,
    ) -> None:
        super().__init__(bert, head, max_tokens, max_waiting)
        self._sigmoid = sigmoid

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        logits = await self._run(
            EncoderInput(pair.ids, pair.second_start) for pair in request.pairs
        )
        use_sigmoid = self._sigmoid if request.activation is None else request.activation
        numbers = [float(logit[0]) for logit in logits]
        scores = tuple(map(compute_sigmoid, numbers)) if use_sigmoid else tuple(numbers)
        return RelevanceScores(scores, sum(len(pair.ids) for pair in request.pairs))


def pool_states(states: Floats, pooling: Pooling) -> Floats:
    """Pool states [tokens, hidden] of one text to [hidden]."""
    match pooling:
        case Pooling.MEAN:
            return states.sum(axis=0) / np.float32(len(states))
        case Pooling.MEAN_SQRT_LEN:
            return states.sum(axis=0) / np.sqrt(np.float32(len(states)))
        case Pooling.CLS:
            return states[0]
        case Pooling.LAST:
            return states[-1]
        case Pooling.MAX:
            return states.max(axis=0)


def load(
    directory: Path, *, max_model_len: int | None = None, max_waiting: int = 1024
) -> BertEmbedder | BertScorer:
    """Load the engine for a directory of config.json and *.safetensors, not started
    yet.

    max_model_len: tokens of an input, at most the model's positions; by default as
        configured in the directory.

    Raises: EngineError for an unsupported model.
    """
    config, task = read_config(directory)
    max_positions = config.positions
    if max_model_len is not None and not 1 < max_model_len <= max_positions:
        raise EngineError(
            f"max_model_len must be between 2 and the model's {max_positions}, not {max_model_len}"
        )
    tensors = Tensors(directory)
    block_sizes = BlockSizes()
    bert = Bert(config, tensors, block_sizes)
    match task:
        case PoolingConfig():
            embedding_info = EmbeddingInfo(
                config.hidden,
                max_model_len or min(max_positions, task.max_tokens or max_positions),
                task.pooling,
                task.normalized,
                task.matryoshka,
                task.matryoshka_dimensions,
            )
            engine = BertEmbedder(bert, embedding_info, max_waiting)
            # Embeddings use neither BERT's pooler (trained for next-sentence
            # prediction) nor the language-model head.
            for prefix in ("", config.prefix):
                tensors.drop_all(f"{prefix}pooler.")
            for name in ("cls.", "lm_head."):
                tensors.drop_all(name)
        case ScoringConfig(sigmoid):
            head = _build_head(config, tensors, block_sizes)
            engine = BertScorer(
                bert,
                head,
                sigmoid=sigmoid,
                max_tokens=max_model_len or max_positions,
                max_waiting=max_waiting,
            )
    tensors.check_all_used()
    return engine


def _build_head(
    config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes
) -> Callable[[Floats], Floats]:
    """Build the head, from the first token's state to one number; BERT's pooler is
    RoBERTa's classifier.dense.
    """
    bert = config.family == "bert"
    dense = load_linear(
        tensors,
        block_sizes,
        "bert.pooler.dense" if bert else "classifier.dense",
        config.hidden,
        config.hidden,
    )
    last = load_linear(
        tensors, block_sizes, "classifier" if bert else "classifier.out_proj", config.hidden, 1
    )

    def compute_score(states: Floats) -> Floats:
        # Padded, because a product's rounding depends on the number of rows (see
        # `Linear`).
        rows = np.zeros((ROWS, config.hidden), np.float32)
        rows[0] = states[0]
        return last(np.tanh(dense(rows)))[0]

    return compute_score
