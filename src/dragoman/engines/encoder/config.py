"""Reads and validates an encoder's configuration files. Independent of weights and requests.

config.json is transformers'; modules.json and the files that it points to are sentence-transformers', and are
optional. Settings that this engine does not support are rejected by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from ...core.embeddings import Pooling
from ...core.errors import EngineError

_BERT, _ROBERTA = "bert", "roberta"
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

    prefix: of its tensors' names inside a larger model.
    first_position: of a text's first token; RoBERTa counts from the padding id + 1.
    positions: maximum number of tokens.
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
        return f"{self.family}."


class PoolingConfig(Struct, frozen=True):
    """Pooling of token vectors to an embedding. max_tokens: if less than the model's positions, else None."""

    pooling: Pooling = Pooling.MEAN
    normalized: bool = True
    max_tokens: int | None = None
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()


class ScoringConfig(Struct, frozen=True):
    """A classification head with one label. sigmoid: whether a sigmoid is its last function."""

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
            file.hidden_size % file.num_attention_heads != 0,
            "a hidden_size that is not a multiple of the number of heads",
        ),
        (architecture.endswith(_CLASSIFIER_SUFFIX) and labels != 1, f"a classification into {labels} labels"),
    )
    unsupported = next((description for is_unsupported, description in checks if is_unsupported), None)
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
        # Whether scores pass a sigmoid: the default of sentence-transformers' cross-encoders.
        activation = file.sentence_transformers.activation_fn if file.sentence_transformers else None
        activation = activation or file.sbert_ce_default_activation_function
        name = "Sigmoid" if activation is None else activation.rpartition(".")[2]
        if name not in ("Sigmoid", "Identity"):
            raise EngineError(f"{path}: activation {activation!r} is not supported by the encoder engine")
        return config, ScoringConfig(sigmoid=name == "Sigmoid")
    return config, _read_pooling(directory, file)


def _read_pooling(directory: Path, file: _File) -> PoolingConfig:
    matryoshka = tuple(sorted(file.matryoshka_dimensions or ()))
    defaults = PoolingConfig(matryoshka=file.is_matryoshka or bool(matryoshka), matryoshka_dimensions=matryoshka)
    limits = _read_transformer(directory)
    # A plain BERT: sentence-transformers loads it with mean pooling, which is PoolingConfig's default.
    if not (directory / "modules.json").exists():
        return msgspec.structs.replace(defaults, max_tokens=limits.max_seq_length)
    modules = _decode(directory / "modules.json", list[_Module])
    # Types are class paths of sentence-transformers, which have moved between packages; their last part is stable.
    paths = {module.type.rpartition(".")[2]: module.path for module in modules}
    unknown = sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise EngineError(f"{directory / 'modules.json'}: the module {unknown[0]} is not supported")
    pooling = _read_pooling_mode(directory / paths["Pooling"] / "config.json") if "Pooling" in paths else Pooling.MEAN
    return msgspec.structs.replace(
        defaults, pooling=pooling, normalized="Normalize" in paths, max_tokens=limits.max_seq_length
    )


def _read_transformer(directory: Path) -> _Transformer:
    """Read sentence_bert_config.json, whose maximum length may be less than the model's."""
    path = directory / "sentence_bert_config.json"
    if not path.exists():
        return _Transformer()
    config = _decode(path, _Transformer)
    if config.do_lower_case:
        raise EngineError(f"{path}: do_lower_case is not supported; the tokenizer's own normaliser is")
    return config


_POOLING_SWITCHES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_POOLING_NAMES = {"cls": Pooling.CLS, "mean": Pooling.MEAN, "max": Pooling.MAX, "lasttoken": Pooling.LAST}


def _read_pooling_mode(path: Path) -> Pooling:
    """Read the pooling mode: one flag per mode (exactly one is on), or since sentence-transformers 5 one name."""
    fields = _decode(path, dict[str, Raw])
    name = msgspec.json.decode(fields["pooling_mode"]) if "pooling_mode" in fields else None
    if isinstance(name, str) and name in _POOLING_NAMES:
        return _POOLING_NAMES[name]
    chosen = [key for key, value in fields.items() if key.startswith("pooling_mode_") and bytes(value) == b"true"]
    if len(chosen) != 1 or chosen[0] not in _POOLING_SWITCHES or name is not None:
        raise EngineError(f"{path}: the pooling {name or ', '.join(chosen) or 'none'} is not supported")
    return _POOLING_SWITCHES[chosen[0]]


def _decode(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error
