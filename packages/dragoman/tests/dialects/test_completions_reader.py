"""Fields of a Completions body that Chat Completions does not have are parsed."""

from __future__ import annotations

import pytest

from dragoman.core.errors import Unsupported
from dragoman.core.request import GenerationLimits, Regex
from dragoman.dialects.completions.wire import COMPLETIONS
from dragoman.dialects.interfaces import ReaderOptions

from .bodies import OPTIONS, VLLM, completions, completions_refusal, completions_request


def prompts(prompt: object) -> tuple[object, ...]:
    return tuple(request.prompt for request in completions(prompt=prompt).requests)


def test_prompt_accepts_four_forms():
    assert prompts("a") == ("a",)
    assert prompts(["a", "b"]) == ("a", "b")
    assert prompts([1, 2]) == ((1, 2),)
    assert prompts([[1, 2], [3]]) == ((1, 2), (3,))


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        [[]],
        [[1], []],
        ["a", 1],
        ["a", [1]],
        [1, [1]],
        [True],
        [1.5],
        [-1],
        [2**31],
        {"a": 1},
        3,
    ],
)
def test_invalid_prompt_is_rejected(prompt: object):
    assert str(completions_refusal(prompt=prompt).param).startswith("prompt")


def test_prompt_count_is_limited():
    assert len(completions(prompt=["x"] * 2_048).requests) == 2_048
    assert completions_refusal(prompt=["x"] * 2_049).param == "prompt"
    assert completions_refusal(prompt=["x"] * 2_000, n=100).param == "n"
    assert len(prompts([7] * 5_000)) == 1


def test_max_tokens_defaults_to_16():
    assert completions_request().limits == GenerationLimits(max_tokens=16)
    assert completions_request(max_tokens=None).limits.max_tokens == 16
    assert completions_request(max_tokens=-1).limits.max_tokens is None


def test_max_tokens_zero_requires_echo_or_prompt_logprobs():
    assert completions_request(max_tokens=0, echo=True).limits.max_tokens == 0
    assert completions_request(max_tokens=0, prompt_logprobs=1).limits.max_tokens == 0
    assert completions_refusal(max_tokens=0).param == "max_tokens"


def test_echo_with_logprobs_sets_prompt_logprobs():
    request = completions_request(echo=True, logprobs=1)
    assert (request.return_prompt, request.logprobs, request.prompt_logprobs) == (True, 1, 1)
    assert completions_request(logprobs=1).prompt_logprobs is None
    assert completions_request(echo=True, logprobs=1, prompt_logprobs=3).prompt_logprobs == 3


def test_logprobs_limit_depends_on_profile():
    assert completions_request(logprobs=5).logprobs == 5
    assert completions_refusal(OPTIONS, logprobs=6).param == "logprobs"
    assert completions(VLLM, logprobs=20).requests[0].logprobs == 20
    assert isinstance(completions_refusal(VLLM, logprobs=-1), Unsupported)
    assert completions_refusal(logprobs=True).param == "logprobs"


def test_best_of_is_parsed_and_validated():
    assert completions_request(n=2, best_of=3).best_of == 3
    assert completions_request(best_of=0).best_of is None
    assert completions_refusal(n=3, best_of=2).param == "best_of"
    assert completions_refusal(best_of=21).param == "best_of"
    assert completions_refusal(best_of=2, stream=True).param == "best_of"
    assert completions(n=2, best_of=2, stream=True).stream


def test_suffix_is_part_of_request_unless_empty():
    assert completions_request(suffix="x").suffix == "x"
    assert completions_request(suffix="").suffix is None


def test_add_special_tokens_defaults_to_true():
    assert completions_request().add_special_tokens
    assert not completions_request(add_special_tokens=False).add_special_tokens


def test_constraints_match_chat():
    assert completions_request(guided_regex="a+").constraint == Regex("a+")


def test_null_optional_fields_equal_absent_fields():
    nulls = {row.name: None for row in COMPLETIONS.rows if row.name != "prompt"}
    assert completions(**nulls).requests == completions().requests
    assert completions(**nulls).warnings == ()


def test_missing_model_without_default_is_rejected():
    assert completions_refusal(ReaderOptions()).param == "model"
