"""Clients that store responses while processes of the server are killed, and checks of
what is stored afterwards.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from .processes import LOST, Client

SETTLED = frozenset({"completed", "failed", "cancelled", "incomplete"})
CLIENTS = 4
PAUSE = 0.02
"""Seconds until a client retries."""
JSON = {"content-type": "application/json"}


class Refused(Exception):
    """A proxy's error while it has no process to forward to: nothing was acknowledged."""


class Load:
    """Clients that store responses of known texts until they are stopped.

    is_refusal: whether a response is the error of a proxy that has no process to
        forward to.
    acknowledged: texts by the id of a response whose end a client has seen.
    background: texts by the id of a response that was accepted, and is generated
        without a client.
    problems: statuses other than 200, streams without an end, and requests that hung.
    """

    def __init__(
        self,
        client: Client,
        is_refusal: Callable[[int, bytes], bool] = lambda _status, _answer: False,
    ) -> None:
        self._client = client
        self._is_refusal = is_refusal
        self._is_stopped = threading.Event()
        self._pause = threading.Event()
        self.acknowledged: dict[str, str] = {}
        self.background: dict[str, str] = {}
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: int) -> None:
        steps = (self._store, self._stream, self._start_background, self._follow_background)
        previous: str | None = None
        number = 0
        while not self._is_stopped.is_set():
            text = f"Text {client} {number}."
            try:
                found = steps[number % len(steps)](text, previous)
                previous = found or previous
            except TimeoutError:
                self.problems.append(f"{text} hung")
                return
            except (Refused, *LOST) as error:
                self.outcomes["refused" if isinstance(error, Refused) else "lost"] += 1
                self._pause.wait(PAUSE)
            except BaseException as error:
                self.problems.append(f"{text} {error!r}")
                return
            number += 1

    def _ask(self, body: dict[str, Any]) -> bytes:
        status, answer = self._client.post("/v1/responses", body)
        self._check(status, answer)
        return answer

    def _check(self, status: int, answer: bytes) -> None:
        self.outcomes[str(status)] += 1
        if self._is_refusal(status, answer):
            raise Refused
        assert status == 200, (status, answer)

    def _store(self, text: str, previous: str | None) -> str:
        answer = json.loads(
            self._ask({"input": f"[[say {text}]]", "previous_response_id": previous})
        )
        self.acknowledged[answer["id"]] = text
        return answer["id"]

    def _stream(self, text: str, previous: str | None) -> str:
        answer = self._ask(
            {"input": f"[[say {text}]]", "previous_response_id": previous, "stream": True}
        )
        for line in answer.splitlines():
            # Not `[DONE]`, which follows a failure too.
            if (
                line.startswith(b"data: {")
                and (event := json.loads(line[6:]))["type"] == "response.completed"
            ):
                self.acknowledged[event["response"]["id"]] = text
                return event["response"]["id"]
        raise AssertionError(answer)

    def _start_background(self, text: str, _: str | None) -> None:
        answer = json.loads(self._ask({"input": f"[[say {text}]]", "background": True}))
        self.background[answer["id"]] = text

    def _follow_background(self, text: str, _: str | None) -> None:
        """Stream a background response to its end; whenever the connection is lost,
        resume after the last event.
        """
        events: list[dict[str, Any]] = []
        input = f"[[say {text}]] [[delay 0.2]] [[say {text}]]"
        body: str | None = json.dumps({"input": input, "background": True, "stream": True})
        path = "/v1/responses"
        while not events or events[-1]["type"].removeprefix("response.") not in SETTLED:
            try:
                with self._client.open(
                    "GET" if body is None else "POST", path, body, JSON
                ) as answer:
                    self._check(answer.status, b"" if answer.status == 200 else answer.read())
                    # A truncated line has no line end.
                    whole = (
                        line
                        for line in answer
                        if line.startswith(b"data: {") and line.endswith(b"\n")
                    )
                    for line in whole:
                        events.append(json.loads(line[6:]))
            except (Refused, *LOST) as error:
                if isinstance(error, TimeoutError) or not events:
                    raise
                self._pause.wait(PAUSE)
            if events:
                id = events[0]["response"]["id"]
                self.background[id] = f"{text}{text}"
                self.outcomes["resumed"] += body is None
                body = None
                path = (
                    f"/v1/responses/{id}?stream=true&starting_after={events[-1]['sequence_number']}"
                )
        assert [event["sequence_number"] for event in events] == list(range(len(events))), events

    def check_stored(self) -> None:
        """Check that every acknowledged response is stored, and that every accepted one
        has ended.
        """
        assert not self.problems, self.problems
        for id, text in self.acknowledged.items():
            response = read_response(self._client, id)
            assert (response["status"], read_text(response)) == ("completed", text)
        for id, text in self.background.items():
            self._client.wait_until(lambda id=id: is_settled(self._client, id))
            response = read_response(self._client, id)
            assert response["status"] == "failed" or read_text(response) == text


def read_response(client: Client, id: str) -> dict[str, Any]:
    status, answer = client.get(f"/v1/responses/{id}")
    assert status == 200, (id, answer)
    return json.loads(answer)


def read_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def is_settled(client: Client, id: str) -> bool:
    return read_response(client, id)["status"] in SETTLED


def start_endless(
    client: Client, is_refusal: Callable[[int, bytes], bool] = lambda _status, _answer: False
) -> str:
    """Start a background response that ends only with its process."""
    body = {"input": "[[say One]] [[delay 3600]] [[say two.]]", "background": True}
    while True:
        try:
            status, answer = client.post("/v1/responses", body)
        except LOST:
            continue
        if is_refusal(status, answer):
            continue
        assert status == 200, answer
        return json.loads(answer)["id"]
