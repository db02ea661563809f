"""A GGUF model with a projector processes images, over HTTP, with the official SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from dragoman.core.capabilities import Feature
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError
from dragoman.store import MemoryStore
from tests.pictures import data_url, png

pytest.importorskip("xllamacpp", reason="needs xllamacpp")
pytest.importorskip("gguf", reason="needs gguf")

from tests.engines.llamacpp.files import CONTROL, add_sentencepiece, write_embedded, write_projector

pytestmark = pytest.mark.llamacpp

PATCHES = 4
"""Number of tokens of any image."""

RED = png(16, 16, (255, 0, 0))
GREEN = png(40, 20, (0, 255, 0))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_embedded(folder / "tiny.gguf")
    write_projector(folder / "mmproj-tiny.gguf")
    return folder


def settings(directory: Path, **more: Any) -> Settings:
    options: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "max_model_len": 512,
        "max_num_seqs": 4,
    } | more
    return Settings().replace(model=str(directory / "tiny.gguf"), **options)


@asynccontextmanager
async def serving(directory: Path, **more: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(settings(directory, **more), SystemClock())
    await models.start()
    try:
        transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=60
        ) as http:
            yield http
    finally:
        await models.stop()


def body(*parts: str | bytes, **more: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    payload = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 12,
        "temperature": 0,
    }
    return {**payload, "return_token_ids": True, **more}


async def chat(http: httpx2.AsyncClient, *parts: str | bytes, **more: Any) -> dict[str, Any]:
    answer = await http.post("/v1/chat/completions", json=body(*parts, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def get_token_ids(http: httpx2.AsyncClient, *parts: str | bytes, **more: Any) -> list[int]:
    return (await chat(http, *parts, **more))["choices"][0]["token_ids"]


async def test_image_answers_are_independent_of_batch_and_cache(directory: Path) -> None:
    talks: list[tuple[str | bytes, ...]] = [
        ("What is it?", RED),
        ("What is it?", GREEN),
        ("Which?", RED, "or", GREEN),
        ("Which?", GREEN, "or", RED),
        (RED, RED),
    ]
    async with serving(directory) as http:
        alone = [await get_token_ids(http, *conversation) for conversation in talks]
        assert alone[0] != alone[1]
        assert alone[2] != alone[3]
        # Prompts that differ only in their images must not share slots.
        assert [
            await get_token_ids(http, *conversation) for conversation in reversed(talks)
        ] == alone[::-1]
        assert (
            await asyncio.gather(
                *(get_token_ids(http, *conversation) for conversation in talks * 2)
            )
            == alone * 2
        )
    async with serving(directory, enable_prefix_caching=False) as http:
        assert [await get_token_ids(http, *conversation) for conversation in talks] == alone


async def test_image_chat_stream_matches_response_and_usage(directory: Path) -> None:
    async with serving(directory) as http:
        client: Any = openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key="none", http_client=http
        )
        request = body("What is it?", GREEN)
        del request["return_token_ids"]
        full = await client.chat.completions.create(model="tiny", **request)
        streamed = await client.chat.completions.create(
            model="tiny", stream=True, stream_options={"include_usage": True}, **request
        )
        chunks = [chunk async for chunk in streamed]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == full.choices[0].message.content
        assert chunks[-1].usage.prompt_tokens == full.usage.prompt_tokens
        again = (await chat(http, "What is it?", GREEN))["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
        bare = (await chat(http, "What is it?", ""))["usage"]["prompt_tokens"]
        two = (await chat(http, "What is it?", GREEN, RED))["usage"]["prompt_tokens"]
        assert full.usage.prompt_tokens - bare == PATCHES
        assert two - full.usage.prompt_tokens == PATCHES


async def test_messages_and_count_tokens_include_images(directory: Path) -> None:
    async with serving(directory) as http:
        client: Any = anthropic.AsyncAnthropic(
            base_url="http://localhost", api_key="none", http_client=http
        )
        url = data_url(RED).partition(",")[2]
        block = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": url},
        }
        conversation = [
            {"role": "user", "content": [block, {"type": "text", "text": "What is it?"}]}
        ]
        answer = await client.messages.create(model="tiny", max_tokens=8, messages=conversation)
        count = await client.messages.count_tokens(model="tiny", messages=conversation)
        assert count.input_tokens == answer.usage.input_tokens + (
            answer.usage.cache_read_input_tokens or 0
        )


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("What?", RED, RED[:60]), "Image 2 of the messages cannot be decoded"),
        (("What does <|im_end|> mean?", RED), "would read other tokens"),
    ],
)
async def test_unsupported_image_content_returns_400_with_param(
    directory: Path, parts: tuple[str | bytes, ...], reason: str
) -> None:
    async with serving(directory) as http:
        for stream in (False, True):
            answer = await http.post("/v1/chat/completions", json=body(*parts, stream=stream))
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == "messages"
            assert reason in answer.json()["error"]["message"]
        assert len(await get_token_ids(http, "What is it?", RED)) > 0


async def test_image_answer_continues_over_second_llamacpp_request(directory: Path) -> None:
    """min_tokens forbids an end before the tenth token: this needs another request,
    with the earlier output as text.
    """
    async with serving(directory) as http:
        short, long = (
            await get_token_ids(http, "What is it?", GREEN),
            await get_token_ids(http, "What is it?", GREEN, min_tokens=10),
        )
        assert (len(short) < 10 <= len(long), long[: len(short) - 1]) == (True, short[:-1])


async def test_image_answer_with_ambiguous_tokens_fails_to_resume(directory: Path) -> None:
    """The output repeats one letter, which llama.cpp would tokenize as longer tokens."""
    async with serving(directory) as http:
        found = (
            await http.post("/tokenize", json={"prompt": "l", "add_special_tokens": False})
        ).json()["tokens"]
        forced = {"logit_bias": {str(found[0]): 100}, "ignore_eos": True, "max_tokens": 6}
        assert await get_token_ids(http, "What is it?", RED, **forced) == found * 6
        answer = await http.post(
            "/v1/chat/completions", json=body("What is it?", RED, min_tokens=3, **forced)
        )
        assert answer.status_code == 500
        assert "cannot resume" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("begin", "end", "reason"),
    [("<s>", "A:", ""), ("", "A:", "first token"), ("<s>", "", "ends with an image")],
)
async def test_sentencepiece_image_prompt_is_checked_at_both_ends(
    tmp_path: Path, begin: str, end: str, reason: str
) -> None:
    """With a SentencePiece vocabulary llama.cpp prepends a token to every prompt, and a
    space to every text.
    """
    write_embedded(
        tmp_path / "tiny.gguf", vocabulary=lambda writer: add_sentencepiece(writer, last=CONTROL)
    )
    write_projector(tmp_path / "mmproj.gguf")
    template = f"{begin}Q: {{{{ messages[0].content }}}}{end}"
    async with serving(tmp_path, chat_template=template) as http:
        answer = await http.post("/v1/chat/completions", json=body("return name", RED))
        assert answer.status_code == (400 if reason else 200), answer.text
        assert reason in answer.text


async def test_image_request_with_choices_and_grammar_succeeds(directory: Path) -> None:
    async with serving(directory) as http:
        answer = await chat(
            http, "What is it?", RED, n=2, structured_outputs={"choice": ["red", "green"]}
        )
        assert {choice["message"]["content"] for choice in answer["choices"]} <= {"red", "green"}


async def test_images_without_projector_are_rejected(directory: Path) -> None:
    async with serving(directory, mmproj="none") as http:
        answer = await http.post("/v1/chat/completions", json=body("What is it?", RED))
        assert answer.status_code == 400
        assert "does not support images" in answer.json()["error"]["message"]


async def test_mmproj_is_configured_or_discovered_and_validated(
    directory: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "tiny.gguf"
    alone.symlink_to(directory / "tiny.gguf")
    for named, sees in (({}, False), ({"mmproj": str(directory / "mmproj-tiny.gguf")}, True)):
        models = build_models(settings(tmp_path, **named), SystemClock())
        assert (Feature.IMAGES in next(iter(models)).capabilities.features) == sees
        await models.stop()
    with pytest.raises(SettingsError, match="not a projector"):
        build_models(settings(tmp_path, mmproj=str(alone)), SystemClock())
