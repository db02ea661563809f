"""Engines declare supported parameters by name, so that a new request field is not
claimed before it works.
"""

from __future__ import annotations

import ast

import msgspec
import pytest
from tests.engine.serving import twin
from tests.engines.rollout.executors import Dice

from dragoman.core.capabilities import Capabilities
from dragoman.core.request import Extras, GenerationLimits, SamplingOptions
from dragoman.engines import batching
from dragoman.engines.base_engine import CONSTRAINED_TOKEN_CAPABILITIES
from dragoman.engines.llamacpp import engine as llamacpp
from dragoman.engines.rollout_engine import RolloutEngine
from dragoman.engines.rollout_executor import RolloutSampling
from dragoman.engines.scripted.engine import PARAMETERS
from dragoman.engines.upstream.server_kinds import KINDS

from .code_metrics import ROOT

REQUEST_STRUCTS = (SamplingOptions, GenerationLimits, Extras)
REQUEST_FIELDS = {name for struct in REQUEST_STRUCTS for name in struct.__struct_fields__}
PROMPT_PARAMETERS = {
    "add_special_tokens",
    "best_of",
    "cache_salt",
    "chat_template_kwargs",
    "continue_final_message",
    "detail",
    "documents",
    "enable_thinking",
    "priority",
    "reasoning_effort",
    "schema_description",
    "skip_special_tokens",
}
"""Parameters that only engines that render prompts themselves declare."""


class ClaimsEverything(Dice):
    """An executor that declares every parameter."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(parameters=frozenset(REQUEST_FIELDS))


def find_derived_names(source: str) -> list[str]:
    """Return the request's structs whose fields the source iterates over."""
    structs = {struct.__name__ for struct in REQUEST_STRUCTS}
    names = list[str]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name(name), "__struct_fields__" | "__annotations__"):
                names.append(name)
            case ast.Call(ast.Attribute(_, "fields" | "get_type_hints"), [ast.Name(name), *_]):
                names.append(name)
            case _:
                pass
    return [name for name in names if name in structs]


def test_engines_do_not_derive_parameters_from_struct_fields() -> None:
    files = sorted(ROOT.glob("packages/*/src/*/engine*/**/*.py"))
    assert files
    assert {
        str(file): names for file in files if (names := find_derived_names(file.read_text()))
    } == {}


@pytest.mark.parametrize(
    "source", ["frozenset(SamplingOptions.__struct_fields__)", "msgspec.structs.fields(Extras)"]
)
def test_find_derived_names_detects_derived_declaration(source: str) -> None:
    assert len(find_derived_names(source)) == 1


async def test_declared_parameters_exist_in_request() -> None:
    async with twin() as simulated:
        simulator = simulated.engine.capabilities
    declared = {
        "batching": batching.build_capabilities(100, lora=True).parameters,
        "base": CONSTRAINED_TOKEN_CAPABILITIES.parameters,
        "llamacpp": llamacpp.build_capabilities(100).parameters,
        "rollout": RolloutEngine(
            ClaimsEverything(), vocab=100, max_model_len=100
        ).capabilities.parameters,
        "scripted": PARAMETERS,
        "simulator": simulator.parameters,
        **{f"upstream: {name}": kind.parameters for name, kind in KINDS.items()},
    }
    unknown = {
        engine: names - REQUEST_FIELDS - PROMPT_PARAMETERS for engine, names in declared.items()
    }
    assert {engine: names for engine, names in unknown.items() if names} == {}


def test_executor_receives_every_declarable_parameter() -> None:
    honoured = RolloutEngine(
        ClaimsEverything(), vocab=100, max_model_len=100
    ).capabilities.parameters
    passed = {field.name for field in msgspec.structs.fields(RolloutSampling)}
    assert honoured - passed == {"ignore_eos", "truncate_prompt"}, "these two are the pipeline's"
