"""The files in which sentence-transformers declares how a model embeds or scores texts:
modules.json, the config.json of each module, sentence_bert_config.json and
config_sentence_transformers.json.

What a file declares is honoured or refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ..core.encoder_requests import EncodingTask, Pooling, Similarity
from ..core.errors import EngineError
from ..core.json_types import JsonObject

T = TypeVar("T")

ACTIVATIONS = ("Identity", "Sigmoid", "Tanh", "ReLU", "GELU", "SiLU")
"""Activation functions of torch that modules and cross-encoders may declare."""
_DEFAULT_TASK = "feature-extraction"
_MODULES = "modules.json"
_MODEL_FILE = "config_sentence_transformers.json"
_TRANSFORMER_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The first that exists counts."""
DECLARATION_FILES = frozenset({_MODULES, _MODEL_FILE, *_TRANSFORMER_FILES})
"""The files in the root of a directory."""

# A file may be a stranger's: a size of 0 fails only in the middle of a computation.
Size = Annotated[int, Meta(gt=0, le=1 << 40)]


class Dense(Struct, frozen=True, tag=True):
    """A linear layer on a pooled vector.

    path: the directory of its weights, within the model's.
    """

    path: str
    inner: int
    outer: int
    has_bias: bool
    activation: str
    has_residual: bool


class LayerNormalization(Struct, frozen=True, tag=True):
    """Layer normalization of a pooled vector. path: as in Dense."""

    path: str
    size: int


class UnitLength(Struct, frozen=True, tag=True):
    """Scales a vector to length 1."""


HeadStep = Dense | LayerNormalization | UnitLength


class PoolingConfig(Struct, frozen=True):
    """How token vectors become an embedding.

    modes: the pooled vectors, which are concatenated.
    steps: what is computed from them, in order.
    normalized: whether the last step, which is not in `steps`, scales the vector to
        length 1.
    truncate_dim: the vector is cut to this length, after all steps.
    max_tokens: `max_seq_length` of sentence_bert_config.json; None if it is not
        configured.
    matryoshka_dimensions: the only permitted lengths; empty permits all.
    prompt: put before every text.
    query_prompt, document_prompt: put before texts of which one side is known.
    """

    modes: tuple[Pooling, ...] = (Pooling.MEAN,)
    steps: tuple[HeadStep, ...] = ()
    normalized: bool = True
    truncate_dim: int | None = None
    max_tokens: int | None = None
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    prompt: str = ""
    query_prompt: str = ""
    document_prompt: str = ""
    similarity: Similarity = Similarity.COSINE


class LogitScore(Struct, frozen=True):
    """A score from the logits of the token that a generative reranker would write.

    true_id: the token of a relevant document.
    false_id: that of an irrelevant one, whose logit is subtracted; None subtracts none.
    """

    true_id: int
    false_id: int | None


class RerankerConfig(Struct, frozen=True):
    """How a cross-encoder scores a pair.

    activation: the last function of a score; None if the files name none.
    logits: None for a model with a classification head.
    max_tokens: as in PoolingConfig.
    prompt: put before every query, or the system message of a chat template.
    uses_template: whether pairs are rendered with the chat template; None if the files
        do not say.
    template_options: variables of the chat template.
    has_structured_messages: whether it gets lists of parts instead of texts.
    """

    activation: str | None = None
    logits: LogitScore | None = None
    max_tokens: int | None = None
    prompt: str = ""
    uses_template: bool | None = None
    template_options: JsonObject = {}
    has_structured_messages: bool = False


class _Module(Struct):
    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """The last part of the type: types are class paths of sentence-transformers,
        which have moved between packages.
        """
        return self.type.rpartition(".")[2]


class _Matryoshka(Struct):
    """The fields of config.json about shortened vectors."""

    is_matryoshka: bool = False
    matryoshka_dimensions: list[int] | None = None


class _Modality(Struct):
    method: str = "forward"
    method_output_name: str | list[str] | None = None
    format: str = "flat"


class _Transformer(Struct, forbid_unknown_fields=True):
    """sentence_bert_config.json."""

    max_seq_length: Size | None = None
    do_lower_case: bool = False
    transformer_task: str = _DEFAULT_TASK
    modality_config: dict[str, _Modality] = {}
    module_output_name: str | None = None
    processing_kwargs: dict[str, dict[str, Any]] = {}
    model_args: dict[str, object] = {}
    tokenizer_args: dict[str, object] = {}
    config_args: dict[str, object] = {}
    model_kwargs: dict[str, object] = {}
    processor_kwargs: dict[str, object] = {}
    config_kwargs: dict[str, object] = {}
    unpad_inputs: bool | None = None
    """Whether batches are computed without padding, which changes no result."""
    query_length: int | None = None
    document_length: int | None = None
    query_expansion: object = None


class _Model(Struct):
    """config_sentence_transformers.json."""

    model_type: str | None = None
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: Size | None = None
    activation_fn: str | None = None


class _Dense(Struct):
    in_features: Size
    out_features: Size
    bias: bool = True
    activation_function: str | None = "torch.nn.modules.activation.Tanh"
    module_input_name: str = "sentence_embedding"
    module_output_name: str | None = None
    use_residual: bool = False


class _LayerNorm(Struct):
    dimension: Size


class _LogitScore(Struct):
    true_token_id: int
    false_token_id: int | None = None
    module_input_name: str = "causal_logits"


_POOLING_SWITCHES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
"""One field per mode, before sentence-transformers 5; in the order in which several are
concatenated.
"""
_POOLING_NAMES = {
    "cls": Pooling.CLS,
    "max": Pooling.MAX,
    "mean": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "lasttoken": Pooling.LAST,
}
_IGNORED_MODULES = ("Dropout",)
"""Modules that do nothing in inference."""


def find_declared_task(modules: bytes | None, model: bytes | None = None) -> EncodingTask | None:
    """Find the task that sentence-transformers' files declare; None if they declare none.

    modules, model: the contents of modules.json and config_sentence_transformers.json;
        None for a file that does not exist. A file that cannot be read declares nothing.
    """
    try:
        names = [
            module.name for module in msgspec.json.decode(modules or b"[]", type=list[_Module])
        ]
        kind = msgspec.json.decode(model or b"{}", type=_Model).model_type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if "Pooling" in names:
        return EncodingTask.EMBEDDINGS
    return EncodingTask.SCORING if names or kind == "CrossEncoder" else None


def find_directory_task(directory: Path) -> EncodingTask | None:
    """Find the task that the files of a directory declare, as `find_declared_task`."""
    contents = [
        path.read_bytes() if path.exists() else None
        for path in (directory / _MODULES, directory / _MODEL_FILE)
    ]
    return find_declared_task(*contents)


def read_pooling(directory: Path) -> PoolingConfig:
    """Read how a model embeds texts. A plain model is pooled by the mean and
    normalized.

    Raises: EngineError.
    """
    file = decode_file(directory / "config.json", _Matryoshka)
    matryoshka = tuple(sorted(file.matryoshka_dimensions or ()))
    transformer = _read_transformer(directory)
    defaults = PoolingConfig(
        max_tokens=transformer.max_seq_length,
        matryoshka=file.is_matryoshka or bool(matryoshka),
        matryoshka_dimensions=matryoshka,
    )
    if not (directory / _MODULES).exists():
        return defaults
    _check_task(directory, transformer, "feature-extraction", "last_hidden_state")
    if "message" in transformer.modality_config:
        raise EngineError(
            f"{directory}: modality_config.message of an embedding model is not supported: texts "
            f"would be rendered with a chat template"
        )
    modules = _read_modules(directory)
    names = [module.name for module in modules]
    if names[:2] != ["Transformer", "Pooling"]:
        raise EngineError(
            f"{directory / _MODULES}: modules {', '.join(names) or 'none'} are not supported; an "
            f"embedding model begins with Transformer and Pooling"
        )
    model = _read_model(directory, "SentenceTransformer")
    prompts = model.prompts or {}
    prompt = _find_prompt(directory, model)
    modes = _read_modes(
        directory / modules[1].path / "config.json",
        has_prompt=bool(prompt or prompts.get("query") or prompts.get("document")),
    )
    steps = [
        _read_step(directory, module)
        for module in modules[2:]
        if module.name not in _IGNORED_MODULES
    ]
    # A cut vector is not scaled again, so only an uncut one ends with this step.
    normalized = bool(steps) and isinstance(steps[-1], UnitLength) and model.truncate_dim is None
    return msgspec.structs.replace(
        defaults,
        modes=modes,
        steps=tuple(steps[:-1] if normalized else steps),
        normalized=normalized,
        truncate_dim=model.truncate_dim,
        prompt=prompt,
        query_prompt=prompts.get("query") or "",
        document_prompt=prompts.get("document") or "",
        similarity=_find_similarity(directory, model),
    )


def read_reranker(directory: Path) -> RerankerConfig:
    """Read how a cross-encoder scores pairs. Raises EngineError."""
    transformer = _read_transformer(directory)
    model = _read_model(directory, "CrossEncoder")
    logits = None
    uses_template = None
    if (directory / _MODULES).exists():
        logits = _read_logit_score(directory, _read_modules(directory))
        uses_template = "message" in transformer.modality_config
        task = "sequence-classification" if logits is None else "text-generation"
        _check_task(directory, transformer, task, "logits")
        if uses_template and logits is None:
            raise EngineError(
                f"{directory}: modality_config.message is not supported for a model with a "
                f"classification head"
            )
    path = directory / _MODEL_FILE
    message = transformer.modality_config.get("message", _Modality())
    return RerankerConfig(
        activation=None
        if model.activation_fn is None
        else name_activation(path, model.activation_fn),
        logits=logits,
        max_tokens=transformer.max_seq_length,
        prompt=_find_prompt(directory, model),
        uses_template=uses_template,
        template_options=transformer.processing_kwargs.get("chat_template", {}),
        has_structured_messages=message.format == "structured",
    )


def name_activation(path: Path, function: str | None) -> str:
    """Return the name of an activation function, given by its class path in torch.
    Raises EngineError if it is not one of ACTIVATIONS.
    """
    if function is None:
        return "Identity"
    name = function.rpartition(".")[2]
    if not function.startswith("torch.") or name not in ACTIVATIONS:
        raise EngineError(
            f"{path}: activation {function!r} is not supported; supported are "
            f"{', '.join(ACTIVATIONS)} of torch"
        )
    return name


def decode_file(path: Path, type: type[T]) -> T:
    """Decode a JSON file. Raises EngineError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error


def _read_modules(directory: Path) -> list[_Module]:
    path = directory / _MODULES
    modules = decode_file(path, list[_Module])
    for module in modules:
        if ".." in Path(module.path).parts or Path(module.path).is_absolute():
            raise EngineError(f"{path}: the path {module.path!r} leaves the directory")
    if modules and modules[0].name == "Transformer" and modules[0].path:
        raise EngineError(
            f"{path}: the path {modules[0].path!r} of Transformer is not supported; move its files "
            f"to the root of the directory"
        )
    return modules


def _read_transformer(directory: Path) -> _Transformer:
    path = next(
        (directory / name for name in _TRANSFORMER_FILES if (directory / name).exists()), None
    )
    if path is None:
        return _Transformer()
    file = decode_file(path, _Transformer)
    if file.do_lower_case:
        raise EngineError(
            f"{path}: do_lower_case is not supported; use a normalizer in tokenizer.json"
        )
    arguments = ("model", "tokenizer", "config")
    refused = [
        *(f"{name}_args" for name in arguments),
        *(f"{name}_kwargs" for name in ("model", "processor", "config")),
        *("query_length", "document_length", "query_expansion"),
    ]
    for name in refused:
        if getattr(file, name):
            raise EngineError(f"{path}: {name} is not supported")
    for part, options in file.processing_kwargs.items():
        if part != "chat_template" and options:
            raise EngineError(f"{path}: processing_kwargs.{part} is not supported")
    return file


def _check_task(directory: Path, transformer: _Transformer, task: str, output: str) -> None:
    """Raise EngineError if the transformer computes something else."""
    if transformer.transformer_task not in (task, _DEFAULT_TASK):
        raise EngineError(
            f"{directory}: transformer_task {transformer.transformer_task!r} does not fit these "
            f"modules, which need {task!r}"
        )
    for name in ("text", "message"):
        modality = transformer.modality_config.get(name)
        if modality is not None and (modality.method, modality.method_output_name) != (
            "forward",
            output,
        ):
            raise EngineError(f"{directory}: modality_config.{name} is not supported")


def _read_model(directory: Path, kind: str) -> _Model:
    """Read config_sentence_transformers.json of a model of a kind."""
    path = directory / _MODEL_FILE
    if not path.exists():
        return _Model()
    file = decode_file(path, _Model)
    if file.model_type not in (None, kind):
        raise EngineError(f"{path}: model_type {file.model_type!r} is not supported here")
    return file


def _find_prompt(directory: Path, model: _Model) -> str:
    name = model.default_prompt_name
    if name is None:
        return ""
    prompts = {"query": "", "document": "", **(model.prompts or {})}
    if name not in prompts:
        raise EngineError(
            f"{directory / _MODEL_FILE}: default_prompt_name {name!r} is not one of its prompts"
        )
    return prompts[name] or ""


def _find_similarity(directory: Path, model: _Model) -> Similarity:
    name = model.similarity_fn_name
    if name is None:
        return Similarity.COSINE
    if name not in list(Similarity):
        raise EngineError(
            f"{directory / _MODEL_FILE}: similarity_fn_name {name!r} is not supported; supported "
            f"are {', '.join(Similarity)}"
        )
    return Similarity(name)


def _read_modes(path: Path, *, has_prompt: bool) -> tuple[Pooling, ...]:
    fields = decode_file(path, dict[str, Any])
    if has_prompt and fields.get("include_prompt") is False:
        raise EngineError(f"{path}: include_prompt false is not supported with a prompt")
    declared = fields.get("pooling_mode")
    if declared is None:
        names = [key for key, value in fields.items() if key.startswith("pooling_mode_") and value]
        unknown = [name for name in names if name not in _POOLING_SWITCHES]
        modes = tuple(mode for name, mode in _POOLING_SWITCHES.items() if name in names)
    else:
        names = [declared] if isinstance(declared, str) else list(declared)
        unknown = [name for name in names if name not in _POOLING_NAMES]
        modes = tuple(_POOLING_NAMES[name] for name in names if name in _POOLING_NAMES)
    if unknown:
        raise EngineError(f"{path}: the pooling {', '.join(unknown)} is not supported")
    return modes or (Pooling.MEAN,)


def _read_step(directory: Path, module: _Module) -> HeadStep:
    path = directory / module.path / "config.json"
    match module.name:
        case "Normalize":
            return UnitLength()
        case "LayerNorm":
            return LayerNormalization(module.path, decode_file(path, _LayerNorm).dimension)
        case "Dense":
            file = decode_file(path, _Dense)
            output = file.module_output_name or file.module_input_name
            for name in (file.module_input_name, output):
                if name != "sentence_embedding":
                    raise EngineError(f"{path}: the feature {name!r} is not supported")
            return Dense(
                module.path,
                file.in_features,
                file.out_features,
                file.bias,
                name_activation(path, file.activation_function),
                file.use_residual,
            )
        case _:
            raise EngineError(f"{directory / _MODULES}: the module {module.name} is not supported")


def _read_logit_score(directory: Path, modules: list[_Module]) -> LogitScore | None:
    names = [module.name for module in modules if module.name not in _IGNORED_MODULES]
    match names:
        case ["Transformer"]:
            return None
        case ["Transformer", "LogitScore"]:
            module = next(module for module in modules if module.name == "LogitScore")
            path = directory / module.path / "config.json"
            file = decode_file(path, _LogitScore)
            if file.module_input_name != "causal_logits":
                raise EngineError(
                    f"{path}: the feature {file.module_input_name!r} is not supported"
                )
            return LogitScore(file.true_token_id, file.false_token_id)
        case _:
            raise EngineError(
                f"{directory / _MODULES}: the modules {', '.join(names) or 'none'} are not "
                f"supported; a model embeds texts with Transformer and Pooling, or scores pairs "
                f"with Transformer, or Transformer and LogitScore"
            )
