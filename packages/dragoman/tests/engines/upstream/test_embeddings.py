"""Embeddings, reranking and scores through an upstream equal its own, byte for byte;
what it does not support is rejected with an error that names it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.engines.encoder.directories import SCORER, write_encoder
from tests.engines.upstream.relays import VLLM, build_app, build_client, build_engine, direct
from tests.engines.upstream.stub_server import Handle, Pieces, far_server
from tests.http.wire import serving
from tests.http_transport import FakeTransport
from tests.serving.harness import scope

from dragoman.core.encoder_requests import EncodingTask
from dragoman.dialects.interfaces import Profile
from dragoman.engines.upstream import KINDS, ModelTasks, Upstream, discover
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend, TextEncoderBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings, SettingsError

TEXTS = ["the cat sat on the mat", "a dog ran", "Tokyo is the capital of Japan"]
LONG = "the cat " * 100
EMBED = "/v1/embeddings"
RERANK = "/rerank"
SCORE = "/score"
RERANKED = {"query": "the cat", "documents": TEXTS}
EMBEDDER_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (EMBED, {"input": "the cat"}),
    (EMBED, {"input": TEXTS}),
    (EMBED, {"input": TEXTS, "encoding_format": "base64"}),
    (EMBED, {"input": [5, 6, 7]}),
    (EMBED, {"input": [[5, 6, 7], [8]], "user": "me"}),
    (EMBED, {"input": "the cat", "dimensions": 32}),
    (EMBED, {"input": "the cat", "normalize": False}),
    (EMBED, {"input": "the cat", "add_special_tokens": False}),
    (EMBED, {"input": LONG, "truncate_prompt_tokens": 9, "truncation_side": "left"}),
    (EMBED, {"input": LONG, "truncate_prompt_tokens": -1}),
    (
        "/v2/embed",
        {"texts": TEXTS, "embedding_types": ["float", "ubinary"], "input_type": "search_query"},
    ),
    ("/v2/embed", {"texts": [LONG]}),
    ("/api/embed", {"input": LONG}),
    (RERANK, RERANKED),
    (SCORE, {"text_1": TEXTS, "text_2": TEXTS[::-1]}),
]
"""Requests for an embedding model; the following are for a scoring model."""
SCORER_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (RERANK, RERANKED),
    ("/v1/rerank", {**RERANKED, "top_n": 1, "return_documents": False}),
    ("/v2/rerank", {**RERANKED, "use_activation": False}),
    (RERANK, {**RERANKED, "max_tokens_per_doc": 2, "max_tokens_per_query": 1}),
    (RERANK, {"query": "the cat", "documents": [LONG], "truncate_prompt_tokens": 20}),
    (RERANK, {"query": "the cat", "texts": TEXTS, "return_text": True, "raw_scores": True}),
    (SCORE, {"text_1": "the cat", "text_2": TEXTS}),
    ("/v1/score", {"queries": TEXTS, "items": TEXTS}),
]
REJECTED_BY_EMBEDDER: list[tuple[str, dict[str, Any]]] = [
    (EMBED, {"input": LONG}),
    (EMBED, {"input": [5, 10**6]}),
    (EMBED, {"input": "the cat", "dimensions": 8}),
    (RERANK, {**RERANKED, "use_activation": False}),
    (RERANK, {"query": "the cat", "documents": ["a", LONG]}),
]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("scorer"), SCORER)


def build_front(
    address: str, *tasks: EncodingTask, kind: str = "dragoman", **config: Any
) -> Models:
    upstream = build_engine(address, kind=kind, encoding_tasks=frozenset(tasks), **config)
    return Models([ServedModel("m", TextEncoderBackend(upstream), 64, 1_700_000_000)])


@asynccontextmanager
async def relaying(
    handle: Handle, *tasks: EncodingTask, kind: str = "compatible", options: ServingOptions = VLLM
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of a server whose upstream answers with this."""

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return handle(request) if request.method == "POST" else httpx2.Response(200)

    async with (
        far_server(answer) as address,
        direct(build_front(address, *tasks, kind=kind), options) as it,
    ):
        yield it


async def ask_both(
    directory: Path, kind: str, path: str, body: Mapping[str, Any]
) -> list[httpx2.Response]:
    """Return the responses of a server of the directory, and of a server whose upstream
    it is.
    """
    behind = build_models(Settings(model=str(directory), served_model_name=("m",)), SystemClock())
    [model] = behind
    task = EncodingTask.SCORING if "scorer" in directory.name else EncodingTask.EMBEDDINGS
    await behind.start()
    try:
        async with build_client(build_app(behind, VLLM)) as it:
            expected = await it.post(path, json={"model": "m", **body})
        async with serving(build_app(behind, VLLM)) as wire:
            upstream = build_engine(
                f"http://127.0.0.1:{wire.port}", kind=kind, encoding_tasks=frozenset({task})
            )
            front = Models(
                [ServedModel("m", TextEncoderBackend(upstream), model.max_model_len, model.created)]
            )
            async with direct(front, VLLM) as it:
                return [await it.post(path, json={"model": "m", **body}), expected]
    finally:
        await behind.stop()


@pytest.mark.parametrize("kind", ["dragoman", "vllm"])
@pytest.mark.parametrize(("path", "body"), EMBEDDER_REQUESTS)
async def test_embedder_response_matches_through_upstream(
    embedder: Path, kind: str, path: str, body: dict[str, Any]
) -> None:
    found, expected = await ask_both(embedder, kind, path, body)
    assert (found.status_code, expected.status_code) == (200, 200), found.text
    durations = {"total_duration", "load_duration"}
    assert {**found.json(), **dict.fromkeys(durations, 0)} == {
        **expected.json(),
        **dict.fromkeys(durations, 0),
    }


@pytest.mark.parametrize(("path", "body"), SCORER_REQUESTS)
async def test_scorer_response_matches_through_upstream(
    scorer: Path, path: str, body: dict[str, Any]
) -> None:
    found, expected = await ask_both(scorer, "dragoman", path, body)
    assert expected.status_code == 200
    assert found.content == expected.content


@pytest.mark.parametrize(("path", "body"), REJECTED_BY_EMBEDDER)
async def test_request_rejected_by_upstream_returns_same_error(
    embedder: Path, path: str, body: dict[str, Any]
) -> None:
    found, expected = await ask_both(embedder, "dragoman", path, body)
    assert found.status_code == expected.status_code == 400
    assert found.json() == expected.json()


async def test_embed_request_to_scorer_is_rejected(scorer: Path) -> None:
    found, expected = await ask_both(scorer, "dragoman", EMBED, {"input": "a"})
    assert found.status_code == 400
    assert found.json() == expected.json()


@pytest.mark.parametrize(
    ("task", "route"),
    [(EncodingTask.EMBEDDINGS, "/v1/embeddings"), (EncodingTask.SCORING, "/rerank")],
)
async def test_chat_request_to_encoder_is_rejected_with_route(
    task: EncodingTask, route: str
) -> None:
    async with direct(build_front("http://127.0.0.1:9", task), VLLM) as it:
        answer = await it.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
        )
        [card] = (await it.get("/v1/models")).json()["data"]
    assert answer.status_code == 400
    assert route in answer.json()["error"]["message"]
    assert card["dragoman"]["capabilities"] == [task.value]


async def test_generation_model_with_embeddings_serves_both() -> None:
    behind = build_models(Settings(served_model_name=("m",), max_model_len=2048), SystemClock())
    await behind.start()
    try:
        async with serving(build_app(behind, VLLM)) as wire:
            upstream = build_engine(
                f"http://127.0.0.1:{wire.port}", encoding_tasks=frozenset({EncodingTask.EMBEDDINGS})
            )
            front = Models([ServedModel("m", EventBackend(upstream), 2048, 1)])
            async with build_client(build_app(behind, VLLM)) as one, direct(front, VLLM) as other:
                answers = [await it.post(EMBED, json={"input": "Once upon"}) for it in (one, other)]
                [card] = (await other.get("/v1/models")).json()["data"]
    finally:
        await behind.stop()
    assert answers[0].json()["data"] == answers[1].json()["data"]
    assert {"embeddings", "generation"} <= set(card["dragoman"]["capabilities"])


def answer_vectors(*vectors: object, **more: object) -> Handle:
    data = [{"embedding": vector, "index": index} for index, vector in enumerate(vectors)]
    return lambda _: httpx2.Response(
        200, json={"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}, **more}
    )


THREE_FOUR = base64.b64encode(struct.pack("<2f", 3.0, 4.0)).decode()


@pytest.mark.parametrize("vector", [[3.0, 4.0], THREE_FOUR])
async def test_embed_reads_float_and_base64_vectors(vector: object) -> None:
    async with relaying(answer_vectors(vector), EncodingTask.EMBEDDINGS) as it:
        plain = (await it.post(EMBED, json={"input": "a"})).json()
        normalized = (await it.post(EMBED, json={"input": "a", "normalize": True})).json()
    assert plain["data"][0]["embedding"] == [3.0, 4.0]
    assert plain["usage"]["prompt_tokens"] == 3
    assert normalized["data"][0]["embedding"] == pytest.approx([0.6, 0.8])


async def test_embed_sorts_vectors_by_index() -> None:
    data = [{"embedding": [2.0], "index": 1}, {"embedding": [1.0], "index": 0}]
    handle: Handle = lambda _: httpx2.Response(200, json={"data": data})  # noqa: E731
    async with relaying(handle, EncodingTask.EMBEDDINGS) as it:
        answer = (await it.post(EMBED, json={"input": ["a", "b"]})).json()
    assert [row["embedding"] for row in answer["data"]] == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (EMBED, {"input": "a"}),
        ("/v2/embed", {"texts": ["a"]}),
        (SCORE, {"text_1": "a", "text_2": "b"}),
    ],
)
async def test_encoding_trace_headers_reach_upstream(path: str, body: dict[str, Any]) -> None:
    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
    }
    received: list[dict[str, str]] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        received.append({name: request.headers[name] for name in trace if name in request.headers})
        inputs = json.loads(request.content)["input"]
        vectors = [[3.0, 4.0]] if isinstance(inputs, str) else [[3.0, 4.0]] * len(inputs)
        return httpx2.Response(200, json={"data": [{"embedding": vector} for vector in vectors]})

    async with relaying(handle, EncodingTask.EMBEDDINGS) as it:
        for headers in (trace, {}):
            assert (await it.post(path, json=body, headers=headers)).status_code == 200
    assert received == [trace, {}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"dimensions": 3}, "dimensions"),
        ({"normalize": False}, "normalize"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"add_special_tokens": False}, "add_special_tokens"),
    ],
)
async def test_embed_unsupported_field_returns_400_with_param(
    body: dict[str, Any], param: str
) -> None:
    async with relaying(answer_vectors([3.0, 4.0]), EncodingTask.EMBEDDINGS) as it:
        answer = await it.post(EMBED, json={"input": "a", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"use_activation": False}, "use_activation"),
        ({"max_tokens_per_doc": 3}, "max_tokens_per_doc"),
        ({"max_tokens_per_query": 3}, "max_tokens_per_query"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)
@pytest.mark.parametrize("task", EncodingTask)
async def test_rerank_unsupported_field_returns_400_with_param(
    task: EncodingTask, body: dict[str, Any], param: str
) -> None:
    async with relaying(answer_vectors([3.0, 4.0]), task) as it:
        answer = await it.post(RERANK, json={**RERANKED, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_score_with_embedding_upstream_uses_cosine() -> None:
    async with relaying(
        answer_vectors([3.0, 4.0], [30.0, 40.0], [4.0, -3.0]), EncodingTask.EMBEDDINGS
    ) as it:
        answer = (await it.post(SCORE, json={"text_1": "a", "text_2": ["b", "c"]})).json()
    assert [row["score"] for row in answer["data"]] == pytest.approx([1, 0])


def rerank(request: httpx2.Request) -> httpx2.Response:
    """Answer in Cohere's format, or in TEI's if the request has it. A document's score
    is its length.
    """
    request_body = json.loads(request.content)
    texts = request_body.get("texts") or request_body["documents"]
    name = "score" if "texts" in request_body else "relevance_score"
    results = [{"index": index, name: float(len(text))} for index, text in enumerate(texts)]
    results.reverse()
    if "texts" in request_body:
        assert request.url.path == "/rerank"
        return httpx2.Response(200, json=results)
    assert request.url.path == "/v1/rerank"
    return httpx2.Response(200, json={"results": results, "usage": {"total_tokens": 2}})


@pytest.mark.parametrize(("kind", "tokens"), [("compatible", 2), ("tei", 0)])
async def test_score_with_reranking_upstream_uses_its_scores(kind: str, tokens: int) -> None:
    async with relaying(rerank, EncodingTask.SCORING, kind=kind) as it:
        one = (await it.post(SCORE, json={"text_1": "a", "text_2": ["b", "four"]})).json()
        each = (
            await it.post(SCORE, json={"text_1": ["a", "b"], "text_2": ["two", "three"]})
        ).json()
    assert [row["score"] for row in one["data"]] == [1.0, 4.0]
    assert one["usage"]["prompt_tokens"] == tokens
    assert [row["score"] for row in each["data"]] == [3.0, 5.0]
    assert each["usage"]["prompt_tokens"] == 2 * tokens


@pytest.mark.parametrize("raw", [True, False])
async def test_rerank_sends_tei_options(raw: bool) -> None:
    seen: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        return rerank(request)

    async with relaying(answer, EncodingTask.SCORING, kind="tei") as it:
        await it.post(
            RERANK, json={"query": "a", "texts": ["b"], "raw_scores": raw, "truncate": True}
        )
    assert seen[0].get("raw_scores", False) is raw
    assert seen[0]["truncate"] is True


@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        "{}",
        '{"data": []}',
        '{"data": [{"embedding": "AAAA"}, {"embedding": [1.0]}]}',
        '{"data": [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}]}',
        '{"data": [{"embedding": [1.0], "index": 1}, {"embedding": [1.0], "index": 1}]}',
        '{"data": [{"embedding": [1.0], "index": 0}, {"embedding": [1.0], "index": 7}]}',
        '{"data": [{"embedding": []}, {"embedding": []}]}',
        '{"data": [{"embedding": "?"}, {"embedding": "?"}]}',
    ],
)
async def test_embed_invalid_upstream_vectors_return_500(body: str) -> None:
    async with relaying(lambda _: httpx2.Response(200, text=body), EncodingTask.EMBEDDINGS) as it:
        answer = await it.post(EMBED, json={"input": ["a", "b"]})
    assert answer.status_code == 500
    assert "The upstream" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        "{}",
        "[]",
        '{"results": [{"index": 0, "relevance_score": 1.0}, {"index": 2, "relevance_score": 1}]}',
    ],
)
async def test_score_invalid_upstream_scores_return_500(body: str) -> None:
    async with relaying(lambda _: httpx2.Response(200, text=body), EncodingTask.SCORING) as it:
        answer = await it.post(SCORE, json={"text_1": "a", "text_2": ["b", "c"]})
    assert answer.status_code == 500


@pytest.mark.parametrize(
    ("status", "expected"), [(500, 500), (503, 503), (429, 429), (401, 500), (504, 504)]
)
async def test_embed_upstream_error_hides_message(status: int, expected: int) -> None:
    handle: Handle = lambda _: httpx2.Response(status, json={"error": {"message": "secret"}})  # noqa: E731
    async with relaying(
        handle, EncodingTask.EMBEDDINGS, options=ServingOptions(profile=Profile.OPENAI)
    ) as it:
        answer = await it.post(EMBED, json={"input": "a"})
    assert answer.status_code == expected
    assert answer.json()["error"]["type"]
    assert status == 429 or "secret" not in answer.text


async def test_client_disconnect_cancels_upstream_request() -> None:
    pieces = Pieces(b"{", None)
    has_arrived = asyncio.Event()

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            has_arrived.set()
            return httpx2.Response(200, stream=pieces)
        return httpx2.Response(200)

    async with far_server(answer) as address:
        models = build_front(address, EncodingTask.EMBEDDINGS)
        await models.start()
        bodies = iter([b'{"input": "a"}'])

        async def receive() -> Any:
            if (body := next(bodies, None)) is not None:
                return {"type": "http.request", "body": body}
            await has_arrived.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        await build_app(models, VLLM)(scope(EMBED), receive, send)
        while not pieces.closed:  # noqa: ASYNC110 - the limit of the test ends it
            await asyncio.sleep(0)
        await models.stop()


def build_upstream_transport(models: list[dict[str, Any]], *accepted: str) -> FakeTransport:
    """Build a transport to an upstream with these models, which accepts requests at these
    paths.
    """

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": models})
        return httpx2.Response(200 if request.url.path in accepted else 404, json={})

    return FakeTransport(answer)


EMBEDS = frozenset({EncodingTask.EMBEDDINGS})
SCORES = frozenset({EncodingTask.SCORING})


@pytest.mark.parametrize(
    ("card", "accepted", "expected"),
    [
        (
            {"owned_by": "dragoman", "dragoman": {"capabilities": ["embeddings"]}},
            (),
            ModelTasks(False, EMBEDS),
        ),
        (
            {"owned_by": "dragoman", "dragoman": {"capabilities": ["scoring"]}},
            (),
            ModelTasks(False, SCORES),
        ),
        (
            {
                "owned_by": "dragoman",
                "dragoman": {"capabilities": ["embeddings", "generation", "tools"]},
            },
            (),
            ModelTasks(True, EMBEDS),
        ),
        ({"owned_by": "vllm"}, (), ModelTasks()),
        ({"owned_by": "vllm"}, ("/v1/embeddings", "/score"), ModelTasks(False, EMBEDS)),
        ({"owned_by": "vllm"}, ("/score",), ModelTasks(False, SCORES)),
        ({"owned_by": "llamacpp"}, ("/v1/rerank",), ModelTasks(False, SCORES)),
        ({"owned_by": "openai"}, ("/v1/embeddings",), ModelTasks()),
    ],
)
def test_discover_detects_model_tasks(
    card: dict[str, Any], accepted: tuple[str, ...], expected: Any
) -> None:
    found = discover(
        Upstream("http://a/v1"),
        None,
        transport=build_upstream_transport([{"id": "m", **card}], *accepted),
    )
    assert found.tasks == expected


@pytest.mark.parametrize(("type", "tasks"), [("embedding", EMBEDS), ("reranker", SCORES)])
def test_discover_reads_tasks_from_tei_info(type: str, tasks: frozenset[EncodingTask]) -> None:
    info: dict[str, Any] = {"model_id": "bge", "model_type": {type: {}}, "max_input_length": 512}
    transport = FakeTransport(
        lambda request: httpx2.Response(200 if request.url.path == "/info" else 404, json=info)
    )
    found = discover(Upstream("http://a/v1"), None, kind=KINDS["tei"], transport=transport)
    assert (found.model, found.max_model_len, found.tasks) == ("bge", 512, ModelTasks(False, tasks))


def test_upstream_task_setting_overrides_discovery() -> None:
    settings = Settings().replace(
        model="http://a/v1",
        upstream_kind="openai",
        upstream_model="m",
        upstream_task=("generate,embed",),
    )
    [model] = build_models(settings, SystemClock())
    assert model.text_encoder is not None
    assert (model.text_encoder.encoding_tasks, isinstance(model.backend, EventBackend)) == (
        EMBEDS,
        True,
    )


@pytest.mark.parametrize(
    ("task", "kind", "words"), [("classify", "vllm", "expected `generate`"), ("", "tei", "`embed`")]
)
def test_upstream_task_unknown_or_unsupported_is_rejected(task: str, kind: str, words: str) -> None:
    fields = {
        "upstream_model": "m",
        "upstream_kind": kind,
        "upstream_task": (task,) if task else (),
    }
    with pytest.raises(SettingsError, match=words):
        build_models(Settings().replace(model="http://a/v1", **fields), SystemClock())  # pyright: ignore[reportArgumentType]
