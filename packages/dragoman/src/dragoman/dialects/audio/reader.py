"""Parses the forms of OpenAI's audio API. Pure: the form has been read already."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from ...core.errors import RequestError, Unsupported
from ...core.transcription import AudioFile, SpeechTask, TranscribeRequest
from ..field_errors import abbreviate, check_one_of, invalid_value, require_value
from ..interfaces import ReaderOptions
from ..unknown_fields import MAX_PATH, MAX_UNKNOWN
from .wire import (
    CHUNKING,
    FORMATS,
    LISTS,
    SPEAKERS,
    STREAMED_FORMATS,
    TIMED_FORMATS,
    TRANSCRIPTION_FIELDS,
    TRANSLATION_FIELDS,
)

_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{0,18})?|\.[0-9]{1,18}", re.ASCII)
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z-]{0,31}", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_MAX_CHUNKING = 16


class SpeechCall(Struct, frozen=True):
    """A parsed request of the audio API.

    format: the format of the response.
    warnings, unknown: as in `GenerationCall`.
    """

    request: TranscribeRequest
    format: str
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        return self.request.model


def read_speech_form(
    task: SpeechTask,
    items: Iterable[tuple[str, str]],
    audio: AudioFile,
    options: ReaderOptions,
) -> SpeechCall:
    """Parse a form.

    items: names and texts of all fields besides the file, in order.

    Raises:
        RequestError: a field is invalid.
    """
    form = _Form(task, items)
    if not audio.content:
        raise invalid_value("file", "the file is empty")
    format = check_one_of(_check_format(form.take("response_format")), FORMATS, "response_format")
    times = {
        check_one_of(value, ("word", "segment"), "timestamp_granularities")
        for value in form.lists["timestamp_granularities"]
    }
    if times and format != "verbose_json":
        raise RequestError(
            "'timestamp_granularities' needs 'response_format' to be 'verbose_json'.",
            param="timestamp_granularities",
            code="invalid_value",
        )
    includes = {check_one_of(value, ("logprobs",), "include") for value in form.lists["include"]}
    if includes and format != "json":
        raise RequestError(
            "'include' with 'logprobs' needs 'response_format' to be 'json'.",
            param="include",
            code="invalid_value",
        )
    is_streamed = _read_boolean(form.take("stream"))
    if is_streamed and format not in STREAMED_FORMATS:
        raise RequestError(
            f"'stream' is not supported with the 'response_format' {format!r}: use 'json' or "
            f"'text'.",
            param="stream",
            code="invalid_value",
        )
    language = form.take("language")
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise invalid_value("language", "expected a code such as 'en'")
    request = TranscribeRequest(
        require_value(form.take("model") or options.default_model, "model"),
        task,
        audio,
        language,
        form.take("prompt"),
        _read_temperature(form.take("temperature")),
        has_segments=format in TIMED_FORMATS and times != {"word"},
        has_words="word" in times,
        has_logprobs=bool(includes),
        is_streamed=is_streamed,
        chunking=tuple(form.chunking),
    )
    return SpeechCall(request, format, unknown=tuple(form.unknown))


class _Form:
    """The fields of a form by name, of which each but the lists occurs once.

    lists: the values of the fields that are lists.
    chunking: the fields of the chunking strategy.
    unknown: names of fields that the API does not have.
    """

    def __init__(self, task: SpeechTask, items: Iterable[tuple[str, str]]) -> None:
        self._texts: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {name: [] for name in LISTS}
        self.chunking: list[tuple[str, str]] = []
        self.unknown: list[str] = []
        fields = TRANSCRIPTION_FIELDS if task is SpeechTask.TRANSCRIBE else TRANSLATION_FIELDS
        known = {name.removesuffix("[]") for name in fields}
        for name, text in items:
            self._add(name, text, known)

    def _add(self, name: str, text: str, known: set[str]) -> None:
        base = name.partition("[")[0]
        if base in SPEAKERS:
            raise Unsupported(
                f"'{base}' is not supported: speakers are not told apart.", param=base
            )
        if base not in known:
            if len(self.unknown) < MAX_UNKNOWN and name[:MAX_PATH] not in self.unknown:
                self.unknown.append(name[:MAX_PATH])
        elif base in LISTS:
            self.lists[base].append(text)
        elif base == CHUNKING:
            if len(self.chunking) == _MAX_CHUNKING:
                raise invalid_value(CHUNKING, f"at most {_MAX_CHUNKING} fields are allowed")
            self.chunking.append((name[:MAX_PATH], text))
        elif name in self._texts:
            raise invalid_value(name, "the field occurs twice")
        else:
            self._texts[name] = text

    def take(self, name: str) -> str | None:
        """Return a field's text. An empty field is none, as clients send it."""
        return self._texts.get(name) or None


def _check_format(format: str | None) -> str:
    if format == "diarized_json":
        raise Unsupported(
            "The 'response_format' 'diarized_json' is not supported: speakers are not told apart. "
            "Use 'verbose_json' for segments with their times.",
            param="response_format",
        )
    return format or "json"


def _read_boolean(text: str | None) -> bool:
    if text is None:
        return False
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise invalid_value("stream", "expected 'true' or 'false'")
    return value


def _read_temperature(text: str | None) -> float | None:
    if text is None:
        return None
    # float() would also accept nan, inf and 1_0.
    if not _DECIMAL.fullmatch(text) or float(text) > 1:
        raise invalid_value("temperature", f"expected a number from 0 to 1, not {abbreviate(text)}")
    return float(text)
