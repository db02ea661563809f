"""What a model makes of the fields of requests is kept for equal fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.pipeline.test_prompt_run import SteppedEngine

from dragoman.core.capabilities import Capabilities
from dragoman.core.errors import Unsupported
from dragoman.core.message import FunctionTool
from dragoman.core.request import (
    Conversation,
    Extras,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    SamplingOptions,
)
from dragoman.launch import build_models
from dragoman.pipeline.admit import admit
from dragoman.pipeline.capability_checks import FieldSupport
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.request_plans import RequestPlan, RequestPlans, build_plan_key
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.testing.engine_under_test import build_conversation, build_terms

TERMS = build_terms()
REQUEST = GenerateRequest("m", build_conversation("Hello"), sampling=SamplingOptions(top_k=3))


def build_plan() -> RequestPlan:
    return RequestPlan(Capabilities(), FieldSupport(None, frozenset()), ())


def change_conversation(**changes: Any) -> Conversation:
    return msgspec.structs.replace(build_conversation("Hello"), **changes)


def test_plan_key_of_equal_fields_ignores_prompt_and_length() -> None:
    other = GenerateRequest(
        "m",
        build_conversation("Another prompt"),
        sampling=SamplingOptions(top_k=3),
        limits=GenerationLimits(max_tokens=9),
    )
    assert build_plan_key(other, TERMS) == build_plan_key(REQUEST, TERMS)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "Hello"},
        {"prompt": (1, 2)},
        {"prompt": change_conversation(tools=(FunctionTool("f"),))},
        {"prompt": change_conversation(reasoning=ReasoningOptions(budget=9))},
        {"sampling": SamplingOptions(top_k=4)},
        {"limits": GenerationLimits(stop=("x",))},
        {"limits": GenerationLimits(min_tokens=1)},
        {"constraint": JsonSchema("{}")},
        {"constraint_param": "text.format"},
        {"choices": 2},
        {"best_of": 2},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
        {"logprob_ids": (1,)},
        {"suffix": "x"},
        {"priority": 1},
        {"cache_salt": "x"},
        {"add_special_tokens": False},
        {"extras": Extras(lora="x")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_plan_key_of_other_fields_differs(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(REQUEST, **change)
    assert build_plan_key(other, TERMS) != build_plan_key(REQUEST, TERMS)


def test_plan_key_of_other_owner_differs() -> None:
    other = msgspec.structs.replace(TERMS, cache_salt="owner")
    assert build_plan_key(REQUEST, other) != build_plan_key(REQUEST, TERMS)


def test_plans_find_none_for_other_capabilities() -> None:
    plans = RequestPlans()
    plans.add("a", build_plan())
    assert plans.find("a", Capabilities(max_logprobs=1)) is None


@pytest.fixture(scope="module")
def tiny() -> ServedModel:
    return next(iter(build_models(Settings(), SystemClock())))


async def test_repeated_request_gets_same_warnings(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    model = replace(tiny, backend=replace(tiny.backend, engine=SteppedEngine()))
    for _ in range(2):
        run = await admit(model, [REQUEST], TERMS)
        assert run.warnings == ("top_k is ignored: this model's engine does not support it",)
        with pytest.raises(Unsupported, match="`top_k`"):
            await admit(model, [REQUEST], msgspec.structs.replace(TERMS, is_strict=True))


async def test_repeated_request_follows_changed_capabilities(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    engine = SteppedEngine()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    assert (await admit(model, [REQUEST], TERMS)).warnings
    engine.capabilities = Capabilities(parameters=frozenset({"top_k"}))
    run = await admit(model, [REQUEST], TERMS)
    assert run.warnings == ()
