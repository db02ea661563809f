"""Settings of `dragoman deploy` for one node and for several. Does not need Ray."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from tests.cli_core.cli_runner import get_error

from dragoman.launch.configured_models import build_models
from dragoman.ray.autoscaling import (
    KV_USAGE,
    REQUESTS,
    WAITING_TOKENS,
    LoadPolicy,
    build_policy_arguments,
    measure_load,
)
from dragoman.ray.environment import (
    BODY_VARIABLE,
    HAPROXY_VARIABLE,
    choose_connections,
    choose_environment,
)
from dragoman.ray.settings_check import check_settings, override_ray
from dragoman.ray.state_home import StateHome, find_state_home
from dragoman.serving.clock import SystemClock
from dragoman.settings import RaySettings, Settings, SettingsError, load_keywords, load_settings


def make_settings(**ray: object) -> Settings:
    return override_ray(load_keywords({"model": "tiny"}), ray)


def test_settings_file_ray_section_is_parsed(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.yaml"
    file.write_text("model: tiny\nray:\n  replicas: 2\n  max-replicas: 8\n  routing: session\n")
    settings = load_settings({"config": str(file)}, {})
    assert settings.ray == RaySettings(replicas=2, max_replicas=8, routing="session")
    assert override_ray(settings, {"replicas": "4"}).ray == RaySettings(
        replicas=4, max_replicas=8, routing="session"
    )
    assert load_settings({"ray": '{"cpus": 0.5}'}, {}).ray.cpus == 0.5


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ({"replicas": 0}, "replicas: Expected `int` >= 1"),
        ({"replica": 2}, "unknown field `replica`"),
        ({"routing": "best"}, "routing: Invalid enum value 'best'"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas must not be less"),
        ({"target_kv_usage": 80}, "target_kv_usage: Expected `float` <= 1"),
        ("{", "truncated"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_ray_section_invalid_error_includes_reason(section: object, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        load_keywords({"model": "tiny", "ray": section})


def test_override_ray_invalid_value_rejected() -> None:
    with pytest.raises(SettingsError, match="ray: replicas: Expected `int`"):
        make_settings(replicas="two")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"instances": 2, "model": "sim", "store": "memory"}, "instances: only"),
        ({"workers": 2}, "workers: each replica is one process"),
        ({"uds": "/tmp/x"}, "uds: clients connect to Ray's proxy"),
        ({"ssl_certfile": "a", "ssl_keyfile": "b"}, "ssl_certfile: clients connect to Ray's proxy"),
    ],
)
def test_check_settings_proxy_options_rejected_for_replicas(
    settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(SettingsError, match=error):
        check_settings(load_keywords({"model": "tiny"} | settings), is_exposed=False)


def test_check_settings_exposed_proxy_requires_key_or_no_auth() -> None:
    with pytest.raises(SettingsError, match="api_key: with HAProxy"):
        check_settings(make_settings(), is_exposed=True)
    check_settings(make_settings(), is_exposed=False)
    check_settings(load_keywords({"model": "tiny", "no_auth": True}), is_exposed=True)
    check_settings(load_keywords({"model": "tiny", "api_key": "key"}), is_exposed=True)


POSTGRES = "postgresql://db/dragoman"


def test_state_home_multiple_nodes_requires_postgres_and_secret() -> None:
    settings = override_ray(load_keywords({"model": "tiny", "secret_key": "s"}), {"replicas": 2})
    with pytest.raises(
        SettingsError, match=r"^store: replicas on several nodes need PostgreSQL\.$"
    ):
        find_state_home(settings, ["a", "b"])
    settings = override_ray(
        load_keywords({"model": "tiny", "store": POSTGRES}), {"max_replicas": 2}
    )
    with pytest.raises(SettingsError, match=r"^secret_key: .*set DRAGOMAN_SECRET_KEY\.$"):
        find_state_home(settings, ["a", "b"])
    limited = {
        "model": "tiny",
        "store": POSTGRES,
        "secret_key": "s",
        "keys_file": "k",
        "limits_store": "sqlite:l",
    }
    with pytest.raises(
        SettingsError, match=r"^limits_store: replicas on several nodes need PostgreSQL or Redis\.$"
    ):
        find_state_home(override_ray(load_keywords(limited), {"replicas": 2}), ["a", "b"])
    shared = override_ray(
        load_keywords({"model": "tiny", "store": POSTGRES, "secret_key": "s"}), {"replicas": 2}
    )
    assert find_state_home(shared, ["a", "b"]) == StateHome()


def test_state_home_single_node_pins_replicas_to_shared_file() -> None:
    home = find_state_home(make_settings(replicas=2), ["a"])
    assert home.node == "a"
    assert "PostgreSQL" in home.reason
    assert find_state_home(make_settings(replicas=1), ["a", "b"]) == StateHome()
    assert find_state_home(make_settings(replicas=2), []) == StateHome()


def test_state_home_memory_store_rejects_two_replicas() -> None:
    settings = load_keywords({"model": "tiny", "store": "memory"})
    assert find_state_home(settings, ["a"]) == StateHome()
    with pytest.raises(SettingsError, match="`memory` works with one replica only"):
        find_state_home(override_ray(settings, {"replicas": 2}), ["a"])


def test_choose_environment_sets_haproxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (HAPROXY_VARIABLE, BODY_VARIABLE, "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    chosen = choose_environment(make_settings(haproxy=True))
    assert chosen[HAPROXY_VARIABLE] == chosen[BODY_VARIABLE] == "1"
    assert HAPROXY_VARIABLE not in choose_environment(make_settings(haproxy=False))
    monkeypatch.setenv(HAPROXY_VARIABLE, "0")
    assert HAPROXY_VARIABLE not in choose_environment(make_settings(haproxy=True))


def test_choose_connections_respects_open_file_limit() -> None:
    assert choose_connections(-1) == choose_connections(20_000) == 4096
    # It needs 2.5 open files per connection, and 36 more.
    assert 0.9 * 4096 < choose_connections(4096) * 2.5 + 36 < 4096
    assert choose_connections(64) == 1


def decide(
    replicas: int,
    requests: float = 0,
    waiting_tokens: float = 0,
    kv_usage: float = 0,
    streams: float = 0,
) -> int:
    """Return the policy's decision if every replica reports the same."""
    policy = LoadPolicy(**build_policy_arguments(RaySettings()))  # pyright: ignore[reportArgumentType]
    metrics = {
        name: dict.fromkeys(range(replicas), value)
        for name, value in (
            (REQUESTS, requests),
            (WAITING_TOKENS, waiting_tokens),
            (KV_USAGE, kv_usage),
        )
    }
    context: Any = SimpleNamespace(
        current_num_replicas=replicas, total_num_requests=streams, aggregated_metrics=metrics
    )
    number, state = policy(context)
    assert state == {}
    return number


def test_load_policy_scales_by_scarcest_resource() -> None:
    assert decide(2) == 1
    assert decide(2, requests=32) == 2
    assert decide(2, requests=33) == 3
    assert decide(2, kv_usage=0.8) == 2
    assert decide(2, kv_usage=0.9) == 3
    assert decide(2, requests=8, waiting_tokens=20_000) == 7
    assert decide(1, streams=65) == 3
    # A short queue does not prevent scaling down.
    assert decide(4, requests=16, waiting_tokens=100) == 2


def test_load_policy_without_reports_uses_ray_request_count() -> None:
    policy = LoadPolicy(target_requests=10, target_waiting_tokens=1000, target_kv_usage=0.5)
    context: Any = SimpleNamespace(
        current_num_replicas=1, total_num_requests=25.0, aggregated_metrics=None
    )
    assert policy(context)[0] == 3


def test_measure_load_idle_server_is_zero() -> None:
    models = build_models(load_keywords({"model": "sim", "store": "none"}), SystemClock())
    assert measure_load(models) == {REQUESTS: 0.0, WAITING_TOKENS: 0.0, KV_USAGE: 0.0}


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_deploy_command_without_ray_names_missing_extra() -> None:
    assert "pip install 'dragoman[ray]'" in get_error("deploy", "tiny")


def test_ray_docs_list_every_setting_with_default() -> None:
    page = (Path(__file__).parents[4] / "docs/ray.md").read_text()
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| `")]
    listed = {
        name.strip(" `").replace("-", "_"): default.strip()
        for row in rows
        for name, default in zip(
            row[1].split(","), row[2].rsplit(",", row[1].count(",")), strict=True
        )
    }
    written = {
        name: "none" if value is None else f"`{value}`" if isinstance(value, str) else f"{value:g}"
        for name, value in structs.asdict(RaySettings()).items()
    }
    assert listed == written | {"haproxy": "if installed"}
