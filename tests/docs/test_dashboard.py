"""The dashboard and the alert rules match the metrics' definitions, and query only
metrics that servers export.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.serving.responses.harness import lifespan

from dragoman.launch import build_models, build_serving_options
from dragoman.launch.multiprocess.metrics_hub import build_engine_families, build_worker_families
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.tenants import KeyHash, Tenant, hash_key
from dragoman.tenants.shared_counters import SharedCounters
from dragoman.tenants.sqlite_limits import SqliteLimits

DEPLOY = Path(__file__).parents[2] / "deploy"
FUNCTIONS = frozenset(
    {
        "histogram_quantile",
        "sum",
        "by",
        "rate",
        "increase",
        "max",
        "and",
        "changes",
        "absent",
        "min",
        "or",
    }
    | {"label_values", "model_name", "job", "up"}
)
"""Keywords and functions of PromQL; `up` is a metric of Prometheus itself."""


async def scrape(**settings: Any) -> str:
    """Return the metrics of a server after some requests of a named key, one of which
    is rejected.
    """
    # Only administrators see the metrics of keys.
    key = KeyHash(hash_key("a"))
    tenants = {"a": Tenant(secrets=(key,), role="admin", requests_per_minute=2)}
    read = Settings(served_model_name=("m",)).replace(**settings)
    folder = tempfile.TemporaryDirectory()
    counters = SharedCounters(SqliteLimits(Path(folder.name, "limits.db")), time.monotonic)
    app = build_asgi_app(
        build_models(read, SystemClock()),
        options=build_serving_options(read),
        tenants=tenants,
        counters=counters,
    )
    transport = httpx2.ASGITransport(app)
    headers = {"authorization": "Bearer a"}
    with folder:
        async with (
            lifespan(app),
            httpx2.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as client,
        ):
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            statuses = [
                (await client.post("/v1/chat/completions", json=body)).status_code for _ in range(3)
            ]
            assert statuses == [200, 200, 429]
            return (await client.get("/metrics")).text


async def list_scraped_names(faults: Path) -> set[str]:
    transfer = '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_port": 0}'
    speculation = '{"method": "ngram", "num_speculative_tokens": 2}'
    texts = [
        await scrape(
            model="sim", time_scale=1000.0, sim_faults=str(faults), speculative_config=speculation
        ),
        await scrape(model="sim", time_scale=1000.0, kv_offloading_size=1.0),
        await scrape(model="sim", time_scale=1000.0, kv_transfer_config=transfer),
        await scrape(model="tiny"),
    ]
    families = (*build_worker_families(1, 0, {0: 0.0}), *build_engine_families(1, 0))
    workers = {sample.name for family in families for sample in family.samples}
    return workers | {
        match[1]
        for text in texts
        for match in re.finditer(r"^([a-zA-Z_:][\w:]*)(?:\{| )", text, re.MULTILINE)
    }


def list_queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana/dragoman.json").read_text())
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    queries += [
        variable["query"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    return queries + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


def find_metrics(query: str) -> set[str]:
    without_labels = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)|offset \w+", " ", query)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", without_labels)) - FUNCTIONS


def test_generated_files_are_up_to_date() -> None:
    process = subprocess.run(
        [sys.executable, str(DEPLOY / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, (
        process.stdout + process.stderr + "run `python deploy/generate.py`"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="metrics of the process exist on Linux only")
async def test_dashboard_metrics_are_all_scraped(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text('[{"request": 1, "hang": 0.001}]')
    scraped = await list_scraped_names(faults)
    queries = list_queries()
    assert len(queries) > 60
    assert {name for query in queries for name in find_metrics(query)} <= scraped


def test_dashboard_panels_have_positions_and_alerts_severities() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dragoman.json").read_text())
    places = [tuple(panel["gridPos"][axis] for axis in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


async def test_embedded_model_reports_kv_cache_usage() -> None:
    assert re.search(
        r'^vllm:kv_cache_usage_perc\{engine="0",model_name="m"\} 0\.\d+$',
        await scrape(model="tiny"),
        re.M,
    )
