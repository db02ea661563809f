"""Drives an OpenAI-compatible server with a workload, on the real clock, and measures every request.

An open loop: requests are sent when the workload says, however the server fares. Prompts are words that no other
request has, one a token or so; what the server counts is what is logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import httpx2
import msgspec
import numpy as np
from msgspec import Struct

from ..engines.simulator.logs.log import Log, LogError, log_of
from ..engines.simulator.timing import Timing
from ..engines.simulator.workload import Request
from .progress import Tick

WORDS = ("time", "way", "year", "work", "day", "part", "place", "case", "week", "point", "room", "fact", "hand", "side")


class Target(Struct, frozen=True):
    """url: with or without /v1. extra_body: JSON that is laid over every request; null takes a field away."""

    url: str
    model: str | None = None
    api_key: str | None = None
    extra_body: str = "{}"


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Choice(Struct):
    text: str = ""


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def drive(target: Target, workload: Sequence[Request], tick: Tick) -> Log:
    """Raises LogError if the server answers none of them, or does not count its tokens."""
    return asyncio.run(_drive(target, workload, tick))


async def _drive(target: Target, workload: Sequence[Request], tick: Tick) -> Log:
    extra = _extra(target.extra_body)
    base = target.url.rstrip("/").removesuffix("/v1")
    headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=None, limits=limits) as client:
        model = target.model or await _first_model(client)
        run = _Run(client, model, extra, {request.id: asyncio.Event() for request in workload}, tick)
        await asyncio.gather(*(run.request(number, request) for number, request in enumerate(workload)))
    if not run.timings:
        raise LogError(f"{target.url}: all requests failed; the first error: {run.errors[0]}")
    notes = [f"{len(run.errors)} requests failed; the first error: {run.errors[0]}"] if run.errors else []
    if any(request.block_hashes for request in workload):
        notes.append("shared prefixes of the workload were not reproduced: every prompt was new to the server")
    return log_of(target.url, run.timings, notes=notes)


def _extra(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--extra-body: {error}") from None


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


async def _first_model(client: httpx2.AsyncClient) -> str:
    try:
        answer = await client.get("/v1/models")
        return msgspec.json.decode(answer.raise_for_status().content, type=_Models).data[0].id
    except (httpx2.HTTPError, msgspec.MsgspecError, IndexError) as error:
        raise LogError(f"{client.base_url}: cannot list its models: {error}") from None


class _Run:
    def __init__(
        self,
        client: httpx2.AsyncClient,
        model: str,
        extra: dict[str, object],
        answered: dict[str, asyncio.Event],
        tick: Tick,
    ) -> None:
        self.timings: list[Timing] = []
        self.errors: list[str] = []
        self._client, self._model, self._extra, self._answered, self._tick = client, model, extra, answered, tick
        self._begin = time.perf_counter()

    async def request(self, number: int, request: Request) -> None:
        begin = self._begin
        if request.after is not None:
            await self._answered[request.after].wait()
            begin = time.perf_counter()
        await asyncio.sleep(begin + request.arrival_s - time.perf_counter())
        try:
            self.timings.append(await self._measure(number, request))
        except (httpx2.HTTPError, msgspec.MsgspecError, LogError) as error:
            self.errors.append(str(error) or type(error).__name__)
        self._answered[request.id].set()
        self._tick(len(self.timings) + len(self.errors))

    async def _measure(self, number: int, request: Request) -> Timing:
        begin = time.perf_counter()
        moments: list[float] = []
        usage: _Usage | None = None
        async with self._client.stream("POST", "/v1/completions", json=self._body(number, request)) as answer:
            if answer.status_code != 200:
                raise LogError(f"{answer.status_code}: {(await answer.aread())[:200].decode(errors='replace')}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = _CHUNK.decode(line[6:])
                    usage = chunk.usage or usage
                    if any(choice.text for choice in chunk.choices):
                        moments.append(time.perf_counter())
        if usage is None or not moments:
            raise LogError("the response has no tokens, or no usage statistics")
        tokens = (usage.prompt_tokens, usage.completion_tokens)
        return Timing(request.id, begin, moments[0], moments[-1], *tokens)

    def _body(self, number: int, request: Request) -> dict[str, object]:
        words = np.random.default_rng(number).integers(len(WORDS), size=request.input_tokens)
        body: dict[str, object] = {
            "model": self._model,
            "prompt": " ".join([str(number), *(WORDS[word] for word in cast("list[int]", words.tolist())[1:])]),
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {name: value for name, value in (body | self._extra).items() if value is not None}
