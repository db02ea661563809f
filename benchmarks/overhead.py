"""What Dragoman adds: server CPU, latency, memory and start of one table of rows, beside
raw uvicorn, a bare protocol and, where it is installed, FastAPI; then a summary with
one line for each measure.

    python benchmarks/overhead.py [--rows streams,whole] [--rounds 3] [--json FILE]
    [--plot FILE] [--baseline ../before]
    python benchmarks/overhead.py --rows upstream --peer "smg=smg launch
    --worker-urls {upstream} --port {port}"
    python benchmarks/overhead.py --rows
    streams,whole --peer "xPyD-sim=xpyd-sim serve --model m --port {port}"

Every server is a process of its own, and the rows of one round run one after the other,
so that the ratios of a round hold on a busy machine where the figures do not. CPU is
user and system time of the server's process; memory is what half of the answer's tokens
have added. Linux only: CPU and memory come from /proc. A peer is another gateway in
front of the same upstream, whose command is given the addresses of both, or without
`{upstream}` a server of its own model `m`; what it starts in other processes is not
counted. `smg`, where it is installed, is one. A baseline is another checkout with a
`.venv`, whose servers run beside ours in the same rounds.
"""

# pyright: reportUnknownMemberType=false
# matplotlib's keywords have no types.

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import uvloop
from cold_start import BARE, measure_command, measure_server, read_first_token
from installed import environment

PROFILE = """
name: steady
hardware: {{name: none}}
model: {{name: none}}
engine:
  max_num_seqs: 4096
  max_num_batched_tokens: 65536
  num_gpu_blocks: 65536
  max_model_len: 4096
latency: {{base: {step}}}
frontend_seconds: 0.0
"""
HERE = Path(__file__).parent
DRAGOMAN = ["-m", "dragoman"]
SERVE = [sys.executable, *DRAGOMAN, "serve"]
OPTIONS = ["--port", "0", "--no-access-log"]


@dataclass(frozen=True)
class Load:
    """The requests of a row. clients: concurrent ones; requests: of each; path, body:
    of every request. varies: each request has a prompt of its own. seconds: over which
    the clients begin. key: the API key.
    """

    clients: int
    requests: int
    path: str
    body: dict[str, object]
    tokens: int
    streamed: bool
    varies: bool = False
    seconds: float = 0.0
    key: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the table. servers: by name, the yardsticks first. unit: what CPU is
    divided by.
    """

    unit: str
    load: Load
    step: float
    servers: Sequence[str]


@dataclass
class Result:
    """One server's figures in one round. cpu: microseconds per unit; times in
    milliseconds; memory in KB a stream.
    """

    row: str
    server: str
    cpu: float
    ratio: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float | None = None
    itl_p99: float | None = None
    memory: float | None = None


def build_chat(tokens: int, *, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        "seed": 1,
    }


def build_responses(tokens: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "input": "What is the capital of Japan?",
        "max_output_tokens": tokens,
        "ignore_eos": True,
    }


def build_tools(count: int) -> list[dict[str, object]]:
    properties = {
        name: {"type": "string", "description": "a value of the search"}
        for name in ("query", "language", "region", "before", "after")
    }
    parameters = {"type": "object", "properties": properties, "required": ["query"]}
    return [
        {
            "type": "function",
            "function": {
                "name": f"search_{number}",
                "description": "Searches a collection.",
                "parameters": parameters,
            },
        }
        for number in range(count)
    ]


CHAT = "/v1/chat/completions"
MODEL = "m"
KEY = "sk-dragoman-" + "0123456789abcdef" * 4
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
YARDSTICKS = ("raw uvicorn", "bare protocol")
ECHO = "FastAPI echo"
UPSTREAM = "Dragoman upstream"
TOKEN = re.compile(rb'(?:content|text)": ?"[^"]')
"""A piece of a stream with a token: the first event often has the role alone."""
BEFORE = ", before"
"""The end of a baseline's server's name."""
MEMORY = "memory, 512 streams"
MORE_MEMORY = "memory, 2,000 streams"
MARGINAL = "a token without the start"
START = "first answer"
SMG = "smg launch --worker-urls {upstream} --host 127.0.0.1 --port {port}"


def build_rows(
    streams: int,
    tokens: int,
    long_tokens: int,
    gateways: Sequence[str] = (),
    models: Sequence[str] = (),
) -> dict[str, Row]:
    """gateways, models: peers in front of the upstream, and with a model of their own."""

    def stream(count: int, length: int) -> Load:
        return Load(count, 1, CHAT, build_chat(length, stream=True), length, streamed=True)

    def whole(clients: int, requests: int, length: int) -> Load:
        return Load(
            clients, requests, CHAT, build_chat(length, stream=False), length, streamed=False
        )

    def variant(
        changes: Mapping[str, object] | None = None, *, varies: bool = False, key: str = ""
    ) -> Row:
        body = build_chat(2, stream=False) | dict(changes or {})
        load = Load(16, 60, CHAT, body, 2, streamed=False, varies=varies, key=key)
        server = "sim with keys" if key else "sim"
        return Row("request", load, 0.0005, ("raw uvicorn", ECHO, server))

    def memory(clients: int) -> Row:
        # Streams start one after the other: half of the tokens come later than that.
        return Row("token", stream(clients, max(2, clients // 50)), 0.5, ("raw uvicorn", "sim"))

    def other(path: str, body: dict[str, object]) -> Load:
        return Load(16, 60, path, body, 2, streamed=False)

    fronts = ("upstream alone", UPSTREAM)
    wholes = (*YARDSTICKS, ECHO, "sim", *models)
    two = build_responses(2)
    responses = ("raw uvicorn", "sim", "sim stored")
    return {
        "streams": Row("token", stream(streams, tokens), 0.02, (*YARDSTICKS, "sim", *models)),
        "long streams": Row(
            "token", stream(streams, long_tokens), 0.02, (*YARDSTICKS, "sim", *models)
        ),
        "short streams": Row("token", stream(streams, tokens // 6), 0.02, ("raw uvicorn", "sim")),
        "whole, 2 tokens": Row("request", whole(16, 100, 2), 0.0005, wholes),
        "whole, 10 tokens": Row("request", whole(4, 50, 10), 0.02, wholes),
        "variant, prompts that differ": variant(varies=True),
        "variant, 10 tools": variant({"tools": build_tools(10)}, varies=True),
        "variant, schema": variant(
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "city", "schema": SCHEMA},
                }
            },
            varies=True,
        ),
        "variant, key with limits": variant(varies=True, key=KEY),
        "starts": Row(
            "request",
            Load(16, 60, CHAT, build_chat(2, stream=True), 2, streamed=True),
            0.0005,
            (*YARDSTICKS, "sim", *models),
        ),
        "burst": Row(
            "token",
            Load(512, 1, CHAT, build_chat(50, stream=True), 50, streamed=True, seconds=0.3),
            0.02,
            (*YARDSTICKS, "sim", *models),
        ),
        "Responses, 2 tokens": Row("request", other("/v1/responses", two), 0.0005, responses),
        "Messages, 2 tokens": Row(
            "request",
            other("/v1/messages", build_chat(2, stream=False)),
            0.0005,
            ("raw uvicorn", "sim"),
        ),
        "embeddings": Row(
            "request",
            other("/v1/embeddings", {"model": MODEL, "input": "Hello"}),
            0.0005,
            ("raw uvicorn", ECHO, "sim"),
        ),
        MEMORY: memory(min(512, 2 * streams)),
        MORE_MEMORY: memory(min(2000, 8 * streams)),
        "upstream, Chat to Chat": Row("token", stream(32, 200), 0.02, (*fronts, *gateways)),
        "upstream, translating": Row(
            "token", replace(stream(32, 200), path="/v1/messages"), 0.02, fronts
        ),
    }


@contextmanager
def run_server(command: list[str], env: dict[str, str]) -> Generator[tuple[int, int]]:
    """Its process and its port."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True, cwd=HERE) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+:(\d+)", process.stdout.readline())
        assert found is not None, command
        try:
            yield process.pid, int(found[1])
        finally:
            process.terminate()


@contextmanager
def run_peer(
    command: str, upstream: int | None, step: float, env: dict[str, str]
) -> Generator[tuple[int, int]]:
    """As `run_server`, for a program that does not report when it listens.

    command: with `{upstream}`, `{port}` and `{step}`, the milliseconds of a step.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    filled = command.replace("{upstream}", f"http://127.0.0.1:{upstream}").replace(
        "{port}", str(port)
    )
    filled = filled.replace("{step}", f"{step * 1e3:g}")
    with subprocess.Popen(
        shlex.split(filled), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            for _ in range(1200):
                assert process.poll() is None, f"{filled} has ended"
                try:
                    asyncio.run(
                        send_all(
                            port, Load(1, 1, CHAT, build_chat(1, stream=True), 1, streamed=True)
                        )
                    )
                    break
                except (OSError, AssertionError):
                    time.sleep(0.1)
            yield process.pid, port
        finally:
            process.terminate()


def read_usage(process: int) -> tuple[float, int]:
    """Seconds of CPU, and bytes of memory. Of all threads; schedstat counts
    nanoseconds, where there is one.
    """
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    threads = list(Path(f"/proc/{process}/task").iterdir())
    try:
        cpu = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except OSError:
        cpu = 0.0
    return cpu or (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), memory


@dataclass
class Answer:
    """The times at which the pieces of one answer came, after the request, from the first
    with a token. events: in the body.
    """

    ttft: float = 0.0
    times: list[float] = field(default_factory=list[float])
    events: int = 0


def build_request(load: Load, body: Mapping[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {load.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    if load.key:
        head += f"authorization: Bearer {load.key}\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


class Client(asyncio.Protocol):
    """One connection that sends requests one after the other and splits nothing but
    their ends.
    """

    def __init__(self, load: Load, done: asyncio.Future[list[Answer]]) -> None:
        self._request = build_request(load, load.body)
        self._load = load
        self._done = done
        self._answers: list[Answer] = []
        self._tail = b""
        self._sent = 0.0
        self._awaits_head = True
        self._body_left: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._answers.append(Answer())
        self._awaits_head = True
        self._tail = b""
        self._body_left = None
        if self._load.varies:
            prompt = f"What is the capital of country {random.random()}?"
            messages = [{"role": "user", "content": prompt}]
            self._request = build_request(self._load, {**self._load.body, "messages": messages})
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        answer = self._answers[-1]
        if self._awaits_head:
            self._awaits_head = False
            assert data[9:12] == b"200", data[:400]
        answer.events += data.count(b"data: ")
        assert not (self._load.streamed and b'"error"' in data), data[-400:]
        if self._load.streamed:
            if answer.times or TOKEN.search(data):
                answer.times.append(now - self._sent)
            self._tail = (self._tail + data)[-8:]
            if self._tail.endswith(b"\r\n0\r\n\r\n"):
                self._finish()
            return
        answer.times.append(now - self._sent)
        if self._body_left is None:
            data = self._tail + data
            head, separator, rest = data.partition(b"\r\n\r\n")
            if not separator:
                self._tail = data
                return
            found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert found is not None, head
            self._body_left = int(found[1])
            data = rest
        self._body_left -= len(data)
        if self._body_left <= 0:
            self._finish()

    def _finish(self) -> None:
        answer = self._answers[-1]
        answer.ttft = answer.times[0]
        if len(self._answers) < self._load.requests:
            self._send()
        else:
            self._transport.close()
            self._done.set_result(self._answers)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed the connection: {exc}"))


async def send_all(port: int, load: Load) -> list[Answer]:
    loop = asyncio.get_running_loop()

    async def run_one(number: int) -> list[Answer]:
        if load.seconds:
            await asyncio.sleep(load.seconds * number / load.clients)
        done: asyncio.Future[list[Answer]] = loop.create_future()
        await loop.create_connection(lambda: Client(load, done), "127.0.0.1", port)
        return await done

    async with asyncio.timeout(120):
        groups = await asyncio.gather(*(run_one(number) for number in range(load.clients)))
    return [answer for answers in groups for answer in answers]


def _find_p99(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=100)[98]


async def measure(
    process: int, port: int, row: Row, *, is_peer: bool = False
) -> tuple[Result, int]:
    """The figures, and the number of events. is_peer: may put tokens that come together
    into one event.
    """
    load = row.load
    # Warm: caches are filled, both sides have imported what they need, and Python has
    # specialized the code: some 60 requests, or what takes 2 seconds. Two at a time, as
    # memory that more streams have left behind would not be counted.
    body = {**load.body, "max_tokens": 2} if load.streamed else load.body
    tokens = 2 if load.streamed else load.tokens
    requests = max(1, min(32, int(2 / (row.step * tokens))))
    await send_all(port, replace(load, clients=2, requests=requests, body=body, seconds=0))
    cpu, memory = read_usage(process)
    running = asyncio.create_task(send_all(port, load))
    peak = memory
    if load.streamed:
        await asyncio.sleep(load.tokens * row.step / 2)
        peak = read_usage(process)[1]
    answers = await running
    spent = read_usage(process)[0] - cpu
    units = len(answers) * (load.tokens if row.unit == "token" else 1)
    if load.streamed and not is_peer:
        assert all(answer.events >= load.tokens for answer in answers), min(
            answer.events for answer in answers
        )
    gaps = [
        after - before
        for answer in answers
        for before, after in zip(answer.times, answer.times[1:], strict=False)
    ]
    quantiles = statistics.quantiles(gaps, n=100) if load.streamed else None
    result = Result(
        "",
        "",
        spent / units * 1e6,
        1.0,
        statistics.median(answer.ttft for answer in answers) * 1e3,
        _find_p99([answer.ttft for answer in answers]) * 1e3,
        None if quantiles is None else quantiles[49] * 1e3,
        None if quantiles is None else quantiles[98] * 1e3,
        (peak - memory) / load.clients / 1024 if load.streamed else None,
    )
    return result, len(answers)


def build_command(
    server: str, row: Row, folder: Path, upstream: int | None, baseline: Path | None
) -> list[str]:
    if server in YARDSTICKS:
        return [sys.executable, "yardsticks.py", server, str(row.step)]
    if server == "upstream alone":
        return [sys.executable, "yardsticks.py", "raw uvicorn", str(row.step)]
    if server == ECHO:
        return [sys.executable, "fastapi_echo.py", "0", str(row.step)]
    kind = server.removesuffix(BEFORE)
    dragoman = build_dragoman(server, baseline)
    if kind == UPSTREAM:
        upstream_options = ["--store", "none", "--upstream-kind", "openai"]
        return [*dragoman, "serve", f"http://127.0.0.1:{upstream}", *OPTIONS, *upstream_options]
    profile = folder / f"steady-{row.step}.yaml"
    profile.write_text(PROFILE.format(step=row.step))
    # Each round has its own servers, but one file of keys for each version.
    keys_file = folder / f"keys of {server}.yaml"
    keys = ["--keys-file", str(keys_file)] if kind == "sim with keys" else []
    if keys and not keys_file.exists():
        limits = ["--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000"]
        add = [*dragoman, "keys", "add", "bench", *keys, *limits, "--from-stdin"]
        subprocess.run(add, input=KEY, text=True, check=True)
    store = f"sqlite:{folder / f'store of {server}.db'}" if kind == "sim stored" else "none"
    names = ["--served-model-name", MODEL, "--profile", str(profile)]
    return [*dragoman, "serve", "sim", *OPTIONS, *names, "--store", store, *keys]


def build_dragoman(server: str, baseline: Path | None) -> list[str]:
    """The command of Dragoman in the version of a server."""
    python = sys.executable
    if baseline is not None and server.endswith(BEFORE):
        python = str(baseline / ".venv/bin/python")
    return [python, *DRAGOMAN]


def run_start(folder: Path, env: dict[str, str], baseline: Path | None) -> list[Result]:
    """Start servers of the embedded model: the times are those of the first answer."""
    measures = {"imports alone": lambda: measure_command(BARE, env)}
    for server in ("tiny", *(() if baseline is None else ("tiny" + BEFORE,))):
        command = [*build_dragoman(server, baseline), "serve"]
        # A store of its own: a former version does not open that of a later one.
        variables = env | {"XDG_STATE_HOME": str(folder / server)}
        measures[server] = lambda command=command, variables=variables: measure_server(
            command, variables, read_first_token
        )
    results: list[Result] = []
    for server, measure_start in measures.items():
        measure_start()  # compiles
        wall, cpu = measure_start()
        results.append(Result(START, server, cpu * 1e6, 1.0, wall * 1e3, wall * 1e3))
        results[-1].ratio = results[-1].cpu / results[0].cpu
        print(render(results[-1], "start"), flush=True)
    return results


def run_row(
    name: str,
    row: Row,
    folder: Path,
    env: dict[str, str],
    peers: Mapping[str, str],
    baseline: Path | None,
) -> list[Result]:
    results: list[Result] = []
    for server in row.servers:
        if server in peers and "{upstream}" not in peers[server]:
            with run_peer(peers[server], None, row.step, env) as (process, port):
                result, _ = asyncio.run(measure(process, port, row, is_peer=True))
        elif server.removesuffix(BEFORE) == UPSTREAM or server in peers:
            alone = build_command("upstream alone", row, folder, None, None)
            with (
                run_server(alone, env) as (_, upstream),
                run_peer(peers[server], upstream, row.step, env)
                if server in peers
                else run_server(build_command(server, row, folder, upstream, baseline), env) as (
                    process,
                    port,
                ),
            ):
                result, _ = asyncio.run(measure(process, port, row))
        else:
            load = row.load
            if server == "upstream alone":
                # The yardstick speaks Chat alone.
                body = build_chat(load.tokens, stream=True)
                load = Load(load.clients, 1, CHAT, body, load.tokens, streamed=True)
            command = build_command(server, row, folder, None, baseline)
            with run_server(command, env) as (process, port):
                result, _ = asyncio.run(measure(process, port, replace(row, load=load)))
        result.row = name
        result.server = server
        result.ratio = result.cpu / (results[0].cpu if results else result.cpu)
        results.append(result)
        print(render(result, row.unit), flush=True)
    return results


@dataclass(frozen=True)
class Measure:
    """A line of the summary. yardsticks: the first that was run is the divisor. pick:
    of a result.
    """

    title: str
    row: str
    yardsticks: Sequence[str]
    pick: Callable[[Result], float]
    server: str = "sim"


def _pick_cpu(result: Result) -> float:
    return result.cpu


def _pick_memory(result: Result) -> float:
    return result.memory or 0.0


def build_measures(gateways: Sequence[str]) -> list[Measure]:
    """gateways: the yardsticks of a token through an upstream."""
    raw = ("raw uvicorn",)
    echo = (ECHO, *raw)
    alone = (*gateways, "upstream alone")
    names = ("prompts that differ", "10 tools", "schema")
    return [
        Measure("ms to the first answer", START, ["imports alone"], lambda r: r.ttft_p50, "tiny"),
        Measure("ms of CPU of that", START, ["imports alone"], lambda r: r.cpu / 1e3, "tiny"),
        Measure("us a whole answer of 2 tokens", "whole, 2 tokens", echo, _pick_cpu),
        Measure("us a whole answer of 10 tokens", "whole, 10 tokens", echo, _pick_cpu),
        *[Measure(f"us with {name}", f"variant, {name}", echo, _pick_cpu) for name in names],
        Measure(
            "us with a key with limits", "variant, key with limits", echo, _pick_cpu,
            "sim with keys",
        ),
        Measure("us an embedding", "embeddings", echo, _pick_cpu),
        Measure("ms of TTFT in a burst, p50", "burst", raw, lambda r: r.ttft_p50),
        Measure("ms of TTFT in a burst, p99", "burst", raw, lambda r: r.ttft_p99),
        Measure("us a streamed token", "streams", raw, _pick_cpu),
        Measure("us a token without the start", MARGINAL, raw, _pick_cpu),
        Measure("us a stream of 2 tokens", "starts", raw, _pick_cpu),
        Measure("us a token through an upstream", "upstream, Chat to Chat", alone, _pick_cpu,
                UPSTREAM),
        Measure("us a token, Chat to Messages", "upstream, translating", alone, _pick_cpu,
                UPSTREAM),
        Measure("KB a stream of 512", MEMORY, raw, _pick_memory),
        Measure("KB a stream of 2,000", MORE_MEMORY, raw, _pick_memory),
    ]  # fmt: skip


def fit_tokens(results: Sequence[Result], rows: Mapping[str, Row]) -> list[Result]:
    """What a token costs: the slope of the line through streams of two lengths. What the
    line says of the start is less than its own error: the row of starts measures it.
    """
    fitted: list[Result] = []
    if not {"streams", "short streams"} <= rows.keys():
        return fitted
    tokens, few = (rows[name].load.tokens for name in ("streams", "short streams"))
    for server in dict.fromkeys(result.server for result in results):
        both = [
            [result for result in results if (result.row, result.server) == (name, server)]
            for name in ("streams", "short streams")
        ]
        for whole, short in zip(*both, strict=False):
            slope = (whole.cpu * tokens - short.cpu * few) / (tokens - few)
            fitted.append(replace(whole, row=MARGINAL, cpu=slope))
    return fitted


def summarize(results: Sequence[Result], gateways: Sequence[str]) -> list[dict[str, str | float]]:
    """Each measure's median, and the median of the rounds' ratios to the yardstick."""
    lines: list[dict[str, str | float]] = []
    for measure_ in build_measures(gateways):
        values: dict[str, list[float]] = {}
        for result in results:
            if result.row == measure_.row:
                values.setdefault(result.server, []).append(measure_.pick(result))
        yardstick = next((name for name in measure_.yardsticks if name in values), None)
        if yardstick is None or measure_.server not in values:
            continue
        line: dict[str, str | float] = {
            "measure": measure_.title,
            "yardstick": yardstick,
            "of the yardstick": statistics.median(values[yardstick]),
        }
        for name, server in (("now", measure_.server), ("before", measure_.server + BEFORE)):
            if found := values.get(server):
                line[name] = statistics.median(found)
                # A divisor of 0: memory that the yardstick had already.
                ratios = [a / b for a, b in zip(found, values[yardstick], strict=False) if b]
                line[f"{name}, ratio"] = statistics.median(ratios) if ratios else float("nan")
        lines.append(line)
    return lines


def render_summary(lines: Sequence[Mapping[str, str | float]]) -> str:
    columns = ("of the yardstick", "now", "now, ratio", "before", "before, ratio")
    head = f"{'measure':34}{'yardstick':16}" + "".join(f"{name:>18}" for name in columns)
    return "\n".join(
        [
            head,
            *[
                f"{line['measure']:34}{line['yardstick']:16}"
                + "".join(f"{line[name]:18.2f}" if name in line else " " * 18 for name in columns)
                for line in lines
            ],
        ]
    )


def render(result: Result, unit: str) -> str:
    def show(value: float | None, digits: int = 1) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return (
        f"{result.row:28}{result.server:20}{result.cpu:9.1f} us/{unit:8}{show(result.ratio, 2):>7}"
        f"{show(result.ttft_p50):>9}{show(result.ttft_p99):>9}{show(result.itl_p50):>9}{show(result.itl_p99):>9}{show(result.memory):>9}"
    )


def choose_servers(row: Row, peers: Mapping[str, str], baseline: Path | None) -> list[str]:
    """The servers of a row that can be run, each of ours with its baseline."""
    servers: list[str] = []
    for server in row.servers:
        if server == ECHO and find_spec("fastapi") is None:
            continue
        servers.append(server)
        is_ours = server == UPSTREAM or server.startswith("sim")
        if baseline is not None and is_ours and server not in peers:
            servers.append(server + BEFORE)
    return servers


def describe_machine() -> dict[str, object]:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
    }


def draw(results: list[Result], path: str) -> None:
    """Draw the CPU of every row, each relative to its yardstick; nothing without
    matplotlib (the extra `plots`).
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path} is not drawn: matplotlib is not installed")
        return

    rows = list(dict.fromkeys(result.row for result in results))
    figure = Figure(figsize=(8, 1 + 0.9 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for index, row in enumerate(rows):
        servers = list(dict.fromkeys(result.server for result in results if result.row == row))
        for offset, server in enumerate(servers):
            ratios = [
                result.ratio for result in results if result.row == row and result.server == server
            ]
            height = index + (offset - (len(servers) - 1) / 2) * 0.25
            color = "tab:gray" if server in (*YARDSTICKS, "upstream alone") else "tab:blue"
            axes.barh(height, statistics.median(ratios), 0.22, color=color)
            axes.text(statistics.median(ratios), height, f" {server}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("server CPU, relative to the first server of the row")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        default="first,streams,long,short,whole,variant,starts,burst,Responses,Messages,embeddings,"
        "upstream,memory",
        help="prefixes",
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--long-tokens", type=int, default=1000, help="of the long streams")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another server"
    )
    parser.add_argument("--baseline", type=Path, help="another checkout, with a .venv")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--plot", help="draw the ratios to this file (.png or .svg)")
    args = parser.parse_args()
    chosen = tuple(args.rows.split(","))
    peers = dict(peer.partition("=")[::2] for peer in args.peer)
    if shutil.which("smg") and not any("{upstream}" in command for command in peers.values()):
        peers["smg"] = SMG
    gateways = [name for name, command in peers.items() if "{upstream}" in command]
    built = build_rows(
        args.streams,
        args.tokens,
        args.long_tokens,
        gateways,
        [name for name in peers if name not in gateways],
    )
    rows = {
        name: replace(row, servers=choose_servers(row, peers, args.baseline))
        for name, row in built.items()
        if name.startswith(chosen)
    }
    machine = describe_machine()
    print(machine)
    print(
        f"{'':48}{'CPU':>9}{'ratio':>19}{'TTFT p50':>9}{'TTFT p99':>9}{'ITL p50':>9}"
        f"{'ITL p99':>9}{'KB/stream':>10}"
    )
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder, environment() as env:
        uvloop.install()
        # Both ends of two thousand connections; servers inherit it.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for _ in range(args.rounds):
            if START.startswith(chosen):
                results += run_start(Path(folder), env, args.baseline)
            for name, row in rows.items():
                results += run_row(name, row, Path(folder), env, peers, args.baseline)
    summary = summarize([*results, *fit_tokens(results, rows)], gateways)
    print(f"\n{render_summary(summary)}")
    if args.json:
        document = {
            "machine": machine,
            "results": [asdict(result) for result in results],
            "summary": summary,
        }
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        draw(results, args.plot)


if __name__ == "__main__":
    main()
