"""OpenAI's audio API: transcriptions and translations of speech."""

from .reader import SpeechCall, read_speech_form
from .response_schemas import (
    Transcription,
    TranscriptionVerbose,
    TranscriptTextDelta,
    TranscriptTextDone,
    Translation,
    TranslationVerbose,
)
from .wire import TRANSCRIPTION_FIELDS, TRANSLATION_FIELDS
from .writer import TranscriptWriter

__all__ = [
    "TRANSCRIPTION_FIELDS",
    "TRANSLATION_FIELDS",
    "SpeechCall",
    "TranscriptTextDelta",
    "TranscriptTextDone",
    "TranscriptWriter",
    "Transcription",
    "TranscriptionVerbose",
    "Translation",
    "TranslationVerbose",
    "read_speech_form",
]
