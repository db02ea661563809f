"""Several models in one file of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.settings import GenerationConfig, ModelEntry, Settings, SettingsError, load

FILE = """
max-model-len: 1024
models-memory: 2G
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


def read(tmp_path: Path, text: str, **said: object) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load({"config": str(file), **said}, {})


def test_each_model_has_its_own_settings_and_the_servers_for_the_rest(tmp_path: Path) -> None:
    settings = read(tmp_path, FILE)
    house, echo, far = settings.models.entries
    assert (house.name, house.aliases, house.pinned, house.ttl) == ("house", ("claude-*", "gpt"), True, None)
    own = house.over(settings)
    assert (own.model, own.max_model_len, own.served_model_name) == ("tiny", 2000, ("house", "claude-*", "gpt"))
    assert own.override_generation_config == GenerationConfig(temperature=0.5)
    assert echo.over(settings).max_model_len == 1024
    assert (far.ttl, far.memory, settings.models_memory) == (60.0, 2**30, 2**31)


def test_keys_of_upstreams_are_not_shown(tmp_path: Path) -> None:
    assert "sk-up" not in repr(read(tmp_path, FILE))


def test_the_command_line_may_say_it_as_json() -> None:
    assert load({"models": '{"a": "tiny"}'}, {}).models.entries == (ModelEntry("a", (("model", "tiny"),)),)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ("[]", "a name for each model"),
        ("{}", "a name for each model"),
        ("{a: 7}", "a: must be what to serve"),
        ("{a: {ttl: 5}}", "a: `model` is missing"),
        ("{a: {model: tiny, port: 80}}", "a: port: this is a setting of the whole server"),
        ("{a: {model: tiny, alias: b}}", "Did you mean aliases"),
        ("{a: {model: tiny, ttl: -1}}", "a: ttl: must be at least 0"),
        ("{a: {model: tiny, memory: lots}}", "a: memory: must be a whole number"),
        ("{a: {model: tiny, ttl: 5, pinned: true}}", "what is pinned has no ttl"),
        ("{a-*: tiny}", "only an alias may be a pattern"),
        ("{a: tiny, b: {model: tiny, aliases: [a]}}", "a is the name of two models"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, models: str, words: str) -> None:
    with pytest.raises(SettingsError) as found:
        read(tmp_path, f"models: {models}")
    assert words in str(found.value)
    assert "models: " in str(found.value)


def test_one_model_or_several(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="one model is served, or several"):
        read(tmp_path, FILE, model="tiny")
