"""The readers accept what vLLM's request models accept, except for the differences that
are listed here with reasons.

One field at a time, each with values of every kind. The models are the ones that `vllm
serve` reads requests with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.serving import without_accelerator

from dragoman.core.errors import RequestError
from dragoman.dialects.interfaces import Profile, ReaderOptions

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

READING = ReaderOptions(profile=Profile.VLLM, default_model="m")
MODELS = {
    "chat": ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    "completions": ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    "responses": ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
    "messages": ("vllm.entrypoints.anthropic.protocol", "AnthropicMessagesRequest"),
}
CONVERSATION = {"messages", "input"}
"""Unions of dozens of types, which the tests of each reader cover."""

PROBES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        5,
        100,
        4096,
        10**19,
        -(2**63),
        0.0,
        0.5,
        1.0,
        2.5,
        -0.5,
        1e30,
    ),
    *("", "x", "1", "auto", "none", "low", "true"),
    *([], [1], [-1], ["a"], ["a", "b"], [""], ["a"] * 5, [[1]], [None]),
    *({}, {"a": 1}, {"5": 1}, {"5": 200}, {"type": "text"}, {"type": "json_object"}),
    *(
        {"json": "{}"},
        {"regex": "a+"},
        {"choice": []},
        {"json_object": False},
        {"regex": "a", "choice": ["a"]},
    ),
]

NO_EFFECT = "it has no effect here: nothing looks at it, or a warning says so"
BOUNDED = "numbers have bounds here, above all use and below what overflows"
LATER = "vLLM refuses it too, where it looks at the model"
STRICTER = {
    "max_tokens": "at least one token, or -1 for the rest; vLLM refuses the others when the "
    "prompt has been rendered",
    "max_completion_tokens": "as max_tokens",
    "max_output_tokens": BOUNDED,
    "max_tool_calls": "OpenAI's least is 1",
    "allowed_token_ids": LATER,
    "stop_token_ids": LATER,
    "prompt_logprobs": LATER,
    "top_logprobs": LATER,
    "logprob_token_ids": LATER,
    "logprobs": LATER,
    "structured_outputs": LATER,
    "logit_bias": "beyond 100 vLLM cuts in silence; OpenAI refuses",
    "n": BOUNDED,
    "repetition_penalty": BOUNDED,
    "thinking_token_budget": BOUNDED,
    "top_k": BOUNDED,
    "request_id": "ids go into headers and logs: some characters, and at least one",
    "truncate_prompt_tokens": "no prompt would be left",
    "stop": "an empty stop string stops everything",
    "stop_sequences": "an empty stop string stops everything",
    "prompt": "an empty array is no prompt",
    "temperature": "vLLM lets Anthropic's bounds be found out by its sampler",
    "top_p": "as temperature",
}
LAXER = {
    "min_tokens": "cut to max_tokens",
    "stop": "16 strings may stop an answer here, by settings; vLLM's 4 are OpenAI's",
    "stop_sequences": "as stop",
    "top_p": "0 is OpenAI's least: greedy",
    "tools": "agents send an empty list",
    "max_tokens": "0 fills the cache only, -1 is the rest of the context: agents send both",
    "max_output_tokens": "-1 is the rest of the context",
    "prompt": "the empty text is a prompt where the tokenizer begins one",
    "model": "the one model that is served need not be named",
    "thinking": "a budget beyond max_tokens is cut: agents count on it",
    "include": "what is unknown is named in a warning",
    "session_id": NO_EFFECT,
    "user": NO_EFFECT,
    "stream_interval": NO_EFFECT,
    "prompt_cache_retention": NO_EFFECT,
}


def read(dialect: str) -> Any:
    """Return the dialect's reader, a minimal body, and an example of each parameter."""
    folder = str(Path(__file__).parents[4] / "docs")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("examples").DIALECTS[dialect]


def read_error(reading: Callable[[], object], kind: type[Exception]) -> str | None:
    try:
        reading()
    except kind as error:
        return str(error) or type(error).__name__
    return None


def vllms(model: Any, body: dict[str, Any]) -> str | None:
    """Return vLLM's error for the body, including those of its sampling parameters."""

    def reading() -> None:
        request = model.model_validate(body)
        if hasattr(request, "to_sampling_params"):
            request.to_sampling_params(10, {})

    # Some values make vLLM fail with an AttributeError or a TypeError, which is not
    # acceptance.
    return read_error(reading, Exception)


def differences(dialect: str) -> Iterator[tuple[str, Any, str | None, str | None]]:
    module, name = MODELS[dialect]
    model = getattr(import_module(module), name)
    known = read(dialect)
    for field in sorted(set(model.model_fields) - CONVERSATION):
        example = known.examples.get(field)
        beside = dict(example.beside) if hasattr(example, "beside") else {}
        for value in [*PROBES, *([] if example is None else [getattr(example, "value", example)])]:
            body = {**known.base, **beside, "model": "m", field: value}
            theirs = vllms(model, body)
            ours = read_error(
                lambda body=body: known.read(json.dumps(body).encode(), READING), RequestError
            )
            if (theirs is None) != (ours is None):
                yield field, value, theirs, ours


def is_explained(field: str, value: Any, theirs: str | None, ours: str | None) -> bool:
    if theirs is None and ours is not None:
        # Types are JSON's, as for OpenAI: "1" is not a number. Unsupported values are
        # rejected by name.
        return (
            ours.startswith("Invalid type for")
            or "is not supported here" in ours
            or field in STRICTER
        )
    # Every optional field may be null: clients send all of them.
    return value is None or field in LAXER


@pytest.mark.parametrize("dialect", MODELS)
def test_readers_accept_and_reject_like_vllm(dialect: str):
    with without_accelerator():
        found = [one for one in differences(dialect) if not is_explained(*one)]
    assert found == []


def test_documented_differences_from_vllm_exist():
    with without_accelerator():
        found = [(one[0], one[2] is None) for dialect in MODELS for one in differences(dialect)]
    assert set(STRICTER) <= {field for field, taken in found if taken}
    assert set(LAXER) <= {field for field, taken in found if not taken}
