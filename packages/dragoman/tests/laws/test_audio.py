"""Transcriptions: the SDK's events, folded, equal our whole response."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.audio import Transcription, TranscriptionStreamEvent

from dragoman.core.errors import EngineError
from dragoman.core.transcription import (
    AudioFile,
    SpeechTask,
    SpeechToken,
    SpeechUsage,
    TranscribeRequest,
    Transcript,
    TranscriptBuilder,
    TranscriptDelta,
    TranscriptEnd,
    TranscriptEvent,
    TranscriptSegment,
)
from dragoman.dialects.audio import SpeechCall, TranscriptWriter
from dragoman.dialects.interfaces import Profile

from .strategies import ALPHABET

texts = st.text(ALPHABET + "\ud800->", max_size=8)
counts = st.none() | st.integers(0, 99)
seconds = st.floats(0, 90_000)
tokens = st.builds(
    SpeechToken,
    texts,
    st.sampled_from((None, -0.5, float("-inf"))),
    st.sampled_from((None, (240, 159))),
)
segments = st.builds(TranscriptSegment, texts, seconds, seconds)
ends = st.builds(
    TranscriptEnd,
    st.lists(segments, max_size=3).map(tuple),
    usage=st.builds(SpeechUsage, counts, counts, counts, counts, counts),
)
deltas = st.lists(
    st.builds(TranscriptDelta, texts, st.lists(tokens, max_size=2).map(tuple)), max_size=4
)


class AudioSdk:
    """The official SDK, which reads what a test has rendered."""

    def __init__(self) -> None:
        self._answer = httpx2.Response(200)
        transport = httpx2.MockTransport(lambda _: self._answer)
        self._client = openai.OpenAI(
            api_key="x",
            base_url="http://test/v1",
            http_client=httpx2.Client(transport=transport),
            max_retries=0,
        )

    def read_stream(self, stream: bytes) -> list[TranscriptionStreamEvent]:
        headers = {"content-type": "text/event-stream"}
        self._answer = httpx2.Response(200, content=stream, headers=headers)
        events = self._client.audio.transcriptions.create(file=b"a", model="m", stream=True)
        return list(events)

    def read_json(self, body: bytes) -> Transcription:
        headers = {"content-type": "application/json"}
        self._answer = httpx2.Response(200, content=body, headers=headers)
        return self._client.audio.transcriptions.create(file=b"a", model="m")


@pytest.fixture(scope="module")
def sdk() -> AudioSdk:
    return AudioSdk()


def build_writer(format: str, *, has_logprobs: bool = False) -> TranscriptWriter:
    request = TranscribeRequest(
        "m",
        SpeechTask.TRANSCRIBE,
        AudioFile(b"a", "a.wav"),
        has_segments=True,
        has_logprobs=has_logprobs,
    )
    return TranscriptWriter(SpeechCall(request, format), Profile.OPENAI)


def fold(events: Sequence[TranscriptEvent]) -> Transcript:
    builder = TranscriptBuilder()
    return next(whole for event in events if (whole := builder.feed(event)) is not None)


@given(deltas, ends, st.booleans())
def test_transcript_stream_folds_to_whole_response(
    sdk: AudioSdk, answer: list[TranscriptDelta], end: TranscriptEnd, has_logprobs: bool
):
    events = [*answer, end]
    writer = build_writer("json", has_logprobs=has_logprobs)
    *received, done = sdk.read_stream(b"".join(writer.feed(event) for event in events))
    whole = sdk.read_json(writer.render_full(fold(events)))
    assert done.type == "transcript.text.done"
    pieces = [event.delta for event in received if event.type == "transcript.text.delta"]
    assert len(pieces) == len(received)
    assert "".join(pieces) == done.text == whole.text
    # The SDK has two classes of log-probabilities, one for each route.
    assert [entry.to_dict() for entry in done.logprobs or ()] == [
        entry.to_dict() for entry in whole.logprobs or ()
    ]
    assert (done.logprobs is None) is (whole.logprobs is None) is not has_logprobs
    streamed = [
        entry.to_dict()
        for event in received
        if event.type == "transcript.text.delta"
        for entry in event.logprobs or ()
    ]
    assert streamed == [entry.to_dict() for entry in done.logprobs or ()]
    if done.usage is not None:
        assert whole.usage is not None
        assert done.usage.to_dict() == whole.usage.to_dict()


@given(ends)
def test_subtitles_have_one_cue_for_each_segment(end: TranscriptEnd):
    whole = Transcript("", (), end)
    arrows = re.compile(r"^\d{2,}:\d\d:\d\d([,.])\d{3} --> \d{2,}:\d\d:\d\d\1\d{3}$", re.M)
    assert end.segments is not None
    for format, point in (("srt", ","), ("vtt", ".")):
        text = build_writer(format).render_full(whole).decode()
        assert arrows.findall(text) == [point] * len(end.segments)
        assert text.count("-->") == len(end.segments)


def test_transcript_stream_error_raises_in_sdk(sdk: AudioSdk):
    writer = build_writer("json")
    stream = writer.feed(TranscriptDelta("a")) + writer.render_error(EngineError("it failed"))
    with pytest.raises(openai.APIError, match="it failed"):
        sdk.read_stream(stream)
