"""The wire grammar of SGLang's /generate, for the streams and objects of any server that sends the whole text so far.

each choice:  so far*  finished        each one begins with what the one before it said
the stream:   choices interleaved, told apart by `index` where there are several; then [DONE], unless an error came
"""

from __future__ import annotations

from . import shapes
from .sse import Stream
from .violation import Json, a_count, a_text, an_array, an_object, must, objects

REASONS = ("stop", "length", "abort")
SCORES = ("input_token_logprobs", "output_token_logprobs")
TOPS = ("input_top_logprobs", "output_top_logprobs")


def check_stream(data: bytes, *, choices: int = 1) -> list[Json]:
    """The last of each choice, in order, if the stream keeps the rules; none of one that failed. Raises Violation."""
    stream, last = Stream(data), dict[int, Json]()
    failed = False
    for answer in stream.payloads:
        must(not failed, "an event after an error")
        if "error" in answer:
            shapes.error(answer["error"])
            failed = True
            continue
        index = a_count(answer.pop("index", 0 if choices == 1 else None), "index")
        _check_next(last.get(index), answer)
        last[index] = answer
    must(stream.done != failed, "[DONE] after an error" if failed else "no [DONE]")
    if failed:
        return []
    must(sorted(last) == list(range(choices)), f"{choices} choices were asked for, {sorted(last)} came")
    for answer in last.values():
        check_object(answer)
    return [answer for _, answer in sorted(last.items())]


def check_object(answer: Json) -> None:
    """One whole answer. Raises Violation."""
    _check(answer)
    must(answer["meta_info"]["finish_reason"] is not None, "it never finished")


def _check_next(before: Json | None, answer: Json) -> None:
    _check(answer)
    if before is None:
        return
    must(before["meta_info"]["finish_reason"] is None, "an event after the one that finished")
    must(before["meta_info"]["id"] == answer["meta_info"]["id"], "the id changed")
    must(answer["text"].startswith(before["text"]), "the text is not what was said before, and more")
    count = len(before["output_ids"])
    must(answer["output_ids"][:count] == before["output_ids"], "the ids are not those of before, and more")


def _check(answer: Json) -> None:
    a_text(answer.get("text"), "text")
    ids = [a_count(id, "output_ids") for id in an_array(answer.get("output_ids"), "output_ids")]
    meta = an_object(answer.get("meta_info"), "meta_info")
    a_text(meta.get("id"), "meta_info.id")
    a_count(meta.get("prompt_tokens"), "meta_info.prompt_tokens")
    counted = a_count(meta.get("completion_tokens"), "meta_info.completion_tokens")
    must(counted == len(ids), f"completion_tokens is {counted}, there are {len(ids)} ids")
    if meta.get("finish_reason") is not None:
        kind = an_object(meta["finish_reason"], "finish_reason").get("type")
        must(kind in REASONS, f"finish_reason.type is {kind!r}")
    if "output_token_logprobs" in meta:
        _check_scores(meta, ids)
    if meta.get("weight_versions"):
        _check_weights(meta, len(ids))


def _check_scores(meta: Json, ids: list[int]) -> None:
    for name in SCORES:
        for entry in an_array(meta.get(name), name):
            value, id, text = an_array(entry, name)
            must(value is None or value <= 0, f"{name}: a logprob above 0")
            a_count(id, name)
            must(text is None or isinstance(text, str), f"{name}: the text is none")
    must([entry[1] for entry in meta["output_token_logprobs"]] == ids, "output_token_logprobs are of other tokens")
    must(meta.get("output_token_logprobs_length") == len(ids), "output_token_logprobs_length is wrong")
    for name, ranked in zip(SCORES, TOPS, strict=True):
        if ranked in meta:
            must(len(an_array(meta[ranked], ranked)) == len(meta[name]), f"{ranked} are of other tokens")


def _check_weights(meta: Json, count: int) -> None:
    spans = objects(meta["weight_versions"], "weight_versions")
    must(meta.get("weight_version") == spans[-1].get("version"), "weight_version is not that of the last token")
    at = 0
    for span in spans:
        must(a_count(span.get("start"), "start") == at, "a gap between weight_versions")
        at = a_count(span.get("end"), "end")
    must(at == count, "weight_versions end before the answer, or after it")
