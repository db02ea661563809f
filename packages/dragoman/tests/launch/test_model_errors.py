"""Each mistake in MODEL has a specific error, which names the mistake and the remedy."""

from __future__ import annotations

import importlib.util
import json
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from dragoman.engines.tiny import find_bundled_model
from dragoman.launch import build_models
from dragoman.launch.engine_choice import choose_engine, read_model_config
from dragoman.launch.hosted_model import load_hosted_model
from dragoman.launch.model_plan import plan_model
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError, load_settings


def get_error(model: str) -> str:
    with pytest.raises(SettingsError) as raised:
        build_models(Settings(model=model), SystemClock())
    message = str(raised.value)
    assert message.startswith(f"cannot serve {model}: ")
    assert "\n" not in message
    return message.removeprefix(f"cannot serve {model}: ")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate the core installation, which has none of the optional engines."""
    missing = ("torch", "transformers", "mlx_lm", "vllm")

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in missing else importlib.util.find_spec(name)

    monkeypatch.setattr("dragoman.launch.engine_choice.find_spec", find_spec)


def model_directory(path: Path, architecture: str, **more: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": [architecture], **more}))
    return path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tinny", "unknown engine or model `tinny`; did you mean `tiny`?"),
        ("simm:rtx4090", "unknown engine or model `simm`; did you mean `sim:rtx4090`?"),
        (
            "transfomers:./x",
            "unknown engine or model `transfomers`; did you mean `transformers:./x`?",
        ),
        (
            "qqq",
            "unknown engine or model `qqq`; use `tiny`, `sim`, `scripted`, a model of the hub "
            "(`org/name`), a "
            "model directory, a GGUF file, a URL, or ENGINE:DIRECTORY",
        ),
        ("vllm", "`vllm` needs a model: vllm:DIRECTORY"),
        (
            "llama3",
            "unknown engine or model `llama3`; names of Ollama's library are not names of the "
            "hub: find the model at ",
        ),
        ("qwen3:8b", "unknown engine or model `qwen3:8b`; names of Ollama's library"),
        ("mistral:latest", "https://huggingface.co/models and serve it as `org/name`"),
        (
            "/no/such/dir",
            "/no/such/dir does not exist; check the path, or serve `org/name` to download a model",
        ),
        (
            "/no/models--org--name",
            "/no/models--org--name does not exist; to download it, serve org/name",
        ),
        ("transformers:/no/such/dir", "/no/such/dir does not exist"),
        ("./no-model.gguf", "no-model.gguf does not exist"),
        ("llamacpp:no-model.gguf", "no-model.gguf does not exist"),
        ("scripted:absent.yaml", "absent.yaml does not exist"),
        ("sim:absent-profile", "there is no profile 'absent-profile'"),
    ],
)
def test_invalid_model_error_names_mistake(model: str, message: str):
    assert message in get_error(model)


def test_directory_without_config_error_names_remedy(tmp_path: Path):
    message = (
        f"{tmp_path} has no config.json, so it is not a model directory; serve the directory that "
        f"has one, or "
        "`org/name` to download a model"
    )
    assert get_error(str(tmp_path)) == get_error(f"transformers:{tmp_path}") == message
    (tmp_path / "a.gguf").touch()
    assert (
        get_error(str(tmp_path))
        == f"{tmp_path} has no config.json; to serve its GGUF file use {tmp_path}/a.gguf"
    )


def test_non_gguf_file_error_suggests_directory(tmp_path: Path):
    (tmp_path / "model.safetensors").touch()
    message = f"{tmp_path}/model.safetensors is a file; serve its directory: {tmp_path}"
    assert get_error(f"{tmp_path}/model.safetensors") == message


LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_git_lfs_pointer_error_names_file_and_command(tmp_path: Path, name: str):
    directory = tmp_path / "model"
    shutil.copytree(find_bundled_model(), directory)
    (directory / name).write_text(LFS_POINTER)
    assert get_error(f"tiny:{directory}") == (
        f"{directory / name} is a Git LFS pointer and not the file itself; run `git lfs pull` in "
        f"{directory}"
    )


@pytest.mark.parametrize("field", ["max_position_embeddings", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1])
def test_config_size_below_one_error_names_field(tmp_path: Path, field: str, value: int):
    directory = tmp_path / "model"
    shutil.copytree(find_bundled_model(), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, field: value}))
    assert f"`int` >= 1 - at `$.{field}`" in get_error(f"tiny:{directory}")


def test_hub_cache_folder_error_suggests_snapshot_path(tmp_path: Path):
    folder = tmp_path / "models--Qwen--Qwen3-0.6B"
    snapshot = folder / "snapshots" / "abc123"
    snapshot.parent.mkdir(parents=True)
    model_directory(snapshot, "Qwen3ForCausalLM")
    assert (
        get_error(str(folder))
        == f"{folder} is a Hugging Face cache folder; serve its snapshot: {snapshot}"
    )


@pytest.mark.usefixtures("without_torch")
def test_missing_engine_error_contains_install_command(tmp_path: Path):
    directory = model_directory(tmp_path / "qwen", "Qwen3ForCausalLM")
    assert get_error(str(directory)) == (
        "Qwen3ForCausalLM needs an engine that is not installed: "
        "pip install 'dragoman[transformers]'"
    )


SHAPE = dict.fromkeys(
    (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ),
    8,
)


@pytest.mark.usefixtures("without_torch")
def test_unsupported_architecture_error_names_architecture(tmp_path: Path):
    fancy = model_directory(
        tmp_path / "fancy", "FancyModel", **SHAPE, type_vocab_size=2, layer_norm_eps=1e-5
    )
    assert "architecture 'FancyModel' is not supported by the encoder engine" in get_error(
        str(fancy)
    )


@pytest.mark.usefixtures("without_torch")
def test_unsupported_llama_config_error_suggests_other_engine(tmp_path: Path):
    directory = model_directory(
        tmp_path / "llama", "LlamaForCausalLM", **SHAPE, rms_norm_eps=1e-5, hidden_act="gelu"
    )
    message = get_error(str(directory))
    assert "hidden_act 'gelu' is not supported by the tiny engine" in message
    assert "; for other models: pip install 'dragoman[transformers]'" in message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/nope", "models: b: cannot serve /nope: /nope does not exist"),
        (
            "tinny",
            "models: b: cannot serve tinny: unknown engine or model `tinny`; did you mean `tiny`?",
        ),
        (
            "llamacpp:/nope.gguf",
            "models: b: cannot serve llamacpp:/nope.gguf: /nope.gguf does not exist",
        ),
        ("sim:nope", "models: b: cannot serve sim:nope: there is no profile 'nope'"),
    ],
)
def test_invalid_model_among_several_raises_error_at_start(model: str, message: str):
    settings = load_settings({"models": json.dumps({"a": "tiny", "b": {"model": model}})}, {})
    with pytest.raises(SettingsError) as raised:
        build_models(settings, SystemClock())
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("installed", "is_apple", "config", "engine"),
    [
        (("mlx_lm", "torch", "transformers"), True, {}, "mlx"),
        (("mlx_lm", "torch", "transformers"), False, {}, "transformers"),
        (("torch", "transformers"), True, {}, "transformers"),
        (
            ("mlx_lm", "torch", "transformers"),
            False,
            {"quantization": {"bits": 4, "group_size": 64}},
            "mlx",
        ),
        ((), False, {}, "tiny"),
    ],
)
def test_choose_engine_depends_on_platform_and_packages(
    monkeypatch: pytest.MonkeyPatch,
    installed: tuple[str, ...],
    is_apple: bool,
    config: dict[str, object],
    engine: str,
):
    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name in installed else None

    monkeypatch.setattr("dragoman.launch.engine_choice.find_spec", find_spec)
    monkeypatch.setattr("sys.platform", "darwin" if is_apple else "linux")
    monkeypatch.setattr("platform.machine", lambda: "arm64" if is_apple else "x86_64")
    encoded = json.dumps({"architectures": ["LlamaForCausalLM"], **config}).encode()
    assert choose_engine(read_model_config(encoded, "config.json", 1000)).engine == engine


POOLING = [{"type": "sentence_transformers.models.Pooling"}]
LOGITS = [{"type": "sentence_transformers.cross_encoder.modules.LogitScore"}]
TOKENS = {"classifier_from_token": ["no", "yes"]}


@pytest.mark.parametrize(
    ("modules", "config", "installed", "expected"),
    [
        (POOLING, {}, True, "embeds texts"),
        (LOGITS, {}, True, "scores pairs of texts"),
        (None, TOKENS, True, "scores pairs of texts"),
        # The files of sentence-transformers come first.
        (POOLING, TOKENS, True, "embeds texts"),
        (LOGITS, {"quantization": {"bits": 4}}, True, "scores pairs of texts"),
        (POOLING, {}, False, r"embeds texts, .*dragoman\[transformers\]"),
        (LOGITS, {}, False, r"scores pairs of texts, .*dragoman\[transformers\]"),
    ],
)
def test_choose_engine_follows_declared_task(
    monkeypatch: pytest.MonkeyPatch,
    modules: list[dict[str, str]] | None,
    config: dict[str, object],
    installed: bool,
    expected: str,
):
    def find_spec(name: str) -> ModuleSpec | None:
        is_found = installed and name in ("mlx_lm", "torch", "transformers")
        return ModuleSpec(name, None) if is_found else None

    monkeypatch.setattr("dragoman.launch.engine_choice.find_spec", find_spec)
    encoded = json.dumps({"architectures": ["LlamaForCausalLM"], **config}).encode()
    declared = read_model_config(encoded, "config.json", 1000, json.dumps(modules or []).encode())
    if installed:
        choice = choose_engine(declared)
        assert choice.engine == "encoder"
        assert choice.reason.endswith(expected)
    else:
        with pytest.raises(ValueError, match=expected):
            choose_engine(declared)


@pytest.mark.parametrize(
    ("name", "architecture", "config", "has_hint"),
    [
        ("Qwen/Qwen3-Reranker-0.6B: config.json", "Qwen3ForCausalLM", {}, True),
        ("/models/bge-RERANKER-v2-gemma/config.json", "GemmaForCausalLM", {}, True),
        ("Qwen/Qwen3-0.6B: config.json", "Qwen3ForCausalLM", {}, False),
        ("Qwen/Qwen3-Reranker-0.6B: config.json", "Qwen3ForCausalLM", TOKENS, False),
        ("org/reranker: config.json", "BertForSequenceClassification", {}, False),
    ],
)
def test_choose_engine_undeclared_reranker_gives_hint(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    architecture: str,
    config: dict[str, object],
    has_hint: bool,
):
    def find_spec(name: str) -> ModuleSpec:
        return ModuleSpec(name, None)

    monkeypatch.setattr("dragoman.launch.engine_choice.find_spec", find_spec)
    encoded = json.dumps({"architectures": [architecture], **config}).encode()
    choice = choose_engine(read_model_config(encoded, name, 1000))
    assert choice.reason.endswith("serve it as `encoder:MODEL`") is has_hint


@pytest.mark.parametrize("model", ["/no/such/dir", "transformers:/no/such/dir"])
def test_engine_process_wrong_path_names_it(model: str) -> None:
    with pytest.raises(ValueError, match="/no/such/dir does not exist"):
        load_hosted_model(plan_model(model), Settings(model=model), SystemClock())
