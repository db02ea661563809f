"""Compilation of unbounded cost runs in a process that is killed at its limits."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Generator
from typing import Any

import pytest
from tests.constraints.conftest import EOS

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.constraints.json_schema import estimate_compile_cost, parse_schema
from dragoman.constraints.response_grammar import (
    CallForm,
    ConstraintGrammar,
    ToolCallRules,
    compose_grammar,
)
from dragoman.core.errors import Overloaded, RequestError
from dragoman.core.request import (
    AnyJsonObject,
    ContextFreeGrammar,
    JsonSchema,
    Regex,
    StringChoices,
)
from dragoman.core.syntax import FreeText, JsonPiece, LiteralText
from dragoman.isolation.worker_pool import WorkerLimits
from dragoman.prompts.hf_tokenizer import HfTokenizer

BOMB = ContextFreeGrammar(
    "start: A\nA: " + " & ".join(f"/(.{{{n}}})*/" for n in (7, 11, 13, 17, 19, 23))
)
"""2 million states: more than 25 s and 1 GB."""
ENDLESS = WorkerLimits(seconds=600.0)


@pytest.fixture
def bounded(embedded: HfTokenizer) -> Generator[BoundedCompiler]:
    # A busy machine may give a process its little time late.
    limits = WorkerLimits(seconds=0.2, clock_factor=1e6)
    compiler = BoundedCompiler(embedded, [embedded.special_tokens[EOS]], worker_limits=limits)
    yield compiler
    compiler.close()


@pytest.fixture
def endless(embedded: HfTokenizer) -> Generator[BoundedCompiler]:
    compiler = BoundedCompiler(embedded, [embedded.special_tokens[EOS]], worker_limits=ENDLESS)
    yield compiler
    compiler.close()


def is_alive(pid: int) -> bool:
    """Whether the process exists; a zombie counts too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def begin_compiling(compiler: BoundedCompiler) -> int:
    while not compiler.pool.pids:  # noqa: ASYNC110 - it happens in a thread
        await asyncio.sleep(0)
    return compiler.pool.pids[0]


async def wait_until_dead(pid: int) -> None:
    while is_alive(pid):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_bounded_compile_timeout_rejects_grammar_and_recovers(
    embedded: HfTokenizer, bounded: BoundedCompiler
) -> None:
    with pytest.raises(RequestError, match="too much time to compile") as caught:
        await bounded.compile(
            compose_grammar(embedded.special_tokens, body=BOMB, body_param="guided_grammar")
        )
    assert caught.value.param == "guided_grammar"
    compiled = await bounded.compile(compose_grammar(embedded.special_tokens, body=Regex("a+")))
    assert compiled.build_matcher().allows(embedded.encode("a", special=False)[0])


async def test_bounded_compile_memory_limit_rejects_grammar(embedded: HfTokenizer) -> None:
    limits = WorkerLimits(seconds=600.0, memory=24 * 1024 * 1024)
    compiler = BoundedCompiler(embedded, [embedded.special_tokens[EOS]], worker_limits=limits)
    with pytest.raises(RequestError, match="too much memory to compile"):
        await compiler.compile(compose_grammar(embedded.special_tokens, body=BOMB))
    compiler.close()


async def test_bounded_compile_does_not_retry_rejected_grammar(
    embedded: HfTokenizer, bounded: BoundedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = compose_grammar(embedded.special_tokens, body=BOMB)
    with pytest.raises(RequestError):
        await bounded.compile(grammar)

    async def fail(call: bytes, owner: str) -> bytes:
        raise AssertionError("it is tried again")

    monkeypatch.setattr(bounded.pool, "run", fail)
    with pytest.raises(RequestError, match="too much time"):
        await bounded.compile(grammar)


async def test_bounded_compile_shares_concurrent_equal_grammars(
    embedded: HfTokenizer, bounded: BoundedCompiler
) -> None:
    grammar = compose_grammar(embedded.special_tokens, body=Regex("a+b"))
    compiled = await asyncio.gather(*(bounded.compile(grammar) for _ in range(10)))
    assert all(each is compiled[0] for each in compiled)
    assert len(bounded.pool.pids) == 1


async def test_bounded_compile_cancel_of_last_waiter_kills_process(
    embedded: HfTokenizer, endless: BoundedCompiler
) -> None:
    grammar = compose_grammar(embedded.special_tokens, body=BOMB)
    first, second = (asyncio.create_task(endless.compile(grammar)) for _ in range(2))
    pid = await begin_compiling(endless)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert is_alive(pid)
    assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await wait_until_dead(pid)


async def test_bounded_compiler_close_aborts_running_and_queued(
    embedded: HfTokenizer, endless: BoundedCompiler
) -> None:
    waiting = [
        asyncio.create_task(endless.compile(ConstraintGrammar(BOMB.definition + f"  // {n}")))
        for n in range(9)
    ]
    pid = await begin_compiling(endless)
    endless.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 9
    await wait_until_dead(pid)


async def test_bounded_compiler_full_queue_raises_overloaded(embedded: HfTokenizer) -> None:
    limits = WorkerLimits(seconds=600.0, processes=1, queued=1)
    compiler = BoundedCompiler(embedded, [embedded.special_tokens[EOS]], worker_limits=limits)
    waiting = [
        asyncio.create_task(compiler.compile(ConstraintGrammar(BOMB.definition + f"  // {n}")))
        for n in range(2)
    ]
    await begin_compiling(compiler)
    with pytest.raises(Overloaded):
        await compiler.compile(ConstraintGrammar(BOMB.definition))
    compiler.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_cheap_grammar_bypasses_queue_of_costly_grammars(
    embedded: HfTokenizer, endless: BoundedCompiler
) -> None:
    bombs = [
        asyncio.create_task(endless.compile(ConstraintGrammar(BOMB.definition + f"  // {n}")))
        for n in range(60)
    ]
    await begin_compiling(endless)
    await endless.compile(
        compose_grammar(embedded.special_tokens, body=JsonSchema('{"type":"integer"}'))
    )
    assert not any(bomb.done() for bomb in bombs)
    endless.close()
    await asyncio.gather(*bombs, return_exceptions=True)


async def test_bounded_compile_serves_owners_in_turn(embedded: HfTokenizer) -> None:
    limits = WorkerLimits(seconds=60.0, processes=1)
    compiler = BoundedCompiler(embedded, [embedded.special_tokens[EOS]], worker_limits=limits)
    ended: list[str] = []

    async def compile(owner: str, number: int) -> None:
        pattern = Regex(f"[{owner}c]+d{{{number}}}")
        grammar = compose_grammar(embedded.special_tokens, body=pattern)
        await compiler.compile(grammar, owner)
        ended.append(owner)

    await asyncio.gather(*(compile("b", number) for number in range(1, 31)), compile("a", 1))
    # One job of b may run and one more may be next, in the trial and in the server.
    assert ended.index("a") <= 3
    compiler.close()


async def test_bounded_compile_invalid_grammar_reports_reason(
    embedded: HfTokenizer, bounded: BoundedCompiler
) -> None:
    with pytest.raises(RequestError, match="no answer can satisfy"):
        await bounded.compile(
            compose_grammar(
                embedded.special_tokens, body=ContextFreeGrammar("start: dead\ndead: dead")
            )
        )


@pytest.mark.parametrize("value", [9999991, 99991, 12345.678, 0.0012347])
def test_multiple_of_with_many_digits_is_rejected(value: float) -> None:
    with pytest.raises(RequestError, match=r"^multipleOf .* at most 10000") as caught:
        parse_schema(json.dumps({"type": "array", "items": {"multipleOf": value}}), "tools[0]")
    assert caught.value.param == "tools[0]"


@pytest.mark.parametrize("value", [1, 5, 0.01, 0.25, 3600, 86400, 9973, 1e6, 1e300])
def test_common_multiple_of_values_are_accepted(value: float) -> None:
    parse_schema(json.dumps({"multipleOf": value}), "x")


def test_multiple_of_in_all_of_is_limited_by_product() -> None:
    every: list[Any] = [{"multipleOf": 97}, {"multipleOf": 101}, {"multipleOf": 103}]
    parse_schema(json.dumps({"anyOf": every}), "x")
    with pytest.raises(RequestError, match="multipleOf"):
        parse_schema(json.dumps({"allOf": every}), "x")


@pytest.mark.parametrize("keyword", ["const", "default"])
@pytest.mark.parametrize("value", [True, 99_999])
def test_schema_values_are_not_parsed_as_schemas(keyword: str, value: Any) -> None:
    parse_schema(json.dumps({keyword: {"multipleOf": value}}), "x")


@pytest.mark.parametrize("reference", ["#/default", "#/d%65fault"])
def test_referenced_default_value_is_validated_as_schema(reference: str) -> None:
    with pytest.raises(RequestError, match="multipleOf"):
        parse_schema(
            json.dumps({"items": {"$ref": reference}, "default": {"multipleOf": 99_999}}), "x"
        )


def test_property_named_like_keyword_is_validated_as_schema() -> None:
    with pytest.raises(RequestError, match="multipleOf"):
        parse_schema(json.dumps({"properties": {"default": {"multipleOf": 99_999}}}), "x")


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 101},
        {"pattern": "a"},
        {"allOf": [{"minimum": 1}, {"maximum": 2}]},
        {"type": "string", "format": "uri", "maxLength": 9},
        {"patternProperties": {"a": True}},
        {"properties": {"a": {"items": {"propertyNames": {"pattern": "a"}}}}},
        {"anyOf": [{"$ref": "#/$defs/a", "type": "string"}], "$defs": {"a": True}},
        {"$defs": {"a": {"pattern": "a"}}, "$ref": "#/$defs/a"},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [{"pattern": "a{1,1000}b"}],
        },
        {"properties": {"a": {"$ref": "#/examples/0"}}, "examples": [{"pattern": "a{1,1000}b"}]},
    ],
)
def test_costly_schema_requires_trial_compile(embedded: HfTokenizer, schema: Any) -> None:
    assert estimate_compile_cost(schema).costly
    assert not compose_grammar(
        embedded.special_tokens, body=JsonSchema(json.dumps(schema))
    ).is_cheap


def test_patterns_grammars_and_large_schemas_require_trial(embedded: HfTokenizer) -> None:
    great = {"enum": list(range(3000))}
    bodies = [Regex("a"), ContextFreeGrammar("start: /a/"), JsonSchema(json.dumps(great))]
    assert not any(compose_grammar(embedded.special_tokens, body=body).is_cheap for body in bodies)
    for text in (FreeText(pattern="a+", end="|"), FreeText(max_length=5, end="|")):
        calls = ToolCallRules((CallForm((LiteralText("<"), text)),))
        assert not compose_grammar(embedded.special_tokens, calls=calls).is_cheap


def test_ordinary_schema_compiles_without_trial(embedded: HfTokenizer) -> None:
    member = {"type": "string", "description": "pattern", "enum": ["allOf", "multipleOf"]}
    schema = {
        "type": "object",
        "properties": {
            "pattern": member,
            "n": {"type": "integer", "minimum": 1},
            "when": {"format": "date-time"},
        },
        "required": ["pattern"],
    }
    assert compose_grammar(embedded.special_tokens, body=JsonSchema(json.dumps(schema))).is_cheap
    assert compose_grammar(embedded.special_tokens, body=AnyJsonObject()).is_cheap
    assert compose_grammar(embedded.special_tokens, body=StringChoices(("a", "b"))).is_cheap
    calls = ToolCallRules(
        (CallForm((LiteralText("<"), JsonPiece(json.dumps(schema)), LiteralText(">"))),)
    )
    assert compose_grammar(embedded.special_tokens, calls=calls).is_cheap
