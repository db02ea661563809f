"""TRL's VLLMClient, as its trainers use it: token ids in, token ids and logprobs out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .client_process import needs, run, serving

pytestmark = [pytest.mark.clients, needs("trl", "torch", "requests")]

SCRIPT = """
import json, sys
from trl.generation import vllm_client
from trl.generation.vllm_client import VLLMClient

# It requires vLLM for sending weights, which these tests do not do.
vllm_client.is_vllm_available = lambda: True
client = VLLMClient(base_url=sys.argv[1], connection_timeout=10)
out = {}
out["ids"] = client.generate([[5, 6, 7], [8, 9]], n=2, max_tokens=4, temperature=0.0, logprobs=2)
out["text"] = client.generate(["Count to 12."], max_tokens=4)
out["chat"] = client.chat([[{"role": "user", "content": "Count to 12."}]], max_tokens=4, logprobs=1)
out["features"] = client.generate([[5, 6, 7]], features=[None], max_tokens=4, temperature=0.0)
sequence = [5, 6, 7] + out["ids"]["completion_ids"][0]
out["scored"] = client.get_sequence_logprobs([sequence], [3], top_logprobs=2)
out["info"] = client.get_server_info()
out["world"] = client.get_world_size()
client.reset_prefix_cache()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("trl")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    with serving("tiny", folder) as address:
        return json.loads(run(folder, sys.executable, str(script), address).splitlines()[-1])


def test_trl_generate_returns_token_ids_and_logprobs_per_choice(results: Any):
    token_ids = results["ids"]
    assert token_ids["prompt_ids"] == [[5, 6, 7], [8, 9]]
    assert [len(ids) for ids in token_ids["completion_ids"]] == [4] * 4
    for ids, logprobs, named in zip(
        token_ids["completion_ids"],
        token_ids["logprobs"],
        token_ids["logprob_token_ids"],
        strict=True,
    ):
        assert len(logprobs) == len(named) == len(ids)
        assert all(id in names for id, names in zip(ids, named, strict=True))
        assert all(values == sorted(values, reverse=True) for values in logprobs)


def test_trl_text_and_chat_return_prompt_ids(results: Any):
    assert results["text"]["prompt_ids"][0]
    assert len(results["chat"]["prompt_ids"][0]) > len(results["text"]["prompt_ids"][0])
    assert len(results["chat"]["logprobs"][0]) == len(results["chat"]["completion_ids"][0])


def test_trl_generate_with_features_returns_equal_greedy_tokens(results: Any):
    assert results["features"]["completion_ids"] == results["ids"]["completion_ids"][:1]


def test_trl_scored_sequence_equals_generated_logprobs(results: Any):
    scored = [value for (value,) in results["scored"]["actual_logprobs"][0]]
    best = [max(values) for values in results["ids"]["logprobs"][0]]
    assert scored == pytest.approx(best, abs=1e-4)


def test_trl_server_info_reports_transfer_config_and_world_size(results: Any):
    assert results["info"]["weight_transfer_config"] is None
    assert results["world"] == 1
