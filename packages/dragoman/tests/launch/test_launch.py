"""Settings become models: declared values are used, and models that cannot be served
are errors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dragoman.engines import tiny
from dragoman.launch import build_greeting, build_models
from dragoman.launch.engine_choice import choose_directory_engine
from dragoman.launch.secret_key import load_secret_key
from dragoman.parsers.delimited_calls import DelimitedCallFormat
from dragoman.parsers.response_template import ResponseTemplateFormat
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError

from ..engines.encoder.directories import PLAIN, SCORER, Shape, write_encoder

TEMPLATE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {"close": "<|im_end|>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
        },
    },
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.find_bundled_model(), tmp_path / "house-model"))


def test_embedded_model_is_served_by_default() -> None:
    (model,) = build_models(Settings(), SystemClock())
    assert (model.name, model.max_model_len) == ("tiny", 32768)
    assert isinstance(model.formats.tools, DelimitedCallFormat)


def test_model_directory_is_served_under_directory_name(directory: Path) -> None:
    (model,) = build_models(Settings(model=f"tiny:{directory}"), SystemClock())
    assert model.name == "house-model"


def test_model_response_template_is_used(directory: Path) -> None:
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "response_template": TEMPLATE}))
    (model,) = build_models(Settings(model=f"tiny:{directory}"), SystemClock())
    assert isinstance(model.formats.tools, ResponseTemplateFormat)
    assert model.formats.reasoning is model.formats.tools


def test_configured_parser_overrides_response_template(directory: Path) -> None:
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "response_template": TEMPLATE}))
    settings = Settings(model=f"tiny:{directory}", tool_call_parser="hermes")
    (model,) = build_models(settings, SystemClock())
    assert isinstance(model.formats.tools, DelimitedCallFormat)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(model="nope"), "unknown engine or model `nope`"),
        (Settings(model="tiny:/no/such/place"), "cannot serve"),
        (Settings(model="scripted:/no/such/file.yaml"), "cannot serve"),
        (Settings(tool_call_parser="hermse"), "hermes"),
        (Settings(max_model_len=100_000), "32768"),
    ],
)
def test_build_models_unservable_model_raises_settings_error(settings: Settings, word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        build_models(settings, SystemClock())


def test_greeting_curl_command_is_valid() -> None:
    settings = Settings(port=8000)
    _, curl, _ = build_greeting(settings, build_models(settings, SystemClock()), 8000)
    assert curl.startswith(
        "Try: curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
        "-d '{"
    )
    json.loads(curl.partition("-d '")[2].removesuffix("'"))


@pytest.mark.parametrize(
    ("settings", "is_served"),
    [(Settings(), True), (Settings(host="0.0.0.0"), False), (Settings(ui=False), False)],
)
def test_greeting_names_web_ui_when_served(settings: Settings, is_served: bool) -> None:
    _, _, pages = build_greeting(settings, build_models(settings, SystemClock()), 8000)
    assert "API reference: http" in pages
    assert ("web UI: http" in pages) is is_served


@pytest.mark.parametrize(("shape", "route"), [(PLAIN, "/v1/embeddings"), (SCORER, "/rerank")])
def test_greeting_for_encoder_uses_supported_route(
    tmp_path: Path, shape: Shape, route: str
) -> None:
    settings = Settings(model=str(write_encoder(tmp_path, shape)))
    _, curl, _ = build_greeting(settings, build_models(settings, SystemClock()), 8000)
    assert f":8000{route} " in curl


def test_secret_key_prefers_configured_over_stored(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert load_secret_key(Settings(secret_key="open sesame"), environment) == b"open sesame"
    key = load_secret_key(Settings(), environment)
    assert key is not None
    assert load_secret_key(Settings(), environment) == key
    for store in ("memory", "none"):
        assert load_secret_key(Settings(store=store), environment) is None
    beside = load_secret_key(Settings(store=f"sqlite:{tmp_path / 'my.db'}"), environment)
    assert beside not in (None, key)
    assert (tmp_path / "my.db.key").exists()
    (tmp_path / "file").touch()
    assert load_secret_key(Settings(), {"XDG_STATE_HOME": str(tmp_path / "file")}) is None


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {"transformers", "mlx", "tiny"}),
        (
            {"architectures": ["LlamaForCausalLM"], "quantization": {"bits": 4, "group_size": 64}},
            {"mlx"},
        ),
        ({"architectures": ["BertModel"]}, {"encoder"}),
        ({"architectures": ["BertForSequenceClassification"]}, {"encoder"}),
    ],
)
def test_choose_directory_engine_reads_model_directory_config(
    tmp_path: Path, config: dict[str, object], kinds: set[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert choose_directory_engine(tmp_path).engine in kinds


def test_model_directory_unreadable_config_raises_settings_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SettingsError, match=r"config\.json"):
        build_models(Settings(model=str(tmp_path)), SystemClock())
