"""Settings without effect cause warnings, and the table of supported settings matches
how engines are built.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.launch.configured_models import build_models
from dragoman.launch.model_plan import plan_model
from dragoman.launch.unsupported_settings import warn_unsupported
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError, find_changed_settings, load_settings
from dragoman.settings.engine_settings import load_engine_settings
from dragoman.settings.fields import ENGINES, SUPPORTED_BY

from ..engines.encoder.directories import write_encoder

BUILT: dict[str, dict[str, Any]] = {
    "tiny": {"kv_offloading_dir": "kv"},
    "scripted": {},
    "sim": {},
    "upstream": {
        "upstream_kind": "openai",
        "upstream_model": "m",
        "model": "http://127.0.0.1:9/v1",
    },
}
"""Engines that need no library or model files, with settings that make them read every
setting.
"""
ELSEWHERE = {"instances", "dtype", "device", "threads", "close_at_limit", "enable_lora"}
"""Settings that are read before an engine is built or for every model, are part of file
names, or are always on.
"""


def find_read_settings(engine: str) -> set[str]:
    """Return the settings that are read while the engine is built."""
    seen: set[str] = set()

    def watch(kind: type[Any]) -> type[Any]:
        def read(self: Any, name: str) -> Any:
            if name in SUPPORTED_BY:
                seen.add(name)
            return object.__getattribute__(self, name)

        return msgspec.defstruct(
            "Watched", [], bases=(kind,), namespace={"__getattribute__": read}, frozen=True
        )

    own_settings = tuple(watch(kind)() for kind in load_engine_settings())
    settings = watch(Settings)(model=engine, engine_settings=own_settings)
    build_models(settings.replace(**BUILT[engine]), SystemClock())
    return seen


@pytest.mark.parametrize("engine", BUILT)
def test_supported_by_table_matches_settings_read_by_engine(
    engine: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declared = {name for name, engines in SUPPORTED_BY.items() if engine in engines}
    # Read for every engine, to reject them by name.
    looked_at = find_read_settings(engine) - {"lora_modules"} | (declared & {"lora_modules"})
    assert looked_at - ELSEWHERE == declared - ELSEWHERE


def test_supported_by_engines_are_model_kinds() -> None:
    names = (
        "tiny",
        "scripted",
        "sim:x",
        "http://a/v1",
        "m.gguf",
        "vllm:x",
        "mlx:x",
        "transformers:x",
        "encoder:x",
    )
    assert {plan_model(name).engine for name in names} == ENGINES


def vain(caplog: pytest.LogCaptureFixture, **given: Any) -> list[str]:
    with caplog.at_level(logging.WARNING):
        warn_unsupported(load_settings(given, {}))
    return [record.message.partition(";")[0] for record in caplog.records]


def test_unsupported_setting_logs_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert vain(caplog, model="tiny", quantization="torchao") == [
        "--quantization is for encoder and transformers"
    ]


def test_disabled_switch_warning_names_no_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert vain(caplog, model="scripted", enable_prefix_caching=False)[0].startswith(
        "--no-enable-prefix-caching is for"
    )


def test_default_values_log_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        find_changed_settings(
            load_settings({"model": "tiny", "quantization": None, "dtype": "auto"}, {})
        )
        == set()
    )
    assert vain(caplog, model="tiny", dtype="auto") == []


@pytest.mark.parametrize("model", ["python:a:b", "some-plugin:x"])
def test_third_party_engine_logs_no_warning(model: str, caplog: pytest.LogCaptureFixture) -> None:
    assert vain(caplog, model=model, quantization="torchao") == []


def test_shared_setting_needs_one_model_own_setting_its_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models = {"a": {"model": "tiny", "directives": True}, "b": "scripted"}
    assert vain(
        caplog, models=msgspec.json.encode(models).decode(), directives=True, max_num_seqs="4"
    ) == ["--directives is for scripted and sim"]


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"dtype": "bfloat16"}, "--dtype"),
        ({"quantization": "torchao"}, "--quantization"),
        ({"device": "cuda:1"}, "--device"),
        ({"chat_template": "{{ messages }}"}, "--chat-template"),
        ({"trust_remote_code": True}, "--trust-remote-code"),
    ],
)
def test_encoder_in_numpy_names_ignored_setting(
    given: dict[str, Any], flag: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_encoder(tmp_path)
    settings = load_settings({"model": f"encoder:{tmp_path}", **given}, {})
    with caplog.at_level(logging.WARNING):
        build_models(settings, SystemClock())
    assert [message for message in caplog.messages if message.startswith(f"{flag} would be")]
    with pytest.raises(SettingsError, match=f"{flag} would be ignored"):
        build_models(settings.replace(strict=True), SystemClock())


def test_encoder_in_numpy_honours_own_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_encoder(tmp_path)
    given = {"model": f"encoder:{tmp_path}", "dtype": "float32", "device": "cpu", "threads": "1"}
    settings = load_settings({**given, "strict": True}, {})
    warn_unsupported(settings)
    build_models(settings, SystemClock())
    assert caplog.messages == []


def test_strict_mode_rejects_unsupported_setting() -> None:
    with pytest.raises(SettingsError, match="tiny would ignore it"):
        warn_unsupported(load_settings({"model": "tiny", "gpu_layers": "3", "strict": True}, {}))
