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
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key
from tests.loopback import MAX_POLLS, find_free_port, pause

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = shutil.which("prometheus")
KEY = "k" * 40
LIMITED_KEY = "l" * 40
HEADERS = {"authorization": f"Bearer {KEY}"}
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
def scraping(folder: Path, *targets: str) -> Generator[httpx2.Client]:
    """Run Prometheus and yield a client. Only addresses, paths and intervals of its
    configuration are replaced.
    """
    assert PROMETHEUS is not None
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())
    config["global"] = {
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "evaluation_interval": "1s",
    }
    config["rule_files"] = [str(DEPLOY / "prometheus/alerts.yaml")]
    [job] = config["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    # The key of an administrator, which servers with keys require for their metrics.
    job["authorization"] = {"credentials": KEY}
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
        httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30) as client,
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
                target["expr"].replace("$model", ".*").replace("$__rate_interval", "1m"),
            )


def chat(server: str, key: str = KEY) -> int:
    headers = {"authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
    return httpx2.post(
        f"http://{server}/v1/chat/completions", json=body, headers=headers, timeout=30
    ).status_code


def test_prometheus_queries_find_exported_metrics(tmp_path: Path) -> None:
    tenant = Tenant(secrets=(KeyHash(hash_key(KEY)),), role="admin", requests_per_minute=100_000)
    limited = Tenant(secrets=(KeyHash(hash_key(LIMITED_KEY)),), requests_per_minute=1)
    edit_key_file(
        tmp_path / "keys.yaml",
        lambda tenants: tenants.update({"team-a": tenant, "team-b": limited}),
    )
    speculation = '{"method": "ngram", "num_speculative_tokens": 2}'
    simulated = ("sim", "--speculative-config", speculation, "--time-scale", "100")
    with (
        serving(tmp_path, *simulated) as sim,
        serving(tmp_path, "scripted", "--workers", "2") as workers,
        scraping(tmp_path, sim, workers) as prometheus,
    ):
        exported = "".join(
            httpx2.get(f"http://{server}/metrics", headers=HEADERS).text
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
