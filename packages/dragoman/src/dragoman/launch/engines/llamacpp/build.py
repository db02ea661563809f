"""`llamacpp:FILE` or `FILE.gguf`: a model in a GGUF file."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ....core.engine import PrefixCache
from ....core.engine_interfaces import EngineInterfaces
from ....core.errors import EngineError
from ....core.prompt_images import ImageProcessor
from ....core.token_engine import TokenEngine
from ....engines import llamacpp
from ....engines.llamacpp import (
    GgufMetadata,
    ImageToken,
    LlamaCppEmbedder,
    LlamaCppOptions,
    LlamaCppScorer,
    Projector,
)
from ....pipeline.engine_backends import EmbedderBackend, ScorerBackend
from ....pipeline.served_model import ServedModel
from ....prompts.chat_template import ChatTemplate
from ....prompts.gguf_tokenizer import GgufVocabulary, build_tokenizer_parts
from ....prompts.hf_tokenizer import HfTokenizer
from ....prompts.tokenizer_file import TokenizerError
from ....prompts.tokenizer_info import TokenizerInfo
from ....serving.clock import Clock
from ....settings import Settings
from ...front_end import FrontEnd
from ...model_builder import build_defaults, build_engine_limits, build_token_backend
from ...model_metadata import detect_formats, load_configured_template, resolve_served_names
from .settings import LlamaCppSettings

log = logging.getLogger(__name__)


def build_llamacpp(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build a model that llama.cpp runs.

    path: a GGUF file; the first one of a split model.
    """
    metadata = llamacpp.read_metadata(Path(path))
    own = settings.of(LlamaCppSettings)
    options = LlamaCppOptions(settings.dtype, own.gpu_layers, settings.threads, own.deterministic)
    if llamacpp.read_pooling_type(metadata) is not None:
        tokenizer = build_gguf_tokenizer(metadata, writes=False)
        engine = llamacpp.load_pooling_engine(
            metadata,
            tokenizer,
            max_model_len=settings.max_model_len,
            max_waiting=settings.max_queued_requests,
            options=options,
        )
        match engine:
            case LlamaCppEmbedder():
                backend = EmbedderBackend(engine, tokenizer)
            case LlamaCppScorer():
                backend = ScorerBackend(engine, tokenizer)
        name, aliases = resolve_served_names(settings, metadata.path.stem)
        info = _build_tokenizer_info(metadata)
        return ServedModel(
            name, backend, engine.max_tokens, int(clock.now()), aliases, tokenizer_info=info
        )
    parts = load_gguf_parts(settings, metadata)
    projector = _find_projector(settings, metadata, parts.tokenizer, parts.template)
    loaded = llamacpp.load(
        metadata, parts.tokenizer, build_engine_limits(settings), options, projector=projector
    )
    engine = loaded.engine
    length = loaded.engine.max_model_len
    return build_gguf_model(
        settings, clock, parts, engine, max_model_len=length, cache=engine, vision=loaded.vision
    )


@dataclass(frozen=True, slots=True)
class GgufParts:
    """The contents of a GGUF file other than its weights.

    template: the chat template; None if there is none.
    """

    metadata: GgufMetadata
    tokenizer: HfTokenizer
    template: ChatTemplate | None


def load_gguf_parts(settings: Settings, metadata: GgufMetadata) -> GgufParts:
    """Load a GGUF file's tokenizer and chat template. Raises EngineError, OSError,
    ValueError.
    """
    template = load_configured_template(settings)
    embedded = metadata.get_text("tokenizer.chat_template")
    if template is None and embedded is not None:
        template = ChatTemplate(embedded, _read_special_tokens(metadata))
    return GgufParts(metadata, build_gguf_tokenizer(metadata), template)


def build_gguf_model(
    settings: Settings,
    clock: Clock,
    parts: GgufParts,
    engine: TokenEngine,
    *,
    max_model_len: int,
    cache: PrefixCache | None,
    vision: ImageProcessor | None = None,
) -> ServedModel:
    """Build a served model around an engine that runs the GGUF file."""
    metadata = parts.metadata
    tokenizer = parts.tokenizer
    template = parts.template
    name, aliases = resolve_served_names(settings, metadata.path.stem)
    formats = detect_formats(settings, template, tokenizer)
    backend = build_token_backend(
        settings,
        engine,
        tokenizer,
        template,
        llamacpp.find_end_tokens(metadata),
        vision=vision,
    )
    return ServedModel(
        name,
        backend,
        max_model_len,
        int(clock.now()),
        aliases,
        defaults=build_defaults(settings),
        formats=formats,
        tokenizer_info=_build_tokenizer_info(metadata, template),
        interfaces=EngineInterfaces(cache=cache),
    )


def build_gguf_front_end(
    settings: Settings, clock: Clock, path: Path, front_end: FrontEnd
) -> ServedModel:
    """Build the model of a process that shares the engine with others."""
    client = front_end.client
    return build_gguf_model(
        settings,
        clock,
        load_gguf_parts(settings, llamacpp.read_metadata(path)),
        client,
        max_model_len=client.max_model_len,
        cache=front_end.cache,
    )


def measure_memory(settings: Settings, path: Path) -> int:
    """Return the bytes of main memory that the KV cache takes."""
    try:
        return llamacpp.measure_kv_cache(
            llamacpp.read_metadata(path), build_engine_limits(settings)
        )
    except EngineError:
        # A damaged file is reported when it is loaded.
        return 0


def _find_projector(
    settings: Settings,
    metadata: GgufMetadata,
    tokenizer: HfTokenizer,
    template: ChatTemplate | None,
) -> Projector | None:
    """Find the multimodal projector and the token that represents an image.

    Raises:
        EngineError: there is a projector, but no chat template or no usable image
            token.
    """
    mmproj = settings.of(LlamaCppSettings).mmproj
    if mmproj is None:
        files = sorted(
            file for file in metadata.path.parent.glob("mmproj*.gguf") if file != metadata.path
        )
        if len(files) > 1:
            log.warning(
                "%s: several mmproj files found next to it; select one with --mmproj", metadata.path
            )
    else:
        files = [] if mmproj == "none" else [Path(mmproj)]
    if len(files) != 1:
        return None
    file = files[0]
    if template is None:
        raise EngineError(
            f"{file}: the model has no chat template, so it cannot accept images; use `--mmproj "
            f"none`"
        )
    reserved = {*template.features.literals, *_read_special_tokens(metadata).values()}
    names = sorted(
        tokenizer.control_tokens.names, key=lambda name: ("image" not in name.lower(), name)
    )
    # Only tokens that the template never writes: text of a prompt cannot be taken for
    # an image.
    candidates = [name for name in names if name not in template.source and name not in reserved]
    ids = [(name, tokenizer.encode(name, special=True)) for name in candidates]
    token = next(
        (ImageToken(name, token_ids[0]) for name, token_ids in ids if len(token_ids) == 1), None
    )
    if token is None:
        raise EngineError(
            f"{metadata.path} has no control token to represent an image; use `--mmproj none`"
        )
    return Projector(llamacpp.read_metadata(file), token)


def build_gguf_tokenizer(metadata: GgufMetadata, *, writes: bool = True) -> HfTokenizer:
    """Build the tokenizer of a GGUF file.

    writes: whether the model generates text; `generates` of HfTokenizer.

    Raises:
        TokenizerError: the vocabulary is unsupported; the message names the file.
    """
    key = "tokenizer.ggml."
    vocabulary = GgufVocabulary(
        model=metadata.get_text(f"{key}model") or "none",
        tokens=tuple(metadata.get_texts(f"{key}tokens")),
        pre=metadata.get_text(f"{key}pre") or "default",
        kinds=tuple(map(int, metadata.get_numbers(f"{key}token_type"))),
        scores=metadata.get_numbers(f"{key}scores"),
        merges=tuple(metadata.get_texts(f"{key}merges")),
        bos=metadata.get_number(f"{key}bos_token_id"),
        eos=metadata.get_number(f"{key}eos_token_id"),
        unknown=metadata.get_number(f"{key}unknown_token_id"),
        separator=metadata.get_number(f"{key}seperator_token_id"),  # the misspelling is GGUF's
        add_bos=metadata.get_flag(f"{key}add_bos_token"),
        add_eos=metadata.get_flag(f"{key}add_eos_token"),
        add_space_prefix=metadata.get_flag(f"{key}add_space_prefix") is not False,
    )
    try:
        return HfTokenizer(build_tokenizer_parts(vocabulary), generates=writes)
    except TokenizerError as error:
        raise TokenizerError(f"{metadata.path}: {error}") from error


def _build_tokenizer_info(
    metadata: GgufMetadata, template: ChatTemplate | None = None
) -> TokenizerInfo:
    source = None if template is None else template.source
    return TokenizerInfo(
        "PreTrainedTokenizerFast", **_read_special_tokens(metadata), chat_template=source
    )


def _read_special_tokens(metadata: GgufMetadata) -> dict[str, str]:
    tokens = metadata.get_texts("tokenizer.ggml.tokens")
    ids = {
        f"{name}_token": metadata.get_number(f"tokenizer.ggml.{gguf_name}_token_id")
        for name, gguf_name in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        )
    }
    return {
        name: tokens[id] for name, id in ids.items() if id is not None and 0 <= id < len(tokens)
    }
