"""Transcription of speech: waits for its turn, calls the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ..core.errors import Unsupported
from ..core.transcription import Transcriber, TranscribeRequest, TranscriptEvent
from .engine_calls import EngineCall, close_stream
from .request_queue import QueueShare
from .served_model import ServedModel

BYTES_PER_TOKEN = 640
"""Bytes of audio for each token of the queue's limit: Whisper's encoder has 50
positions for a second, which takes 32 kB at 16 kHz and 16 bits. The length of a
compressed file is not known before it is decoded.
"""


def find_transcriber(model: ServedModel) -> Transcriber:
    """Find the model's transcriber. Raises Unsupported if it has none."""
    transcriber = model.interfaces.transcriber
    if transcriber is None:
        raise Unsupported(
            "This model does not transcribe audio: use a Whisper model or an upstream that has "
            "one.",
            param="model",
        )
    return transcriber


async def transcribe(
    model: ServedModel, request: TranscribeRequest, queue_share: QueueShare
) -> AsyncGenerator[TranscriptEvent]:
    """Yield the events of a transcript.

    queue_share: as in CallTerms.

    Raises:
        RequestError: the model does not support the request.
        Overloaded: the queue is full.
    """
    transcriber = find_transcriber(model)
    tokens = len(request.audio.content) // BYTES_PER_TOKEN + 1
    queued_request = model.queues.encoding.enqueue(queue_share, tokens)
    try:
        await queued_request.wait_for_turn()
        with EngineCall():
            events = transcriber.transcribe(request)
        try:
            while True:
                # Not around `yield`: whoever closes this generator is not the engine.
                with EngineCall():
                    event = await anext(events, None)
                if event is None:
                    return
                yield event
        finally:
            await close_stream(events)
    finally:
        queued_request.leave()
