"""Settings become an upstream."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from dragoman.engines.upstream import KINDS, UpstreamEngine
from dragoman.launch import build_models
from dragoman.launch.engines.upstream.settings import UpstreamSettings
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError

SETTINGS = Settings().replace(
    model="http://a/v1,http://b/v1/", upstream_kind="vllm", upstream_model="m", max_model_len=99
)
GOOGLE = "https://generativelanguage.googleapis.com"


def test_upstream_kind_setting_accepts_every_kind() -> None:
    assert get_args(get_type_hints(UpstreamSettings)["upstream_kind"]) == ("auto", *KINDS)


def test_upstream_with_configured_values_is_not_queried() -> None:
    (model,) = build_models(SETTINGS, SystemClock())
    assert isinstance(model.backend.engine, UpstreamEngine)
    assert (model.name, model.max_model_len) == ("m", 99)


@pytest.mark.parametrize("weights", [("2,1",), ("2", "1")])
def test_upstream_weights_accept_one_or_several_options(weights: tuple[str, ...]) -> None:
    settings = SETTINGS.replace(model="http://a/v1,http://b/v1", upstream_weight=weights)
    (model,) = build_models(settings, SystemClock())
    assert isinstance(model.backend.engine, UpstreamEngine)
    assert [upstream.weight for upstream in model.backend.engine.upstreams] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [
        ("https://api.anthropic.com", "auto", "https://api.anthropic.com/v1"),
        ("http://a/", "anthropic", "http://a/v1"),
        ("http://a/proxy", "anthropic", "http://a/proxy"),
        (GOOGLE, "auto", f"{GOOGLE}/v1beta"),
        (f"{GOOGLE}/v1beta", "auto", f"{GOOGLE}/v1beta"),
        ("http://a/", "gemini", "http://a/v1beta"),
        ("http://a", "openai", "http://a"),
    ],
)
def test_upstream_vendor_url_is_completed_from_host(url: str, kind: str, expected: str) -> None:
    (model,) = build_models(SETTINGS.replace(model=url, upstream_kind=kind), SystemClock())
    assert isinstance(model.backend.engine, UpstreamEngine)
    assert [upstream.url for upstream in model.backend.engine.upstreams] == [expected]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "http://a b/v1"}, "cannot serve"),
        ({"model": "http:///v1"}, "an upstream URL must have the form http"),
        ({"model": "http://key@a/v1"}, "UPSTREAM_API_KEY"),
        ({"upstream_weight": ("1",)}, "2 upstreams and 1 upstream weights"),
        ({"upstream_weight": ("1", "-1")}, "above 0"),
        ({"upstream_weight": ("1", "many")}, "many"),
        ({"upstream_api_key": ("a", "b", "c")}, "2 upstreams and 3 upstream keys"),
        ({"model": "http://127.0.0.1:1/v1", "upstream_kind": "auto"}, "cannot be reached"),
        ({"tool_call_parser": "hermse"}, "hermes"),
    ],
)
def test_upstream_invalid_combination_raises_settings_error(
    changed: dict[str, object], words: str
) -> None:
    fields = {"model": SETTINGS.model, "upstream_kind": "vllm", "upstream_model": "m", **changed}
    with pytest.raises(SettingsError, match=words):
        build_models(Settings().replace(**fields), SystemClock())  # pyright: ignore[reportArgumentType]
