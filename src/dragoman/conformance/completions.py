"""The wire grammar of Completions, for the streams and objects of any server.

each choice:  text*  finish
the stream:   choices interleaved; then [usage]; then [DONE], unless an error came
"""

from __future__ import annotations

from . import shapes
from .chunks import ChunkState
from .violation import Json, a_count, a_key, a_text, an_array, an_object, must, objects

REASONS = ("stop", "length", "content_filter")
COLUMNS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def check_stream(data: bytes, *, include_usage: bool, extra_reasons: tuple[str, ...] = ()) -> list[Json]:
    """The chunks, if they keep the rules. include_usage: what the request asked for. Raises Violation."""
    return _State(include_usage, (*REASONS, *extra_reasons)).read(data)


class _State(ChunkState):
    """finished: by index, whether that choice has ended."""

    kind = "text_completion"

    def __init__(self, include_usage: bool, reasons: tuple[str, ...]) -> None:
        super().__init__(include_usage, reasons)
        self._finished: dict[int, bool] = {}
        self._offsets: dict[int, int] = {}

    @property
    def _ended(self) -> bool:
        dense = set(self._finished) == set(range(len(self._finished)))
        return bool(self._finished) and dense and all(self._finished.values())

    def _choice(self, choice: Json) -> None:
        index = a_count(choice.get("index"), "index")
        must(not self._finished.get(index), f"choice {index}: a chunk after finish_reason")
        reason = _check_choice(choice, self._reasons, self._offsets.get(index, 0))
        self._finished[index] = reason is not None
        if choice["logprobs"] is not None and choice["logprobs"]["text_offset"]:
            self._offsets[index] = choice["logprobs"]["text_offset"][-1]


def _check_choice(choice: Json, reasons: tuple[str, ...], offset: int = 0) -> str | None:
    a_text(choice.get("text"), "text")
    for key in ("finish_reason", "logprobs"):
        a_key(choice, key, "choice")
    reason = choice["finish_reason"]
    must(reason is None or reason in reasons, f"finish_reason is {reason!r}")
    if choice["logprobs"] is not None:
        _check_logprobs(an_object(choice["logprobs"], "logprobs"), offset)
    return reason


def _check_logprobs(logprobs: Json, offset: int) -> None:
    offsets, scores, tokens, tops = (an_array(logprobs.get(column), f"logprobs.{column}") for column in COLUMNS)
    must(len(offsets) == len(scores) == len(tokens) == len(tops), "the columns of logprobs differ in length")
    must(all(a <= b for a, b in zip([offset, *offsets], offsets, strict=False)), "text_offset goes back")
    for token, score, top in zip(tokens, scores, tops, strict=True):
        must((score is None) == (top is None), "a token with a logprob or top_logprobs alone")
        if top is not None:
            must(token in an_object(top, "top_logprobs"), f"the sampled token {token!r} is not among its top_logprobs")
            must(all(value <= 0 for value in (score, *top.values())), "a logprob above 0")


def check_object(whole: Json, *, extra_reasons: tuple[str, ...] = ()) -> None:
    """A whole completion. Raises Violation."""
    must(whole.get("object") == "text_completion", f"object is {whole.get('object')!r}")
    a_text(whole.get("id"), "id")
    a_count(whole.get("created"), "created")
    a_text(whole.get("model"), "model")
    shapes.usage(whole.get("usage"))
    choices = objects(whole.get("choices"), "choices")
    must([choice.get("index") for choice in choices] == list(range(len(choices))), "the indices are not dense")
    for choice in choices:
        must(_check_choice(choice, (*REASONS, *extra_reasons)) is not None, "finish_reason is null")
