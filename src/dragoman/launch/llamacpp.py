"""`llamacpp:FILE` and `FILE.gguf`: a model in a GGUF file, with the vocabulary and the template that it brings."""

from __future__ import annotations

import logging
from pathlib import Path

from ..core.errors import EngineError
from ..core.request import Sampling
from ..engines import llamacpp
from ..engines.llamacpp import LlamaCppEmbedder, LlamaCppOptions, LlamaCppScorer, Metadata, Projector, Token
from ..pipeline.models import EmbedderBackend, ScorerBackend, ServedModel
from ..prompts.gguf import GgufVocabulary, tokenizer_json
from ..prompts.template import ChatTemplate, TokenizerInfo
from ..prompts.tokenizer import HfTokenizer, TokenizerError
from ..serving.clock import Clock
from ..settings import Settings
from .around import limits, token_backend
from .declared import given_template, guessed_formats, served_names

log = logging.getLogger(__name__)


def build_llamacpp(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: a GGUF file, the first one of several."""
    metadata = llamacpp.read_metadata(Path(path))
    options = LlamaCppOptions(settings.dtype, settings.gpu_layers, settings.threads)
    name, aliases = served_names(settings, Path(path).stem)
    if llamacpp.pooling_type(metadata) is not None:
        backend, limit = _reading(settings, metadata, options)
        return ServedModel(name, backend, limit, int(clock.now()), aliases, tokenizer_info=_info(metadata))
    tokenizer = gguf_tokenizer(metadata)
    template = given_template(settings) or _own_template(metadata)
    projector = _projector(settings, metadata, tokenizer, template)
    loaded = llamacpp.load(metadata, tokenizer, limits(settings), options, projector=projector)
    engine = loaded.engine
    reasoning, tools = guessed_formats(settings, template, tokenizer)
    backend = token_backend(
        settings, engine, tokenizer, template, llamacpp.ends(metadata), cache=engine, vision=loaded.vision
    )
    return ServedModel(
        name,
        backend,
        engine.max_model_len,
        int(clock.now()),
        aliases,
        sampling=settings.override_generation_config.over(Sampling()),
        max_new_tokens=settings.override_generation_config.max_new_tokens,
        reasoning=reasoning,
        tools=tools,
        tokenizer_info=_info(metadata, template),
    )


def _projector(
    settings: Settings, metadata: Metadata, tokenizer: HfTokenizer, template: ChatTemplate | None
) -> Projector | None:
    """Raises EngineError for a file that is none, or where no token can stand for an image."""
    file = _projector_file(settings, metadata.path)
    if file is None:
        return None
    if template is None:
        raise EngineError(f"{file}: the model has no chat template, so it cannot accept images; use `--mmproj none`")
    taken = {*template.traits.literals, *_special_tokens(metadata).values()}
    names = sorted(tokenizer.controls.names, key=lambda name: ("image" not in name.lower(), name))
    free = [name for name in names if name not in template.source and name not in taken]
    ids = [(name, tokenizer.encode(name, special=True)) for name in free]
    token = next((Token(name, found[0]) for name, found in ids if len(found) == 1), None)
    if token is None:
        raise EngineError(f"{metadata.path} has no control token to represent an image; use `--mmproj none`")
    return Projector(llamacpp.read_metadata(file), token)


def _projector_file(settings: Settings, model: Path) -> Path | None:
    if settings.mmproj is not None:
        return None if settings.mmproj == "none" else Path(settings.mmproj)
    beside = sorted(file for file in model.parent.glob("mmproj*.gguf") if file != model)
    if len(beside) > 1:
        log.warning("%s: several mmproj files found next to it; select one with --mmproj", model)
    return beside[0] if len(beside) == 1 else None


def _reading(
    settings: Settings, metadata: Metadata, options: LlamaCppOptions
) -> tuple[EmbedderBackend | ScorerBackend, int]:
    """What reads, and the tokens that an input may have."""
    tokenizer = gguf_tokenizer(metadata, writes=False)
    engine = llamacpp.load_reader(
        metadata,
        tokenizer,
        max_model_len=settings.max_model_len,
        max_waiting=settings.max_queued_requests,
        options=options,
    )
    match engine:
        case LlamaCppEmbedder():
            return EmbedderBackend(engine, tokenizer), engine.max_tokens
        case LlamaCppScorer():
            return ScorerBackend(engine, tokenizer), engine.max_tokens


def gguf_tokenizer(metadata: Metadata, *, writes: bool = True) -> HfTokenizer:
    """writes: as in HfTokenizer. Raises TokenizerError, which names the file."""
    try:
        return HfTokenizer(tokenizer_json(_vocabulary(metadata)), writes=writes)
    except TokenizerError as error:
        raise TokenizerError(f"{metadata.path}: {error}") from error


def _vocabulary(metadata: Metadata) -> GgufVocabulary:
    def key(name: str) -> str:
        return f"tokenizer.ggml.{name}"

    space = metadata.flag(key("add_space_prefix"))
    return GgufVocabulary(
        model=metadata.text(key("model")) or "none",
        tokens=metadata.texts(key("tokens")),
        pre=metadata.text(key("pre")) or "default",
        kinds=tuple(int(kind) for kind in metadata.numbers(key("token_type"))),
        scores=metadata.numbers(key("scores")),
        merges=metadata.texts(key("merges")),
        bos=metadata.number(key("bos_token_id")),
        eos=metadata.number(key("eos_token_id")),
        unknown=metadata.number(key("unknown_token_id")),
        separator=metadata.number(key("seperator_token_id")),  # the key is spelled so
        add_bos=metadata.flag(key("add_bos_token")),
        add_eos=metadata.flag(key("add_eos_token")),
        add_space_prefix=space is not False,
    )


def _own_template(metadata: Metadata) -> ChatTemplate | None:
    source = metadata.text("tokenizer.chat_template")
    return None if source is None else ChatTemplate(source, _special_tokens(metadata))


def _info(metadata: Metadata, template: ChatTemplate | None = None) -> TokenizerInfo:
    source = None if template is None else template.source
    return TokenizerInfo("PreTrainedTokenizerFast", **_special_tokens(metadata), chat_template=source)


def _special_tokens(metadata: Metadata) -> dict[str, str]:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    ids = {
        f"{name}_token": metadata.number(f"tokenizer.ggml.{told}_token_id")
        for name, told in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    return {name: tokens[id] for name, id in ids.items() if id is not None and 0 <= id < len(tokens)}
