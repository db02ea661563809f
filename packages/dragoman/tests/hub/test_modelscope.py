"""Models of ModelScope are downloaded by its own package from a stub."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from tests.hub.processes import serve, start
from tests.hub.shapes import GGUF, LORA, SHARDED, SINGLE, SPLIT
from tests.hub.stub import HubStub

pytest.importorskip("modelscope", reason="needs modelscope")


def ask(client: httpx2.Client) -> str:
    message = {"role": "user", "content": "What is the capital of Japan?"}
    body = {"messages": [message], "max_tokens": 12, "temperature": 0}
    return client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("model", [SINGLE, SHARDED])
def test_modelscope_model_is_served_and_restarts_offline(hub: HubStub, tmp_path: Path, model: str):
    arguments = (f"modelscope:{model}", "--device", "cpu")
    with serve(hub, tmp_path, *arguments) as (client, logged):
        assert ask(client) == "The capital of Japan is Tokyo."
        (listed,) = client.get("/v1/models").json()["data"]
        assert (listed["id"], listed["dragoman"]["revision"]) == (model, "master")
    assert any(f"{model}: downloading " in line for line in logged)
    assert hub.count(r"GET /api/v1/models/org/\w+/repo$") > 2
    assert hub.count(r"GET /org/") == 0
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".bin", ".py"))]
    hub.requests.clear()
    with serve(hub, tmp_path, *arguments) as (client, _):
        assert ask(client) == "The capital of Japan is Tokyo."
    assert hub.requests == []


@pytest.mark.parametrize(
    ("model", "files"),
    [
        (f"modelscope:{GGUF}:q8_0", {"small-Q8_0.gguf"}),
        (f"modelscope:{SPLIT}", {"split-Q4_K_M.gguf", "mmproj-split-F16.gguf"}),
        (f"modelscope:{LORA}", {"adapter_model.safetensors", "adapter_config.json"}),
    ],
)
def test_modelscope_pull_selects_same_files_as_hugging_face(
    hub: HubStub, tmp_path: Path, model: str, files: set[str]
):
    with start(hub, tmp_path, "pull", model) as process:
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "revision master (commit master)" in printed
    assert printed.endswith(f"{model}\n")
    found = {
        path.name: path.read_bytes()
        for path in (tmp_path / "modelscope").rglob("*")
        if path.is_file()
    }
    repository = hub.repositories[model.split(":")[1]]
    assert {
        name for name in found if name.endswith((".gguf", ".safetensors", "adapter_config.json"))
    } == files
    assert all(found[name] == repository.files[name] for name in files)


def test_modelscope_absent_model_prints_one_line_error(hub: HubStub, tmp_path: Path):
    with start(
        hub, tmp_path, "serve", "modelscope:org/absent", "--port", "0", "--store", "none"
    ) as process:
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (2, "")
    assert (
        "cannot serve modelscope:org/absent: org/absent cannot be downloaded from ModelScope ("
        in errors
    )
    assert "Traceback" not in errors
