"""Sends a workload to a server in real time, and measures every request.

An open loop sends at the workload's times, whatever the server does; a closed loop has a number of clients, each of
which sends its next request when it has its answer. Prompts are unique words, about one token each; token counts are
the server's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import httpx2
import msgspec
import numpy as np
from msgspec import Struct

from ..engines.simulator.logs.log import LogError, MeasuredLog, build_log
from ..engines.simulator.workload import WorkloadRequest
from .progress import OnProgress
from .stream_meter import DIALECTS, Measurement, StreamMeter

PROMPT_WORDS = (
    "time",
    "way",
    "year",
    "work",
    "day",
    "part",
    "place",
    "case",
    "week",
    "point",
    "room",
    "fact",
    "hand",
    "side",
)


class Target(Struct, frozen=True):
    """The server under test.

    url: with or without /v1.
    extra_body: JSON merged into every request; null removes a field.
    dialect: a key of `DIALECTS`.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    extra_body: str = "{}"
    dialect: str = "completions"


class LoadResult(Struct, frozen=True):
    """What a load was answered. model: as it was asked for. errors: messages of failed requests."""

    model: str
    measurements: tuple[Measurement, ...]
    errors: tuple[str, ...]


def measure_server(target: Target, workload: Sequence[WorkloadRequest], on_progress: OnProgress) -> MeasuredLog:
    """Run the workload in an open loop. Raises LogError if no request succeeds, or the server counts no tokens."""
    result = asyncio.run(drive_server(target, workload, on_progress))
    notes = [f"{len(result.errors)} requests failed; the first error: {result.errors[0]}"] if result.errors else []
    if any(request.block_hashes for request in workload):
        notes.append("shared prefixes of the workload were not reproduced: every prompt was new to the server")
    return build_log(target.url, [measurement.timing for measurement in result.measurements], notes=notes)


async def drive_server(
    target: Target,
    workload: Sequence[WorkloadRequest],
    on_progress: OnProgress,
    *,
    concurrency: int | None = None,
    warm_up: int = 0,
) -> LoadResult:
    """concurrency: the clients of a closed loop; None is an open loop. warm_up: requests before those that count.

    Raises LogError if no request succeeds, or the server counts no tokens.
    """
    headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    base = target.url.rstrip("/").removesuffix("/v1")
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=None, limits=limits) as client:
        run = LoadRun(client, target, on_progress)
        return await run.measure(workload, concurrency=concurrency, warm_up=warm_up)


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


async def _find_first_model(client: httpx2.AsyncClient) -> str:
    try:
        response = await client.get("/v1/models")
        return msgspec.json.decode(response.raise_for_status().content, type=_Models).data[0].id
    except (httpx2.HTTPError, msgspec.MsgspecError, IndexError) as error:
        raise LogError(f"{client.base_url}: cannot list its models: {error}") from None


class LoadRun:
    """One load on one server. now: seconds, on the clock that `asyncio.sleep` follows."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        target: Target,
        on_progress: OnProgress,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        try:
            self._extra = msgspec.json.decode(target.extra_body, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise ValueError(f"--extra-body: {error}") from None
        self._client, self._target, self._on_progress, self._now = client, target, on_progress, now
        self._dialect, self._model, self._asks_for_ids = DIALECTS[target.dialect], "", False
        self._measurements: list[Measurement] = []
        self._errors: list[str] = []
        self._answered: dict[str, asyncio.Event] = {}
        self._started_at = 0.0

    async def measure(
        self, workload: Sequence[WorkloadRequest], *, concurrency: int | None = None, warm_up: int = 0
    ) -> LoadResult:
        """As `drive_server`."""
        self._model = self._target.model or await _find_first_model(self._client)
        self._asks_for_ids = self._dialect.lists_ids and await self._lists_ids()
        # Numbered below zero, so that their prompts are none of the measured ones.
        for number, request in enumerate(workload[:warm_up]):
            await self._measure_request(request.id, self._build_request(-1 - number, request))
        self._answered = {request.id: asyncio.Event() for request in workload}
        self._started_at = self._now()
        numbered = enumerate(workload)
        if concurrency is None:
            await asyncio.gather(*(self._send_at_its_time(number, request) for number, request in numbered))
        else:
            await asyncio.gather(*(self._send_one_by_one(numbered) for _ in range(concurrency)))
        if not self._measurements:
            raise LogError(f"{self._target.url}: all requests failed; the first error: {self._errors[0]}")
        return LoadResult(self._model, tuple(self._measurements), tuple(self._errors))

    async def _lists_ids(self) -> bool:
        """Whether the server accepts `return_token_ids` and returns ids; others count in `usage` alone."""
        self._asks_for_ids = True
        try:
            probe = self._build_request(-1, WorkloadRequest("probe", 0.0, 1, 1))
            measured = await self._measure_request("probe", probe)
        except (httpx2.HTTPError, LogError):
            return False
        return measured.counted_by == "ids"

    async def _send_at_its_time(self, number: int, request: WorkloadRequest) -> None:
        start_time = self._started_at
        if request.after is not None:
            await self._answered[request.after].wait()
            start_time = self._now()
        built = self._build_request(number, request)
        await asyncio.sleep(start_time + request.arrival_s - self._now())
        await self._send(request, built)

    async def _send_one_by_one(self, numbered: Iterator[tuple[int, WorkloadRequest]]) -> None:
        for number, request in numbered:
            if request.after is not None:
                await self._answered[request.after].wait()
            await self._send(request, self._build_request(number, request))

    async def _send(self, request: WorkloadRequest, built: httpx2.Request) -> None:
        try:
            self._measurements.append(await self._measure_request(request.id, built))
        except (httpx2.HTTPError, LogError) as error:
            self._errors.append(str(error) or type(error).__name__)
        self._answered[request.id].set()
        self._on_progress(len(self._measurements) + len(self._errors))

    async def _measure_request(self, id: str, built: httpx2.Request) -> Measurement:
        meter, sent_at = StreamMeter(self._dialect), self._now()
        response = await self._client.send(built, stream=True)
        try:
            if response.status_code != 200:
                raise LogError(f"{response.status_code}: {(await response.aread())[:200].decode(errors='replace')}")
            async for line in response.aiter_lines():
                meter.feed(line, self._now())
        finally:
            await response.aclose()
        return meter.finish(id, sent_at)

    def _build_request(self, number: int, request: WorkloadRequest) -> httpx2.Request:
        """Built before its time comes, so that this is no part of what is measured."""
        words = np.random.default_rng(abs(number)).integers(len(PROMPT_WORDS), size=request.input_tokens)
        prompt = " ".join([str(number), *(PROMPT_WORDS[word] for word in cast("list[int]", words.tolist())[1:])])
        body = self._dialect.build_body(self._model, prompt, request.output_tokens)
        if self._asks_for_ids:
            body["return_token_ids"] = True
        fields = {name: value for name, value in (body | self._extra).items() if value is not None}
        return self._client.build_request("POST", self._dialect.path, json=fields)
