"""One engine core that serves: what it says to whom at the end of each step, and what it counts of that. Pure.

The clock is a driver's: `tick` is called at the times that it has asked for. What is said goes out through `deliver`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from ...core.engine import Deliver, Ended, Failed, PromptScored, Sampled, Scheduled, Score, TokenOutput, TokenRequest
from ...core.events import FinishReason
from ...core.metrics import CacheConfig, EngineStats, LoraState
from .composer import Composition
from .draws import Draws
from .engine_core import EngineCore, Outcome
from .faults import Fault
from .hashing import TokenContents
from .kv_events import Event, Ledger
from .pretended import pretend
from .sequence import Sequence
from .speech import NOTHING, SpeechError
from .transfers import Exchange, Transfers

CallAt = Callable[[float, Callable[[float], None]], None]
"""At this time, call that with this time: also if it is late."""


class Pause(Struct, frozen=True):
    """Between two outputs that are held."""

    seconds: float


class Live:
    """A request that is being answered.

    Of what was asked no more is kept than is looked at later. choices: that were asked for, of the first of them.
    held: what has been said and is not told yet. arrived, scheduled, first, last:
    when it came, left the queue, had its first token and its last so far.
    """

    __slots__ = (
        "arrived",
        "choices",
        "composition",
        "count",
        "cut_after",
        "deliver",
        "draws",
        "first",
        "held",
        "is_plain",
        "last",
        "logprobs",
        "lora",
        "min_tokens",
        "prompt_logprobs",
        "queued",
        "scheduled",
        "sequence",
        "speech",
        "stop_token_ids",
        "tokens",
    )

    def __init__(
        self,
        request: TokenRequest,
        deliver: Deliver,
        sequence: Sequence,
        contents: TokenContents,
        composition: Composition,
        draws: Draws,
        *,
        arrived: float,
        lora: str = "",
        fault: Fault | None = None,
    ) -> None:
        self.deliver, self.sequence, self.composition = deliver, sequence, composition
        self.stop_token_ids, self.min_tokens = request.stop_token_ids, request.min_tokens
        self.logprobs, self.prompt_logprobs = request.logprobs, request.prompt_logprobs
        # For scores; what is said has been drawn.
        self.draws = None if request.logprobs is None and request.prompt_logprobs is None else draws
        self.choices = 0 if request.choice else 1 if request.asked is None else request.asked.choices
        self.tokens, self.speech, self.lora = contents.tokens, composition.speech, lora
        self.cut_after = None if fault is None else fault.cut_after
        self.held: deque[TokenOutput | Pause] | None = None
        if fault is not None:
            self.composition = _struck(composition, fault)
        self.count = 0
        self.arrived = self.queued = self.last = arrived
        self.scheduled: float | None = None
        self.first: float | None = None
        told = self.composition
        self.is_plain = not (told.waits or told.pace or told.fails_at is not None or self.cut_after is not None)

    @property
    def id(self) -> str:
        return self.sequence.id

    def say(self, output: TokenOutput) -> None:
        if self.held is None:
            self.deliver(output)
        else:
            self.held.append(output)

    def fall_silent(self) -> None:
        """Nothing that is held is told any more."""
        self.deliver = _to_nobody


def _to_nobody(_: TokenOutput) -> None:
    """Whoever asked has gone."""


def _struck(told: Composition, fault: Fault) -> Composition:
    """What becomes of an answer that a fault meets."""
    waits = dict(told.waits)
    if fault.hang:
        waits[0] = waits.get(0, 0.0) + fault.hang
    if fault.fail_after is None:
        return msgspec.structs.replace(told, waits=waits)
    return msgspec.structs.replace(told, waits=waits, fails_at=fault.fail_after, error=fault.message)


class Rank:
    """call_at: the driver's clock. ended: told of everyone who has been told the last. publish: told of what changes in
    the prefix cache, for which the pool has to record it. exchange: with instances that prefill or decode for it.
    """

    def __init__(
        self,
        number: int,
        core: EngineCore,
        call_at: CallAt,
        *,
        vocab_size: int,
        ended: Callable[[Live], None],
        publish: Callable[[list[Event]], None] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.number, self.core, self.stats = number, core, EngineStats()
        self._call_at, self._vocab_size = call_at, vocab_size
        self._ended, self._publish = ended, publish
        config = core.scheduler.config
        self.ledger = None if publish is None else Ledger(config.block_size, config.num_gpu_blocks)
        self.transfers = None if exchange is None else Transfers(core.scheduler, exchange, call_at, self.begin)
        self._live: dict[Sequence, Live] = {}
        self._asked: float | None = None
        """The time at which `tick` was asked for."""

    @property
    def live(self) -> Iterable[Live]:
        return self._live.values()

    @property
    def load(self) -> int:
        """As vLLM's own balancer weighs it: who waits counts four times."""
        return 4 * self.core.scheduler.num_waiting + self.core.scheduler.num_running

    def told(self, asleep: int, max_loras: int) -> EngineStats:
        """Its counters, with the scheduler's state as of now."""
        stats, scheduler = self.stats, self.core.scheduler
        stats.running, stats.waiting = scheduler.num_running, scheduler.num_waiting
        stats.kv_cache_usage = scheduler.pool.usage
        stats.preemptions = scheduler.stats.num_preemptions
        stats.prefix_cache_queries = scheduler.stats.prefix_cache_queries
        stats.prefix_cache_hits = stats.prompt_tokens_cached = scheduler.stats.prefix_cache_hits
        if self.transfers is not None:
            # As in vLLM all that is not here is looked for there, whether another instance has it or not.
            stats.external_cache_queries = stats.prefix_cache_queries - stats.prefix_cache_hits
            stats.external_cache_hits = self.transfers.num_fetched
        stats.asleep = asleep
        config = scheduler.config
        stats.cache = CacheConfig(config.block_size, config.num_gpu_blocks, config.enable_prefix_caching)
        stats.lora = self._loras(max_loras)
        return stats

    def _loras(self, most: int) -> LoraState:
        running = {live.lora for live in self.live if live.lora and live.scheduled is not None}
        waiting = {live.lora for live in self.live if live.lora and live.scheduled is None}
        return LoraState(tuple(sorted(waiting)), tuple(sorted(running)), most)

    def queue(self, live: Live, at: float) -> None:
        """It joins the scheduler's queue. The scheduler has checked that it can run."""
        live.queued = at
        live.sequence.arrival = at
        self._live[live.sequence] = live
        self.core.add(live.sequence)
        self.begin(at)

    def begin(self, at: float) -> None:
        """If nothing runs, something can."""
        if self.core.due is None:
            self._launch(at)

    def drop(self, live: Live, at: float) -> None:
        """Aborted: its blocks are free at once."""
        queued = self._live.pop(live.sequence, None) is not None
        if queued:
            self.core.abort(live.sequence)
        if self.transfers is not None:
            self.transfers.leave(live.sequence, at)
            self._call_at(at, self.begin)
        if queued:
            self._account(live, at, FinishReason.ABORT)

    def fail(self, message: str, at: float) -> None:
        """Everything that runs or waits ends in this failure."""
        for live in list(self._live.values()):
            del self._live[live.sequence]
            self.core.abort(live.sequence)
            if self.transfers is not None:
                self.transfers.leave(live.sequence, at)
            self._account(live, at, None)
            live.held = None
            self._last_word(live, Failed(live.id, message))
        if self.transfers is not None:
            self.transfers.clear()

    def end_all(self, at: float) -> None:
        """Everything that runs or waits ends as aborted, with what it has said."""
        for live in list(self._live.values()):
            self._end(live, Ended(live.id, FinishReason.ABORT), at)

    def tick(self, at: float) -> None:
        """The step that ends at this time. Everyone's token goes out together."""
        self._asked = None
        outcome = self.core.commit(at)
        if outcome.sampled:
            self._say(outcome)
        if outcome.load is not None:
            self.stats.iteration_tokens.observe(outcome.load.tokens)
        self._launch(outcome.at)

    def _say(self, outcome: Outcome) -> None:
        """The hot loop. Gaps between tokens are mostly the same for all, so equal ones are counted together."""
        live_of, at, stats = self._live, outcome.at, self.stats
        gap, alike, said = 0.0, 0, 0
        for sequence in outcome.sampled:
            live = live_of[sequence]
            said -= live.count
            if live.first is None:
                self._begins(live, at)
            elif at - live.last == gap:
                alike += 1
            else:
                if alike:
                    stats.inter_token.observe(gap, alike)
                gap, alike = at - live.last, 1
            live.last = at
            if live.is_plain:
                self._plain_token(live, at)
            else:
                self._token(live, at)
            said += live.count
        if alike:
            stats.inter_token.observe(gap, alike)
        stats.generation_tokens += said

    def _plain_token(self, live: Live, at: float) -> None:
        count, id = live.count, live.sequence.id
        try:
            token = live.speech.next(count)
        except SpeechError as error:
            return self._end(live, Failed(id, str(error)), at)
        if token == NOTHING:
            return self._end(live, Ended(id, live.composition.reason), at)
        live.count = count = count + 1
        live.tokens.append(token)
        score = None if live.logprobs is None else self._score(live, token, live.logprobs)
        if live.held is None:
            live.deliver(Sampled(id, token, score))
        else:
            live.held.append(Sampled(id, token, score))
        if token in live.stop_token_ids and count > live.min_tokens:
            return self._end(live, Ended(id, live.composition.reason, token), at)
        if count == live.sequence.max_tokens:
            return self._end(live, Ended(id, FinishReason.LENGTH), at)
        return self._end(live, Ended(id, FinishReason.STOP), at) if live.speech.over else None

    def _token(self, live: Live, at: float) -> None:
        """One with something about it: a pause before it, a failure in its place."""
        told, id = live.composition, live.id
        pause = told.waits.get(live.count, 0.0) + told.pace
        if pause:
            self._pause(live, pause, at)
        if live.cut_after is not None and live.count >= live.cut_after:
            return self._end(live, Failed(id, "The connection was closed by an injected fault.", cut=True), at)
        if told.fails_at is not None and live.count >= told.fails_at:
            return self._end(live, Failed(id, told.error), at)
        return self._plain_token(live, at)

    def _score(self, live: Live, token: int, alternatives: int) -> Score:
        assert live.draws is not None
        return pretend(token, alternatives, self._vocab_size, live.draws)

    def _pause(self, live: Live, seconds: float, at: float) -> None:
        """What comes next is told so much later. Pauses add up behind each other."""
        if live.held is None:
            live.held = deque()
            self._call_at(at + seconds, lambda then: self._release(live, then))
        else:
            live.held.append(Pause(seconds))

    def _release(self, live: Live, at: float) -> None:
        held = live.held
        while held:
            output = held.popleft()
            if isinstance(output, Pause):
                self._call_at(at + output.seconds, lambda then: self._release(live, then))
                return
            live.deliver(output)
            if isinstance(output, Ended | Failed):
                self._ended(live)
        live.held = None

    def _begins(self, live: Live, at: float) -> None:
        stats, length = self.stats, live.sequence.num_prompt_tokens
        live.first = at
        stats.ttft.observe(at - live.arrived)
        stats.prompt_tokens += length
        if live.prompt_logprobs is not None:
            rest = [self._score(live, token, live.prompt_logprobs) for token in live.tokens[1:length]]
            live.say(PromptScored(live.id, (None, *rest)))

    def _end(self, live: Live, last: Ended | Failed, at: float) -> None:
        del self._live[live.sequence]
        self.core.abort(live.sequence)
        if self.transfers is not None:
            last = self.transfers.close(live.sequence, last, at)
        self._account(live, at, last.reason if isinstance(last, Ended) else None)
        self._last_word(live, last)

    def _last_word(self, live: Live, last: Ended | Failed) -> None:
        live.say(last)
        if live.held is None:
            self._ended(live)

    def _launch(self, at: float) -> None:
        launched = self.core.launch(at)
        for sequence in launched[0]:
            live = self._live[sequence]
            if live.scheduled is None:
                live.scheduled = at
                self.stats.queue.observe(at - live.queued)
                live.say(Scheduled(live.id, sequence.num_cached_tokens or 0))
        if self.transfers is not None:
            for fetch in launched.fetching:
                self.transfers.fetch(fetch, at)
        due = self.core.due
        if due is not None and due != self._asked:
            self._asked = due
            self._call_at(due, self.tick)
        self.tell_of_cache()

    def tell_of_cache(self) -> None:
        """What has changed in the prefix cache goes to those who listen."""
        if self._publish is not None and self.ledger is not None:
            events = self.ledger.told(self.core.scheduler.pool.take_events())
            if events:
                self._publish(events)

    def _account(self, live: Live, at: float, reason: FinishReason | None) -> None:
        stats, sequence = self.stats, live.sequence
        stats.finished(reason)
        stats.latency.observe(at - live.arrived)
        stats.request_prompt_tokens.observe(sequence.num_prompt_tokens)
        stats.request_generation_tokens.observe(live.count)
        stats.request_max_tokens.observe(sequence.max_tokens)
        if live.choices:
            stats.request_choices.observe(live.choices)
        if live.scheduled is not None:
            stats.inference.observe(at - live.scheduled)
        if live.first is not None and live.scheduled is not None:
            stats.prefill.observe(live.first - live.scheduled)
            stats.decode.observe(live.last - live.first)
            if live.count > 1:
                stats.per_output_token.observe((live.last - live.first) / (live.count - 1))
