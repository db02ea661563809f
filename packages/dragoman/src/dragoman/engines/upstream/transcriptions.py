"""Transcriptions of an upstream: encodes the requests as forms, decodes whole and
streamed responses. Pure.

vLLM streams chunks like those of Chat Completions, OpenAI its own events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...core.errors import EngineError, Unsupported
from ...core.transcription import (
    AudioFile,
    SpeechTask,
    SpeechToken,
    SpeechUsage,
    TranscribeRequest,
    TranscriptDelta,
    TranscriptEnd,
    TranscriptEvent,
    TranscriptSegment,
    TranscriptWord,
)
from .errors import build_event_error, read_error, read_error_event
from .event_decoding import build_decoder, decode_data
from .server_kind import ServerKind
from .upstream_request import UpstreamRequest

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
"""Bounded, so that they can be charged and rendered."""


class _Logprob(Struct, frozen=True):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class _Details(Struct, frozen=True):
    audio_tokens: _Count | None = None
    text_tokens: _Count | None = None


class _Usage(Struct, frozen=True):
    """The usage of OpenAI's API, or of vLLM's chunks."""

    seconds: _Seconds | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_token_details: _Details | None = None

    def convert(self) -> SpeechUsage:
        details = self.input_token_details or _Details()
        return SpeechUsage(
            self.seconds,
            self.prompt_tokens if self.input_tokens is None else self.input_tokens,
            self.completion_tokens if self.output_tokens is None else self.output_tokens,
            details.audio_tokens,
            details.text_tokens,
        )


class _Segment(Struct, frozen=True):
    start: _Seconds
    end: _Seconds
    text: str
    id: int | None = None
    seek: int | None = None
    tokens: list[int] | None = None
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None

    def convert(self) -> TranscriptSegment:
        return TranscriptSegment(
            self.text,
            self.start,
            self.end,
            self.id,
            self.seek,
            tuple(self.tokens or ()),
            self.temperature,
            self.avg_logprob,
            self.compression_ratio,
            self.no_speech_prob,
        )


class _Whole(Struct, frozen=True):
    text: str
    language: str | None = None
    duration: _Seconds | None = None
    segments: list[_Segment] | None = None
    words: list[TranscriptWord] | None = None
    logprobs: list[_Logprob] | None = None
    usage: _Usage | None = None


class _ChunkDelta(Struct, frozen=True):
    content: str | None = None


class _ChunkChoice(Struct, frozen=True):
    delta: _ChunkDelta = _ChunkDelta()


class _Event(Struct, frozen=True):
    """An event of OpenAI's stream, or a chunk of vLLM's."""

    type: str | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[_Logprob] | None = None
    usage: _Usage | None = None
    choices: list[_ChunkChoice] | None = None
    error: Any = None


_WHOLE = build_decoder(_Whole)
_EVENT = build_decoder(_Event)


def encode_transcription_request(
    request: TranscribeRequest, kind: ServerKind, model: str, boundary: str
) -> UpstreamRequest:
    """Encode a request. Raises Unsupported for a server without OpenAI's audio API.

    boundary: separates the parts of the form; may not occur in the audio.
    """
    if not kind.has_audio:
        raise Unsupported("This model's upstream has no API for audio.", param="model")
    is_timed = request.has_segments or request.has_words
    # Subtitles are rendered here: of the formats with times, every server has this one.
    fields = [("model", model), ("response_format", "verbose_json" if is_timed else "json")]
    optional = {
        "language": request.language,
        "prompt": request.prompt,
        "temperature": None if request.temperature is None else f"{request.temperature:g}",
    }
    fields += [(name, text) for name, text in optional.items() if text is not None]
    if request.has_words:
        granularities = ("word", "segment") if request.has_segments else ("word",)
        fields += [("timestamp_granularities[]", name) for name in granularities]
    if request.has_logprobs:
        fields.append(("include[]", "logprobs"))
    if request.is_streamed:
        fields.append(("stream", "true"))
        if kind.has_audio_usage:
            fields.append(("stream_include_usage", "true"))
    fields += request.chunking
    task = "transcriptions" if request.task is SpeechTask.TRANSCRIBE else "translations"
    return UpstreamRequest(
        f"/audio/{task}",
        _encode_form(fields, request.audio, boundary),
        content_type=f"multipart/form-data; boundary={boundary}",
    )


def _encode_form(fields: Iterable[tuple[str, str]], audio: AudioFile, boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_quote(name)}"\r\n\r\n{text}\r\n'
        for name, text in fields
    ]
    media_type = _CONTROL.sub("", audio.media_type or "application/octet-stream")
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; '
        f'filename="{_quote(audio.name)}"\r\nContent-Type: {media_type}\r\n\r\n'
    )
    head = "".join(parts).encode("utf-8", "replace")
    return b"".join((head, audio.content, f"\r\n--{boundary}--\r\n".encode()))


def _quote(name: str) -> str:
    """Escape a name as browsers do (HTML, multipart/form-data encoding algorithm)."""
    return _CONTROL.sub("_", name.replace('"', "%22"))


class TranscriptReader:
    """Converts a response to the events of a transcript.

    is_done: whether the last event has been read.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._text = ""
        self._usage: SpeechUsage | None = None
        self._has_chunks = False
        self._has_started = False

    def read_whole(self, body: bytes) -> list[TranscriptEvent]:
        """Read a response that is not streamed. Raises EngineError if it is invalid."""
        whole = decode_data(_WHOLE, body, "transcript")
        self.is_done = True
        end = TranscriptEnd(
            None if whole.segments is None else tuple(each.convert() for each in whole.segments),
            None if whole.words is None else tuple(whole.words),
            whole.language,
            whole.duration,
            SpeechUsage() if whole.usage is None else whole.usage.convert(),
        )
        return [TranscriptDelta(whole.text, _convert_tokens(whole.logprobs)), end]

    def read(self, data: bytes, name: str = "") -> list[TranscriptEvent]:
        """Read the data of one event of a stream.

        name: the event's name, which some servers do not repeat in the data.

        Raises:
            DragomanError: the upstream reports an error.
            EngineError: the event is invalid.
        """
        if data == b"[DONE]":
            return self._finish(None)
        if name == "error":
            error = read_error_event(data)
            raise build_event_error(error, has_started=self._has_started)
        event = decode_data(_EVENT, data, "event of a transcript")
        if event.error is not None or event.type == "error":
            error = read_error_event(data) if event.error is None else read_error(event.error)
            raise build_event_error(error, has_started=self._has_started)
        self._has_started = True
        if event.usage is not None:
            self._usage = event.usage.convert()
        if event.choices is not None:
            self._has_chunks = True
            return self._append("".join(each.delta.content or "" for each in event.choices))
        match event.type:
            case "transcript.text.delta":
                return self._append(event.delta or "", _convert_tokens(event.logprobs))
            case "transcript.text.done":
                return self._finish(event.text)
            case _:
                # Further events, such as those of segments, repeat the text.
                return []

    def close(self) -> list[TranscriptEvent]:
        """Finish the stream. Raises EngineError if the response is incomplete."""
        if self.is_done:
            return []
        raise EngineError("The connection to the upstream was lost.")

    def _append(self, text: str, tokens: tuple[SpeechToken, ...] = ()) -> list[TranscriptEvent]:
        self._text += text
        return [TranscriptDelta(text, tokens)] if text or tokens else []

    def _finish(self, whole_text: str | None) -> list[TranscriptEvent]:
        """Return the end, after the text that no delta had.

        whole_text: None if the end of the stream does not repeat it.
        """
        if whole_text is None and not self._has_chunks:
            raise EngineError("The upstream's transcript has no end.")
        self.is_done = True
        rest: list[TranscriptEvent] = []
        if whole_text is not None and whole_text.strip() != self._text.strip():
            if not whole_text.startswith(self._text):
                raise EngineError("The upstream's transcript differs from its deltas.")
            rest = self._append(whole_text[len(self._text) :])
        return [*rest, TranscriptEnd(usage=self._usage or SpeechUsage())]


def _convert_tokens(logprobs: list[_Logprob] | None) -> tuple[SpeechToken, ...]:
    return tuple(
        SpeechToken(entry.token, entry.logprob, None if entry.bytes is None else tuple(entry.bytes))
        for entry in logprobs or ()
    )
