"""The responses of OpenAI's audio API."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.transcription import TranscriptWord


class TranscriptLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class SpeechInputTokens(Struct, frozen=True):
    audio_tokens: int
    text_tokens: int


class SpeechTokenUsage(Struct, frozen=True, tag_field="type", tag="tokens"):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: SpeechInputTokens | UnsetType = UNSET


class SpeechDuration(Struct, frozen=True, tag_field="type", tag="duration"):
    seconds: float


class Transcription(Struct, frozen=True):
    text: str
    logprobs: tuple[TranscriptLogprob, ...] | UnsetType = UNSET
    usage: SpeechTokenUsage | SpeechDuration | UnsetType = UNSET


class Translation(Struct, frozen=True):
    text: str


class VerboseSegment(Struct, frozen=True):
    """A segment with its times, in seconds. Fields that the model does not report are
    null.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float | None
    avg_logprob: float | None
    compression_ratio: float | None
    no_speech_prob: float | None


class TranslationVerbose(Struct, frozen=True):
    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: tuple[VerboseSegment, ...] | UnsetType = UNSET


class TranscriptionVerbose(TranslationVerbose, frozen=True):
    words: tuple[TranscriptWord, ...] | UnsetType = UNSET
    usage: SpeechDuration | UnsetType = UNSET


class TranscriptTextDelta(Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    delta: str
    logprobs: tuple[TranscriptLogprob, ...] | UnsetType = UNSET


class TranscriptTextDone(Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    text: str
    logprobs: tuple[TranscriptLogprob, ...] | UnsetType = UNSET
    usage: SpeechTokenUsage | UnsetType = UNSET
