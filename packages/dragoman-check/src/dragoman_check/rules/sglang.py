"""The wire format of SGLang's /generate: checks of streams and objects of any server
whose events carry the cumulative text.

    choice:  partial*  finished; the text of each event starts with the text of the
             previous event
    stream:  choices interleaved, identified by `index` if there are several; then
             [DONE], unless there is an error
"""

from __future__ import annotations

from .event_streams import ParsedStream
from .json_values import (
    JsonObject,
    require,
    require_array,
    require_count,
    require_object,
    require_objects,
    require_string,
)
from .openai_values import check_error

REASONS = ("stop", "length", "abort")
LOGPROB_FIELDS = ("input_token_logprobs", "output_token_logprobs")
TOP_LOGPROB_FIELDS = ("input_top_logprobs", "output_top_logprobs")


def check_stream(data: bytes, *, choices: int = 1) -> list[JsonObject]:
    """Check a stream, and return each choice's last event, in order; none if the stream
    failed. Raises Violation.
    """
    stream = ParsedStream(data)
    last_answers = dict[int, JsonObject]()
    has_failed = False
    for answer in stream.payloads:
        require(not has_failed, "an event follows an error")
        if "error" in answer:
            check_error(answer["error"])
            has_failed = True
            continue
        # SGLang sends `index` only if there are several choices.
        index = require_count(answer.pop("index", 0 if choices == 1 else None), "index")
        _check_answer(answer)
        previous = last_answers.get(index)
        if previous is not None:
            require(
                previous["meta_info"]["finish_reason"] is None,
                "an event follows the one with a finish_reason",
            )
            require(previous["meta_info"]["id"] == answer["meta_info"]["id"], "the id changed")
            require(
                answer["text"].startswith(previous["text"]),
                "the text does not start with the previous text",
            )
            earlier_ids = previous["output_ids"]
            starts_with_ids = answer["output_ids"][: len(earlier_ids)] == earlier_ids
            require(starts_with_ids, "the ids do not start with the previous ids")
        last_answers[index] = answer
    require(
        stream.done != has_failed,
        "[DONE] after an error" if has_failed else "the stream has no [DONE]",
    )
    if has_failed:
        return []
    require(
        sorted(last_answers) == list(range(choices)),
        f"{choices} choices were requested, got {sorted(last_answers)}",
    )
    for answer in last_answers.values():
        check_object(answer)
    return [answer for _, answer in sorted(last_answers.items())]


def check_object(answer: JsonObject) -> None:
    """Check a full response. Raises Violation."""
    _check_answer(answer)
    require(
        answer["meta_info"]["finish_reason"] is not None,
        "finish_reason is null in the final response",
    )


def _check_answer(answer: JsonObject) -> None:
    require_string(answer.get("text"), "text")
    ids = [
        require_count(id, "output_ids")
        for id in require_array(answer.get("output_ids"), "output_ids")
    ]
    meta = require_object(answer.get("meta_info"), "meta_info")
    require_string(meta.get("id"), "meta_info.id")
    # A server in front of another one may know the prompt's tokens only at the end.
    if meta.get("prompt_tokens") is not None or meta.get("finish_reason") is not None:
        require_count(meta.get("prompt_tokens"), "meta_info.prompt_tokens")
    # A server in front of another one may know no tokens of a text; 0 would be wrong.
    if ids or meta.get("completion_tokens") is not None:
        completion_tokens = require_count(
            meta.get("completion_tokens"), "meta_info.completion_tokens"
        )
        # Every event has the whole text and all ids so far, so counts and ids can be
        # compared in each.
        require(
            completion_tokens == len(ids),
            f"completion_tokens is {completion_tokens}, but there are {len(ids)} ids",
        )
    if meta.get("finish_reason") is not None:
        kind = require_object(meta["finish_reason"], "finish_reason").get("type")
        require(kind in REASONS, f"finish_reason.type is {kind!r}")
    for name in LOGPROB_FIELDS if "output_token_logprobs" in meta else ():
        for entry in require_array(meta.get(name), name):
            value, id, text = require_array(entry, name)
            # The first token of a prompt has no logprob; it is null.
            require(value is None or value <= 0, f"{name}: a logprob above 0")
            require_count(id, name)
            require(text is None or isinstance(text, str), f"{name}: the text is not a string")
    if "output_token_logprobs" in meta:
        logprob_ids = [entry[1] for entry in meta["output_token_logprobs"]]
        require(logprob_ids == ids, "the ids of output_token_logprobs differ from output_ids")
        require(
            meta.get("output_token_logprobs_length") == len(ids),
            f"output_token_logprobs_length is not {len(ids)}",
        )
        for name, top_field in zip(LOGPROB_FIELDS, TOP_LOGPROB_FIELDS, strict=True):
            tops = require_array(meta.get(top_field, meta[name]), top_field)
            require(
                len(tops) == len(meta[name]),
                f"{top_field} has {len(tops)} entries, expected {len(meta[name])}",
            )
    if meta.get("weight_versions"):
        spans = require_objects(meta["weight_versions"], "weight_versions")
        require(
            meta.get("weight_version") == spans[-1].get("version"),
            "weight_version is not that of the last token",
        )
        location = 0
        for span in spans:
            require(
                require_count(span.get("start"), "start") == location,
                "a gap between weight_versions",
            )
            location = require_count(span.get("end"), "end")
        require(location == len(ids), "weight_versions do not end at the last token")
