"""RL executors behind the contract of engines: their requests and their results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dragoman.core.weight_updates import Weights
from dragoman.engines.rollout_executor import Candidate, Executor, RolloutSampling
from dragoman.launch.plugin import build_executor_model
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

from .executors import WORDS, Dice, FullExecutor, generate_dice_tokens

BINARY = {"content-type": "application/octet-stream"}


@asynccontextmanager
async def serving(executor: Executor) -> AsyncGenerator[httpx2.AsyncClient]:
    model = build_executor_model(
        Settings(), SystemClock(), executor, own_name="dice", max_model_len=2048
    )
    models = Models([model])
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


def ask(ids: Sequence[int] = (5, 6), **params: object) -> dict[str, Any]:
    return {"token_ids": list(ids), "sampling_params": {"max_tokens": 4, **params}}


async def get_generated_tokens(
    http: httpx2.AsyncClient, ids: Sequence[int] = (5, 6), **params: object
) -> list[Any]:
    answer = await http.post("/inference/v1/generate", json=ask(ids, **params))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


async def test_generate_n_choices_uses_one_call_and_keeps_token_ids():
    dice = Dice()
    async with serving(dice) as http:
        choices = await get_generated_tokens(http, n=3, seed=7, logprobs=0, temperature=0.5)
    ((prompts, n, sampling),) = dice.calls
    assert (prompts, n, sampling.seed, sampling.temperature, sampling.max_tokens) == (
        [(5, 6)],
        3,
        7,
        0.5,
        4,
    )
    assert [choice["token_ids"] for choice in choices] == [
        generate_dice_tokens((5, 6), sampling, k) for k in range(3)
    ]
    assert [entry["logprob"] for entry in choices[0]["logprobs"]["content"]] == [-1.0] * 4
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 3
    assert choices[0]["weight_versions"] is None, "it does not report its version"


async def test_undeclared_parameters_cause_warning_and_are_dropped():
    dice = Dice()
    async with serving(dice) as http:
        answer = await http.post("/inference/v1/generate", json=ask(top_p=0.5, min_tokens=2))
        assert "top_p" in answer.headers["x-dragoman-warnings"]
        rejected = await http.post(
            "/inference/v1/generate", json=ask(structured_outputs={"regex": "a"})
        )
        assert rejected.status_code == 400
        function: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
        tool = {"type": "function", "function": function}
        chat: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [tool],
            "max_tokens": 2,
        }
        forced = await http.post("/v1/chat/completions", json={**chat, "tool_choice": "required"})
        assert (forced.status_code, forced.json()["error"]["param"]) == (400, "tool_choice")
        single = await http.post(
            "/v1/chat/completions", json={**chat, "parallel_tool_calls": False}
        )
        assert (single.status_code, single.json()["error"]["param"]) == (400, "parallel_tool_calls")
        assert (await http.post("/v1/chat/completions", json=chat)).status_code == 200
    (_, _, sampling), _ = dice.calls
    assert (sampling.top_p, sampling.min_tokens) == (1.0, 0)


class Slow(Dice):
    """An executor whose calls wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def generate(
        self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
    ) -> object:
        self.entered.set()
        assert self.go_on.wait(60)
        return super().generate(prompts, n, sampling)


async def test_blocking_executor_waits_for_cancelled_call_before_next():
    slow = Slow()
    async with serving(slow) as http:
        leaving = asyncio.create_task(get_generated_tokens(http, [1]))
        await asyncio.to_thread(slow.entered.wait, 60)
        slow.entered.clear()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        staying = asyncio.create_task(get_generated_tokens(http, [2]))
        while not (await http.get("/load")).json()["server_load"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not slow.entered.is_set()
        slow.go_on.set()
        assert (await staying)[0]["token_ids"]
    assert [prompts for prompts, _, _ in slow.calls] == [[(1,)], [(2,)]]


async def test_plain_executor_batches_waiting_requests_per_call():
    slow = Slow()
    async with serving(slow) as http:
        first = asyncio.create_task(get_generated_tokens(http, [1]))
        await asyncio.to_thread(slow.entered.wait, 60)
        others = [asyncio.create_task(get_generated_tokens(http, [number])) for number in (2, 3, 4)]
        odd = asyncio.create_task(get_generated_tokens(http, [5], temperature=0))
        while (await http.get("/load")).json()["server_load"] < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
        slow.go_on.set()
        await asyncio.gather(first, *others, odd)
    assert [prompts for prompts, _, _ in slow.calls] == [[(1,)], [(2,), (3,), (4,)], [(5,)]]


ANSWERS: list[tuple[object, str]] = [
    (None, "did not return lists of candidates"),
    ([[]], "0] candidates, not"),
    ([[{"token_ids": ["a"]}]], "did not return lists of candidates"),
    ([[Candidate((1, 2, 3, 4, 5))]], "5 tokens; the maximum is 4"),
    ([[Candidate((10**6,))]], "token ids that are not in"),
    ([[Candidate((1,), prompt_token_ids=(5, 7))]], "a different prompt"),
    ([[Candidate((1, 2), logprobs=(-1.0,))]], "not return a logprob for each"),
    ([[Candidate((1,), (-1.0,), "tired")]], "finish reason"),
    (KeyError("secret"), "see the server's log"),
]


@pytest.mark.parametrize(("answer", "message"), ANSWERS)
async def test_invalid_executor_result_returns_500(answer: object, message: str):
    class Odd(Dice):
        def generate(
            self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
        ) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

    async with serving(Odd()) as http:
        failed = await http.post("/inference/v1/generate", json=ask(logprobs=0))
        assert failed.status_code == 500
        assert message.rsplit("|", maxsplit=1)[-1] in failed.json()["error"]["message"]
        assert "secret" not in failed.text
        assert (await http.get("/health")).status_code == 200


async def test_executor_output_is_cut_at_stop_tokens_and_strings():
    class Stopping(Dice):
        def candidate(self, prompt: tuple[int, ...], sampling: RolloutSampling, k: int) -> Any:
            return {"token_ids": [WORDS[1], WORDS[2], sampling.stop_token_ids[0]]}

    async with serving(Stopping()) as http:
        plain = (await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 9})).json()[
            "choices"
        ][0]
        cut = (
            await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 9, "stop": " s"})
        ).json()
    assert (plain["text"], plain["finish_reason"]) == (" cat s", "stop")
    assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == (" cat", "stop")


async def test_executor_is_served_in_every_dialect():
    async with serving(Dice()) as http:
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}], "model": "dice"}
        claude = (await http.post("/v1/messages", json=body)).json()
        chat = (await http.post("/v1/chat/completions", json=body)).json()
        sglang = (
            await http.post(
                "/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 4}}
            )
        ).json()
    assert claude["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert claude["usage"]["output_tokens"] == 4
    assert len(sglang["output_ids"]) == 4


async def test_update_weights_changes_reported_version():
    async with serving(FullExecutor()) as http:
        assert (await get_generated_tokens(http))[0]["weight_versions"] == [
            {"version": "zero", "start": 0, "end": 4}
        ]
        updated = await http.post(
            "/update_weights?weight_version=one", content=b"good", headers=BINARY
        )
        assert updated.json()["weight_version"] == "one"
        assert (await get_generated_tokens(http))[0]["weight_versions"][0]["version"] == "one"
        rejected = await http.post("/update_weights", content=b"bad", headers=BINARY)
        assert (rejected.status_code, "another shape" in rejected.text) == (400, True)
        assert (
            await http.post("/update_weight_version", json={"new_version": "x"})
        ).status_code == 400
    async with serving(Dice()) as http:
        assert (
            await http.post("/update_weights", content=b"good", headers=BINARY)
        ).status_code == 404
        assert (await http.post("/pause")).status_code == 404


async def test_update_weights_waits_for_running_call():
    class Held(FullExecutor):
        def __init__(self) -> None:
            super().__init__()
            self.entered = asyncio.Event()
            self.go_on = asyncio.Event()

        async def generate(
            self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
        ) -> object:
            self.entered.set()
            await self.go_on.wait()
            return await super().generate(prompts, n, sampling)

    held = Held()
    async with serving(held) as http:
        running = asyncio.create_task(get_generated_tokens(http))
        await held.entered.wait()
        updating = asyncio.create_task(
            http.post("/update_weights?weight_version=one", content=b"1", headers=BINARY)
        )
        late = asyncio.create_task(get_generated_tokens(http))
        for _ in range(20):
            await asyncio.sleep(0)
        assert held.weight_version == "zero"
        held.go_on.set()
        assert (await running)[0]["weight_versions"][0]["version"] == "zero"
        await updating
        assert (await late)[0]["weight_versions"][0]["version"] == "one"


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_pause_holds_or_rejects_requests_until_resume(mode: str):
    trained = FullExecutor()
    async with serving(trained) as http:
        assert (await http.post(f"/pause?mode={mode}")).status_code == 200
        assert (await http.get("/is_paused")).json() == {"is_paused": True}
        waiting = asyncio.create_task(http.post("/inference/v1/generate", json=ask()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert trained.calls == []
        await http.post("/resume")
        answer = await waiting
        assert (answer.status_code, len(trained.calls)) == (
            (200, 1) if mode == "keep" else (503, 0)
        )
        assert (await http.post("/sleep")).status_code == 400
        assert (await get_generated_tokens(http))[0]["token_ids"]
    assert trained.orders == ["pause", "resume"]


class LateExecutor(Dice):
    """An executor that has no version until its weights are loaded."""

    weight_version: str

    def update_weights(self, weights: Weights, version: str | None) -> None:
        self.weight_version = version or "unnamed"


async def test_weight_version_set_after_construction_is_reported():
    executor = LateExecutor()
    async with serving(executor) as http:
        assert (await get_generated_tokens(http))[0]["weight_versions"] is None
        assert (await http.get("/get_weight_version")).json() == {"weight_version": ""}
        executor.weight_version = "zero"
        span = {"version": "zero", "start": 0, "end": 4}
        assert (await get_generated_tokens(http))[0]["weight_versions"] == [span]
        updated = await http.post(
            "/update_weights?weight_version=one", content=b"good", headers=BINARY
        )
        assert updated.json()["weight_version"] == "one"
        assert (await get_generated_tokens(http))[0]["weight_versions"][0]["version"] == "one"
