"""The fields of the forms of OpenAI's audio API.

A form's fields are texts, and a list is a field that occurs several times; SDKs put
brackets after its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
TIMED_FORMATS = frozenset({"srt", "verbose_json", "vtt"})
"""Formats with the times of segments."""
STREAMED_FORMATS = frozenset({"json", "text"})
LISTS = frozenset({"timestamp_granularities", "include"})
CHUNKING = "chunking_strategy"
"""The text `auto`, or an object, whose fields are in brackets after this name."""
SPEAKERS = frozenset({"known_speaker_names", "known_speaker_references"})
"""Fields that only models with a diarization of speakers have."""

_COMMON: Mapping[str, tuple[object, str]] = {
    "file": (bytes, "The audio file."),
    "model": (str, "The model; optional if the server has only one."),
    "prompt": (str, "Text that precedes the speech, or shows its style and its names."),
    "response_format": (
        Literal["json", "text", "srt", "verbose_json", "vtt"],
        "The format of the response, `json` by default.",
    ),
    "temperature": (Annotated[float, Meta(ge=0, le=1)], "The sampling temperature."),
    "language": (str, "Code of the speech's language, such as `en`; detected by default."),
}
TRANSLATION_FIELDS = _COMMON
TRANSCRIPTION_FIELDS: Mapping[str, tuple[object, str]] = {
    **_COMMON,
    "timestamp_granularities[]": (
        list[Literal["word", "segment"]],
        "The times that `verbose_json` has: of segments by default.",
    ),
    "include[]": (
        list[Literal["logprobs"]],
        "`logprobs` adds the log-probabilities of the tokens to `json`.",
    ),
    "stream": (bool, "Stream the text as it is recognized, in the formats json and text."),
    CHUNKING: (str, "How the audio is cut: `auto`, or an object of an upstream's API."),
}
