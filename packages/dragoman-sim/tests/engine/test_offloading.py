"""KV offloading: the host's cache, its use by the scheduler, its transfer times, and
its metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.test_metrics import read

from dragoman.settings import SettingsError
from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.block_hashes import TracedContents
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.host_cache import HostCache, HostCacheUse
from dragoman_sim.engine.kv_offloading import HostLink, HostTransfer, OffloadingConfig
from dragoman_sim.engine.offloading_settings import OffloadingSettings
from dragoman_sim.engine.profile import load
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.sequence import SequenceStatus, SimulatedSequence
from dragoman_sim.lab.fleet import Fleet

from .serving import twin

BLOCK_SIZE = 4
PROFILE = load("rtx4090-llama-3.1-8b")


def use_of(*names: str) -> tuple[HostCacheUse, list[bytes]]:
    use = HostCacheUse()
    keys = [name.encode() for name in names]
    use.positions.update((key, index) for index, key in enumerate(keys))
    return use, keys


def store(cache: HostCache, *names: str) -> list[bytes] | None:
    """Run one request that stores chunks and ends."""
    use, keys = use_of(*names)
    stored = cache.begin_store(keys, use)
    cache.end_store(stored or [])
    cache.finish(use)
    return stored


def test_host_cache_evicts_end_of_least_recent_prefix() -> None:
    cache = HostCache(5)
    store(cache, "a1", "a2", "a3")
    store(cache, "b1", "b2")
    store(cache, "c1")
    assert sorted(cache.list_chunks()) == [b"a1", b"a2", b"b1", b"b2", b"c1"]
    store(cache, "a1")  # Found, so it is the most recent one; a2 is not.
    store(cache, "d1", "d2")
    assert sorted(cache.list_chunks()) == [b"a1", b"b1", b"c1", b"d1", b"d2"]


def test_host_cache_keeps_chunks_in_transfer() -> None:
    cache = HostCache(2)
    store(cache, "a1")
    reader, read = use_of("a1")
    cache.begin_load(read, reader)
    writer, written = use_of("b1")
    assert cache.begin_store(written, writer) == written
    assert store(cache, "c1") is None
    assert (cache.usage, cache.write_usage) == (1.0, 0.5)
    cache.end_load(read)
    assert store(cache, "c1") == [b"c1"]
    assert sorted(cache.list_chunks()) == [b"b1", b"c1"]


def test_host_cache_load_before_store_ends_raises() -> None:
    cache = HostCache(2)
    use, keys = use_of("a1")
    cache.begin_store(keys, use)
    with pytest.raises(ValueError, match="before it is stored"):
        cache.begin_load(keys, use)


@dataclass
class World:
    """A scheduler with offloading whose steps and transfers end in any order."""

    scheduler: SimulatedScheduler
    sequences: list[SimulatedSequence] = field(default_factory=list[SimulatedSequence])
    transfers: dict[int, HostTransfer] = field(default_factory=dict[int, HostTransfer])
    contents_of: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Contents of the device's blocks that are read by stores, when they were told to
    read them.
    """

    def add(self, number: int, prefix: int, length: int, answer: int) -> None:
        hashes = [f"{prefix}/{block}".encode() for block in range(length // BLOCK_SIZE)]
        contents = TracedContents(
            str(number), hashes, block_size=BLOCK_SIZE, traced_block_size=BLOCK_SIZE
        )
        sequence = SimulatedSequence(
            str(number), num_prompt_tokens=length, max_tokens=answer, contents=contents
        )
        self.sequences.append(sequence)
        self.scheduler.add(sequence)

    def step(self, keeps: int) -> None:
        """Run one step.

        keeps: every so many transfers do not end with this step.
        """
        step = self.scheduler.schedule()
        assert step.transfers is not None
        for transfer in (*step.transfers.loads, *step.transfers.stores):
            self.transfers[transfer.id] = transfer
        written = {block for chunk in step.chunks for block in chunk.sequence.blocks[-1:]}
        for transfer in self.transfers.values():
            if (
                transfer.is_store
                and transfer.id not in step.transfers.flushed
                and transfer.sequence not in self.active
            ):
                # Blocks of a finished sequence may be written again only after their
                # transfer was awaited.
                assert written.isdisjoint(transfer.blocks)
        for sequence in self.scheduler.update(step)[1]:
            self.scheduler.finish(sequence)
        ended = [id for id in self.transfers if id in step.transfers.flushed or id % 3 != keeps]
        self.scheduler.complete_transfers(ended)
        for id in ended:
            del self.transfers[id]
        self.check()

    @property
    def active(self) -> set[SimulatedSequence]:
        return {
            sequence
            for sequence in self.sequences
            if sequence.status is not SequenceStatus.FINISHED
        }

    def check(self) -> None:
        offloading = self.scheduler.offloading
        pool = self.scheduler.pool
        assert offloading is not None
        chunks = offloading.cache.list_chunks()
        assert len(chunks) <= offloading.cache.size
        for key, count in chunks.items():
            readers = sum(
                not each.is_store and key in each.keys for each in self.transfers.values()
            )
            writers = sum(each.is_store and key in each.keys for each in self.transfers.values())
            assert (readers, writers) == ((0, 1) if count == -1 else (count, 0))
        assert offloading.cache.num_idle == sum(not count for count in chunks.values())
        held = {block for sequence in self.sequences for block in sequence.blocks}
        assert pool.num_used == len(held)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 2), st.integers(4, 40), st.integers(1, 12), st.integers(0, 3)),
        min_size=1,
        max_size=14,
    ),
    aborts=st.sets(st.integers(0, 13), max_size=4),
    chunks=st.sampled_from([2, 6, 40]),
    blocks_per_chunk=st.sampled_from([1, 2]),
    prompt_only=st.booleans(),
)
def test_random_run_releases_all_blocks_and_chunks(
    requests: list[tuple[int, int, int, int]],
    aborts: set[int],
    chunks: int,
    blocks_per_chunk: int,
    *,
    prompt_only: bool,
) -> None:
    config = SimulatedSchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=BLOCK_SIZE,
        num_gpu_blocks=16,
        async_scheduling=False,
    )
    world = World(
        SimulatedScheduler(
            config, offloading=OffloadingConfig(chunks, blocks_per_chunk, prompt_only)
        )
    )
    for number, (prefix, length, answer, steps) in enumerate(requests):
        world.add(number, prefix, length, answer)
        for _ in range(steps):
            world.step(keeps=number % 3)
        if number in aborts:
            world.scheduler.finish(world.sequences[-1], aborted=True)
    for _ in range(1000):
        world.step(keeps=-1)
        if not world.active and not world.transfers:
            break
    assert not world.active
    assert not world.transfers
    assert world.scheduler.pool.num_used == 0
    assert world.scheduler.offloading is not None
    assert world.scheduler.offloading.cache.usage == 0


def test_abort_of_loaded_sequence_frees_its_blocks() -> None:
    config = SimulatedSchedulerConfig(
        block_size=BLOCK_SIZE, num_gpu_blocks=8, async_scheduling=False
    )
    world = World(SimulatedScheduler(config, offloading=OffloadingConfig(100)))
    for number, length in (
        (0, 20),
        (1, 24),
    ):  # The second takes blocks of the first, which are in host memory then.
        world.add(number, number, length, answer=1)
        while world.active or world.transfers:
            world.step(keeps=-1)
    world.add(2, 0, 24, answer=1)
    loaded = world.sequences[-1]
    world.add(3, 3, 5, answer=3)  # It takes the last free blocks.
    for _ in range(2):
        world.step(keeps=-1)
    assert (loaded.status, loaded.is_loaded, world.scheduler.pool.num_free) == (
        SequenceStatus.LOADING,
        True,
        0,
    )
    world.scheduler.finish(loaded, aborted=True)
    while world.active or world.transfers:
        world.step(keeps=-1)
    assert world.scheduler.pool.num_used == 0


def build_turns(conversations: int, turns: int) -> list[WorkloadRequest]:
    """Build interleaved conversations, so that each continues after the others have
    used the cache.
    """
    return [
        WorkloadRequest(
            id=f"{conversation}/{turn}",
            arrival_s=6.0 * turn + 0.3 * conversation,
            input_tokens=1600 * (turn + 1),
            output_tokens=20,
            block_hashes=tuple(f"{conversation}/{block}" for block in range(100 * (turn + 1))),
            block_size=16,
        )
        for turn in range(turns)
        for conversation in range(conversations)
    ]


def fleet(gibibytes: float | None, *, blocks: int = 1000) -> Fleet:
    engine = msgspec.structs.replace(PROFILE.engine, num_gpu_blocks=blocks)
    profile = msgspec.structs.replace(PROFILE, engine=engine)
    return Fleet(
        profile=profile,
        offloading=None if gibibytes is None else profile.build_offloading(gibibytes),
    )


def test_host_cache_reduces_ttft_if_gpu_cache_is_too_small() -> None:
    workload = build_turns(conversations=12, turns=4)
    without, small, large = (fleet(size).build_report(workload) for size in (None, 0.5, 16.0))
    assert without.host_cache_hits is None
    assert small.host_cache_hits is not None
    assert large.host_cache_hits is not None
    assert without.cache_hits < small.cache_hits + 1e-9 < large.cache_hits
    assert large.host_cache_hits > 0.4
    assert large.ttft.mean < 0.5 * without.ttft.mean


def test_host_cache_is_unused_if_gpu_cache_suffices() -> None:
    workload = build_turns(conversations=3, turns=3)
    with_host = fleet(8.0, blocks=4000).build_report(workload)
    without = fleet(None, blocks=4000).build_report(workload)
    assert with_host.host_cache_hits == 0
    assert with_host.ttft.mean == pytest.approx(without.ttft.mean, rel=0.02)


def test_host_link_load_time_is_bytes_over_bandwidth() -> None:
    settings_ = OffloadingSettings(
        size=2**30, bytes_per_token=131072, num_devices=2, bandwidth=1e9, base_seconds=0.001
    )
    link = settings_.build_link(16)
    sequence = SimulatedSequence(
        "a",
        num_prompt_tokens=1,
        max_tokens=1,
        contents=TracedContents("a", [], block_size=16, traced_block_size=16),
    )
    transfers = [HostTransfer(id, sequence, id == 2, [b"1", b"2"], [1, 2]) for id in range(3)]
    seconds = 0.001 + 2 * 16 * 131072 / 2 / 1e9
    ends = [link.begin(transfer, 1.0) for transfer in transfers]
    assert ends == pytest.approx(
        [1 + seconds, 1 + 2 * seconds, 1 + seconds]
    )  # One direction does not delay the other.
    assert link.next_end == pytest.approx(1 + seconds)
    assert link.pop_ended(1.5) == [0, 2, 1]
    assert link.loads.bytes == 2 * 2 * 16 * 131072
    assert settings_.build_config(16).num_chunks == 2**30 // (16 * 131072)


def test_engine_runs_other_sequences_during_load() -> None:
    config = SimulatedSchedulerConfig(
        block_size=BLOCK_SIZE, num_gpu_blocks=8, max_num_batched_tokens=64
    )
    scheduler = SimulatedScheduler(config, offloading=OffloadingConfig(100))
    core = EngineCore(scheduler, lambda _: 1.0, host_link=HostLink(1.0, 1.0, 10.0))
    now = 0.0

    def serve(id: str, prefix: str, tokens: int) -> SimulatedSequence:
        hashes = [f"{prefix}{block}".encode() for block in range(tokens // BLOCK_SIZE)]
        contents = TracedContents(id, hashes, block_size=BLOCK_SIZE, traced_block_size=BLOCK_SIZE)
        sequence = SimulatedSequence(id, num_prompt_tokens=tokens, max_tokens=1, contents=contents)
        core.add(sequence)
        core.step(now)
        return sequence

    def drain() -> None:
        nonlocal now
        while core.next_due is not None:
            now = core.next_due
            core.step(now)

    serve("a", "a", 20)
    drain()
    serve("b", "b", 24)  # It takes all blocks of the first one but one.
    drain()
    again = serve("c", "a", 20)
    assert again.status is SequenceStatus.LOADING
    began = now
    due = core.next_due
    assert due is not None
    assert due == pytest.approx(
        began + 10 + 4
    )  # 4 chunks of 1 byte at 1 byte a second, after 10 seconds
    other = serve("d", "d", 4)
    assert other.status is SequenceStatus.RUNNING
    drain()
    assert again.status is other.status is SequenceStatus.FINISHED
    assert again.num_loaded_tokens == 15
    assert now == pytest.approx(due + 1)


async def test_metrics_report_stored_and_loaded_blocks():
    """Each prompt evicts the one before it from the GPU; the first one comes back from
    the host.
    """
    prompt = "word " * 40
    async with twin(
        num_gpu_blocks_override=7, max_model_len=96, block_size=16, kv_offloading_size=1.0
    ) as sim:
        first = (await sim.chat(prompt, max_tokens=2, ignore_eos=True))["usage"]["prompt_tokens"]
        await sim.chat("other " * 60, max_tokens=2, ignore_eos=True)
        again = (await sim.chat(prompt, max_tokens=2, ignore_eos=True))["usage"]
        scraped = await sim.get("/metrics")
    hits = read(scraped, "vllm:external_prefix_cache_hits_total") or 0
    assert hits >= 16
    assert hits % 16 == 0
    device = read(scraped, "vllm:prompt_tokens_cached_by_source_total", source="device") or 0
    assert read(scraped, "vllm:prompt_tokens_cached_by_source_total", source="host") == hits
    assert again["prompt_tokens"] == first
    assert again["prompt_tokens_details"]["cached_tokens"] == hits + device
    assert (
        read(scraped, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == hits
    )
    bytes_per_token = PROFILE.model.kv_bytes_per_token or 0
    assert read(scraped, "vllm:kv_offload_load_bytes_total") == hits * bytes_per_token
    assert (
        read(scraped, "vllm:kv_offload_store_bytes_total") or 0
    ) >= first // 16 * 16 * bytes_per_token
    assert (read(scraped, "vllm:kv_offload_load_time_total") or 0) > 0
    assert read(scraped, "vllm:kv_offload_load_size_count") == 1
    assert read(scraped, "vllm:kv_offload_allocation_failure_total") == 0
    assert read(scraped, "vllm:kv_offload_cpu_cache_read_usage_perc") == 0


async def test_metrics_without_offloading_omit_kv_offload():
    async with twin() as sim:
        assert "vllm:kv_offload" not in (await sim.get("/metrics")).text


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"kv_offloading_backend": "lmcache"}, "only `native`"),
        ({"enable_prefix_caching": False}, "with prefix caching"),
        (
            {"kv_transfer_config": '{"kv_connector": "NixlConnector"}'},
            "together with --kv-transfer-config",
        ),
        ({"kv_offloading_size": 0.0}, "more than 0"),
    ],
)
async def test_unsupported_offloading_settings_are_rejected(more: dict[str, Any], complaint: str):
    with pytest.raises(SettingsError, match=complaint):
        async with twin(**{"kv_offloading_size": 1.0} | more):
            pass


def test_unsimulated_offloading_combinations_raise() -> None:
    with pytest.raises(ValueError, match="without speculative decoding"):
        SimulatedScheduler(
            SimulatedSchedulerConfig(num_speculative_tokens=2), offloading=OffloadingConfig(4)
        )
    with pytest.raises(ValueError, match="less than one chunk"):
        PROFILE.build_offloading(0.001).build_config(16)
    with pytest.raises(ValueError, match="a link to the host is required"):
        EngineCore(
            SimulatedScheduler(SimulatedSchedulerConfig(), offloading=OffloadingConfig(4)),
            lambda _: 1.0,
        )
