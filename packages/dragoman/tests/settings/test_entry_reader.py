"""Several models and several instances in one settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.settings import (
    GenerationConfig,
    Instance,
    ModelEntry,
    Settings,
    SettingsError,
    load_settings,
)

FILE = """
max-model-len: 1024
model-memory-limit: 2G
models:
  house:
    model: tiny
    aliases: [claude-*, gpt]
    pinned: true
    max-model-len: 2k
    override-generation-config: {temperature: 0.5}
  echo: scripted
  far:
    model: http://127.0.0.1:1/v1
    ttl: 60
    memory: 1G
    upstream-api-key: sk-up
"""


def read(tmp_path: Path, text: str, **fields: object) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load_settings({"config": str(file), **fields}, {})


def test_model_entry_overrides_server_settings(tmp_path: Path) -> None:
    settings = read(tmp_path, FILE)
    first, echo, far = settings.models.entries
    assert (first.name, first.aliases, first.pinned, first.ttl) == (
        "house",
        ("claude-*", "gpt"),
        True,
        None,
    )
    own = settings.for_entry(first)
    assert (own.model, own.max_model_len, own.served_model_name) == (
        "tiny",
        2000,
        ("house", "claude-*", "gpt"),
    )
    assert own.override_generation_config == GenerationConfig(temperature=0.5)
    assert settings.for_entry(echo).max_model_len == 1024
    assert (far.ttl, far.memory, settings.model_memory_limit) == (60.0, 2**30, 2**31)


def test_settings_repr_hides_upstream_keys(tmp_path: Path) -> None:
    assert "sk-up" not in repr(read(tmp_path, FILE))


def test_models_option_parses_json() -> None:
    assert load_settings({"models": '{"a": "tiny"}'}, {}).models.entries == (
        ModelEntry("a", (("model", "tiny"),)),
    )


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ("[]", "must map model names"),
        ("{}", "must map model names"),
        ("{a: 7}", "a: must be a MODEL"),
        ("{a: {ttl: 5}}", "a: `model` is missing"),
        ("{a: {model: tiny, port: 80}}", "a: port: this setting applies to the whole server"),
        ("{a: {model: tiny, alias: b}}", "Did you mean aliases"),
        ("{a: {model: tiny, ttl: -1}}", "a: ttl: must be at least 0"),
        ("{a: {model: tiny, memory: lots}}", "a: memory: must be a whole number"),
        ("{a: {model: tiny, ttl: 5, pinned: true}}", "a pinned model cannot have a ttl"),
        ("{a-*: tiny}", "only aliases may be patterns"),
        ("{a: tiny, b: {model: tiny, aliases: [a]}}", "two models have the name a"),
    ],
)
def test_models_invalid_entry_error_names_location(tmp_path: Path, models: str, words: str) -> None:
    with pytest.raises(SettingsError) as found:
        read(tmp_path, f"models: {models}")
    assert words in str(found.value)
    assert "models: " in str(found.value)


def test_model_and_models_together_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="set either one model or several"):
        read(tmp_path, FILE, model="tiny")


FLEET = """
model: sim
instances:
  - {}
  - {time-scale: 0.5, port: 9000}
  - {count: 2, max-num-seqs: 8}
"""


def test_instances_have_own_settings(tmp_path: Path) -> None:
    plain, slow, *small = read(tmp_path, FLEET).instances.items
    assert plain == Instance()
    assert slow == Instance((("time_scale", 0.5), ("port", 9000)))
    assert small == [Instance((("max_num_seqs", 8),))] * 2


@pytest.mark.parametrize("count", ["3", '[{}, {"count": 2}]'])
def test_instances_option_parses_count(count: str) -> None:
    assert (
        load_settings({"model": "sim", "instances": count}, {}).instances.items == (Instance(),) * 3
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"instances": "0"}, "1: count: must be from 1 to 1024"),
        ({"instances": "{}"}, "a number, or a list"),
        ({"instances": "[7]"}, "1: must be an object"),
        ({"instances": '[{"prot": 1}]'}, "Did you mean port"),
        (
            {"instances": '[{}, {"host": "::1"}]'},
            "2: host: this setting applies to the whole server",
        ),
        ({"instances": '[{"instances": 2}]'}, "this setting applies to the whole server"),
        ({"instances": '[{"count": 2, "port": 1}]'}, "cannot share a port"),
        ({"instances": '[{"count": 1024}, {}]'}, "maximum is 1024 instances"),
        ({"instances": "2", "model": "tiny"}, "only `sim`"),
        ({"instances": '[{"model": "tiny"}]'}, "only `sim`"),
        ({"instances": "2", "uds": "/tmp/x"}, "need TCP ports"),
        ({"instances": "2", "store": "sqlite"}, "require the store"),
    ],
)
def test_instances_invalid_value_raises_error(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings({"model": "sim", **fields}, {})
