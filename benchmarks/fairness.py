"""What one greedy key does to another over each resource that they share.

    python benchmarks/fairness.py [--only TEXT] [--requests 15]

The victim sends its requests one after the other: first alone, then while the greedy
key takes all that it gets of one resource. The table has the victim's median and
longest time in both, the ratio of the medians, and the requests or stored objects that
it lost: refused, failed or evicted. Client and server share the machine, so the load
itself is in every delay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

GREEDY = "greedy-key"
VICTIM = "victim-key"
MIB = 1 << 20
MEASURED_SECONDS = 15.0
FLOOD_SECONDS = 4.0
"""Seconds for which the victim's requests are sent at most, and for which the greedy key
sends before them.
"""
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Authorization: Bearer %s\r\n\r\n"
)
SLOW_BODY = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
)


@dataclass
class Outcome:
    """What a scenario found.

    times: seconds of each of the victim's requests, alone and beside the greedy key.
    lost: requests or objects that the victim lost.
    greedy: statuses of the greedy key's requests.
    """

    alone: list[float] = field(default_factory=list[float])
    beside: list[float] = field(default_factory=list[float])
    lost: int = 0
    n_victim: int = 0
    greedy: Counter[int] = field(default_factory=Counter[int])


class Keys:
    """Two keys of one server, and what becomes of their requests."""

    def __init__(self, port: int, requests: int) -> None:
        self.port = port
        self.outcome = Outcome()
        self._requests = requests
        self._http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=300,
            limits=httpx2.Limits(max_connections=None),
        )
        self._numbers = iter(range(10**9))

    async def close(self) -> None:
        await self._http.aclose()

    def next_number(self) -> int:
        """Return a number that makes a request unlike all before it."""
        return next(self._numbers)

    async def post(self, key: str, path: str, body: dict[str, Any]) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}"}
        if path == "/v1/files":
            return await self._http.post(path, headers=headers, files=body)
        if path != "/v1/conversations":
            body = {"model": "tiny", **body}
        return await self._http.post(path, headers=headers, json=body)

    async def get(self, key: str, path: str) -> httpx2.Response:
        return await self._http.get(path, headers={"authorization": f"Bearer {key}"})

    async def take(self, path: str, build: Callable[[], dict[str, Any]]) -> httpx2.Response:
        """Send a request of the greedy key."""
        response = await self.post(GREEDY, path, build())
        self.outcome.greedy[response.status_code] += 1
        return response

    @asynccontextmanager
    async def flood(
        self, path: str, build: Callable[[], dict[str, Any]], clients: int
    ) -> AsyncGenerator[None]:
        """Send requests of the greedy key without a pause, from a process of its own: its
        work must not delay the victim's.
        """
        # The builders cannot be pickled.
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_flood, args=(self.port, path, build, clients, theirs), daemon=True
        )
        process.start()
        # Until all of its requests are in the server.
        await asyncio.sleep(FLOOD_SECONDS)
        try:
            yield
        finally:
            ours.send(None)
            self.outcome.greedy += await asyncio.to_thread(ours.recv)
            process.kill()
            process.join()

    async def measure(self, times: list[float], ask: Callable[[], Awaitable[int]]) -> None:
        """Send the victim's requests, for a limited time. `ask` returns a status."""
        until = time.perf_counter() + MEASURED_SECONDS
        while len(times) < self._requests and (not times or time.perf_counter() < until):
            start = time.perf_counter()
            status = await ask()
            times.append(time.perf_counter() - start)
            self.outcome.n_victim += 1
            self.outcome.lost += status not in (101, 200)

    async def compare(
        self,
        victim: tuple[str, Callable[[], dict[str, Any]]],
        greedy: tuple[str, Callable[[], dict[str, Any]]],
        clients: int,
    ) -> None:
        """Measure the victim's requests alone, and during a flood."""

        async def ask() -> int:
            return (await self.post(VICTIM, victim[0], victim[1]())).status_code

        await ask()
        await self.measure(self.outcome.alone, ask)
        async with self.flood(*greedy, clients):
            await self.measure(self.outcome.beside, ask)


def run_flood(
    port: int, path: str, build: Callable[[], dict[str, Any]], clients: int, pipe: Connection
) -> None:
    """Send requests until the other side of the pipe sends something; answer with the
    statuses so far.
    """

    async def run() -> Counter[int]:
        keys = Keys(port, 0)

        async def client() -> None:
            while True:
                await keys.take(path, build)

        tasks = [asyncio.create_task(client()) for _ in range(clients)]
        await asyncio.to_thread(pipe.recv)
        for task in tasks:
            task.cancel()
        return keys.outcome.greedy

    pipe.send(asyncio.run(run()))


def chat(text: str = "Hello", tokens: int = 8, **fields: object) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }


async def share_requests(keys: Keys) -> None:
    await keys.compare(("/v1/chat/completions", chat), ("/v1/chat/completions", chat), 200)


async def share_tokens(keys: Keys) -> None:
    long = chat("The weather in Oslo is fine today. " * 400, 64)
    await keys.compare(("/v1/chat/completions", chat), ("/v1/chat/completions", lambda: long), 60)


async def share_priority(keys: Keys) -> None:
    urgent = chat(tokens=200, priority=-1_000_000)
    await keys.compare(
        ("/v1/chat/completions", lambda: chat(tokens=30)),
        ("/v1/chat/completions", lambda: urgent),
        60,
    )


async def share_embeddings(keys: Keys) -> None:
    texts = {"input": ["The weather in Oslo is fine today. " * 20] * 200}
    await keys.compare(
        ("/v1/embeddings", lambda: {"input": "Hello"}), ("/v1/embeddings", lambda: texts), 40
    )


async def share_grammars(keys: Keys) -> None:
    def constrain(pattern: str) -> dict[str, Any]:
        return chat(structured_outputs={"regex": pattern})

    await keys.compare(
        ("/v1/chat/completions", lambda: constrain(f"[ab]*a{keys.next_number()}[ab]{{3}}c")),
        (
            "/v1/chat/completions",
            lambda: constrain(f"[ab]*a[ab]{{17}}[cd]{{{keys.next_number() + 1}}}"),
        ),
        60,
    )


async def share_templates(keys: Keys) -> None:
    def use(template: str) -> dict[str, Any]:
        return chat(chat_template=f"{template} {keys.next_number()}")

    slow = "{% for i in range(900) %}{% for j in range(900) %}{% endfor %}{% endfor %}"
    await keys.compare(
        ("/v1/chat/completions", lambda: use("{{ messages[0].content }}")),
        ("/v1/chat/completions", lambda: use(slow)),
        60,
    )


async def share_tokenizer(keys: Keys) -> None:
    long = {"prompt": "hello wörld " * 80_000}
    await keys.compare(
        ("/tokenize", lambda: {"prompt": "hello wörld " * 300}), ("/tokenize", lambda: long), 60
    )


async def share_rendering(keys: Keys) -> None:
    long = {
        "messages": [{"role": "user", "content": f"{number} Hello" * 20} for number in range(300)]
    }
    short = {"messages": [{"role": "user", "content": "Hello " * 600}]}
    path = "/v1/chat/completions/render"
    await keys.compare((path, lambda: short), (path, lambda: long), 60)


async def share_long_prompts(keys: Keys) -> None:
    long = {"messages": [{"role": "user", "content": "hello wörld " * 80_000}]}
    await keys.compare(
        ("/v1/chat/completions", lambda: chat("Hello " * 600)),
        ("/v1/messages/count_tokens", lambda: long),
        60,
    )


async def share_decoding(keys: Keys) -> None:
    """A prompt with an uploaded text file, while the other key sends large ones. They are
    only rendered: the engine has rows of its own.
    """
    small = await upload(keys, VICTIM, 2_000)
    large = await upload(keys, GREEDY, MIB // 16)

    def attach(name: str) -> dict[str, Any]:
        part = {"type": "file", "file": {"file_id": name}}
        return {"messages": [{"role": "user", "content": [part]}]}

    path = "/v1/chat/completions/render"
    await keys.compare((path, lambda: attach(small)), (path, lambda: attach(large)), 40)


async def upload(keys: Keys, key: str, size: int) -> str:
    response = await keys.post(key, "/v1/files", build_file(size))
    return response.json()["id"]


def build_file(size: int) -> dict[str, Any]:
    return {"purpose": (None, "user_data"), "file": ("f.txt", b"word " * (size // 5), "text/plain")}


async def share_records(
    keys: Keys, path: str, body: dict[str, Any], n_greedy: int, n_victim: int
) -> None:
    """The victim stores its responses before the greedy key does, and reads them
    after.
    """
    stored: list[str] = []

    async def store() -> int:
        response = await keys.post(VICTIM, path, body)
        stored.append(response.json().get("id", ""))
        return response.status_code

    await keys.measure(keys.outcome.alone, store)
    for _ in range(n_greedy // 10):
        await asyncio.gather(*(keys.take(path, lambda: body) for _ in range(10)))
    await asyncio.sleep(2)  # Until the store was cleaned.
    await keys.measure(keys.outcome.beside, store)
    await asyncio.sleep(2)
    for name in stored[-n_victim:]:
        keys.outcome.lost += (await keys.get(VICTIM, f"{path}/{name}")).status_code != 200


async def share_record_count(keys: Keys) -> None:
    await share_records(keys, "/v1/responses", {"input": "Hello", "max_output_tokens": 16}, 300, 30)


async def share_record_bytes(keys: Keys) -> None:
    item = {"type": "message", "role": "user", "content": "Hello " * 5_000}
    await share_records(keys, "/v1/conversations", {"items": [item]}, 300, 30)


async def share_files(keys: Keys) -> None:
    async def ask() -> int:
        return (await keys.post(VICTIM, "/v1/files", build_file(20_000))).status_code

    await keys.measure(keys.outcome.alone, ask)
    while (await keys.take("/v1/files", lambda: build_file(MIB))).status_code == 200:
        pass
    await keys.measure(keys.outcome.beside, ask)


async def share_background(keys: Keys) -> None:
    async def ask() -> int:
        body = {"input": "Hello", "background": True, "max_output_tokens": 16}
        return (await keys.post(VICTIM, "/v1/responses", body)).status_code

    await keys.measure(keys.outcome.alone, ask)
    long = {"input": "x", "background": True, "max_output_tokens": 20_000, "ignore_eos": True}
    await asyncio.gather(*(keys.take("/v1/responses", lambda: long) for _ in range(100)))
    await keys.measure(keys.outcome.beside, ask)


async def share_batches(keys: Keys) -> None:
    """The time until a batch of three requests is complete."""

    async def ask(key: str, n_requests: int) -> str:
        line = {
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "tiny", **chat()},
        }
        lines = "\n".join(json.dumps({**line, "custom_id": f"{i}"}) for i in range(n_requests))
        file = {"purpose": (None, "batch"), "file": ("b.jsonl", lines.encode())}
        name = (await keys.post(key, "/v1/files", file)).json()["id"]
        body = {
            "endpoint": "/v1/chat/completions",
            "input_file_id": name,
            "completion_window": "24h",
        }
        return (await keys.post(key, "/v1/batches", body)).json()["id"]

    async def complete() -> int:
        name = await ask(VICTIM, 3)
        while True:
            batch = (await keys.get(VICTIM, f"/v1/batches/{name}")).json()
            if batch["status"] in ("completed", "failed"):
                return 200 if batch["request_counts"]["completed"] == 3 else 500
            await asyncio.sleep(0.05)

    await keys.measure(keys.outcome.alone, complete)
    for _ in range(20):
        await ask(GREEDY, 50)
    await keys.measure(keys.outcome.beside, complete)


async def share_sockets(keys: Keys) -> None:
    async def ask() -> int:
        reader, writer = await connect(keys.port, HANDSHAKE % VICTIM.encode())
        try:
            return int((await reader.readline())[9:12])
        finally:
            writer.close()

    await keys.measure(keys.outcome.alone, ask)
    held: list[asyncio.StreamWriter] = []
    status = 101
    while status == 101:
        reader, writer = await connect(keys.port, HANDSHAKE % GREEDY.encode())
        status = int((await reader.readline())[9:12])
        keys.outcome.greedy[status] += 1
        held.append(writer)
    await keys.measure(keys.outcome.beside, ask)
    for writer in held:
        writer.close()


async def share_body_memory(keys: Keys) -> None:
    """The greedy key begins bodies and does not end them."""

    async def ask() -> int:
        return (await keys.post(VICTIM, "/tokenize", {"prompt": "hello " * 3_000})).status_code

    await keys.measure(keys.outcome.alone, ask)
    held: list[asyncio.StreamWriter] = []
    for _ in range(40):
        _, writer = await connect(keys.port, SLOW_BODY % (GREEDY.encode(), MIB))
        writer.write(b" " * (MIB - 100))
        held.append(writer)
    await asyncio.gather(*(writer.drain() for writer in held), return_exceptions=True)
    await asyncio.sleep(1)
    await keys.measure(keys.outcome.beside, ask)
    for writer in held:
        writer.close()


async def share_connections(keys: Keys) -> None:
    """The greedy client connects from another address: a key is not known before a
    request.
    """

    async def ask() -> int:
        reader, writer = await connect(keys.port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return int((await reader.readline())[9:12])
        except OSError:
            return 503
        finally:
            writer.close()

    await keys.measure(keys.outcome.alone, ask)
    address = find_own_address()
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for _ in range(150 if address else 0):
        # Beyond the limit of an address the server resets connections.
        with suppress(OSError):
            held.append(await connect(keys.port, b"", address or ""))
    await keys.measure(keys.outcome.beside, ask)
    for _, writer in held:
        writer.close()


def find_own_address() -> str | None:
    """Return an address of this machine other than loopback, to which no packet is
    sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


async def connect(
    port: int, head: bytes, address: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(head)
    return reader, writer


@dataclass(frozen=True)
class Scenario:
    resource: str
    run: Callable[[Keys], Awaitable[None]]
    arguments: tuple[str, ...] = ()


SCENARIOS = (
    Scenario("engine: requests", share_requests),
    Scenario("engine: tokens", share_tokens),
    Scenario("engine: `priority`", share_priority),
    Scenario("embeddings", share_embeddings),
    Scenario("grammar workers", share_grammars),
    Scenario("template workers", share_templates, ("--trust-request-chat-template",)),
    Scenario("`/tokenize`", share_tokenizer),
    Scenario("`/render`", share_rendering, ("--explain",)),
    Scenario("counting of long prompts", share_long_prompts),
    Scenario("media: text files", share_decoding, ("--explain",)),
    Scenario("stored records", share_record_count, ("--store-max-records", "200")),
    Scenario("stored bytes", share_record_bytes, ("--store-max-bytes", f"{4 * MIB}")),
    Scenario("files", share_files, ("--store-max-bytes", f"{16 * MIB}")),
    Scenario("background responses", share_background),
    Scenario("batches", share_batches),
    Scenario("WebSockets", share_sockets),
    Scenario("bodies in flight", share_body_memory, ("--max-inflight-body-bytes", f"{16 * MIB}")),
    Scenario(
        "connections",
        share_connections,
        ("--host", "0.0.0.0", "--max-connections", "120", "--max-connections-per-address", "100"),
    ),
)


@contextmanager
def serving(*arguments: str) -> Generator[int]:
    """A server with the two keys; its port."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f"  {key}:\n    secrets: [{{sha256: {sha256(key.encode()).hexdigest()}}}]"
            for key in (GREEDY, VICTIM)
        ]
        keys = Path(folder) / "keys.yaml"
        keys.write_text("keys:\n" + "\n".join(lines) + "\n")
        options = ("--keys-file", str(keys), "--store", f"sqlite:{folder}/store.db")
        command = [sys.executable, "-m", "dragoman", "serve", "tiny", "--port", "0", *options]
        command += ["--no-access-log", "--log-level", "error", *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline().rpartition(":")[2].split()[0])
            finally:
                process.kill()


def report(resource: str, outcome: Outcome) -> str:
    alone, beside = statistics.median(outcome.alone), statistics.median(outcome.beside)
    greedy = ", ".join(f"{count} x {status}" for status, count in sorted(outcome.greedy.items()))
    return (
        f"| {resource} | {greedy or 'none ended'} | "
        f"{alone * 1e3:.0f} ms, {max(outcome.alone) * 1e3:.0f} | "
        f"{beside * 1e3:.0f} ms, {max(outcome.beside) * 1e3:.0f} | {beside / alone:.1f} | "
        f"{outcome.lost} of {outcome.n_victim} |"
    )


async def run_scenario(scenario: Scenario, requests: int) -> Outcome:
    with serving(*scenario.arguments) as port:
        keys = Keys(port, requests)
        try:
            await scenario.run(keys)
        finally:
            await keys.close()
        return keys.outcome


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="scenarios whose name has this text")
    parser.add_argument("--requests", type=int, default=15, help="of the victim, in each part")
    options = parser.parse_args()
    print("| resource | answers of the greedy key | the victim alone | beside it | ratio | lost |")
    print("| --- | --- | --- | --- | --- | --- |")
    for scenario in SCENARIOS:
        if options.only in scenario.resource:
            outcome = asyncio.run(run_scenario(scenario, options.requests))
            print(report(scenario.resource, outcome), flush=True)


if __name__ == "__main__":
    main()
