"""Odd answers of upstreams, in every dialect, whole and streamed: what the upstream
said is in the answer, or the answer is an error in the client's dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import httpx2
import pytest
from tests.engines.upstream import (
    odd_chat_streams,
    odd_gemini_streams,
    odd_messages_streams,
    odd_responses_streams,
)
from tests.engines.upstream.client_answers import DIALECTS, Answer, Failure, ask
from tests.engines.upstream.odd_stream import Case
from tests.engines.upstream.relays import build_engine, direct
from tests.engines.upstream.stub_server import Pieces, far_server

from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel

CASES = (
    *odd_chat_streams.CASES,
    *odd_responses_streams.CASES,
    *odd_messages_streams.CASES,
    *odd_gemini_streams.CASES,
)
KINDS = tuple(dict.fromkeys(case.kind for case in CASES))
Cut = Callable[[bytes], list[bytes]]


def adapt(answer: Answer, dialect: str) -> Answer:
    """Return the form of an answer in a dialect that has no refusals, or no filters."""
    if dialect == "gemini":
        return answer._replace(text=answer.text + answer.refusal, refusal="")
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
    kind: str, cut: Cut, list_dialects: Callable[[Case], Collection[str]] = lambda _: DIALECTS
) -> list[str]:
    """Ask for each answer of the upstreams of a kind, whole and streamed; return what is
    not as expected.

    cut: returns the pieces in which the upstream's body arrives.
    list_dialects: returns the dialects in which an answer is asked for.
    """
    sent: list[httpx2.Response] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"data": []})
        return sent[0]

    differences: list[str] = []
    async with far_server(answer) as address:
        engine = build_engine(address, kind=kind)
        models = Models([ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)])
        async with direct(models) as client:
            for case in (case for case in CASES if case.kind == kind):
                headers = {"content-type": case.content_type}
                pieces = Pieces(*cut(case.body))
                sent[:] = [httpx2.Response(200, headers=headers, stream=pieces)]
                for name in list_dialects(case):
                    answers = await ask(client, DIALECTS[name])
                    for mode, found in zip(("whole", "stream"), answers, strict=True):
                        if not is_expected(found, case.expected, name):
                            differences.append(f"{case.name}, {name} {mode}: {found}")
    return differences


def leave_whole(body: bytes) -> list[bytes]:
    return [body] if body else []


def list_two_dialects(case: Case) -> Collection[str]:
    """Chat, and the other dialects in turn."""
    others = [name for name in DIALECTS if name != "chat"]
    return ("chat", others[CASES.index(case) % len(others)])


@pytest.mark.parametrize("kind", KINDS)
async def test_odd_streams_are_read_or_are_errors(kind: str) -> None:
    assert await find_differences(kind, leave_whole, list_two_dialects) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_odd_streams_are_read_in_every_dialect(kind: str) -> None:
    assert await find_differences(kind, leave_whole) == []


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
async def test_odd_streams_in_pieces_are_the_same(kind: str, size: int) -> None:
    def cut(body: bytes) -> list[bytes]:
        return [body[start : start + size] for start in range(0, len(body), size)]

    assert await find_differences(kind, cut) == []
