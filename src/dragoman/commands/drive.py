"""Sends a workload to an OpenAI-compatible server in real time, and measures every request.

An open loop: arrival times do not depend on the server's responses. Prompts are unique words, about one token each; the
log has the token counts that the server reports.
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

from ..engines.simulator.logs.log import LogError, MeasuredLog, build_log
from ..engines.simulator.timing import Timing
from ..engines.simulator.workload import WorkloadRequest
from .progress import OnProgress

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
    """

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


_CHUNK_DECODER = msgspec.json.Decoder(_Chunk)


def measure_server(target: Target, workload: Sequence[WorkloadRequest], on_progress: OnProgress) -> MeasuredLog:
    """Run the workload. Raises LogError if no request succeeds, or the server reports no token counts."""
    return asyncio.run(_measure_server(target, workload, on_progress))


async def _measure_server(target: Target, workload: Sequence[WorkloadRequest], on_progress: OnProgress) -> MeasuredLog:
    extra = _parse_extra_body(target.extra_body)
    base = target.url.rstrip("/").removesuffix("/v1")
    headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=None, limits=limits) as client:
        model = target.model or await _find_first_model(client)
        run = _LoadRun(client, model, extra, {request.id: asyncio.Event() for request in workload}, on_progress)
        await asyncio.gather(*(run.run_request(number, request) for number, request in enumerate(workload)))
    if not run.timings:
        raise LogError(f"{target.url}: all requests failed; the first error: {run.errors[0]}")
    notes = [f"{len(run.errors)} requests failed; the first error: {run.errors[0]}"] if run.errors else []
    if any(request.block_hashes for request in workload):
        notes.append("shared prefixes of the workload were not reproduced: every prompt was new to the server")
    return build_log(target.url, run.timings, notes=notes)


def _parse_extra_body(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--extra-body: {error}") from None


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


class _LoadRun:
    def __init__(
        self,
        client: httpx2.AsyncClient,
        model: str,
        extra: dict[str, object],
        response_events: dict[str, asyncio.Event],
        on_progress: OnProgress,
    ) -> None:
        self.timings: list[Timing] = []
        self.errors: list[str] = []
        self._client, self._model, self._extra, self._response_events, self._on_progress = (
            client,
            model,
            extra,
            response_events,
            on_progress,
        )
        self._started_at = time.perf_counter()

    async def run_request(self, number: int, request: WorkloadRequest) -> None:
        start_time = self._started_at
        if request.after is not None:
            await self._response_events[request.after].wait()
            start_time = time.perf_counter()
        await asyncio.sleep(start_time + request.arrival_s - time.perf_counter())
        try:
            self.timings.append(await self._measure_request(number, request))
        except (httpx2.HTTPError, msgspec.MsgspecError, LogError) as error:
            self.errors.append(str(error) or type(error).__name__)
        self._response_events[request.id].set()
        self._on_progress(len(self.timings) + len(self.errors))

    async def _measure_request(self, number: int, request: WorkloadRequest) -> Timing:
        start_time = time.perf_counter()
        token_times: list[float] = []
        usage: _Usage | None = None
        async with self._client.stream("POST", "/v1/completions", json=self._build_body(number, request)) as response:
            if response.status_code != 200:
                raise LogError(f"{response.status_code}: {(await response.aread())[:200].decode(errors='replace')}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunk = _CHUNK_DECODER.decode(line[6:])
                    usage = chunk.usage or usage
                    if any(choice.text for choice in chunk.choices):
                        token_times.append(time.perf_counter())
        if usage is None or not token_times:
            raise LogError("the response has no tokens, or no usage statistics")
        tokens = (usage.prompt_tokens, usage.completion_tokens)
        return Timing(request.id, start_time, token_times[0], token_times[-1], *tokens)

    def _build_body(self, number: int, request: WorkloadRequest) -> dict[str, object]:
        words = np.random.default_rng(number).integers(len(PROMPT_WORDS), size=request.input_tokens)
        body: dict[str, object] = {
            "model": self._model,
            "prompt": " ".join([str(number), *(PROMPT_WORDS[word] for word in cast("list[int]", words.tolist())[1:])]),
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {name: value for name, value in (body | self._extra).items() if value is not None}
