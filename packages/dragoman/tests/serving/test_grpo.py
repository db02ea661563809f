"""A minimal trainer: candidates over HTTP, a policy gradient in torch, and new weights
for the server, repeatedly.

It relies on what every RL trainer needs: sampled ids are used without tokenizing text
again, and the logprobs are those of the weights that the response names.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from dragoman.engines import tiny
from dragoman.prompts.hf_tokenizer import load_tokenizer

from .test_vllm import post, serving

torch: Any = pytest.importorskip("torch", reason="needs torch (CPU)")
transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
safetensors: Any = pytest.importorskip("safetensors.torch", reason="needs safetensors")

pytestmark = pytest.mark.torch

STORY = [{"role": "user", "content": "Tell me a story."}]
STEPS = 6
CANDIDATES = 48
TOKENS = 12


def reward(ids: list[int]) -> float:
    """Return the reward: the share of even numbers."""
    return sum(id % 2 == 0 for id in ids) / len(ids)


class Trainer:
    """The embedded model in torch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = transformers.LlamaForCausalLM.from_pretrained(
            tiny.find_bundled_model(), dtype=torch.float32
        )
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1.5e-3)

    def logprobs(self, prompt: list[int], answers: list[list[int]]) -> Any:
        """Return the logprobs of each answer's tokens: [answers, tokens]. All answers
        have the same length.
        """
        ids = torch.tensor([prompt + answer for answer in answers])
        logits = self.model(ids).logits[:, len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(-1, ids[:, len(prompt) :, None])[..., 0]

    def step(self, prompt: list[int], answers: list[list[int]], sampled: Any) -> None:
        """Run a step of GRPO, whose advantage is relative to the group.

        sampled: [answers, tokens] logprobs of the server.
        """
        rewards = torch.tensor([reward(answer) for answer in answers])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        ratio = (self.logprobs(prompt, answers) - sampled).exp()
        loss = -torch.min(
            ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None]
        ).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def weights(self) -> bytes:
        """Return the weights as a safetensors file. The head is tied to the embedding."""
        state = self.model.state_dict()
        return safetensors.save(
            {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
        )


async def candidates(http: httpx2.AsyncClient, prompt: list[int], seed: int) -> tuple[Any, Any]:
    """Return the choices and the usage."""
    params = {
        "n": CANDIDATES,
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": seed,
        "logprobs": 0,
    }
    group = await post(
        http,
        "/inference/v1/generate",
        token_ids=prompt,
        sampling_params={**params, "ignore_eos": True},
    )
    return group["choices"], group["usage"]


async def push(http: httpx2.AsyncClient, weights: bytes, version: str) -> None:
    """Update the weights as trainers do: pause, replace, resume."""
    await http.post("/pause?mode=keep")
    headers = {"content-type": "application/octet-stream"}
    answer = await http.post(
        f"/update_weights?weight_version={version}", content=weights, headers=headers
    )
    assert answer.status_code == 200, answer.text
    await http.post("/resume")


@pytest.mark.parametrize("model", ["tiny", f"transformers:{tiny.find_bundled_model()}"])
async def test_grpo_training_with_weight_updates_increases_reward(model: str):
    trainer = Trainer()
    tokenizer = load_tokenizer(tiny.find_bundled_model())
    rewards: list[float] = []
    respelled = 0
    async with serving(model, dtype="float32") as http:
        prompt: list[int] = (await post(http, "/tokenize", messages=STORY))["tokens"]
        for step in range(STEPS):
            choices, usage = await candidates(http, prompt, seed=100 * step)
            answers = [choice["token_ids"] for choice in choices]
            rewards.append(sum(map(reward, answers)) / CANDIDATES)
            respelled += sum(
                tokenizer.encode(tokenizer.decode(ids), special=True) != ids for ids in answers
            )
            version = f"step-{step}" if step else "default"
            span = {"version": version, "start": 0, "end": TOKENS}
            assert all(choice["weight_versions"] == [span] for choice in choices)
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0, (
                "blocks of the old weights are not used"
            )
            logprobs = [
                [entry["logprob"] for entry in choice["logprobs"]["content"]] for choice in choices
            ]
            sampled = torch.tensor(logprobs)
            with torch.no_grad():
                assert torch.allclose(trainer.logprobs(prompt, answers), sampled, atol=1e-4)
            trainer.step(prompt, answers, sampled)
            await push(http, trainer.weights(), f"step-{step + 1}")
    assert respelled, (
        "tokenizing the texts again would give the same ids, so the test proves little"
    )
    # Means, not each step: the reward of 48 samples varies by two hundredths, and a
    # step of the trainer may overshoot. How far depends on the processor, whose kernels
    # decide the last bits of the gradients.
    assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.05, rewards
