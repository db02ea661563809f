"""Images from a client to a vision engine: the official SDKs, a server, and a server
that is its upstream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from starlette.types import ASGIApp
from tests.engines.upstream.relays import build_engine
from tests.http.wire import serving
from tests.http_transport import FakeTransport
from tests.serving.harness import FixedClock, load_tiny_tokenizer
from tests.serving.responses.harness import lifespan

from dragoman.core.message import File, Image, InlineMedia, RemoteMedia, Text, ToolResult
from dragoman.core.request import Conversation
from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import RandomIdGenerator, SystemClock
from dragoman.serving.media import MAX_IMAGES, MediaOptions, MediaResolver
from dragoman.serving.media_fetcher import Fetcher
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.store import MemoryStore
from tests.pictures import PIXEL, PIXEL_URL, data_url, png

RED = PIXEL
BLUE = png(2, 2, (0, 0, 255))
SEEN = Image(InlineMedia(RED, "image/png"))
URL = "https://pictures.example/a.png"


class ImageServer:
    """A server whose upstream is a server whose engine records the images."""

    def __init__(self, app: ASGIApp, engine: ScriptedEngine) -> None:
        self._app = app
        self._engine = engine

    @property
    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self._app), base_url="http://localhost"
        )

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=key, base_url="http://localhost/v1", http_client=self.http, max_retries=0
        )

    @property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            api_key="none", base_url="http://localhost", http_client=self.http, max_retries=0
        )

    @property
    def media_parts(self) -> list[Any]:
        """The parts, other than texts, of the last request that reached the engine."""
        prompt = self._engine.requests[-1].prompt
        assert isinstance(prompt, Conversation)
        return [
            part
            for message in prompt.messages
            for part in message.parts
            if not isinstance(part, Text)
        ]

    @property
    def calls(self) -> int:
        return self._engine.num_requests


@asynccontextmanager
async def run_image_server(
    media: MediaResolver | None = None,
    options: ServingOptions | None = None,
    behind: MediaResolver | None = None,
) -> AsyncGenerator[ImageServer]:
    tokenizer = load_tiny_tokenizer()
    engine = ScriptedEngine(
        Script((ScriptEntry((Say("A red dot."),), repeat=True),)), tokenizer=tokenizer
    )
    far = Models([ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)])
    there = build_asgi_app(far, clock=FixedClock(), ids=RandomIdGenerator(), media=behind)
    store = MemoryStore(now=FixedClock().now)
    async with lifespan(there), serving(there) as wire:
        upstream = build_engine(f"http://127.0.0.1:{wire.port}")
        front = Models([ServedModel("m", EventBackend(upstream), 4096, 1_700_000_000)])
        app = build_asgi_app(
            front,
            options=options,
            clock=FixedClock(),
            ids=RandomIdGenerator(),
            store=store,
            media=media,
        )
        async with lifespan(app):
            yield ImageServer(app, engine)


def fetching() -> MediaResolver:
    """Build a fetcher for which every URL returns one picture."""

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.215.14"]

    async def page() -> AsyncGenerator[bytes]:
        yield RED

    web = FakeTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/html"}, content=page())
    )
    return MediaResolver(MediaOptions("fetch"), Fetcher(resolve=resolve, transport=web))


def chat(*urls: str) -> Any:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]}]


def asking(**image: Any) -> list[Any]:
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", **image}]
    return [{"role": "user", "content": parts}]


def message(**source: Any) -> Any:
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
    return [{"role": "user", "content": parts}]


async def test_chat_image_with_openai_sdk():
    async with run_image_server() as server:
        client = server.openai()
        full = await client.chat.completions.create(
            model="m", messages=chat(PIXEL_URL, data_url(BLUE))
        )
        assert full.choices[0].message.content == "A red dot."
        assert server.media_parts == [SEEN, Image(InlineMedia(BLUE, "image/png"))]
        async with client.chat.completions.stream(model="m", messages=chat(PIXEL_URL)) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].message.content == "A red dot."
        assert server.media_parts == [SEEN]


async def test_responses_image_kept_in_history_with_openai_sdk():
    async with run_image_server() as server:
        client = server.openai()
        image: Any = {"image_url": PIXEL_URL, "detail": "low"}
        first = await client.responses.create(model="m", input=asking(**image))
        assert first.output_text == "A red dot."
        assert server.media_parts == [Image(InlineMedia(RED, "image/png"), "low")]
        async with client.responses.stream(
            model="m", input="Sure?", previous_response_id=first.id
        ) as stream:
            await stream.get_final_response()
        assert server.media_parts == [Image(InlineMedia(RED, "image/png"), "low")]
        items = await client.responses.input_items.list(first.id)
        assert items.data[0].model_dump(exclude_none=True)["content"][1] == {
            "type": "input_image",
            **image,
        }


async def test_messages_image_with_anthropic_sdk():
    async with run_image_server() as server:
        client = server.anthropic
        data = PIXEL_URL.partition(",")[2]
        body = message(type="base64", media_type="image/png", data=data)
        reply = await client.messages.create(model="m", max_tokens=50, messages=body)
        assert (reply.content[0].type, server.media_parts) == ("text", [SEEN])
        async with client.messages.stream(model="m", max_tokens=50, messages=body) as stream:
            assert (await stream.get_final_message()).usage == reply.usage
        result: Any = {"type": "tool_result", "tool_use_id": "t", "content": body[0]["content"][:1]}
        use = {"type": "tool_use", "id": "t", "name": "see", "input": {"at": 1}}
        called: Any = {"role": "assistant", "content": [use]}
        turns: Any = [called, {"role": "user", "content": [result]}]
        await client.messages.create(
            model="m",
            max_tokens=9,
            messages=turns,
        )
        assert isinstance(server.media_parts[-1], ToolResult)
        assert server.media_parts[-1].content == (SEEN,)


async def test_uploaded_files_resolved_in_all_dialects():
    async with run_image_server() as server:
        client = server.openai()
        file = await client.files.create(file=("a.png", RED), purpose="vision")
        await client.responses.create(model="m", input=asking(file_id=file.id))
        assert server.media_parts == [Image(InlineMedia(RED, "image/png"), "auto")]
        await server.anthropic.messages.create(
            model="m", max_tokens=50, messages=message(type="file", file_id=file.id)
        )
        assert server.media_parts == [SEEN]
        pdf = await client.files.create(file=("a.pdf", b"%PDF"), purpose="user_data")
        named: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": pdf.id}]}]
        await client.responses.create(model="m", input=named)
        assert server.media_parts == [File(InlineMedia(b"%PDF", "application/pdf"), "a.pdf")]


async def test_image_file_of_other_owner_or_type_rejected():
    async with run_image_server(options=ServingOptions(api_key=("a", "b"))) as server:
        theirs = await server.openai("a").files.create(file=("a.png", RED), purpose="vision")
        text = await server.openai("b").files.create(file=("a.png", b"text"), purpose="vision")
        for id, code in (
            (theirs.id, "image_file_not_found"),
            ("file-none", "image_file_not_found"),
            (text.id, "invalid_image"),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                await server.openai("b").responses.create(model="m", input=asking(file_id=id))
            assert (error.value.param, error.value.code) == ("input[0].content", code)
        assert server.calls == 0


async def test_image_files_over_total_size_limit_rejected():
    async with run_image_server() as server:
        client = server.openai()
        large = RED + bytes(17 * 1024 * 1024)
        files = [
            await client.files.create(file=(f"{n}.png", large), purpose="vision") for n in range(4)
        ]
        content: Any = [{"type": "input_image", "file_id": file.id} for file in files]
        with pytest.raises(openai.BadRequestError, match="together") as error:
            await client.responses.create(model="m", input=[{"role": "user", "content": content}])
        assert (error.value.code, server.calls) == ("image_too_large", 0)


async def test_image_url_rejected_by_default():
    async with run_image_server() as server:
        with pytest.raises(openai.BadRequestError, match="--media-urls") as error:
            await server.openai().chat.completions.create(model="m", messages=chat(URL))
        assert (error.value.param, error.value.code, server.calls) == (
            "messages[0].content",
            "invalid_image_url",
            0,
        )


async def test_image_url_fetched_if_allowed():
    async with run_image_server(fetching()) as server:
        await server.openai().chat.completions.create(model="m", messages=chat(URL, URL))
        assert server.media_parts == [SEEN, SEEN]
        with pytest.raises(openai.BadRequestError, match="only http and https"):
            await server.openai().chat.completions.create(model="m", messages=chat("http://"))


async def test_image_url_passed_to_upstream():
    passes = MediaResolver(MediaOptions("pass"))
    async with run_image_server(passes, behind=passes) as server:
        await server.openai().chat.completions.create(model="m", messages=chat(URL))
        assert server.media_parts == [Image(RemoteMedia(URL))]


@pytest.mark.parametrize("stream", [False, True])
async def test_invalid_image_rejected_before_engine_call(stream: bool):
    async with run_image_server() as server, server.http as http:
        for url, code in (
            ("data:image/png;base64,!", "invalid_value"),
            (data_url(b"no image"), "invalid_image"),
            (data_url(RED, "image/gif"), "invalid_image_format"),
        ):
            answer = await http.post(
                "/v1/chat/completions", json={"model": "m", "messages": chat(url), "stream": stream}
            )
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, code)
            assert error["param"] == "messages[0].content[1].image_url.url"
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": chat(*[PIXEL_URL] * (MAX_IMAGES + 1))},
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        assert server.calls == 0


async def test_count_tokens_unsupported_by_upstream_rejected():
    async with run_image_server() as server:
        body = message(type="url", url=PIXEL_URL)
        with pytest.raises(
            anthropic.BadRequestError, match="upstream does not support counting tokens"
        ):
            await server.anthropic.messages.count_tokens(model="m", messages=body)
        async with server.http as http:
            counted = await http.post(
                "/v1/responses/input_tokens", json={"model": "m", "input": "hi"}
            )
        assert counted.json()["error"]["code"] == "unsupported_parameter"


FACT = "The capital of Wonderland is Alicetown."


def reading(**source: Any) -> dict[str, Any]:
    parts = [{"type": "document", "source": source}, {"type": "text", "text": "Hello"}]
    return {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": parts}]}


@asynccontextmanager
async def blind() -> AsyncGenerator[tuple[httpx2.AsyncClient, list[str]]]:
    """Run a server whose engine does not accept files, with two files: a text and
    another one.
    """
    app = build_asgi_app(
        build_models(Settings(max_model_len=512), SystemClock()),
        store=MemoryStore(now=FixedClock().now),
    )
    upload = {"purpose": "user_data"}
    ids = list[str]()
    transport = httpx2.ASGITransport(app)
    async with (
        lifespan(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        for name, content in (
            ("a.txt", FACT.encode()),
            ("a.pdf", b"%PDF-1.4"),
            ("http://[x/a.txt", FACT.encode()),
        ):
            # An empty type, so that the client does not guess it: on Python 3.13 it
            # fails at the last name.
            sent = {"file": (name, content, "")}
            ids.append((await http.post("/v1/files", data=upload, files=sent)).json()["id"])
        yield http, ids


async def test_text_file_inlined_for_engine_without_file_support():
    async with blind() as (http, ids):

        async def counted(path: str, body: Any) -> int:
            answer = await http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["input_tokens"]

        id = ids[0]
        path = "/v1/messages/count_tokens"
        inline = await counted(path, reading(type="text", media_type="text/plain", data=FACT))
        assert await counted(path, reading(type="file", file_id=id)) == inline
        assert await counted(path, reading(type="file", file_id=ids[2])) == inline
        files: list[Any] = [
            {"file_id": id},
            {"filename": "a.txt", "file_data": data_url(FACT.encode(), "text/plain")},
        ]
        parts = [
            {"type": "input_text", "text": FACT},
            *({"type": "input_file", **file} for file in files),
        ]
        bodies = [
            {"model": "tiny", "input": [{"role": "user", "content": [part]}]} for part in parts
        ]
        assert len({await counted("/v1/responses/input_tokens", body) for body in bodies}) == 1


async def test_non_text_file_rejected_by_engine_without_file_support():
    async with blind() as (http, ids):
        sources: list[Any] = [
            {"type": "file", "file_id": ids[1]},
            {"type": "url", "url": "https://pictures.example/a.txt"},
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        ]
        for source in sources:
            rejected = await http.post("/v1/messages", json=reading(**source))
            assert (rejected.status_code, "does not support files" in rejected.text) == (400, True)
        gone = await http.post("/v1/messages", json=reading(type="file", file_id="file_none"))
        assert (gone.status_code, "No such File" in gone.text) == (400, True)
