"""lm-eval's two clients of local servers, on a task defined here: they read the output
of the model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .client_process import needs, run, serving

pytestmark = [pytest.mark.clients, needs("lm_eval", "datasets")]

ROWS = [
    {"question": "The capital of Japan is", "choices": ["Tokyo", "seven"], "answer": 0},
    {"question": "1, 2, 3, 4,", "choices": [" 5", " blue", " 99"], "answer": 0},
    {"question": "Hello! How", "choices": [" can I help you?", " purple"], "answer": 0},
]
CHOOSING = """task: choosing
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}]
"""
SAYING = """task: saying
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lm-eval")
    rows = directory / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, task in (("choosing", CHOOSING), ("saying", SAYING)):
        (directory / f"{name}.yaml").write_text(task.replace("ROWS", str(rows)))
    return directory


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving("tiny", folder) as where:
        yield where


def evaluate(
    folder: Path, client: str, task: str, *extra: str, **options: object
) -> list[dict[str, Any]]:
    """Run lm-eval and return the samples that it wrote."""
    out = folder / f"out-{client}-{task}"
    model_args = ",".join(f"{name}={value}" for name, value in options.items())
    command = [
        "-m",
        "lm_eval",
        "run",
        "--model",
        client,
        "--model_args",
        model_args,
        "--tasks",
        task,
    ]
    run(
        folder,
        sys.executable,
        *command,
        "--include_path",
        str(folder),
        "--output_path",
        str(out),
        "--log_samples",
        *extra,
    )
    (samples,) = out.rglob("samples_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


def likelihood(address: str, prompt: str, answer: str) -> float:
    """Compute the same by another route: the log-probability of the answer's tokens
    after the prompt.
    """

    def tokens(text: str) -> list[int]:
        return httpx2.post(
            f"{address}/tokenize",
            json={"prompt": text, "add_special_tokens": False},
            timeout=60,
        ).json()["tokens"]

    before = len(tokens(prompt))
    whole = tokens(prompt + answer)
    body = {"token_ids": whole, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}}
    scored = httpx2.post(f"{address}/inference/v1/generate", json=body, timeout=60)
    scores = scored.json()["prompt_logprobs"]
    return sum(
        score[str(id)]["logprob"] for score, id in zip(scores[before:], whole[before:], strict=True)
    )


def test_local_completions_scores_answers_by_echo_and_logprobs(folder: Path, address: str):
    url = f"{address}/v1/completions"
    options = {"model": "tiny", "base_url": url, "tokenizer_backend": "remote", "num_concurrent": 4}
    samples = evaluate(folder, "local-completions", "choosing", "--batch_size", "2", **options)
    assert len(samples) == len(ROWS)
    for sample in samples:
        prompt = sample["doc"]["question"]
        for answer, response in zip(
            sample["doc"]["choices"], sample["filtered_resps"], strict=True
        ):
            assert float(response[0]) == pytest.approx(
                likelihood(address, prompt, answer), abs=1e-5
            )


def test_local_chat_completions_output_equals_direct_request(folder: Path, address: str):
    url = f"{address}/v1/chat/completions"
    samples = evaluate(
        folder,
        "local-chat-completions",
        "saying",
        "--apply_chat_template",
        model="tiny",
        base_url=url,
        num_concurrent=2,
    )
    assert len(samples) == len(ROWS)
    for sample in samples:
        body = {
            "messages": [{"role": "user", "content": sample["doc"]["question"]}],
            "temperature": 0,
        }
        answer = httpx2.post(
            url, json={**body, "max_tokens": 8, "stop": ["\n"], "seed": 1234}, timeout=60
        ).json()
        assert sample["resps"][0][0] == answer["choices"][0]["message"]["content"]
