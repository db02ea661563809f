"""The configuration files of an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from ..core.encoder_requests import (
    Pooling,
)
from ..core.errors import EngineError

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
    has_segments: whether the second text of a pair has the second token type.
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
        """Prefix of the encoder's tensor names inside a task model: `bert.` or
        `roberta.`.
        """
        return f"{self.family}."


class PoolingConfig(Struct, frozen=True):
    """How token vectors are pooled to an embedding.

    max_tokens: `max_seq_length` of sentence_bert_config.json; None if it is not
        configured.
    matryoshka_dimensions: the only permitted lengths; empty permits all.
    prompt: put before every text.
    """

    pooling: Pooling = Pooling.MEAN
    normalized: bool = True
    max_tokens: int | None = None
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    prompt: str = ""


class ScoringConfig(Struct, frozen=True):
    """A classification head with one label. sigmoid: whether a sigmoid is its last
    function.
    """

    sigmoid: bool = True


class _SentenceTransformers(Struct):
    activation_fn: str | None = None


# A config.json may be a stranger's: a size of 0 fails only in the middle of a
# computation.
_Size = Annotated[int, Meta(gt=0, le=1 << 40)]


class _Matryoshka(Struct):
    """The fields of config.json about shortened vectors."""

    is_matryoshka: bool = False
    matryoshka_dimensions: list[int] | None = None


class _File(_Matryoshka, kw_only=True):
    """config.json."""

    architectures: list[str]
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    vocab_size: _Size
    max_position_embeddings: _Size = 512
    type_vocab_size: _Size = 2
    layer_norm_eps: Annotated[float, Meta(ge=0, lt=1)] = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str | None = None
    pad_token_id: int | None = None
    is_decoder: bool = False
    id2label: dict[str, str] | None = None
    sentence_transformers: _SentenceTransformers | None = None
    sbert_ce_default_activation_function: str | None = None


class _Module(Struct):
    type: str
    path: str = ""


class _Transformer(Struct):
    max_seq_length: _Size | None = None
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
        has_segments=file.type_vocab_size > 1 and _has_segments(directory, family),
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


class _Tokenizer(Struct):
    """tokenizer_config.json."""

    model_input_names: list[str] | None = None
    tokenizer_class: str | None = None


def _has_segments(directory: Path, family: str) -> bool:
    """Whether transformers' tokenizer of a model returns segment ids: if the directory
    says so, or else if its class is BERT's own.
    """
    path = directory / "tokenizer_config.json"
    tokenizer = _decode(path, _Tokenizer) if path.exists() else _Tokenizer()
    if tokenizer.model_input_names is not None:
        return "token_type_ids" in tokenizer.model_input_names
    return family == _BERT and (tokenizer.tokenizer_class or "Bert").startswith("Bert")


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
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
}


def declares_pooling(modules: bytes | None) -> bool:
    """Whether the content of a modules.json, None if there is none, says that a model
    embeds texts. A file that cannot be read says nothing.
    """
    if modules is None:
        return False
    try:
        found = msgspec.json.decode(modules, type=list[_Module])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return any(_name_module(module) == "Pooling" for module in found)


def read_pooling(directory: Path) -> PoolingConfig:
    """Read how a model of any architecture embeds texts. Raises EngineError."""
    return _read_pooling(directory, _decode(directory / "config.json", _Matryoshka))


class _Prompts(Struct):
    """config_sentence_transformers.json."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


def _read_prompt(directory: Path) -> str:
    path = directory / "config_sentence_transformers.json"
    if not path.exists():
        return ""
    file = _decode(path, _Prompts)
    if file.default_prompt_name is None:
        return ""
    prompts = file.prompts or {}
    if file.default_prompt_name not in prompts:
        raise EngineError(
            f"{path}: default_prompt_name {file.default_prompt_name!r} is not one of its prompts"
        )
    return prompts[file.default_prompt_name] or ""


def _name_module(module: _Module) -> str:
    """Return the last part of a module's type: types are class paths of
    sentence-transformers, which have moved between packages.
    """
    return module.type.rpartition(".")[2]


def _read_pooling(directory: Path, file: _Matryoshka) -> PoolingConfig:
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
    paths = {_name_module(module): module.path for module in modules}
    unknown = sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise EngineError(f"{directory / 'modules.json'}: the module {unknown[0]} is not supported")
    prompt = _read_prompt(directory)
    pooling = Pooling.MEAN
    if "Pooling" in paths:
        if ".." in Path(paths["Pooling"]).parts or Path(paths["Pooling"]).is_absolute():
            raise EngineError(
                f"{directory / 'modules.json'}: the path {paths['Pooling']!r} leaves the directory"
            )
        path = directory / paths["Pooling"] / "config.json"
        # One flag per mode, of which exactly one is on, or since sentence-transformers
        # 5 one name.
        fields = _decode(path, dict[str, Raw])
        if prompt and bytes(fields.get("include_prompt", b"true")) == b"false":
            raise EngineError(f"{path}: include_prompt false is not supported with a prompt")
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
        defaults,
        pooling=pooling,
        normalized="Normalize" in paths,
        max_tokens=limits.max_seq_length,
        prompt=prompt,
    )


def _decode(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error
