"""The wire grammar of TGI's /generate and /generate_stream, and of LightLLM's, for answers of any server.

the stream:  token*  last        `index` counts the events; the texts of the tokens, put together, are `generated_text`

An error is an event that ends it. There is no [DONE].
"""

from __future__ import annotations

from .sse import Stream
from .violation import Json, a_count, a_key, a_text, an_array, an_object, must, objects

REASONS = ("length", "eos_token", "stop_sequence")
ERRORS = ("generation", "incomplete_generation", "overloaded", "validation")


def check_stream(data: bytes, *, before: str = "") -> list[Json]:
    """All events, if the stream keeps the rules; none of one that failed. before: what the whole text begins with.

    Raises Violation.
    """
    stream, events = Stream(data), list[Json]()
    must(not stream.done, "a [DONE]")
    failed = False
    for event in stream.payloads:
        must(not failed, "an event after an error")
        failed = "error" in event
        if failed:
            error(event)
            continue
        must(not events or events[-1].get("generated_text") is None, "an event after the last one")
        _check_event(event, len(events) + 1)
        events.append(event)
    if failed:
        return []
    must(events and events[-1].get("generated_text") is not None, "it never finished")
    said = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    must(events[-1]["generated_text"] == before + said, "generated_text is not what the tokens said")
    return events


def check_object(answer: Json) -> None:
    """A whole answer in TGI's form. Raises Violation."""
    a_text(answer.get("generated_text"), "generated_text")
    if answer.get("details") is None:
        return
    details = an_object(answer["details"], "details")
    _reason(details)
    tokens = objects(details.get("tokens"), "tokens")
    for token in tokens:
        _token(token)
    counted = a_count(details.get("generated_tokens"), "generated_tokens")
    must(not tokens or counted == len(tokens), f"generated_tokens is {counted}, there are {len(tokens)}")
    for token in objects(details.get("prefill"), "prefill"):
        _scored(token)
    if "top_tokens" in details:
        tops = an_array(details["top_tokens"], "top_tokens")
        must(len(tops) == len(tokens), "top_tokens are of other tokens")


def check_lightllm(answer: Json) -> None:
    """A whole answer of one choice in LightLLM's form. Raises Violation."""
    texts = an_array(answer.get("generated_text"), "generated_text")
    must(len(texts) == 1, "there is not one text")
    a_text(texts[0], "generated_text[0]")
    a_count(answer.get("prompt_tokens"), "prompt_tokens")
    must(answer.get("finish_reason") in ("stop", "length"), f"finish_reason is {answer.get('finish_reason')!r}")
    counted = a_count(answer.get("count_output_tokens"), "count_output_tokens")
    if "tokens" in answer:
        tokens = objects(answer["tokens"], "tokens")
        must(not tokens or counted == len(tokens), f"count_output_tokens is {counted}, there are {len(tokens)}")
        for number, token in enumerate(tokens, start=1):
            _token(token)
            must(token.get("count_output_tokens", number) == number, "tokens are not counted one by one")


def error(body: Json) -> None:
    """Raises Violation."""
    must(a_text(body.get("error"), "error") != "", "error is empty")
    must(body.get("error_type") in ERRORS, f"error_type is {body.get('error_type')!r}")


def _check_event(event: Json, index: int) -> None:
    must(event.get("index", index) == index, f"index is {event.get('index')!r}, expected {index}")
    _token(an_object(event.get("token"), "token"))
    for other in objects(event.get("top_tokens") or [], "top_tokens"):
        _token(other)
    a_key(event, "generated_text", "the event")
    a_key(event, "details", "the event")
    finished = event["generated_text"] is not None
    must(event.get("finished", finished) is finished, "finished is not whether it finished")
    if event["details"] is not None:
        must(finished, "details before the end")
        details = an_object(event["details"], "details")
        _reason(details)
        a_count(details.get("generated_tokens"), "generated_tokens")


def _reason(details: Json) -> None:
    must(details.get("finish_reason") in REASONS, f"finish_reason is {details.get('finish_reason')!r}")


def _token(token: Json) -> None:
    _scored(token)
    must(isinstance(token.get("special"), bool), "special is no boolean")


def _scored(token: Json) -> None:
    if token.get("id") is not None:
        a_count(token["id"], "token.id")
    a_text(token.get("text"), "token.text")
    a_key(token, "logprob", "token")
    score = token["logprob"]
    must(score is None or (isinstance(score, int | float) and score <= 0), "token.logprob is no logprob")
