"""The simulator's published events, decoded by vLLM's own classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator
from importlib import import_module
from typing import Any

import msgspec
import pytest
from tests.engine.serving import twin

from dragoman_sim.engine.block_pool import AllBlocksCleared, BlockCached, BlockRemoved
from dragoman_sim.engine.kv_events import KvEventBatch, KvEventBuilder

from .lockstep import VllmParts
from .serving import without_accelerator

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def events() -> Generator[Any]:
    with without_accelerator():
        yield import_module("vllm.distributed.kv_events")


def batch() -> KvEventBatch:
    builder = KvEventBuilder(block_size=2, num_blocks=8)
    builder.add_hashed(b"a" * 16, None, [1, 2], lora="poet", salt="mine")
    builder.add_hashed(b"b" * 16, b"a" * 16, [3, 4], (("digest", -1),), lora="poet", salt="mine")
    cached = [BlockCached(1, b"a" * 16), BlockCached(2, b"b" * 16)]
    built = builder.build_events([*cached, BlockRemoved(1, b"a" * 16), AllBlocksCleared()])
    return KvEventBatch(1.5, built, 3)


def test_event_batch_is_decoded_by_vllm_classes(events: Any) -> None:
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(batch()), type=events.KVEventBatch)
    stored, removed, cleared = read.events
    assert (read.ts, read.data_parallel_rank) == (1.5, 3)
    assert isinstance(stored, events.BlockStored)
    assert (stored.token_ids, stored.block_size, stored.parent_block_hash) == (
        [1, 2, 3, 4],
        2,
        None,
    )
    assert (stored.medium, stored.lora_name, stored.group_idx) == (events.MEDIUM_GPU, "poet", 0)
    assert stored.extra_keys == [("poet", "mine"), ("poet", ["digest", -1])]
    assert isinstance(removed, events.BlockRemoved)
    assert removed.block_hashes == stored.block_hashes[:1]
    assert isinstance(cleared, events.AllBlocksCleared)


def test_event_fields_exist_in_vllm(events: Any) -> None:
    known = {
        name: set(getattr(events, name).__struct_fields__)
        for name in ("BlockStored", "BlockRemoved")
    }
    for event in msgspec.to_builtins(batch())[1]:
        assert set(event) - {"type"} <= known.get(event["type"], set())


@pytest.mark.usefixtures("events")
def test_kv_cache_spec_kind_exists_in_vllm() -> None:
    kinds = {kind.value for kind in import_module("vllm.v1.kv_cache_interface").KVCacheSpecKind}
    assert msgspec.to_builtins(batch())[1][0]["kv_cache_spec_kind"] in kinds


LEFT_OUT = {f"vllm:estimated_{part}_per_gpu" for part in ("flops", "read_bytes", "write_bytes")}
"""Metrics of a real GPU."""


@pytest.mark.usefixtures("events")
async def test_metrics_include_all_vllm_metrics_and_labels() -> None:
    loggers = import_module("vllm.v1.metrics.loggers")
    registry = import_module("prometheus_client").REGISTRY
    loggers.PrometheusStatLogger(VllmParts().usual, [0])
    theirs = {
        family.name: family for family in registry.collect() if family.name.startswith("vllm:")
    }
    async with twin() as sim:
        await sim.chat(max_tokens=3)
        parse = import_module("prometheus_client.parser").text_string_to_metric_families
        ours = {family.name: family for family in parse((await sim.get("/metrics")).text)}
    assert set(theirs) - set(ours) == LEFT_OUT
    for name, family in theirs.items():
        for sample in family.samples:
            if (
                name in ours
                and not name.endswith("_info")
                and not sample.name.endswith(("_created", "_bucket"))
            ):
                assert set(sample.labels) in [set(other.labels) for other in ours[name].samples], (
                    name
                )


@pytest.mark.usefixtures("events")
async def test_metrics_include_all_of_vllm_nixl_connector() -> None:
    stats = import_module("vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats")
    names = set(re.findall(r'name="(vllm:nixl_\w+)"', inspect.getsource(stats)))
    config = '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_port": 0}'
    async with twin(kv_transfer_config=config) as sim:
        parse = import_module("prometheus_client.parser").text_string_to_metric_families
        ours = {family.name: family for family in parse((await sim.get("/metrics")).text)}
    assert len(names) == 8
    assert names == {name for name in ours if name.startswith("vllm:nixl")}
    stages = {
        sample.labels["stage"] for sample in ours["vllm:num_requests_kv_fetch_by_stage"].samples
    }
    assert stages == set(import_module("vllm.v1.metrics.stats").KV_FETCH_STAGES)


@pytest.mark.usefixtures("events")
async def test_admission_reasons_and_version_are_those_of_vllm() -> None:
    reasons = import_module("vllm.v1.metrics.loggers").ADMISSION_REASONS
    async with twin() as sim:
        text = (await sim.get("/metrics")).text
        version = (await sim.get("/version")).json()
    for reason in reasons:
        assert (
            f'vllm:admission_rejections_total{{model_name="sim-model",reason="{reason}"}}' in text
        )
    assert version == {"version": import_module("vllm").__version__.partition("+")[0]}
