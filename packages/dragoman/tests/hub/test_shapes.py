"""Each layout of repository is served after its download was killed and resumed, and
again without a request.

The weights are those of the embedded model, or random; llama.cpp loads the GGUF files
if it is installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.hub.processes import find_partial_files, kill_during_download, serve
from tests.hub.shapes import (
    ENCODER,
    GGUF,
    LORA,
    SHARDED,
    SINGLE,
    SPLIT,
    read_safetensors,
    write_safetensors,
)
from tests.hub.stub import HubStub

from dragoman.engines import tiny
from tests.pictures import data_url, png

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL of POSIX")

Ask = Callable[[httpx2.Client], object]


def ask_about_japan(client: httpx2.Client) -> object:
    message = {"role": "user", "content": "What is the capital of Japan?"}
    body = {"messages": [message], "max_tokens": 12, "temperature": 0}
    content = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"][
        "content"
    ]
    assert content == "The capital of Japan is Tokyo."
    return content


def embed(client: httpx2.Client) -> object:
    return client.post("/v1/embeddings", json={"input": "the cat sat"}).json()["data"][0][
        "embedding"
    ]


def check_shape(hub: HubStub, folder: Path, ask: Ask, *arguments: str) -> str:
    """Kill the download, resume it, and serve the model offline; return the log of the
    second start.
    """
    partial = kill_during_download(
        hub, folder, "serve", *arguments, "--port", "0", "--store", "none"
    )
    assert partial
    with serve(hub, folder, *arguments) as (client, _):
        first = ask(client)
    ranges = [
        requested for _, path, requested in hub.requests if path.startswith("/cdn/") and requested
    ]
    assert sorted(ranges) == sorted(f"bytes={size}-" for size in partial.values())
    assert not find_partial_files(folder)
    hub.requests.clear()
    with serve(hub, folder, *arguments) as (client, logged):
        assert ask(client) == first
    assert hub.requests == []
    return "\n".join(logged)


@pytest.mark.parametrize(
    ("ask", "arguments"),
    [
        pytest.param(ask_about_japan, (f"tiny:{SINGLE}",), marks=pytest.mark.long),
        (ask_about_japan, (f"tiny:{SHARDED}",)),
        (embed, (f"encoder:{ENCODER}",)),
    ],
)
def test_safetensors_are_served_by_built_in_engines(
    hub: HubStub, tmp_path: Path, ask: Ask, arguments: tuple[str, ...]
):
    logged = check_shape(hub, tmp_path / "served", ask, *arguments)
    assert f"loading commit {hub.repositories[arguments[0].partition(':')[2]].commit}" in logged


def test_adapter_is_served_with_base_model(hub: HubStub, tmp_path: Path):
    def ask(client: httpx2.Client) -> object:
        listed = client.get("/v1/models").json()["data"][1]
        answer = client.post(
            "/v1/chat/completions", json={"model": "small", "messages": [], "prompt": "x"}
        )
        assert answer.status_code == 400
        return listed["id"], Path(listed["root"]).name

    check_shape(
        hub,
        tmp_path / "served",
        ask,
        "sim",
        "--lora-modules",
        f"small={LORA}",
        "--tokenizer",
        SINGLE,
    )


def _read(*files: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.llamacpp
def test_gguf_files_are_served_by_llamacpp(hub: HubStub, tmp_path: Path):
    for module in ("xllamacpp", "gguf"):
        pytest.importorskip(module, reason=f"needs {module}")
    from tests.engines.llamacpp.files import write_embedded

    written = write_embedded(tmp_path / "small-Q4_K_M.gguf")
    hub.repositories[GGUF].files |= _read(written)
    logged = check_shape(hub, tmp_path / "single", ask_about_japan, GGUF, "--max-model-len", "512")
    assert "with the engine llamacpp: it is a GGUF file" in logged
    assert "quantization Q4_K_M, 1,967,808 parameters, " in logged


@pytest.mark.llamacpp
def test_split_gguf_files_are_served_with_projector(hub: HubStub, tmp_path: Path):
    for module in ("xllamacpp", "gguf"):
        pytest.importorskip(module, reason=f"needs {module}")
    from tests.engines.llamacpp.files import write_embedded, write_projector

    (tmp_path / "Q8_0").mkdir()
    write_embedded(tmp_path / "Q8_0" / "split-Q8_0.gguf", split=20)
    parts = {f"Q8_0/{file.name}": file.read_bytes() for file in (tmp_path / "Q8_0").glob("*.gguf")}
    assert len(parts) > 1
    projector = write_projector(tmp_path / "mmproj-split-F16.gguf")
    hub.repositories[SPLIT].files = {**parts, **_read(projector)}

    def ask(client: httpx2.Client) -> object:
        (model,) = client.get("/v1/models").json()["data"]
        assert model["architecture"]["input_modalities"] == ["text", "image"]
        image = {"type": "image_url", "image_url": {"url": data_url(png(16, 16, (255, 0, 0)))}}
        message = {"role": "user", "content": [image, {"type": "text", "text": "Hello"}]}
        body = {"messages": [message], "max_tokens": 4, "temperature": 0, "model": f"{SPLIT}:q8_0"}
        seen = client.post("/v1/chat/completions", json=body)
        assert seen.status_code == 200, seen.text
        return ask_about_japan(client), seen.json()["choices"][0]["message"]["content"]

    arguments = (f"{SPLIT}:q8_0", "--max-model-len", "512", "--dtype", "float32")
    check_shape(hub, tmp_path / "split", ask, *arguments)


def _write_adapter(rank: int = 2) -> dict[str, bytes]:
    """Write an adapter of the embedded model in PEFT's format, whose weights change the
    answers.
    """
    config = json.loads((tiny.find_bundled_model() / "config.json").read_text())
    weights = read_safetensors((tiny.find_bundled_model() / "model.safetensors").read_bytes())
    random = np.random.default_rng(3)
    tensors: dict[str, tuple[dict[str, Any], bytes]] = {}
    for layer in range(config["num_hidden_layers"]):
        module = f"model.layers.{layer}.self_attn.q_proj"
        n_out, n_in = weights[f"{module}.weight"][0]["shape"]
        for name, shape in (("lora_A", [rank, n_in]), ("lora_B", [n_out, rank])):
            values = random.standard_normal(shape).astype(np.float32)
            tensors[f"base_model.model.{module}.{name}.weight"] = (
                {"dtype": "F32", "shape": shape},
                values.tobytes(),
            )
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
    }
    return {
        "adapter_config.json": json.dumps(adapter).encode(),
        "adapter_model.safetensors": write_safetensors(tensors),
    }


@pytest.mark.torch
@pytest.mark.parametrize("model", [SINGLE, SHARDED])
def test_safetensors_are_served_by_transformers(hub: HubStub, tmp_path: Path, model: str):
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"needs {module}")
    logged = check_shape(
        hub, tmp_path / "served", ask_about_japan, model, "--device", "cpu", "--dtype", "float32"
    )
    assert "with the engine transformers: torch and transformers are installed" in logged


@pytest.mark.mlx
def test_safetensors_are_served_by_mlx(hub: HubStub, tmp_path: Path):
    pytest.importorskip("mlx_lm", reason="needs mlx-lm")
    logged = check_shape(
        hub, tmp_path / "served", ask_about_japan, f"mlx:{SHARDED}", "--dtype", "float32"
    )
    assert "with the engine mlx: MODEL names it" in logged


@pytest.mark.torch
def test_encoder_with_torch_installed_uses_built_in_engine(hub: HubStub, tmp_path: Path):
    pytest.importorskip("torch", reason="needs torch")
    assert "with the engine encoder: BertModel generates no text" in check_shape(
        hub, tmp_path / "a", embed, ENCODER
    )


@pytest.mark.torch
def test_adapter_from_hub_changes_responses(hub: HubStub, tmp_path: Path):
    for module in ("torch", "transformers", "peft"):
        pytest.importorskip(module, reason=f"needs {module}")
    hub.repositories[LORA].files = _write_adapter()

    def ask(client: httpx2.Client) -> object:
        message = {"role": "user", "content": "What is the capital of Japan?"}
        body = {"model": "small", "messages": [message], "max_tokens": 12, "temperature": 0}
        adapted = client.post("/v1/chat/completions", json=body).json()
        assert adapted["model"] == "small"
        body["model"] = SINGLE
        plain = client.post("/v1/chat/completions", json=body).json()
        assert plain["choices"][0]["message"] != adapted["choices"][0]["message"]
        return adapted["choices"][0]["message"]["content"]

    check_shape(
        hub, tmp_path / "a", ask, SINGLE, "--lora-modules", f"small={LORA}", "--device", "cpu"
    )
