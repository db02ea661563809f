"""A real Prometheus scrapes real servers, and evaluates every query of the dashboard
and every alert.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key
from tests.deploy.helm_subset import Chart
from tests.loopback import MAX_POLLS, find_free_port, pause

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yaml"
PROMETHEUS = shutil.which("prometheus")
KEY = "k" * 40
LIMITED_KEY = "l" * 40
METRICS_KEY = "m" * 40
HEADERS = {"authorization": f"Bearer {METRICS_KEY}"}
ATTEMPTS = 80

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")


@contextmanager
def serving(folder: Path, *arguments: str) -> Generator[str]:
    """Run a server and yield its address. It is killed at the end."""
    port = find_free_port()
    command = [sys.executable, "-m", "dragoman", "serve", *arguments, "--port", str(port)]
    command += ["--no-access-log", "--keys-file", "keys.yaml"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert f":{port}" in process.stdout.readline()
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def scraping(folder: Path, job: dict[str, Any], rules: Path = RULES) -> Generator[httpx2.Client]:
    """Run Prometheus and yield a client.

    job: an entry of `scrape_configs`.
    """
    assert PROMETHEUS is not None
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(rules)],
        "scrape_configs": [job],
    }
    path = folder / "prometheus.json"
    port = find_free_port()
    path.write_text(json.dumps(config))
    command = [
        PROMETHEUS,
        f"--config.file={path}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with (
        subprocess.Popen(command) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as client,
    ):
        try:
            for _ in range(MAX_POLLS):
                assert process.poll() is None
                try:
                    if client.get("/status/config").status_code == 200:
                        break
                except httpx2.TransportError:
                    pass
                pause()
            yield client
        finally:
            process.kill()


def build_compose_job(*targets: str) -> dict[str, Any]:
    """Return the job of Compose's configuration, with these targets and a key of the
    role `metrics`.
    """
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())
    [job] = config["scrape_configs"]
    return {
        **job,
        "static_configs": [{"targets": list(targets)}],
        "authorization": {"credentials": METRICS_KEY},
    }


def build_operator_job(*targets: str) -> dict[str, Any]:
    """Return the job that the Prometheus operator makes of the chart's ServiceMonitor:
    the `job` of a target is the name of the service, or its label that `jobLabel` names.

    https://github.com/prometheus-operator/prometheus-operator (pkg/prometheus/promcfg.go)
    """
    overrides = {"serviceMonitor": {"enabled": True, "keySecret": "prometheus-key"}}
    chart = Chart(DEPLOY / "helm/dragoman", overrides)
    [monitor] = chart.render("servicemonitor.yaml")
    [service] = chart.render("service.yaml")
    labels: dict[str, str] = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    secret = endpoint["authorization"]["credentials"]
    assert secret == {"name": "prometheus-key", "key": "key"}
    found = {f"__meta_kubernetes_service_label_{escape(name)}": labels[name] for name in labels}
    relabeling = [{"source_labels": ["__meta_kubernetes_service_name"], "target_label": "job"}]
    if "jobLabel" in monitor["spec"]:
        label = f"__meta_kubernetes_service_label_{escape(monitor['spec']['jobLabel'])}"
        relabeling.append({"source_labels": [label], "regex": "(.+)", "target_label": "job"})
    name = monitor["metadata"]["name"]
    return {
        "job_name": f"serviceMonitor/models/{name}/0",
        "metrics_path": endpoint["path"],
        "static_configs": [
            {
                "targets": list(targets),
                "labels": {**found, "__meta_kubernetes_service_name": service["metadata"]["name"]},
            }
        ],
        "relabel_configs": relabeling,
        "authorization": {"credentials": METRICS_KEY},
    }


def escape(label: str) -> str:
    """Write a label of Kubernetes as Prometheus does in its own."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def write_keys(folder: Path) -> None:
    """Write the keys of a user with limits, one without, and Prometheus."""

    team_a = Tenant(secrets=(KeyHash(hash_key(KEY)),), requests_per_minute=100_000)
    team_b = Tenant(secrets=(KeyHash(hash_key(LIMITED_KEY)),), requests_per_minute=1)
    prometheus = Tenant(secrets=(KeyHash(hash_key(METRICS_KEY)),), role="metrics")
    tenants = {"team-a": team_a, "team-b": team_b, "prometheus": prometheus}
    edit_key_file(folder / "keys.yaml", lambda found: found.update(tenants))


def query(client: httpx2.Client, expression: str) -> list[float]:
    """Return the current values of a query's series."""
    answer: dict[str, Any] = client.get("/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def read_dashboard() -> Iterator[tuple[str, str]]:
    """Return the title and one query of each panel, for all models and a window of one
    minute.
    """
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana/dragoman.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield (
                panel["title"],
                target["expr"]
                .replace("$model", ".*")
                .replace("$job", "dragoman")
                .replace("$__rate_interval", "1m"),
            )


def chat(server: str, key: str = KEY) -> int:
    headers = {"authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
    return httpx2.post(
        f"http://{server}/v1/chat/completions", json=body, headers=headers, timeout=30
    ).status_code


@pytest.mark.parametrize("build_job", [build_compose_job, build_operator_job])
def test_prometheus_alert_fires_for_lost_target(
    tmp_path: Path, build_job: Callable[..., dict[str, Any]]
) -> None:
    write_keys(tmp_path)
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "0s"
    at_once = tmp_path / "alerts.json"
    at_once.write_text(json.dumps(rules))
    with serving(tmp_path, "scripted") as server:
        lost = f"127.0.0.1:{find_free_port()}"
        with scraping(tmp_path, build_job(server, lost), at_once) as prometheus:
            alerts: list[dict[str, Any]] = []
            for _ in range(MAX_POLLS):
                ups = query(prometheus, 'up{job="dragoman"}')
                alerts = prometheus.get("/alerts").json()["data"]["alerts"]
                names = {alert["labels"]["alertname"] for alert in alerts}
                # Before the first scrape the job is absent, of which another alert tells.
                if sorted(ups) == [0.0, 1.0] and names == {"DragomanDown"}:
                    break
                pause()
            assert [
                (alert["labels"]["alertname"], alert["state"], alert["labels"]["instance"])
                for alert in alerts
            ] == [("DragomanDown", "firing", lost)]
            assert query(prometheus, 'dragoman_build_info{job="dragoman"}') == [1.0]


def test_prometheus_queries_find_exported_metrics(tmp_path: Path) -> None:
    write_keys(tmp_path)
    speculation = '{"method": "ngram", "num_speculative_tokens": 2}'
    simulated = ("sim", "--speculative-config", speculation, "--time-scale", "100")
    with (
        serving(tmp_path, *simulated) as sim,
        serving(tmp_path, "scripted", "--workers", "2") as workers,
        scraping(tmp_path, build_operator_job(sim, workers)) as prometheus,
    ):
        exported = "".join(
            httpx2.get(f"http://{server}/metrics", headers=HEADERS, timeout=60).text
            for server in (sim, workers)
        )
        names = set(re.findall(r"^# TYPE (\S+) ", exported, re.MULTILINE))
        panels = [(title, expression) for title, expression in read_dashboard() if title in names]
        assert len(panels) > 50
        found: dict[str, list[float]] = {}
        # A rate needs two scrapes of a series.
        for _ in range(ATTEMPTS):
            assert chat(sim) == chat(workers) == 200
            assert chat(sim, LIMITED_KEY) in (200, 429)
            found |= {
                title: query(prometheus, expression)
                for title, expression in panels
                if not found.get(title)
            }
            if all(found.values()):
                break
        assert not [title for title, values in found.items() if not values]
        generated = query(prometheus, dict(panels)["vllm:generation_tokens_total"])
        assert len(generated) == 2
        assert all(value > 0 and math.isfinite(value) for value in generated)
        groups: list[dict[str, Any]] = prometheus.get("/rules").json()["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        assert {rule["health"] for rule in rules.values()} == {"ok"}
        assert {rule["state"] for rule in rules.values()} == {"inactive"}
