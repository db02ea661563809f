"""Whisper: a transcript equals the library's own `generate`, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from tests.engines.test_audio_decoding import RATE, write_wav
from tests.serving.harness import FixedClock, SequentialIds
from tokenizers.pre_tokenizers import ByteLevel

from dragoman.core.errors import Overloaded, RequestError
from dragoman.core.transcription import (
    AudioFile,
    SpeechTask,
    Transcriber,
    TranscribeRequest,
    Transcript,
    collect_transcript,
)
from dragoman.engines.audio_decoding import Samples
from dragoman.launch.engine_choice import choose_directory_engine
from dragoman.pipeline.model_lifecycle import ModelSummary
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app

from .serving import serve_model

torch: Any = pytest.importorskip("torch", reason="needs torch (CPU)")
library: Any = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.torch

END = 256
"""The id of the end token, after those of all bytes."""
CONTROL = (
    "startoftranscript",
    "en",
    "de",
    "translate",
    "transcribe",
    "startoflm",
    "startofprev",
    "nospeech",
    "notimestamps",
)
IDS = {name: END + 1 + i for i, name in enumerate(CONTROL)}


def write_whisper(directory: Path) -> Path:
    """Write a model with random weights, whose text tokens are the bytes."""
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {character: id for id, character in enumerate(alphabet)}
    tokenizer = library.WhisperTokenizer(vocab={**vocab, "<|endoftext|>": END}, merges=[])
    tokenizer.add_tokens([f"<|{name}|>" for name in CONTROL], special_tokens=True)
    tokenizer.add_tokens([f"<|{i * 0.02:.2f}|>" for i in range(1501)])
    extractor = library.WhisperFeatureExtractor(feature_size=8)
    library.WhisperProcessor(extractor, tokenizer).save_pretrained(directory)
    config = library.WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        d_model=16,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_target_positions=64,
        decoder_start_token_id=IDS["startoftranscript"],
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        # So large that the tokens vary.
        init_std=1.0,
    )
    torch.manual_seed(0)
    library.WhisperForConditionalGeneration(config).save_pretrained(directory)
    generation = {
        "lang_to_id": {"<|en|>": IDS["en"], "<|de|>": IDS["de"]},
        "task_to_id": {name: IDS[name] for name in ("translate", "transcribe")},
        "no_timestamps_token_id": IDS["notimestamps"],
        "prev_sot_token_id": IDS["startofprev"],
        "is_multilingual": True,
        "max_length": 64,
        "decoder_start_token_id": IDS["startoftranscript"],
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "max_initial_timestamp_index": 50,
        "suppress_tokens": [],
        "begin_suppress_tokens": [END],
    }
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
async def model(directory: Path) -> AsyncGenerator[ServedModel]:
    async with serve_model(directory) as served:
        yield served


def build_noise(seconds: float) -> Samples:
    noise = np.random.default_rng(int(seconds)).normal(0, 0.1, int(RATE * seconds))
    return np.clip(noise, -1, 1).astype(np.float32)


def build_request(seconds: float, **options: Any) -> TranscribeRequest:
    audio = AudioFile(write_wav(build_noise(seconds)), "a.wav")
    task = options.pop("task", SpeechTask.TRANSCRIBE)
    return TranscribeRequest("whisper", task, audio, has_segments=True, **options)


async def transcribe(model: ServedModel, request: TranscribeRequest) -> Transcript:
    transcriber = model.interfaces.transcriber
    assert isinstance(transcriber, Transcriber)
    return await collect_transcript(transcriber.transcribe(request))


def generate(directory: Path, request: TranscribeRequest) -> list[tuple[float, float, list[int]]]:
    """Return the segments of the library's own `generate`."""
    processor = library.WhisperProcessor.from_pretrained(directory)
    network = library.WhisperForConditionalGeneration.from_pretrained(directory).eval()
    pcm = np.frombuffer(request.audio.content[44:], "<i2").astype(np.float32) / 2**15
    is_long = len(pcm) > 30 * RATE
    options = {"truncation": False, "padding": "longest"} if is_long else {}
    features = processor.feature_extractor(
        pcm, sampling_rate=RATE, return_tensors="pt", **options
    ).input_features
    prompt = request.prompt and processor.tokenizer.get_prompt_ids(
        request.prompt, return_tensors="pt"
    )
    output = network.generate(
        features,
        return_timestamps=True,
        return_segments=True,
        task=request.task.value,
        language=request.language,
        prompt_ids=prompt,
    )
    return [
        (round(float(each["start"]), 3), round(float(each["end"]), 3), each["tokens"].tolist())
        for each in output["segments"][0]
    ]


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        (2, {}),
        (31, {"language": "en"}),
        (70, {"language": "de", "prompt": "ab"}),
        (45, {"language": "en", "task": SpeechTask.TRANSLATE}),
    ],
    ids=["short", "two windows", "prompt", "translation"],
)
async def test_whisper_segments_equal_generate(
    model: ServedModel, directory: Path, seconds: float, options: dict[str, Any]
):
    request = build_request(seconds, **options)
    whole = await transcribe(model, request)
    segments = whole.end.segments
    assert segments is not None
    assert [
        (round(each.start, 3), round(each.end, 3), list(each.tokens)) for each in segments
    ] == generate(directory, request)
    assert whole.text == "".join(each.text for each in segments).strip()
    assert whole.end.duration == seconds


async def test_whisper_concurrent_requests_have_own_transcripts(model: ServedModel):
    requests = [build_request(seconds, language="en") for seconds in (3, 40)]
    alone = [await transcribe(model, request) for request in requests]
    transcriber = model.interfaces.transcriber
    assert transcriber is not None
    streams = [transcriber.transcribe(request) for request in requests]
    first = [await anext(stream) for stream in streams]
    for stream, event, whole in zip(streams, first, alone, strict=True):
        events = [event, *[each async for each in stream]]
        assert "".join(getattr(each, "text", "") for each in events) == whole.text
        assert events[-1] == whole.end


async def test_whisper_cancelled_stream_reports_usage(model: ServedModel):
    request = build_request(40, language="en")
    transcriber = model.interfaces.transcriber
    assert transcriber is not None
    stream = transcriber.transcribe(request)
    first = await anext(stream)
    await stream.aclose()
    usage = (await transcribe(model, request)).end.usage
    assert first.usage is not None
    assert first.usage.input_tokens is not None
    assert 0 < first.usage.input_tokens < (usage.input_tokens or 0)
    assert 0 < (first.usage.output_tokens or 0) < (usage.output_tokens or 0)


async def test_whisper_audio_above_memory_limit_is_overload(directory: Path):
    whisper = import_module("dragoman.engines.transformers.whisper")
    options = whisper.TransformersOptions(dtype="float32", device="cpu", threads=1)
    engine: Any = whisper.load(directory, options, max_waiting=8, max_held_seconds=70)
    await engine.start()
    try:
        request = build_request(40, language="en")
        stream = engine.transcribe(request)
        await anext(stream)
        with pytest.raises(Overloaded):
            await collect_transcript(engine.transcribe(request))
        short = msgspec.structs.replace(request, audio=build_request(1).audio)
        await collect_transcript(engine.transcribe(short))
        await stream.aclose()
        await collect_transcript(engine.transcribe(request))
    finally:
        await engine.stop()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"language": "xx"}, "language"),
        ({"has_words": True}, "timestamp_granularities"),
        ({"chunking": (("chunking_strategy[type]", "server_vad"),)}, "chunking_strategy"),
        ({"prompt": "<|startoftranscript|>"}, "prompt"),
    ],
)
async def test_whisper_unsupported_option_is_named(
    model: ServedModel, options: dict[str, Any], param: str
):
    with pytest.raises(RequestError) as raised:
        await transcribe(model, build_request(1, **options))
    assert raised.value.param == param


async def test_whisper_directory_answers_over_http(model: ServedModel, directory: Path):
    assert choose_directory_engine(directory).engine == "transformers"
    assert ModelSummary.from_model(model).capabilities == ("transcription",)
    app = build_asgi_app(Models([model]), clock=FixedClock(), ids=SequentialIds())
    transport: Any = httpx2.ASGITransport(app)
    file = write_wav(build_noise(2))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def post(content: bytes, **data: str) -> httpx2.Response:
            path = "/v1/audio/transcriptions"
            return await client.post(path, files={"file": ("a.wav", content)}, data=data)

        whole = (await post(file, language="en", **{"include[]": "logprobs"})).json()
        stream = await post(file, language="english", stream="true", **{"include[]": "logprobs"})
        *deltas, done = [json.loads(event[6:]) for event in stream.text.split("\n\n") if event]
        assert "".join(delta["delta"] for delta in deltas) == done["text"] == whole["text"]
        assert done["logprobs"] == whole["logprobs"]
        assert done["usage"] == whole["usage"]
        assert len(whole["logprobs"]) > 0
        assert all(entry["logprob"] <= 0 for entry in whole["logprobs"])
        assert (await post(file, response_format="srt")).text.startswith("1\n00:00:")
        verbose = (await post(file, response_format="verbose_json", temperature="0.5")).json()
        assert verbose["language"] in ("english", "german")
        assert verbose["segments"][0]["temperature"] == 0.5
        rejected = await post(file[:-99])
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "file")
        body = {"model": model.name, "messages": [{"role": "user", "content": "a"}]}
        chat = await client.post("/v1/chat/completions", json=body)
        assert chat.status_code == 400
        assert "/v1/audio/transcriptions" in chat.json()["error"]["message"]
