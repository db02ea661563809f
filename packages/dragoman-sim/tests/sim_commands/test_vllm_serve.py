"""`dragoman serve sim` takes the arguments of `vllm serve`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dragoman.commands.serve_command import build_serve_command
from dragoman.launch import build_greeting, build_models
from dragoman.launch.unsupported_settings import warn_unsupported
from dragoman.serving.clock import SystemClock
from dragoman.settings import FIELDS, Settings
from dragoman_sim.engine.kv_publisher import parse_kv_events_config
from dragoman_sim.settings import SimulatorSettings
from dragoman_sim.vllm_flags import REFUSED, explain_vllm_flag
from dragoman_sim.vllm_serve_flags import find_serve_flag, load_serve_flags

NO_VARIABLES: Mapping[str, str] = {}


def parse(line: str, environment: Mapping[str, str] = NO_VARIABLES) -> tuple[Settings | None, str]:
    """Return the settings of a command line after `dragoman serve`, and the error."""
    served: list[Settings] = []

    def run(settings: Settings, *_: object) -> int:
        served.append(settings)
        return 0

    result = CliRunner().invoke(build_serve_command(run, environment), shlex.split(line))
    return (served[0] if served else None), " ".join(result.output.split())


def read(line: str, environment: Mapping[str, str] = NO_VARIABLES) -> Settings:
    settings, error = parse(line, environment)
    assert settings is not None, error
    return settings


def read_simulator(line: str) -> SimulatorSettings:
    return read(line).of(SimulatorSettings)


def explain(settings: Settings, flag: str) -> str:
    """Return the only notice that begins with a flag."""
    notices = (*settings.notices, *settings.information)
    (notice,) = (each for each in notices if flag in each.partition(" of vLLM")[0])
    return notice


def test_flag_with_several_values_sets_all_of_them() -> None:
    settings = read("sim --served-model-name one two --lora-modules a=/x b=/y --port 9000")
    assert settings.served_model_name == ("one", "two")
    assert settings.lora_modules == ("a=/x", "b=/y")
    assert settings.port == 9000
    assert settings.notices == ()
    repeated = read("sim --lora-modules a=/x --lora-modules b=/y")
    assert repeated.lora_modules == settings.lora_modules


def test_lora_modules_take_json() -> None:
    adapter = '{"name": "a", "path": "/x", "base_model_name": "m"}'
    settings = read(f"sim --lora-modules {shlex.quote(adapter)} b=/y")
    assert settings.lora_modules == (adapter, "b=/y")
    assert build_models(settings, SystemClock())


def test_dotted_flags_become_one_json_value() -> None:
    settings = read(
        "sim --kv-transfer-config.kv_connector NixlConnector --kv_transfer_config.kv_role=kv_both"
        " --speculative-config.num_speculative_tokens 3 -sc.method ngram"
    )
    assert msgspec.json.decode(settings.kv_transfer_config or "") == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
    }
    assert msgspec.json.decode(settings.speculative_config or "") == {
        "num_speculative_tokens": 3,
        "method": "ngram",
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--disable-prefix-caching", "enable_prefix_caching", False),
        ("--enable-prefix-caching", "enable_prefix_caching", True),
        ("--enable-chunked-prefill False", "enable_chunked_prefill", False),
        ("--enable_chunked_prefill=true", "enable_chunked_prefill", True),
        ("--no-async-scheduling", "async_scheduling", False),
        ("--max-model-len 8k", "max_model_len", 8000),
        ("--max-model-len 25.6k", "max_model_len", 25600),
        ("--max-model-len auto", "max_model_len", None),
        ("--max-model-len -1", "max_model_len", None),
        ("--max-num-batched-tokens 8K", "max_num_batched_tokens", 8192),
        ("--max-num-queued-reqs 7", "max_queued_requests", 7),
        (
            "--max-num-scheduled-tokens 512 --max-num-batched-tokens 8k",
            "max_num_batched_tokens",
            512,
        ),
        ("--uvicorn-log-level trace", "log_level", "debug"),
        ("--log-level WARNING", "log_level", "warning"),
        ("--disable-uvicorn-access-log", "access_log", False),
        ("--allowed-origins '[\"https://a.example\"]'", "allowed_origins", ("https://a.example",)),
        ("--allowed-origins https://a.example", "allowed_origins", ("https://a.example",)),
        ("-dp 4", "data_parallel_size", 4),
        ("--kv-cache-dtype fp8_e4m3", "kv_cache_dtype", "fp8_e4m3"),
        ("--kv-cache-dtype auto", "kv_cache_dtype", "auto"),
        ("--disable-hybrid-kv-cache-manager", "disable_hybrid_kv_cache_manager", True),
        ("--no-disable-hybrid-kv-cache-manager", "disable_hybrid_kv_cache_manager", False),
        ("--enable-hybrid-kv-cache-manager", "disable_hybrid_kv_cache_manager", False),
        ("--prefix-cache-retention-interval 64", "prefix_cache_retention_interval", 64),
        ("-dp 16 --data-parallel-size-local 8 --data-parallel-hybrid-lb", "data_parallel_size", 8),
        ("-dp 16 --data-parallel-rank 3", "data_parallel_size", 1),
        ("--prefix-caching-hash-algo sha256_cbor", "prefix_caching_hash_algo", "sha256_cbor"),
        ("--tensor-parallel-size 1 --profile rtx4090-llama-3.1-8b", "tensor_parallel_size", 1),
        ("--gpu-memory-util 0.9 --max-num-se 8", "max_num_seqs", 8),
        ("--max-logprobs 5", "max_logprobs", 5),
        ("--max-logprobs -1", "max_logprobs", 1000),
    ],
)
def test_vllm_flag_sets_setting(line: str, name: str, value: object) -> None:
    assert read(f"sim {line}").get(name) == value


@pytest.mark.parametrize(
    ("line", "flag", "reason"),
    [
        ("--gpu-memory-utilization 0.9", "--gpu-memory-utilization", "number of KV cache blocks"),
        ("--trust-remote-code", "--trust-remote-code", "no model is loaded"),
        ("--disable-log-requests", "--disable-log-requests", "vLLM's own logs"),
        ("--no-enable-log-requests", "--no-enable-log-requests", "vLLM's own logs"),
        ("--max-lora-rank 64", "--max-lora-rank", "cost of adapters"),
        ("-O3", "--optimization-level", "time that steps take"),
        ("-O'{\"mode\":3}'", "--compilation-config", "time that steps take"),
        ("-cc.mode=3", "-cc", "time that steps take"),
        ("--dtype half", "--dtype", "time that steps take"),
        ("--swap-space 4", "--swap-space", "no such flag any more"),
        ("--task generate", "--task", "no such flag any more"),
        ("-tp 8", "-tp", "default profile"),
        ("--enable-expert-parallel", "--enable-expert-parallel", "profile"),
        ("--pipeline-parallel-size 2", "--pipeline-parallel-size", "not simulated"),
        ("--chat-template examples/none.jinja", "--chat-template", "there is no file"),
        ("--tool-call-parser newest", "--tool-call-parser", "no parser newest"),
        ("--reasoning-parser newest", "--reasoning-parser", "no parser newest"),
        ("--api-server-count 4", "--api-server-count", "HTTP server"),
        ("--hf-token --port 0", "--hf-token", "no model is loaded"),
        ("--kv-cache-dtype nvfp4", "--kv-cache-dtype", "size of this format"),
        ("--cudagraph-capture-sizes 1 2 4 8", "--cudagraph-capture-sizes", "time that steps"),
        ("--headless False", "--headless", "no HTTP"),
    ],
)
def test_vllm_flag_without_effect_is_explained(line: str, flag: str, reason: str) -> None:
    notice = explain(read(f"sim {line}"), flag)
    assert "no effect on `sim`" in notice
    assert reason in notice


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--headless", "serves no HTTP"),
        ("--grpc", "only HTTP"),
        ("--ssl-cert-reqs 2", "the server would be open"),
        ("--middleware my.Auth", "may be what protects the server"),
        ("--profile rtx4090-llama-3.1-8b -dp 0", "-dp of vLLM must be a number"),
        (
            '--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1", "kv_role":'
            ' "kv_producer"}\'',
            "transfers of kv_connector",
        ),
        ("--kv-transfer-config nothing", "must be a JSON object"),
        ("--port", "--port of vLLM needs a value"),
        ("--enable-lora=2", "--enable-lora of vLLM takes no value"),
        ("--config missing.yaml", "missing.yaml"),
        ("--no-such-thing 4", "No such option '--no-such-thing'"),
    ],
)
def test_unignorable_vllm_flag_is_rejected(line: str, message: str) -> None:
    settings, error = parse(f"sim {line}")
    assert settings is None
    assert message in error


def test_every_vllm_flag_is_accepted_or_refused() -> None:
    """With a valid value of its kind, and none without an effect or a notice."""
    values = {
        "host": "127.0.0.2",
        "config": None,
        "lora-modules": "a=/x",
        "kv-transfer-config": '{"kv_role": "kv_both"}',
        "kv-events-config": "{}",
        "speculative-config": '{"num_speculative_tokens": 1}',
        "override-generation-config": '{"top_k": 5}',
        "scheduling-policy": "priority",
        "uvicorn-log-level": "debug",
        "log-level": "DEBUG",
        "prefix-caching-hash-algo": "sha256_cbor",
        "kv-offloading-backend": "lmcache",
        "watermark": "0.5",
        "ssl-certfile": None,
        "ssl-keyfile": None,
        "tool-call-parser": "hermes",
        "reasoning-parser": "qwen3",
    }
    refused: set[str] = set()
    default = read("sim")
    for flag in load_serve_flags():
        value = values.get(flag.name, "7")
        if value is None:
            continue
        written = [flag.names[0]] if flag.arity == "0" else [flag.names[0], value]
        settings, error = parse(shlex.join(["sim", *written]))
        if settings is None:
            refused.add(flag.name)
            assert explain_vllm_flag(flag.names[0]) in REFUSED, error
        elif settings.notices:
            assert flag.names[0] in settings.notices[0]
        elif flag.arity != "0":
            assert settings != default, flag.name
    assert refused == {"headless", "grpc", "middleware", "ssl-ca-certs", "ssl-cert-reqs"}


NOT_SIMULATED = frozenset(
    {
        "model",  # the model's name, beside the engine
        "config",  # a file of either
        "revision",  # of a model that is loaded, as all below
        "trust_remote_code",
        "dtype",
        "device",
        "quantization",
        "attention_backend",
        "api_server_count",  # front ends of an engine process; the simulator has none
    }
)
"""Settings of which vLLM has the flag, but that have no effect on the simulator."""


def test_vllm_flag_of_a_setting_sets_it() -> None:
    values = {
        "override_generation_config": '{"top_k": 5}',
        "tool_call_parser": "hermes",
        "reasoning_parser": "qwen3",
        "chat_template": "{{ messages }}",
        "kv_cache_dtype": "fp8",
        "ssl_certfile": "pair.pem --ssl-keyfile pair.pem",
        "ssl_keyfile": "pair.pem --ssl-certfile pair.pem",
        "tensor_parallel_size": "7 --profile h100-llama-3.1-8b",
        "host": "127.0.0.2",
        "kv_transfer_config": '{"kv_role": "kv_both"}',
        "speculative_config": '{"num_speculative_tokens": 1}',
        "lora_modules": "a=/x",
        "watermark": "0.5",
        "scheduling_policy": "priority",
        "prefix_caching_hash_algo": "sha256_cbor",
        "log_level": "debug",
    }
    default = read("sim")
    without_effect: set[str] = set()
    for field in FIELDS:
        flag = find_serve_flag(field.flag)
        if flag is None or field.flag not in flag.names:
            continue
        words = [field.off_flag if field.default is True else field.flag]
        if field.kind is not bool:
            value = values.get(field.name, "7")
            words += value.split() if " --" in value else [value]
        settings, _ = parse(shlex.join(["sim", *words]))
        if settings is None or settings.get(field.name) == default.get(field.name):
            without_effect.add(field.name)
        else:
            assert settings.notices == (), field.name
    assert without_effect == NOT_SIMULATED


VLLM_FILE = """\
model: nvidia/Llama-3.3-70B-Instruct-FP8
kv-cache-dtype: fp8
no-enable-prefix-caching: true
async-scheduling: false
max-num-batched-tokens: 8192
served-model-name: [one, two]
speculative-config: {method: eagle3, num_speculative_tokens: 3, model: x/y}
"""


def test_vllm_config_file_sets_flags(tmp_path: Path) -> None:
    path = tmp_path / "Llama.yaml"
    path.write_text(VLLM_FILE, encoding="utf-8")
    settings = read(f"sim --config {path} --max-num-batched-tokens 4096")
    assert settings.served_model_name == ("one", "two")
    assert settings.max_num_batched_tokens == 4096, "the command line takes precedence"
    assert not settings.enable_prefix_caching
    assert not settings.of(SimulatorSettings).async_scheduling
    assert "eagle3" in (settings.speculative_config or "")
    assert settings.of(SimulatorSettings).kv_cache_dtype == "fp8"


def test_own_config_file_is_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("time-scale: 10\nmax-num-seqs: 3\n", encoding="utf-8")
    settings = read(f"sim --config {path}", {"DRAGOMAN_MAX_NUM_SEQS": "4"})
    assert settings.max_num_seqs == 4
    assert settings.of(SimulatorSettings).time_scale == 10
    path.write_text("time-scale: 10\ngpu-memory-utilization: 0.9\n", encoding="utf-8")
    assert "gpu-memory-utilization: unknown setting" in parse(f"sim --config {path}")[1]


@pytest.mark.parametrize("variable", [False, True])
def test_profile_in_own_file_has_its_devices(tmp_path: Path, variable: bool) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("profile: rtx4090-llama-3.1-8b\ntokenizer: org/name\n", encoding="utf-8")
    environment = {"DRAGOMAN_CONFIG": str(path)} if variable else {}
    words = "" if variable else f"--config {path}"
    settings = read(f"sim org/name -tp 2 {words}", environment)
    assert settings.of(SimulatorSettings).tensor_parallel_size == 2
    assert (settings.notices, settings.information) == ((), ())


@pytest.mark.parametrize(
    "line", ["sim org/name", "sim --model org/name", "sim vllm serve org/name"]
)
def test_model_of_vllm_is_served_name(line: str) -> None:
    settings = read(line)
    assert (settings.model, settings.served_model_name) == ("sim", ("org/name",))
    assert "no model is loaded" in settings.information[0]
    assert settings.notices == (), "no error with --strict"


def test_address_of_vllm_line_needs_no_key() -> None:
    settings = read("sim org/name --host 0.0.0.0")
    assert (settings.no_auth, settings.store) == (True, "memory")
    assert "everyone who reaches 0.0.0.0" in settings.information[-1]
    assert "routes of administrators" in settings.information[-1]
    assert "no API key is set" in parse("sim --host 0.0.0.0")[1], "no line of vLLM"
    assert read("sim org/name").host == "127.0.0.1"


@pytest.mark.parametrize(
    ("line", "environment"),
    [
        ("--api-key one two", {}),
        ("", {"VLLM_API_KEY": "one"}),
        ("", {"DRAGOMAN_API_KEY": "one"}),
    ],
)
def test_key_of_vllm_line_is_required(line: str, environment: dict[str, str]) -> None:
    settings = read(f"sim org/name --host 0.0.0.0 {line}", environment)
    assert not settings.no_auth
    assert settings.api_key[0] == "one"
    assert settings.store == "sqlite"


@pytest.mark.parametrize(
    "environment",
    [
        {"DRAGOMAN_REQUIRE_AUTH": "1"},
        {"DRAGOMAN_NO_AUTH": "0"},
        {"DRAGOMAN_KEYS_FILE": "keys.toml"},
    ],
)
def test_vllm_line_with_required_keys_is_not_open(environment: dict[str, str]) -> None:
    settings, error = parse("sim org/name --host 0.0.0.0", environment)
    if settings is None:
        assert "no API key is set" in error
    else:
        assert not settings.no_auth
        assert settings.store == "sqlite"
        assert not any("everyone" in line for line in settings.information)


@pytest.mark.parametrize("variable", [False, True])
def test_vllm_line_with_own_file_is_not_open(tmp_path: Path, variable: bool) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("require-auth: true\ntime-scale: 10\n", encoding="utf-8")
    environment = {"DRAGOMAN_CONFIG": str(path)} if variable else {}
    words = "" if variable else f" --config {path}"
    error = parse(f"sim org/name --host 0.0.0.0{words}", environment)[1]
    assert "no API key is set" in error


@pytest.mark.parametrize("word", ["--require-auth", "--require_auth"])
def test_vllm_line_with_require_auth_is_not_open(word: str) -> None:
    assert "no API key is set" in parse(f"sim org/name --host 0.0.0.0 {word}")[1]
    settings = read(f"sim org/name --host 0.0.0.0 {word}", {"VLLM_API_KEY": "one"})
    assert (settings.api_key, settings.no_auth) == (("one",), False)


@pytest.mark.parametrize(
    "line",
    ["--host 0.0.0.0 --enable-lora yes", "--host 0.0.0.0 org/name", "--port 80 yes --host ::"],
)
def test_later_positional_opens_no_server(line: str) -> None:
    assert "no API key is set" in parse(f"sim {line}")[1]


@pytest.mark.parametrize(
    "line",
    [
        "sim --host 0.0.0.0 --model org/name",
        "sim vllm serve --host 0.0.0.0 org/name",
        "sim org/name --host=0.0.0.0",
    ],
)
def test_every_form_of_vllm_line_needs_no_key(line: str) -> None:
    assert read(line).no_auth


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_address_of_vllm_line_changes_nothing(host: str) -> None:
    settings = read(f"sim org/name --host {host}")
    assert (settings.no_auth, settings.store) == (False, "sqlite")
    assert not any("everyone" in line for line in settings.information)


def test_ports_per_rank_become_instances() -> None:
    settings = read(
        "sim org/name --port 8200 --data-parallel-multi-port-external-lb -dp 16 -dpl 8"
        " --data-parallel-start-rank 8 --data-parallel-supervisor-port 8208"
    )
    assert len(settings.instances.items) == 8
    assert settings.data_parallel_size is None
    assert "from number 0 on" in explain(settings, "--data-parallel-multi-port-external-lb")


@pytest.mark.parametrize(
    ("flags", "first"),
    [
        ("-dpm -dp 16 -dpl 8 --data-parallel-start-rank 8", 8),
        ("-dpm -dp 16 -dpl 8 --node-rank 1", 8),
        ("-dpm -dp 16 -dpl 8", 0),
        ("-dp 16 -dpl 4 --data-parallel-start-rank 4 --data-parallel-hybrid-lb", 4),
        ("-dp 4 --data-parallel-rank 3", 3),
        ("-dp 4", 0),
        ("-dpm -dp 16 -dpl 8 --data-parallel-start-rank 0 --node-rank 1", 0),
    ],
)
def test_kv_events_ports_begin_at_first_rank_of_process(flags: str, first: int) -> None:
    config = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6000", "topic": "kv"}
    text = shlex.quote(msgspec.json.encode(config).decode())
    settings = read(f"sim org/name --kv-events-config {text} {flags}")
    assert settings.kv_events_config is not None
    read_back = parse_kv_events_config(settings.kv_events_config)
    assert read_back.endpoint == f"tcp://*:{5557 + first}"
    assert read_back.replay_endpoint == f"tcp://*:{6000 + first}"
    assert read_back.topic == "kv"


def test_connector_among_several_is_simulated() -> None:
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "connectors": [
                {
                    "kv_connector": "OffloadingConnector",
                    "kv_connector_extra_config": {"cpu_bytes_to_use": 2**31},
                },
                {
                    "kv_connector": "NixlConnector",
                    "kv_connector_extra_config": {"backends": ["UCX"], "lease_seconds": 9},
                    "kv_rank": 0,
                },
            ]
        },
    }
    text = shlex.quote(msgspec.json.encode(config).decode())
    settings = read(f"sim --kv-transfer-config {text}")
    chosen: dict[str, Any] = msgspec.json.decode(settings.kv_transfer_config or "")
    assert chosen == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lease_seconds": 9},
    }
    assert settings.of(SimulatorSettings).kv_offloading_size is None
    assert "not simulated together" in explain(settings, "OffloadingConnector")
    assert build_models(settings, SystemClock())
    notice = explain(settings, ".kv_connector_extra_config.backends")
    assert "--kv-transfer-config.kv_rank" in notice


def test_offloading_connector_sets_host_memory() -> None:
    settings = read(
        "sim --kv-transfer-config.kv_connector OffloadingConnector"
        " --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 4294967296"
    )
    assert settings.kv_transfer_config is None
    assert settings.of(SimulatorSettings).kv_offloading_size == 4


def test_strict_server_rejects_flags_without_effect() -> None:
    settings = read("sim --strict --dtype half")
    assert settings.strict
    with pytest.raises(Exception, match="--dtype of vLLM has no effect"):
        warn_unsupported(settings)


def test_retention_without_groups_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    settings = read("sim org/name --prefix-cache-retention-interval 64")
    assert build_models(settings, SystemClock())
    assert "--prefix-cache-retention-interval has no effect" in caplog.text
    with pytest.raises(Exception, match="--prefix-cache-retention-interval has no effect"):
        build_models(msgspec.structs.replace(settings, strict=True), SystemClock())


def test_strict_server_accepts_model_of_vllm_line() -> None:
    line = "sim org/name --strict --host 0.0.0.0 --data-parallel-rank 1 -dp 2"
    settings = read(line)
    assert len(settings.information) == 3
    warn_unsupported(settings)


def test_greeting_of_vllm_line_names_open_address() -> None:
    settings = read("sim org/name --host 0.0.0.0 --log-level critical")
    greeting = build_greeting(settings, build_models(settings, SystemClock()), 8000)
    assert "everyone who reaches 0.0.0.0" in greeting[-1]


def test_other_engine_keeps_its_arguments() -> None:
    assert "is an argument of vLLM's engine" in parse("tiny --gpu-memory-utilization 0.9")[1]
    assert parse("tiny --served-model-name sim")[0] is not None
