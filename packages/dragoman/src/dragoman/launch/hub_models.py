"""Models of a hub, prepared from the list of their files before the weights are
downloaded.

The engine is chosen from the list of files, after only the configuration has been
downloaded. If all files are in the cache, the model is loaded without a request to the
hub.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dragoman_cli import OnProgress, show_progress

from ..core.errors import EngineError, NotFound, RequestError
from ..core.model_download import PullProgress
from ..hub import (
    DownloadCancelled,
    DownloadEvent,
    DownloadPlan,
    HubError,
    ModelReference,
    Repository,
    RepositoryFile,
    clean_message,
    download,
    find_cached_repository,
    find_gguf_models,
    format_bytes,
    is_adapter,
    open_repository,
    select_adapter_files,
    select_gguf_files,
    select_tokenizer_files,
    select_weight_files,
    translate_errors,
)
from ..hub.file_selection import INDEX
from ..pipeline.lora_adapters import read_adapter
from ..settings import Settings
from .engine_choice import (
    EngineChoice,
    check_engine_installed,
    choose_engine,
    read_model_config,
)
from .engine_registry import find_engine, find_engine_of_format
from .hub_reference import find_reference
from .model_plan import NAMED, ModelPlan

if TYPE_CHECKING:
    from ..pipeline.model_lifecycle import LoadProgress

log = logging.getLogger(__name__)

_MODULE_WEIGHTS = ("_Dense/model.safetensors", "_LayerNorm/model.safetensors")
"""Ends of the paths of the weights of sentence-transformers' modules."""
STEP_PERCENT = 10
"""Progress between two lines, where there is no progress bar."""


class DownloadDisplay:
    """Shows the progress of one download. As a context manager, it draws a bar if
    standard error is a terminal.

    print_line: prints a line if there is no bar; by default it is logged.
    """

    def __init__(self, name: str, print_line: Callable[[str], None] = log.info) -> None:
        self._name = name
        self._print_line = print_line
        self._stack = ExitStack()
        self._on_progress: OnProgress | None = None
        self._next_percent = STEP_PERCENT

    def __enter__(self) -> None:
        """Begin; the bar is drawn with the first event, which has the total."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def update(self, event: DownloadEvent) -> None:
        """Show an event of the download."""
        if sys.stderr.isatty():
            if self._on_progress is None:
                bar = show_progress(self._name, event.all_total, format_count=format_bytes)
                self._on_progress = self._stack.enter_context(bar)
            self._on_progress(event.all_completed)
            return
        percent = 100 * event.all_completed // event.all_total if event.all_total else 100
        if percent >= self._next_percent:
            self._next_percent = percent - percent % STEP_PERCENT + STEP_PERCENT
            done = format_bytes(event.all_completed)
            total = format_bytes(event.all_total)
            self._print_line(f"{self._name}: downloaded {percent} % ({done} of {total})")


_Select = Callable[[str, tuple[RepositoryFile, ...]], tuple[RepositoryFile, ...]]
"""Selects files of a repository. The first argument is the repository's name, for
messages.
"""


class PreparedModel(Struct, frozen=True):
    """A model of a hub whose files and engine are known.

    name: the model's name in the API.
    settings: the settings with the path of the downloaded files instead of the
        reference.
    choice: the engine, and why it was chosen.
    plan: the files to download.
    """

    name: str
    settings: Settings
    choice: EngineChoice
    plan: DownloadPlan

    @property
    def model_plan(self) -> ModelPlan:
        """The plan of the downloaded model."""
        engine = self.choice.engine
        return ModelPlan(
            self.settings.model,
            engine,
            str(self.plan.target),
            find_engine(engine),
            reason=self.choice.reason,
        )


def prepare_pull(
    settings: Settings, reference: ModelReference, engine: str | None
) -> PreparedModel:
    """Prepare a model for download only: as `prepare_model`, but with the hub's newest
    commit and without the engine.

    If no installed engine supports the model, the choice has an empty engine, and its
    reason says what to do. The same applies to a LoRA adapter, which is served with its
    base model.
    """
    with translate_errors(reference.repository):
        repository = open_repository(reference)
        if not is_adapter(repository.files):
            return _prepare(settings, reference, engine, repository, needs_engine=False)
        reason = f"{reference.repository} is a LoRA adapter: it is served with its base model"
        plan = _plan_part(reference, repository, select_adapter_files)
        return PreparedModel(reference.name, settings, EngineChoice("", reason), plan)


def prepare_model(
    settings: Settings, reference: ModelReference, engine: str | None
) -> PreparedModel:
    """Choose the files and the engine of a model of a hub. Blocking; without requests if
    all files are in the cache.

    engine: the engine that MODEL names; None chooses one.

    Raises:
        HubError: there is no such model, or none of its files can be loaded; or the
            engine is not installed, or does not support the model.
    """
    with translate_errors(reference.repository):
        cached = find_cached_repository(reference)
        prepared = None if cached is None else _prepare_cached(settings, reference, engine, cached)
        if prepared is not None:
            return prepared
        return _prepare(settings, reference, engine, open_repository(reference))


def _prepare_cached(
    settings: Settings, reference: ModelReference, engine: str | None, repository: Repository
) -> PreparedModel | None:
    """Prepare a model of the cache; None if it is incomplete: an interrupted download,
    or only another quantization.
    """
    try:
        prepared = _prepare(settings, reference, engine, repository)
    except _EngineUnavailable:
        raise
    except HubError:
        return None
    plan = prepared.plan
    # A GGUF file (the plan's entry) contains its tokenizer.
    has_tokenizer = plan.entry is not None or any(
        file.path == "tokenizer.json" for file in plan.files
    )
    return None if plan.find_missing() or not has_tokenizer else prepared


class _EngineUnavailable(HubError):
    """No installed engine supports the model."""


def _prepare(
    settings: Settings,
    reference: ModelReference,
    engine: str | None,
    repository: Repository,
    *,
    needs_engine: bool = True,
) -> PreparedModel:
    has_safetensors = any(file.path.endswith(".safetensors") for file in repository.files)
    # A repository may have both formats; safetensors are the original, unless the name
    # selects a quantization.
    is_gguf = bool(find_gguf_models(repository.files)) and (
        reference.quantization is not None or not has_safetensors
    )
    named = None if engine is None else find_engine(engine)
    loader = find_engine_of_format("gguf") if is_gguf and named is None else named
    if loader is not None and loader.local is not None and loader.local.format.name == "gguf":
        choice = EngineChoice(loader.name, "it is a GGUF file" if engine is None else NAMED)
        model, projector = select_gguf_files(
            reference.repository, repository.files, reference.quantization
        )
        if settings.get("mmproj") is not None:
            projector = None
        plan = DownloadPlan(
            repository.id,
            repository.revision,
            repository.commit,
            repository.directory,
            # The model comes last, so that a directory that contains it is complete.
            (*(() if projector is None else (projector,)), *reversed(model.files)),
            entry=model.files[0].path,
            projector=None if projector is None else projector.path,
        )
    else:
        plan, choice = _plan_safetensors(settings, reference, engine, repository)
    chosen = find_engine(choice.engine)
    if chosen is not None:
        try:
            check_engine_installed(chosen, reference.repository)
        except ValueError as error:
            choice = EngineChoice("", str(error))
    # It may contain names of the repository.
    choice = EngineChoice(choice.engine, clean_message(choice.reason))
    if needs_engine and not choice.engine:
        raise _EngineUnavailable(choice.reason)
    changed: dict[str, object] = {
        "model": f"{choice.engine}:{plan.target}",
        "served_model_name": settings.served_model_name or (reference.name,),
        "revision": None,
    }
    if plan.projector is not None and settings.get("mmproj") is None:
        changed["mmproj"] = str(plan.directory / plan.projector)
    return PreparedModel(reference.name, settings.replace(**changed), choice, plan)


def _plan_safetensors(
    settings: Settings, reference: ModelReference, engine: str | None, repository: Repository
) -> tuple[DownloadPlan, EngineChoice]:
    if reference.quantization is not None:
        raise HubError(
            f"{reference.repository} has no GGUF file to select {reference.quantization} from; "
            f"serve it as "
            f"`{reference.repository}`"
        )
    files = select_weight_files(
        reference.repository,
        repository.files,
        repository.read(INDEX),
        code=settings.trust_remote_code,
    )
    config = repository.read("config.json")
    if config is None:
        raise HubError(
            f"{reference.repository} has no config.json; choose a repository that has one"
        )
    # The last of a directory's files is that of the model, so that it is complete then.
    modules = [file for file in repository.files if file.path.endswith(_MODULE_WEIGHTS)]
    files = (*modules, *files)
    plan = DownloadPlan(
        repository.id,
        repository.revision,
        repository.commit,
        repository.directory,
        files,
    )
    if engine is not None:
        choice = EngineChoice(engine, NAMED)
    else:
        try:
            choice = choose_engine(
                read_model_config(
                    config,
                    f"{reference.repository}: config.json",
                    plan.weights_size,
                    repository.read("modules.json"),
                    repository.read("config_sentence_transformers.json"),
                )
            )
        except ValueError as error:
            choice = EngineChoice("", str(error))
    chosen = find_engine(choice.engine)
    local = None if chosen is None else chosen.local
    # Reading downloads the files into the cache, where the engine looks for pooling and
    # normalization.
    if local is not None and local.reads_file is not None:
        for file in repository.files:
            if local.reads_file(file.path):
                repository.read(file.path)
    try:
        if local is not None and local.check_architecture is not None:
            local.check_architecture(
                repository.directory, reference.repository, settings.trust_remote_code
            )
    except EngineError as error:
        choice = EngineChoice("", str(error))
    if choice.engine and not any(file.path == "tokenizer.json" for file in files):
        raise HubError(
            f"{reference.repository} has no tokenizer.json; choose a repository that has one"
        )
    return plan, choice


def download_prepared(prepared: PreparedModel, progress: LoadProgress) -> None:
    """Download the missing files of a model. Blocking.

    Raises:
        HubError: a file cannot be downloaded.
        EngineError: the download was cancelled.
    """
    plan = prepared.plan
    display = DownloadDisplay(prepared.name)

    def on_event(event: DownloadEvent) -> None:
        progress.completed = event.all_completed
        progress.total = event.all_total
        display.update(event)

    missing = plan.find_missing()
    if not missing:
        # Records the commit of the revision.
        download(plan, on_event)
        return
    progress.phase = "downloading"
    progress.total = plan.size
    size = format_bytes(sum(file.size for file in missing))
    log.info(
        "%s: downloading %s of revision %s (commit %s)",
        prepared.name,
        size,
        plan.revision,
        plan.commit,
    )
    try:
        with display:
            download(plan, on_event, progress.cancelled)
    except DownloadCancelled:
        raise EngineError(
            f"the download of {prepared.name} was cancelled; it continues at the next start"
        ) from None


def resolve_paths(settings: Settings) -> Settings:
    """Download the adapters that settings name, and replace names by paths. Blocking.

    Raises:
        HubError: a file cannot be downloaded.
    """
    changed: dict[str, object] = {}
    if settings.lora_modules:
        adapters = [read_adapter(text) for text in settings.lora_modules]
        changed["lora_modules"] = tuple(
            text
            if (parsed := find_reference(adapter.path)) is None
            else f"{adapter.name}={_fetch_part(parsed[0], select_adapter_files)}"
            for text, adapter in zip(settings.lora_modules, adapters, strict=True)
        )
    return msgspec.structs.replace(settings, **changed) if changed else settings


def fetch_tokenizer(name: str) -> Path:
    """Return the path of a tokenizer: a path, or a model of the hub, whose tokenizer is
    downloaded. Blocking.

    Raises:
        HubError: a file cannot be downloaded.
    """
    parsed = find_reference(name)
    return Path(name) if parsed is None else _fetch_part(parsed[0], select_tokenizer_files)


def _fetch_part(reference: ModelReference, select: _Select) -> Path:
    """Download some files of a repository, and return their directory. Sends no request
    if they are in the cache.
    """
    with translate_errors(reference.repository):
        cached = find_cached_repository(reference)
        if cached is not None:
            try:
                plan = _plan_part(reference, cached, select)
            except HubError:
                plan = None
            if plan is not None and not plan.find_missing():
                return plan.directory
        plan = _plan_part(reference, open_repository(reference), select)
    display = DownloadDisplay(reference.repository)
    with display:
        download(plan, display.update)
    log.info(
        "%s: downloaded revision %s (commit %s)", reference.repository, plan.revision, plan.commit
    )
    return plan.directory


def _plan_part(
    reference: ModelReference,
    repository: Repository,
    select: _Select,
) -> DownloadPlan:
    return DownloadPlan(
        repository.id,
        repository.revision,
        repository.commit,
        repository.directory,
        select(reference.repository, repository.files),
    )


_INTERVAL_BYTES = 16 << 20
"""Bytes of a file between two progress reports."""


class HubPuller:
    """Downloads models into the shared cache. To serve one, set it as MODEL or in the
    settings file, and restart.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        """Download a model, and report the progress. Closing the generator cancels the
        download.

        model: `org/name[:quant][@revision]`, optionally after `hf:` or `hf.co/`.

        Raises:
            NotFound: `model` is not a name of the hub.
            RequestError: there is no such model, or it cannot be loaded.
            EngineError: the download failed.
        """
        yield PullProgress("pulling manifest")
        try:
            # `latest` is Ollama's default tag.
            parsed = find_reference(model.removesuffix(":latest"))
            if parsed is None:
                raise NotFound(
                    f"`{model[:100]}` is not a model of the hub; write `org/name` or "
                    f"`org/name:QUANT`."
                )
            prepared = await asyncio.to_thread(prepare_pull, self._settings, *parsed)
        except HubError as error:
            raise RequestError(f"{error}.", param="model") from error
        reports: asyncio.Queue[DownloadEvent | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()

        def on_event(event: DownloadEvent) -> None:
            loop.call_soon_threadsafe(reports.put_nowait, event)

        task = asyncio.create_task(asyncio.to_thread(download, prepared.plan, on_event, cancelled))
        task.add_done_callback(lambda _: reports.put_nowait(None))
        reported: dict[str, int] = {}
        try:
            while (event := await reports.get()) is not None:
                if event.file is None:
                    continue
                last = reported.get(event.file, -_INTERVAL_BYTES)
                if event.completed - last >= _INTERVAL_BYTES or event.completed == event.total:
                    reported[event.file] = event.completed
                    digest = None if event.digest is None else f"sha256:{event.digest}"
                    name = event.file if event.digest is None else event.digest[:12]
                    status = (
                        "verifying sha256 digest"
                        if event.status == "verifying"
                        else f"pulling {name}"
                    )
                    yield PullProgress(status, digest, event.total, event.completed)
            await task
        except (HubError, DownloadCancelled, OSError) as error:
            raise EngineError(f"{error}.") from error
        finally:
            cancelled.set()
            await asyncio.gather(task, return_exceptions=True)
        yield PullProgress("success")
