"""Builds the configured models: selects the engine for MODEL, checks the model, and
builds it now or on demand.

Engine modules are imported only when their engine is selected.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from ..core.errors import DragomanError, EngineError
from ..engines.hardware import MAX_TORCH_KV_BYTES, compute_kv_budget
from ..pipeline.lora_adapters import Adapters, read_adapter
from ..pipeline.model_registry import (
    EmbedderBackend,
    EventBackend,
    LoadProgress,
    Models,
    ModelSlot,
    ModelSpec,
    ScorerBackend,
    ServedModel,
    TokenBackend,
)
from ..pipeline.request_queue import RequestQueue
from ..prompts.hf_tokenizer import load_tokenizer
from ..prompts.tokenizer_info import load_tokenizer_info
from ..serving.clock import Clock
from ..settings import (
    ModelEntry,
    Settings,
    SettingsError,
    describe_unsupported,
    find_changed_settings,
)
from .engine_choice import choose_directory_engine, detect_engine
from .hub_models import (
    PreparedModel,
    build_prepared,
    download_prepared,
    prepare_model,
    resolve_paths,
)
from .hub_reference import find_reference
from .loaded_model_log import describe_loaded
from .local_models import check_directory, check_local_model, find_model_name
from .model_builder import build_batching_model, build_block_files, build_engine_limits
from .model_details import read_details
from .model_metadata import load_configured_template, resolve_served_names

log = logging.getLogger(__name__)

_OLLAMA_NAME = re.compile(r"[a-z-]+\d[a-z\d.-]*")
_OLLAMA_TAG = re.compile(r"latest$|\d+(\.\d+)?[bm]\b")
"""Names such as `llama3.2`, `qwen3:8b` and `mistral:latest` are those of Ollama:
https://ollama.com/library.
"""

ENGINES = "dragoman.engines"
"""The entry point group in which packages register engines."""
DEFAULT_SLOTS = 256
"""Number of sequences that an engine is assumed to run at once if `max_num_seqs` is not
set.
"""
_DIRECTORY_ENGINES = ("tiny", "transformers", "mlx", "encoder", "llamacpp")
_ENGINES_WITH_DIRECTORY = ("transformers", "vllm", "mlx", "encoder", "tiny")
_ENGINES = (
    "tiny",
    "sim",
    "scripted",
    "transformers",
    "vllm",
    "mlx",
    "encoder",
    "llamacpp",
    "python",
)


def build_models(settings: Settings, clock: Clock, *, in_background: bool = False) -> Models:
    """Build all configured models.

    in_background: a model in local files is only checked here, and loaded when `Models`
        starts, like a hub's model.

    Raises:
        SettingsError: MODEL or one of its options is invalid.
    """
    if not settings.models.entries:
        prepared = _prepare_or_raise(settings)
        if prepared is None:
            return Models([_build_pinned(settings, clock, in_background=in_background)])
        return Models([_build_hub_spec(ModelEntry(prepared.name, pinned=True), prepared, clock)])
    models = [
        _build_entry(entry, settings, clock, in_background=in_background)
        for entry in settings.models.entries
    ]
    return Models(models, memory=settings.model_memory_limit)


def build_models_in_background(settings: Settings, clock: Clock) -> Models:
    """Build all configured models for a server that listens while they are loaded.
    Raises as `build_models`.
    """
    return build_models(settings, clock, in_background=True)


def build_changed_models(
    models: Models, old: Settings, new: Settings, clock: Clock
) -> list[ModelSlot | ModelSpec] | None:
    """Return the models of new settings: slots of unchanged entries, and specs of all
    others; None without changes.

    Blocking: it may send requests to a hub.

    Raises: SettingsError.
    """
    if new.models == old.models:
        return None
    if not old.models.entries or not new.models.entries:
        raise SettingsError("models: changing between one model and several requires a restart")
    former = {entry.name: entry for entry in old.models.entries}
    slots = {slot.name: slot for slot in models.slots}
    served: list[ModelSlot | ModelSpec] = []
    for entry in new.models.entries:
        slot = slots.get(entry.name)
        # The slot keeps its engine: a reload of the settings must not interrupt running
        # requests.
        if slot is not None and former.get(entry.name) == entry:
            served.append(slot)
        else:
            # Loaded in the background, even if it is pinned: the server keeps serving
            # other requests meanwhile.
            spec = _build_entry(
                msgspec.structs.replace(entry, pinned=False), new, clock, in_background=False
            )
            assert isinstance(spec, ModelSpec)
            is_eager = entry.pinned
            served.append(replace(spec, is_eager=is_eager, ttl=None if is_eager else spec.ttl))
    return served


def warn_unsupported(settings: Settings) -> None:
    """Warn about settings that no configured engine supports.

    Raises:
        SettingsError: instead of a warning, with `--strict`.
    """
    entries = settings.models.entries
    kinds = [_parse_kind(settings.for_entry(entry).model) for entry in entries] or [
        _parse_kind(settings.model)
    ]
    _warn_unsupported_names(settings, find_changed_settings(settings), *kinds)
    for entry, kind in zip(entries, kinds, strict=False):
        _warn_unsupported_names(settings, dict(entry.overrides), kind)
    for instance in settings.instances.items:
        _warn_unsupported_names(settings, dict(instance.overrides), *kinds)


def _parse_kind(model: str) -> str:
    try:
        return parse_model(model)[0]
    except ValueError as error:
        raise SettingsError(f"cannot serve {model}: {error}") from error


def _warn_unsupported_names(settings: Settings, names: Iterable[str], *kinds: str) -> None:
    for warning in describe_unsupported(names, *kinds):
        if settings.strict:
            raise SettingsError(warning)
        log.warning(warning)


def _build_entry(
    entry: ModelEntry, settings: Settings, clock: Clock, *, in_background: bool
) -> ServedModel | ModelSpec:
    """Build a pinned model; only check other models, which are loaded on demand."""
    entry_settings = settings.for_entry(entry)
    try:
        check_model(entry_settings.model)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(
            f"models: {entry.name}: cannot serve {entry_settings.model}: {format_error(error)}"
        ) from error
    prepared = _prepare_or_raise(entry_settings, f"models: {entry.name}: ")
    if entry.pinned and prepared is None:
        return _build_pinned(entry_settings, clock, in_background=in_background)
    if entry.memory is not None:
        memory = entry.memory
    else:
        memory = measure_memory(entry_settings) if prepared is None else prepared.plan.weights_size
    if settings.model_memory_limit is not None and memory > settings.model_memory_limit:
        raise SettingsError(
            f"models: {entry.name}: needs {memory} bytes for weights and KV cache, more than "
            f"--model-memory-limit"
        )
    if prepared is not None:
        return _build_hub_spec(entry, prepared, clock, memory)
    return ModelSpec(
        entry.name,
        lambda: build(entry_settings, clock),
        int(clock.now()),
        entry.aliases,
        entry.ttl,
        memory,
    )


def _prepare_or_raise(settings: Settings, place: str = "") -> PreparedModel | None:
    """Choose the files and the engine of a model of a hub; None for any other model.

    place: prefix of error messages.

    Raises: SettingsError.
    """
    try:
        parsed = find_reference(settings.model, settings.revision)
        if parsed is None:
            if settings.revision is not None:
                raise ValueError("--revision is for models of a hub")
            return None
        prepared = prepare_model(settings, *parsed)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(
            f"{place}cannot serve {settings.model}: {format_error(error)}"
        ) from error
    _warn_unsupported_names(settings, find_changed_settings(settings), prepared.choice.engine)
    return prepared


def _build_hub_spec(
    entry: ModelEntry, prepared: PreparedModel, clock: Clock, memory: int = 0
) -> ModelSpec:
    """Build the spec of a model of a hub. A pinned one is downloaded and loaded in the
    background from the start.
    """
    progress = LoadProgress(phase="downloading" if prepared.plan.find_missing() else "loading")
    names = prepared.settings.served_model_name

    def load() -> ServedModel:
        return build_prepared(prepared, progress, lambda settings: build(settings, clock))

    return ModelSpec(
        names[0],
        (lambda: _build_for_good(load)) if entry.pinned else load,
        int(clock.now()),
        names[1:],
        None if entry.pinned else entry.ttl,
        0 if entry.pinned else memory,
        lambda: download_prepared(prepared, progress),
        progress,
        is_eager=entry.pinned,
        revision=prepared.plan.commit,
        adapters=tuple(read_adapter(text).name for text in prepared.settings.lora_modules),
    )


class _TorchShape(msgspec.Struct):
    """The fields of config.json that determine the size of the KV cache."""

    num_hidden_layers: int = 0
    num_attention_heads: int = 1
    num_key_value_heads: int | None = None
    hidden_size: int = 0
    head_dim: int | None = None
    dtype: str | None = None
    torch_dtype: str | None = None

    def compute_bytes_per_token(self) -> int:
        heads = self.num_key_value_heads or self.num_attention_heads
        width = self.head_dim or self.hidden_size // self.num_attention_heads
        item_size = 4 if (self.dtype or self.torch_dtype or "float32") == "float32" else 2
        return 2 * self.num_hidden_layers * heads * width * item_size


def measure_memory(settings: Settings) -> int:
    """Return the bytes of a model's weights and of the KV cache that its engine may
    allocate in main memory.
    """
    kind, path = parse_model(settings.model)
    kv_bytes = 0
    if kind == "llamacpp" and Path(path).is_file():
        from ..engines.llamacpp import measure_kv_cache, read_metadata  # noqa: PLC0415 - as below

        # A damaged file is reported when it is loaded.
        with suppress(EngineError):
            kv_bytes = measure_kv_cache(read_metadata(Path(path)), build_engine_limits(settings))
    elif kind == "transformers" and settings.device in ("auto", "cpu"):
        kv_bytes = compute_kv_budget(MAX_TORCH_KV_BYTES)
        if settings.kv_cache_tokens is not None:
            shape = msgspec.json.decode((Path(path) / "config.json").read_bytes(), type=_TorchShape)
            kv_bytes = settings.kv_cache_tokens * shape.compute_bytes_per_token()
    return measure_weights(settings.model) + kv_bytes


def measure_weights(model: str) -> int:
    """Return the bytes of the weights in a model's directory or file; 0 if there are
    none.

    model: a path, with or without an engine's prefix.
    """
    path = next(
        (Path(text) for text in (model, model.partition(":")[2]) if text and Path(text).exists()),
        None,
    )
    if path is None:
        return 0
    if path.is_file():
        from ..engines.llamacpp import find_parts  # noqa: PLC0415 - as below

        files = [part for part in find_parts(path) if part.exists()]
    else:
        files = [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)


def _build_pinned(
    settings: Settings, clock: Clock, *, in_background: bool
) -> ServedModel | ModelSpec:
    """Build a model that stays loaded; or only check it, if it is in local files and
    loaded in the background.

    Raises: SettingsError.
    """
    try:
        check(settings)
        name = find_model_name(*parse_model(settings.model)) if in_background else None
        if name is None:
            return _build_checked(settings, clock)
        # Loaded early only to report a wrong path at once: the build needs the template
        # last.
        load_configured_template(settings)
        names = resolve_served_names(settings, name)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(f"cannot serve {settings.model}: {format_error(error)}") from error
    named = msgspec.structs.replace(settings, served_model_name=(names[0], *names[1]))
    adapters = tuple(read_adapter(text).name for text in settings.lora_modules)
    return ModelSpec(
        names[0],
        lambda: _build_for_good(lambda: _build_checked(named, clock)),
        int(clock.now()),
        names[1],
        is_eager=True,
        adapters=adapters,
    )


def _build_for_good(build_model: Callable[[], ServedModel]) -> ServedModel:
    """Build a model that is never unloaded, and exclude its objects and its libraries'
    from garbage collection.
    """
    model = build_model()
    gc.freeze()
    return model


def format_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def check_model(model: str) -> None:
    """Check MODEL without loading an engine.

    Raises:
        ValueError: MODEL names no known engine, or its path does not exist.
    """
    if find_reference(model) is not None:
        return
    kind, rest = parse_model(model)
    # An upstream may start later than this server, and a Python factory can only be
    # checked by calling it.
    if kind in ("upstream", "python") or model == "tiny" or is_installed(kind):
        return
    if kind == "sim":
        if rest:
            from dragoman_sim.engine.profile import load  # noqa: PLC0415 - numpy takes long to import

            load(rest)
    elif kind in ("scripted", "llamacpp"):
        if rest and Path(rest).is_dir():
            raise ValueError(f"{rest} is a directory; name the file in it")
        if rest and not Path(rest).is_file():
            raise ValueError(f"{rest} does not exist")
    elif kind in _ENGINES_WITH_DIRECTORY:
        if not rest:
            raise ValueError(f"`{kind}` needs a model: {kind}:DIRECTORY")
        check_directory(rest)
    elif "/" in kind or Path(model).exists():
        check_directory(model)
    else:
        raise ValueError(_build_unknown_message(kind, rest))


def is_installed(engine: str) -> bool:
    """Whether an installed package registers an engine of this name."""
    return bool(entry_points(group=ENGINES, name=engine))


def _build_unknown_message(kind: str, rest: str) -> str:
    if _OLLAMA_NAME.fullmatch(kind) or _OLLAMA_TAG.match(rest):
        name = f"{kind}:{rest}" if rest else kind
        return (
            f"unknown engine or model `{name}`; names of Ollama's library are not names of the "
            f"hub: find the model at "
            "https://huggingface.co/models and serve it as `org/name`"
        )
    matches = get_close_matches(kind, _ENGINES, n=1)
    if not matches:
        return (
            f"unknown engine or model `{kind}`; use `tiny`, `sim`, `scripted`, a model of the hub "
            f"(`org/name`), a "
            "model directory, a GGUF file, a URL, or ENGINE:DIRECTORY"
        )
    rest = rest or (
        "DIRECTORY" if matches[0] in _ENGINES_WITH_DIRECTORY and matches[0] != "tiny" else ""
    )
    return (
        f"unknown engine or model `{kind}`; did you mean `{matches[0]}{':' if rest else ''}{rest}`?"
    )


def build(settings: Settings, clock: Clock) -> ServedModel:
    """Build the model. Blocking.

    Raises:
        ValueError: MODEL or an option is invalid.
        OSError, DragomanError: the engine cannot be loaded.
    """
    if (parsed := find_reference(settings.model, settings.revision)) is not None:
        prepared = prepare_model(settings, *parsed)
        progress = LoadProgress()
        download_prepared(prepared, progress)
        return build_prepared(prepared, progress, lambda resolved: build(resolved, clock))
    check(settings)
    return _build_checked(settings, clock)


def check(settings: Settings) -> None:
    """Check MODEL, and a model in local files as far as possible without its weights.

    Raises:
        ValueError, OSError, DragomanError: see `build`.
    """
    check_model(settings.model)
    kind, path = parse_model(settings.model)
    if find_reference(settings.model) is None and find_model_name(kind, path) is not None:
        is_fallback = path == settings.model
        check_local_model(
            kind, path, is_fallback=is_fallback, trust_remote_code=settings.trust_remote_code
        )


def _build_checked(settings: Settings, clock: Clock) -> ServedModel:
    settings = resolve_paths(settings)
    model = _build_by_kind(settings, clock)
    if model is None:
        raise ValueError(_build_unknown_message(*parse_model(settings.model)))
    if settings.lora_modules and model.adapters is None:
        raise ValueError("--lora-modules: this engine does not support adapters")
    kind, rest = parse_model(settings.model)
    if kind in (*_ENGINES_WITH_DIRECTORY, "llamacpp"):
        if settings.model == "tiny":
            from ..engines.tiny import find_bundled_model  # noqa: PLC0415 - as below

            path = find_bundled_model()
            reason = "it is the embedded model"
        elif rest == settings.model and Path(rest).is_dir():
            path = Path(rest)
            reason = choose_directory_engine(Path(rest)).reason
        else:
            path = Path(rest)
            reason = "it is a GGUF file" if rest == settings.model else "MODEL names it"
        model = replace(model, details=replace(read_details(path), engine=kind, reason=reason))
    for line in describe_loaded(settings, model):
        log.info("%s: %s", model.name, line)
    return add_queues(model, settings)


def add_queues(model: ServedModel, settings: Settings) -> ServedModel:
    """Return the model with the request queues that the settings describe."""
    max_requests = settings.max_queued_requests
    max_tokens = settings.max_queued_tokens
    has_own_queue = isinstance(model.backend, TokenBackend)
    slots = settings.max_num_seqs or (DEFAULT_SLOTS if has_own_queue else None)
    queue = RequestQueue(
        max_requests, max_tokens, slots=slots, limits_concurrency=not has_own_queue
    )
    return replace(model, queue=queue, encoding_queue=RequestQueue(max_requests, max_tokens))


def parse_model(model: str) -> tuple[str, str]:
    """Split MODEL into the engine's name and its argument.

    Raises:
        ValueError: see `detect_engine`.
    """
    if (parsed := find_reference(model)) is not None:
        # The engine of a repository is unknown until its files are listed.
        return parsed[1] or "hub", model
    kind, _, rest = model.partition(":")
    kind = "llamacpp" if kind == "gguf" else kind
    if kind in ("scripted", "sim") or (kind in _DIRECTORY_ENGINES and rest) or model == "tiny":
        return kind, rest
    if kind in ("http", "https"):
        return "upstream", model
    if model.endswith(".gguf"):
        return "llamacpp", model
    if (Path(model) / "config.json").is_file():
        return detect_engine(Path(model)), model
    return kind, rest


def _build_by_kind(settings: Settings, clock: Clock) -> ServedModel | None:  # noqa: PLR0911 - a table
    """Build the model by kind; None if there is no such engine.

    Engines are imported here, since some take seconds to import.
    """
    kind, rest = parse_model(settings.model)
    match kind:
        case "scripted":
            return build_scripted(settings, clock, rest)
        case "sim":
            from dragoman_sim.build import build_simulator  # noqa: PLC0415 - see above

            return build_simulator(settings, clock, rest)
        case "upstream":
            from .upstream import build_upstream  # noqa: PLC0415 - see above

            return build_upstream(settings, clock, rest)
        case "tiny" if rest or settings.model == "tiny":
            return build_tiny(settings, clock, rest)
        case "transformers" if rest:
            return build_transformers(settings, clock, rest)
        case "mlx" if rest:
            return build_mlx(settings, clock, rest)
        case "encoder" if rest:
            return build_encoder(settings, clock, Path(rest))
        case "llamacpp" if rest:
            from .llamacpp import build_llamacpp  # noqa: PLC0415 - see above

            return build_llamacpp(settings, clock, rest)
        case "vllm" if rest:
            from .vllm import build_vllm  # noqa: PLC0415 - see above

            return build_vllm(settings, clock, rest)
        case "python" if rest:
            from .plugin import build_python  # noqa: PLC0415 - see above

            return build_python(settings, clock, rest)
        case _:
            from .plugin import build_installed  # noqa: PLC0415 - see above

            return build_installed(settings, clock, kind, rest)


# Models on the engines that run in this process. Each engine is imported when it is
# chosen.

SCRIPTED_CONTEXT = 200_000
"""Context length in tokens. Claude Code assumes as many; its prompts with `--continue`
exceed 32,768.
"""


def build_tiny(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build `tiny` and `tiny:DIRECTORY`: small Llamas on numpy.

    path: a directory; empty for the bundled model.
    """
    from ..engines import tiny  # noqa: PLC0415 - numpy takes long to import

    directory = Path(path) if path else tiny.find_bundled_model()
    engine = tiny.load(
        directory,
        build_engine_limits(settings),
        files=build_block_files(settings, directory, "dragoman"),
    )
    name = directory.name if path else "tiny"
    return build_batching_model(
        settings, clock, directory, engine, own_name=name, embedder=engine.embedder
    )


def build_transformers(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build `transformers:DIRECTORY`: any causal language model of the transformers
    library.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    from ..engines import transformers  # noqa: PLC0415 - needs torch, an optional dependency

    directory = Path(path)
    options = transformers.TransformersOptions(
        settings.dtype,
        settings.device,
        settings.trust_remote_code,
        settings.quantization,
        settings.attention_backend,
        settings.threads,
        settings.sampling_device,
    )
    files = build_block_files(settings, directory, "transformers")
    loaded = transformers.load(directory, build_engine_limits(settings), options, files)
    adapters = tuple(read_adapter(text) for text in settings.lora_modules)
    for adapter in adapters:
        loaded.adapters.load(adapter.name, adapter.path)
    name = directory.resolve().name
    return build_batching_model(
        settings,
        clock,
        directory,
        loaded.engine,
        own_name=name,
        vision=loaded.vision,
        adapters=Adapters(adapters, loaded.adapters),
    )


def build_mlx(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build `mlx:DIRECTORY`: a model of mlx-lm.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    from ..engines import mlx  # noqa: PLC0415 - needs mlx, an optional dependency

    directory = Path(path)
    engine = mlx.load(
        directory,
        build_engine_limits(settings),
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
        files=build_block_files(settings, directory, "mlx-lm"),
    )
    name = directory.resolve().name
    return build_batching_model(settings, clock, directory, engine, own_name=name)


def build_encoder(settings: Settings, clock: Clock, directory: Path) -> ServedModel:
    """Build `encoder:DIRECTORY`: a model that embeds texts or scores pairs of texts."""
    from ..engines import encoder_engine as encoder  # noqa: PLC0415 - numpy takes long to import

    engine = encoder.load(
        directory, max_model_len=settings.max_model_len, max_waiting=settings.max_queued_requests
    )
    tokenizer = load_tokenizer(directory, generates=False)
    name, aliases = resolve_served_names(settings, directory.resolve().name)
    match engine:
        case encoder.BertEmbedder():
            backend = EmbedderBackend(engine, tokenizer)
            limit = engine.embedding_info.max_tokens
        case encoder.BertScorer():
            backend = ScorerBackend(engine, tokenizer)
            limit = engine.max_tokens
    info = load_tokenizer_info(directory)
    return ServedModel(name, backend, limit, int(clock.now()), aliases, tokenizer_info=info)


def build_scripted(settings: Settings, clock: Clock, file: str) -> ServedModel:
    """Build `scripted` and `scripted:FILE`: the engine that replies from a script, with
    the bundled model's tokenizer.

    file: a script; if empty, replies come from directives in requests.
    """
    from ..engines import tiny  # noqa: PLC0415 - numpy takes long to import
    from ..engines.scripted import Script, ScriptedEngine, load_script  # noqa: PLC0415

    directory = tiny.find_bundled_model()
    tokenizer = load_tokenizer(directory)
    name, aliases = resolve_served_names(settings, "scripted")
    limit = settings.max_model_len or SCRIPTED_CONTEXT
    engine = ScriptedEngine(
        load_script(Path(file)) if file else Script(),
        tokenizer=tokenizer,
        directives=settings.directives or not file,
        max_model_len=limit,
    )
    info = load_tokenizer_info(directory)
    return ServedModel(
        name, EventBackend(engine, tokenizer), limit, int(clock.now()), aliases, tokenizer_info=info
    )
