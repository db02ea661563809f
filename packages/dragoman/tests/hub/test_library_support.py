"""Architectures that an engine's library does not support are found before anything is
downloaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hub.shapes import SINGLE
from tests.hub.stub import HubStub

from dragoman.core.errors import EngineError
from dragoman.engines.tiny import find_bundled_model
from dragoman.hub import HubError
from dragoman.launch import build_models
from dragoman.launch.architecture_check import Library, check_library_support
from dragoman.launch.engines.mlx.library import MLX
from dragoman.launch.engines.transformers.library import TRANSFORMERS
from dragoman.launch.engines.vllm.library import VLLM
from dragoman.launch.hub_models import HubPuller, prepare_model, prepare_pull
from dragoman.launch.hub_reference import find_reference
from dragoman.launch.model_check import check_local_model
from dragoman.launch.model_plan import plan_model
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError

OTHERS = [f"other{number}" for number in range(60)]
REAL = (
    ("qwen3", "Qwen3ForCausalLM"),
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
)


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create packages with the libraries' layout, which cannot be imported."""
    site = tmp_path / "site"
    types = ",\n".join(f'        ("{name}", "AConfig")' for name in ("llama", *OTHERS))
    architectures = ",\n".join(
        f'    "{name}": ("file", "Class")' for name in ("LlamaForCausalLM", *OTHERS)
    )
    files = {
        "transformers/models/auto/auto_mappings.py": f"CONFIG_MAPPING_NAMES = OrderedDict(\n    "
        f"[\n{types}\n    ]\n)",
        "mlx_lm/utils.py": f"MODEL_REMAPPING = {{'mistral': 'llama'}}\nNAMES = {OTHERS}",
        "vllm/model_executor/models/registry.py": f"_TEXT_GENERATION_MODELS = "
        f"{{\n{architectures}\n}}",
        **{f"mlx_lm/models/{name}.py": "" for name in ("llama", *OTHERS)},
        **{
            f"{name}/__init__.py": "raise ImportError"
            for name in ("torch", "transformers", "mlx_lm", "vllm")
        },
    }
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    importlib.invalidate_caches()


def change_config(hub: HubStub, **changes: object) -> None:
    files = hub.repositories[SINGLE].files
    files["config.json"] = json.dumps({**json.loads(files["config.json"]), **changes}).encode()


def make_unsupported(hub: HubStub, **changes: object) -> None:
    change_config(hub, model_type="fancy9", architectures=["FancyForCausalLM"], **changes)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("engine", "library"), [("transformers", "transformers"), ("mlx", "mlx-lm"), ("vllm", "vllm")]
)
def test_unsupported_architecture_is_reported_before_download(
    hub: HubStub, engine: str, library: str
):
    make_unsupported(hub)
    with pytest.raises(SettingsError) as raised:
        build_models(Settings(model=f"{engine}:{SINGLE}"), SystemClock())
    message = str(raised.value)
    assert (
        "org/single: the model type 'fancy9' (FancyForCausalLM) is not supported by the installed "
        in message
    )
    assert message.endswith(
        f"; upgrade it (pip install --upgrade {library}), or choose another model"
    )
    assert hub.count("GET /cdn/") == 0


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("engine", ["transformers", "mlx", "vllm"])
def test_supported_architecture_is_prepared(engine: str):
    found = find_reference(f"{engine}:{SINGLE}")
    assert found is not None
    assert prepare_model(Settings(), *found).choice.engine == engine


@pytest.mark.usefixtures("cache")
def test_unsupported_architecture_suggests_trust_remote_code(hub: HubStub):
    make_unsupported(hub, auto_map={"AutoConfig": "configuration.FancyConfig"})
    model = f"transformers:{SINGLE}"
    with pytest.raises(
        SettingsError, match="; its repository has code for it, which --trust-remote-code runs if"
    ):
        build_models(Settings(model=model), SystemClock())
    found = find_reference(model)
    assert found is not None
    assert prepare_model(Settings(trust_remote_code=True), *found).choice.engine == "transformers"


@pytest.mark.usefixtures("cache")
async def test_pull_unsupported_architecture_reports_reason(hub: HubStub):
    make_unsupported(hub)
    found = find_reference(f"transformers:{SINGLE}")
    assert found is not None
    choice = prepare_pull(Settings(), *found).choice
    assert (choice.engine, "'fancy9' (FancyForCausalLM) is not supported" in choice.reason) == (
        "",
        True,
    )
    reports = [progress.status async for progress in HubPuller(Settings()).pull(SINGLE)]
    assert reports[-1] == "success"


def test_check_local_model_rejects_unsupported_architecture(tmp_path: Path):
    directory = tmp_path / "model"
    shutil.copytree(find_bundled_model(), directory)
    check_local_model(plan_model(f"transformers:{directory}"), Settings())
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "fancy9"}))
    with pytest.raises(
        EngineError, match=r"model: the model type 'fancy9' \(LlamaForCausalLM\) is not supported"
    ):
        check_local_model(plan_model(f"transformers:{directory}"), Settings())


@pytest.mark.usefixtures("cache")
def test_missing_tokenizer_is_rejected_before_download(hub: HubStub):
    del hub.repositories[SINGLE].files["tokenizer.json"]
    found = find_reference(f"transformers:{SINGLE}")
    assert found is not None
    with pytest.raises(
        HubError, match=r"org/single has no tokenizer\.json; choose a repository that has one"
    ):
        prepare_model(Settings(), *found)
    assert hub.count("GET /cdn/") == 0


def test_library_check_with_unknown_layout_is_skipped(tmp_path: Path):
    (tmp_path / "site" / "transformers/models/auto/auto_mappings.py").unlink()
    config = json.dumps({"model_type": "fancy9"}).encode()
    check_library_support(TRANSFORMERS, config, "org/name", trust_remote_code=False)


@pytest.mark.parametrize(
    ("library", "packages"),
    [(TRANSFORMERS, ["transformers"]), (MLX, ["mlx_lm"]), (VLLM, ["vllm", "transformers"])],
)
def test_library_check_accepts_common_and_rejects_unknown_models(
    library: Library, packages: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()  # Without the packages above.
    importlib.invalidate_caches()
    if any(importlib.util.find_spec(package) is None for package in packages):
        pytest.skip(f"needs {' and '.join(packages)}")
    for model_type, architecture in REAL:
        config = json.dumps({"model_type": model_type, "architectures": [architecture]}).encode()
        check_library_support(library, config, "org/name", trust_remote_code=False)
    config = json.dumps({"model_type": "fancy9", "architectures": ["FancyForCausalLM"]}).encode()
    with pytest.raises(EngineError, match="'fancy9'"):
        check_library_support(library, config, "org/name", trust_remote_code=False)
