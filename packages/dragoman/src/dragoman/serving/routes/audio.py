"""The audio API: transcriptions and translations of speech."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial

import anyio.to_thread
import msgspec

from ...core.errors import NotFound
from ...core.transcription import (
    AudioFile,
    SpeechTask,
    TranscribeRequest,
    TranscriptEnd,
    TranscriptEvent,
    collect_transcript,
)
from ...dialects.audio import (
    TRANSCRIPTION_FIELDS,
    TRANSLATION_FIELDS,
    SpeechCall,
    Transcription,
    TranscriptionVerbose,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranscriptWriter,
    Translation,
    TranslationVerbose,
    read_speech_form,
)
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody
from ...pipeline.engine_timeout import limit_call_time
from ...pipeline.served_model import ServedModel
from ...pipeline.transcription import find_transcriber, transcribe
from ..api_description import EVENTS, TEXT, ApiResponse, Form, response
from ..call_observer import find_trace, observe_call
from ..call_reading import build_reader_options
from ..disconnect import cancel_on_disconnect
from ..encoding_call import find_model
from ..generation_handler import EVENT_STREAM, NO_BUFFERING_HEADERS
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..replay_responder import ReplayResponder
from ..request_terms import find_queue_share, request_timeout
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup
from ..tenancy import TRANSCRIPTIONS
from ..uploads import find_file_part, read_form

MAX_FIELDS = 64
"""Limit of a form's fields besides the file; lists have a field for each item."""


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Audio", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/v1/audio/transcriptions",
        partial(create_transcript, SpeechTask.TRANSCRIBE),
        "Transcribe speech",
        response(Transcription, TranscriptionVerbose),
        ApiResponse(media=TEXT),
        response(TranscriptTextDelta, TranscriptTextDone, OpenAIErrorBody, media=EVENTS),
        bodies=(Form(TRANSCRIPTION_FIELDS),),
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/v1/audio/translations",
        partial(create_transcript, SpeechTask.TRANSLATE),
        "Translate speech into English",
        response(Translation, TranslationVerbose),
        ApiResponse(media=TEXT),
        bodies=(Form(TRANSLATION_FIELDS),),
        cost=RequestCost.CALL,
    )
    routes.add("POST", "/v1/audio/speech", refuse_speech, "Not supported: speech from text")
    routes.add("GET", "/v1/realtime", refuse_realtime, "Not supported: realtime sessions")
    return routes.build()


async def create_transcript(task: SpeechTask, http: HttpRequest) -> JsonResponse | Responder:
    call = await _read_call(task, http)
    model, warnings = await find_model(http, call)
    find_transcriber(model)
    writer = TranscriptWriter(call, http.service.options.profile)
    events = _run_call(http, model, call.request, warnings)
    if call.request.is_streamed:
        warnings += http.describe_unread_query()
        headers = [*http.build_headers(EVENT_STREAM, warnings), *NO_BUFFERING_HEADERS]
        return ReplayResponder(
            _render_stream(events, writer),
            writer,
            http.build_response_start(headers),
            http.service.stream_monitor,
        )
    async with aclosing(events):
        transcript = await cancel_on_disconnect(http.on_disconnect, collect_transcript(events))
    content_type = (b"content-type", writer.content_type)
    return JsonResponse(
        writer.render_full(transcript), content_type=content_type, warnings=warnings
    )


async def _read_call(task: SpeechTask, http: HttpRequest) -> SpeechCall:
    """Read the form. Its file is kept in memory, so its size counts as that of a body."""
    options = http.service.options
    form = await read_form(http, options.max_body_bytes, max_fields=MAX_FIELDS)
    try:
        part = find_file_part(form)
        items = [(name, text) for name, text in form.multi_items() if isinstance(text, str)]
        http.body_memory.reserve((part.size or 0) + sum(len(text) for _, text in items))
        content = await anyio.to_thread.run_sync(part.file.read)
        audio = AudioFile(content, part.filename or "audio", part.content_type)
    finally:
        # Large parts of a form are temporary files.
        await form.close()
    return read_speech_form(task, items, audio, build_reader_options(http))


async def _run_call(
    http: HttpRequest, model: ServedModel, request: TranscribeRequest, warnings: tuple[str, ...]
) -> AsyncGenerator[TranscriptEvent]:
    """Yield the events of a call within the limits of its key and its time."""
    timeout = request_timeout(http)
    deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
    observer = await observe_call(http, model.name, TRANSCRIPTIONS)
    with observer or nullcontext(), _hold_body_memory(http, request), model.keep_loaded():
        share = find_queue_share(http)
        model.queues.encoding.check_capacity(share)
        if (permit := http.service.generation.start_limiter.acquire()) is not None:
            await permit
        request = msgspec.structs.replace(request, trace=find_trace(http, observer))
        async with aclosing(transcribe(model, request, share)) as events:
            while True:
                event = await limit_call_time(anext(events, None), timeout, deadline)
                if event is None:
                    return
                if observer is not None and (usage := event.usage) is not None:
                    tokens = (usage.input_tokens or 0, usage.output_tokens or 0)
                    if isinstance(event, TranscriptEnd):
                        observer.record_computation(*tokens)
                        observer.record_warnings(warnings)
                    else:
                        observer.record_tokens(*tokens)
                yield event


@contextmanager
def _hold_body_memory(http: HttpRequest, request: TranscribeRequest) -> Generator[None]:
    """Reserve the memory of the audio, which a stream needs after the handler's end.

    Raises:
        Overloaded: other bodies have taken the memory meanwhile.
    """
    http.body_memory.reserve(len(request.audio.content))
    try:
        yield
    finally:
        http.body_memory.release()


async def _render_stream(
    events: AsyncGenerator[TranscriptEvent], writer: TranscriptWriter
) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for event in events:
            yield writer.feed(event)


async def refuse_speech(_: HttpRequest) -> JsonResponse:
    message = "Speech from text is not supported: no engine of this server generates audio."
    raise NotFound(message, code="unsupported_endpoint")


async def refuse_realtime(_: HttpRequest) -> JsonResponse:
    message = (
        "Realtime sessions are not supported; use /v1/audio/transcriptions for speech, and "
        "/v1/responses for conversations over WebSocket."
    )
    raise NotFound(message, code="unsupported_endpoint")
