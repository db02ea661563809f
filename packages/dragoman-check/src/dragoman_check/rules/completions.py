"""The wire format of Completions: checks of streams and objects of any server.

choice:  text*  finish
stream:  choices interleaved; then the usage, if requested; then [DONE], unless
         there is an error
"""

from __future__ import annotations

from .chunk_stream import ChunkState
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
from .openai_values import check_usage

REASONS = ("stop", "length", "content_filter")
LOGPROBS_COLUMNS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def check_stream(
    data: bytes,
    *,
    include_usage: bool,
    extra_reasons: tuple[str, ...] = (),
    allow_variants: bool = False,
) -> list[JsonObject]:
    """Check a stream, and return its chunks; the arguments are those of
    `chat.check_stream`. Raises Violation.
    """
    reasons = (*REASONS, *extra_reasons)
    return _CompletionsStreamState(include_usage, reasons, allow_variants=allow_variants).check(
        data
    )


class _CompletionsStreamState(ChunkState):
    """State machine that checks the chunks of one stream.

    _finished: choice index -> whether it has ended.
    _offsets: choice index -> text_offset of its last token.
    """

    kind = "text_completion"

    def __init__(
        self, include_usage: bool, reasons: tuple[str, ...], *, allow_variants: bool = False
    ) -> None:
        super().__init__(include_usage, reasons, allow_variants=allow_variants)
        self._finished: dict[int, bool] = {}
        self._offsets: dict[int, int] = {}

    @property
    def _has_ended(self) -> bool:
        is_dense = set(self._finished) == set(range(len(self._finished)))
        return bool(self._finished) and is_dense and all(self._finished.values())

    def _check_choice(self, choice: JsonObject) -> None:
        index = require_count(choice.get("index"), "index")
        require(not self._finished.get(index), f"choice {index}: a chunk follows finish_reason")
        reason = _check_choice(choice, self._reasons, self._offsets.get(index, 0))
        self._finished[index] = reason is not None
        if choice["logprobs"] is not None and choice["logprobs"]["text_offset"]:
            self._offsets[index] = choice["logprobs"]["text_offset"][-1]


def _check_choice(choice: JsonObject, reasons: tuple[str, ...], offset: int = 0) -> str | None:
    """Check a choice, and return its finish reason.

    offset: text_offset of the last token in the choice's earlier chunks.
    """
    require_string(choice.get("text"), "text")
    for key in ("finish_reason", "logprobs"):
        require_key(choice, key, "choice")
    reason = choice["finish_reason"]
    require(reason is None or reason in reasons, f"finish_reason is {reason!r}")
    if choice["logprobs"] is None:
        return reason
    logprobs = require_object(choice["logprobs"], "logprobs")
    offsets, token_logprobs, tokens, top_logprobs = (
        require_array(logprobs.get(column), f"logprobs.{column}") for column in LOGPROBS_COLUMNS
    )
    require(
        len(offsets) == len(token_logprobs) == len(tokens) == len(top_logprobs),
        "the lists of logprobs differ in length",
    )
    # Equal offsets are valid: several tokens may be bytes of one character.
    require(
        all(a <= b for a, b in zip([offset, *offsets], offsets, strict=False)),
        "text_offset decreases",
    )
    for token, logprob, top in zip(tokens, token_logprobs, top_logprobs, strict=True):
        # Both are null for the first token of an echoed prompt, which nothing precedes.
        require(
            (logprob is None) == (top is None), "a token has only one of logprob and top_logprobs"
        )
        if top is not None:
            # OpenAI adds the sampled token if it is not among the most probable ones,
            # so there may be one entry more than requested.
            is_listed = token in require_object(top, "top_logprobs")
            require(is_listed, f"the sampled token {token!r} is not among its top_logprobs")
            require(all(value <= 0 for value in (logprob, *top.values())), "a logprob above 0")
    return reason


def check_object(response: JsonObject, *, extra_reasons: tuple[str, ...] = ()) -> None:
    """Check a full completion. Raises Violation."""
    require(response.get("object") == "text_completion", f"object is {response.get('object')!r}")
    require_string(response.get("id"), "id")
    require_count(response.get("created"), "created")
    require_string(response.get("model"), "model")
    check_usage(response.get("usage"))
    choices = require_objects(response.get("choices"), "choices")
    require(
        [choice.get("index") for choice in choices] == list(range(len(choices))),
        "the indices of the choices are not consecutive",
    )
    for choice in choices:
        require(
            _check_choice(choice, (*REASONS, *extra_reasons)) is not None, "finish_reason is null"
        )
