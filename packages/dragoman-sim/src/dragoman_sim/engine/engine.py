"""The simulator as an engine: engine cores on the event loop's clock, with vLLM's
administrative operations.

`engine_core` and `latency` determine steps and their duration, `reply_generator` the
output; this module connects them with requests, a clock and control operations.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import msgspec
import numpy as np
from msgspec import Struct

from dragoman.core.capabilities import CONSTRAINT_FEATURES, Capabilities, Feature
from dragoman.core.engine import Health
from dragoman.core.engine_control import PauseMode
from dragoman.core.engine_stats import EngineStats
from dragoman.core.errors import EngineError, Overloaded, RequestError, Unsupported
from dragoman.core.request import GenerateRequest
from dragoman.core.request_checks import check_prompt
from dragoman.core.simulated_engine import MetricOverrides, RankState, SimulationState
from dragoman.core.token_engine import Failed, OutputCallback, TokenRequest
from dragoman.engines.active_sequences import SHUTTING_DOWN, check_admission

from .block_hashes import DEFAULT_HASHER, NO_KEYS, BlockHasher, CacheKeys, TokenContents
from .block_pool import SimulatedBlockPool
from .data_parallel_rank import DataParallelBalancer, DataParallelRank
from .engine_core import EngineCore
from .fault_injection import MAX_SECONDS, Fault, FaultInjector, build_fault_error
from .keyed_random import KeyedRandom
from .kv_events import KvEvent
from .kv_notices import KvNotifier
from .kv_publisher import KvEventsConfig, KvPublisher
from .kv_transfer_config import KvTransferConfig
from .kv_transfers import TransferContext
from .latency import LatencyModel, StepLoad, StepTime, add_noise
from .live_request import ChoiceLengths, LiveRequest
from .network_link import TransferCost
from .offloading_settings import OffloadingSettings
from .profile import RankLayout
from .reply_generator import ReplyGenerator, parse_reply
from .scheduler import SimulatedScheduler
from .scheduler_config import VLLM_VERSION, SimulatedSchedulerConfig
from .sequence import SimulatedSequence
from .speculative_decoding import DraftAcceptance
from .step_driver import StepDriver
from .timer_queue import TimerQueue
from .transfer_params import KvAddress, parse_transfer_params

_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
        Feature.LORA,
    }
)
_PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "include_stop",
        "ignore_eos",
        "truncate_prompt",
        "close_at_limit",
    }
)
"""Parameters of a real engine. Those that shape a distribution have no effect on a
planned reply.
"""
_EXTRAS = frozenset({"lora", "reply", "fault", "data_parallel_rank", "cache_threshold_finish"})


class KvTransferSettings(Struct, frozen=True):
    """Settings of disaggregated prefill and decode.

    tp_size: number of this instance's devices.
    layers: of the model; a transfer moves each layer's part of a block by itself.
    """

    config: KvTransferConfig
    cost: TransferCost
    tp_size: int = 1
    layers: int = 1


class SimulatorConfig(Struct, frozen=True):
    """Settings of the simulated engine and of the server that drives it.

    frontend_seconds: simulated seconds from a request's arrival to the engine's queue.
    noise: sigma of a step's log-normal factor, see `latency.add_noise`; 0 is no noise.
    time_scale: speed of simulated time; 10 is ten times real time.
    warm_up: seconds from startup to readiness.
    ranks: the data-parallel copies of the engine core.
    acceptance_rates: of drafts, by position, see `latency.DraftAcceptance`; empty means
        its defaults.
    max_num_waiting: most requests that wait; further ones are rejected.
    cache_hit_threshold: of requests that have none, see `SimulatedSequence`.
    """

    scheduler: SimulatedSchedulerConfig
    latency: LatencyModel
    frontend_seconds: float = 0.0
    noise: float = 0.0
    time_scale: float = 1.0
    warm_up: float = 0.0
    ranks: RankLayout = RankLayout()
    acceptance_rates: tuple[float, ...] = ()
    seed: int = 0
    max_num_waiting: int = 2048
    cache_hit_threshold: float = 0.0
    accepts_images: bool = False
    faults: tuple[Fault, ...] = ()
    kv_events: KvEventsConfig | None = None
    kv_transfer: KvTransferSettings | None = None
    offloading: OffloadingSettings | None = None


def build_capabilities(config: SimulatorConfig, vocab_size: int) -> Capabilities:
    extras = _EXTRAS if config.kv_transfer is None else _EXTRAS | {"kv_transfer_params"}
    # As in llm-d-inference-sim, without a cache there is nothing to compare.
    if config.scheduler.enable_prefix_caching:
        extras |= {"cache_hit_threshold"}
    return Capabilities(
        features=_FEATURES | {Feature.IMAGES} if config.accepts_images else _FEATURES,
        parameters=_PARAMETERS | extras,
        max_logprobs=vocab_size,
    )


def add_rank_noise(seconds: StepTime, config: SimulatorConfig, rank: int) -> StepTime:
    """Add a rank's own noise to a step time."""
    return (
        add_noise(seconds, config.noise, np.random.default_rng([config.seed, rank]))
        if config.noise
        else seconds
    )


MAX_RECENT_STEPS = 120
"""Steps of each rank whose times are kept."""


class SimulatorEngine:
    """The simulated engine.

    Implements `core.engine.TokenEngine`, `core.metrics.StatsSource`, and
    `EngineControl`, `Scriptable` and `Simulated` of `core.control`.
    """

    def __init__(
        self,
        config: SimulatorConfig,
        replies: ReplyGenerator,
        *,
        vocab_size: int,
        unix_time: Callable[[], float],
        hasher: BlockHasher = DEFAULT_HASHER,
        find_lora_path: Callable[[str], str] = str,
    ) -> None:
        """unix_time: returns Unix seconds, for the timestamps of KV events.
        hasher: hashes the blocks of the prefix cache.
        find_lora_path: returns where an adapter's weights are, which is part of hashes.
        """
        self._unix_time = unix_time
        self._hasher = hasher
        self._find_lora_path = find_lora_path
        self._publishers: list[KvPublisher] = []
        self._notifier: KvNotifier | None = None
        self._config = config
        self._replies = replies
        self._vocab_size = vocab_size
        self.max_model_len = config.scheduler.max_context
        self._fault_injector = FaultInjector(config.faults, config.seed)
        self._ranks: list[DataParallelRank] = []
        self._recent_steps: list[deque[tuple[int, float]]] = []
        self._live: dict[str, LiveRequest] = {}
        self._rank_of: dict[str, DataParallelRank] = {}
        self._num_arriving = 0
        self._seed = str(config.seed).encode()
        self._request_count = 0
        self._last_choices: tuple[GenerateRequest, ChoiceLengths] | None = None
        self._balancer = DataParallelBalancer()
        self._timers: TimerQueue | None = None
        self._ready_at = 0.0
        self._down_reason: str | None = "the engine is not running"
        self._sleep_level = 0
        self._paused = False
        self._overrides = MetricOverrides()
        self.capabilities = build_capabilities(config, vocab_size)

    @property
    def simulated_version(self) -> str:
        return VLLM_VERSION

    def get_faults(self) -> str:
        """Return the active fault plan as JSON text."""
        return self._fault_injector.encode_plan()

    def set_faults(self, faults: object) -> None:
        """Set a new fault plan; its request numbers start from 1. Raises RequestError."""
        self._fault_injector.set_plan(faults)

    def enqueue_reply(self, reply: object) -> None:
        """Enqueue replies, see `core.control.Scriptable.enqueue_reply`."""
        replies = cast("list[object]", reply) if isinstance(reply, list) else [reply]
        for entry in [parse_reply(value, "reply") for value in replies]:
            self._replies.enqueue_reply(entry)

    def get_simulation(self) -> SimulationState:
        """Return the state of the simulation, see
        `core.simulated_engine.Simulated.get_simulation`.
        """
        states: list[RankState] = []
        for rank, recent_steps in zip(self._ranks, self._recent_steps, strict=True):
            scheduler = rank.core.scheduler
            pool = scheduler.pool
            states.append(
                RankState(
                    scheduler.num_running,
                    scheduler.num_waiting,
                    pool.size,
                    pool.num_used,
                    pool.num_cached,
                    rank.core.num_steps,
                    tuple(tokens for tokens, _ in recent_steps),
                    tuple(seconds for _, seconds in recent_steps),
                )
            )
        config = self._config
        return SimulationState(
            config.time_scale,
            config.scheduler.block_size,
            config.scheduler.max_num_seqs,
            tuple(states),
            msgspec.to_builtins(config.latency),
            self._overrides,
        )

    def check_time_scale(self) -> None:
        """Check that the time scale can be set, see
        `core.simulated_engine.Simulated.check_time_scale`.
        """
        if self._config.kv_transfer is not None:
            # The bandwidth of a transfer that is in progress cannot change.
            message = (
                "The time scale of an instance that transfers KV caches is set at startup "
                "(--time-scale)."
            )
            raise Unsupported(message, param="time_scale")
        if self._config.offloading is not None:
            message = (
                "The time scale of an instance with KV offloading is set at startup (--time-scale)."
            )
            raise Unsupported(message, param="time_scale")

    def set_time_scale(self, time_scale: float) -> None:
        """Set the time scale, see `core.simulated_engine.Simulated.set_time_scale`."""
        self.check_time_scale()
        self._config = msgspec.structs.replace(self._config, time_scale=time_scale)

    def check_latency(self, coefficients: dict[str, object]) -> None:
        """Check coefficients, see `core.simulated_engine.Simulated.check_latency`."""
        self._merge_latency(coefficients)

    def set_latency(self, coefficients: dict[str, object]) -> None:
        """Set coefficients of a step's duration, see
        `core.simulated_engine.Simulated.set_latency`.
        """
        self._config = msgspec.structs.replace(
            self._config, latency=self._merge_latency(coefficients)
        )

    def _merge_latency(self, coefficients: dict[str, object]) -> LatencyModel:
        merged = msgspec.to_builtins(self._config.latency) | coefficients
        try:
            latency = msgspec.convert(merged, LatencyModel)
        except msgspec.ValidationError as error:
            raise RequestError(f"latency: {error}", param="latency") from None
        if latency.largest_coefficient > MAX_SECONDS:
            raise RequestError(
                f"latency: coefficients must be at most {MAX_SECONDS} seconds", param="latency"
            )
        return latency

    def set_metrics(self, overrides: MetricOverrides) -> None:
        """Set values of metrics, see `core.simulated_engine.Simulated.set_metrics`."""
        self._overrides = overrides

    async def start(self) -> None:
        self._timers = timers = TimerQueue()
        transfer = self._config.kv_transfer
        scale = self._config.time_scale
        context = None
        if transfer is not None:
            config = transfer.config
            cost = transfer.cost
            self._notifier = KvNotifier(config, self._on_fetched)
            port = await self._notifier.open()
            context = TransferContext(
                KvAddress(config.engine_id or "", config.kv_ip, port, transfer.tp_size),
                TransferCost(
                    cost.bytes_per_token, cost.bandwidth * scale, cost.base_seconds / scale
                ),
                config.kv_connector_extra_config.lease_seconds / scale,
                self._notifier.notify,
                transfer.layers,
                fetches=config.kv_role != "kv_producer",
            )
        self._recent_steps = []
        layout = self._config.ranks
        self._ranks = [self._build_rank(number, timers, context) for number in range(layout.count)]
        if layout.lock_step:
            driver = StepDriver(self._ranks, timers.call_at)
            for rank in self._ranks:
                rank.join(driver)
        self._ready_at = timers.now() + self._config.warm_up
        self._down_reason = None

    def _on_fetched(self, id: str) -> None:
        """Release blocks after another instance reports that it fetched them."""
        transfers = [rank.transfers for rank in self._ranks if rank.transfers is not None]
        if not any([each.release(id, self._now()) for each in transfers]):
            transfers[0].num_late_notifications += 1

    def _build_rank(
        self, number: int, timers: TimerQueue, context: TransferContext | None
    ) -> DataParallelRank:
        config = self._config
        publish = None
        if config.kv_events is not None and config.kv_events.is_publishing:
            publisher = KvPublisher(config.kv_events, number)
            self._publishers.append(publisher)
            publish = partial(self._publish_cache_events, publisher)
        pool = SimulatedBlockPool(config.scheduler.num_gpu_blocks, record=publish is not None)
        recent_steps: deque[tuple[int, float]] = deque(maxlen=MAX_RECENT_STEPS)
        self._recent_steps.append(recent_steps)
        noisy_seconds = add_rank_noise(self._compute_seconds, config, number)

        def measure_step(load: StepLoad) -> float:
            # Read at each step, since an administrator can change it.
            config = self._config
            seconds = noisy_seconds(load) if config.noise else config.latency.compute_seconds(load)
            recent_steps.append((load.tokens, seconds))
            return seconds / config.time_scale

        acceptance = DraftAcceptance(config.acceptance_rates, config.seed)
        block_size = config.scheduler.block_size
        offloading = config.offloading
        core = EngineCore(
            SimulatedScheduler(
                config.scheduler,
                pool,
                None if offloading is None else offloading.build_config(block_size),
            ),
            measure_step,
            acceptance.count_sampled,
            None if offloading is None else offloading.build_link(block_size, config.time_scale),
        )
        return DataParallelRank(
            number,
            core,
            timers.call_at,
            vocab_size=self._vocab_size,
            on_finished=self._on_finished,
            publish=publish,
            transfer_context=context,
        )

    def _compute_seconds(self, load: StepLoad) -> float:
        # The latency model too can change at any time.
        return self._config.latency.compute_seconds(load)

    def _publish_cache_events(self, publisher: KvPublisher, events: list[KvEvent]) -> None:
        publisher.publish(self._unix_time(), events)

    async def stop(self) -> None:
        self._fail_all(SHUTTING_DOWN, "the engine is not running")
        if self._timers is not None:
            self._timers.close()
        if self._notifier is not None:
            self._notifier.close()
        for publisher in self._publishers:
            publisher.close()
        self._publishers.clear()

    def health(self) -> Health:
        running = 0
        waiting = self._num_arriving
        for rank in self._ranks:
            scheduler = rank.core.scheduler
            running = running + scheduler.num_running
            waiting = waiting + scheduler.num_waiting
        reason = self._find_down_reason()
        return Health(reason is None, reason, waiting, running)

    def _find_down_reason(self) -> str | None:
        """Return why no request is accepted; None if requests are."""
        if self._down_reason is None and self._ready_at:
            if self._now() < self._ready_at:
                return "the engine is warming up"
            self._ready_at = 0.0
        return self._down_reason

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """Add a request, see `TokenEngine.add`. Also raises the error of a script or a
        fault plan.
        """
        down_reason = self._down_reason
        if self._ready_at:
            down_reason = self._find_down_reason()
        if down_reason is not None:
            raise Overloaded(f"Not ready: {down_reason}.")
        check_prompt(request.prompt, self._vocab_size, self.max_model_len)
        if request.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1", param="max_tokens")
        # No more requests wait than are alive, which costs nothing to count.
        num_waiting = len(self._live)
        if num_waiting >= self._config.max_num_waiting:
            num_waiting = self.health().waiting
        check_admission(request.id, self._live, self._config.max_num_waiting, num_waiting)
        fault = self._fault_injector.find_fault(request)
        if fault is not None:
            self._begin_fault(fault)
        requested = request.extras.data_parallel_rank
        ranks = self._ranks
        rank = (
            ranks[0]
            if requested is None and len(ranks) == 1
            else self._balancer.choose(ranks, requested)
        )
        clock = self._clock
        live = self._build_live(request, deliver, clock, fault, rank)
        if request.images:
            rank.record_images(image.digest for image in request.images)
        # Checked now: the sequence is queued only after the front end's time, too late
        # for an HTTP error status.
        rank.core.scheduler.check(live.sequence)
        if request.extras.kv_transfer_params is not None:
            self._register_transfer(request, live, rank, request.extras.kv_transfer_params)
        self._live[request.id] = live
        self._rank_of[request.id] = rank
        # Counted as waiting from now on, so that a burst cannot exceed max_num_waiting
        # during the front end's time.
        self._num_arriving += 1
        # Counted from arrival: the time that this server's own front end takes is part
        # of the modeled time.
        queued_at = live.arrived_at + self._config.frontend_seconds / self._config.time_scale
        clock.call_at(queued_at, partial(self._arrive, live, rank))

    def abort(self, id: str) -> None:
        live = self._live.pop(id, None)
        if live is None:
            return
        live.discard_outputs()
        self._rank_of.pop(id).abort(live, self._now())

    def _arrive(self, live: LiveRequest, rank: DataParallelRank, at: float) -> None:
        self._num_arriving -= 1
        # The request may have been aborted meanwhile, and its id used for another one.
        if self._live.get(live.sequence.id) is live:
            rank.enqueue(live, at)

    def _build_live(
        self,
        request: TokenRequest,
        deliver: OutputCallback,
        clock: TimerQueue,
        fault: Fault | None,
        rank: DataParallelRank,
    ) -> LiveRequest:
        lora = request.extras.lora or ""
        rng = self._build_rng(request)
        reply = self._replies.plan_reply(request, rng)
        # Prompt logprobs require computing the whole prompt: a private key prevents
        # cache hits.
        private_key = request.id if request.prompt_logprobs is not None else ""
        keys = NO_KEYS
        if lora or request.cache_salt or private_key:
            path = self._find_lora_path(lora) if lora else ""
            keys = CacheKeys(lora, path, request.cache_salt, private_key)
        block_size = self._config.scheduler.block_size
        event_builder = rank.event_builder
        contents = TokenContents(
            block_size,
            request.prompt,
            keys,
            None
            if event_builder is None
            else partial(event_builder.add_hashed, lora=lora, salt=request.cache_salt),
            request.images,
            self._hasher,
        )
        sequence = SimulatedSequence(
            request.id,
            num_prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            contents=contents,
            priority=request.priority,
            lora=lora,
            cache_hit_threshold=self._find_cache_hit_threshold(request),
        )
        origin = request.origin
        choice_lengths = None
        if origin is not None and origin.choices > 1:
            # The choices of a request are added consecutively and share one
            # ChoiceLengths.
            if self._last_choices is None or self._last_choices[0] is not origin:
                self._last_choices = (origin, ChoiceLengths(origin.choices))
            choice_lengths = self._last_choices[1]
        return LiveRequest(
            request,
            deliver,
            sequence,
            contents,
            reply,
            rng,
            arrived_at=clock.arrive(request.arrival_time),
            lora=lora,
            fault=fault,
            choice_lengths=choice_lengths,
        )

    def _find_cache_hit_threshold(self, request: TokenRequest) -> float:
        extras = request.extras
        if extras.cache_threshold_finish:
            return math.inf
        if not self._config.scheduler.enable_prefix_caching:
            return 0.0
        threshold = extras.cache_hit_threshold
        return self._config.cache_hit_threshold if threshold is None else threshold

    def _register_transfer(
        self, request: TokenRequest, live: LiveRequest, rank: DataParallelRank, text: str
    ) -> None:
        """Register the request's transfer parameters, a JSON text.

        A response names one location, so only the first choice holds its blocks.
        """
        transfer = self._config.kv_transfer
        if transfer is None or rank.transfers is None or self._notifier is None:
            return
        params = parse_transfer_params(text, transfer.config.kv_role)
        # The address comes from the request; without this check a client could have
        # this server connect anywhere.
        if params.do_remote_prefill and not self._notifier.is_peer(params):
            raise RequestError(
                "kv_transfer_params: remote_host is not among this instance's peers",
                param="kv_transfer_params",
            )
        if params.do_remote_prefill or request.choice == 0:
            rank.transfers.register(live.sequence, params)

    def _build_rng(self, request: TokenRequest) -> KeyedRandom:
        """Build a request's random generator: equal prompts with equal seeds draw equal
        numbers.

        Without a seed and at a temperature above 0, every request draws different
        numbers.
        """
        sampling = request.sampling
        if sampling.seed is not None:
            stream = b"seed %d" % sampling.seed
        elif sampling.temperature == 0:
            stream = b"greedy"
        else:
            self._request_count += 1
            stream = b"request %d" % self._request_count
        return KeyedRandom(self._seed, stream, array("q", request.prompt).tobytes())

    def _begin_fault(self, fault: Fault) -> None:
        """Count a request's fault. Raises its error if it rejects the request, or
        EngineError if it crashes the engine.
        """
        for kind in fault.kinds:
            self._ranks[0].stats.record_fault(kind)
        if fault.crash is not None:
            self.crash(fault.crash)
            raise EngineError(fault.message)
        if fault.is_rejection:
            raise build_fault_error(fault)

    @property
    def _clock(self) -> TimerQueue:
        if self._timers is None:
            raise EngineError("The engine is not running.")
        return self._timers

    def _now(self) -> float:
        return 0.0 if self._timers is None else self._timers.now()

    def _on_finished(self, live: LiveRequest) -> None:
        id = live.sequence.id
        if self._live.get(id) is live:
            del self._live[id], self._rank_of[id]

    def _fail_all(self, message: str, reason: str | None) -> None:
        """Fail all requests, also those with finished but undelivered output."""
        self._down_reason = reason
        at = self._now()
        for rank in self._ranks:
            rank.fail_all(message, at)
        for live in list(self._live.values()):
            live.deliver(Failed(live.id, message))
            live.discard_outputs()
        self._live.clear()
        self._rank_of.clear()

    # Control operations.

    def crash(self, seconds: float) -> None:
        """Fail all requests and reject new ones for `seconds`; the cache is lost."""
        self._fail_all("The engine crashed.", "the engine crashed and is being restarted")
        for rank in self._ranks:
            # After all requests have ended: a pool cannot be reset while a block is
            # held.
            rank.core.scheduler.pool.reset()
        self._clock.call_at(self._now() + seconds, self._recover)

    def _recover(self, _: float) -> None:
        self._down_reason = None

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Pause generation, see `EngineControl.pause`. New requests queue; with mode
        keep, running ones keep blocks.
        """
        if mode == "wait":
            raise Unsupported(
                "A simulated engine cannot wait for running requests: use `abort` or `keep`.",
                param="mode",
            )
        if mode == "abort":
            for rank in self._ranks:
                rank.abort_all(self._now())
        if not self._paused:
            self._paused = True
            self._clock.pause()
        if clear_cache and mode == "abort":
            self._reset_cache()

    async def abort_all(self) -> int:
        running = len(self._live)
        for rank in self._ranks:
            rank.abort_all(self._now())
        return running

    async def resume(self) -> None:
        # A sleeping engine stays asleep: see `EngineControl.resume`.
        if self._paused and not self._sleep_level:
            self._paused = False
            self._clock.resume()

    @property
    def is_paused(self) -> bool:
        return self._paused

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Simulate vLLM's sleep: the cache is lost, and requests wait until `wake_up`."""
        await self.pause(mode)
        self._sleep_level = level
        self._reset_cache()

    async def wake_up(self) -> None:
        self._sleep_level = 0
        await self.resume()

    @property
    def sleep_level(self) -> int:
        """See `EngineControl.sleep_level`."""
        return self._sleep_level

    async def reset_prefix_cache(self) -> bool:
        """Reset the prefix cache, see `PrefixCache.reset_prefix_cache`."""
        return self._reset_cache()

    def _reset_cache(self) -> bool:
        """Reset the cache. Returns False, without any change, while a block is held, as
        in vLLM.
        """
        done = all([rank.core.scheduler.pool.reset() for rank in self._ranks])
        for rank in self._ranks:
            rank.publish_cache_events()
        return done

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int:
        """Count a prompt's cached tokens on the rank that has the most, see
        `PrefixCache.count_cached_tokens`.
        """
        if len(prompt) < 2:
            return 0
        block_size = self._config.scheduler.block_size
        contents = TokenContents(
            block_size, prompt, CacheKeys(salt=cache_salt), hasher=self._hasher
        )
        probe = SimulatedSequence(
            "", num_prompt_tokens=len(prompt), max_tokens=1, contents=contents
        )
        hits = (rank.core.scheduler.count_cached_tokens(probe) for rank in self._ranks)
        return max(hits, default=0)

    async def simulate_prefill(self, inputs: Sequence[tuple[int, ...]]) -> int:
        """Wait for the duration of a prefill of these tokens. Returns their number.
        Raises Overloaded, RequestError.
        """
        state = self.health()
        if not state.ready:
            raise Overloaded(f"Not ready: {state.reason}.")
        for ids in inputs:
            # One more, since `check_prompt` reserves a token for the output, which an
            # embedding does not have.
            check_prompt(ids, self._vocab_size, self.max_model_len + 1)
        tokens = sum(map(len, inputs))
        load = StepLoad(
            tokens=tokens,
            prefill_pairs=sum(len(ids) ** 2 / 2 for ids in inputs),
            sequences=len(inputs),
        )
        seconds = self._config.latency.compute_seconds(load) / self._config.time_scale
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(_: float) -> None:
            # The call may have been cancelled meanwhile.
            if not done.done():
                done.set_result(None)

        self._clock.call_at(self._now() + seconds, finish)
        await done
        self._ranks[0].stats.prompt_tokens += tokens
        return tokens

    def stats(self) -> Sequence[EngineStats]:
        return [self._override(rank.update_stats(self._sleep_level)) for rank in self._ranks]

    def _override(self, stats: EngineStats) -> EngineStats:
        overrides = self._overrides
        if overrides.running is not None:
            stats.running = overrides.running
        if overrides.waiting is not None:
            stats.waiting = overrides.waiting
            stats.waiting_by_reason = {"capacity": overrides.waiting, "deferred": 0}
        if overrides.kv_cache_usage is not None:
            stats.kv_cache_usage = overrides.kv_cache_usage
        return stats
