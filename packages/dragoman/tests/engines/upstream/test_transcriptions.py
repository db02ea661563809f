"""Transcriptions through an upstream: the official SDK reads each format and the stream;
what the upstream or the client gets wrong is an error that names it.
"""

from __future__ import annotations

import asyncio
import email.policy
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from email.parser import BytesParser
from pathlib import Path
from typing import Any, cast

import httpx2
import openai
import pytest
from openai.types.audio import Transcription, TranscriptionVerbose
from tests.engines.upstream.relays import build_client, build_engine
from tests.engines.upstream.stub_server import Handle, Pieces, far_server
from tests.serving.harness import FixedClock, SequentialIds, build_server

from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.request_log import RequestLog
from dragoman.serving.serving_options import ServingOptions
from dragoman.tenants import KeyHash, Tenant, hash_key

PATH = "/v1/audio/transcriptions"
AUDIO = b"RIFF\x00--b\r\n\xff audio"
FILE = ("a b.wav", AUDIO, "audio/wav")
SEGMENT: dict[str, Any] = {
    "id": 0,
    "seek": 0,
    "start": 0.0,
    "end": 1.25,
    "text": " Hello there.",
    "tokens": [1, 2],
    "temperature": 0.0,
    "avg_logprob": -0.5,
    "compression_ratio": 1.0,
    "no_speech_prob": 0.01,
}
VERBOSE: dict[str, Any] = {
    "task": "transcribe",
    "language": "english",
    "duration": 61.5,
    "text": "Hello there. Bye --> now.",
    "segments": [SEGMENT, {"start": 59.5, "end": 3661, "text": " Bye --> now."}],
    "words": [{"word": "Hello", "start": 0, "end": 0.5}],
}
TOKENS = {
    "type": "tokens",
    "input_tokens": 14,
    "output_tokens": 3,
    "total_tokens": 17,
    "input_token_details": {"audio_tokens": 10, "text_tokens": 4},
}
LOGPROB = {"token": "Hello", "logprob": -0.25, "bytes": [72, 101]}
WHOLE = {"text": "Hello there.", "usage": TOKENS, "logprobs": [LOGPROB]}
EVENTS = [
    {"type": "transcript.text.delta", "delta": "Hello", "logprobs": [LOGPROB]},
    {"type": "transcript.text.delta", "delta": " there."},
    {"type": "transcript.text.done", "text": "Hello there.", "usage": TOKENS},
]
CHUNKS: list[dict[str, Any]] = [
    {"object": "transcription.chunk", "choices": [{"delta": {"content": "Hello"}}]},
    {"object": "transcription.chunk", "choices": [{"delta": {"content": " there."}}]},
    {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17}},
]


def render_events(*events: Mapping[str, Any], end: bytes = b"") -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + end


def build_stream(*pieces: bytes | None) -> httpx2.Response:
    headers = {"content-type": "text/event-stream"}
    return httpx2.Response(200, headers=headers, stream=Pieces(*pieces))


def read_form(request: httpx2.Request) -> list[tuple[str, str | bytes]]:
    """Return the names and values of a form's parts; bytes for a file."""
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser(policy=email.policy.HTTP).parsebytes(head + request.content)
    parts: list[tuple[str, str | bytes]] = []
    for part in message.iter_parts():
        content = cast("bytes", part.get_payload(decode=True))
        name = str(part.get_param("name", header="content-disposition"))
        parts.append((name, content if part.get_filename() else content.decode()))
    return parts


class Upstream:
    """An upstream that records the forms which it gets."""

    def __init__(self, answer: Handle | httpx2.Response | dict[str, Any]) -> None:
        self._answer = answer
        self.requests: list[httpx2.Request] = []

    @property
    def fields(self) -> list[tuple[str, str | bytes]]:
        return read_form(self.requests[-1])

    def handle(self, request: httpx2.Request) -> httpx2.Response | None:
        if request.method != "POST":
            return httpx2.Response(200)
        self.requests.append(request)
        if isinstance(self._answer, httpx2.Response):
            return self._answer
        if callable(self._answer):
            return self._answer(request)
        return httpx2.Response(200, json=self._answer)


@asynccontextmanager
async def relaying(
    upstream: Upstream,
    *,
    kind: str = "compatible",
    options: ServingOptions | None = None,
    tenants: Mapping[str, Tenant] | None = None,
    request_log: RequestLog | None = None,
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of a server with this upstream."""
    async with far_server(upstream.handle) as address:
        engine = build_engine(address, kind=kind, model="far-model")
        models = Models([ServedModel("m", EventBackend(engine), 64, 1_700_000_000)])
        await models.start()
        try:
            app = build_asgi_app(
                models,
                options=options,
                clock=FixedClock(),
                ids=SequentialIds(),
                tenants=tenants,
                request_log=request_log,
            )
            async with build_client(app) as client:
                yield client
        finally:
            await models.stop()


def build_sdk(client: httpx2.AsyncClient, key: str = "x") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key=key, base_url="http://localhost/v1", http_client=client, max_retries=0
    )


async def post(
    client: httpx2.AsyncClient, path: str = PATH, file: Any = FILE, **fields: Any
) -> httpx2.Response:
    return await client.post(path, files={"file": file}, data={"model": "m", **fields})


async def test_transcription_json_forwards_file_and_options():
    upstream = Upstream(WHOLE)
    async with relaying(upstream) as client:
        whole = await build_sdk(client).audio.transcriptions.create(
            file=FILE,
            model="m",
            language="en",
            prompt='Say "é"\r\n--b',
            temperature=0.5,
            include=["logprobs"],
            chunking_strategy="auto",
        )
    assert isinstance(whole, Transcription)
    assert whole.text == "Hello there."
    assert whole.usage is not None
    assert whole.usage.to_dict() == TOKENS
    assert [entry.to_dict() for entry in whole.logprobs or ()] == [LOGPROB]
    assert upstream.requests[0].url.path == "/v1/audio/transcriptions"
    assert upstream.fields == [
        ("model", "far-model"),
        ("response_format", "json"),
        ("language", "en"),
        ("prompt", 'Say "é"\r\n--b'),
        ("temperature", "0.5"),
        ("include[]", "logprobs"),
        ("chunking_strategy", "auto"),
        ("file", AUDIO),
    ]


async def test_transcription_verbose_json_has_segments_and_words():
    upstream = Upstream(VERBOSE)
    async with relaying(upstream) as client:
        whole = await build_sdk(client).audio.transcriptions.create(
            file=FILE,
            model="m",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert isinstance(whole, TranscriptionVerbose)
    assert (whole.language, whole.duration, whole.text) == ("english", 61.5, VERBOSE["text"])
    assert whole.segments is not None
    assert whole.segments[0].to_dict() == SEGMENT
    assert (whole.segments[1].id, whole.segments[1].end) == (1, 3661)
    assert [word.to_dict() for word in whole.words or ()] == VERBOSE["words"]
    assert whole.usage is not None
    assert whole.usage.seconds == 62
    names = [name for name, _ in upstream.fields]
    assert names.count("timestamp_granularities[]") == 2


async def test_transcription_text_formats_rendered_from_segments():
    upstream = Upstream(VERBOSE)
    async with relaying(upstream) as client:
        sdk = build_sdk(client).audio.transcriptions
        assert await sdk.create(file=FILE, model="m", response_format="text") == (
            "Hello there. Bye --> now.\n"
        )
        assert ("response_format", "json") in upstream.fields
        assert await sdk.create(file=FILE, model="m", response_format="srt") == (
            "1\n00:00:00,000 --> 00:00:01,250\nHello there.\n\n"
            "2\n00:00:59,500 --> 01:01:01,000\nBye -> now.\n\n"
        )
        assert ("response_format", "verbose_json") in upstream.fields
        assert await sdk.create(file=FILE, model="m", response_format="vtt") == (
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nHello there.\n\n"
            "00:00:59.500 --> 01:01:01.000\nBye -> now.\n\n"
        )
        answer = await post(client, response_format="srt")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


# OpenAI's own service ends these models; other servers have them.
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_translation_has_text_in_each_format():
    upstream = Upstream(VERBOSE)
    async with relaying(upstream) as client:
        sdk: Any = build_sdk(client).audio.translations
        whole = await sdk.create(file=FILE, model="m", prompt="p", temperature=0)
        assert whole.to_dict() == {"text": VERBOSE["text"]}
        assert upstream.requests[0].url.path == "/v1/audio/translations"
        assert ("temperature", "0") in upstream.fields
        verbose = await sdk.create(file=FILE, model="m", response_format="verbose_json")
        assert (verbose.text, verbose.duration) == (VERBOSE["text"], 61.5)
        assert len(verbose.segments or ()) == 2
        assert str(await sdk.create(file=FILE, model="m", response_format="vtt")).startswith(
            "WEBVTT\n\n00:"
        )


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        ("openai", render_events(*EVENTS)),
        ("vllm", render_events(*CHUNKS, end=b"data: [DONE]\n\n")),
        ("compatible", render_events(EVENTS[0], EVENTS[2])),
    ],
    ids=["events", "chunks", "missing delta"],
)
async def test_transcription_stream_folds_to_whole_text(kind: str, stream: bytes):
    upstream = Upstream(lambda _: build_stream(stream[:7], stream[7:]))
    async with relaying(upstream, kind=kind) as client:
        events = await build_sdk(client).audio.transcriptions.create(
            file=FILE, model="m", stream=True, include=["logprobs"]
        )
        *deltas, done = [event async for event in events]
    text = "".join(event.delta for event in deltas if event.type == "transcript.text.delta")
    assert done.type == "transcript.text.done"
    assert text == done.text == "Hello there."
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (14, 3)
    assert (("stream_include_usage", "true") in upstream.fields) is (kind == "vllm")


async def test_transcription_whole_upstream_answer_is_streamed():
    async with relaying(Upstream(WHOLE)) as client:
        answer = await post(client, stream="true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert [line["type"] for line in lines] == ["transcript.text.delta", "transcript.text.done"]
    assert lines[0]["delta"] == lines[1]["text"] == "Hello there."


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (render_events(EVENTS[0]), "lost"),
        (render_events(EVENTS[0], {"error": {"message": "out of memory"}}), "upstream failed"),
        (render_events(EVENTS[0]) + b"data: {\n\n", "invalid"),
        (render_events(EVENTS[0], {**EVENTS[2], "text": "Other"}), "differs"),
        (render_events(EVENTS[0], end=b"data: [DONE]\n\n"), "no end"),
    ],
    ids=["cut", "error", "malformed", "different", "without end"],
)
async def test_transcription_stream_failure_ends_with_error(stream: bytes, message: str):
    async with relaying(Upstream(lambda _: build_stream(stream))) as client:
        events = await build_sdk(client).audio.transcriptions.create(
            file=FILE, model="m", stream=True
        )
        with pytest.raises(openai.APIError, match=message):
            [event async for event in events]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": {"message": "bad language", "param": "language"}}, 400),
        (404, {"error": {"message": "no such route"}}, 404),
        (413, {"error": {"message": "too long"}}, 413),
        (429, {"error": {"message": "slow down"}}, 429),
        (401, {"error": {"message": "wrong key"}}, 500),
        (500, {}, 500),
    ],
)
@pytest.mark.parametrize("stream", ["true", "false"])
async def test_transcription_upstream_error_has_openai_envelope(
    status: int, body: dict[str, Any], expected: int, stream: str
):
    async with relaying(Upstream(httpx2.Response(status, json=body))) as client:
        answer = await post(client, stream=stream)
    error = answer.json()["error"]
    assert answer.status_code == expected
    assert error.keys() == {"message", "type", "param", "code"}
    if "param" in body.get("error", {}):
        assert (error["param"], error["message"]) == ("language", "bad language")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Hello",
        b"[]",
        b'{"text": 1',
        b'{"segments": []}',
        b'{"text": "a", "segments": [{"start": 0, "end": 1e308, "text": "a"}]}',
        b'{"text": "a", "segments": [{"start": NaN, "end": 1, "text": "a"}]}',
    ],
)
async def test_transcription_invalid_upstream_response_is_error(body: bytes):
    async with relaying(Upstream(httpx2.Response(200, content=body))) as client:
        answer = await post(client)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_error"


@pytest.mark.parametrize("count", [-5, 10**30])
async def test_transcription_impossible_usage_is_left_out(count: int):
    usage = {"input_tokens": count, "output_tokens": 1}
    async with relaying(Upstream({"text": "a", "usage": usage})) as client:
        assert (await post(client)).json() == {"text": "a"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "verbose_json"}, "response_format"),
        (
            {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
            "timestamp_granularities",
        ),
    ],
)
async def test_transcription_without_times_rejects_timed_format(fields: dict[str, str], param: str):
    async with relaying(Upstream({"text": "Hello"})) as client:
        answer = await post(client, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"response_format": "xml"}, "response_format"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        (
            {"response_format": "verbose_json", "timestamp_granularities[]": "phone"},
            "timestamp_granularities",
        ),
        ({"include[]": "tokens"}, "include"),
        ({"include[]": "logprobs", "response_format": "text"}, "include"),
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "response_format": "vtt"}, "stream"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "1.5"}, "temperature"),
        ({"temperature": "1_0"}, "temperature"),
        ({"language": "e n"}, "language"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names"),
    ],
)
async def test_transcription_invalid_field_is_named(fields: dict[str, Any], param: str):
    upstream = Upstream(WHOLE)
    async with relaying(upstream) as client:
        answer = await post(client, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert upstream.requests == []


async def test_transcription_unknown_field_is_warned_or_rejected():
    for is_strict, status in ((False, 200), (True, 400)):
        options = ServingOptions(strict=is_strict)
        async with relaying(Upstream(WHOLE), options=options) as client:
            answer = await post(client, hotwords="a")
            assert answer.status_code == status
            if not is_strict:
                assert "hotwords" in answer.headers["x-dragoman-warnings"]
            answer = await post(client, "/v1/audio/translations", stream="true")
            assert answer.status_code == status


BAD_FORMS: list[tuple[dict[str, Any], int, str | None]] = [
    ({"data": {"model": "m"}, "files": {"other": FILE}}, 400, "file"),
    ({"files": [("model", (None, "m")), ("file", FILE), ("file", FILE)]}, 400, None),
    ({"data": {"model": "m"}, "files": {"file": ("a.wav", b"")}}, 400, "file"),
    ({"data": {"model": "m"}}, 415, None),
    ({"json": {"model": "m"}}, 415, None),
    ({"content": AUDIO, "headers": {"content-type": "audio/wav"}}, 415, None),
    ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, None),
    ({"content": b"--b\r\n", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400,
     None),
    ({"data": {"model": "none"}, "files": {"file": FILE}}, 404, "model"),
    ({"data": {f"f{i}": "" for i in range(99)}, "files": {"file": FILE}}, 400, None),
]  # fmt: skip


@pytest.mark.parametrize(("request_options", "status", "param"), BAD_FORMS)
async def test_transcription_malformed_form_is_rejected(
    request_options: dict[str, Any], status: int, param: str | None
):
    upstream = Upstream(WHOLE)
    async with relaying(upstream) as client:
        answer = await client.post(PATH, **request_options)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert upstream.requests == []


async def test_transcription_body_above_limit_returns_413():
    upstream = Upstream(WHOLE)
    options = ServingOptions(max_body_bytes=2000)
    async with relaying(upstream, options=options) as client:
        assert (await post(client, file=b"a" * 1000)).status_code == 200
        answer = await post(client, file=b"a" * 2000)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")
    assert len(upstream.requests) == 1


async def test_transcription_stream_holds_memory_of_its_file():
    has_arrived = asyncio.Event()

    def answer(request: httpx2.Request) -> httpx2.Response:
        has_arrived.set()
        is_streamed = b'name="stream"' in request.content
        return build_stream(None) if is_streamed else httpx2.Response(200, json=WHOLE)

    options = ServingOptions(max_inflight_body_bytes=4000)
    async with relaying(Upstream(answer), options=options) as client:
        first = asyncio.create_task(post(client, file=b"a" * 3000, stream="true"))
        await has_arrived.wait()
        assert (await post(client, file=b"a" * 3000)).status_code == 503
        assert (await post(client, file=b"a", prompt="b" * 3000)).status_code == 503
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await post(client, file=b"a" * 3000)).status_code == 200


async def test_transcription_open_webui_call_returns_text():
    async with relaying(Upstream(WHOLE)) as client:
        # As in Open WebUI's `transcription_handler`: the file, the model, and a language
        # if one is set; the model may be missing where only one is served.
        for data in ({"model": "m"}, {"model": "m", "language": "de"}, {"language": ""}):
            answer = await client.post(PATH, files={"file": ("a.webm", AUDIO)}, data=data)
            assert answer.json()["text"] == "Hello there."


@pytest.mark.parametrize("kind", ["anthropic", "gemini", "tei"])
async def test_transcription_upstream_without_audio_api_names_model(kind: str):
    upstream = Upstream(WHOLE)
    async with relaying(upstream, kind=kind) as client:
        answer = await post(client)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert upstream.requests == []


async def test_transcription_engine_without_audio_names_model():
    async with build_server().http() as client:
        answer = await post(client)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/audio/speech"), ("GET", "/v1/realtime")]
)
async def test_audio_unsupported_route_is_refused_by_name(method: str, path: str):
    async with build_server().http() as client:
        answer = await client.request(method, path, json={"model": "m"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "unsupported_endpoint")
    assert "not supported" in error["message"]


async def test_transcription_key_limits_models_and_usage(tmp_path: Path):
    file = tmp_path / "requests.jsonl"
    log = RequestLog(file)
    tenants = {
        "a": Tenant(id="key_a", secrets=(KeyHash(hash_key("a")),), requests_per_minute=1),
        "b": Tenant(id="key_b", secrets=(KeyHash(hash_key("b")),), models=("other-*",)),
        "root": Tenant(id="key_root", secrets=(KeyHash(hash_key("root")),), role="admin"),
    }
    async with relaying(Upstream(WHOLE), tenants=tenants, request_log=log) as client:

        async def ask(key: str) -> int:
            client.headers["authorization"] = f"Bearer {key}"
            return (await post(client)).status_code

        assert [await ask(key) for key in ("x", "b", "a", "a")] == [401, 404, 200, 429]
        client.headers["authorization"] = "Bearer root"
        usage = (
            await client.get("/v1/organization/usage/audio_transcriptions?start_time=1699990000")
        ).json()
        metrics = (await client.get("/metrics")).text
    log.close()
    lines = file.read_text().splitlines()
    [line, limited] = [json.loads(line) for line in lines]
    assert (line["route"], line["status"], line["prompt_tokens"], line["output_tokens"]) == (
        PATH, 200, 14, 3,
    )  # fmt: skip
    assert limited["status"] == 429
    assert "audio" not in json.dumps([line, limited]).replace(PATH, "")
    results = [result for bucket in usage["data"] for result in bucket["results"]]
    assert [result["num_model_requests"] for result in results] == [1]
    assert f'handler="{PATH}"' in metrics
