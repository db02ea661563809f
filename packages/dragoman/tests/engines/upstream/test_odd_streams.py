"""Odd answers of upstreams, in every dialect, whole and streamed: what the upstream
said is in the answer, or the answer is an error in the client's dialect.
"""

from __future__ import annotations

from collections.abc import Collection

import httpx2
import pytest
from tests.engines.upstream import odd_chat_streams, odd_messages_streams, odd_responses_streams
from tests.engines.upstream.client_answers import DIALECTS, Answer, Failure, ask
from tests.engines.upstream.odd_stream import Case
from tests.engines.upstream.relays import build_engine, direct
from tests.engines.upstream.stub_server import Pieces, far_server

from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel

CASES = (*odd_chat_streams.CASES, *odd_responses_streams.CASES, *odd_messages_streams.CASES)


def adapt(answer: Answer, dialect: str) -> Answer:
    """Return the form of an answer in a dialect that has no refusals, or no filters."""
    if dialect not in ("messages", "ollama"):
        return answer
    if answer.refusal:
        answer = answer._replace(
            text=answer.text + answer.refusal, refusal="", reason="content_filter"
        )
    has_filter = dialect == "messages" or answer.reason != "content_filter"
    return answer if has_filter else answer._replace(reason="stop")


def is_expected(found: Answer | Failure, expected: Answer | Failure, dialect: str) -> bool:
    if isinstance(expected, Answer):
        return found == adapt(expected, dialect)
    if isinstance(found, Answer):
        return False
    has_codes = dialect in ("chat", "responses")
    is_code = expected.code is None or not has_codes or found.code == expected.code
    return expected.message in found.message and is_code


async def find_differences(
    case: Case, *pieces: bytes, dialects: Collection[str] = tuple(DIALECTS)
) -> list[str]:
    """Ask in the dialects, whole and streamed; return what is not as expected.

    pieces: the pieces in which the upstream's body arrives.
    """

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"data": []})
        headers = {"content-type": case.content_type}
        return httpx2.Response(200, headers=headers, stream=Pieces(*pieces))

    differences: list[str] = []
    async with far_server(answer) as address:
        engine = build_engine(address, kind=case.kind)
        models = Models([ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)])
        async with direct(models) as client:
            for name in dialects:
                answers = await ask(client, DIALECTS[name])
                for mode, found in zip(("whole", "stream"), answers, strict=True):
                    if not is_expected(found, case.expected, name):
                        differences.append(f"{name} {mode}: {found}")
    return differences


def name_case(case: Case) -> str:
    return f"{case.kind}: {case.name}"


@pytest.mark.parametrize("case", CASES, ids=name_case)
async def test_odd_stream_is_read_or_is_an_error(case: Case) -> None:
    """In Chat, and in the other dialects in turn."""
    others = [name for name in DIALECTS if name != "chat"]
    dialects = ("chat", others[CASES.index(case) % len(others)])
    pieces = [case.body] if case.body else []
    assert await find_differences(case, *pieces, dialects=dialects) == []


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=name_case)
async def test_odd_stream_is_read_in_every_dialect(case: Case) -> None:
    assert await find_differences(case, *([case.body] if case.body else [])) == []


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("case", CASES, ids=name_case)
async def test_odd_stream_in_pieces_is_the_same(case: Case, size: int) -> None:
    pieces = [case.body[start : start + size] for start in range(0, len(case.body), size)]
    assert await find_differences(case, *pieces) == []
