"""The simulator as an engine: cores on the event loop's clock, and everything that a server may ask of a vLLM.

Knows nothing of HTTP. What a step does and how long it takes is told by `engine_core` and `latency`, what is said by
`composer`; here they meet requests, a clock and orders from an administrator.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import msgspec
import numpy as np

from ...core.control import PauseMode
from ...core.engine import Capabilities, Deliver, Failed, Health, TokenRequest, check_prompt
from ...core.errors import EngineError, Overloaded, QueueFull, RequestError, Unsupported
from ...core.metrics import EngineStats
from .balancing import Balancer
from .blocks import BlockPool
from .composer import Composer, entry_of
from .disaggregation import Address, TransferCost
from .draws import Draws
from .driven import KvTransfer, SimulatorConfig, capabilities, check, step_time
from .engine_core import EngineCore
from .faults import Fault
from .hashing import TokenContents, root_hash
from .kv_channel import KvChannel
from .kv_events import Event
from .kv_publisher import KvPublisher
from .latency import StepLoad
from .rank import Live, Rank
from .scheduler import Scheduler
from .sequence import Sequence as Running
from .striking import Striking, refusal
from .timetable import Timetable
from .transfers import Exchange, read_asked


class SimulatorEngine:
    """A `core.engine.TokenEngine`, `core.metrics.Monitored` and `core.control.Control` and `Directed`."""

    def __init__(
        self, config: SimulatorConfig, composer: Composer, *, vocab_size: int, unix_time: Callable[[], float]
    ) -> None:
        """unix_time: the time of day, which events carry."""
        self._unix_time = unix_time
        self._publishers: list[KvPublisher] = []
        self._channel: KvChannel | None = None
        self._config, self._composer, self._vocab_size = config, composer, vocab_size
        self._striking = Striking(config.faults, config.seed)
        self._ranks: list[Rank] = []
        self._live: dict[str, Live] = {}
        self._rank_of: dict[str, Rank] = {}
        self._arriving = 0
        self._ordinal = 0
        self._balancer = Balancer()
        self._timetable: Timetable | None = None
        self._moment: float | None = None
        self._ready_at = 0.0
        self._down: str | None = "the engine is not running"
        self._asleep = 0
        self._paused = False
        self._capabilities = capabilities(config, vocab_size)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._config.scheduler.context

    def faults(self) -> str:
        """The plan in force, as JSON text."""
        return self._striking.text()

    def set_faults(self, faults: object) -> None:
        """A new plan, which counts requests from 1 again. Raises RequestError."""
        self._striking.set(faults)

    def tell(self, reply: object) -> None:
        """As Directed.tell."""
        replies = cast("list[object]", reply) if isinstance(reply, list) else [reply]
        for entry in [entry_of(each, "reply") for each in replies]:
            self._composer.tell(entry)

    async def start(self) -> None:
        self._timetable = timetable = Timetable()
        transfer = self._config.kv_transfer
        exchange = None if transfer is None else await self._open(transfer)
        self._ranks = [self._rank(number, timetable, exchange) for number in range(self._config.ranks)]
        self._ready_at = timetable.now() + self._config.warm_up
        self._down = None

    async def _open(self, transfer: KvTransfer) -> Exchange:
        config, cost, scale = transfer.config, transfer.cost, self._config.time_scale
        self._channel = channel = KvChannel(config, self._fetched)
        port = await channel.open()
        return Exchange(
            Address(config.engine_id or "", config.kv_ip, port, transfer.tp_size),
            TransferCost(cost.bytes_per_token, cost.bandwidth * scale, cost.base_seconds / scale),
            config.kv_connector_extra_config.lease_seconds / scale,
            channel.report,
        )

    def _fetched(self, id: str) -> None:
        """Another instance says so."""
        for rank in self._ranks:
            if rank.transfers is not None:
                rank.transfers.release(id, self._now())

    def _rank(self, number: int, timetable: Timetable, exchange: Exchange | None) -> Rank:
        config = self._config
        publish = None
        if config.kv_events is not None and config.kv_events.publishes:
            publisher = KvPublisher(config.kv_events, number)
            self._publishers.append(publisher)
            publish = partial(self._tell_of_cache, publisher)
        pool = BlockPool(config.scheduler.num_gpu_blocks, record=publish is not None)
        core = EngineCore(Scheduler(config.scheduler, pool), step_time(config, number))
        return Rank(
            number,
            core,
            timetable.call_at,
            vocab_size=self._vocab_size,
            ended=self._forget,
            publish=publish,
            exchange=exchange,
        )

    def _tell_of_cache(self, publisher: KvPublisher, events: list[Event]) -> None:
        publisher.publish(self._unix_time(), events)

    async def stop(self) -> None:
        self._fail_all("The engine is shutting down.", "the engine is not running")
        if self._timetable is not None:
            self._timetable.close()
        if self._channel is not None:
            self._channel.close()
        for publisher in self._publishers:
            publisher.close()
        self._publishers.clear()

    def health(self) -> Health:
        running = sum(rank.core.scheduler.num_running for rank in self._ranks)
        waiting = self._arriving + sum(rank.core.scheduler.num_waiting for rank in self._ranks)
        reason = self._down
        if reason is None and self._now() < self._ready_at:
            reason = "the engine is warming up"
        return Health(reason is None, reason, waiting, running)

    def add(self, request: TokenRequest, deliver: Deliver) -> None:
        """As TokenEngine.add; raises as well whatever a script or a plan of faults says."""
        state = self.health()
        if not state.ready:
            raise Overloaded(f"Not ready: {state.reason}.")
        if request.id in self._live:
            raise ValueError(f"a sequence {request.id!r} is already running")
        check(request, self._vocab_size, self.max_model_len)
        if state.waiting >= self._config.max_num_waiting:
            raise QueueFull(f"{state.waiting} sequences are already queued; retry later.")
        fault = self._fault(request)
        rank = self._balancer.choose(self._ranks, dict(request.extras).get("data_parallel_rank"))
        live = self._live_of(request, deliver, fault, rank)
        rank.core.scheduler.check(live.sequence)
        self._expect(request, live, rank)
        self._live[request.id], self._rank_of[request.id] = live, rank
        self._arriving += 1
        arrival = live.arrived + self._config.frontend_seconds / self._config.time_scale
        self._clock.call_at(arrival, lambda at: self._arrive(live, rank, at))

    def abort(self, id: str) -> None:
        live = self._live.pop(id, None)
        if live is None:
            return
        live.fall_silent()
        self._rank_of.pop(id).drop(live, self._now())

    def _arrive(self, live: Live, rank: Rank, at: float) -> None:
        self._arriving -= 1
        if live.id in self._live and self._live[live.id] is live:
            rank.queue(live, at)

    def _live_of(self, request: TokenRequest, deliver: Deliver, fault: Fault | None, rank: Rank) -> Live:
        extras = dict(request.extras)
        lora = msgspec.json.decode(extras["lora"], type=str) if "lora" in extras else ""
        draws = self._draws(request)
        composition = self._composer.compose(request, draws)
        # A prompt that is scored is computed: the cache is not read for it.
        alone = request.id if request.prompt_logprobs is not None else ""
        block_size = self._config.scheduler.block_size
        ledger = rank.ledger
        contents = TokenContents(
            block_size,
            # Of plain numbers: an object of its own for each token of every stream would be most of what one takes.
            array("i", request.prompt),
            root_hash(lora, request.cache_salt, alone),
            None if ledger is None else partial(ledger.note, lora=lora),
        )
        sequence = Running(
            request.id,
            num_prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            contents=contents,
            priority=request.priority,
        )
        return Live(
            request, deliver, sequence, contents, composition, draws, arrived=self._present(), lora=lora, fault=fault
        )

    def _expect(self, request: TokenRequest, live: Live, rank: Rank) -> None:
        """What it says of another instance. An answer tells of one place, so only its first choice is kept."""
        text, transfer = dict(request.extras).get("kv_transfer_params"), self._config.kv_transfer
        if text is None or transfer is None or rank.transfers is None or self._channel is None:
            return
        asked = read_asked(text, transfer.config.kv_role)
        if asked.do_remote_prefill and not self._channel.reaches(asked):
            raise RequestError(
                "kv_transfer_params: remote_host is not among this instance's peers", param="kv_transfer_params"
            )
        if asked.do_remote_prefill or request.choice == 0:
            rank.transfers.expect(live.sequence, asked)

    def _draws(self, request: TokenRequest) -> Draws:
        """The same seed and request draw the same; without a seed, and warm, each request draws afresh."""
        sampling, config = request.sampling, self._config
        if sampling.seed is not None:
            chance = f"seed {sampling.seed}"
        elif sampling.temperature == 0:
            chance = "greedy"
        else:
            self._ordinal += 1
            chance = f"request {self._ordinal}"
        return Draws(config.seed, chance, np.array(request.prompt, np.int64).tobytes())

    def _fault(self, request: TokenRequest) -> Fault | None:
        """What strikes this request from within; raises where it is refused, or the engine dies of it."""
        fault = self._striking.meets(request)
        if fault is None:
            return None
        for kind in fault.kinds:
            self._ranks[0].stats.fault(kind)
        if fault.crash is not None:
            self.crash(fault.crash)
            raise EngineError(fault.message)
        if fault.status is not None:
            raise refusal(fault)
        return fault

    @property
    def _clock(self) -> Timetable:
        if self._timetable is None:
            raise EngineError("The engine is not running.")
        return self._timetable

    def _now(self) -> float:
        return 0.0 if self._timetable is None else self._timetable.now()

    def _present(self) -> float:
        """What is added in one turn of the event loop arrives together, as in one message to vLLM's engine core."""
        if self._moment is None:
            self._moment = self._now()
            asyncio.get_running_loop().call_soon(self._let_time_pass)
        return self._moment

    def _let_time_pass(self) -> None:
        self._moment = None

    def _forget(self, live: Live) -> None:
        if self._live.get(live.id) is live:
            del self._live[live.id], self._rank_of[live.id]

    def _fail_all(self, message: str, why: str | None) -> None:
        """Also those that have said all and wait with the rest of it."""
        self._down = why
        at = self._now()
        for rank in self._ranks:
            rank.fail(message, at)
        for live in list(self._live.values()):
            live.deliver(Failed(live.id, message))
            live.fall_silent()
        self._live.clear()
        self._rank_of.clear()

    # What an administrator may order.

    def crash(self, seconds: float) -> None:
        """Everything fails, and for so long nothing is taken; what was cached is gone."""
        self._fail_all("The engine crashed.", "the engine crashed and is being restarted")
        for rank in self._ranks:
            rank.core.scheduler.pool.reset()
        self._clock.call_at(self._now() + seconds, self._recover)

    def _recover(self, _: float) -> None:
        self._down = None

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """As Control.pause; what comes meanwhile waits. What is kept keeps its cache."""
        if mode == "wait":
            raise Unsupported(
                "A simulated engine cannot wait for running requests: use `abort` or `keep`.", param="mode"
            )
        if mode == "abort":
            for rank in self._ranks:
                rank.end_all(self._now())
        if not self._paused:
            self._paused = True
            self._clock.hold()
        if clear_cache and mode == "abort":
            self._reset_cache()

    async def abort_all(self) -> int:
        running = len(self._live)
        for rank in self._ranks:
            rank.end_all(self._now())
        return running

    async def resume(self) -> None:
        if self._paused and not self._asleep:
            self._paused = False
            self._clock.go_on()

    @property
    def is_paused(self) -> bool:
        return self._paused

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Give the accelerator's memory back: what is cached is lost. Requests wait until `wake_up`."""
        await self.pause(mode)
        self._asleep = level
        self._reset_cache()

    async def wake_up(self) -> None:
        self._asleep = 0
        await self.resume()

    @property
    def sleep_level(self) -> int:
        """As Control.sleep_level."""
        return self._asleep

    async def reset_prefix_cache(self) -> bool:
        """As PrefixCache.reset_prefix_cache."""
        return self._reset_cache()

    def _reset_cache(self) -> bool:
        """False where a block is still held: then nothing has changed, as in vLLM."""
        done = all([rank.core.scheduler.pool.reset() for rank in self._ranks])
        for rank in self._ranks:
            rank.tell_of_cache()
        return done

    def cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int:
        """As PrefixCache.cached_tokens; of the rank that has the most."""
        if len(prompt) < 2:
            return 0
        block_size = self._config.scheduler.block_size
        contents = TokenContents(block_size, list(prompt), root_hash("", cache_salt, ""))
        probe = Running("", num_prompt_tokens=len(prompt), max_tokens=1, contents=contents)
        found = (len(rank.core.scheduler.cached_prefix(probe)) for rank in self._ranks)
        return block_size * max(found, default=0)

    async def read(self, inputs: Sequence[tuple[int, ...]]) -> int:
        """Take the time that a prefill of these tokens takes; how many there were. Raises Overloaded, RequestError."""
        state = self.health()
        if not state.ready:
            raise Overloaded(f"Not ready: {state.reason}.")
        for ids in inputs:
            check_prompt(ids, self._vocab_size, self.max_model_len + 1)
        tokens = sum(map(len, inputs))
        load = StepLoad(tokens=tokens, prefill_pairs=sum(len(ids) ** 2 / 2 for ids in inputs), sequences=len(inputs))
        await self._rest(self._config.latency.seconds(load) / self._config.time_scale)
        self._ranks[0].stats.prompt_tokens += tokens
        return tokens

    async def _rest(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def over(_: float) -> None:
            if not done.done():
                done.set_result(None)

        self._clock.call_at(self._now() + seconds, over)
        await done

    def stats(self) -> Sequence[EngineStats]:
        return [rank.told(self._asleep, self._config.max_loras) for rank in self._ranks]
