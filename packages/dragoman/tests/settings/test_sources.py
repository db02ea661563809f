"""Sources of settings, their precedence, and error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.settings import (
    GenerationConfig,
    Settings,
    SettingsError,
    is_loopback,
    load_keywords,
    load_settings,
)


def write(folder: Path, text: str, name: str = "config.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_command_line_overrides_environment_overrides_file(tmp_path: Path):
    file = write(
        tmp_path, "port = 1\nmax_queued_requests = 1\nstrict = true\napi_profile = 'vllm'\n"
    )
    environment = {
        "DRAGOMAN_CONFIG": file,
        "DRAGOMAN_PORT": "2",
        "DRAGOMAN_MAX_QUEUED_REQUESTS": "2",
        "HOME": "/",
    }
    settings = load_settings({"port": "3", "strict": False, "uds": None}, environment)
    assert (settings.port, settings.max_queued_requests, settings.api_profile, settings.strict) == (
        3,
        2,
        "vllm",
        False,
    )
    assert settings.config == file


SERVICE_LINKS = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "80",
    "SERVICE_PORT_HTTP": "80",
    "PORT": "tcp://10.0.0.1:80",
    "PORT_80_TCP": "tcp://10.0.0.1:80",
    "PORT_80_TCP_PROTO": "tcp",
    "PORT_80_TCP_PORT": "80",
    "PORT_80_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["DRAGOMAN", "DRAGOMAN_DRAGOMAN", "DRAGOMAN_SERVE_SVC"])
def test_kubernetes_service_variables_are_ignored(service: str):
    links = {f"{service}_{name}": value for name, value in SERVICE_LINKS.items()}
    settings = load_settings({}, {**links, "DRAGOMAN_MAX_QUEUED_REQUESTS": "2"})
    assert (settings.port, settings.max_queued_requests) == (8000, 2)
    # A pod's own variables replace those of Kubernetes.
    assert load_settings({}, {**links, "DRAGOMAN_PORT": "9"}).port == 9
    with pytest.raises(SettingsError, match=f"{service}_PORTS: unknown setting"):
        load_settings({}, {**links, f"{service}_PORTS": "9"})
    del links[f"{service}_SERVICE_HOST"]
    with pytest.raises(SettingsError):
        load_settings({}, links)


def test_config_file_option_overrides_config_variable(tmp_path: Path):
    ours = write(tmp_path, "port = 1")
    other = write(tmp_path, "port = 2", "other.toml")
    assert load_settings({"config": ours}, {"DRAGOMAN_CONFIG": other}).port == 1


TOML = """
model = "scripted:demo.yaml"
served-model-name = ["a", "b"]
max_model_len = "8K"
api-key = ["one"]
access_log = false
keepalive_interval = 2
override_generation_config = {temperature = 0.5, top_p = 0.9}
"""
YAML = """
model: scripted:demo.yaml
served_model_name: [a, b]
max-model-len: 8192
api_key: one
access_log: no
keepalive_interval: 2.0
override-generation-config:
  temperature: 0.5
  top_p: 0.9
uds:
"""


@pytest.mark.parametrize(("text", "name"), [(TOML, "c.toml"), (YAML, "c.yaml"), (YAML, "c.yml")])
def test_config_file_formats_are_equivalent(tmp_path: Path, text: str, name: str):
    file = write(tmp_path, text, name)
    assert load_settings({"config": file}, {}) == Settings(
        model="scripted:demo.yaml",
        served_model_name=("a", "b"),
        max_model_len=8192,
        api_key=("one",),
        access_log=False,
        keepalive_interval=2.0,
        override_generation_config=GenerationConfig(temperature=0.5, top_p=0.9),
        config=file,
    )


@pytest.mark.parametrize("name", ["empty.toml", "empty.yaml"])
def test_config_file_empty_returns_defaults(tmp_path: Path, name: str):
    file = write(tmp_path, "", name)
    assert load_settings({"config": file}, {}) == Settings(config=file)


def test_environment_lists_split_at_commas():
    settings = load_settings(
        {}, {"DRAGOMAN_API_KEY": "one, two", "DRAGOMAN_SERVED_MODEL_NAME": "a,b"}
    )
    assert (settings.api_key, settings.served_model_name) == (("one", "two"), ("a", "b"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1m", 10**6), ("2M", 2**21), (" 1g ", 10**9)],
)
def test_token_counts_accept_unit_suffix(text: str, value: int):
    assert load_settings({"max_model_len": text}, {}).max_model_len == value


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_boolean_settings_accept_common_words(text: str):
    assert load_settings({}, {"DRAGOMAN_STRICT": text}).strict
    assert not load_settings(
        {}, {"DRAGOMAN_STRICT": {"1": "0", "true": "False", "YES": "no", "on": "off"}[text]}
    ).strict


@pytest.mark.parametrize(("word", "value"), [("true", False), ("false", True)])
def test_negated_options_accepted_in_file_and_environment(tmp_path: Path, word: str, value: bool):
    text = f"no-access-log: {word}\nno_ui: {word}\nkeep-agent-nonces: {word}\nrequire-auth: {word}"
    environment = {
        "DRAGOMAN_NO_ACCESS_LOG": word,
        "DRAGOMAN_NO_UI": word,
        "DRAGOMAN_KEEP_AGENT_NONCES": word,
        "DRAGOMAN_REQUIRE_AUTH": word,
    }
    for settings in (
        load_settings({"config": write(tmp_path, text, "c.yaml")}, {}),
        load_settings({}, environment),
    ):
        switches = (settings.access_log, settings.ui, settings.drop_agent_nonces, settings.no_auth)
        assert switches == (value,) * 4
    assert load_keywords({"no_access_log": word}).access_log is value
    entries = json.dumps({"a": {"model": "tiny", "no-enable-prefix-caching": word}})
    (entry,) = load_settings({"models": entries}, {}).models.entries
    assert entry.overrides == (("model", "tiny"), ("enable_prefix_caching", value))


def test_command_line_overrides_negated_environment_option():
    assert load_settings({"ui": True}, {"DRAGOMAN_NO_UI": "1"}).ui


@pytest.mark.parametrize(
    ("fields", "environment", "why"),
    [
        ({"port": "70000"}, {}, "--port: must be from 0 to 65535, not 70000"),
        ({"port": "8k"}, {}, "--port: must be a whole number, not '8k'"),
        ({"port": "8.5"}, {}, "whole number"),
        ({"port": "9" * 5000}, {}, "whole number"),
        ({"max_model_len": "0"}, {}, "--max-model-len: must be at least 1, not 0"),
        ({"max_model_len": "8t"}, {}, "may end in k, m, g"),
        ({"keepalive_interval": "nan"}, {}, "--keepalive-interval: must be a number, not 'nan'"),
        ({"keepalive_interval": "1e999"}, {}, "must be a number"),
        ({"api_profile": "azure"}, {}, "--api-profile: must be one of openai, vllm, not 'azure'"),
        ({"model": " "}, {}, "--model: must be text"),
        ({"override_generation_config": "{"}, {}, "--override-generation-config: .*JSON object of "
            "temperature"),
        ({"override_generation_config": '{"temp": 1}'}, {}, "unknown field `temp`"),
        ({"override_generation_config": '{"top_p": 2}'}, {}, "config: top_p: .*<= 1"),
        ({}, {"DRAGOMAN_PORT": "x"}, "environment DRAGOMAN_PORT: must be a whole number"),
        ({}, {"DRAGOMAN_PORT": ""}, "environment DRAGOMAN_PORT: must be a whole number, not ''"),
        ({}, {"DRAGOMAN_STRICT": "perhaps"}, "DRAGOMAN_STRICT: must be true or false, not "
            "'perhaps'"),
        ({}, {"DRAGOMAN_PROT": "1"}, r"environment DRAGOMAN_PROT: unknown setting. Did you mean "
            r"DRAGOMAN_PORT\?"),
        ({}, {"DRAGOMAN_port": "1"}, r"DRAGOMAN_port: .* Did you mean DRAGOMAN_PORT\?"),
        ({}, {"DRAGOMAN_UVICORN_LOG_LEVEL": "info"}, "is DRAGOMAN_LOG_LEVEL here"),
        ({}, {"DRAGOMAN_DISABLE_UVICORN_ACCESS_LOG": "1"}, "is DRAGOMAN_NO_ACCESS_LOG here"),
        ({}, {"DRAGOMAN_NO_UIS": "1"}, r"unknown setting. Did you mean DRAGOMAN_NO_UI\?"),
        ({}, {"DRAGOMAN_NO_ATH": "1"}, "unknown setting.$"),
        ({}, {"DRAGOMAN_NO_UI": "maybe"}, "^DRAGOMAN_NO_UI: must be true or false, not 'maybe'"),
        ({}, {"DRAGOMAN_UI": "1", "DRAGOMAN_NO_UI": "1"}, "^DRAGOMAN_NO_UI and DRAGOMAN_UI: one "
            "is the inverse"),
        ({}, {"DRAGOMAN_XYZZY": "1"}, "unknown setting.$"),
        ({"config": "absent.toml"}, {}, "^--config: absent.toml does not exist$"),
        ({}, {"DRAGOMAN_CONFIG": "absent.toml"}, "^environment DRAGOMAN_CONFIG: absent.toml does "
            "not exist$"),
        ({"config": "settings.ini"}, {}, "settings.ini: a configuration file must end in .toml"),
        ({"uds": "/tmp/s", "port": "1"}, {}, "--uds and --port"),
        ({"uds": "/tmp/s"}, {"DRAGOMAN_HOST": "::1"}, "--uds and environment DRAGOMAN_HOST"),
        ({"host": "0.0.0.0"}, {}, "--host: 0.0.0.0 is reachable from other machines"),
        ({}, {"DRAGOMAN_HOST": "example.com"}, "environment DRAGOMAN_HOST: example.com is "
            "reachable"),
    ],
)  # fmt: skip
def test_settings_error_names_source(
    fields: dict[str, object], environment: dict[str, str], why: str
):
    with pytest.raises(SettingsError, match=why):
        load_settings(fields, environment)


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("port = 70000", "c.toml", "c.toml: port: must be from 0 to 65535"),
        ("port = true", "c.toml", "whole number, not True"),
        ("port = 8.0", "c.toml", "whole number, not 8.0"),
        ("strict = 1", "c.toml", "true or false, not 1"),
        ("host = 3", "c.toml", "must be text, not 3"),
        ("served_model_name = [1]", "c.toml", "must be text, not 1"),
        ("served_model_name = 1", "c.toml", "must be a list"),
        (
            "max-modellen = 3",
            "c.toml",
            r"max-modellen: unknown setting. Did you mean max_model_len\?",
        ),
        ("max-model-len = 3\nmax_model_len = 4", "c.toml", "set twice"),
        ("port = 1\nport = 2", "c.toml", "c.toml: "),
        ("config = 'other.toml'", "c.toml", "cannot include another"),
        ("[server]\nport = 1", "c.toml", "server: unknown setting"),
        ("override_generation_config = {temperature = inf}", "c.toml", "must be finite"),
        ("override_generation_config = 3", "c.toml", "Expected `object`"),
        ("port", "c.toml", "c.toml: "),
        ("port: 1\nport: 2", "c.yaml", "line 1: 'port' appears twice"),
        ("models:\n  a: {model: x, model: y}", "c.yaml", "line 2: 'model' appears twice"),
        ("models: " + "[" * 5000, "c.yaml", "nested too deeply"),
        ("- port", "c.yaml", "lines"),
        ("port: [", "c.yaml", "c.yaml: "),
        ("port: !!python/object:os.system x", "c.yaml", "c.yaml: "),
        ("3: 4", "c.yaml", "3: unknown setting"),
        ("api_profile: [openai]", "c.yaml", "must be one of"),
    ],
)
def test_config_file_error_names_key(tmp_path: Path, text: str, name: str, why: str):
    with pytest.raises(SettingsError, match=why) as caught:
        load_settings({"config": write(tmp_path, text, name)}, {})
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("key", ["", "sk secret", "sk-sécret", "sk\n"])
def test_invalid_api_key_error_hides_key(key: str):
    with pytest.raises(SettingsError, match="--api-key: a key must be") as caught:
        load_settings({"api_key": [key]}, {})
    assert "sk" not in str(caught.value)


def test_non_loopback_host_requires_key_or_no_auth():
    assert load_settings({"host": "0.0.0.0", "api_key": ["k"]}, {}).host == "0.0.0.0"
    assert load_settings({"host": "0.0.0.0", "no_auth": True}, {}).no_auth
    assert load_settings({"uds": "/tmp/socket"}, {}).uds == "/tmp/socket"
    with pytest.raises(SettingsError, match="is reachable"):
        load_settings({"host": "0.0.0.0", "admin_api_key": ["k"]}, {})


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("::", False),
        ("localhost.it", False),
    ],
)
def test_is_loopback_accepts_only_local_addresses(host: str, expected: bool):
    assert is_loopback(host) is expected
