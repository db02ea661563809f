"""Definitions of the settings: invariants of every setting."""

from __future__ import annotations

from pprint import pformat

import msgspec

from dragoman.core.request import Sampling
from dragoman.settings import (
    FIELDS,
    GenerationConfig,
    Instances,
    ModelEntries,
    Secret,
    SettingField,
    Settings,
    load_settings,
)
from dragoman.settings.sections import RaySettings
from dragoman.settings.values import read_value
from tests.cases import check_each

EXAMPLES: dict[object, str] = {
    bool: "yes",
    int: "512",
    float: "1.0",
    str: "text",
    GenerationConfig: '{"top_k": 4}',
    ModelEntries: '{"a": "tiny"}',
    Instances: "2",
    RaySettings: '{"replicas": 2}',
}


def example(field: SettingField) -> str:
    if field.is_list:
        return "one,two"
    if field.kind is int and (field.option.minimum or 0) > 512:
        return "64M" if (field.option.minimum or 0) > 65536 else "64K"
    return field.choices[-1] if field.choices else EXAMPLES[field.kind]


def test_settings_parse_from_text():
    def check(field: SettingField) -> None:
        value = read_value(field, example(field))
        assert msgspec.convert(value, type_of(field), strict=True) == value

    check_each({field.name: field for field in FIELDS}, check)


def type_of(field: SettingField) -> type:
    return next(
        info.type for info in msgspec.structs.fields(field.owner) if info.name == field.name
    )


def test_settings_have_help_and_group():
    def check(field: SettingField) -> None:
        assert field.option.help.endswith((".", "}'."))
        assert field.option.group

    check_each({field.name: field for field in FIELDS}, check)


def test_settings_flags_and_variables_are_unique():
    names = [
        name
        for field in FIELDS
        for name in (field.flag, field.off_flag, field.environment_variable)
    ]
    assert len(set(names)) == len(names)


def test_load_settings_without_input_returns_defaults():
    assert load_settings({}, {}) == Settings()
    assert Settings().host == "127.0.0.1"


def test_settings_repr_hides_keys():
    settings = load_settings({"api_key": ["sk-secret"], "admin_api_key": ["sk-admin"]}, {})
    for text in (
        repr(settings),
        str(settings),
        f"{settings}",
        repr(settings.api_key),
        pformat(settings),
    ):
        assert "sk-" not in text
        assert "'***'" in text
    assert settings.api_key == ("sk-secret",)
    assert isinstance(settings.api_key[0], Secret)


def test_generation_config_overrides_model_defaults():
    model = Sampling(temperature=0.6, top_k=20)
    assert GenerationConfig().merge_into(model) == model
    config = GenerationConfig(temperature=0.0, top_k=-1, max_new_tokens=5).merge_into(model)
    assert config == Sampling(temperature=0.0, top_k=0)
