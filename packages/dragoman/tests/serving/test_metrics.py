"""`/metrics`: vLLM's names, for every engine as far as the values are known."""

from __future__ import annotations

import re

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.core.errors import EngineError
from dragoman.engines.scripted import Fail, Say, ScriptedEngine, ScriptEntry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_lifecycle import ModelSpec
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.request_metrics import ModelMetrics
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.metrics_registry import ModelCollector

from .harness import ServerHarness, build_server, load_tiny_tokenizer


def read(answer: httpx2.Response, name: str, **labels: str) -> float | None:
    """Return the value of one sample."""
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


async def ask(home: ServerHarness) -> httpx2.Response:
    return await home.post(
        "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    )


async def test_metrics_use_vllm_names_for_engine_values():
    home = build_server(ScriptEntry((Say("One two three."),), repeat=True))
    usage = (await ask(home)).json()["usage"]
    scraped = await home.get("/metrics")
    assert (
        read(scraped, "vllm:prompt_tokens_total", model_name="m", engine="0")
        == usage["prompt_tokens"]
    )
    assert (
        read(scraped, "vllm:generation_tokens_total", model_name="m") == usage["completion_tokens"]
    )
    assert read(scraped, "vllm:request_success_total", finished_reason="stop") == 1
    assert read(scraped, "vllm:time_to_first_token_seconds_count") == 1
    assert read(scraped, "vllm:e2e_request_latency_seconds_count") == 1
    assert read(scraped, "vllm:inter_token_latency_seconds_count") == usage["completion_tokens"] - 1
    assert read(scraped, "vllm:num_requests_running") == 0


async def test_metrics_request_with_multiple_choices_counted_once():
    home = build_server(ScriptEntry((Say("One two three."),), repeat=True))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "n": 3}
    assert len((await home.post("/v1/chat/completions", body)).json()["choices"]) == 3
    scraped = await home.get("/metrics")
    assert read(scraped, "vllm:request_success_total", finished_reason="stop") == 1
    assert read(scraped, "vllm:e2e_request_latency_seconds_count") == 1


async def test_metrics_failed_request_counted_as_error():
    home = build_server(ScriptEntry((Say("Then"), Fail(503)), repeat=True))
    await ask(home)
    assert (
        read(await home.get("/metrics"), "vllm:request_success_total", finished_reason="error") == 1
    )


async def test_metrics_unknown_values_omitted():
    scraped = await build_server(ScriptEntry((Say("x"),))).get("/metrics")
    assert read(scraped, "vllm:kv_cache_usage_perc") is None


async def test_metrics_head_equals_get_and_accept_selects_format():
    home = build_server(ScriptEntry((Say("x"),)))
    async with home.http() as client:
        head, got = await client.head("/metrics"), await client.get("/metrics")
        open_metrics = await client.get(
            "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
        )
    assert head.status_code == 200
    assert head.content == b""
    # Figures of the process, as its CPU time, change between the two.
    assert int(head.headers["content-length"]) == pytest.approx(len(got.content), rel=0.01)
    assert head.headers["content-type"] == got.headers["content-type"]
    assert got.headers["content-type"].startswith("text/plain; version=")
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("*/*", id="curl"),
        pytest.param(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            id="Prometheus 2.42",
        ),
        pytest.param(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.1",
            id="Prometheus 3",
        ),
        pytest.param("text/plain;version=1.0.0;escaping=underscores", id="escaped text"),
    ],
)
async def test_metrics_formats_use_same_names(accept: str):
    home = build_server(ScriptEntry((Say("One two three."),), repeat=True))
    await ask(home)
    async with home.http() as client:
        scraped = (await client.get("/metrics", headers={"accept": accept})).text
    assert re.search(r"^vllm:generation_tokens_total\{", scraped, re.MULTILINE)
    assert "vllm_" not in scraped


async def test_metrics_http_requests_match_vllm():
    home = build_server(ScriptEntry((Say("One two three."),), repeat=True))
    sent = len((await ask(home)).content)
    await home.post("/v1/chat/completions", {"model": "m"})
    async with home.http() as client:
        await client.request("BREW", "/v1/models/no-such")
        await client.get("/nowhere")
        await client.get("/health")
        scraped = await client.get("/metrics")
    chat = "/v1/chat/completions"
    for method, status, handler in (
        ("POST", "2xx", chat),
        ("POST", "4xx", chat),
        ("other", "4xx", "/v1/models/{model:path}"),
        ("GET", "4xx", "none"),
    ):
        assert (
            read(scraped, "http_requests_total", method=method, status=status, handler=handler) == 1
        )
    assert read(scraped, "http_requests_total", handler="/health") is None
    assert read(scraped, "http_request_size_bytes_count", handler=chat) == 2
    assert (read(scraped, "http_response_size_bytes_sum", handler=chat) or 0) > sent
    assert read(scraped, "http_request_duration_seconds_count", method="POST", handler=chat) == 2
    assert read(scraped, "http_request_duration_highr_seconds_count") == 4


async def test_metrics_stream_counted_at_end_without_size():
    home = build_server(ScriptEntry((Say("One two three."),), repeat=True))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    await home.post("/v1/chat/completions", body)
    scraped = await home.get("/metrics")
    assert read(scraped, "http_requests_total", status="2xx") == 1
    assert read(scraped, "http_response_size_bytes_sum", handler="/v1/chat/completions") == 0


def read_ups(models: Models) -> dict[str, float]:
    """Return `dragoman:engine_up` by model."""
    collector = ModelCollector(ModelMetrics(models, lambda: 0.0))
    (ups,) = [family for family in collector.collect() if family.name == "dragoman:engine_up"]
    return {sample.labels["model_name"]: sample.value for sample in ups.samples}


async def test_metrics_model_on_demand_is_up_only_while_loaded():
    tokenizer = load_tiny_tokenizer()
    is_broken = False

    def load() -> ServedModel:
        if is_broken:
            raise OSError("no such file")
        return ServedModel("a", EventBackend(ScriptedEngine(tokenizer=tokenizer), tokenizer), 9, 0)

    models = Models([ModelSpec("a", load, 0), ModelSpec("b", load, 0)])
    # What no request needs is not down: an alert would fire.
    assert read_ups(models) == {}
    await models.load_and_find("a")
    assert read_ups(models) == {"a": 1.0}
    is_broken = True
    with pytest.raises(EngineError, match="could not be loaded"):
        await models.load_and_find("b")
    assert read_ups(models) == {"a": 1.0, "b": 0.0}
    await models.stop()
