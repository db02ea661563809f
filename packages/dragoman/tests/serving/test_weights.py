"""A trainer's control requests over HTTP: pause, new weights, resume; and the weight
versions in responses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import pytest_asyncio
from tests.engines.tiny.models import write_tensors

from dragoman.core.errors import BodyTooLarge, RequestError
from dragoman.core.weight_updates import WeightsInMemory, WeightsOnDisk
from dragoman.engines import tiny
from dragoman.engines.safetensors_reader import Tensors
from dragoman.launch import build_models
from dragoman.pipeline.model_lifecycle import ModelSpec
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.routes.weights import WeightUploads
from dragoman.settings import Settings

from .test_metrics import read
from .test_vllm import post, serving

BINARY = {"content-type": "application/octet-stream"}
ASK: dict[str, Any] = {
    "token_ids": [5, 6, 7],
    "sampling_params": {"temperature": 0, "max_tokens": 8},
}


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the embedded model's tensors, all changed, in two files."""
    folder = tmp_path_factory.mktemp("weights") / "step-1"
    folder.mkdir()
    config = json.loads((tiny.find_bundled_model() / "config.json").read_text())
    hidden = config["hidden_size"]
    wide = config["intermediate_size"]
    vocab = config["vocab_size"]
    heads = config["num_attention_heads"]
    kv = config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (heads * width, hidden),
                "self_attn.k_proj": (kv * width, hidden),
                "self_attn.v_proj": (kv * width, hidden),
                "self_attn.o_proj": (hidden, heads * width),
                "mlp.gate_proj": (wide, hidden),
                "mlp.up_proj": (wide, hidden),
                "mlp.down_proj": (hidden, wide),
            }.items()
        }
    old = Tensors(tiny.find_bundled_model())
    rng = np.random.default_rng(0)
    tensors = {
        name: old.take(name, *shape) + rng.standard_normal(shape, np.float32) * 0.3
        for name, shape in shapes.items()
    }
    names = sorted(tensors)
    write_tensors(folder / "a.safetensors", {name: tensors[name] for name in names[:5]})
    write_tensors(folder / "b.safetensors", {name: tensors[name] for name in names[5:]})
    return folder


@pytest_asyncio.fixture
async def http(other: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(weights_dir=str(other.parent)) as client:
        yield client


async def generate(http: httpx2.AsyncClient) -> tuple[list[int], list[str]]:
    """Return the tokens, and the versions of the weights that sampled them."""
    (choice,) = (await post(http, "/inference/v1/generate", **ASK))["choices"]
    spans = choice["weight_versions"]
    assert [spans[0]["start"], spans[-1]["end"]] == [0, len(choice["token_ids"])]
    return choice["token_ids"], [span["version"] for span in spans]


async def test_update_weights_from_disk_sets_weight_version(http: httpx2.AsyncClient):
    before, versions = await generate(http)
    assert versions == ["default"]
    update = {"update_info": {"path": "step-1"}, "weight_version": "one"}
    assert await post(http, "/update_weights", **update) == {
        "message": "Weights updated",
        "weight_version": "one",
    }
    assert (await http.get("/weight_info")).json() == {"weight_version": "one"}
    after, versions = await generate(http)
    assert (versions, after == before) == (["one"], False)


async def test_update_weights_in_parts_applied_on_finish(http: httpx2.AsyncClient, other: Path):
    """As vLLM's own client: start, several updates, finish."""
    before, _ = await generate(http)
    await post(http, "/init_weight_transfer_engine", init_info={})
    assert (await http.post("/start_weight_update")).status_code == 200
    for name in ("a", "b"):
        data = (other / f"{name}.safetensors").read_bytes()
        assert (await http.post("/update_weights", content=data, headers=BINARY)).status_code == 200
        assert (await generate(http))[0] == before
    done = await post(http, "/finish_weight_update", weight_version="two")
    assert done["weight_version"] == "two"
    assert (await generate(http))[1] == ["two"]
    assert (await http.post("/finish_weight_update")).status_code == 409
    await http.post("/start_weight_update")
    assert (await http.post("/shutdown_weight_transfer_engine")).status_code == 200
    assert (await http.post("/finish_weight_update")).status_code == 409, "it was abandoned"


async def test_update_weights_missing_tensor_rejected_by_name(
    http: httpx2.AsyncClient, other: Path
):
    before = await generate(http)
    data = (other / "b.safetensors").read_bytes()
    refused = await http.post("/update_weights?weight_version=x", content=data, headers=BINARY)
    assert refused.status_code == 400
    assert "contains no tensor model.embed_tokens.weight" in refused.json()["error"]["message"]
    assert await generate(http) == before


@pytest.mark.parametrize(
    ("info", "param"),
    [
        (
            {"master_address": "127.0.0.1", "master_port": 1, "world_size": 2},
            "init_info.master_address",
        ),
        ({"backend": "nccl"}, "init_info.backend"),
    ],
)
async def test_weight_transfer_over_nccl_rejected_with_alternative(
    http: httpx2.AsyncClient, info: dict[str, Any], param: str
):
    refused = await http.post("/init_weight_transfer_engine", json={"init_info": info})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert "safetensors" in error["message"]


@pytest.mark.parametrize(
    "info", [{"ipc_handles_pickled": "gASV"}, {"names": ["a"], "shapes": [[1]]}, {}, [{}], 7]
)
async def test_update_weights_non_safetensors_rejected(http: httpx2.AsyncClient, info: object):
    refused = await http.post("/update_weights", json={"update_info": info})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "update_info")
    pickled = await http.post("/update_weights", content=b"\x80\x04\x95abc.", headers=BINARY)
    assert pickled.status_code == 400


async def test_update_weights_outside_weights_dir_rejected(http: httpx2.AsyncClient, other: Path):
    for path, status in (
        ("..", 403),
        ("/etc", 403),
        (str(tiny.find_bundled_model()), 403),
        ("step-9", 400),
        (str(other), 200),
    ):
        answer = await http.post("/update_weights", json={"update_info": {"path": path}})
        assert answer.status_code == status, path
    async with serving() as closed:
        answer = await closed.post("/update_weights", json={"update_info": {"path": str(other)}})
        assert (answer.status_code, "--weights-dir" in answer.text) == (403, True)


async def test_update_weights_oversized_body_returns_413(other: Path):
    async with serving(max_weights_bytes=4000) as http:
        answer = await http.post("/update_weights", content=b"0" * 4001, headers=BINARY)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/inference/v1/generate"]
)
@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_weight_versions_list_spans_after_update_mid_response(
    http: httpx2.AsyncClient, path: str, stream: bool
):
    """The answer is paused, gets other weights, and is resumed."""
    body: dict[str, Any] = {
        "stream": stream,
        "return_token_ids": True,
        "return_weight_versions": True,
    }
    limits = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}
    match path:
        case "/v1/chat/completions":
            body |= {"messages": [{"role": "user", "content": "Hi"}], **limits}
        case "/v1/completions":
            body |= {"prompt": "Once", **limits}
        case _:
            body = {"stream": stream, "token_ids": [5, 6, 7], "sampling_params": limits}
    running = asyncio.create_task(http.post(path, json=body))
    while not read(await http.get("/metrics"), "vllm:generation_tokens_total"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await http.post("/pause?mode=keep")
    await post(http, "/update_weights", update_info={"path": "step-1"}, weight_version="new")
    await http.post("/resume")
    choice = get_choice((await running).text, stream=stream)
    spans = choice["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "new"]
    assert [spans[0]["start"], spans[1]["start"], spans[1]["end"]] == [0, spans[0]["end"], 400]
    assert 0 < spans[0]["end"] < 400


def get_choice(text: str, *, stream: bool) -> dict[str, Any]:
    """Return the choice as reported at its end."""
    if not stream:
        return json.loads(text)["choices"][0]
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    (last,) = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    return last


async def test_weight_versions_are_returned_where_requested(http: httpx2.AsyncClient):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    plain = await post(http, "/v1/chat/completions", **body)
    assert "weight_versions" not in plain["choices"][0]
    async with serving("scripted") as script:
        response = await post(
            script, "/v1/chat/completions", **body, model="scripted", return_weight_versions=True
        )
        assert response["choices"][0]["weight_versions"] is None
        assert (
            await script.post("/update_weights", content=b"", headers=BINARY)
        ).status_code == 404
        assert (await script.post("/pause")).status_code == 404


async def test_update_weight_version_renames_weights(http: httpx2.AsyncClient):
    assert (await post(http, "/update_weight_version", new_version="v7"))["new_version"] == "v7"
    assert (await generate(http))[1] == ["v7"]
    assert (await http.post("/update_weight_version", json={"new_version": ""})).status_code == 400
    assert (await http.post("/update_weight_version", json={})).status_code == 400


async def test_abort_requests_aborts_all_and_collective_rpc_rejected(http: httpx2.AsyncClient):
    assert await post(http, "/abort_requests") == {"status": "aborted", "aborted": 0}
    assert (await http.post("/abort_requests", json={"request_ids": ["a"]})).status_code == 400
    assert (await http.post("/collective_rpc", json={"method": "x"})).status_code == 400


async def test_sleep_levels_and_tags(http: httpx2.AsyncClient):
    assert (await http.post("/sleep?level=2")).status_code == 400
    assert (await http.post("/sleep?level=3")).status_code == 400
    assert (await http.post("/sleep?level=1&mode=wait")).json() == {
        "status": "sleeping",
        "level": 1,
    }
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await http.post("/wake_up?tags=weights")).json()["status"] == "sleeping"
    assert (await http.post("/wake_up?tags=kv_cache")).json()["status"] == "awake"
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await http.post("/wake_up?tags=hearts")).status_code == 400
    assert (await generate(http))[0]


async def test_weight_routes_require_admin_key():
    async with serving(api_key=("user",), admin_api_key=("boss",)) as http:
        for path in (
            "/update_weights",
            "/start_weight_update",
            "/abort_requests",
            "/update_weight_version",
        ):
            answer = await http.post(path, headers={"Authorization": "Bearer user"})
            assert answer.status_code == 403


def test_weight_uploads_restart_discards_earlier_parts():
    uploads = WeightUploads()
    uploads.start("m")
    uploads.add("m", WeightsInMemory((b"12",)), 4)
    uploads.start("m")
    uploads.add("m", WeightsInMemory((b"34",)), 4)
    with pytest.raises(BodyTooLarge):
        uploads.add("m", WeightsInMemory((b"567",)), 4)
    assert uploads.finish("m") == WeightsInMemory((b"34",))
    uploads.start("m")
    uploads.add("m", WeightsOnDisk("a"), 4)
    uploads.add("m", WeightsInMemory((b"1",)), 4)
    with pytest.raises(RequestError, match="not both"):
        uploads.finish("m")


async def test_updated_weights_lost_on_unload_reject_generation() -> None:
    settings = Settings(served_model_name=("m",))
    file = (tiny.find_bundled_model() / "model.safetensors").read_bytes()
    models = Models([ModelSpec("m", lambda: next(iter(build_models(settings, SystemClock()))), 1)])
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(build_asgi_app(models)), base_url="http://localhost"
    ) as client:
        for update in (1, 2):
            await models.load_and_find("m")
            if update == 1:
                # The name of the weights in the directory is not lost with them.
                await client.post("/update_weight_version", json={"new_version": "base"})
                await models.unload(models.slots[0])
                await models.load_and_find("m")
                assert (await client.get("/weight_info")).json() == {"weight_version": "base"}
                assert (await client.post("/inference/v1/generate", json=ASK)).status_code == 200
            answer = await client.post("/update_weights", content=file, headers=BINARY)
            name = f"base+{update}" if update == 1 else f"default+{update}"
            assert answer.json()["weight_version"] == name
            await models.unload(models.slots[0])
            rejected = await client.post("/inference/v1/generate", json=ASK)
            assert rejected.status_code == 503
            assert (
                f"has lost the weights of version '{name}'" in rejected.json()["error"]["message"]
            )
            assert (await client.get("/weight_info")).json() == {"weight_version": "default"}
        accepted = await client.post("/update_weight_version", json={"new_version": "again"})
        assert accepted.status_code == 200
        answer = await client.post("/inference/v1/generate", json=ASK)
        assert answer.json()["choices"][0]["weight_versions"] == [
            {"version": "again", "start": 0, "end": 8}
        ]
        await models.stop()
