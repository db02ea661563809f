"""Events of the prefix cache: a subscriber that receives all of them knows the contents
of the pool.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.token_engine import Ended, TokenOutput, TokenRequest
from dragoman_sim.engine.block_hashes import TokenContents
from dragoman_sim.engine.block_pool import BlockCached, SimulatedBlockPool
from dragoman_sim.engine.data_parallel_rank import DataParallelRank
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.keyed_random import KeyedRandom
from dragoman_sim.engine.kv_events import (
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvEventBuilder,
    truncate_hash,
)
from dragoman_sim.engine.kv_publisher import (
    REPLAY_END,
    ReplayBuffer,
    is_bound,
    offset_endpoint_port,
    parse_kv_events_config,
)
from dragoman_sim.engine.live_request import LiveRequest
from dragoman_sim.engine.reply_generator import PlannedReply
from dragoman_sim.engine.reply_tokens import PlannedTokens
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.sequence import SimulatedSequence

from .serving import twin


class Bench:
    """A rank on a virtual clock, and an index of its published blocks: hash to tokens."""

    def __init__(self, blocks: int = 12, block_size: int = 4) -> None:
        self.config = SimulatedSchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=16, block_size=block_size, num_gpu_blocks=blocks
        )
        self.calls: list[Any] = []
        self.numbers = count()
        self.index: dict[int, list[int]] = {}
        self.ended: list[str] = []
        pool = SimulatedBlockPool(blocks, record=True)
        core = EngineCore(SimulatedScheduler(self.config, pool), lambda _: 1.0)
        self.rank = DataParallelRank(
            0,
            core,
            self.call_at,
            vocab_size=100,
            on_finished=lambda live: self.ended.append(live.id),
            publish=self.hear,
        )

    def call_at(self, when: float, call: Any) -> None:
        heappush(self.calls, (when, next(self.numbers), call))

    def hear(self, events: list[KvEvent]) -> None:
        """Update the index from encoded events, as a router does."""
        payload = msgspec.msgpack.encode(KvEventBatch(0.0, events, 0))
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockStored":
                size = event["block_size"]
                for place, each in enumerate(event["block_hashes"]):
                    self.index[each] = event["token_ids"][place * size : (place + 1) * size]
            elif event["type"] == "BlockRemoved":
                for each in event["block_hashes"]:
                    del self.index[each]
            else:
                assert event["type"] == "AllBlocksCleared"
                self.index.clear()

    def add(
        self, prompt: list[int], max_tokens: int, outputs: list[TokenOutput] | None = None
    ) -> LiveRequest:
        id = str(next(self.numbers))
        now = self.calls[0][0] if self.calls else 0.0
        request = TokenRequest(id, tuple(prompt), max_tokens)
        ledger = self.rank.event_builder
        assert ledger is not None
        contents = TokenContents(self.config.block_size, list(prompt), on_hashed=ledger.add_hashed)
        sequence = SimulatedSequence(
            id, num_prompt_tokens=len(prompt), max_tokens=max_tokens, contents=contents
        )
        speech = PlannedTokens((), [1, 2, 3], 0, None, -1)
        collected: list[TokenOutput] = [] if outputs is None else outputs
        live = LiveRequest(
            request,
            collected.append,
            sequence,
            contents,
            PlannedReply(speech),
            KeyedRandom(id),
            arrived_at=now,
        )
        self.rank.enqueue(live, now)
        return live

    def step(self) -> None:
        when, _, call = heappop(self.calls)
        call(when)

    def check(self) -> None:
        pool = self.rank.core.scheduler.pool
        assert self.index.keys() == {
            truncate_hash(name) for name in pool.list_cached_blocks().values()
        }


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 14),
        st.integers(1, 12),
        st.sampled_from(["run", "step", "abort"]),
    ),
    max_size=25,
)


@given(REQUESTS)
def test_replayed_events_and_stats_match_scheduler_state(
    orders: list[tuple[int, int, int, str]],
):
    bench = Bench()
    lives: list[LiveRequest] = []
    for kind, length, max_tokens, then in orders:
        lives.append(bench.add([kind] * length, max_tokens))
        if then == "abort":
            live = lives[kind % len(lives)]
            bench.rank.abort(live, 0.0)
            assert not live.sequence.blocks
        for _ in range(0 if then == "run" else 3):
            if bench.calls:
                bench.step()
                bench.check()
    while bench.calls:
        bench.step()
        bench.check()
    stats = bench.rank.update_stats(sleep_level=0)
    scheduler = bench.rank.core.scheduler
    assert scheduler.pool.num_used == 0
    assert sum(stats.success.values()) == len(lives)
    assert stats.generation_tokens == sum(live.num_output_tokens for live in lives)
    assert stats.ttft.count == sum(live.first_token_at is not None for live in lives)
    assert stats.inter_token.count == stats.generation_tokens - stats.ttft.count


def test_block_stored_event_contains_tokens_and_parent():
    bench = Bench()
    received: list[KvEvent] = []
    bench.rank._publish = received.extend  # pyright: ignore[reportPrivateUsage]
    outputs: list[TokenOutput] = []
    bench.add([7, 8, 9, 10, 11, 12, 13, 14, 15], 1, outputs)
    while bench.calls:
        bench.step()
    assert isinstance(outputs[-1], Ended)
    (stored,) = msgspec.to_builtins(KvEventBatch(1.0, received, 0))[1]
    assert len(stored.pop("block_hashes")) == 2
    assert stored == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": [*range(7, 15)],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_block_stored_event_contains_lora_and_salt():
    builder = KvEventBuilder(block_size=1, num_blocks=4)
    for name, parent in ((b"a", None), (b"b", b"a")):
        builder.add_hashed(name, parent, [7], lora="poet", salt="mine")
    (stored,) = builder.build_events([BlockCached(1, b"a"), BlockCached(2, b"b")])
    assert isinstance(stored, BlockStored)
    assert (stored.lora_name, stored.extra_keys) == ("poet", [("poet", "mine"), ("poet",)])


def test_replay_buffer_returns_events_since_sequence_number():
    journal = ReplayBuffer(size=3)
    sent = [journal.add(KvEventBatch(float(number), [], None)) for number in range(5)]
    assert journal.since(3) == sent[3:]
    assert journal.since(0) == sent[2:]
    assert sent[1][0] == b"\x00\x00\x00\x00\x00\x00\x00\x01"


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/events", True),
        ("inproc://events", True),
        ("tcp://127.0.0.1:5557", True),
        ("tcp://localhost:5557", True),
        ("tcp://10.0.0.7:5557", False),
        ("tcp://epp.llm-d.svc.cluster.local:5557", False),
    ],
)
def test_endpoint_of_other_host_is_connected_to(endpoint: str, bound: bool) -> None:
    assert is_bound(endpoint) is bound


@pytest.mark.parametrize(
    ("endpoint", "rank", "own"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 2, "tcp://*:5559"),
        ("inproc://x", 1, "inproc://x_dp1"),
        ("tcp://*:0", 2, "tcp://*:0"),
    ],
)
def test_offset_endpoint_port_differs_per_rank(endpoint: str, rank: int, own: str):
    assert offset_endpoint_port(endpoint, rank) == own


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"publisher": "kafka"}', '{"endpoint": 5}', '{"end_point": ""}']
)
def test_parse_kv_events_config_invalid_raises(text: str):
    with pytest.raises(ValueError, match=r"kv-events-config"):
        parse_kv_events_config(text)


async def test_subscriber_receives_live_and_replayed_events(tmp_path: Any):
    endpoint = f"ipc://{tmp_path}/events"
    replay = f"ipc://{tmp_path}/replay"
    config = msgspec.json.encode(
        {"endpoint": endpoint, "replay_endpoint": replay, "topic": "kv"}
    ).decode()
    context: Any = zmq.asyncio.Context()
    async with twin(kv_events_config=config) as sim:
        await sim.chat("word " * 100, max_tokens=2)
        hearing = context.socket(zmq.SUB)
        asking = context.socket(zmq.DEALER)
        hearing.connect(endpoint)
        hearing.subscribe(b"kv")
        asking.connect(replay)
        await asking.send_multipart((b"", (0).to_bytes(8, "big")))
        _, number, payload = await asking.recv_multipart()
        ts, events, rank = msgspec.msgpack.decode(payload)
        assert (number, rank, events[0]["type"]) == ((0).to_bytes(8, "big"), 0, "BlockStored")
        assert ts > 1.7e9
        while (await asking.recv_multipart())[1] != REPLAY_END:
            pass
        for salt in range(100):
            # The subscription goes through the socket; events that are published before
            # it arrives are lost.
            await sim.chat("other " * 100, max_tokens=1, cache_salt=str(salt))
            if await hearing.poll(10):
                break
        topic, number, payload = await hearing.recv_multipart()
        assert topic == b"kv"
        assert int.from_bytes(number, "big") > 0
        assert msgspec.msgpack.decode(payload)[1]
    context.destroy(linger=0)
