"""Vision models over HTTP, batched and in chunks, equal transformers' own `generate`
for the same images.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import numpy as np
import openai
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("PIL.Image", reason="needs Pillow")

from dragoman.core.errors import EngineError
from dragoman.core.prompt_images import PromptImage
from dragoman.core.token_engine import Failed, TokenRequest
from dragoman.engines import transformers
from dragoman.engines.batching import EngineLimits
from dragoman.engines.image_decoding import decode_image
from dragoman.engines.transformers.backend import Tensor, library, torch
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import load_network
from dragoman.engines.transformers.vision import (
    ImagePixels,
    TransformersVision,
    load_processor,
)
from dragoman.engines.transformers.vision_check import check_vision
from dragoman.engines.transformers.vision_encoder import TransformersVisionRunner
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore
from tests.pictures import build_png, data_url

from ..harness import GREEDY, run_client
from . import vlms

pytestmark = pytest.mark.torch

pillow: Any = import_module("PIL.Image")

KINDS = ("llava", "idefics3", "qwen2_5_vl", "qwen3_5", "aya_vision")
OPTIONS = transformers.TransformersOptions(device="cpu", dtype="float32")
COUNT = 10


def noise(seed: int, width: int = 40, height: int = 30) -> bytes:
    rows = np.random.default_rng(seed).integers(0, 256, (height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 0] = 0  # each row's filter: none
    return build_png(width, height, rows.tobytes())


A = noise(1)
B = noise(2)
WIDE = noise(3, 90, 33)


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vlms.save(request.param, tmp_path_factory.mktemp(request.param))


def generated(directory: Path, *parts: str | bytes) -> tuple[int, list[int]]:
    """Return the tokens of the prompt, and the library's output for one message of
    these parts.
    """
    network = library.AutoModelForImageTextToText.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    items: list[Any] = [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts
    ]
    tokenizer = library.AutoTokenizer.from_pretrained(directory)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": items}], tokenize=False, add_generation_prompt=True
    )
    pictures = [
        pillow.open(BytesIO(part)).convert("RGB") for part in parts if isinstance(part, bytes)
    ]
    inputs = _inputs(directory, network.config, text, pictures, tokenizer)
    fixed = {
        "max_new_tokens": COUNT,
        "min_new_tokens": COUNT,
        "do_sample": False,
        "eos_token_id": None,
    }
    with torch.no_grad():
        output = network.generate(**inputs, **fixed)
    length = inputs["input_ids"].shape[1]
    return length, output[0, length:].tolist()


def _inputs(directory: Path, config: Any, text: str, pictures: list[Any], tokenizer: Any) -> Any:
    if not pictures:
        return tokenizer([text], return_tensors="pt")
    if not config.model_type.startswith("qwen"):
        processor = library.AutoProcessor.from_pretrained(directory)
        return processor(text=[text], images=[pictures], return_tensors="pt")
    # Its processor requires torchvision for videos, so its steps are repeated here.
    images = library.AutoImageProcessor.from_pretrained(directory)(pictures, return_tensors="pt")
    for _, height, width in images["image_grid_thw"].tolist():
        text = text.replace("<|image_pad|>", "<|piece|>" * (height * width // 4), 1)
    ids = tokenizer([text.replace("<|piece|>", "<|image_pad|>")], return_tensors="pt")
    positions = (ids["input_ids"] == config.image_token_id).int()
    return {**ids, **images, "mm_token_type_ids": positions}


@asynccontextmanager
async def serving(directory: Path, **more: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve with steps of at most 24 tokens, so that images are split at any position."""
    options: dict[str, Any] = {"max_num_batched_tokens": 24, "max_num_seqs": 8} | more
    settings = Settings().replace(
        model=f"transformers:{directory}", device="cpu", dtype="float32", **options
    )
    models = build_models(settings, SystemClock())
    await models.start()
    try:
        transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=60
        ) as http:
            yield http
    finally:
        await models.stop()


def content(*parts: str | bytes) -> Any:
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]


async def send_chat(http: httpx2.AsyncClient, *parts: str | bytes, **more: Any) -> Any:
    body = {
        "messages": [{"role": "user", "content": content(*parts)}],
        "max_tokens": COUNT,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def generate(http: httpx2.AsyncClient, *parts: str | bytes) -> tuple[int, list[int]]:
    answer = await send_chat(http, *parts)
    return answer["usage"]["prompt_tokens"], answer["choices"][0]["token_ids"]


PROMPTS: tuple[tuple[str | bytes, ...], ...] = (
    ("What is this? ", A),
    (B, "What is this?"),
    ("First ", A, " then ", WIDE, ", and again ", A, "!"),
    ("Just words, no picture of anything at all.",),
)


async def test_concurrent_image_requests_match_transformers(directory: Path) -> None:
    expected = [generated(directory, *parts) for parts in PROMPTS]
    async with serving(directory) as http:
        assert await asyncio.gather(*(generate(http, *parts) for parts in PROMPTS)) == expected
        # And if everything that can be cached is cached.
        assert [await generate(http, *parts) for parts in PROMPTS] == expected


async def test_prefix_cache_distinguishes_images(directory: Path) -> None:
    words = "These words stand before the image in every request. "
    async with serving(directory) as http:
        first, again, other = [await send_chat(http, words, image, "?" * 20) for image in (A, A, B)]
        cached = [
            answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            for answer in (first, again, other)
        ]
        length = first["usage"]["prompt_tokens"]
        shared = [0, (length - 1) // 16 * 16, len(f"user:{words}") // 16 * 16]
        # Blocks do not contain its recurrent state, so it has no prefix cache.
        assert cached == ([0, 0, 0] if directory.name.startswith("qwen3_5") else shared)
        assert again["choices"] == first["choices"]
        assert other["choices"][0]["token_ids"] == generated(directory, words, B, "?" * 20)[1]


async def test_n_choices_use_same_image(directory: Path) -> None:
    async with serving(directory) as http:
        answer = await send_chat(http, A, "?", n=3)
        assert [choice["token_ids"] for choice in answer["choices"]] == [
            generated(directory, A, "?")[1]
        ] * 3


async def test_image_text_and_usage_match_across_dialects(directory: Path) -> None:
    length, _ = generated(directory, "What? ", A)
    bounds: Any = {"extra_body": {"temperature": 0, "ignore_eos": True}}
    async with serving(directory) as http:
        text = (await send_chat(http, "What? ", A))["choices"][0]["message"]["content"]
        sdk: Any = openai.AsyncOpenAI(
            api_key="none", base_url="http://localhost/v1", http_client=http
        )
        claude: Any = anthropic.AsyncAnthropic(
            api_key="none", base_url="http://localhost", http_client=http
        )
        model = (await sdk.models.list()).data[0].id
        messages = [{"role": "user", "content": content("What? ", A)}]
        chunks = await sdk.chat.completions.create(
            model=model, messages=messages, max_tokens=COUNT, stream=True, **bounds
        )
        assert (
            "".join(
                [chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]
            )
            == text
        )
        file = await sdk.files.create(file=("a.png", A), purpose="vision")
        items = [
            {"type": "input_text", "text": "What? "},
            {"type": "input_image", "file_id": file.id},
        ]
        asking = [{"role": "user", "content": items}]
        response = await sdk.responses.create(
            model=model, input=asking, max_output_tokens=COUNT, **bounds
        )
        assert (response.output_text, response.usage.input_tokens) == (text, length)
        block = {"type": "image", "source": {"type": "url", "url": data_url(A)}}
        conversation = [{"role": "user", "content": [{"type": "text", "text": "What? "}, block]}]
        reply = await claude.messages.create(
            model=model, max_tokens=COUNT, messages=conversation, **bounds
        )
        usage = reply.usage
        assert "".join(part.text for part in reply.content) == text
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == length
        counted = await sdk.responses.input_tokens.count(model=model, input=asking)
        tokens = await claude.messages.count_tokens(model=model, messages=conversation)
        assert counted.input_tokens == tokens.input_tokens == length


async def test_previous_response_id_continues_with_earlier_image(directory: Path) -> None:
    async with serving(directory) as http:
        sdk: Any = openai.AsyncOpenAI(
            api_key="none", base_url="http://localhost/v1", http_client=http
        )
        bounds: Any = {
            "temperature": 0,
            "max_output_tokens": COUNT,
            "model": (await sdk.models.list()).data[0].id,
        }
        asking = [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(A)}]}]
        first = await sdk.responses.create(input=asking, **bounds)
        second = await sdk.responses.create(input="And?", previous_response_id=first.id, **bounds)
        assert second.usage.input_tokens > first.usage.input_tokens
        assert (
            second.usage.input_tokens_details.cached_tokens
            >= first.usage.input_tokens // 16 * 16 - 16
        )


async def test_invalid_image_request_returns_400(directory: Path) -> None:
    async with serving(directory) as http:
        cut = build_png(40, 30, b"")
        for parts, more, param in (
            (("?", cut), {}, "messages"),
            (("?", A), {"truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
            (("?", A), {"chat_template": "{{ messages[0].content[0].text }}"}, "chat_template"),
        ):
            body = {"messages": [{"role": "user", "content": content(*parts)}], **more}
            answer = await http.post("/v1/chat/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (
                answer.text
            )
        audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
        answer = await http.post(
            "/v1/messages/count_tokens",
            json={"model": "m", "messages": [{"role": "user", "content": [audio]}]},
        )
        assert answer.status_code == 400
        assert (await send_chat(http, "?", A))["usage"]["completion_tokens"] == COUNT


def eyes(directory: Path) -> tuple[Any, Any, Any, TransformersVision]:
    network = load_network(directory, OPTIONS)
    model, _ = build_paged_model(network)
    processor = load_processor(directory, network.config, trust_remote_code=False)
    return network, model, processor, TransformersVision(processor)


class TextPositionsRunner(TransformersVisionRunner):
    """A vision runner that gives image patches the positions of text."""

    def build_positions(self, chunks: Any, text_positions: Tensor) -> Tensor:
        return text_positions


class ReversedPatchesRunner(TransformersVisionRunner):
    """A vision runner that reverses the order of an image's patches."""

    def _compute_features(self, image: PromptImage) -> Tensor:
        return super()._compute_features(image).flip(0)


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl"])
def test_check_vision_wrong_output_raises(kind: str, tmp_path: Path) -> None:
    network, model, processor, vision = eyes(vlms.save(kind, tmp_path))
    model.vision_runner = TransformersVisionRunner(network)
    check_vision(model, network, processor, vision, tolerance=1e-3)
    model.vision_runner = (
        TextPositionsRunner(network) if kind == "qwen2_5_vl" else ReversedPatchesRunner(network)
    )
    with pytest.raises(EngineError, match="output with paged attention differs"):
        check_vision(model, network, processor, vision, tolerance=1e-3)


def test_load_unsupported_image_encoder_disables_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = transformers.load(vlms.save("gemma3", tmp_path), EngineLimits(), OPTIONS)
    assert (loaded.vision, "images" in loaded.engine.capabilities.features) == (None, False)
    assert "is served without images: its vision cannot be batched" in caplog.text


async def test_image_runtime_error_fails_only_its_request(tmp_path: Path) -> None:
    loaded = transformers.load(vlms.save("llava", tmp_path), EngineLimits(), OPTIONS)
    assert loaded.vision is not None
    (read,) = loaded.vision.prepare([A])
    wrong = PromptImage(
        0, 16, read.digest, ImagePixels({"pixel_values": torch.zeros(1, 3, 14, 14)}, 16)
    )
    prompt = (3,) * 16 + (60,) * 5
    async with run_client(loaded.engine) as client:
        well = client.send(TokenRequest(id="a", prompt=(60,) * 8, max_tokens=30, sampling=GREEDY))
        failing = client.send(
            TokenRequest(id="b", prompt=prompt, max_tokens=5, sampling=GREEDY, images=(wrong,))
        )
        await client.ends(well, failing)
    assert (len(well.tokens), type(failing.end), failing.tokens) == (30, Failed, [])


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [
        ("RGBA", (0, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), (255, 0, 0)),
        ("L", 7, (7, 7, 7)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_decode_image_applies_rotation_and_white_background(
    mode: str, colour: Any, seen: tuple[int, int, int]
) -> None:
    buffer = BytesIO()
    turned = pillow.Exif()
    turned[0x0112] = 6  # a quarter turn
    pillow.new(mode, (3, 2), colour).save(buffer, "PNG", exif=turned)
    picture = decode_image(buffer.getvalue())
    assert (picture.mode, picture.size, picture.getpixel((0, 0))) == ("RGB", (2, 3), seen)


def test_decode_image_over_pixel_limit_raises() -> None:
    with pytest.raises(ValueError, match="pixels"):
        decode_image(build_png(9000, 8000, b""))
