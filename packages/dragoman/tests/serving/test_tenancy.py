"""Named keys: roles, models, limits, budgets and usage, over HTTP in every dialect.
Tests advance the clock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai.types.admin.organization import UsageCompletionsResponse
from tests.hardening.test_fairness import SteppedEvents
from tests.serving.harness import load_tiny_tokenizer
from tests.serving.responses.harness import lifespan

from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import Application, build_asgi_app
from dragoman.serving.clock import RandomIdGenerator, SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.usage_ledger import UsageCounts, UsageKey, UsageLedger
from dragoman.settings import Settings
from dragoman.store import Change, Delete, Key, MemoryStore, Put, SqliteStore, Store
from dragoman.tenants import Counters, KeyHash, Tenant, hash_key

NOW = datetime(2026, 11, 23, 10, 30, tzinfo=UTC).timestamp()
HELLO: list[dict[str, str]] = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"model": "m", "messages": HELLO}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "m", "prompt": "Hello"},
    "/v1/responses": {"model": "m", "input": "Hello", "store": False},
    "/v1/messages": {"model": "m", "messages": HELLO, "max_tokens": 9},
    "/api/chat": {"model": "m", "messages": HELLO, "stream": False},
    "/generate": {"inputs": "Hello"},
}


class ManualClock:
    """A clock that tests advance."""

    def __init__(self, now: float = NOW) -> None:
        self.elapsed = 0.0
        self.start = now

    def now(self) -> float:
        return self.start + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed


def tenant(name: str, **fields: Any) -> Tenant:
    return Tenant(id=f"key_{name}", secrets=(KeyHash(hash_key(name)),), **fields)


@dataclass
class Server:
    app: Application
    clock: ManualClock

    def client(self, key: str, **headers: str) -> httpx2.AsyncClient:
        transport: Any = httpx2.ASGITransport(self.app)
        return httpx2.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            headers={"authorization": f"Bearer {key}", **headers},
        )

    async def post(
        self, key: str, path: str = "/v1/chat/completions", body: object = CHAT
    ) -> httpx2.Response:
        async with self.client(key) as client:
            return await client.post(path, json=body)

    async def get(self, key: str, path: str) -> httpx2.Response:
        async with self.client(key) as client:
            return await client.get(path)

    def openai(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=key,
            admin_api_key=key,
            base_url="http://localhost/v1",
            http_client=self.client(key),
            max_retries=0,
        )


def list_results(page: UsageCompletionsResponse) -> list[Any]:
    return [result for bucket in page.data for result in bucket.results]


async def wait_for_requests(engine: SteppedEvents, number: int) -> None:
    async with asyncio.timeout(60):
        while len(engine.pending) < number:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    tenants: Mapping[str, Tenant],
    *,
    store: Store | None = None,
    counters: Counters | None = None,
    clock: ManualClock | None = None,
    options: ServingOptions | None = None,
    names: tuple[str, ...] = ("m",),
) -> AsyncGenerator[Server]:
    clock = clock or ManualClock()
    tokenizer = load_tiny_tokenizer()
    script = Script((ScriptEntry((Say("Hello there."),), repeat=True),))
    served = [
        ServedModel(
            name,
            EventBackend(ScriptedEngine(script, tokenizer=tokenizer), tokenizer),
            4096,
            int(NOW),
        )
        for name in names
    ]
    app = build_asgi_app(
        Models(served),
        options=options,
        clock=clock,
        ids=RandomIdGenerator(),
        store=store or MemoryStore(now=clock.now),
        tenants=tenants,
        counters=counters,
    )
    async with lifespan(app):
        yield Server(app, clock)


async def test_key_file_accepts_only_listed_keys() -> None:
    async with serving({"a": tenant("a")}) as server:
        assert (await server.post("a")).status_code == 200
        assert (await server.post("b")).status_code == 401


async def test_key_file_empty_rejects_all_keys() -> None:
    async with serving({}) as server:
        assert (await server.post("a")).status_code == 401


async def test_admin_route_requires_admin_role() -> None:
    async with serving({"a": tenant("a"), "root": tenant("root", role="admin")}) as server:
        path = "/v1/organization/usage/completions?start_time=0"
        assert [(await server.get(key, path)).status_code for key in ("a", "root")] == [403, 200]


async def test_metrics_role_reads_key_series_only() -> None:
    tenants = {"a": tenant("a"), "prom": tenant("prom", role="metrics")}
    async with serving(tenants) as server:
        assert (await server.post("a")).status_code == 200
        series = 'dragoman:key_requests_total{key="a"'
        assert series in (await server.get("prom", "/metrics")).text
        assert series not in (await server.get("a", "/metrics")).text
        for path, body in ROUTES.items():
            rejected = await server.post("prom", path, body)
            assert (rejected.status_code, "may only read /metrics" in rejected.text) == (403, True)
        for path in ("/v1/models", "/v1/organization/usage/completions?start_time=0", "/unknown"):
            assert (await server.get("prom", path)).status_code == 403
        assert (await server.get("prom", "/readyz")).status_code == 200


async def test_expired_or_disabled_key_returns_401() -> None:
    soon = Tenant(
        id="key_s", secrets=(KeyHash(hash_key("s"), datetime.fromtimestamp(NOW + 10, UTC)),)
    )
    async with serving({"soon": soon, "off": tenant("off", disabled=True)}) as server:
        assert (await server.post("s")).status_code == 200
        server.clock.elapsed = 10
        messages = {
            "s": "This API key expired at 2026-11-23T10:30:10Z.",
            "off": "This API key has been revoked.",
            "other": "Incorrect API key provided.",
        }
        for key, message in messages.items():
            for path in ("/v1/chat/completions", "/v1/messages"):
                response = await server.post(key, path, ROUTES[path])
                assert response.status_code == 401
                assert response.json()["error"]["message"] == message


async def test_keyring_replaced_at_run_time() -> None:
    async with serving({"a": tenant("a")}) as server:
        server.app.keyring.replace_tenants({"b": tenant("b")})
        assert [(await server.post(key)).status_code for key in ("a", "b")] == [401, 200]


async def test_rotated_key_keeps_access_to_stored_responses() -> None:
    async with serving({"a": tenant("a")}) as server:
        stored = await server.post("a", "/v1/responses", {"model": "m", "input": "Hello"})
        both = Tenant(id="key_a", secrets=(KeyHash(hash_key("a")), KeyHash(hash_key("new"))))
        server.app.keyring.replace_tenants({"a": both})
        path = f"/v1/responses/{stored.json()['id']}"
        assert [(await server.get(key, path)).status_code for key in ("a", "new")] == [200, 200]


@pytest.mark.parametrize("path", ROUTES)
async def test_requests_per_minute_limit_in_every_dialect(path: str) -> None:
    async with serving({"a": tenant("a", requests_per_minute=2), "b": tenant("b")}) as server:
        for _ in range(2):
            assert (await server.post("a", path, ROUTES[path])).status_code == 200
        rejected = await server.post("a", path, ROUTES[path])
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "30")
        assert (await server.post("b", path, ROUTES[path])).status_code == 200
        server.clock.elapsed = 29.999999
        assert (await server.post("a", path, ROUTES[path])).status_code == 429
        server.clock.elapsed = 30
        assert (await server.post("a", path, ROUTES[path])).status_code == 200


async def test_rate_limit_openai_error_and_headers() -> None:
    async with serving({"a": tenant("a", requests_per_minute=3, tokens_per_minute=1000)}) as server:
        client: Any = server.openai("a")
        answer = await client.chat.completions.with_raw_response.create(**CHAT)
        headers = answer.headers
        assert (
            headers["x-ratelimit-limit-requests"],
            headers["x-ratelimit-remaining-requests"],
        ) == ("3", "2")
        assert headers["x-ratelimit-reset-requests"] == "20s"
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert 0 < int(headers["x-ratelimit-remaining-tokens"]) < 1000
        for _ in range(2):
            await server.post("a")
        with pytest.raises(openai.RateLimitError) as found:
            await server.openai("a").chat.completions.create(**CHAT)
        error = found.value
        assert (error.code, error.type) == ("rate_limit_exceeded", "requests")
        assert (
            "key `a` on requests per min: Limit 3, Used 3, Requested 1. Please try again in 20s."
            in error.message
        )
        assert error.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert error.response.headers["x-ratelimit-reset-requests"] == "1m0s"


async def test_rate_limit_anthropic_error_and_headers() -> None:
    async with serving({"a": tenant("a", requests_per_minute=1)}) as server:
        client = anthropic.AsyncAnthropic(
            api_key="a", base_url="http://localhost", http_client=server.client("a"), max_retries=0
        )
        message: Any = HELLO[0]
        answer = await client.messages.with_raw_response.create(
            model="m", messages=[message], max_tokens=9
        )
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "1"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert answer.headers["anthropic-ratelimit-requests-reset"] == "2026-11-23T10:31:00Z"
        with pytest.raises(anthropic.RateLimitError) as found:
            await client.messages.create(model="m", messages=[message], max_tokens=9)
        assert found.value.response.json()["error"]["type"] == "rate_limit_error"
        assert found.value.response.headers["retry-after"] == "60"


async def test_tokens_per_minute_charged_and_refilled() -> None:
    async with serving({"a": tenant("a", tokens_per_minute=60)}) as server:
        usage = (await server.post("a")).json()["usage"]["total_tokens"]
        answer = await server.get("a", "/v1/models")
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(60 - usage)
        server.clock.elapsed = 1
        answer = await server.get("a", "/v1/models")
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(60 - usage + 1)


async def test_tokens_per_minute_overdraft_rejects_until_refilled() -> None:
    async with serving({"a": tenant("a", tokens_per_minute=6)}) as server:
        # A full bucket accepts a prompt of any length; the excess must be refilled.
        first = await server.post(
            "a", "/v1/completions", {"model": "m", "prompt": "one two three four five six"}
        )
        assert first.status_code == 200
        used = first.json()["usage"]["total_tokens"]
        assert used > 6
        rejected = await server.post("a", "/v1/completions", {"model": "m", "prompt": "one"})
        assert (rejected.status_code, rejected.json()["error"]["type"]) == (429, "tokens")
        server.clock.elapsed = (used - 6 + 1) * 10
        assert (
            await server.post("a", "/v1/completions", {"model": "m", "prompt": "one"})
        ).status_code == 200


async def test_rate_limited_request_is_not_charged() -> None:
    async with serving({"a": tenant("a", requests_per_minute=10, tokens_per_minute=6)}) as server:
        await server.post(
            "a", "/v1/completions", {"model": "m", "prompt": "one two three four five six"}
        )
        before = (await server.get("a", "/v1/models")).headers
        for _ in range(5):
            assert (await server.post("a")).status_code == 429
        after = (await server.get("a", "/v1/models")).headers
        for name in ("x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"):
            assert before[name] == after[name]


async def test_rate_limited_long_prompt_is_not_charged() -> None:
    async with serving({"a": tenant("a", requests_per_minute=10, tokens_per_minute=60)}) as server:
        await server.post("a", "/v1/completions", {"model": "m", "prompt": "one two three"})
        before = (await server.get("a", "/v1/models")).headers
        assert 0 < int(before["x-ratelimit-remaining-tokens"]) < 58
        rejected = await server.post("a", "/v1/completions", {"model": "m", "prompt": "word " * 59})
        assert (rejected.status_code, rejected.json()["error"]["type"]) == (429, "tokens")
        after = (await server.get("a", "/v1/models")).headers
        for name in ("x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"):
            assert before[name] == after[name]


async def test_concurrent_requests_limit_released_on_every_ending() -> None:
    engine = SteppedEvents()
    keys = {"a": tenant("a", concurrent_requests=2), "b": tenant("b")}
    app = build_asgi_app(Models([ServedModel("m", EventBackend(engine), 4096, 0)]), tenants=keys)
    server = Server(app, ManualClock())
    running = [asyncio.create_task(server.post("a")) for _ in range(2)]
    await wait_for_requests(engine, 2)
    rejected = await server.post("a")
    assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
    assert rejected.json()["error"]["message"].startswith(
        "Rate limit reached for the key `a`: 2 concurrent requests."
    )
    others = asyncio.create_task(server.post("b"))
    running[0].cancel()
    await asyncio.wait([running[0]])
    running.append(asyncio.create_task(server.post("a")))
    await wait_for_requests(engine, 4)
    assert (await server.post("a")).status_code == 429
    for end in engine.pending:
        end()
    assert {(await task).status_code for task in (*running[1:], others)} == {200}
    last = asyncio.create_task(server.post("a"))
    await wait_for_requests(engine, 5)
    engine.pending[-1]()
    assert (await last).status_code == 200


async def test_daily_budget_exhausted_returns_insufficient_quota() -> None:
    async with serving({"a": tenant("a", tokens_per_day=1)}) as server:
        assert (await server.post("a")).status_code == 200
        rejected = await server.post("a")
        assert rejected.status_code == 429
        assert (
            rejected.json()["error"]["type"]
            == rejected.json()["error"]["code"]
            == "insufficient_quota"
        )
        assert rejected.headers["x-should-retry"] == "false"
        assert rejected.headers["retry-after"] == str(int(13.5 * 3600))
        server.clock.elapsed = 13.5 * 3600
        assert (await server.post("a")).status_code == 200


async def test_monthly_budget_resets_at_month_end() -> None:
    async with serving({"a": tenant("a", tokens_per_month=1)}) as server:
        assert (await server.post("a")).status_code == 200
        server.clock.elapsed = 86400
        rejected = await server.post("a")
        assert rejected.headers["retry-after"] == str(int(6 * 86400 + 13.5 * 3600))
        server.clock.elapsed = 8 * 86400
        assert (await server.post("a")).status_code == 200


async def test_usage_and_budgets_survive_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    keys = {"a": tenant("a", tokens_per_day=1), "root": tenant("root", role="admin")}
    async with serving(
        keys, store=SqliteStore(tmp_path / "store.db", now=clock.now), clock=clock
    ) as server:
        used = (await server.post("a")).json()["usage"]["total_tokens"]
    async with serving(
        keys, store=SqliteStore(tmp_path / "store.db", now=clock.now), clock=clock
    ) as server:
        assert (await server.post("a")).status_code == 429
        usage = await server.openai("root").admin.organization.usage.completions(
            start_time=int(NOW) - 86400
        )
        results = list_results(usage)
        assert sum(result.input_tokens + result.output_tokens for result in results) == used


async def test_usage_of_two_processes_is_summed(tmp_path: Path) -> None:
    clock = ManualClock()
    stores = [SqliteStore(tmp_path / "store.db", now=clock.now) for _ in range(2)]
    keys = {"a": tenant("a", tokens_per_day=1000), "root": tenant("root", role="admin")}
    async with (
        serving(keys, store=stores[0], clock=clock) as one,
        serving(keys, store=stores[1], clock=clock) as other,
    ):
        used = [
            (await server.post("a")).json()["usage"]["total_tokens"] for server in (one, other, one)
        ]
        for server in (one, other, one):
            usage = await server.openai("root").admin.organization.usage.completions(
                start_time=int(NOW), bucket_width="1h"
            )
            (result,) = list_results(usage)
        assert result.input_tokens + result.output_tokens == sum(used)
        assert result.num_model_requests == 3


class WaitingStore(MemoryStore):
    """A store whose writes wait for `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting = asyncio.Event()
        self.go_on = asyncio.Event()

    async def commit(self, *changes: Change) -> None:
        self.is_waiting.set()
        await self.go_on.wait()
        await super().commit(*changes)


async def test_usage_write_completes_after_reader_is_cancelled() -> None:
    store = WaitingStore()
    key = UsageKey("key_a", "a", "completions", "m", False)
    ledger = UsageLedger(store, lambda: NOW)
    ledger.record(key, UsageCounts(1, 2, 0, 3))
    reading = asyncio.create_task(ledger.load_hours(0, int(NOW) + 1))
    await store.is_waiting.wait()
    reading.cancel()
    await asyncio.wait([reading])
    store.go_on.set()
    assert await ledger.load_hours(0, int(NOW) + 1) == [
        (int(NOW) // 3600 * 3600, {key: UsageCounts(1, 2, 0, 3)})
    ]


async def test_usage_write_failure_kept_pending_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another process may have written a record that this version cannot decode."""
    store = MemoryStore()
    key = UsageKey("key_a", "a", "completions", "m", False)
    hour = int(NOW) // 3600 * 3600
    record_key = Key("dragoman.usage", "usage", str(hour))
    await store.commit(Put(record_key, hour, b"[1]"))
    ledger = UsageLedger(store, lambda: NOW)
    for _ in range(2):
        ledger.record(key, UsageCounts(1, 2, 0, 3))
        await ledger.flush()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    await store.commit(Delete(record_key))
    assert await ledger.load_hours(0, int(NOW) + 1) == [(hour, {key: UsageCounts(2, 4, 0, 6)})]


async def test_usage_is_grouped_by_key_and_model() -> None:
    keys = {"a": tenant("a"), "b": tenant("b"), "root": tenant("root", role="admin")}
    async with serving(keys, names=("m", "n")) as server:
        for key, model, times in (("a", "m", 2), ("a", "n", 1), ("b", "m", 1)):
            for _ in range(times):
                await server.post(key, body={"model": model, "messages": HELLO})
        usage = server.openai("root").admin.organization.usage
        page = await usage.completions(
            start_time=int(NOW) - 3600, bucket_width="1h", group_by=["api_key_id", "model"], limit=2
        )
        assert [bucket.start_time for bucket in page.data] == [
            int(NOW) - 1800 - 3600,
            int(NOW) - 1800,
        ]
        results: list[Any] = [*page.data[1].results]
        found = {(result.api_key_id, result.model): result.num_model_requests for result in results}
        assert found == {("key_a", "m"): 2, ("key_a", "n"): 1, ("key_b", "m"): 1}
        page = await usage.completions(
            start_time=int(NOW) - 3600, bucket_width="1h", api_key_ids=["key_a"], models=["n"]
        )
        assert [result.num_model_requests for result in list_results(page)] == [1]


async def test_usage_pagination() -> None:
    async with serving({"root": tenant("root", role="admin")}) as server:
        for _ in range(3):
            await server.post("root")
            server.clock.elapsed += 86400
        usage = server.openai("root").admin.organization.usage
        start = int(NOW)
        end = int(NOW) + 4 * 86400
        first = await usage.completions(start_time=start, end_time=end, limit=2)
        assert first.has_more
        assert first.next_page is not None
        second = await usage.completions(
            start_time=start, end_time=end, limit=2, page=first.next_page
        )
        assert [len(bucket.results) for page in (first, second) for bucket in page.data] == [
            1,
            1,
            1,
            0,
        ]


@pytest.mark.parametrize(
    "query",
    ["", "start_time=x", "start_time=0&bucket_width=1m", "start_time=0&limit=0",
    "start_time=0&limit=99",
     "start_time=0&page=x", "start_time=0&group_by=phase", "start_time=5&end_time=5"],
)  # fmt: skip
async def test_usage_invalid_query_rejected_by_name(query: str) -> None:
    async with serving({"root": tenant("root", role="admin")}) as server:
        rejected = await server.get("root", f"/v1/organization/usage/completions?{query}")
        assert rejected.status_code == 400
        assert rejected.json()["error"]["param"] in {
            "start_time",
            "bucket_width",
            "limit",
            "page",
            "group_by",
            "end_time",
        }


async def test_usage_counts_embeddings_separately() -> None:
    (tiny,) = build_models(Settings(), SystemClock())
    app = build_asgi_app(
        Models([tiny]),
        tenants={"a": tenant("a", tokens_per_minute=5), "root": tenant("root", role="admin")},
    )
    async with lifespan(app):
        server = Server(app, ManualClock())
        answer = await server.post(
            "a", "/v1/embeddings", {"input": "one two three four five six seven"}
        )
        assert (answer.status_code, int(answer.headers["x-ratelimit-remaining-tokens"])) == (200, 0)
        assert (await server.post("a", "/v1/embeddings", {"input": "one"})).status_code == 429
        usage = server.openai("root").admin.organization.usage
        page = await usage.embeddings(start_time=0, bucket_width="1d", limit=31)
        assert page.object == "page"


async def test_key_lists_and_uses_only_allowed_models() -> None:
    async with serving(
        {"a": tenant("a", models=("n",)), "none": tenant("none", models=("x",))}, names=("m", "n")
    ) as server:
        listed = (await server.get("a", "/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["n"]
        rejected = await server.post("a")
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (404, "model_not_found")
        assert "`m` does not exist. Served here: n." in rejected.json()["error"]["message"]
        assert (await server.post("a", body={"model": "n", "messages": HELLO})).status_code == 200
        assert (await server.get("none", "/v1/models")).json()["data"] == []
        assert (await server.get("a", "/api/tags")).json()["models"][0]["name"].startswith("n")
        bodies = {"/tokenize": {"prompt": "x"}, "/v1/messages/count_tokens": {"messages": HELLO}}
        for path, body in bodies.items():
            assert (await server.post("a", path, {"model": "m", **body})).status_code == 404


async def test_batch_respects_allowed_models_and_counts_usage() -> None:
    keys = {"a": tenant("a", models=("n",)), "root": tenant("root", role="admin")}
    async with serving(keys, names=("m", "n")) as server:
        lines = [
            json.dumps(
                {
                    "custom_id": model,
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {**CHAT, "model": model},
                }
            )
            for model in ("m", "n")
        ]
        client = server.openai("a")
        file = await client.files.create(
            file=("in.jsonl", "\n".join(lines).encode()), purpose="batch"
        )
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status not in ("completed", "failed"):
            await asyncio.sleep(0)
            batch = await client.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
        usage = await server.openai("root").admin.organization.usage.completions(
            start_time=int(NOW), batch=True, group_by=["batch"]
        )
        results = list_results(usage)
        assert [(result.batch, result.num_model_requests) for result in results] == [(True, 1)]


async def test_metrics_label_usage_by_key_name() -> None:
    options = ServingOptions(api_key=("plain",), admin_api_key=("root",))
    async with serving({"a": tenant("a", requests_per_minute=1)}, options=options) as server:
        for key in ("a", "a", "plain"):
            await server.post(key)
        text = (await server.get("root", "/metrics")).text
        assert 'dragoman:key_requests_total{key="a",model_name="m"} 1.0' in text
        assert (
            f'dragoman:key_requests_total{{key="{hash_key("plain")[:12]}",model_name="m"}} 1.0'
            in text
        )
        assert 'dragoman:key_rejections_total{key="a",limit="requests"} 1.0' in text
        assert 'dragoman:key_requests_running{key="a"} 0.0' in text
        for key in ("a", "plain", "wrong"):
            public = (await server.get(key, "/metrics")).text
            assert "vllm:prompt_tokens_total" in public
            assert "dragoman:key_" not in public
            assert 'key="' not in public


async def test_unnamed_key_has_no_limits_or_headers() -> None:
    async with serving(
        {"a": tenant("a", requests_per_minute=1)}, options=ServingOptions(api_key=("plain",))
    ) as server:
        for _ in range(5):
            answer = await server.post("plain")
            assert answer.status_code == 200
            assert not [name for name in answer.headers if "ratelimit" in name]
