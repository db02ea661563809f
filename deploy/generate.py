"""Generates the Grafana dashboard and the Prometheus alert rules from the definitions
of the metrics.

`python deploy/generate.py` writes them; with --check it only lists outdated files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from metrics import MetricDefinition, list_metrics

DEPLOY = Path(__file__).parent
WINDOW = "$__rate_interval"
JOB = 'job="dragoman"'
QUANTILES = (0.5, 0.9, 0.99)
HIDDEN = frozenset(
    {
        "dragoman_build_info",
        "process_start_time_seconds",
        "process_max_fds",
        "vllm:cache_config_info",
    }
)
"""Metrics that are no curves."""
SELECTOR = '{job=~"$job", model_name=~"$model"}'
UNITS = {"seconds": "s", "bytes": "bytes", "perc": "percentunit"}


def build_expressions(metric: MetricDefinition) -> Iterator[tuple[str, str]]:
    """The queries of a metric's panel, with their legends."""
    selector = SELECTOR if "model_name" in metric.labels else '{job=~"$job"}'
    labels = [
        label
        for label in metric.labels
        if label not in ("engine", "handler", "method", "sleep_state")
    ]
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or metric.name
    by = f" by ({', '.join(labels)})" if labels else ""
    match metric.type:
        case "histogram":
            grouped = ", ".join(["le", *labels])
            for quantile in QUANTILES:
                rate = f"sum by ({grouped}) (rate({metric.name}_bucket{selector}[{WINDOW}]))"
                yield (
                    f"histogram_quantile({quantile}, {rate})",
                    f"p{quantile * 100:g} {legend}".strip(),
                )
        case "counter":
            yield f"sum{by} (rate({metric.name}{selector}[{WINDOW}]))", legend
        case "summary":
            rate = f"sum{by} (rate({metric.name}_sum{selector}[{WINDOW}]))"
            yield f"{rate} / sum{by} (rate({metric.name}_count{selector}[{WINDOW}]))", legend
        case _:
            yield f"sum{by} ({metric.name}{selector})", legend


def find_unit(metric: MetricDefinition) -> str:
    stem = metric.name.removesuffix("_total")
    unit = next((unit for suffix, unit in UNITS.items() if stem.endswith(suffix)), "short")
    return "reqps" if metric.type == "counter" and "request" in metric.name else unit


def build_dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    metrics = [
        metric
        for metric in list_metrics()
        if metric.name not in HIDDEN and not metric.name.endswith("_info")
    ]
    for group in dict.fromkeys(metric.group for metric in metrics):
        panels.append(
            {
                "type": "row",
                "title": group,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "collapsed": False,
            }
        )
        y += 1
        for index, metric in enumerate(metric for metric in metrics if metric.group == group):
            place = {"h": 8, "w": 8, "x": 8 * (index % 3), "y": y + 8 * (index // 3)}
            panels.append(build_panel(metric, place))
        y += 8 * -(-sum(metric.group == group for metric in metrics) // 3)
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "Dragoman",
        "uid": "dragoman",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["dragoman", "llm"],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Data source",
                },
                # Without `allValue` all jobs are those that the query finds: other programs export
                # metrics of the process and of HTTP under the same names.
                build_variable("job", "Job", "label_values(dragoman_build_info, job)"),
                {
                    **build_variable(
                        "model",
                        "Model",
                        'label_values(vllm:num_requests_running{job=~"$job"}, model_name)',
                    ),
                    "allValue": ".*",
                },
            ]
        },
        "panels": panels,
    }


def build_variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def build_panel(metric: MetricDefinition, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": metric.name,
        "description": metric.text,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {
            "defaults": {"unit": find_unit(metric), "custom": {"fillOpacity": 5}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        },
        "targets": [
            {"refId": chr(65 + number), "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(build_expressions(metric))
        ],
    }


def build_alerts() -> dict[str, Any]:
    """Rules of the failures that an operator must know. All select the job, since a
    Prometheus may scrape vLLM itself and other programs with the same metrics; it is
    the name in the scrape configuration of Compose, and the chart's `jobLabel`.
    """
    finished = f"sum by (model_name) (rate(vllm:request_success_total{{{JOB}}}[5m]))"
    failed = f'vllm:request_success_total{{{JOB}, finished_reason="error"}}'
    errors = f"sum by (model_name) (rate({failed}[5m]))"
    status_5xx = f'sum(rate(http_requests_total{{{JOB}, status="5xx"}}[5m]))'
    ttft = f"sum by (le, model_name) (rate(vllm:time_to_first_token_seconds_bucket{{{JOB}}}[10m]))"
    waiting = f"sum by (model_name) (vllm:num_requests_waiting{{{JOB}}})"
    restarts = " or ".join(
        f"increase({name}{{{JOB}}}[30m]) > 3"
        for name in ("dragoman:engine_restarts_total", "dragoman_engine_restarts_total")
    )
    waiting_before = f"sum by (model_name) (vllm:num_requests_waiting{{{JOB}}} offset 5m)"
    rules = [
        (
            "DragomanDown",
            f"up{{{JOB}}} == 0",
            "2m",
            "critical",
            "The server cannot be scraped.",
        ),
        (
            "DragomanAbsent",
            f"absent(up{{{JOB}}})",
            "5m",
            "critical",
            "Prometheus knows no server: none runs, or its targets are not found.",
        ),
        (
            "DragomanEngineDown",
            f"min by (instance, model_name) (dragoman:engine_up{{{JOB}}}) == 0",
            # Longer than a large model takes to load, or an engine to restart.
            "10m",
            "critical",
            "The engine of a model is not ready: /health says why.",
        ),
        (
            "DragomanEngineRestarts",
            restarts,
            "0m",
            "warning",
            "An engine fails again and again.",
        ),
        (
            "DragomanEngineErrors",
            f"{errors} / {finished} > 0.05",
            "5m",
            "critical",
            "More than 5 % of requests fail.",
        ),
        (
            "DragomanWorkersDie",
            f"increase(dragoman_worker_restarts_total{{{JOB}}}[15m]) > 3",
            "0m",
            "warning",
            "Worker processes die again and again.",
        ),
        (
            "DragomanServerErrors",
            f"{status_5xx} / sum(rate(http_requests_total{{{JOB}}}[5m])) > 0.05",
            "5m",
            "critical",
            "More than 5 % of responses are 5xx.",
        ),
        (
            "DragomanStalled",
            f"sum by (model_name) (vllm:num_requests_running{{{JOB}}}) > 0 "
            f"and sum by (model_name) (rate(vllm:generation_tokens_total{{{JOB}}}[5m])) == 0",
            "5m",
            "critical",
            "Requests run, and no token is generated.",
        ),
        (
            "DragomanQueueGrows",
            f"{waiting} > 50 and {waiting} > {waiting_before}",
            "10m",
            "warning",
            "More requests arrive than are finished: add replicas or limit keys.",
        ),
        (
            "DragomanSlowFirstToken",
            f"histogram_quantile(0.9, {ttft}) > 10",
            "10m",
            "warning",
            "A tenth of the requests wait longer than 10 seconds for their first token.",
        ),
        (
            "DragomanKvCacheFull",
            f"max by (model_name) (vllm:kv_cache_usage_perc{{{JOB}}}) > 0.95",
            "10m",
            "warning",
            "The KV cache is full: requests wait or are preempted.",
        ),
        (
            "DragomanKeyRejected",
            f"sum by (key, limit) (increase(dragoman:key_rejections_total{{{JOB}}}[1h])) > 100",
            "0m",
            "info",
            "A key is often rejected by one of its limits.",
        ),
        (
            "DragomanFileDescriptors",
            f"process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}} > 0.8",
            "5m",
            "warning",
            "The process uses 80 % of its file descriptors.",
        ),
        (
            "DragomanRestarted",
            f"changes(process_start_time_seconds{{{JOB}}}[30m]) > 2",
            "0m",
            "warning",
            "The server restarts again and again.",
        ),
    ]
    return {
        "groups": [
            {
                "name": "dragoman",
                "rules": [
                    {
                        "alert": name,
                        "expr": expression,
                        "for": duration,
                        "labels": {"severity": severity},
                        "annotations": {"summary": summary},
                    }
                    for name, expression, duration, severity, summary in rules
                ],
            }
        ]
    }


def render() -> dict[Path, str]:
    head = "# Generated by `python deploy/generate.py` from the definitions of the metrics.\n"
    alerts = head + yaml.safe_dump(build_alerts(), sort_keys=False, width=120)
    dashboard = json.dumps(build_dashboard(), indent=1) + "\n"
    return {
        DEPLOY / "grafana" / "dragoman.json": dashboard,
        DEPLOY / "prometheus" / "alerts.yaml": alerts,
        # Helm reads only files below the chart.
        DEPLOY / "helm" / "dragoman" / "files" / "dashboard.json": dashboard,
        DEPLOY / "helm" / "dragoman" / "files" / "alerts.yaml": alerts,
    }


def main() -> int:
    outdated = [
        path for path, text in render().items() if not path.exists() or path.read_text() != text
    ]
    for path in outdated:
        print(f"outdated: {path.relative_to(DEPLOY)}")
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render()[path])
    return 1 if outdated and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
