"""One server prefills and another decodes: parameters for routers, held blocks, and
transfer times.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

import httpx2
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason
from dragoman.core.token_engine import Ended, Failed
from dragoman_sim.engine.kv_notices import KvNotifier
from dragoman_sim.engine.kv_transfer_config import parse_kv_transfer_config
from dragoman_sim.engine.kv_transfers import KvTransfers, TransferContext
from dragoman_sim.engine.network_link import TransferCost
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.sequence import SimulatedSequence
from dragoman_sim.engine.transfer_params import KvAddress, KvTransferParams, parse_transfer_params

from .checked_scheduler import sequence
from .serving import Twin, twin

CONFIG = SimulatedSchedulerConfig(num_gpu_blocks=20, block_size=4, async_scheduling=False)
PREFILL = KvTransferParams(do_remote_decode=True)
DECODE = KvTransferParams(do_remote_prefill=True, remote_request_id="far", remote_num_tokens=8)
LENGTH = Ended("a", FinishReason.LENGTH)


class Side:
    """One simulated instance on a virtual clock."""

    def __init__(self) -> None:
        self.scheduler = SimulatedScheduler(CONFIG)
        self.reported: list[str | None] = []
        self.woken: list[float] = []
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        cost = TransferCost(bytes_per_token=10.0, bandwidth=100.0, base_seconds=0.5)
        exchange = TransferContext(KvAddress("engine"), cost, 30.0, self._report)
        self.transfers = KvTransfers(self.scheduler, exchange, self._call_at, self.woken.append)

    def _report(self, source: KvTransferParams) -> None:
        self.reported.append(source.remote_request_id)

    def _call_at(self, at: float, call: Callable[[float], None]) -> None:
        heappush(self._calls, (at, next(self._numbers), call))

    def until(self, at: float) -> None:
        while self._calls and self._calls[0][0] <= at:
            when, _, call = heappop(self._calls)
            call(when)

    def prefilled(self, id: str = "a") -> SimulatedSequence:
        done = sequence(id, [ord(id)] * 8, 1)
        self.transfers.register(done, PREFILL)
        self.scheduler.add(done)
        self.scheduler.update(self.scheduler.schedule())
        self.scheduler.finish(done)
        return done

    def fetching(self, id: str, at: float) -> SimulatedSequence:
        far = sequence(id, [ord(id)] * 8, 3)
        self.transfers.register(far, DECODE)
        self.scheduler.add(far)
        for fetch in self.scheduler.schedule().fetching:
            self.transfers.fetch(fetch, at)
        return far


def test_prefilled_blocks_are_held_until_release_or_lease_expiry() -> None:
    side = Side()
    for id in ("a", "b"):
        params = side.transfers.finish(side.prefilled(id), LENGTH, 1.0)
        assert isinstance(params, Ended)
        assert f'"remote_request_id":"{id}"' in (params.kv_transfer_params or "")
    assert (side.transfers.num_leased, side.scheduler.pool.num_used) == (2, 4)
    side.transfers.release("a", 2.0)
    side.transfers.release("a", 2.0)
    side.until(30.9)
    assert (side.transfers.num_leased, side.scheduler.pool.num_used) == (1, 2)
    side.until(31.0)
    assert (side.transfers.num_leased, side.scheduler.pool.num_used) == (0, 0)
    assert side.woken[-1] == 31.0


@pytest.mark.parametrize("last", [Ended("a", FinishReason.CONTENT_FILTER), Failed("a", "no")])
def test_aborted_or_failed_prefill_holds_no_blocks(
    last: Ended | Failed,
) -> None:
    side = Side()
    assert side.transfers.finish(side.prefilled(), last, 1.0) == last
    assert side.scheduler.pool.num_used == 0


def test_fetches_share_link_and_are_reported_once() -> None:
    side = Side()
    first = side.fetching("x", 0.0)
    second = side.fetching("y", 0.0)
    side.until(2.0)
    assert (first.num_computed_tokens, side.reported) == (0, [])
    side.until(2.1)
    assert (first.num_computed_tokens, second.num_computed_tokens) == (7, 7)
    side.transfers.cancel(first, 3.0)
    assert side.reported == ["far", "far"]
    assert side.woken[-1] == pytest.approx(2.1), "0.5 s and 2 * 80 bytes at 100 per second"


def test_disconnect_cancels_transfer_and_frees_bandwidth() -> None:
    side = Side()
    gone = side.fetching("x", 0.0)
    other = side.fetching("y", 0.0)
    side.scheduler.finish(gone)
    side.transfers.cancel(gone, 0.4)
    assert side.reported == ["far"]
    side.until(1.5)
    assert other.num_computed_tokens == 7
    assert side.scheduler.pool.num_used == 2


def test_fetches_are_counted_by_stage_and_observed() -> None:
    side = Side()
    waiting = sequence("w", [1] * 8, 3)
    side.transfers.register(waiting, DECODE)
    assert side.transfers.count_by_stage() == build_stages(1, 0, 0)
    side.transfers.cancel(waiting, 0.0)
    side.fetching("x", 1.0)
    side.fetching("y", 1.0)
    assert side.transfers.count_by_stage() == build_stages(0, 2, 0)
    side.until(10.0)
    assert side.transfers.count_by_stage() == build_stages(0, 0, 2)
    side.scheduler.schedule()
    assert side.transfers.count_by_stage() == build_stages(0, 0, 0)
    stats = side.transfers.stats
    assert stats.seconds.sum == pytest.approx(2 * 2.1)
    assert stats.post_seconds.sum == 2 * 0.5
    assert stats.sizes.sum == 2 * 80
    assert stats.descriptors.sum == 2 * 2
    assert (stats.expired, stats.late) == (0, 0)


def build_stages(waiting: int, running: int, completed: int) -> dict[str, int]:
    return {
        "waiting_to_start": waiting,
        "in_progress": running,
        "completed_waiting": completed,
    }


def test_expired_lease_is_counted_and_release_is_late() -> None:
    side = Side()
    side.transfers.finish(side.prefilled(), LENGTH, 1.0)
    side.until(31.0)
    assert side.transfers.stats.expired == 1
    assert not side.transfers.release("a", 32.0)
    side.transfers.finish(side.prefilled("b"), LENGTH, 33.0)
    assert side.transfers.release("b", 34.0)


@pytest.mark.parametrize(
    ("role", "counts_stages"), [("kv_producer", False), ("kv_consumer", True), ("kv_both", True)]
)
async def test_transferring_server_has_nixl_metrics(role: str, counts_stages: bool) -> None:
    config = json.dumps({"kv_connector": "NixlConnector", "kv_role": role, "kv_port": 0})
    async with twin(kv_transfer_config=config) as sim:
        text = (await sim.get("/metrics")).text
    assert 'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="sim-model"} 0.0' in text
    assert "vllm:nixl_xfer_time_seconds_bucket" in text
    assert ("vllm:num_requests_kv_fetch_by_stage{" in text) is counts_stages


def test_clear_releases_all_leases() -> None:
    side = Side()
    side.transfers.finish(side.prefilled(), LENGTH, 1.0)
    side.transfers.clear()
    assert (side.transfers.num_leased, side.scheduler.pool.num_used) == (0, 0)


@pytest.mark.parametrize(
    ("params", "role"),
    [
        ({"do_remote_decode": True, "do_remote_prefill": True}, "kv_both"),
        ({"do_remote_decode": True}, "kv_consumer"),
        ({"do_remote_prefill": True}, "kv_producer"),
        ({"do_remote_decode": "yes"}, "kv_both"),
        ({"do_remote_prefill": True, "remote_port": 70_000}, "kv_both"),
    ],
)
def test_parse_transfer_params_unsupported_raises(params: dict[str, Any], role: Any) -> None:
    with pytest.raises(RequestError, match=r"kv_transfer_params"):
        parse_transfer_params(json.dumps(params), role)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        '{"kv_role": "prefill"}',
        '{"kv_ip": "a.example"}',
        '{"kv_ip": "0.0.0.0"}',
        '{"kv_port": 70000}',
        '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}',
        '{"kv_connector_extra_config": {"lease_seconds": 0}}',
    ],
)
def test_parse_kv_transfer_config_invalid_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"kv-transfer-config"):
        parse_kv_transfer_config(text)


def test_notifier_accepts_only_notices_with_secret_and_engine_id() -> None:
    def config(engine: str, secret: str) -> Any:
        return parse_kv_transfer_config(
            json.dumps({"engine_id": engine, "kv_connector_extra_config": {"secret": secret}})
        )

    released: list[str] = []
    here = KvNotifier(config("e", "s"), released.append)
    for secret, engine in (("s", "e"), ("other", "e"), ("s", "f")):
        here.datagram_received(
            KvNotifier(config("e", secret), print).encode_notice(engine, f"{secret} {engine}"),
            ("", 0),
        )
    for noise in (
        b"",
        b"\xff",
        b"{}",
        b'{"engine_id": "e", "request_id": "r", "seal": "\xc3\xa9"}',
    ):
        here.datagram_received(noise, ("", 0))
    assert released == ["s e"]


# Through the application, as routers use it.


def instance(role: str, **extra: Any) -> Any:
    config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_port": 0, "engine_id": role}
    return twin(kv_transfer_config=json.dumps(config | {"kv_connector_extra_config": extra}))


def usage(sim: Twin) -> float:
    return sim.engine.stats()[0].kv_cache_usage or 0.0


async def until_free(sim: Twin) -> None:
    """Wait until blocks are free: the report arrives through a socket."""
    async with asyncio.timeout(60):
        while usage(sim):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 200}]}),
    ("/v1/completions", {"prompt": "word " * 200}),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_disaggregated_request_prefills_and_decodes_separately(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    async with (
        instance("kv_producer", lease_seconds=1e9) as prefill,
        instance("kv_consumer") as decode,
    ):
        first = await prefill.post(
            path,
            body
            | {
                "max_tokens": 1,
                "ignore_eos": True,
                "kv_transfer_params": {"do_remote_decode": True},
            },
        )
        assert "x-dragoman-warnings" not in first.headers
        params = first.json()["kv_transfer_params"]
        assert (
            params["do_remote_prefill"],
            params["do_remote_decode"],
            params["remote_engine_id"],
        ) == (
            True,
            False,
            "kv_producer",
        )
        assert params["remote_num_tokens"] == first.json()["usage"]["prompt_tokens"]
        assert len(params["remote_block_ids"][0]) == -(-params["remote_num_tokens"] // 16)
        assert usage(prefill) > 0
        second = await decode.post(
            path,
            body
            | {"max_tokens": 5, "ignore_eos": True, "kv_transfer_params": params}
            | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        )
        assert second.status_code == 200, second.text
        answer = second.json() if not stream else json.loads(second.text.split("data: ")[-2])
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (cached, answer["usage"]["completion_tokens"]) == (
            params["remote_num_tokens"] - 1,
            5,
        )
        await until_free(prefill)
        assert usage(decode) == 0


async def test_unfetched_prefill_is_freed_on_lease_expiry() -> None:
    async with instance("kv_both", lease_seconds=200) as sim:
        await sim.chat(max_tokens=1, ignore_eos=True, kv_transfer_params={"do_remote_decode": True})
        assert usage(sim) > 0
        await until_free(sim)


async def test_plain_requests_succeed_on_producer_and_consumer() -> None:
    async with instance("kv_producer") as prefill, instance("kv_consumer") as decode:
        first = await prefill.chat(max_tokens=1)
        assert first["kv_transfer_params"] is None
        assert usage(prefill) == 0
        assert (await decode.chat(max_tokens=3, ignore_eos=True))["usage"]["completion_tokens"] == 3


async def test_fetch_from_unknown_peer_is_rejected() -> None:
    params = {"do_remote_prefill": True, "remote_host": "192.0.2.1", "remote_port": 9}
    async with instance("kv_both") as sim:
        body = {"messages": [{"role": "user", "content": "Hi"}], "kv_transfer_params": params}
        refused = await sim.post("/v1/chat/completions", body)
    assert refused.status_code == 400
    assert "peers" in refused.json()["error"]["message"]


async def test_kv_transfer_params_without_config_cause_warning() -> None:
    async with twin() as sim:
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "kv_transfer_params": {"do_remote_decode": True},
        }
        answered = await sim.post("/v1/chat/completions", body | {"max_tokens": 1})
    assert "kv_transfer_params is ignored" in answered.headers["x-dragoman-warnings"]


async def test_engine_crash_with_held_blocks_restarts_empty() -> None:
    async with instance("kv_both") as sim:
        await sim.chat(max_tokens=1, ignore_eos=True, kv_transfer_params={"do_remote_decode": True})
        sim.engine.crash(0.0)
        assert usage(sim) == 0


async def fetching(prefill: Twin, decode: Twin) -> asyncio.Task[httpx2.Response]:
    """Begin a request on the decode side that has its blocks and waits for their
    contents.
    """
    body = {"prompt": "word " * 100, "ignore_eos": True}
    prefill_body = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    params = (await prefill.post("/v1/completions", body | prefill_body)).json()[
        "kv_transfer_params"
    ]
    waiting = asyncio.create_task(
        decode.post("/v1/completions", body | {"kv_transfer_params": params})
    )
    async with asyncio.timeout(60):
        while not usage(decode):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    return waiting


@pytest.mark.parametrize("order", ["crash", "pause"])
async def test_decode_crash_or_pause_during_fetch_releases_prefill(order: str) -> None:
    async with (
        instance("kv_producer", lease_seconds=1e9) as prefill,
        instance("kv_consumer", base_seconds=1e9) as decode,
    ):
        waiting = await fetching(prefill, decode)
        assert usage(prefill) > 0
        if order == "crash":
            decode.engine.crash(0.0)
        else:
            await decode.engine.pause()
        await until_free(prefill)
        assert usage(decode) == 0
        await waiting


async def test_disconnect_during_fetch_frees_both_instances() -> None:
    async with (
        instance("kv_producer", lease_seconds=1e9) as prefill,
        instance("kv_consumer", base_seconds=1e9) as decode,
    ):
        leaving = await fetching(prefill, decode)
        leaving.cancel()
        await until_free(decode)
        await until_free(prefill)
