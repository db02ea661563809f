"""vLLM's AsyncLLM as a TokenEngine, and the functions that load it from a checkpoint
directory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...core.control import build_lost_weights_error
from ...core.embeddings import EmbeddingInfo, Pooling
from ...core.engine import (
    Capabilities,
    Failed,
    Health,
    OutputCallback,
    Rejected,
    TokenRequest,
    check_prompt,
)
from ...core.errors import DragomanError, EngineError, Overloaded, RequestError
from ...core.metrics import EngineStats
from ...core.request import CURRENT_SPAN
from ..active import ActiveSequence, ActiveSequences
from . import VllmFeatures, backend
from .backend import AdapterTable, AsyncLLM, SamplingParams, VllmConfig
from .pooling import PoolingLimits, VllmEmbedder, VllmScorer
from .request import (
    VllmOutputReader,
    VllmVision,
    build_prompt,
    build_request_error,
    build_sampling_params,
    load_vision,
    read_routing,
)
from .stats import VllmProcess
from .weights import VllmControl, VllmTrainable

log = logging.getLogger(__name__)


class _VllmSequence(ActiveSequence):
    """A sequence that runs in vLLM or is about to be sent to it.

    is_sent: whether vLLM has received the request.
    """

    def __init__(self, request: TokenRequest, deliver: OutputCallback) -> None:
        super().__init__(request, deliver)
        self.reader = VllmOutputReader(request)
        self.is_sent = False


class VllmEngine:
    """Implements `core.engine.TokenEngine`, `core.engine.AdapterLoader` and
    `core.metrics.StatsSource` with vLLM.

    process, adapters: not shared with another engine.
    directory: the checkpoint that vLLM loads.
    max_num_waiting: queued requests above which further ones are rejected.
    """

    def __init__(
        self,
        process: VllmProcess,
        adapters: AdapterTable,
        features: VllmFeatures,
        directory: Path,
        max_num_waiting: int,
    ) -> None:
        self._process = process
        self._adapters = adapters
        self._features = features
        self._max_num_waiting = max_num_waiting
        self._capabilities = features.build_capabilities()
        self.control = VllmControl(
            process.get_engine, self._abort_running, can_sleep=features.can_sleep
        )
        self.trainable = VllmTrainable(process, self.control, directory)
        self._active: ActiveSequences[_VllmSequence] = ActiveSequences()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._features.max_model_len

    def stats(self) -> Sequence[EngineStats]:
        """Implements StatsSource.stats: the counters of vLLM's own scheduler."""
        return self._process.counters.list_all()

    async def start(self) -> None:
        """Start vLLM and load the weights, which may take minutes. Raises EngineError."""
        await self._process.start()
        self.control.reset()
        await self.trainable.reset()

    async def stop(self) -> None:
        self._active.fail_all()
        await self._process.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def health(self) -> Health:
        running = self._active.num_started
        return self._process.get_health(waiting=len(self._active) - running, running=running)

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """Implements TokenEngine.add. Validation errors of vLLM name the field of the
        request.
        """
        llm = self._process.get_engine()
        if self.trainable.lost_version is not None:
            raise build_lost_weights_error(self.trainable.lost_version)
        check_prompt(request.prompt, self._features.vocab_size, self.max_model_len)
        params = build_sampling_params(
            request, self._features.eos_id, self._features.reasoning_delimiters
        )
        self._active.check_admission(request.id, self._max_num_waiting, self.health().waiting)
        sequence = _VllmSequence(request, deliver)
        self._active.add(sequence)
        self._create_task(self._run(llm, sequence, params))

    def abort(self, id: str) -> None:
        if self._active.pop(id) is not None and self._process.is_running:
            # Cancelling the task instead would leak a request that is being added to
            # vLLM.
            self._create_task(self._abort(self._process.get_engine(), id))

    async def _abort(self, llm: AsyncLLM, id: str) -> None:
        try:
            await llm.abort(id)
        except backend.ServerError:
            log.debug("vLLM died before it could abort %s", id)

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> None:
        """Implements PrefixCache.count_cached_tokens: None, since vLLM reports the
        number only with the output.
        """

    async def reset_prefix_cache(self) -> bool:
        """Implements PrefixCache.reset_prefix_cache: returns False while requests run."""
        return await self._process.get_engine().reset_prefix_cache()

    def _abort_running(self) -> list[str]:
        """Abort the requests that vLLM has not received yet. Returns the ids of all
        requests, for vLLM to abort.
        """
        sequences = list(self._active)
        for sequence in sequences:
            if not sequence.is_sent:
                self._active.pop(sequence.id)
                sequence.send_abort()
        return [sequence.id for sequence in sequences]

    async def _run(self, llm: AsyncLLM, sequence: _VllmSequence, params: SamplingParams) -> None:
        """Send the request to vLLM and deliver its outputs and errors."""
        # Aborted before this task ran: vLLM has never seen the request.
        if sequence not in self._active:
            return
        request = sequence.request
        sequence.is_sent = True
        span = CURRENT_SPAN.get() if self._features.has_tracing else None
        try:
            stream = llm.generate(
                build_prompt(request),
                params,
                request.id,
                lora_request=self._adapters.find_for(request),
                priority=request.priority if self._features.has_priorities else 0,
                trace_headers=None if span is None else span.build_headers(),
                **read_routing(request),
            )
            async for output in stream:
                for token_output in sequence.reader.read(output, self.trainable.weight_version):
                    self._active.deliver(sequence, token_output)
        except backend.ClientError as error:
            self._active.deliver(sequence, Rejected(request.id, build_request_error(error)))
        except backend.RetryableError as error:
            self._active.deliver(
                sequence, Rejected(request.id, Overloaded(str(error), code="engine_paused"))
            )
        except backend.BusyError as error:
            self._active.deliver(sequence, Rejected(request.id, Overloaded(str(error))))
        except DragomanError as error:
            self._active.deliver(sequence, Rejected(request.id, error))
        except BaseException:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # our own cancellation
            log.exception("vLLM failed on %s", request.id)
            self._active.deliver(
                sequence, Failed(request.id, "The engine failed while computing this request.")
            )
        finally:
            # After an abort the id may belong to a later request already.
            if sequence in self._active:
                self._active.pop(request.id)

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load_adapter(self, name: str, path: str) -> None:
        """Implements AdapterLoader.load_adapter."""
        if not self._features.has_lora:
            raise RequestError(
                "vLLM was started without LoRA; set `enable_lora` in --vllm-args.",
                param="lora_name",
            )
        adapter = self._adapters.create(name, path)
        if self._process.is_running:
            try:
                # An invalid adapter is rejected here; during a step it would crash the
                # engine.
                await self._process.get_engine().add_lora(adapter)
            except backend.ServerError as error:
                raise EngineError("The engine failed while it loaded the adapter.") from error
            except Exception as error:  # vLLM's workers raise many types
                raise RequestError(
                    f"vLLM cannot load the adapter: {error}", param="lora_path"
                ) from error
        # Registered last, so that no request uses an adapter that vLLM has rejected.
        self._adapters.register(name, adapter)

    def add_adapter(self, name: str, path: str) -> None:
        """Add an adapter to load at startup."""
        self._adapters.register(name, self._adapters.create(name, path))

    def on_adapter_drop(self, report: Callable[[str], None]) -> None:
        """Call `report` with the name of each adapter that vLLM could not load when it
        started.
        """
        self._adapters.on_drop = report

    async def unload_adapter(self, name: str) -> None:
        """Implements AdapterLoader.unload_adapter."""
        self._adapters.remove(name)


# Loading: vLLM's engine arguments, and the defaults that this server adds.

_RESERVED_ARGUMENTS = {
    "model": "the directory follows `vllm:`",
    "tokenizer": "it is in the model's directory",
    "skip_tokenizer_init": "constraints need the tokenizer",
    "disable_log_stats": "this server exports the counters, see /metrics",
    "enable_log_requests": "see --request-log",
}
"""Engine arguments that cannot be set, and why."""


class VllmOptions(Struct, frozen=True):
    """Options of the vLLM engine.

    arguments: fields of vLLM's AsyncEngineArgs.
    reasoning_delimiters: texts that begin and end reasoning, for budgets.
    max_num_waiting: requests that may queue before Overloaded is raised; vLLM itself
        has no limit.
    """

    arguments: Mapping[str, Any]
    reasoning_delimiters: tuple[str, str] | None = None
    max_num_waiting: int = 2048


class LoadedEngine(Struct, frozen=True):
    """A generating engine and its image processor.

    vision: None for a model that does not read images.
    """

    engine: VllmEngine
    vision: VllmVision | None


def load(directory: Path, options: VllmOptions) -> LoadedEngine | VllmEmbedder | VllmScorer:
    """Build the engine of a checkpoint, without starting it: its `start` reads the
    weights. Blocking.

    Raises: EngineError for unknown or invalid arguments.
    """
    if not list(directory.glob("*.safetensors")):
        raise EngineError(
            f"{directory} contains no safetensors file; other formats are not supported, because "
            f"they may run code"
        )
    known_names = {field.name for field in dataclasses.fields(backend.arguments.AsyncEngineArgs)}
    for name in options.arguments:
        if name in _RESERVED_ARGUMENTS:
            raise EngineError(
                f"vllm_args: `{name}` cannot be set here: {_RESERVED_ARGUMENTS[name]}."
            )
        if name not in known_names:
            matches = get_close_matches(name, known_names, 1)
            hint = f" Did you mean `{matches[0]}`?" if matches else ""
            raise EngineError(f"vllm_args: vLLM has no engine argument `{name}`.{hint}")
    arguments = dict(options.arguments)
    # The pipeline's grammars are in llguidance's format; another backend would disable
    # structured output.
    arguments.setdefault("structured_outputs_config", {"backend": "guidance"})
    if options.reasoning_delimiters is not None and "reasoning_config" not in arguments:
        begin, end = options.reasoning_delimiters
        arguments["reasoning_config"] = {"reasoning_start_str": begin, "reasoning_end_str": end}
    arguments |= {"model": str(directory), "disable_log_stats": True, "enable_log_requests": False}
    config = build_engine_config(arguments)
    adapters = AdapterTable()
    process = VllmProcess(arguments, adapters)
    if config.model_config.runner_type == "pooling":
        return _build_pooling_engine(process, config, options.max_num_waiting)
    vision = load_vision(config)
    features = _read_features(config, has_images=vision is not None)
    engine = VllmEngine(process, adapters, features, directory, options.max_num_waiting)
    return LoadedEngine(engine, vision)


def _build_pooling_engine(
    process: VllmProcess, config: VllmConfig, max_num_waiting: int
) -> VllmEmbedder | VllmScorer:
    """Build the engine of a pooling model.

    Raises: EngineError for models whose results no route returns, or whose inputs are
        not plain texts.
    """
    model = config.model_config
    pooler = config.model_config.pooler_config
    limits = PoolingLimits(model.max_model_len, model.get_vocab_size(), max_num_waiting)
    match model.score_type:
        case "bi-encoder" if model.convert_type != "classify":
            embedding_info = EmbeddingInfo(
                model.embedding_size,
                model.max_model_len,
                Pooling(pooler.seq_pooling_type.lower()),
                pooler.use_activation is not False,
                bool(model.is_matryoshka),
                tuple(sorted(model.matryoshka_dimensions or ())),
            )
            return VllmEmbedder(process, limits, embedding_info)
        case "cross-encoder":
            labels: int = model.hf_config.num_labels
            if labels != 1:
                raise EngineError(
                    f"this engine scores pairs with models of one label, not with classifiers of "
                    f"{labels}"
                )
            model_class = backend.model_loader.get_model_cls(model)
            if not model.use_sep_token or backend.scoring_models.supports_score_template(
                model_class
            ):
                raise EngineError(
                    "this engine does not support rerankers that need a prompt template; run "
                    "`vllm serve`, and serve "
                    "its URL"
                )
            tokenizer = backend.tokenizers.cached_tokenizer_from_config(model)
            has_segments = "token_type_ids" in tokenizer("a", "a")
            return VllmScorer(process, limits, has_segments=has_segments)
        case kind:
            raise EngineError(
                f"this engine does not support pooling models of vLLM's score type {kind!r}"
            )


def build_engine_config(arguments: Mapping[str, Any]) -> VllmConfig:
    """Build vLLM's configuration. Raises EngineError if vLLM rejects the arguments."""
    try:
        return backend.arguments.AsyncEngineArgs(**arguments).create_engine_config()
    except Exception as error:
        # vLLM's configuration classes raise many types of errors.
        raise EngineError(f"vLLM rejects these arguments: {error}") from error


def _read_features(config: VllmConfig, *, has_images: bool) -> VllmFeatures:
    model = config.model_config
    reasoning = config.reasoning_config
    delimiters = None
    if reasoning is not None and reasoning.enabled:
        delimiters = (
            tuple(reasoning.reasoning_start_token_ids),
            tuple(reasoning.reasoning_end_token_ids),
        )
    eos: int | None = backend.tokenizers.cached_tokenizer_from_config(model).eos_token_id
    has_grammars = eos is not None and config.structured_outputs_config.backend == "guidance"
    max_logprobs: int = model.max_logprobs
    return VllmFeatures(
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_logprobs=model.get_vocab_size() if max_logprobs < 0 else max_logprobs,
        eos_id=eos if has_grammars else None,
        reasoning_delimiters=delimiters,
        has_lora=config.lora_config is not None,
        can_sleep=bool(model.enable_sleep_mode),
        has_kv_transfer=config.kv_transfer_config is not None,
        has_priorities=config.scheduler_config.policy == "priority",
        has_images=has_images,
        has_tracing=config.observability_config.otlp_traces_endpoint is not None,
    )
