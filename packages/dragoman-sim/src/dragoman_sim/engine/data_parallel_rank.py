"""A data-parallel rank in real time: it delivers the tokens of an engine core at the end
of each step, and counts. A `StepDriver` runs the steps.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from dragoman.core.engine_stats import (
    LENGTH_BUCKETS,
    PREEMPTION_BUCKETS,
    CacheConfig,
    EngineStats,
    KvOffloadStats,
    LoraState,
)
from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason
from dragoman.core.histogram import Histogram
from dragoman.core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Sampled,
    Scheduled,
    TokenLogprob,
)

from .engine_core import EngineCore, LaunchedSteps, StepOutcome
from .kv_events import KvEvent, KvEventBuilder
from .kv_transfers import KvTransfers, TransferContext
from .live_request import Delay, LiveRequest
from .reply_tokens import NO_TOKEN, ReplyTokensError, fake_logprob
from .sequence import SequenceStatus, SimulatedSequence
from .step_driver import CallAt, StepDriver

_MAX_CACHED_IMAGES = 1024
"""Number of images in the simulated cache of processed inputs; vLLM's is limited to 4
GiB instead.
"""


_MAX_UNCOUNTED = 256
"""Number of ended requests at which they are added to the counters without being asked
for.
"""


class EndedRequest(Struct, frozen=True, gc=False):
    """What an ended request adds to the counters.

    reason: None if the engine failed.
    at: time of the end; the other times are as in `LiveRequest`.
    choices: number of requested choices, for the first of them; 0 for the others.
    longest_choice: the length of the longest choice; None unless all of them have
        ended.
    """

    reason: FinishReason | None
    at: float
    arrived_at: float
    scheduled_at: float | None
    first_token_at: float | None
    last_token_at: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_preemptions: int
    choices: int
    longest_choice: int | None


class DataParallelRank:
    """An engine core in real time, which delivers outputs and updates counters.

    call_at: schedules callbacks on the rank's clock.
    on_finished: called after the last output of each request.
    publish: receives the events of the prefix cache; the pool must record them.
    transfer_context: settings of transfers with prefill or decode instances; None for
        aggregated serving.
    """

    def __init__(
        self,
        number: int,
        core: EngineCore,
        call_at: CallAt,
        *,
        vocab_size: int,
        on_finished: Callable[[LiveRequest], None],
        publish: Callable[[list[KvEvent]], None] | None = None,
        transfer_context: TransferContext | None = None,
    ) -> None:
        self.number = number
        self.core = core
        self.stats = EngineStats()
        self._call_at = call_at
        self._vocab_size = vocab_size
        self._on_finished = on_finished
        self._publish = publish
        config = core.scheduler.config
        self.event_builder = (
            None if publish is None else KvEventBuilder(config.block_size, config.num_gpu_blocks)
        )
        self.transfers = (
            None
            if transfer_context is None
            else KvTransfers(core.scheduler, transfer_context, call_at, self.launch_if_idle)
        )
        stats = self.stats
        stats.mm_cache_queries = stats.mm_cache_hits = 0
        # The labels of vLLM's metric `vllm:prompt_tokens_by_source`.
        self._by_source = {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0}
        stats.prompt_tokens_by_source = self._by_source
        self._longest_choice = stats.longest_choice = Histogram(LENGTH_BUCKETS)
        self._preemptions = stats.request_preemptions = Histogram(PREEMPTION_BUCKETS)
        self._computed_tokens = stats.request_computed_tokens = Histogram(LENGTH_BUCKETS)
        self._uncounted: list[EndedRequest] = []
        """Ended requests that the counters lack. Counting many at once costs less."""
        self._images: OrderedDict[bytes, None] = OrderedDict()
        self._live: dict[SimulatedSequence, LiveRequest] = {}
        self._driver = StepDriver([self], call_at)

    def join(self, driver: StepDriver) -> None:
        """Step with other ranks, before any request was added."""
        self._driver = driver

    @property
    def live(self) -> Iterable[LiveRequest]:
        return self._live.values()

    @property
    def load(self) -> int:
        """Load as in vLLM's data-parallel balancer: waiting requests count four times."""
        return 4 * self.core.scheduler.num_waiting + self.core.scheduler.num_running

    def update_stats(self, sleep_level: int) -> EngineStats:
        """Return the counters, with the scheduler's state as of now."""
        self._count_ended()
        stats = self.stats
        scheduler = self.core.scheduler
        stats.running = scheduler.num_running
        stats.waiting = scheduler.num_waiting
        stats.kv_cache_usage = scheduler.pool.usage
        stats.preemptions = scheduler.stats.num_preemptions
        stats.prefix_cache_queries = scheduler.stats.prefix_cache_queries
        stats.prefix_cache_hits = scheduler.stats.prefix_cache_hits
        if scheduler.config.num_speculative_tokens:
            stats.drafts = scheduler.stats.num_drafts
            stats.draft_tokens = scheduler.stats.num_draft_tokens
            stats.accepted_tokens = scheduler.stats.num_accepted_tokens
            stats.accepted_by_position = {
                str(position): count
                for position, count in enumerate(scheduler.stats.num_accepted_by_position)
            }
        deferred = scheduler.num_deferred
        stats.waiting_by_reason = {"capacity": stats.waiting - deferred, "deferred": deferred}
        stats.external_cache_queries = stats.external_cache_hits = 0
        if self.transfers is not None:
            # As in vLLM, every local miss is a query to the external cache, whether
            # another instance has it or not.
            stats.external_cache_queries = stats.prefix_cache_queries - stats.prefix_cache_hits
            stats.external_cache_hits = self.transfers.num_fetched_tokens
            stats.kv_transfer = self.transfers.stats
            stats.kv_fetch_by_stage = self.transfers.count_by_stage()
        num_fetched = stats.external_cache_hits
        num_loaded = 0
        if scheduler.offloading is not None and self.core.host_link is not None:
            offloaded = scheduler.offloading
            link = self.core.host_link
            stats.external_cache_queries = offloaded.stats.queries
            stats.external_cache_hits = num_loaded = offloaded.stats.hits
            stats.kv_offload = KvOffloadStats(
                load_bytes=link.loads.bytes,
                load_seconds=link.loads.seconds,
                load_sizes=link.loads.sizes,
                store_bytes=link.stores.bytes,
                store_seconds=link.stores.seconds,
                store_sizes=link.stores.sizes,
                failed_stores=offloaded.stats.num_failed_stores,
                usage=offloaded.cache.usage,
                write_usage=offloaded.cache.write_usage,
            )
        stats.cached_tokens_by_source = {
            "device": stats.prefix_cache_hits,
            "host": num_loaded,
            "p2p": num_fetched,
            "disk": 0,
            "external_unspecified": 0,
        }
        stats.sleep_level = sleep_level
        config = scheduler.config
        stats.cache = CacheConfig(
            config.block_size, config.num_gpu_blocks, config.enable_prefix_caching
        )
        running = {live.lora for live in self.live if live.lora and live.scheduled_at is not None}
        waiting = {live.lora for live in self.live if live.lora and live.scheduled_at is None}
        stats.lora = LoraState(tuple(sorted(waiting)), tuple(sorted(running)), config.max_loras)
        return stats

    def record_images(self, digests: Iterable[bytes]) -> None:
        """Count a request's images and their hits in the simulated cache of processed
        inputs.
        """
        stats = self.stats
        for digest in digests:
            stats.mm_cache_queries = (stats.mm_cache_queries or 0) + 1
            stats.mm_cache_hits = (stats.mm_cache_hits or 0) + (digest in self._images)
            self._images[digest] = None
            self._images.move_to_end(digest)
            if len(self._images) > _MAX_CACHED_IMAGES:
                self._images.popitem(last=False)

    def enqueue(self, live: LiveRequest, at: float) -> None:
        """Add a request to the scheduler's queue. The scheduler has already checked
        that it can run.

        at: time of arrival in the queue; may be in the past, if the loop runs late.
        """
        sequence = live.sequence
        live.queued_at = at
        sequence.arrival = at
        self._live[sequence] = live
        self.core.scheduler.enqueue(sequence)
        self._driver.launch_if_idle(at)

    def launch_if_idle(self, at: float) -> None:
        """Launch a step if none is running."""
        self._driver.launch_if_idle(at)

    def abort(self, live: LiveRequest, at: float) -> None:
        """Abort a request and free its blocks at once."""
        # As in vLLM, an aborted prefill holds no blocks for another instance: it has no
        # response that could name them.
        live.sequence.keeps_blocks = False
        queued = self._live.pop(live.sequence, None) is not None
        if queued:
            self.core.abort(live.sequence, aborted=True)
        if self.transfers is not None or self.core.host_link is not None:
            # Other sequences may be waiting for the freed blocks while no step is
            # running whose end would schedule them.
            self._call_at(at, self.launch_if_idle)
        if self.transfers is not None:
            self.transfers.cancel(live.sequence, at)
        if queued:
            self._record_stats(live, at, FinishReason.ABORT)

    def fail_all(self, message: str, at: float) -> None:
        """Fail all running and waiting requests."""
        for live in list(self._live.values()):
            del self._live[live.sequence]
            self.core.abort(live.sequence)
            if self.transfers is not None:
                self.transfers.cancel(live.sequence, at)
            self._record_stats(live, at, None)
            # Delayed outputs are dropped, so that the failure is delivered now and not
            # after them.
            live.delayed = None
            self._emit_last(live, Failed(live.id, message))
        if self.transfers is not None:
            self.transfers.clear()

    def abort_all(self, at: float) -> None:
        """Abort all running and waiting requests; they end with the output so far."""
        for live in list(self._live.values()):
            self._finish(live, Ended(live.id, FinishReason.ABORT), at)

    def end_step(self, outcome: StepOutcome) -> None:
        """Deliver all tokens of a step together, at its end."""
        at = outcome.at
        live_of = self._live
        stats = self.stats
        # Most gaps between tokens are equal, so equal ones are counted together.
        gap = 0.0
        equal_gaps = 0
        emitted = 0
        emit_plain_token = self._emit_plain_token
        for sequence in outcome.sampled:
            live = live_of[sequence]
            # Counted as a difference: a step may give several tokens, or none if the
            # reply ends before its token.
            count = live.num_output_tokens
            if live.first_token_at is None:
                self._on_first_token(live, at)
            # All sequences of a step get their token at its end, so in a steady batch
            # all of these gaps are the same float.
            elif at - live.last_token_at == gap:
                equal_gaps += 1
            else:
                if equal_gaps:
                    stats.inter_token.observe(gap, equal_gaps)
                gap = at - live.last_token_at
                equal_gaps = 1
            live.last_token_at = at
            emit = emit_plain_token if live.is_plain else self._emit_token
            emit(live, at)
            if sequence.num_sampled > 1:
                for _ in range(sequence.num_sampled - 1):
                    # A stop token among the accepted drafts ends the sequence; the
                    # drafts after it are dropped.
                    if sequence.status is SequenceStatus.FINISHED:
                        break
                    emit(live, at)
            emitted += live.num_output_tokens - count
        if equal_gaps:
            stats.inter_token.observe(gap, equal_gaps)
        stats.generation_tokens += emitted
        if outcome.load is not None:
            stats.iteration_tokens.observe(outcome.load.tokens)

    def _emit_plain_token(self, live: LiveRequest, at: float) -> None:
        count = live.num_output_tokens
        sequence = live.sequence
        id = sequence.id
        reply_tokens = live.reply_tokens
        try:
            token = reply_tokens.next_token(count)
        except ReplyTokensError as error:
            return self._finish(live, Failed(id, str(error)), at)
        if token == NO_TOKEN:
            return self._finish(live, Ended(id, live.reply.reason), at)
        live.num_output_tokens = count = count + 1
        # The scheduler hashes these tokens, so they must be complete when the next step
        # is scheduled.
        live.tokens.append(token)
        score = None if live.logprobs is None else self._fake_logprob(live, token, live.logprobs)
        if live.delayed is None:
            live.deliver(Sampled(id, token, score))
        else:
            live.delayed.append(Sampled(id, token, score))
        # Checked before the length: a stop token at the limit ends the reply with the
        # planned reason.
        if token in live.stop_token_ids and count > live.min_tokens:
            return self._finish(live, Ended(id, live.reply.reason, token), at)
        if count == sequence.max_tokens:
            return self._finish(live, Ended(id, FinishReason.LENGTH), at)
        if reply_tokens.is_finished:
            return self._finish(live, Ended(id, FinishReason.STOP), at)
        return None

    def _emit_token(self, live: LiveRequest, at: float) -> None:
        """Emit a token that may be delayed or replaced by a failure."""
        reply = live.reply
        id = live.id
        delay = reply.waits.get(live.num_output_tokens, 0.0) + reply.pace
        if delay:
            # All further outputs are delayed too. Delays add up.
            if live.delayed is None:
                live.delayed = deque()
                self._call_at(at + delay, lambda then: self._flush_delayed(live, then))
            else:
                live.delayed.append(Delay(delay))
        if live.cut_after is not None and live.num_output_tokens >= live.cut_after:
            return self._finish(
                live,
                Failed(id, "The connection was closed by an injected fault.", cuts_connection=True),
                at,
            )
        if reply.fails_at is not None and live.num_output_tokens >= reply.fails_at:
            return self._finish(live, Failed(id, reply.error), at)
        return self._emit_plain_token(live, at)

    def _fake_logprob(self, live: LiveRequest, token: int, alternatives: int) -> TokenLogprob:
        assert live.rng is not None
        return fake_logprob(token, alternatives, self._vocab_size, live.rng)

    def _flush_delayed(self, live: LiveRequest, at: float) -> None:
        delayed = live.delayed
        while delayed:
            output = delayed.popleft()
            if isinstance(output, Delay):
                self._call_at(at + output.seconds, lambda then: self._flush_delayed(live, then))
                return
            live.deliver(output)
            if isinstance(output, Ended | Failed):
                self._on_finished(live)
        live.delayed = None

    def _on_first_token(self, live: LiveRequest, at: float) -> None:
        stats = self.stats
        length = live.sequence.num_prompt_tokens
        fetched = live.sequence.num_fetched_tokens
        fetched += live.sequence.num_loaded_tokens
        cached = live.sequence.num_cached_tokens or 0
        by_source = self._by_source
        by_source["local_compute"] += length - cached
        by_source["local_cache_hit"] += cached - fetched
        by_source["external_kv_transfer"] += fetched
        stats.prompt_tokens_cached += cached
        live.first_token_at = at
        stats.ttft.observe(at - live.arrived_at)
        stats.prompt_tokens += length
        if live.prompt_logprobs is not None:
            scores = [
                self._fake_logprob(live, token, live.prompt_logprobs)
                for token in live.tokens[1:length]
            ]
            live.emit(PromptLogprobs(live.id, (None, *scores)))

    def _finish(self, live: LiveRequest, last: Ended | Failed, at: float) -> None:
        sequence = live.sequence
        del self._live[sequence]
        scheduler = self.core.scheduler
        # The scheduler has also counted accepted drafts after the stop token.
        if (
            scheduler.config.num_speculative_tokens
            and sequence.num_output_tokens > live.num_output_tokens
        ):
            scheduler.discard_sampled(sequence, sequence.num_output_tokens - live.num_output_tokens)
        scheduler.finish(sequence)
        # After the scheduler has decided whether the sequence keeps its blocks for
        # another instance.
        if self.transfers is not None:
            last = self.transfers.finish(sequence, last, at)
        self._record_stats(live, at, last.reason if isinstance(last, Ended) else None)
        self._emit_last(live, last)

    def _emit_last(self, live: LiveRequest, last: Ended | Failed) -> None:
        if live.delayed is None:
            live.deliver(last)
            self._on_finished(live)
        else:
            live.delayed.append(last)

    def handle_launch(self, launched: LaunchedSteps, at: float) -> None:
        """Report the requests that left the queue, end those with too little in the
        cache, and begin fetches.
        """
        for sequence in launched.admitted:
            live = self._live[sequence]
            # A preempted request is admitted again, but its time in the queue ends with
            # the first admission.
            if live.scheduled_at is None:
                live.scheduled_at = at
                self.stats.queue.observe(at - live.queued_at)
                scheduled = Scheduled(
                    sequence.id,
                    sequence.num_cached_tokens or 0,
                    self.core.scheduler.count_written_tokens(sequence),
                )
                if live.delayed is None:
                    live.deliver(scheduled)
                else:
                    live.delayed.append(scheduled)
        for sequence in launched.below_threshold:
            sequence.keeps_blocks = False
            live = self._live[sequence]
            self._finish(live, Ended(sequence.id, FinishReason.CACHE_THRESHOLD), at)
        if self.transfers is not None:
            for fetch in launched.fetching:
                self.transfers.fetch(fetch, at)
        if self._publish is not None:
            # Once per step, so that one batch has all events of the step.
            self.publish_cache_events()

    def publish_cache_events(self) -> None:
        """Publish changes of the prefix cache."""
        if self._publish is not None and self.event_builder is not None:
            events = self.event_builder.build_events(self.core.scheduler.pool.take_events())
            if events:
                self._publish(events)

    def _record_stats(self, live: LiveRequest, at: float, reason: FinishReason | None) -> None:
        sequence = live.sequence
        length = live.num_output_tokens
        lengths = live.choice_lengths
        self._uncounted.append(
            EndedRequest(
                reason,
                at,
                live.arrived_at,
                live.scheduled_at,
                live.first_token_at,
                live.last_token_at,
                sequence.num_prompt_tokens,
                sequence.num_cached_tokens or 0,
                length,
                sequence.max_tokens,
                sequence.num_preemptions,
                live.choices,
                length if lengths is None else lengths.record(length),
            )
        )
        if len(self._uncounted) >= _MAX_UNCOUNTED:
            self._count_ended()

    def _count_ended(self) -> None:
        """Add the requests that have ended since the last call to the counters."""
        stats = self.stats
        ended = self._uncounted
        self._uncounted = []
        for each in ended:
            stats.record_finish(each.reason)
        stats.latency.observe_all([each.at - each.arrived_at for each in ended])
        stats.request_prompt_tokens.observe_all([each.num_prompt_tokens for each in ended])
        stats.request_generation_tokens.observe_all([each.num_output_tokens for each in ended])
        stats.request_max_tokens.observe_all([each.max_tokens for each in ended])
        stats.request_choices.observe_all([each.choices for each in ended if each.choices])
        self._longest_choice.observe_all(
            [each.longest_choice for each in ended if each.longest_choice is not None]
        )
        self._preemptions.observe_all([each.num_preemptions for each in ended])
        self._computed_tokens.observe_all(
            [
                0 if each.scheduled_at is None else each.num_prompt_tokens - each.num_cached_tokens
                for each in ended
            ]
        )
        scheduled = [(each, each.scheduled_at) for each in ended if each.scheduled_at is not None]
        stats.inference.observe_all([each.at - begin for each, begin in scheduled])
        started = [
            (each, begin, each.first_token_at)
            for each, begin in scheduled
            if each.first_token_at is not None
        ]
        stats.prefill.observe_all([first - begin for _, begin, first in started])
        stats.decode.observe_all([each.last_token_at - first for each, _, first in started])
        stats.per_output_token.observe_all(
            [
                (each.last_token_at - first) / (each.num_output_tokens - 1)
                for each, _, first in started
                if each.num_output_tokens > 1
            ]
        )


class DataParallelBalancer:
    """Chooses the rank of a request, as in vLLM: the requested one, else the least
    loaded; ties go round robin.
    """

    def __init__(self) -> None:
        self._next_rank = 0

    def choose(self, ranks: Sequence[DataParallelRank], requested: int | None) -> DataParallelRank:
        """Choose a rank. Raises RequestError for a number out of range.

        requested: number of a rank; None means the least loaded one.
        """
        count = len(ranks)
        if requested is not None:
            if not 0 <= requested < count:
                raise RequestError(
                    f"x-data-parallel-rank: {requested} is not from 0 to {count - 1}.",
                    code="invalid_header",
                )
            return ranks[requested]
        # `min` returns the first of equals, so starting after the last chosen rank
        # makes ties go round robin.
        least_loaded = min(
            (ranks[(self._next_rank + step) % count] for step in range(count)),
            key=lambda rank: rank.load,
        )
        self._next_rank = (least_loaded.number + 1) % count
        return least_loaded
