"""Renders transcripts in the formats of OpenAI's audio API: the events of a stream and
the whole response, from the same events.
"""

from __future__ import annotations

from math import ceil

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError, Unsupported
from ...core.transcription import (
    SpeechTask,
    SpeechToken,
    SpeechUsage,
    Transcript,
    TranscriptBuilder,
    TranscriptDelta,
    TranscriptEnd,
    TranscriptEvent,
    TranscriptSegment,
    TranscriptWord,
)
from ..interfaces import Profile
from ..json_encoding import clamp_logprob, escape_line_breaks, replace_surrogates
from ..openai_errors import render_openai_error
from ..server_sent_events import KEEPALIVE_COMMENT
from .reader import SpeechCall
from .response_schemas import (
    SpeechDuration,
    SpeechInputTokens,
    SpeechTokenUsage,
    Transcription,
    TranscriptionVerbose,
    TranscriptLogprob,
    TranscriptTextDelta,
    TranscriptTextDone,
    Translation,
    TranslationVerbose,
    VerboseSegment,
)

_JSON_TYPE = b"application/json"
_TEXT_TYPE = b"text/plain; charset=utf-8"


class TranscriptWriter:
    """Renders one answer, as a stream or as a whole.

    A stream has no `[DONE]`: `transcript.text.done` is its last event.
    """

    end = b""
    keepalive = KEEPALIVE_COMMENT

    def __init__(self, call: SpeechCall, profile: Profile) -> None:
        self._call = call
        self._profile = profile
        self._builder = TranscriptBuilder()

    @property
    def content_type(self) -> bytes:
        """The content type of the whole response."""
        return _JSON_TYPE if self._call.format in ("json", "verbose_json") else _TEXT_TYPE

    def feed(self, event: TranscriptEvent) -> bytes:
        """Render one event of a stream."""
        transcript = self._builder.feed(event)
        match event:
            case TranscriptDelta(text, tokens):
                logprobs = self._render_logprobs(tokens)
                return _render_event(TranscriptTextDelta(replace_surrogates(text), logprobs))
            case TranscriptEnd():
                assert transcript is not None
                return _render_event(self._build_done(transcript))

    def render_full(self, transcript: Transcript) -> bytes:
        """Render the whole response. Raises Unsupported if the model has not reported
        what the format needs.
        """
        match self._call.format:
            case "json":
                return _encode(self._build_json(transcript))
            case "verbose_json":
                return _encode(self._build_verbose(transcript))
            case "srt":
                cues = _render_cues(self._require_segments(transcript.end), ",")
                return "".join(f"{i}\n{cue}" for i, cue in enumerate(cues, 1)).encode()
            case "vtt":
                cues = _render_cues(self._require_segments(transcript.end), ".")
                return "".join(["WEBVTT\n\n", *cues]).encode()
            case _:
                return f"{replace_surrogates(transcript.text)}\n".encode()

    def render_error(self, error: DragomanError) -> bytes:
        """Render the last event of a stream that failed."""
        return b"event: error\ndata: %s\n\n" % render_openai_error(error, self._profile)

    def _build_done(self, transcript: Transcript) -> TranscriptTextDone:
        usage = _build_usage(transcript.end.usage)
        return TranscriptTextDone(
            replace_surrogates(transcript.text),
            self._render_logprobs(transcript.tokens),
            # The event has no usage in seconds.
            usage if isinstance(usage, SpeechTokenUsage) else UNSET,
        )

    def _build_json(self, transcript: Transcript) -> Transcription | Translation:
        text = replace_surrogates(transcript.text)
        if self._call.request.task is SpeechTask.TRANSLATE:
            return Translation(text)
        logprobs = self._render_logprobs(transcript.tokens)
        return Transcription(text, logprobs, _build_usage(transcript.end.usage))

    def _build_verbose(self, transcript: Transcript) -> TranslationVerbose:
        request = self._call.request
        end = transcript.end
        times = [segment.end for segment in end.segments or ()]
        duration = max(times, default=0.0) if end.duration is None else end.duration
        language = end.language or request.language or "unknown"
        segments: tuple[VerboseSegment, ...] | UnsetType = UNSET
        if request.has_segments:
            listed = self._require_segments(end)
            segments = tuple(_build_segment(segment, i) for i, segment in enumerate(listed))
        text = replace_surrogates(transcript.text)
        if request.task is SpeechTask.TRANSLATE:
            return TranslationVerbose("translate", language, duration, text, segments)
        seconds = end.usage.seconds
        return TranscriptionVerbose(
            "transcribe",
            language,
            duration,
            text,
            segments,
            self._require_words(end) if request.has_words else UNSET,
            # The audio is billed by the begun second.
            SpeechDuration(ceil(duration) if seconds is None else seconds),
        )

    def _render_logprobs(
        self, tokens: tuple[SpeechToken, ...]
    ) -> tuple[TranscriptLogprob, ...] | UnsetType:
        if not self._call.request.has_logprobs:
            return UNSET
        return tuple(
            TranscriptLogprob(
                replace_surrogates(token.text),
                clamp_logprob(token.logprob),
                tuple(token.text.encode("utf-8", "replace"))
                if token.bytes is None
                else token.bytes,
            )
            for token in tokens
        )

    def _require_segments(self, end: TranscriptEnd) -> tuple[TranscriptSegment, ...]:
        if end.segments is None:
            raise Unsupported(
                f"The model does not report the times of segments, which the 'response_format' "
                f"'{self._call.format}' needs.",
                param="response_format",
            )
        return end.segments

    def _require_words(self, end: TranscriptEnd) -> tuple[TranscriptWord, ...]:
        if end.words is None:
            raise Unsupported(
                "The model does not report the times of words.", param="timestamp_granularities"
            )
        return tuple(
            TranscriptWord(replace_surrogates(word.word), word.start, word.end)
            for word in end.words
        )


def _encode(value: Struct) -> bytes:
    return escape_line_breaks(msgspec.json.encode(value))


def _render_event(event: TranscriptTextDelta | TranscriptTextDone) -> bytes:
    return b"data: %s\n\n" % _encode(event)


def _build_usage(usage: SpeechUsage) -> SpeechTokenUsage | SpeechDuration | UnsetType:
    if usage.input_tokens is not None and usage.output_tokens is not None:
        details = UNSET
        if usage.audio_tokens is not None:
            details = SpeechInputTokens(usage.audio_tokens, usage.text_tokens or 0)
        total = usage.input_tokens + usage.output_tokens
        return SpeechTokenUsage(usage.input_tokens, usage.output_tokens, total, details)
    return UNSET if usage.seconds is None else SpeechDuration(usage.seconds)


def _build_segment(segment: TranscriptSegment, index: int) -> VerboseSegment:
    return VerboseSegment(
        index if segment.id is None else segment.id,
        segment.seek or 0,
        segment.start,
        segment.end,
        replace_surrogates(segment.text),
        segment.tokens,
        segment.temperature,
        segment.avg_logprob,
        segment.compression_ratio,
        segment.no_speech_prob,
    )


def _render_cues(segments: tuple[TranscriptSegment, ...], point: str) -> list[str]:
    """Render the cues of a subtitle file. point: separates the milliseconds."""
    cues: list[str] = []
    for segment in segments:
        # An arrow or an empty line would end the cue.
        text = " ".join(replace_surrogates(segment.text).split()).replace("-->", "->")
        start = _format_time(segment.start, point)
        cues.append(f"{start} --> {_format_time(segment.end, point)}\n{text}\n\n")
    return cues


def _format_time(seconds: float, point: str) -> str:
    milliseconds = max(0, round(seconds * 1000))
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{point}{milliseconds:03}"
