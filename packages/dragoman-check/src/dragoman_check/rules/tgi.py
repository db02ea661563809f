"""The wire formats of TGI's /generate and /generate_stream: checks of streams and
objects of any server.

    stream:  token*  final; `index` counts the events; the concatenated token texts are
             `generated_text`

The text of a control token is part of `generated_text` only if the request has
`skip_special_tokens: false`.

An error event ends the stream. There is no [DONE].
"""

from __future__ import annotations

from .event_streams import ParsedStream
from .json_values import (
    JsonObject,
    require,
    require_array,
    require_count,
    require_key,
    require_object,
    require_objects,
    require_string,
)

REASONS = ("length", "eos_token", "stop_sequence")
ERRORS = ("generation", "incomplete_generation", "overloaded", "validation")


def check_stream(data: bytes, *, prefix: str = "") -> list[JsonObject]:
    """Check a stream, and return all events; none if it failed. Raises Violation.

    prefix: text before the texts of the generated tokens, such as the prompt.
    """
    stream = ParsedStream(data)
    events = list[JsonObject]()
    require(not stream.done, "the stream contains [DONE]")
    has_failed = False
    for event in stream.payloads:
        require(not has_failed, "an event follows an error")
        has_failed = "error" in event
        if has_failed:
            check_error(event)
            continue
        require(
            not events or events[-1].get("generated_text") is None, "an event follows the final one"
        )
        index = len(events) + 1
        require(
            event.get("index", index) == index, f"index is {event.get('index')!r}, expected {index}"
        )
        _check_token(require_object(event.get("token"), "token"))
        for top_token in require_objects(event.get("top_tokens") or [], "top_tokens"):
            _check_token(top_token)
        require_key(event, "generated_text", "the event")
        require_key(event, "details", "the event")
        is_last = event["generated_text"] is not None
        if event["details"] is not None:
            require(is_last, "details before the final event")
            details = require_object(event["details"], "details")
            _check_reason(details)
            require_count(details.get("generated_tokens"), "generated_tokens")
        events.append(event)
    if has_failed:
        return []
    require(
        events and events[-1].get("generated_text") is not None, "the stream has no final event"
    )
    # The text is the prefix and the tokens' texts; those of control tokens may be
    # missing. `ends` holds the positions in the text at which the tokens so far may
    # end.
    text = events[-1]["generated_text"]
    ends = {len(prefix)} if text.startswith(prefix) else set[int]()
    for token in (event["token"] for event in events):
        next_ends = {
            end + len(token["text"]) for end in ends if text.startswith(token["text"], end)
        }
        ends = ends | next_ends if token["special"] else next_ends
    require(len(text) in ends, "generated_text differs from the concatenated tokens")
    return events


def check_object(answer: JsonObject) -> None:
    """Check a full response in TGI's format. Raises Violation."""
    require_string(answer.get("generated_text"), "generated_text")
    if answer.get("details") is None:
        return
    details = require_object(answer["details"], "details")
    _check_reason(details)
    tokens = require_objects(details.get("tokens"), "tokens")
    for token in tokens:
        _check_token(token)
    generated_tokens = require_count(details.get("generated_tokens"), "generated_tokens")
    require(
        not tokens or generated_tokens == len(tokens),
        f"generated_tokens is {generated_tokens}, but there are {len(tokens)} tokens",
    )
    for token in require_objects(details.get("prefill"), "prefill"):
        _check_token_logprob(token)
    if "top_tokens" in details:
        top_tokens = require_array(details["top_tokens"], "top_tokens")
        require(
            len(top_tokens) == len(tokens),
            f"top_tokens has {len(top_tokens)} entries, expected {len(tokens)}",
        )


def check_error(body: JsonObject) -> None:
    """Check an error body. Raises Violation."""
    require(require_string(body.get("error"), "error") != "", "error is empty")
    require(body.get("error_type") in ERRORS, f"error_type is {body.get('error_type')!r}")


def _check_reason(details: JsonObject) -> None:
    require(
        details.get("finish_reason") in REASONS,
        f"finish_reason is {details.get('finish_reason')!r}",
    )


def _check_token(token: JsonObject) -> None:
    _check_token_logprob(token)
    require(isinstance(token.get("special"), bool), "special is not a boolean")


def _check_token_logprob(token: JsonObject) -> None:
    require(type(token.get("id")) is int and token["id"] >= -1, f"token.id is {token.get('id')!r}")
    require_string(token.get("text"), "token.text")
    require_key(token, "logprob", "token")
    logprob = token["logprob"]
    require(
        logprob is None or (isinstance(logprob, int | float) and logprob <= 0),
        f"token.logprob is {logprob!r}",
    )
