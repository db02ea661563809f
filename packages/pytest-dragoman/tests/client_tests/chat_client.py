"""A small client of Chat Completions, whose behaviour can be made wrong in one way at a
time.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class ApiError(Exception):
    """The server failed, or its answer is incomplete."""


@dataclass(frozen=True)
class ChatClient:
    """A client.

    retries: retries after a failure.
    backs_off: waits before a retry, as long as the server asks for.
    checks_end: an answer without its last events is an error.
    sums_usage: adds up the usage of all events, which is wrong.
    sends_results: the loop sends the results of tools.
    repeats_arguments: the history has the arguments that the model wrote.
    timeout: seconds of silence after which it gives up.
    """

    url: str
    retries: int = 2
    backs_off: bool = True
    checks_end: bool = True
    sums_usage: bool = False
    sends_results: bool = True
    repeats_arguments: bool = True
    timeout: float | None = 60.0

    def ask(self, messages: list[Json]) -> Answer:
        """Send a conversation, and return the answer. Raises ApiError."""
        for retry in range(self.retries + 1):
            try:
                return self._send(messages)
            except (ApiError, OSError, http.client.HTTPException, ValueError) as error:
                if retry == self.retries or isinstance(error, TimeoutError):
                    raise
                seconds = float(getattr(error, "retry_after", 0.1))
                if self.backs_off:
                    time.sleep(seconds)
        raise AssertionError

    def run(self, question: str) -> str:
        """Run an agent's loop with one tool, and return its last text."""
        messages: list[Json] = [{"role": "user", "content": question}]
        answer = self.ask(messages)
        while answer.calls and self.sends_results:
            calls = answer.calls if self.repeats_arguments else [_empty(answer.calls[0])]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "3"}
                for call in answer.calls
            ]
            answer = self.ask(messages)
        return answer.text

    def _send(self, messages: list[Json]) -> Answer:
        host = self.url.removeprefix("http://").partition("/")[0]
        connection = http.client.HTTPConnection(host, timeout=self.timeout)
        body: Json = {"messages": messages, "stream": True, "tools": [TOOL]}
        body["stream_options"] = {"include_usage": True}
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(body),
                {"content-type": "application/json"},
            )
            response = connection.getresponse()
            if response.status != 200:
                error = ApiError(response.read().decode())
                if "retry-after" in response.headers:
                    error.retry_after = response.headers["retry-after"]  # type: ignore[attr-defined]
                raise error
            return self._fold(response)
        finally:
            connection.close()

    def _fold(self, response: http.client.HTTPResponse) -> Answer:
        answer = Answer()
        is_done = False
        for data in _read_events(response):
            if data == "[DONE]":
                is_done = True
                break
            chunk: Json = json.loads(data)
            if "error" in chunk:
                raise ApiError(chunk["error"]["message"])
            if usage := chunk.get("usage"):
                tokens = usage["completion_tokens"]
                answer.tokens = answer.tokens + tokens if self.sums_usage else tokens
            for choice in chunk["choices"]:
                answer.add(choice["delta"])
        if self.checks_end and not is_done:
            raise ApiError("the stream ended early")
        return answer


class Answer:
    """An answer that is built from deltas."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[Json] = []
        self.tokens = 0

    def add(self, delta: Json) -> None:
        self.text += delta.get("content") or ""
        pieces: list[Json] = delta.get("tool_calls") or []
        for piece in pieces:
            if "id" in piece:
                self.calls.append({**piece, "function": dict(piece["function"])})
            else:
                index: int = piece["index"]
                self.calls[index]["function"]["arguments"] += piece["function"]["arguments"]


def _read_events(response: http.client.HTTPResponse) -> Iterator[str]:
    for line in response:
        if line.startswith(b"data:"):
            yield line[5:].decode().strip()


def _empty(call: Json) -> Json:
    return {**call, "function": {**call["function"], "arguments": "{}"}}
