"""Sends a workload to a server in real time, and measures every request.

An open loop sends at the workload's times, whatever the server does; a closed loop has a number of clients, each of
which sends its next request when it has its answer. Prompts are unique words, about one token each; token counts are
the server's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

import msgspec
import numpy as np
from msgspec import Struct

from ..engines.simulator.logs.log import LogError, MeasuredLog, build_log
from ..engines.simulator.workload import WorkloadRequest
from ..http_client import ClientTimeouts, HttpClient, HttpClientError
from .progress import OnProgress
from .stream_meter import DIALECTS, Measurement, StreamMeter

_TIMEOUTS = ClientTimeouts(connect=60.0, read=86_400.0)
"""A server under load may take its time: that is what is measured."""
_MAX_MODELS_BYTES = 10_000_000
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
    client = HttpClient(_TIMEOUTS)
    try:
        run = LoadRun(client, target, on_progress)
        return await run.measure(workload, concurrency=concurrency, warm_up=warm_up)
    finally:
        await client.close()


class LoadResponse(Protocol):
    """A response whose head has arrived, as `HttpResponse`."""

    status: int

    async def read(self) -> bytes | None: ...

    async def read_all(self, max_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class LoadClient(Protocol):
    """What sends the requests, as `HttpClient`."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> LoadResponse: ...


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class LoadRun:
    """One load on one server. now: seconds, on the clock that `asyncio.sleep` follows."""

    def __init__(
        self,
        client: LoadClient,
        target: Target,
        on_progress: OnProgress,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        try:
            self._extra = msgspec.json.decode(target.extra_body, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise ValueError(f"--extra-body: {error}") from None
        self._client, self._target, self._on_progress, self._now = client, target, on_progress, now
        self._base = target.url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if target.api_key is not None:
            self._headers["authorization"] = f"Bearer {target.api_key}"
        self._dialect, self._model, self._asks_for_ids = DIALECTS[target.dialect], "", False
        self._measurements: list[Measurement] = []
        self._errors: list[str] = []
        self._answered: dict[str, asyncio.Event] = {}
        self._started_at = 0.0

    async def measure(
        self, workload: Sequence[WorkloadRequest], *, concurrency: int | None = None, warm_up: int = 0
    ) -> LoadResult:
        """As `drive_server`."""
        self._model = self._target.model or await self._find_first_model()
        self._asks_for_ids = self._dialect.lists_ids and await self._lists_ids()
        # Numbered below zero, so that their prompts are none of the measured ones.
        for number, request in enumerate(workload[:warm_up]):
            await self._measure_request(request.id, self._build_request(-1 - number, request))
        self._answered = {request.id: asyncio.Event() for request in workload}
        self._started_at = self._now()
        # One iterator for all clients of a closed loop: each takes the next request.
        numbered = enumerate(workload)
        if concurrency is None:
            await asyncio.gather(*(self._send_at_its_time(number, request) for number, request in numbered))
        else:
            await asyncio.gather(*(self._send_one_by_one(numbered) for _ in range(concurrency)))
        if not self._measurements:
            raise LogError(f"{self._target.url}: all requests failed; the first error: {self._errors[0]}")
        return LoadResult(self._model, tuple(self._measurements), tuple(self._errors))

    async def _find_first_model(self) -> str:
        try:
            response = await self._client.send("GET", f"{self._base}/v1/models", self._headers)
            try:
                body = await response.read_all(_MAX_MODELS_BYTES)
            finally:
                response.close()
            if response.status != 200:
                raise LogError(f"{self._base}: cannot list its models: status {response.status}")
            return msgspec.json.decode(body, type=_Models).data[0].id
        except (HttpClientError, msgspec.MsgspecError, IndexError) as error:
            raise LogError(f"{self._base}: cannot list its models: {error}") from None

    async def _lists_ids(self) -> bool:
        """Whether the server accepts `return_token_ids` and returns ids; others count in `usage` alone."""
        self._asks_for_ids = True
        try:
            probe = self._build_request(-1, WorkloadRequest("probe", 0.0, 1, 1))
            measured = await self._measure_request("probe", probe)
        except (HttpClientError, LogError):
            return False
        return measured.counted_by == "ids"

    async def _send_at_its_time(self, number: int, request: WorkloadRequest) -> None:
        start_time = self._started_at
        if request.after is not None:
            await self._answered[request.after].wait()
            start_time = self._now()
        body = self._build_request(number, request)
        # An open loop: requests are sent at their times, however slow the server is, so that its queue shows in the
        # results.
        await asyncio.sleep(start_time + request.arrival_s - self._now())
        await self._send(request, body)

    async def _send_one_by_one(self, numbered: Iterator[tuple[int, WorkloadRequest]]) -> None:
        for number, request in numbered:
            if request.after is not None:
                await self._answered[request.after].wait()
            await self._send(request, self._build_request(number, request))

    async def _send(self, request: WorkloadRequest, body: bytes) -> None:
        try:
            self._measurements.append(await self._measure_request(request.id, body))
        except (HttpClientError, LogError) as error:
            self._errors.append(str(error) or type(error).__name__)
        # Also after a failure: the conversation's next turn would wait forever.
        self._answered[request.id].set()
        self._on_progress(len(self._measurements) + len(self._errors))

    async def _measure_request(self, id: str, body: bytes) -> Measurement:
        meter, sent_at = StreamMeter(self._dialect), self._now()
        response = await self._client.send("POST", self._base + self._dialect.path, self._headers, body)
        try:
            if response.status != 200:
                raise LogError(f"{response.status}: {(await response.read_all(200))[:200].decode(errors='replace')}")
            rest = b""
            while (piece := await response.read()) is not None:
                # By bytes: a piece of the network may end within a character.
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    meter.feed(line.decode(errors="replace").removesuffix("\r"), self._now())
            meter.feed(rest.decode(errors="replace"), self._now())
        finally:
            response.close()
        return meter.finish(id, sent_at)

    def _build_request(self, number: int, request: WorkloadRequest) -> bytes:
        """Built before its time comes, so that this is no part of what is measured."""
        words = np.random.default_rng(abs(number)).integers(len(PROMPT_WORDS), size=request.input_tokens)
        prompt = " ".join([str(number), *(PROMPT_WORDS[word] for word in cast("list[int]", words.tolist())[1:])])
        body = self._dialect.build_body(self._model, prompt, request.output_tokens)
        if self._asks_for_ids:
            body["return_token_ids"] = True
        fields = {name: value for name, value in (body | self._extra).items() if value is not None}
        return msgspec.json.encode(fields)
