"""Executors as trainers implement them, with a random generator as the model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dragoman.core.capabilities import Capabilities, Feature
from dragoman.core.weight_updates import Weights, WeightsInMemory
from dragoman.engines import tiny
from dragoman.engines.rollout_executor import Candidate, RolloutSampling
from dragoman.prompts.hf_tokenizer import load_tokenizer

WORDS = [
    load_tokenizer(tiny.find_bundled_model()).encode(word, special=False)[0]
    for word in (" the", " cat", " sat", " on", " a")
]


def generate_dice_tokens(prompt: Sequence[int], sampling: RolloutSampling, k: int) -> list[int]:
    """Return token ids of the requested length, which depend on the prompt and the
    seed.
    """
    seed = 0 if sampling.temperature == 0 else (sampling.seed or 0) + k
    dice = random.Random(f"{list(prompt)} {seed}")
    return [dice.choice(WORDS) for _ in range(sampling.max_tokens)]


class Dice:
    """An executor that implements and returns only what is required."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[tuple[int, ...]], int, RolloutSampling]] = []

    @property
    def tokenizer(self) -> str:
        return str(tiny.find_bundled_model())

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({Feature.LOGPROBS}), frozenset({"temperature", "seed"}))

    def generate(
        self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
    ) -> object:
        self.calls.append((list(prompts), n, sampling))
        return [[self.candidate(prompt, sampling, k) for k in range(n)] for prompt in prompts]

    def candidate(self, prompt: tuple[int, ...], sampling: RolloutSampling, k: int) -> Any:
        ids = generate_dice_tokens(prompt, sampling, k)
        return {"token_ids": ids, "logprobs": [-1.0] * len(ids) if sampling.logprobs else None}


class FullExecutor(Dice):
    """An executor with all optional methods, as coroutines."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_version = "zero"
        self.orders: list[str] = []

    async def generate(
        self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
    ) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().generate(prompts, n, sampling)

    def candidate(self, prompt: tuple[int, ...], sampling: RolloutSampling, k: int) -> Any:
        ids = tuple(generate_dice_tokens(prompt, sampling, k))
        return Candidate(ids, (-1.0,) * len(ids), "length", prompt_token_ids=prompt)

    async def update_weights(self, weights: Weights, version: str | None) -> None:
        if weights == WeightsInMemory((b"bad",)):
            raise ValueError("tensor `w` has another shape")
        self.weight_version = version or self.weight_version + "'"

    def pause(self) -> None:
        self.orders.append("pause")

    async def resume(self) -> None:
        self.orders.append("resume")
