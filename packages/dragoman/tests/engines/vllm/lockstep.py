"""Run vLLM's own scheduler and the simulated one in lockstep on random workloads with
the same tokens, and compare them after every step.

vLLM's scheduler, KV cache manager and block pool are real and get a real configuration;
only the model is missing. The order of calls is that of vLLM's engine core, `step` or,
with asynchronous scheduling, `step_with_batch_queue`.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Sequence
from importlib import import_module
from random import Random
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.engines import tiny
from dragoman_sim.engine.block_hashes import CacheKeys, TokenContents
from dragoman_sim.engine.kv_offloading import HostTransfer, KvOffloading, OffloadingConfig
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import KvCacheGroup, SimulatedSchedulerConfig
from dragoman_sim.engine.scheduler_output import SchedulerOutput
from dragoman_sim.engine.sequence import SequenceStatus, SimulatedSequence

VllmOutput: TypeAlias = Any
VllmScheduler: TypeAlias = Any
VllmRequest: TypeAlias = Any
Module: TypeAlias = Any

STOP = 1
"""The stop token of all requests."""
MAX_MODEL_LEN = 4096
FEATURES = (
    "priority",
    "threshold",
    "adaptive",
    "no_chunks",
    "no_prefix_caching",
    "no_reserve",
    "watermark",
    "stops",
    "aborts",
    "salts",
    "choices",
    "loras",
    "active",
)
HYBRID = ("windows", "chunks", "states", "block_sizes")
"""Features of which a case with several KV cache groups has some."""
HYBRID_FEATURES = (
    *(each for each in FEATURES if each != "no_chunks"),
    *HYBRID,
    "retention",
)
MIXES: dict[str, tuple[str, ...]] = {
    "plain": (),
    **{feature: (feature,) for feature in FEATURES},
    "priority of adapters": ("priority", "loras", "stops"),
    "drafts": ("drafts",),
    "drafts with lookahead": ("drafts", "lookahead"),
    "drafts of some": ("drafts", "fewer drafts", "stops"),
    "drafts, priority, aborts": ("drafts", "lookahead", "priority", "aborts", "stops"),
    "offloading": ("offloading",),
    "offloading, stops, aborts": ("offloading", "stops", "aborts", "salts", "choices"),
    "offloading, priority, loras": (
        "offloading",
        "priority",
        "loras",
        "threshold",
        "stops",
        "watermark",
    ),
    "any with offloading": (
        *(each for each in FEATURES if each != "no_prefix_caching"),
        "offloading",
    ),
    "any": FEATURES,
    "window of all layers": ("only windows",),
    "windows": ("windows",),
    "two windows, retention": ("windows", "windows again", "retention"),
    "windows of other block sizes": ("windows", "block_sizes", "retention"),
    "chunks": ("chunks", "stops"),
    "windows and chunks": ("windows", "chunks"),
    "states": ("states",),
    "states, retention, aborts": ("states", "retention", "aborts", "stops", "threshold"),
    "states without prefix caching": ("states", "no_prefix_caching"),
    "windows and states": ("windows", "states", "retention", "priority"),
    "windows, no_prefix_caching": ("windows", "no_prefix_caching"),
    "windows, drafts": ("windows", "drafts", "stops", "retention"),
    "chunks, drafts, aborts": ("chunks", "drafts", "lookahead", "aborts"),
    "any with groups": HYBRID_FEATURES,
    "any with drafts": (
        *(each for each in FEATURES if each not in {"threshold", "adaptive"}),
        "drafts",
        "lookahead",
    ),
}
"""Features of a case. Each feature of `any` is drawn at random; the other mixes have
all of theirs.
"""


class Difference(AssertionError):
    """The two schedulers differ; the message names the case, so that it can be
    repeated.
    """


class CaseRequest(Struct, frozen=True):
    """A request of a case.

    at, aborted_at: iterations of the engine.
    reply: seed of its tokens; requests that share it have the same output.
    stop_after: number of its tokens, including the stop token.
    """

    at: int
    id: str
    prompt: list[int]
    max_tokens: int
    reply: int
    priority: int = 0
    lora: int = 0
    salt: str = ""
    stop_after: int | None = None
    aborted_at: int | None = None

    def sample(self, index: int) -> int:
        """Return the token at this position of the answer."""
        return STOP if index + 1 == self.stop_after else 2 + (self.reply * 31 + index * index) % 97


class Case(Struct, frozen=True):
    """fewer_drafts: the drafter does not always propose as many as it may, as one of
    n-grams. offloading: to a host, whose transfers take a random number of steps.
    """

    name: str
    config: SimulatedSchedulerConfig
    requests: list[CaseRequest]
    fewer_drafts: bool = False
    offloading: OffloadingConfig | None = None

    def accept(self, id: str, num_output_tokens: int, num_drafts: int) -> int:
        """Return how many drafts are accepted."""
        return min(
            num_drafts, Random(f"{self.name} {id} {num_output_tokens}").choice((0, 0, 1, 2, 3, 5))
        )

    def propose(self, id: str, num_output_tokens: int) -> int:
        """Return how many drafts are proposed."""
        most = self.config.num_speculative_tokens
        return (
            Random(f"{id} {num_output_tokens} drafts").randint(0, most)
            if self.fewer_drafts
            else most
        )


class Comparison(NamedTuple):
    """Counts of what was compared. steps: those that computed a token."""

    steps: int
    preemptions: int
    scheduled_tokens: int
    cached_tokens: int


def draw_case(mix: str, seed: int, *, asynchronous: bool) -> Case:
    """Draw a case, the same for the same arguments."""
    random = Random(f"{mix} {seed} {asynchronous}")
    features = set(MIXES[mix])
    if mix.startswith("any"):
        features = {
            each
            for each in MIXES[mix]
            if each in {"drafts", "offloading"} or random.random() < 0.35
        }
    if mix == "any with groups" and not features & set(HYBRID):
        features.add("windows")
    block_size = random.choice((1, 2, 4, 4, 8, 16))
    blocks = random.randint(6, random.choice((12, 30, 60)))
    if "offloading" in features:
        block_size = max(
            2, block_size
        )  # vLLM loads a prompt of one token and one block again and again.
    budget = random.choice((4, 8, 16, 24, 48, 96))
    max_num_seqs = random.randint(1, min(12, budget))
    threshold = random.randint(1, budget) if features & {"threshold", "adaptive"} else 0
    config = SimulatedSchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        block_size=block_size,
        num_gpu_blocks=blocks,
        max_model_len=min(budget, MAX_MODEL_LEN) if "no_chunks" in features else MAX_MODEL_LEN,
        enable_prefix_caching="no_prefix_caching" not in features,
        enable_chunked_prefill="no_chunks" not in features,
        max_num_active_seqs=random.randint(1, max_num_seqs) if "active" in features else None,
        max_loras=random.randint(1, 3) if "loras" in features else 1,
        long_prefill_token_threshold=threshold,
        long_prefill_token_threshold_adaptive="adaptive" in features,
        scheduling_policy="priority" if "priority" in features else "fcfs",
        async_scheduling=asynchronous,
        scheduler_reserve_full_isl="no_reserve" not in features,
        watermark=random.choice((0.02, 0.1, 0.3)) if "watermark" in features else 0.0,
    )
    if "drafts" in features:
        drafts = random.randint(1, min(5, budget - 1))
        config = msgspec.structs.replace(
            config,
            # As vLLM requires at startup; a draft beyond the cache could never be
            # computed.
            max_model_len=config.max_context,
            num_speculative_tokens=drafts,
            num_lookahead_tokens=drafts if "lookahead" in features else 0,
        )
    offloading = None
    if "offloading" in features:
        offloading = OffloadingConfig(
            random.choice((3, 10, 40, 200)), random.choice((1, 1, 2, 3)), random.random() < 0.4
        )
    if features & {"only windows", *HYBRID}:
        config = _draw_groups(random, config, features)
    name = f"{mix}, seed {seed}, {'async' if asynchronous else 'sync'}"
    requests = _draw_requests(random, config, features)
    return Case(name, config, requests, "fewer drafts" in features and not asynchronous, offloading)


def _draw_groups(
    random: Random, config: SimulatedSchedulerConfig, features: set[str]
) -> SimulatedSchedulerConfig:
    """Draw KV cache groups, and blocks that are enough for some tokens in all of them."""
    size = None
    if "block_sizes" in features and not features & {"chunks", "states"}:
        size = config.block_size * random.randint(2, 3)
    windows = random.sample(range(2, random.choice((6, 20, 70))), 3)
    if "only windows" in features:
        groups = [KvCacheGroup("sliding_window", windows[0])]
    else:
        others = {
            "windows": KvCacheGroup("sliding_window", windows[0], random.randint(1, 3), size),
            "windows again": KvCacheGroup("sliding_window", windows[1], 1, size),
            "chunks": KvCacheGroup("chunked_local", windows[2], random.randint(1, 3)),
            "states": KvCacheGroup("state", tables=random.randint(1, 3)),
        }
        groups = [group for feature, group in others.items() if feature in features]
        groups.insert(random.randint(0, len(groups)), KvCacheGroup(tables=random.randint(1, 2)))
    tables = sum(group.tables for group in groups)
    alignment = size or config.block_size
    interval = 0
    is_sparse = bool(features & {"windows", "states"}) and config.enable_prefix_caching
    if "retention" in features and is_sparse:
        interval = random.choice((None, alignment, 2 * alignment, 5 * alignment))
    return msgspec.structs.replace(
        config,
        # Blocks that steps in flight still read, and states, come on top of those that
        # a sequence needs.
        num_gpu_blocks=config.num_gpu_blocks * tables + 4 * tables + 1,
        kv_cache_groups=tuple(groups),
        prefix_cache_retention_interval=interval,
    )


def _draw_requests(
    random: Random, config: SimulatedSchedulerConfig, features: set[str]
) -> list[CaseRequest]:
    """Draw requests. Some share prefixes, some arrive together; each fits into the
    cache if it is alone.
    """
    longest = min(config.max_context, 480)
    shared = [[random.randint(2, 99) for _ in range(longest)] for _ in range(random.randint(1, 3))]
    gap = random.choice((0, 1, 3, 10))
    requests = list[CaseRequest]()
    at = 0
    for number in range(random.randint(4, 40)):
        at += random.randint(0, gap)
        length = min(
            random.randint(1, longest - 1), random.choice((longest - 1, longest // 2 + 1, 24))
        )
        common = random.choice((0, random.randint(0, length), length))
        prompt = random.choice(shared)[:common] + [
            random.randint(2, 99) for _ in range(length - common)
        ]
        max_tokens = random.randint(1, min(longest - length, random.choice((2, 16, 64, 200))))
        reply = random.choice((0, number))
        for choice in range(
            random.randint(2, 4) if "choices" in features and random.random() < 0.4 else 1
        ):
            requests.append(
                CaseRequest(
                    at,
                    f"{choice}-{random.randint(0, 999)}-{number}",
                    prompt,
                    max_tokens,
                    reply + random.choice((0, choice)),
                    priority=random.randint(-1, 2) if "priority" in features else 0,
                    lora=random.randint(0, 4) if "loras" in features else 0,
                    salt=random.choice(("", "", "a", "b")) if "salts" in features else "",
                    stop_after=random.randint(1, max_tokens)
                    if "stops" in features and random.random() < 0.5
                    else None,
                    aborted_at=at + random.randint(0, 60)
                    if "aborts" in features and random.random() < 0.3
                    else None,
                )
            )
    return requests


class OrderedIds(dict[str, None]):
    """vLLM's set of finished requests, in the order of their ends rather than of their
    hashes, which differ by run.
    """

    def add(self, id: str) -> None:
        self[id] = None


class VllmParts:
    """vLLM's modules and the configuration that all cases start from. Importing them
    takes seconds.
    """

    def __init__(self) -> None:
        config: Module = import_module("vllm.config")
        self.version: str = import_module("vllm.version").__version__
        self._interface: Module = import_module("vllm.v1.kv_cache_interface")
        self._outputs: Module = import_module("vllm.v1.outputs")
        self._requests: Module = import_module("vllm.v1.request")
        self._sampling: Module = import_module("vllm.sampling_params")
        self._loras: Module = import_module("vllm.lora.request")
        self._cache_utils: Module = import_module("vllm.v1.core.kv_cache_utils")
        self._config = config
        self._float = import_module("torch").float32
        model = config.ModelConfig(
            model=str(tiny.find_bundled_model()),
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
        )
        self.usual = config.VllmConfig(
            model_config=model,
            scheduler_config=config.SchedulerConfig.default_factory(max_model_len=MAX_MODEL_LEN),
            cache_config=config.CacheConfig(block_size=16),
            device_config=config.DeviceConfig("cpu"),
        )
        self._grammars = import_module("vllm.v1.structured_output").StructuredOutputManager(
            self.usual
        )
        self._offloading = import_module(
            "vllm.distributed.kv_transfer.kv_connector.v1.offloading.common"
        )
        self._hash = import_module("vllm.utils.hashing").sha256
        self._cache_utils.init_none_hash(self._hash)

    def build_scheduler(
        self, config: SimulatedSchedulerConfig, offloading: OffloadingConfig | None = None
    ) -> VllmScheduler:
        """Build vLLM's scheduler with the same settings."""
        configured = copy.copy(self.usual)
        configured.scheduler_config = self._config.SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            is_encoder_decoder=False,
            max_num_active_seqs=config.max_num_active_seqs,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=config.long_prefill_token_threshold_adaptive,
            enable_chunked_prefill=config.enable_chunked_prefill,
            policy=config.scheduling_policy,
            async_scheduling=config.async_scheduling,
            scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
            watermark=config.watermark,
        )
        configured.lora_config = self._config.LoRAConfig(
            max_loras=config.max_loras, max_lora_rank=8
        )
        configured.cache_config = copy.copy(self.usual.cache_config)
        configured.cache_config.block_size = config.block_size
        configured.cache_config.num_gpu_blocks = config.num_gpu_blocks
        configured.cache_config.enable_prefix_caching = config.enable_prefix_caching
        configured.model_config = copy.copy(self.usual.model_config)
        configured.model_config.max_model_len = config.max_model_len
        if config.enable_prefix_caching and any(
            group.kind == "state" for group in config.kv_cache_groups
        ):
            configured.cache_config.mamba_cache_mode = "align"
        groups = config.kv_cache_groups or (KvCacheGroup(),)
        cache = self._interface.KVCacheConfig(
            num_blocks=config.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                self._interface.KVCacheGroupSpec(
                    [f"layer {number} {table}"], self._build_spec(group, config)
                )
                for number, group in enumerate(groups)
                for table in range(group.tables)
            ],
            prefix_cache_retention_interval=config.prefix_cache_retention_interval,
        )
        configured.cache_config.prefix_cache_retention_interval = (
            config.prefix_cache_retention_interval
        )
        scheduler_block_size, hash_block_size = self._cache_utils.resolve_kv_cache_block_sizes(
            cache, configured
        )
        if config.num_speculative_tokens:
            # The minimum for an n-gram drafter, which does not run.
            configured.speculative_config = self._config.SpeculativeConfig(
                method="ngram", num_speculative_tokens=config.num_speculative_tokens,
                prompt_lookup_max=2,
                target_model_config=configured.model_config,
                target_parallel_config=configured.parallel_config,
            )  # fmt: skip
        if offloading is not None:
            extra = {"cpu_bytes_to_use": 1 << 20, "blocks_per_chunk": offloading.blocks_per_chunk,
                     "offload_prompt_only": offloading.offload_prompt_only}  # fmt: skip
            configured.kv_transfer_config = self._config.KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config=extra,
            )
        scheduler = configured.scheduler_config.get_scheduler_cls()(
            configured, cache, self._grammars, scheduler_block_size, hash_block_size
        )
        if offloading is not None:
            scheduler.connector.connector_scheduler.manager._num_chunks = offloading.num_chunks
            scheduler.finished_req_ids = OrderedIds()
        scheduler.num_lookahead_tokens = (
            config.num_lookahead_tokens
        )  # That of a drafter with a model.
        return scheduler

    def _build_spec(self, group: KvCacheGroup, config: SimulatedSchedulerConfig) -> Any:
        """Build vLLM's description of one of a group's tables."""
        if group.kind == "state":
            caches = config.enable_prefix_caching
            return self._interface.MambaSpec(
                block_size=config.block_size if caches else config.max_model_len,
                shapes=((8,),),
                dtypes=(self._float,),
                mamba_cache_mode="align" if caches else "none",
            )
        sizes: dict[str, Any] = {
            "block_size": group.block_size or config.block_size,
            "num_kv_heads": 1,
            "head_size": 8,
            "dtype": self._float,
        }
        match group.kind:
            case "sliding_window":
                return self._interface.SlidingWindowSpec(**sizes, sliding_window=group.window)
            case "chunked_local":
                return self._interface.ChunkedLocalAttentionSpec(
                    **sizes, attention_chunk_size=group.window
                )
            case _:
                return self._interface.FullAttentionSpec(**sizes)

    def build_drafts(self, ids: list[str], drafts: list[list[int]]) -> Any:
        return self._outputs.DraftTokenIds(ids, drafts)

    def build_request(self, request: CaseRequest, config: SimulatedSchedulerConfig) -> VllmRequest:
        lora = f"lora-{request.lora}"
        hasher = self._cache_utils.get_request_block_hasher(config.block_size, self._hash)
        return self._requests.Request(
            request_id=request.id,
            prompt_token_ids=request.prompt,
            sampling_params=self._sampling.SamplingParams(
                max_tokens=request.max_tokens, stop_token_ids=[STOP]
            ),
            pooling_params=None,
            arrival_time=float(request.at),
            lora_request=self._loras.LoRARequest(lora, request.lora, lora)
            if request.lora
            else None,
            cache_salt=request.salt or None,
            priority=request.priority,
            block_hasher=hasher if config.enable_prefix_caching else None,
        )

    def build_model_output(
        self, ids: list[str], sampled: list[list[int]], transfers: Sequence[HostTransfer] = ()
    ) -> Any:
        """Build the model's output. transfers: those that have ended."""
        connector_output = None
        if transfers:
            worker = self._offloading.OffloadingWorkerMetadata()
            for transfer in transfers:
                worker.mark_completed(transfer.id)
            connector_output = self._outputs.KVConnectorOutput(
                finished_recving={
                    transfer.sequence.id for transfer in transfers if not transfer.is_store
                },
                kv_connector_worker_meta=worker,
            )
        return self._outputs.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: index for index, id in enumerate(ids)},
            sampled_token_ids=sampled,
            kv_connector_output=connector_output,
        )

    @property
    def aborted(self) -> Any:
        return self._requests.RequestStatus.FINISHED_ABORTED


class _PendingStep(NamedTuple):
    """A step of both schedulers. samplers: the requests for which vLLM's runner samples
    a token.
    """

    theirs: VllmOutput
    ours: SchedulerOutput
    samplers: frozenset[str]


class Lockstep:
    """Runs both schedulers on a case. simulated: settings of the simulated one, to test
    that other settings differ.
    """

    def __init__(
        self, case: Case, vllm: VllmParts, simulated: SimulatedSchedulerConfig | None = None
    ) -> None:
        self._case = case
        self._vllm = vllm
        self._requests = {request.id: request for request in case.requests}
        self._theirs: VllmScheduler = vllm.build_scheduler(case.config, case.offloading)
        self._ours = SimulatedScheduler(simulated or case.config, offloading=case.offloading)
        self._transfers: dict[int, HostTransfer] = {}
        """Transfers that have begun and not ended."""
        self._names: dict[bytes, bytes] = {}
        """vLLM's chunks, as the simulator names them."""
        self._random = Random(f"{case.name} transfers")
        self._sequences: dict[str, SimulatedSequence] = {}
        self._flights: deque[_PendingStep] = deque()
        self._depth = 2 if case.config.async_scheduling else 1
        self._num_steps = self._num_tokens = self._num_cached_tokens = 0

    def run(self) -> Comparison:
        """Serve all requests. Raises Difference."""
        arriving = deque(self._case.requests)
        aborts = sorted(
            (request.aborted_at, request.id)
            for request in self._case.requests
            if request.aborted_at
        )
        for iteration in range(20_000):
            while arriving and arriving[0].at <= iteration:
                self._add(arriving.popleft())
            while aborts and aborts[0][0] <= iteration:
                self._abort(aborts.pop(0)[1])
            if not arriving and not self._flights and not self._theirs.has_requests():
                self._compare("the end", [0, 0], [self._ours.num_running, self._ours.num_waiting])
                break
            self._iterate()
        # Some settings admit no more requests, such as a watermark above the free
        # blocks. Then both wait forever.
        return Comparison(
            self._num_steps,
            self._ours.stats.num_preemptions,
            self._num_tokens,
            self._num_cached_tokens,
        )

    def _add(self, request: CaseRequest) -> None:
        config = self._case.config
        contents = TokenContents(
            config.block_size,
            request.prompt.copy(),
            CacheKeys(lora=str(request.lora), salt=request.salt),
        )
        self._sequences[request.id] = sequence = SimulatedSequence(
            request.id,
            num_prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            contents=contents,
            arrival=float(request.at),
            priority=request.priority,
            lora=f"lora-{request.lora}" if request.lora else "",
        )
        self._ours.add(sequence)
        self._theirs.add_request(self._vllm.build_request(request, config))

    def _abort(self, id: str) -> None:
        self._ours.finish(self._sequences[id], aborted=True)
        self._theirs.finish_requests(id, self._vllm.aborted)
        self._compare_state("an abort")

    def _iterate(self) -> None:
        """One call of the engine core's `step` or `step_with_batch_queue`."""
        if self._theirs.has_requests():
            self._flights.append(self._schedule())
            if len(self._flights) < self._depth:
                return
        if self._flights:
            self._update(self._flights.popleft())

    def _schedule(self) -> _PendingStep:
        theirs = self._theirs.schedule()
        ours = self._ours.schedule()
        scheduled: dict[str, int] = theirs.num_scheduled_tokens
        shares = {sequence.id: 1 + ours.drafts.get(sequence, 0) for sequence in ours.decodes}
        drafts = {id: len(tokens) for id, tokens in theirs.scheduled_spec_decode_tokens.items()}
        self._compare(
            "drafts", drafts, {sequence.id: count for sequence, count in ours.drafts.items()}
        )
        shares.update((chunk.sequence.id, chunk.num_tokens) for chunk in ours.chunks)
        self._compare("scheduled tokens", scheduled, shares)
        preempted = sorted(theirs.preempted_req_ids or ())
        self._compare("preempted", preempted, sorted(sequence.id for sequence in ours.preempted))
        if ours.transfers is not None:
            self._compare_transfers(theirs, ours)
        self._compare_state("schedule")
        tables: Any = self._theirs.kv_cache_manager.get_block_ids
        for id in scheduled:
            sequence = self._sequences[id]
            ours_of = [table.blocks for table in sequence.tables] or [sequence.blocks]
            self._compare("blocks", list(tables(id)), ours_of)
        self._num_steps += bool(scheduled)
        self._num_tokens += sum(scheduled.values())
        self._num_cached_tokens += sum(
            chunk.num_computed_tokens for chunk in ours.chunks if chunk.sequence in ours.admitted
        )
        requests: dict[str, VllmRequest] = self._theirs.requests
        return _PendingStep(
            theirs, ours, frozenset(id for id in scheduled if not requests[id].is_prefill_chunk)
        )

    def _update(self, flight: _PendingStep) -> None:
        ids = list[str](flight.theirs.num_scheduled_tokens)
        sampled = list[list[int]]()
        accepted: dict[str, int] = {}
        for id in ids:
            request: Any = self._theirs.requests.get(id)
            if request is None or id not in flight.samplers:
                sampled.append([])
            else:
                done = request.num_output_tokens
                drafts = len(flight.theirs.scheduled_spec_decode_tokens.get(id, ()))
                accepted[id] = self._case.accept(id, done, drafts)
                sampled.append(
                    [self._requests[id].sample(done + each) for each in range(1 + accepted[id])]
                )
        ended = self._end_transfers(flight.ours)
        self._theirs.update_from_output(
            flight.theirs, self._vllm.build_model_output(ids, sampled, ended)
        )
        ours, finished = self._ours.update(
            flight.ours, lambda sequence, _: 1 + accepted[sequence.id]
        )
        expected = [id for id, tokens in zip(ids, sampled, strict=True) if tokens]
        self._compare("who gets a token", expected, [sequence.id for sequence in ours])
        for sequence in ours:
            assert isinstance(sequence.contents, TokenContents)
            begin = sequence.num_output_tokens - sequence.num_sampled
            ends = sequence in finished
            for index in range(begin, sequence.num_output_tokens):
                token = self._requests[sequence.id].sample(index)
                sequence.contents.tokens.append(token)
                if token == STOP:
                    ends = True
                    self._ours.discard_sampled(sequence, sequence.num_output_tokens - 1 - index)
                    break
            if ends:
                self._ours.finish(sequence)
        if self._case.config.num_speculative_tokens and not self._case.config.async_scheduling:
            self._propose(ours)
        if ended:
            self._ours.complete_transfers([transfer.id for transfer in ended])
        self._compare_state("update")

    def _compare_transfers(self, theirs: VllmOutput, ours: SchedulerOutput) -> None:
        assert ours.transfers is not None
        self._theirs.finished_req_ids = OrderedIds()
        meta: Any = theirs.kv_connector_metadata
        loads = {load.id: (load.sequence.id, load.blocks) for load in ours.transfers.loads}
        self._compare(
            "loads",
            {id: (job.req_id, list(job.dst_spec.block_ids)) for id, job in meta.load_jobs.items()},
            loads,
        )
        stores = {store.id: (store.sequence.id, store.blocks) for store in ours.transfers.stores}
        self._compare(
            "stores",
            {id: (job.req_id, list(job.src_spec.block_ids)) for id, job in meta.store_jobs.items()},
            stores,
        )
        self._compare("flushed", set(meta.jobs_to_flush or ()), ours.transfers.flushed)
        for transfer in (*ours.transfers.loads, *ours.transfers.stores):
            self._transfers[transfer.id] = transfer

    def _end_transfers(self, step: SchedulerOutput) -> list[HostTransfer]:
        """End the transfers that vLLM's worker must end with this step, and some
        others.
        """
        if step.transfers is None:
            return []
        later = {store.id for store in step.transfers.stores} - step.transfers.flushed
        ended = list[HostTransfer]()
        has_load = False
        for transfer in list(self._transfers.values()):
            is_flushed = transfer.id in step.transfers.flushed
            if not is_flushed and (transfer.id in later or self._random.random() < 0.6):
                continue
            # vLLM stores loaded requests in a set, whose order is undefined.
            if not transfer.is_store and has_load and not is_flushed:
                continue
            has_load |= not transfer.is_store
            ended.append(self._transfers.pop(transfer.id))
        return ended

    def _propose(self, samplers: list[SimulatedSequence]) -> None:
        """Propose drafts for the next step, which vLLM's engine core takes after each
        step.
        """
        running = [sequence for sequence in samplers if sequence.status is SequenceStatus.RUNNING]
        for sequence in running:
            sequence.num_drafts = self._case.propose(sequence.id, sequence.num_output_tokens)
        drafts = self._vllm.build_drafts(
            [sequence.id for sequence in running],
            [[9] * sequence.num_drafts for sequence in running],
        )
        self._theirs.update_draft_token_ids(drafts)

    def _compare_state(self, after: str) -> None:
        pool: Any = self._theirs.kv_cache_manager.block_pool
        self._ours.cache_accepted()
        running = [sequence.id for sequence in self._ours.list_running()]
        self._compare(
            f"running after {after}",
            [request.request_id for request in self._theirs.running],
            running,
        )
        waiting = [sequence.id for sequence in self._ours.list_waiting()]
        queued = [
            request.request_id
            for request in (*self._theirs.kv_holding_waiting, *self._theirs.waiting)
        ]
        self._compare(f"waiting after {after}", queued, waiting)
        if self._ours.offloading is not None:
            self._compare_host(self._ours.offloading, after)
        deferred = {request.request_id for request in self._theirs.deferred_waiting}
        self._compare(f"deferred after {after}", len(deferred), self._ours.num_deferred)
        self._compare(
            f"free blocks after {after}", pool.get_num_free_blocks(), self._ours.pool.num_free
        )
        hashes = set(self._ours.pool.list_cached_blocks().values())
        self._compare(
            f"cached blocks after {after}", len(pool.cached_block_hash_to_block), len(hashes)
        )

    def _compare_host(self, offloading: KvOffloading, after: str) -> None:
        """Compare the host's chunks. Their hashes differ, so each is identified by the
        requests that use it.
        """
        connector: Any = self._theirs.connector.connector_scheduler
        for id, status in connector._req_status.items():
            keys = offloading.list_keys(self._sequences[id])
            self._names.update(zip(status.group_states[0].offload_keys, keys, strict=False))
        chunks = connector.manager._policy.chunks
        theirs = {self._names[key]: chunk.ref_cnt for key, chunk in chunks.items()}
        self._compare(f"host chunks after {after}", theirs, offloading.cache.list_chunks())

    def _compare(self, what: str, theirs: object, ours: object) -> None:
        if theirs != ours:
            raise Difference(
                f"{self._case.name}, step {self._num_steps}: {what}: vLLM {theirs}, simulator "
                f"{ours}"
            )


def run_cases(vllm: VllmParts, cases: Sequence[Case]) -> Comparison:
    """Run cases and return the sums of the comparisons. Raises Difference at the first
    difference.
    """
    total = Counter[str]()
    for case in cases:
        total.update(Lockstep(case, vllm).run()._asdict())
    return Comparison(**{name: total[name] for name in Comparison._fields})


def describe(case: Case) -> str:
    """Return the case as JSON, for inspection."""
    return msgspec.json.format(msgspec.json.encode(case)).decode()
