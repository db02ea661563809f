"""Checks of sampling parameters by what they do to an answer: seed, temperature, top_p,
top_k, penalties.

The model is unknown, so answers are compared only with other answers to the same
prompt. A rule is skipped if a server that ignores the parameter could not be told from
one that honours it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import CHAT, DIALECTS, Dialect
from ..rules.json_values import JsonObject, Violation, require
from ..session import Session
from .generation import AREAS, STORY

Send = Callable[[Session, str, int, JsonObject, str | None], Awaitable[str]]
"""Sends a prompt with a token limit, sampling parameters and the feature that a server
may reject, and returns the text of the answer.
"""
NARROW = "`{name}` so low that it leaves one token makes an answer greedy at any temperature."
CAPITAL = re.compile("(?=[A-Z])")
PENALTY = "`{name}` makes repetition rarer if it is high, and more frequent if it is low."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """How one API takes sampling parameters.

    send: see `Send`.
    hot: a temperature at which answers differ; the highest that the API allows.
    seed: name of the seed; None if the API has none.
    narrow: parameters that leave one token to choose from.
    penalties: parameter -> values that make repetition rarer, and more frequent.
    """

    area: Area
    send: Send
    hot: float
    seed: str | None = None
    narrow: Mapping[str, float]
    penalties: Mapping[str, tuple[float, float]]

    async def ask(
        self,
        s: Session,
        temperature: float,
        seed: int,
        feature: str | None = None,
        limit: int = 16,
        prompt: str = STORY,
        fields: Mapping[str, float] | None = None,
    ) -> str:
        seeds: JsonObject = {} if self.seed is None else {self.seed: seed}
        return await self.send(
            s, prompt, limit, {"temperature": temperature, **seeds, **(fields or {})}, feature
        )


def build_send(d: Dialect) -> Send:
    async def send(
        s: Session, prompt: str, limit: int, fields: JsonObject, feature: str | None
    ) -> str:
        more: JsonObject = {"options": {d.limit: limit, **fields}} if d.is_ollama else fields
        body = {**d.build_request(s.model, prompt, limit), **more}
        answer = d.read((await s.request(d.path, body, feature=feature)).json())
        return answer.reasoning + answer.text

    return send


OPENAI_PENALTIES = {"frequency_penalty": (2.0, -2.0), "presence_penalty": (2.0, -2.0)}
NARROW_OF = {"messages": {"top_p": 0.0001, "top_k": 1}, "responses": {"top_p": 0.0001}}
SAMPLERS = tuple(
    Sampler(
        area=AREAS[d.name],
        send=build_send(d),
        hot=1.0 if d.name == "messages" else 2.0,
        seed=None if d.name in NARROW_OF else "seed",
        narrow=NARROW_OF.get(d.name, {"top_p": 0.0001, **({"top_k": 1} if d.is_ollama else {})}),
        penalties={} if d.name in NARROW_OF else OPENAI_PENALTIES,
    )
    for d in DIALECTS
)


async def share_samples(s: Session, sampler: Sampler) -> list[str]:
    """Return answers at a high temperature with the seeds 1, 1, 2 and 3."""

    async def sample() -> list[str]:
        return [await sampler.ask(s, sampler.hot, seed, "temperature") for seed in (1, 1, 2, 3)]

    return await s.share(f"{sampler.area.name}.samples", sample)


async def share_greedy(s: Session, sampler: Sampler) -> str:
    """Return the greedy answer. Raises Skipped if it is not the same for each seed."""

    async def sample() -> str:
        answers = {await sampler.ask(s, 0, seed) for seed in (1, 2, 3)}
        if len(answers) > 1:
            raise Skipped("cannot tell: greedy answers differ")
        return answers.pop()

    if sampler.seed is None and "chat" in s.claims:
        # An API without a seed cannot show that greedy answers do not depend on it.
        await share_greedy(s, SAMPLERS[0])
    return await s.share(f"{sampler.area.name}.greedy", sample)


async def require_varied_samples(s: Session, sampler: Sampler, greedy: str) -> None:
    """Raises Skipped if answers at a high temperature do not differ from the greedy
    one.
    """
    if set(await share_samples(s, sampler)) == {greedy}:
        raise Skipped("cannot tell: answers at a high temperature are the greedy one")


async def check_temperature(s: Session, sampler: Sampler) -> None:
    answers = await share_samples(s, sampler)
    if "llamacpp" in s.claims and len(set(answers)) == 1:
        raise Skipped("cannot tell: llama.cpp drops unlikely tokens before the temperature")
    if sampler.hot < 2 and len(set(answers)) == 1:
        raise Skipped("cannot tell: a model that is certain has the same answer each time")
    if len(set(answers)) == 1:
        other = await sampler.ask(s, 0, 1, prompt="Name three rivers of Asia.")
        if other == answers[0]:
            raise Skipped("cannot tell: the answer does not depend on the prompt")
    require(len(set(answers[1:])) > 1, f"three answers at temperature {sampler.hot}: {answers[1:]}")


async def check_seed(s: Session, sampler: Sampler) -> None:
    first, second, *_ = await share_samples(s, sampler)
    require(first == second, f"two answers with the same seed: {first!r}, {second!r}")


async def check_narrow(s: Session, sampler: Sampler, name: str, value: float) -> None:
    greedy = await share_greedy(s, sampler)
    await require_varied_samples(s, sampler, greedy)
    answers = [
        await sampler.ask(s, sampler.hot, seed, name, fields={name: value}) for seed in (1, 2, 3)
    ]
    require(
        set(answers) == {greedy}, f"with {name} {value}: {answers}, the greedy answer: {greedy!r}"
    )


def measure_variety(text: str) -> float:
    """Return the share of different sequences of three letters in a text."""
    parts = [text[i : i + 3] for i in range(len(text) - 2)]
    return len(set(parts)) / len(parts) if parts else 0.0


async def check_penalty(
    s: Session, sampler: Sampler, name: str, rarer: float, more_frequent: float
) -> None:
    greedy = await share_greedy(s, sampler)
    plain, varied, repeated = [
        await sampler.ask(s, 0, 1, name, limit=40, fields=fields)
        for fields in ({}, {name: rarer}, {name: more_frequent})
    ]
    if len(repeated) < 30:
        raise Skipped(f"cannot tell: the answer is short: {repeated!r}")
    if plain == varied == repeated:
        await require_varied_samples(s, sampler, greedy)
        raise Violation(f"{name} {rarer} and {more_frequent} change nothing: {plain!r}")
    require(
        measure_variety(varied) > measure_variety(repeated),
        f"{name} {rarer} repeats more than {more_frequent}: {varied!r} and {repeated!r}",
    )


SamplerCheck = Callable[..., Awaitable[None]]


def bind(run: SamplerCheck, *arguments: object) -> Callable[[Session], Awaitable[None]]:
    return lambda s: run(s, *arguments)


def add_sampling(sampler: Sampler) -> None:
    """Add the checks of all parameters of an API to its area."""
    sampler.area.add(
        "temperature",
        "At the highest temperature, repeated requests have different answers.",
        bind(check_temperature, sampler),
    )
    if sampler.seed is not None:
        sampler.area.add(
            "seed",
            "At the highest temperature, the same seed gives the same answer.",
            bind(check_seed, sampler),
            level="should",
        )
    add_effects(sampler)


def add_effects(sampler: Sampler) -> None:
    """Add the checks of parameters that narrow the choice, and of penalties."""
    for name, value in sampler.narrow.items():
        sampler.area.add(
            f"effect-of-{CAPITAL.sub('-', name).replace('_', '-').lower()}",
            NARROW.format(name=name),
            bind(check_narrow, sampler, name, value),
        )
    for name, values in sampler.penalties.items():
        sampler.area.add(
            f"effect-of-{CAPITAL.sub('-', name).replace('_', '-').lower()}",
            PENALTY.format(name=name),
            bind(check_penalty, sampler, name, *values),
        )


for each in SAMPLERS:
    add_sampling(each)
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh")


@AREAS["chat"].check("`reasoning_effort` is honoured, or rejected with an error that names it.")
async def reasoning_effort(s: Session) -> None:
    for level in LEVELS:
        body = CHAT.build_request(s.model, STORY, 8, reasoning_effort=level)
        exchange = await s.post(CHAT.path, body)
        is_named = exchange.status in (400, 422) and b"effort" in exchange.body
        require(
            exchange.status == 200 or is_named,
            f"{level}: status {exchange.status}: {exchange.message()}",
        )
