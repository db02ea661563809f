"""Speech to text: the request to a model that reads audio, the events of its answer,
and the transcript that they fold to.

    answer = TranscriptDelta* TranscriptEnd
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from .errors import EngineError
from .trace_context import SpanContext


class SpeechTask(StrEnum):
    """What becomes of speech."""

    TRANSCRIBE = "transcribe"
    """Text in the language of the speech."""
    TRANSLATE = "translate"
    """English text."""


class AudioFile(Struct, frozen=True):
    """An audio file as a client sent it.

    name: its file name, whose ending may tell the format.
    media_type: its content type; None if the client sent none.
    """

    content: bytes
    name: str
    media_type: str | None = None


class TranscribeRequest(Struct, frozen=True):
    """A request for the text of speech.

    language: code of the speech's language, such as `en`; None detects it.
    prompt: text that precedes the speech, or describes its style.
    temperature: None is the model's default.
    has_segments: the answer needs segments with their times.
    has_words: the answer needs words with their times.
    has_logprobs: the answer needs the tokens' log-probabilities.
    is_streamed: the client reads the deltas as they arrive.
    chunking: how to cut the audio, as form fields of OpenAI's API.
    trace: as in GenerateRequest.
    """

    model: str
    task: SpeechTask
    audio: AudioFile
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    has_segments: bool = False
    has_words: bool = False
    has_logprobs: bool = False
    is_streamed: bool = False
    chunking: tuple[tuple[str, str], ...] = ()
    trace: SpanContext | None = None


class SpeechToken(Struct, frozen=True):
    """A token of a transcript. logprob: None if unknown."""

    text: str
    logprob: float | None = None
    bytes: tuple[int, ...] | None = None


class TranscriptSegment(Struct, frozen=True):
    """A part of the text with its times, in seconds. Fields that are None are unknown.

    seek: start of the window of audio that it was read in, in hundredths of a second.
    """

    text: str
    start: float
    end: float
    id: int | None = None
    seek: int | None = None
    tokens: tuple[int, ...] = ()
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


class TranscriptWord(Struct, frozen=True):
    """A word with its times, in seconds."""

    word: str
    start: float
    end: float


class SpeechUsage(Struct, frozen=True):
    """What an answer has cost. Fields that are None are unknown.

    seconds: length of the audio, as it is billed.
    input_tokens: those of the audio and of the prompt.
    """

    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    audio_tokens: int | None = None
    text_tokens: int | None = None


class TranscriptDelta(Struct, frozen=True):
    """The next piece of the text, with its tokens if they were requested.

    usage: what the answer has cost so far; None if unknown.
    """

    text: str
    tokens: tuple[SpeechToken, ...] = ()
    usage: SpeechUsage | None = None


class TranscriptEnd(Struct, frozen=True):
    """The end of an answer, with what is known of the whole audio.

    segments, words: None if the model did not report them.
    language: as the model names it.
    duration: seconds.
    """

    segments: tuple[TranscriptSegment, ...] | None = None
    words: tuple[TranscriptWord, ...] | None = None
    language: str | None = None
    duration: float | None = None
    usage: SpeechUsage = SpeechUsage()


TranscriptEvent = TranscriptDelta | TranscriptEnd


class Transcript(Struct, frozen=True):
    """A whole answer."""

    text: str
    tokens: tuple[SpeechToken, ...]
    end: TranscriptEnd


class TranscriptBuilder:
    """Folds the events of an answer to the whole transcript."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[SpeechToken] = []

    def feed(self, event: TranscriptEvent) -> Transcript | None:
        """Feed an event; return the transcript at the end."""
        if isinstance(event, TranscriptEnd):
            return Transcript("".join(self._texts), tuple(self._tokens), event)
        self._texts.append(event.text)
        self._tokens += event.tokens
        return None


async def collect_transcript(events: AsyncIterable[TranscriptEvent]) -> Transcript:
    """Fold a stream of events. Raises EngineError if it has no end."""
    builder = TranscriptBuilder()
    async for event in events:
        if (transcript := builder.feed(event)) is not None:
            return transcript
    raise EngineError("The engine's transcript has no end.")


@runtime_checkable
class Transcriber(Protocol):
    """A model, in this process or on another server, that turns speech into text."""

    def transcribe(self, request: TranscribeRequest) -> AsyncGenerator[TranscriptEvent]:
        """Yield the events of one answer. Closing the generator aborts the work.

        Raises:
            RequestError: the model does not support the request, or cannot read the
                audio.
            Overloaded: too many requests are running.
            EngineError: the engine failed.
        """
        ...
