"""Builds a served model around an engine, from the metadata in the model's directory
and the settings.

Also reads the details of a model's files without their weights, and describes a loaded
model for the log.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..constraints.bounded import BoundedCompiler
from ..core.control import EngineControl, Trainable
from ..core.engine import Embedder, PrefixCache, TokenEngine
from ..core.errors import EngineError
from ..core.images import ImageProcessor
from ..core.metrics import StatsSource
from ..core.request import Sampling
from ..core.syntax import ReasoningFormat, ToolFormat
from ..engines.batching import (
    BLOCK_SIZE,
    BatchingEngine,
    BlockFiles,
    EngineLimits,
    compute_fingerprint,
)
from ..hub import RepositoryFile, find_gguf_models, format_bytes
from ..parsers import registry, response_template
from ..pipeline.choice import Vocabulary
from ..pipeline.models import ModelDetails, ServedModel, TokenBackend
from ..pipeline.served_model import Adapters
from ..prompts.render import Renderer
from ..prompts.request_templates import RequestTemplates
from ..prompts.template import ChatTemplate, load_template, load_tokenizer_info
from ..prompts.tokenizer import HfTokenizer, load_tokenizer
from ..serving.clock import Clock
from ..settings import GenerationConfig, Settings
from ..isolation.pool import WorkerLimits


def build_engine_limits(settings: Settings) -> EngineLimits:
    return EngineLimits(
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_kv_tokens=settings.kv_cache_tokens,
        enable_prefix_caching=settings.enable_prefix_caching,
        max_num_waiting=settings.max_queued_requests,
        step_timeout=settings.step_timeout,
    )


def build_block_files(settings: Settings, directory: Path, library: str) -> BlockFiles | None:
    """Return the place where an engine stores offloaded KV blocks; None if that is
    disabled.

    library: the distribution that computes the blocks; its version is part of the
        fingerprint.
    """
    if settings.kv_offloading_dir is None:
        return None
    files = [*directory.glob("*.safetensors"), *directory.glob("*.json")]
    name = compute_fingerprint(
        files, library, version(library), settings.dtype, settings.device, str(BLOCK_SIZE)
    )
    return BlockFiles(
        Path(settings.kv_offloading_dir).expanduser() / name, settings.kv_offloading_bytes
    )


def build_token_backend(
    settings: Settings,
    engine: TokenEngine,
    tokenizer: HfTokenizer,
    template: ChatTemplate | None,
    eos: frozenset[int],
    *,
    embedder: Embedder | None = None,
    cache: PrefixCache | None = None,
    vision: ImageProcessor | None = None,
) -> TokenBackend:
    """Build the backend of a token engine.

    template: None for a model without a chat template.

    The other parameters are those of TokenBackend.
    """
    workers = WorkerLimits(seconds=settings.worker_timeout, memory=settings.worker_memory)
    return TokenBackend(
        engine=engine,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        compiler=BoundedCompiler(tokenizer, sorted(eos), worker_limits=workers),
        eos=eos,
        renderer=None if template is None else Renderer(template, tokenizer),
        request_templates=RequestTemplates(workers)
        if settings.trust_request_chat_template
        else None,
        embedder=embedder,
        cache=cache,
        vision=vision,
    )


def build_batching_model(
    settings: Settings,
    clock: Clock,
    directory: Path,
    engine: BatchingEngine,
    *,
    own_name: str,
    embedder: Embedder | None = None,
    vision: ImageProcessor | None = None,
    adapters: Adapters | None = None,
) -> ServedModel:
    """Build a served model around a batching engine. The parameters are those of
    `build_token_model`.
    """
    return build_token_model(
        settings,
        clock,
        directory,
        engine,
        own_name=own_name,
        max_model_len=engine.max_model_len,
        embedder=embedder,
        cache=engine,
        control=engine.control,
        trainable=engine.control,
        vision=vision,
        adapters=adapters,
    )


def build_token_model(
    settings: Settings,
    clock: Clock,
    directory: Path,
    engine: TokenEngine,
    *,
    own_name: str,
    max_model_len: int,
    embedder: Embedder | None = None,
    cache: PrefixCache | None = None,
    monitored: StatsSource | None = None,
    control: EngineControl | None = None,
    trainable: Trainable | None = None,
    vision: ImageProcessor | None = None,
    adapters: Adapters | None = None,
) -> ServedModel:
    """Build a served model around a token engine.

    directory: contains tokenizer.json and the model's metadata.
    own_name: the model's name if the settings do not name it.
    monitored: the source of the engine's statistics.

    The other parameters are those of ServedModel and its backend; None if the engine
    does not support the feature.
    """
    tokenizer = load_tokenizer(directory)
    template = load_chat_template(settings, directory)
    reasoning, tools = resolve_formats(settings, directory, template, tokenizer)
    model_defaults = load_generation_config(directory)
    if vision is not None and vision.placeholder not in tokenizer.control_tokens.names:
        # Otherwise a user could write the image placeholder as text.
        raise ValueError(
            f"{vision.placeholder!r} is not a control token of the tokenizer in {directory}"
        )
    backend = build_token_backend(
        settings,
        engine,
        tokenizer,
        template,
        load_eos_ids(directory),
        embedder=embedder,
        cache=cache,
        vision=vision,
    )
    name, aliases = resolve_served_names(settings, own_name)
    return ServedModel(
        name,
        backend,
        max_model_len,
        int(clock.now()),
        aliases,
        sampling=settings.override_generation_config.merge_into(
            model_defaults.merge_into(Sampling())
        ),
        max_new_tokens=settings.override_generation_config.max_new_tokens
        or model_defaults.max_new_tokens,
        reasoning=reasoning,
        tools=tools,
        stats_source=monitored,
        control=control,
        trainable=trainable,
        adapters=adapters,
        tokenizer_info=load_tokenizer_info(directory, template),
    )


# A model's metadata: names, chat template, formats, end tokens and sampling defaults.


def resolve_served_names(settings: Settings, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the model's name and its aliases. Responses contain the first served name,
    as in vLLM.

    name: the name if the settings do not name the model.
    """
    names = settings.served_model_name or (name,)
    if "*" in names[0] or "?" in names[0]:
        raise ValueError(
            f"the first served model name appears in responses, so it cannot be a pattern: "
            f"{names[0]}"
        )
    return names[0], names[1:]


class _EosConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def load_eos_ids(directory: Path) -> frozenset[int]:
    """Load the end-of-sequence ids: generation_config.json takes precedence over
    config.json, as in transformers.
    """
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        ids = (
            msgspec.json.decode(file.read_bytes(), type=_EosConfig).eos_token_id
            if file.exists()
            else None
        )
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    raise ValueError(f"{directory} has no eos_token_id in generation_config.json or config.json")


def load_generation_config(directory: Path) -> GenerationConfig:
    """Load the model's sampling defaults from generation_config.json, as vLLM does with
    `--generation-config auto`.
    """
    file = directory / "generation_config.json"
    if not file.exists():
        return GenerationConfig()
    raw_config = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    known_fields = {
        name: value
        for name, value in raw_config.items()
        if name in GenerationConfig.__struct_fields__
    }
    try:
        return msgspec.convert(known_fields, GenerationConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"{file}: {error}") from error


def load_chat_template(settings: Settings, directory: Path) -> ChatTemplate | None:
    """Load the configured chat template, or else the model's own."""
    return load_configured_template(settings) or load_template(directory)


def load_configured_template(settings: Settings) -> ChatTemplate | None:
    """Load the configured chat template, which is either a template's source or the
    path of a file.
    """
    source_or_path = settings.chat_template
    if source_or_path is None:
        return None
    is_source = "{{" in source_or_path or "{%" in source_or_path
    return ChatTemplate(
        source_or_path if is_source else Path(source_or_path).read_text(encoding="utf-8")
    )


class _TokenizerConfig(msgspec.Struct):
    response_template: msgspec.Raw = msgspec.Raw(b"null")


def resolve_formats(
    settings: Settings, directory: Path, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """Resolve the reasoning and tool formats: configured, else declared by the model,
    else detected (template).
    """
    special_tokens = tokenizer.special_tokens.keys()
    is_configured = settings.reasoning_parser is not None or settings.tool_call_parser is not None
    config = directory / "tokenizer_config.json"
    if not is_configured and config.exists():
        declared = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig).response_template
        if bytes(declared) != b"null":
            return response_template.load(bytes(declared), special_tokens)
    return detect_formats(settings, template, tokenizer)


def detect_formats(
    settings: Settings, template: ChatTemplate | None, tokenizer: HfTokenizer
) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """Resolve the reasoning and tool formats: configured, else detected from the chat
    template.
    """
    special_tokens = tokenizer.special_tokens.keys()
    detected = (
        (None, None)
        if template is None
        else registry.detect_formats(template.source, special_tokens)
    )
    reasoning = settings.reasoning_parser or detected[0]
    tools = settings.tool_call_parser or detected[1]
    return (
        None if reasoning is None else registry.find_reasoning_format(reasoning, special_tokens),
        None if tools is None else registry.find_tool_format(tools, special_tokens),
    )


# Details of a model's files, from their headers.

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format: https://huggingface.co/docs/safetensors."""
_KV_BYTES = 2
"""Bytes of a number in the KV cache, in float16 or bfloat16."""

_FILE_TYPES = {
    **{
        1: "F16",
        2: "Q4_0",
        3: "Q4_1",
        7: "Q8_0",
        8: "Q5_0",
        9: "Q5_1",
        10: "Q2_K",
        11: "Q3_K_S",
        12: "Q3_K_M",
    },
    **{
        13: "Q3_K_L",
        14: "Q4_K_S",
        15: "Q4_K_M",
        16: "Q5_K_S",
        17: "Q5_K_M",
        18: "Q6_K",
        25: "IQ4_NL",
    },
    **{30: "IQ4_XS", 32: "BF16", 38: "MXFP4"},
}
"""llama.cpp's `llama_ftype` of common quantizations, for files whose name does not
state it.
"""


class _Quantization(msgspec.Struct):
    quant_method: str | None = None
    bits: int | None = None


class _Text(msgspec.Struct):
    max_position_embeddings: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None


class _Config(_Text):
    model_type: str | None = None
    quantization_config: _Quantization | None = None
    quantization: _Quantization | None = None
    text_config: _Text | None = None


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]


def read_details(path: Path) -> ModelDetails:
    """Read the details of a model directory or a GGUF file. Details that cannot be read
    are None: they are optional.
    """
    if path.suffix == ".gguf":
        return _read_gguf(path)
    parameters = 0
    dtypes = Counter[str]()
    files = sorted(path.glob("*.safetensors"))
    for file in files:
        try:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                # The length comes from the file: a damaged file must not cause a huge
                # allocation.
                header_bytes = stream.read(length) if length <= MAX_HEADER_BYTES else b"{}"
            header = msgspec.json.decode(header_bytes, type=dict[str, msgspec.Raw])
            tensors = [
                msgspec.json.decode(raw, type=_Tensor)
                for name, raw in header.items()
                if name != "__metadata__"
            ]
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for tensor in tensors:
            parameters += prod(tensor.shape)
            dtypes[tensor.dtype] += prod(tensor.shape)
    try:
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        config = _Config()
    # Multimodal models describe their language model in a separate object.
    text = config.text_config or config
    heads = text.num_attention_heads
    hidden = text.hidden_size
    head_dim = text.head_dim or (hidden // heads if hidden and heads else None)
    kv_bytes = None
    # There is no estimate for architectures whose fields have other names.
    if (
        text.num_hidden_layers is not None
        and head_dim is not None
        and (kv_heads := text.num_key_value_heads or heads)
    ):
        kv_bytes = 2 * text.num_hidden_layers * kv_heads * head_dim * _KV_BYTES
    return ModelDetails(
        source=str(path),
        format="safetensors" if files else None,
        family=config.model_type,
        quantization=_describe_quantization(config),
        dtype=dtypes.most_common(1)[0][0].lower() if dtypes else None,
        size=sum(file.stat().st_size for file in files) or None,
        # Packed (quantized) tensors have fewer elements than the model has parameters.
        parameters=parameters if parameters and _describe_quantization(config) is None else None,
        trained_length=text.max_position_embeddings,
        kv_bytes_per_token=kv_bytes,
    )


def _describe_quantization(config: _Config) -> str | None:
    quantization = config.quantization_config or config.quantization
    if quantization is None:
        return None
    bits = "" if quantization.bits is None else f"{quantization.bits}-bit"
    return " ".join(word for word in (quantization.quant_method, bits) if word) or None


def _read_gguf(path: Path) -> ModelDetails:
    from ..engines.llamacpp.gguf import (  # noqa: PLC0415 - numpy takes long to import
        compute_bytes_per_token,
        count_parameters,
        find_parts,
        read_metadata,
    )

    size = sum(part.stat().st_size for part in find_parts(path) if part.exists())
    models = find_gguf_models([RepositoryFile(path.name, size)])
    named = models[0].quantization if models else ""
    details = ModelDetails(source=str(path), format="gguf", quantization=named or None, size=size)
    try:
        metadata = read_metadata(path)
        parameters = count_parameters(path)
    except EngineError:
        return details
    return replace(
        details,
        family=metadata.architecture,
        quantization=named or _FILE_TYPES.get(metadata.get_number("general.file_type") or 0),
        parameters=parameters,
        trained_length=metadata.get_number(metadata.build_architecture_key("context_length")),
        kv_bytes_per_token=compute_bytes_per_token(metadata),
    )


# The log lines about a loaded model.


@runtime_checkable
class HasKvCapacity(Protocol):
    """An engine that knows the capacity of its KV cache."""

    @property
    def num_kv_tokens(self) -> int: ...


def describe_loaded(settings: Settings, model: ServedModel) -> list[str]:
    """Return log lines about a loaded model: its engine, size, context and formats."""
    details = model.details
    engine = model.backend.engine
    if details.engine is None:
        return []
    weights = [
        f"engine {details.engine} ({details.reason})",
        f"device {_find_device(settings, details)}",
    ]
    if details.quantization is not None:
        weights.append(f"quantization {details.quantization}")
    if details.dtype is not None:
        weights.append(f"weights in {details.dtype}")
    if details.engine in ("tiny", "encoder"):
        weights.append("computed in float32")
    elif settings.dtype != "auto":
        weights.append(f"computed in {settings.dtype}")
    if details.parameters is not None:
        weights.append(f"{details.parameters:,} parameters")
    if details.size is not None:
        weights.append(format_bytes(details.size))
    if details.revision is not None:
        weights.append(f"commit {details.revision}")
    context = f"context {model.max_model_len} tokens"
    if isinstance(engine, HasKvCapacity):
        size = details.kv_bytes_per_token and engine.num_kv_tokens * details.kv_bytes_per_token
        memory = "" if not size else f" ({format_bytes(size)} in 16 bits when full)"
        context += f", KV cache of {engine.num_kv_tokens} tokens{memory}"
    return [", ".join(weights), context, *_describe_formats(settings, model)]


def _find_device(settings: Settings, details: ModelDetails) -> str:
    match details.engine:
        case "tiny" | "encoder":
            return "cpu"
        case "transformers" if settings.device == "auto":
            # The engine has imported torch. An import here would take seconds in a
            # process that has not.
            torch: Any = sys.modules["torch"]
            return (
                "cuda"
                if torch.cuda.is_available()
                else "mps"
                if torch.backends.mps.is_available()
                else "cpu"
            )
        case "transformers":
            return settings.device
        case "llamacpp" if settings.gpu_layers == 0:
            return "cpu"
        case "llamacpp":
            return (
                "chosen by llama.cpp"
                if settings.gpu_layers < 0
                else f"gpu for {settings.gpu_layers} layers"
            )
        case _:
            return "chosen by the library"


def _describe_formats(settings: Settings, model: ServedModel) -> Iterator[str]:
    if not isinstance(model.backend, TokenBackend):
        return
    if model.backend.renderer is None:
        yield (
            "no chat template: only raw prompts are answered; set --chat-template for conversations"
        )
        return
    template = None if model.tokenizer_info is None else model.tokenizer_info.chat_template
    special_tokens = model.backend.tokenizer.special_tokens.keys()
    detected = (
        (None, None) if template is None else registry.detect_formats(template, special_tokens)
    )
    declared = "declared by the model"
    reasoning = settings.reasoning_parser or detected[0] or declared
    tools = settings.tool_call_parser or detected[1] or declared
    yield ", ".join(
        (
            "chat template found",
            "no tool call parser detected: calls that the model makes by itself stay text (see "
            "--tool-call-parser)"
            if model.tools is None
            else f"tool call parser {tools}",
            "no reasoning parser detected: reasoning stays in the text (see --reasoning-parser)"
            if model.reasoning is None
            else f"reasoning parser {reasoning}",
        )
    )
