"""Several simulated servers in one process: they are independent, and start and stop
together.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest

from dragoman.launch.port_dispatcher import PortDispatcher
from dragoman.launch.server_assembly import assemble_server
from dragoman.settings import Settings, load_settings
from dragoman_sim.instances import expand_instances

PROFILE = "rtx4090-llama-3.1-8b"


def build_settings(**fields: object) -> Settings:
    return load_settings({"model": "sim", "profile": PROFILE, **fields}, {})


def test_instances_increment_ports_and_files_unless_configured() -> None:
    each = expand_instances(
        build_settings(port="8100", instances='[{}, {"port": 9000}, {}]', request_log="log.jsonl")
    )
    assert [one.port for one in each] == [8100, 9000, 8102]
    assert [one.request_log for one in each] == ["log.jsonl.0", "log.jsonl.1", "log.jsonl.2"]
    assert {(one.store, one.instances.items) for one in each} == {("memory", ())}
    assert [one.port for one in expand_instances(build_settings(port="0", instances="2"))] == [0, 0]


def test_instances_increment_kv_event_and_transfer_ports() -> None:
    events = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}
    transfer = {"kv_port": 7000}
    own = json.dumps({"endpoint": "tcp://*:6000"})
    instances = [
        {"data_parallel_size": 2},
        {},
        {"kv_events_config": own},
        {"kv_transfer_config": '{"kv_port": 99}'},
    ]
    each = expand_instances(
        build_settings(
            instances=json.dumps(instances),
            kv_events_config=json.dumps(events),
            kv_transfer_config=json.dumps(transfer),
        )
    )
    found = [json.loads(one.kv_events_config or "") for one in each]
    assert [one["endpoint"][-4:] for one in found] == ["5557", "5559", "6000", "5561"]
    assert [one.get("replay_endpoint", "")[-4:] for one in found] == ["5657", "5659", "", "5661"]
    assert [json.loads(one.kv_transfer_config or "")["kv_port"] for one in each] == [
        7000,
        7001,
        7002,
        99,
    ]


def test_instances_share_event_endpoint_of_other_host() -> None:
    events = {"endpoint": "tcp://indexer:5557", "replay_endpoint": "tcp://*:5657"}
    each = expand_instances(build_settings(instances="3", kv_events_config=json.dumps(events)))
    found = [json.loads(one.kv_events_config or "") for one in each]
    assert [one["endpoint"] for one in found] == ["tcp://indexer:5557"] * 3
    assert [one["replay_endpoint"][-4:] for one in found] == ["5657", "5658", "5659"]


def test_instances_port_above_65535_raises_value_error() -> None:
    with pytest.raises(ValueError, match="2: 65536 is not a valid port"):
        expand_instances(build_settings(port="65535", instances="2"))


@pytest.fixture
async def fleet() -> AsyncGenerator[list[httpx2.AsyncClient]]:
    """Start a fast instance, a prefilling one, and a decoding one."""
    roles = [
        {"kv_transfer_config": json.dumps({"kv_role": role, "kv_port": 0})}
        for role in ("kv_producer", "kv_consumer")
    ]
    settings = build_settings(
        port="8100", time_scale="1000", store="none", instances=json.dumps([{}, *roles])
    )
    each = [assemble_server(one, b"secret") for one in expand_instances(settings)]
    app = PortDispatcher({one.settings.port: one.application for one in each})
    transport: Any = httpx2.ASGITransport(app)
    async with app.lifespan_context():
        yield [
            httpx2.AsyncClient(
                transport=transport, base_url=f"http://localhost:{one.settings.port}"
            )
            for one in each
        ]


async def test_instances_have_separate_metrics_and_faults(fleet: list[httpx2.AsyncClient]) -> None:
    one, other, _ = fleet
    put = await one.put("/dragoman/faults", json=[{"every": 1, "status": 429}])
    assert put.status_code == 200, put.text
    body = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    statuses = [
        (await client.post("/v1/completions", json=body)).status_code for client in (one, other)
    ]
    assert statuses == [429, 200]
    counted = [(await client.get("/metrics")).text for client in (one, other)]
    assert [
        f'generation_tokens_total{{engine="0",model_name="{PROFILE}"}} 4.0' in text
        for text in counted
    ] == [
        False,
        True,
    ]


async def test_instances_split_prefill_and_decode(fleet: list[httpx2.AsyncClient]) -> None:
    other, producer, consumer = fleet
    body = {
        "prompt": "word " * 200,
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True},
    }
    first = (await producer.post("/v1/completions", json=body)).json()
    then = await consumer.post(
        "/v1/completions",
        json={**body, "max_tokens": 8, "kv_transfer_params": first["kv_transfer_params"]},
    )
    assert then.status_code == 200, then.text
    prompt = first["usage"]["prompt_tokens"]
    for client, hits in ((producer, 0), (consumer, prompt)):
        text = (await client.get("/metrics")).text
        assert (
            f'external_prefix_cache_queries_total{{engine="0",model_name="{PROFILE}"}} {prompt}.0'
            in text
        )
        assert (
            f'external_prefix_cache_hits_total{{engine="0",model_name="{PROFILE}"}} {hits}.0'
            in text
        )
    text = (await other.get("/metrics")).text
    assert f'external_prefix_cache_queries_total{{engine="0",model_name="{PROFILE}"}} 0.0' in text
