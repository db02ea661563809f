"""A load driver: sends a workload to a server in real time, and measures every streamed
response.

An open loop sends each request at its time in the workload, however slow the server is.
A closed loop has a fixed number of clients, each of which sends its next request after
its last response. Prompts are random words of about one token each, unique per request;
token counts are the server's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

import msgspec
import numpy as np
from msgspec import Struct

from dragoman_cli import OnProgress
from dragoman_http import ClientTimeouts, HttpClient, HttpClientError, SseDecoder

from .bench_dialects import DIALECTS
from .logs.measured_log import LogError, MeasuredLog, build_log
from .stream_meter import Measurement, StreamMeter
from .workload import WorkloadRequest

_TIMEOUTS = ClientTimeouts(connect=60.0, read=86_400.0)
"""Seconds. The read timeout is a day: slow responses of an overloaded server are part
of the measurement.
"""
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

    url: base URL, with or without /v1.
    model: None selects the first model that the server lists.
    extra_body: JSON object merged into every request; null removes a field.
    dialect: a key of `DIALECTS`.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    extra_body: str = "{}"
    dialect: str = "completions"


class LoadResult(Struct, frozen=True):
    """The responses to a workload.

    model: the model's name in the requests.
    errors: messages of failed requests.
    """

    model: str
    measurements: tuple[Measurement, ...]
    errors: tuple[str, ...]


def measure_server(
    target: Target, workload: Sequence[WorkloadRequest], on_progress: OnProgress
) -> MeasuredLog:
    """Run the workload in an open loop. Raises LogError if no request succeeds, or the
    server counts no tokens.
    """
    result = asyncio.run(drive_server(target, workload, on_progress))
    notes = (
        [f"{len(result.errors)} requests failed; the first error: {result.errors[0]}"]
        if result.errors
        else []
    )
    if any(request.block_hashes for request in workload):
        notes.append(
            "shared prefixes of the workload were not reproduced: every prompt was new to the "
            "server"
        )
    return build_log(
        target.url, [measurement.timing for measurement in result.measurements], notes=notes
    )


async def drive_server(
    target: Target,
    workload: Sequence[WorkloadRequest],
    on_progress: OnProgress,
    *,
    concurrency: int | None = None,
    warm_up: int = 0,
) -> LoadResult:
    """Send a workload to the server, and measure the responses.

    concurrency: number of clients of a closed loop; None is an open loop.
    warm_up: number of requests to send before the measurement.

    Raises LogError if no request succeeds, or the server counts no tokens.
    """
    client = HttpClient(_TIMEOUTS)
    try:
        run = LoadRun(client, target, on_progress)
        return await run.measure(workload, concurrency=concurrency, warm_up=warm_up)
    finally:
        await client.close()


class LoadResponse(Protocol):
    """A response whose status and headers have arrived; implemented by
    `HttpResponse`.
    """

    status: int

    async def read(self) -> bytes | None: ...

    async def read_all(self, max_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class LoadClient(Protocol):
    """A client that sends the requests; implemented by `HttpClient`."""

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> LoadResponse: ...


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class LoadRun:
    """One run of a workload against one server.

    now: clock in seconds; `asyncio.sleep` must follow it.
    """

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
        self._client = client
        self._target = target
        self._on_progress = on_progress
        self._now = now
        self._base = target.url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if target.api_key is not None:
            self._headers["authorization"] = f"Bearer {target.api_key}"
        self._dialect = DIALECTS[target.dialect]
        self._model = ""
        self._asks_for_ids = False
        self._measurements: list[Measurement] = []
        self._errors: list[str] = []
        self._completed: dict[str, asyncio.Event] = {}
        self._started_at = 0.0

    async def measure(
        self,
        workload: Sequence[WorkloadRequest],
        *,
        concurrency: int | None = None,
        warm_up: int = 0,
    ) -> LoadResult:
        """Run the workload; see `drive_server`."""
        self._model = self._target.model or ""
        if not self._model:
            try:
                response = await self._client.send("GET", f"{self._base}/v1/models", self._headers)
                try:
                    models = await response.read_all(_MAX_MODELS_BYTES)
                finally:
                    response.close()
                if response.status != 200:
                    raise LogError(
                        f"{self._base}: cannot list its models: status {response.status}"
                    )
                self._model = msgspec.json.decode(models, type=_Models).data[0].id
            except (HttpClientError, msgspec.MsgspecError, IndexError) as error:
                raise LogError(f"{self._base}: cannot list its models: {error}") from None
        if self._dialect.lists_ids:
            # Servers that reject or ignore `return_token_ids` count tokens in `usage`
            # only.
            self._asks_for_ids = True
            try:
                probe = self._build_request(-1, WorkloadRequest("probe", 0.0, 1, 1))
                self._asks_for_ids = (
                    await self._measure_request("probe", probe)
                ).counted_by == "ids"
            except (HttpClientError, LogError):
                self._asks_for_ids = False
        # Negative numbers, so that their prompts differ from the measured ones.
        for number, request in enumerate(workload[:warm_up]):
            await self._measure_request(request.id, self._build_request(-1 - number, request))
        self._completed = {request.id: asyncio.Event() for request in workload}
        self._started_at = self._now()
        numbered = enumerate(workload)
        if concurrency is None:
            await asyncio.gather(
                *(self._run_client(iter([item]), keeps_times=True) for item in numbered)
            )
        else:
            # One iterator for all clients: each takes the next request.
            await asyncio.gather(
                *(self._run_client(numbered, keeps_times=False) for _ in range(concurrency))
            )
        if not self._measurements:
            raise LogError(
                f"{self._target.url}: all requests failed; the first error: {self._errors[0]}"
            )
        return LoadResult(self._model, tuple(self._measurements), tuple(self._errors))

    async def _run_client(
        self, requests: Iterator[tuple[int, WorkloadRequest]], *, keeps_times: bool
    ) -> None:
        """Send requests one after the other.

        keeps_times: send each at its time in the workload; otherwise as soon as the
            previous one is complete.
        """
        for number, request in requests:
            start_time = self._started_at
            if request.after is not None:
                await self._completed[request.after].wait()
                start_time = self._now()
            body = self._build_request(number, request)
            if keeps_times:
                # Send on time even if the server is slow, so that its queueing delay is
                # measured.
                await asyncio.sleep(start_time + request.arrival_s - self._now())
            try:
                self._measurements.append(await self._measure_request(request.id, body))
            except (HttpClientError, LogError) as error:
                self._errors.append(str(error) or type(error).__name__)
            # Set even after a failure: the conversation's next turn would wait forever.
            self._completed[request.id].set()
            self._on_progress(len(self._measurements) + len(self._errors))

    async def _measure_request(self, id: str, body: bytes) -> Measurement:
        meter = StreamMeter(self._dialect)
        sent_at = self._now()
        response = await self._client.send(
            "POST", self._base + self._dialect.path, self._headers, body
        )
        try:
            if response.status != 200:
                raise LogError(
                    f"{response.status}: "
                    f"{(await response.read_all(200))[:200].decode(errors='replace')}"
                )
            decoder = SseDecoder()
            is_complete = False
            while not is_complete:
                piece = await response.read()
                is_complete = piece is None
                # The last event may lack its blank line.
                for event in decoder.feed(b"\n\n" if piece is None else piece):
                    meter.feed(event, self._now())
        finally:
            response.close()
        return meter.finish(id, sent_at)

    def _build_request(self, number: int, request: WorkloadRequest) -> bytes:
        """Build a request body. Called before the request's time, to keep this work out
        of the measurement.
        """
        words = np.random.default_rng(abs(number)).integers(
            len(PROMPT_WORDS), size=request.input_tokens
        )
        prompt = " ".join(
            [str(number), *(PROMPT_WORDS[word] for word in cast("list[int]", words.tolist())[1:])]
        )
        body = self._dialect.build_body(self._model, prompt, request.output_tokens)
        if self._asks_for_ids:
            body["return_token_ids"] = True
        fields = {name: value for name, value in (body | self._extra).items() if value is not None}
        return msgspec.json.encode(fields)
