"""The wire format of Chat Completions: checks of streams and objects of any server.

choice:  role  (content | refusal | reasoning | tool deltas)*  finish
stream:  choices interleaved, roles in index order; then the usage, if requested;
         then [DONE], unless there is an error
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
from .openai_values import check_chat_logprobs, check_usage

REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
REASONING_FIELDS = frozenset({"reasoning", "reasoning_content"})
REASONING_DETAILS = "reasoning_details"
"""OpenRouter's list of reasoning blocks for the client to send back: complete, with the
last reasoning or alone.
"""
DELTA_FIELDS = REASONING_FIELDS | {
    "role",
    "content",
    "refusal",
    "tool_calls",
    "function_call",
    REASONING_DETAILS,
}


def check_stream(
    data: bytes,
    *,
    include_usage: bool,
    extra_reasons: tuple[str, ...] = (),
    allow_variants: bool = False,
) -> list[JsonObject]:
    """Check a stream, and return its chunks. Raises Violation.

    include_usage: the request's `stream_options.include_usage`.
    extra_reasons: finish reasons to accept besides OpenAI's.
    allow_variants: accept what OpenAI's reference does not exclude, although OpenAI's
        own streams do not have it: null fields in a delta, content together with the
        role, with another field or with finish_reason, a fingerprint in some chunks
        only.
    """
    reasons = (*REASONS, *extra_reasons)
    return _ChatStreamState(include_usage, reasons, allow_variants=allow_variants).check(data)


class _ChoiceState:
    """The state of one choice.

    calls, legacy_calls: number of `tool_calls` and of `function_call` so far.
    finished: it has had a finish_reason.
    has_no_content: it has had no content yet, not even an empty string.
    """

    def __init__(self, *, has_no_content: bool) -> None:
        self.calls = 0
        self.legacy_calls = 0
        self.finished = False
        self.has_no_content = has_no_content


class _ChatStreamState(ChunkState):
    kind = "chat.completion.chunk"

    def __init__(
        self, include_usage: bool, reasons: tuple[str, ...], *, allow_variants: bool = False
    ) -> None:
        super().__init__(include_usage, reasons, allow_variants=allow_variants)
        self._choices: list[_ChoiceState] = []

    @property
    def _has_ended(self) -> bool:
        return bool(self._choices) and all(choice.finished for choice in self._choices)

    def _check_choice(self, choice: JsonObject) -> None:
        index = require_count(choice.get("index"), "index")
        delta = require_object(choice.get("delta"), "delta")
        location = f"choice {index}"
        reason = choice.get("finish_reason")
        if self._allow_variants:
            ignored = (None, "") if reason is not None else (None,)
            delta = {
                name: value
                for name, value in delta.items()
                if value not in ignored or name == "role"
            }
        require_key(choice, "finish_reason", location)
        check_chat_logprobs(choice.get("logprobs"), f"{location}.logprobs")
        if index >= len(self._choices):
            require(
                index == len(self._choices), f"{location} starts before choice {len(self._choices)}"
            )
            require(delta.get("role") == "assistant", f"{location}: the first delta has no role")
            starts_with_role_only = delta.keys() <= {"role", "content"} and not delta.get("content")
            require(
                starts_with_role_only or self._allow_variants,
                f"{location}: the first delta has more than a role",
            )
            self._choices.append(_ChoiceState(has_no_content="content" not in delta))
            # Some servers send the first text, or the first piece of a call with an
            # empty text, together with the role.
            delta = {name: value for name, value in delta.items() if name != "role" and value != ""}
            if delta:
                self._check_delta(delta, location)
        elif reason is None:
            if delta != {"content": ""} or not self._choices[index].has_no_content:
                self._check_delta(delta, location)
            self._choices[index].has_no_content = False
        state = self._choices[index]
        require(not state.finished, f"{location}: a chunk follows finish_reason")
        for call in require_objects(delta.get("tool_calls", []), f"{location}.tool_calls"):
            _check_call(state, call, location)
        if "function_call" in delta:
            state.legacy_calls += "name" in require_object(
                delta["function_call"], f"{location}.function_call"
            )
            require(
                state.legacy_calls == 1,
                f"{location}: function_call has {state.legacy_calls} names, expected 1",
            )
        if reason is not None:
            require(reason in self._reasons, f"{location}: finish_reason is {reason!r}")
            require(self._allow_variants or not delta, f"{location}: the last delta is not empty")
            if delta:
                self._check_delta(delta, location)
            require(
                reason != "tool_calls" or state.calls > 0,
                f"{location}: finish_reason is tool_calls without a tool call",
            )
            state.finished = True

    def _check_delta(self, delta: JsonObject, location: str) -> None:
        require(delta.keys() <= DELTA_FIELDS, f"{location}: unknown fields in {sorted(delta)}")
        require("role" not in delta, f"{location}: a second role")
        # An empty delta costs a chunk and carries nothing.
        require(
            all(value not in (None, "", []) for value in delta.values()),
            f"{location}: an empty field in {delta}",
        )
        names = {*REASONING_FIELDS, REASONING_DETAILS}
        fields = {"reasoning" if field in names else field for field in delta}
        # Text, reasoning and calls are ordered relative to each other; one delta with
        # several would lose that order.
        has_fields = len(fields) == 1 or (self._allow_variants and len(fields) > 1)
        require(has_fields, f"{location}: a delta has the fields {sorted(delta)}, expected one")
        require(
            len({delta[field] for field in REASONING_FIELDS & delta.keys()}) <= 1,
            f"{location}: reasoning and reasoning_content differ",
        )


def _check_call(choice: _ChoiceState, call: JsonObject, location: str) -> None:
    index = require_count(call.get("index"), f"{location}: index of a call")
    kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
    body = require_object(call.get(kind), f"{location}: {kind} of call {index}")
    # Only a call's first delta has its id and name. Clients concatenate strings
    # (`accumulate_delta` in openai-python): a repeated id or name would be doubled.
    if index == choice.calls:
        require(
            call.get("id") and call.get("type") == kind and body.get("name"),
            f"{location}: a call without id, type or name",
        )
        choice.calls += 1
        return
    # The format allows the deltas of parallel calls to alternate, but OpenAI sends one
    # call after another, and clients may rely on it.
    require(
        index == choice.calls - 1,
        f"{location}: a delta of call {index}, but the open call is {choice.calls - 1}",
    )
    require(
        call.keys() == {"index", kind} and body.keys() == {text},
        f"{location}: id, type or name repeated in {call}",
    )


def check_object(response: JsonObject, *, extra_reasons: tuple[str, ...] = ()) -> None:
    """Check a full chat completion. Raises Violation."""
    require(response.get("object") == "chat.completion", f"object is {response.get('object')!r}")
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
        message = require_object(choice.get("message"), "message")
        require(message.get("role") == "assistant", f"role is {message.get('role')!r}")
        # Nullable, but required by OpenAI's types: strictly typed clients fail if the
        # key is missing.
        for key in ("content", "refusal"):
            require_key(message, key, "message")
        require_key(choice, "logprobs", "choice")
        check_chat_logprobs(choice["logprobs"], "logprobs")
        reason = choice.get("finish_reason")
        require(reason in (*REASONS, *extra_reasons), f"finish_reason is {reason!r}")
        # Must be absent, not empty: agents test for the key, and take an empty list for
        # a turn with tool calls.
        is_empty = "tool_calls" in message and not require_array(
            message["tool_calls"], "tool_calls"
        )
        require(not is_empty, "tool_calls is empty")
        calls = require_objects(message.get("tool_calls", []), "tool_calls")
        require(reason != "tool_calls" or calls, "finish_reason is tool_calls without a tool call")
        for call in calls:
            kind, text = (
                ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
            )
            body = require_object(call.get(kind), f"{kind} of a call")
            require(
                call.get("id") and call.get("type") == kind and body.get("name"),
                "a call without id, type or name",
            )
            require_string(body.get(text), f"{text} of a call")
