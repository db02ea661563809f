"""POST /v1/responses: streamed, whole, or in the background."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ...core.errors import DragomanError, Unsupported
from ...dialects.base import ReaderOptions
from ...dialects.envelope import COMMENT, DONE
from ...dialects.responses import ResponsesCall, log, read_responses
from ...dialects.responses.errors import error_fields
from ...store import Key
from ..answer import Answer, ReplayedAnswer
from ..endpoint import Http, Whole
from ..generate import answer, read_call, stream_head
from .background import Background
from .past import RESPONSE
from .running import start
from .turn import open_turn


async def create(http: Http) -> Whole | Answer:
    now = http.service.clock.now

    def read(body: bytes, options: ReaderOptions) -> ResponsesCall:
        return read_responses(body, options, now=lambda: int(now()))

    asked = await read_call(http, read)
    if asked.background:
        return await _start(http, asked)
    turn = await open_turn(http, asked)
    return answer(http, turn.writer, turn.admitted, turn.batches, stream=asked.call.stream)


async def _start(http: Http, asked: ResponsesCall) -> Whole | Answer:
    background = http.service.background
    if background is None:
        raise Unsupported(
            "'background' is not supported here: this server has no store (--store none).", param="background"
        )
    background.check_room()
    turn = await open_turn(http, asked)
    whole = await start(background, turn)
    if asked.call.stream:
        key = Key(http.caller.owner, RESPONSE, turn.header.id)
        return replay(http, background, key, -1, turn.admitted.warnings)
    return Whole(whole, warnings=turn.admitted.warnings)


def replay(http: Http, background: Background, key: Key, after: int, warnings: tuple[str, ...] = ()) -> Answer:
    """The events of a stored response that are numbered higher than `after`, and those that come."""
    frame = _Frame(after)
    opening = http.opening(stream_head(http, warnings))
    return ReplayedAnswer(frame.passing(background.follow(key, after)), frame, opening, http.service.lookout)


class _Frame:
    """What stands around events that were told before. There may be no new one among them: silence is a comment."""

    def __init__(self, after: int) -> None:
        self._last = after

    end, keepalive = DONE, COMMENT

    def error(self, error: DragomanError) -> bytes:
        said = b'event: error\ndata: {"type":"error","sequence_number":%d,%s}\n\n'
        return said % (self._last + 1, error_fields(error)) + DONE

    async def passing(self, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        async for said in events:
            self._last = log.number(log.last_event(said))
            yield said
