"""The configuration files of an encoder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..core.encoder_requests import EncodingTask
from ..core.errors import EngineError
from .sentence_modules import (
    PoolingConfig,
    Size,
    decode_file,
    find_directory_task,
    name_activation,
    read_pooling,
    read_reranker,
)

_BERT = "bert"


_ROBERTA = "roberta"


_MPNET = "mpnet"


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
    "MPNetModel": _MPNET,
    "MPNetForMaskedLM": _MPNET,
    "MPNetForSequenceClassification": _MPNET,
}


_MODERN_BERT = ("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification")


_SEGMENT_TOKENIZERS = frozenset(
    f"{family}Tokenizer"
    for family in (
        *("Bert", "Canine", "DPRQuestionEncoder", "Deberta", "DebertaV2", "FNet", "LayoutLMv2"),
        *("Lxmert", "MarkupLM", "MobileBert", "Tapas"),
    )
)
"""The tokenizer classes of transformers 5 that return segment ids by default."""


_SEGMENT_MODELS = frozenset(
    {
        *("bert", "canine", "convbert", "deberta", "deberta-v2", "distilbert", "dpr", "electra"),
        *("ernie", "fnet", "layoutlm", "lxmert", "megatron-bert", "mobilebert", "nezha"),
        *("nomic_bert", "qdqbert", "realm", "retribert", "squeezebert", "tapas"),
    }
)
"""The model types whose own tokenizer class is one of these."""


MPNET_BUCKETS = 32
"""Of distances between tokens, in MPNet."""
_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
_CLASSIFIER_SUFFIX = "ForSequenceClassification"


class EncoderConfig(Struct, frozen=True):
    """Dimensions of an encoder.

    positions: maximum number of tokens in an input.
    first_position: of a text's first token; RoBERTa counts from the padding id + 1.
    types: number of token types (segments).
    has_segments: whether the model is given the token types of a pair; without them,
        all are 0.
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
    has_segments: bool
    eps: float
    activation: str

    @property
    def prefix(self) -> str:
        """Prefix of the encoder's tensor names inside a task model, such as `bert.`."""
        return f"{self.family}."


class ModernBertConfig(Struct, frozen=True):
    """Dimensions of a ModernBERT (https://arxiv.org/abs/2412.13663).

    windows: for each layer, the distance up to which its tokens see each other; None is
        any.
    thetas: for each layer, the base of its rotary frequencies.
    has_norm_bias, has_attention_bias, has_mlp_bias, has_head_bias: which layers have one.
    head_pooling: the states that the classification head reads: `cls` or `mean`.
    head_activation: of the classification head.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    positions: int
    windows: tuple[int | None, ...]
    thetas: tuple[float, ...]
    eps: float
    activation: str
    has_norm_bias: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    has_head_bias: bool
    head_pooling: str
    head_activation: str


class ScoringConfig(Struct, frozen=True):
    """A classification head with one label.

    activation: the last function of a score.
    """

    activation: str
    max_tokens: int | None = None
    prompt: str = ""


class _SentenceTransformers(Struct):
    activation_fn: str | None = None


class _File(Struct, kw_only=True):
    """config.json."""

    architectures: list[str]
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    vocab_size: Size
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    layer_norm_eps: Annotated[float, Meta(ge=0, lt=1)] = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str | None = None
    pad_token_id: int | None = None
    is_decoder: bool = False
    relative_attention_num_buckets: int = 32


class _Rope(Struct):
    rope_type: str = "default"
    rope_theta: float | None = None


class _ModernFile(Struct):
    """config.json of a ModernBERT."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    vocab_size: Size
    max_position_embeddings: Size = 8192
    norm_eps: Annotated[float, Meta(ge=0, lt=1)] = 1e-5
    norm_bias: bool = False
    hidden_activation: str = "gelu"
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: Size = 128
    global_attn_every_n_layers: Size = 3
    layer_types: list[str] | None = None
    rope_parameters: dict[str, _Rope | None] | None = None
    rope_scaling: dict[str, object] | None = None
    global_rope_theta: float = 160000.0
    local_rope_theta: float = 10000.0
    classifier_pooling: str = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"


def read_config(
    directory: Path,
) -> tuple[EncoderConfig | ModernBertConfig, PoolingConfig | ScoringConfig]:
    """Read the encoder's configuration and that of its head. Raises EngineError."""
    path = directory / "config.json"
    architectures = decode_file(path, _Architectures).architectures
    if architectures and architectures[0] in _MODERN_BERT:
        return _read_modern_bert(path), read_task(directory, architectures[0])
    file = decode_file(path, _File)
    architecture = file.architectures[0] if file.architectures else ""
    checks = (
        (architecture not in _FAMILIES, f"architecture {architecture!r}"),
        (file.hidden_act not in ("gelu", "relu"), f"hidden_act {file.hidden_act!r}"),
        (
            file.position_embedding_type not in (None, "absolute"),
            f"position_embedding_type {file.position_embedding_type!r}",
        ),
        (file.is_decoder, "a decoder"),
        (
            file.hidden_size % file.num_attention_heads != 0,
            "a hidden_size that is not a multiple of the number of heads",
        ),
        (
            file.relative_attention_num_buckets != MPNET_BUCKETS,
            f"relative_attention_num_buckets {file.relative_attention_num_buckets}",
        ),
    )
    _refuse(path, checks)
    family = _FAMILIES[architecture]
    # MPNet's padding id is fixed in its code.
    if family == _MPNET:
        file = msgspec.structs.replace(file, pad_token_id=1)
    first = 0 if family == _BERT else (1 if file.pad_token_id is None else file.pad_token_id) + 1
    if not 0 <= first < file.max_position_embeddings:
        raise EngineError(
            f"{path}: the first position, {first}, must be less than max_position_embeddings"
        )
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
        has_segments=family != _MPNET
        and file.type_vocab_size > 1
        and returns_segments(directory, family),
        eps=file.layer_norm_eps,
        activation=file.hidden_act,
    )
    return config, read_task(directory, architecture)


def _refuse(path: Path, checks: Iterable[tuple[bool, str]]) -> None:
    """Raise EngineError for the first check that is true. checks: each with the name of
    what is not supported.
    """
    unsupported = next((name for is_unsupported, name in checks if is_unsupported), None)
    if unsupported:
        raise EngineError(f"{path}: {unsupported} is not supported by the encoder engine")


def _read_modern_bert(path: Path) -> ModernBertConfig:
    file = decode_file(path, _ModernFile)
    layers = file.num_hidden_layers
    types = file.layer_types or [
        _LOCAL if index % file.global_attn_every_n_layers else _GLOBAL for index in range(layers)
    ]
    ropes = {name: (file.rope_parameters or {}).get(name) or _Rope() for name in (_GLOBAL, _LOCAL)}
    unknown = sorted(set(types) - ropes.keys())
    _refuse(
        path,
        (
            (len(types) != layers, f"{len(types)} layer_types for {layers} layers"),
            (bool(unknown), f"layer type {', '.join(unknown)}"),
            (file.hidden_activation != "gelu", f"hidden_activation {file.hidden_activation!r}"),
            (file.rope_scaling is not None, "rope_scaling"),
            (any(rope.rope_type != "default" for rope in ropes.values()), "a scaled rope_type"),
            (file.hidden_size % (2 * file.num_attention_heads) != 0, "a head of an odd size"),
            (
                file.classifier_pooling not in ("cls", "mean"),
                f"classifier_pooling {file.classifier_pooling!r}",
            ),
            (
                file.classifier_activation not in ("gelu", "relu"),
                f"classifier_activation {file.classifier_activation!r}",
            ),
        ),
    )
    thetas = {
        _GLOBAL: ropes[_GLOBAL].rope_theta or file.global_rope_theta,
        _LOCAL: ropes[_LOCAL].rope_theta or file.local_rope_theta,
    }
    return ModernBertConfig(
        hidden=file.hidden_size,
        intermediate=file.intermediate_size,
        layers=layers,
        heads=file.num_attention_heads,
        vocab=file.vocab_size,
        positions=file.max_position_embeddings,
        windows=tuple(file.local_attention // 2 if type == _LOCAL else None for type in types),
        thetas=tuple(thetas[type] for type in types),
        eps=file.norm_eps,
        activation=file.hidden_activation,
        has_norm_bias=file.norm_bias,
        has_attention_bias=file.attention_bias,
        has_mlp_bias=file.mlp_bias,
        has_head_bias=file.classifier_bias,
        head_pooling=file.classifier_pooling,
        head_activation=file.classifier_activation,
    )


def read_task(directory: Path, architecture: str) -> PoolingConfig | ScoringConfig:
    """Read what a model that generates no text computes: what modules.json declares, or
    else what its class is for. Raises EngineError.
    """
    declared = find_directory_task(directory)
    is_classifier = architecture.endswith(_CLASSIFIER_SUFFIX)
    if is_classifier and declared is not EncodingTask.EMBEDDINGS:
        return _read_scoring(directory)
    return read_pooling(directory)


class _Scoring(Struct):
    """The fields of config.json about the scores of a cross-encoder."""

    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    sentence_transformers: _SentenceTransformers | None = None
    sbert_ce_default_activation_function: str | None = None


def _read_scoring(directory: Path) -> ScoringConfig:
    """Read how a classifier of any architecture scores pairs. Raises EngineError."""
    path = directory / "config.json"
    file = decode_file(path, _Scoring)
    labels = file.num_labels or (2 if file.id2label is None else len(file.id2label))
    if labels != 1:
        raise EngineError(
            f"{path}: a classification into {labels} labels is not supported; a reranker has one"
        )
    reranker = read_reranker(directory)
    if reranker.logits is not None:
        raise EngineError(f"{directory}: LogitScore needs a model that generates text")
    activation = reranker.activation
    if activation is None:
        function = file.sentence_transformers and file.sentence_transformers.activation_fn
        function = function or file.sbert_ce_default_activation_function
        # A sigmoid is the default of sentence-transformers' cross-encoders.
        activation = "Sigmoid" if function is None else name_activation(path, function)
    return ScoringConfig(activation, reranker.max_tokens, reranker.prompt)


class _Architectures(Struct):
    architectures: list[str] = []


class _Tokenizer(Struct):
    """tokenizer_config.json."""

    model_input_names: list[str] | None = None
    tokenizer_class: str | None = None


def returns_segments(directory: Path, model_type: str) -> bool:
    """Whether transformers' tokenizer of a model returns segment ids: if the directory
    says so, or else if its class does.

    model_type: of config.json; it has a class of its own.
    """
    path = directory / "tokenizer_config.json"
    tokenizer = decode_file(path, _Tokenizer) if path.exists() else _Tokenizer()
    if tokenizer.model_input_names is not None:
        return "token_type_ids" in tokenizer.model_input_names
    if tokenizer.tokenizer_class is None:
        return model_type in _SEGMENT_MODELS
    return tokenizer.tokenizer_class.removesuffix("Fast") in _SEGMENT_TOKENIZERS
