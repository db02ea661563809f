"""TRL's GRPOTrainer for 20 steps: the server's logprobs equal those that the trainer
computes with the weights that it sent last. In TRL's server mode with the module of
docs/rollout.md, and in a `rollout_func`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines import tiny

from ..docs.blocks import blocks
from .client_process import needs, run, serving

pytestmark = [
    pytest.mark.clients,
    needs("trl", "torch", "requests", "safetensors", "datasets", "accelerate"),
]

STEPS = 20
COMMON = """
import json, sys
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

address, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
torch.set_num_threads(1)
rewards, versions, differences = [], [], []


def prefer_even(completion_ids, **_):
    scores = [sum(id % 2 == 0 for id in ids) / len(ids) for ids in completion_ids]
    rewards.append(sum(scores) / len(scores))
    return scores


def train(rollout_func=None, **options):
    config = GRPOConfig(
        output_dir="out", use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        logging_steps=1, max_steps=steps, per_device_train_batch_size=16, num_generations=16,
        max_completion_length=8, learning_rate=5e-4, lr_scheduler_type="constant", beta=0.0,
        temperature=1.0, seed=1,
        model_init_kwargs={"dtype": "float32"}, **options,
    )
    data = Dataset.from_dict({"prompt": ["Tell me a story about a %d." % n for n in range(steps)]})
    trainer = GRPOTrainer(path, prefer_even, config, data, rollout_func=rollout_func)
    trainer.train()
    return trainer.state.log_history


def tell():
    print(json.dumps({"rewards": rewards, "versions": versions, "differences": differences}))
"""
SERVER_MODE = """
import trl_http_weights
from trl.generation import vllm_generation


class Recording(trl_http_weights.HttpWeightsClient):
    def _post(self, url, **options):
        answer = super()._post(url, **options)
        if url.endswith("/v1/completions"):
            spans = [span for choice in answer["choices"] for span in choice["weight_versions"]]
            versions.append([span["version"] for span in spans])
        return answer


vllm_generation.VLLMClient = Recording
history = train(
    use_vllm=True, vllm_mode="server", vllm_server_base_url=address,
    generation_kwargs={"return_weight_versions": True},
)
name = "sampling/sampling_logp_difference/max"
differences += [entry[name] for entry in history if name in entry]
tell()
"""
ROLLOUT_FUNC = """
import requests, safetensors.torch


def roll_out(prompts, trainer):
    tensors = trainer.model.state_dict()
    state = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    url = f"{address}/update_weights?weight_version=step-{len(versions) + 1}"
    headers = {"content-type": "application/octet-stream"}
    requests.post(url, data=safetensors.torch.save(state), headers=headers).raise_for_status()
    prompt = trainer.processing_class(prompts[0])["input_ids"]
    params = {"n": len(prompts), "max_tokens": 8, "temperature": 1.0, "logprobs": 0}
    body = {"token_ids": prompt, "sampling_params": params}
    choices = requests.post(f"{address}/inference/v1/generate", json=body).json()["choices"]
    answers = [choice["token_ids"] for choice in choices]
    told = [[entry["logprob"] for entry in choice["logprobs"]["content"]] for choice in choices]
    versions.append([span["version"] for choice in choices for span in choice["weight_versions"]])
    with torch.no_grad():
        for answer, scores in zip(answers, told):
            logits = trainer.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            own = logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]
            differences.append((own - torch.tensor(scores)).abs().max().item())
    return {"prompt_ids": [prompt] * len(prompts), "completion_ids": answers, "logprobs": told}


train(roll_out)
tell()
"""


def train(folder: Path, script: str, server: str) -> Any:
    """Run the training script against a server with these arguments, and return its
    report.
    """
    page = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()
    [module] = [block for block in blocks(page) if block.argument == "trl_http_weights.py"]
    (folder / module.argument).write_text(module.text)
    (folder / "train.py").write_text(COMMON + script)
    with serving(server, folder) as address:
        output = run(
            folder, sys.executable, "train.py", address, str(tiny.find_bundled_model()), str(STEPS)
        )
    return json.loads([line for line in output.splitlines() if line.startswith('{"rewards"')][-1])


def check(results: Any) -> None:
    assert len(results["rewards"]) == len(results["versions"]) == STEPS
    for step, versions in enumerate(results["versions"], 1):
        assert set(versions) == {f"step-{step}"}
    assert len(results["differences"]) >= STEPS
    assert max(results["differences"]) < 1e-4
    assert mean(results["rewards"][-5:]) > mean(results["rewards"][:5]) + 0.05, results["rewards"]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def test_grpo_server_mode_updates_weights_over_http(tmp_path: Path) -> None:
    check(train(tmp_path, SERVER_MODE, "tiny"))


def test_grpo_transformers_updates_weights_by_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "weights"
    shared.mkdir()
    monkeypatch.setenv("SHARED_WEIGHTS", str(shared))
    model = f"transformers:{tiny.find_bundled_model()} --dtype float32 --weights-dir {shared}"
    check(train(tmp_path, SERVER_MODE, model))


def test_grpo_rollout_func_sends_weights(tmp_path: Path) -> None:
    check(train(tmp_path, ROLLOUT_FUNC, "tiny"))


NCCL = """
import sys
from trl.generation import vllm_client

vllm_client.is_vllm_available = lambda: True
client = vllm_client.VLLMClient(base_url=sys.argv[1])
try:
    client.init_communicator("cpu")
except RuntimeError as error:
    print(error)
"""


def test_trl_nccl_weight_transfer_is_rejected_without_waiting(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(NCCL)
    with serving("tiny", tmp_path) as address:
        output = run(tmp_path, sys.executable, "train.py", address)
    assert "has no weight-transfer engine" in output
