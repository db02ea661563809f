"""Adapters written by PEFT, in one batch, generate what PEFT generates with each alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import openai
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("peft", reason="needs peft")

from dragoman.core.errors import RequestError
from dragoman.core.token_engine import TokenRequest
from dragoman.engines import tiny
from dragoman.engines.batching import AdapterRegistry, SchedulerConfig
from dragoman.engines.transformers.backend import library, safetensors, torch
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.transformers_model import TransformersModel
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings, SettingsError

from ..harness import GREEDY, StepperHarness
from .test_models import generate_alone, network

pytestmark = [
    pytest.mark.torch,
    # Warnings of one of the two libraries about the other.
    pytest.mark.filterwarnings("ignore:.*:FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:peft"),
]

PROMPTS = [np.random.default_rng(11).integers(3, 96, length).tolist() for length in (1, 15, 33, 60)]
ATTENTION = ["q_proj", "v_proj"]
ALL = "all-linear"


def write_adapter(base: Any, directory: Path, seed: int, **options: Any) -> Any:
    """Save an adapter with PEFT whose weights change the output, and return PEFT's
    model of it.
    """
    peft: Any = import_module("peft")
    torch.manual_seed(seed)
    options = {"r": 4, "lora_alpha": 16, "target_modules": ATTENTION} | options
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options)
    )
    adapted.save_pretrained(directory)
    return adapted


def build_registry(kind: str) -> tuple[TransformersModel, AdapterRegistry]:
    model, _ = build_paged_model(network(kind))
    return model, AdapterRegistry(model.lora.read)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("llama", {"target_modules": ALL, "use_rslora": True}),
        (
            "qwen2",
            {
                "target_modules": ALL,
                "alpha_pattern": {"q_proj": 64},
                "rank_pattern": {"layers.1.mlp.up_proj": 2},
            },
        ),
        ("phi3", {"target_modules": ["qkv_proj", "down_proj"]}),
        ("gemma3_text", {"target_modules": ALL}),
    ],
)
def test_adapters_in_one_batch_match_peft(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    plain = [generate_alone(network(kind), prompt, 10) for prompt in PROMPTS]
    expected = [plain]
    for seed in (1, 2):
        adapted = write_adapter(network(kind), tmp_path / str(seed), seed, **options)
        expected.append([generate_alone(adapted, prompt, 10) for prompt in PROMPTS])
    assert expected[0] != expected[1] != expected[2]
    model, adapters = build_registry(kind)
    adapters.load("1", str(tmp_path / "1"))
    adapters.load("2", str(tmp_path / "2"))
    bench = StepperHarness(model, SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=40))
    streams = [
        bench.add(
            TokenRequest(id=f"{name}{place}", prompt=tuple(prompt), max_tokens=10, sampling=GREEDY),
            adapter,
        )
        for name in ("0", "1", "2")
        for adapter in (adapters.find(name),)
        for place, prompt in enumerate(PROMPTS)
    ]
    bench.finish()
    assert [one.tokens for one in streams] == [tokens for group in expected for tokens in group]


def test_prefix_cache_separates_adapters(tmp_path: Path) -> None:
    write_adapter(network("llama"), tmp_path, 1)
    model, adapters = build_registry("llama")
    bench = StepperHarness(model)
    ask = TokenRequest(id="a", prompt=tuple(PROMPTS[3]), max_tokens=4, sampling=GREEDY)
    cached: list[list[int]] = []
    for load in (None, "a", "a", None):
        if load:
            adapters.load(load, str(tmp_path))
        for _ in range(2):
            outputs = bench.add(ask, adapters.find(load or ""))
            bench.finish()
            cached.append(outputs.cached)
    # A reloaded adapter is a new one, even with the same name; the blocks without an
    # adapter are still cached.
    assert cached == [[0], [48], [0], [48], [0], [48], [48], [48]]


Spoil = Callable[[Path], None]


def change_config(**fields: Any) -> Spoil:
    def corrupt(directory: Path) -> None:
        path = directory / "adapter_config.json"
        path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | fields))

    return corrupt


def rename_tensors(old: str, new: str) -> Spoil:
    def corrupt(directory: Path) -> None:
        path = directory / "adapter_model.safetensors"
        tensors = safetensors.torch.load_file(path)
        safetensors.torch.save_file(
            {name.replace(old, new): tensor for name, tensor in tensors.items()}, path
        )

    return corrupt


def delete_file(name: str) -> Spoil:
    return lambda directory: (directory / name).unlink()


def corrupt_weights(name: str) -> Spoil:
    def corrupt(directory: Path) -> None:
        (directory / name).write_bytes(b"{" * 40)

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (change_config(peft_type="LOHA"), "type LOHA"),
        (change_config(use_dora=True), "DoRA"),
        (change_config(r=0), "less than 1"),
        (change_config(alpha_pattern={".*q_proj": 3}), "wildcards"),
        (delete_file("adapter_config.json"), "adapter_config.json cannot be read"),
        (corrupt_weights("adapter_config.json"), "adapter_config.json"),
        (delete_file("adapter_model.safetensors"), "adapter_model.safetensors cannot be read"),
        (corrupt_weights("adapter_model.safetensors"), "cannot be read"),
        (rename_tensors("lora_A", "lora_magnitude_vector"), "lora_magnitude_vector"),
        (rename_tensors("layers.1.", "layers.9."), "no layer `model.layers.9"),
        (rename_tensors("q_proj", "k_proj"), "maps 32 to 16"),
        (rename_tensors("model.layers.0.self_attn.q_proj", "lm_head"), "not a linear layer"),
        (rename_tensors("model.layers.0.self_attn.q_proj", "model.norm"), "not a linear layer"),
    ],
)
def test_load_invalid_adapter_raises_with_reason(
    corrupt: Spoil, message: str, tmp_path: Path
) -> None:
    write_adapter(network("llama"), tmp_path, 1)
    _, adapters = build_registry("llama")
    corrupt(tmp_path)
    with pytest.raises(RequestError, match=message):
        adapters.load("a", str(tmp_path))
    assert adapters.find("a") is None


@asynccontextmanager
async def serving(
    lora_dir: str | None = None, **settings: Any
) -> AsyncGenerator[openai.AsyncOpenAI]:
    """Serve the embedded model in torch."""
    given = Settings().replace(
        model=f"transformers:{tiny.find_bundled_model()}", dtype="float32", device="cpu", **settings
    )
    models = build_models(given, SystemClock())
    await models.start()
    options = ServingOptions(lora_dir=lora_dir)
    transport = httpx2.ASGITransport(build_asgi_app(models, options=options))
    client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
    async with openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=client
    ) as sdk:
        yield sdk
    await models.stop()


async def get_answer(sdk: openai.AsyncOpenAI, model: str) -> tuple[str, str | None]:
    answer = await sdk.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count to 7."}],
        temperature=0,
        max_tokens=12,
    )
    return answer.model, answer.choices[0].message.content


async def test_adapter_is_served_as_model_name(tmp_path: Path) -> None:
    base = library.AutoModelForCausalLM.from_pretrained(tiny.find_bundled_model(), dtype="float32")
    write_adapter(base, tmp_path, 1, lora_alpha=200)
    async with serving(str(tmp_path), lora_modules=(f"sql={tmp_path}",)) as sdk:
        names = [model.id async for model in sdk.models.list()]
        plain, adapted = await get_answer(sdk, names[0]), await get_answer(sdk, "sql")
        assert (names[1:], adapted[0]) == (["sql"], "sql")
        assert adapted[1] != plain[1]
        other = {"lora_name": "other", "lora_path": str(tmp_path)}
        await sdk.post("/load_lora_adapter", body=other, cast_to=str)
        assert (await get_answer(sdk, "other"))[1] == adapted[1]
        await sdk.post("/unload_lora_adapter", body={"lora_name": "other"}, cast_to=str)
        with pytest.raises(openai.NotFoundError):
            await get_answer(sdk, "other")
        (tmp_path / "empty").mkdir()
        with pytest.raises(openai.BadRequestError, match="cannot be read") as rejected:
            await sdk.post("/load_lora_adapter", body=other | {"lora_path": "empty"}, cast_to=str)
        assert rejected.value.param == "lora_path"
        assert (await get_answer(sdk, names[0])) == plain


def test_invalid_lora_module_is_startup_error(tmp_path: Path) -> None:
    for model, message in (
        (f"transformers:{tiny.find_bundled_model()}", "cannot be read"),
        ("tiny", "does not support adapters"),
    ):
        with pytest.raises(SettingsError, match=message):
            build_models(Settings(model=model, lora_modules=(f"a={tmp_path}",)), SystemClock())
