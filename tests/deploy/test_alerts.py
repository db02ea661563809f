"""Each shipped alert fires in the situation that it is for, and is silent otherwise:
`promtool test rules` evaluates them on given series.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml"
PROMTOOL = shutil.which("promtool")
JOB = 'job="dragoman", instance="10.0.0.1:8000"'
OTHER = 'job="dragoman", instance="10.0.0.2:8000"'
MODEL = f'{JOB}, model_name="m", engine="0"'

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")

UP = {f"up{{{JOB}}}": "1x120"}
SITUATIONS: Mapping[str, Mapping[str, str]] = {
    "DragomanDown": {**UP, f"up{{{OTHER}}}": "1x10 0x110"},
    "DragomanAbsent": {},
    "DragomanEngineDown": {
        **UP,
        f'dragoman:engine_up{{{JOB}, model_name="m"}}': "1x10 0x110",
        f'dragoman:engine_up{{{JOB}, model_name="other"}}': "1x120",
    },
    "DragomanEngineRestarts": {
        **UP,
        # Between two failures it is up.
        f'dragoman:engine_up{{{JOB}, model_name="m"}}': "1x100 0 1 0 1 0 1x10",
        f'dragoman:engine_restarts_total{{{JOB}, model_name="m"}}': "0+1x120",
    },
    "DragomanEngineErrors": {
        **UP,
        f'vllm:request_success_total{{{MODEL}, finished_reason="error"}}': "0+6x120",
        f'vllm:request_success_total{{{MODEL}, finished_reason="stop"}}': "0+60x120",
    },
    "DragomanWorkersDie": {**UP, f"dragoman_worker_restarts_total{{{JOB}}}": "0+1x120"},
    "DragomanServerErrors": {
        **UP,
        f'http_requests_total{{{JOB}, status="5xx", handler="/x"}}': "0+6x120",
        f'http_requests_total{{{JOB}, status="2xx", handler="/x"}}': "0+60x120",
    },
    "DragomanStalled": {
        **UP,
        f"vllm:num_requests_running{{{MODEL}}}": "3x120",
        f"vllm:generation_tokens_total{{{MODEL}}}": "70x120",
    },
    "DragomanQueueGrows": {**UP, f"vllm:num_requests_waiting{{{MODEL}}}": "0+1x120"},
    "DragomanSlowFirstToken": {
        **UP,
        f'vllm:time_to_first_token_seconds_bucket{{{MODEL}, le="10.0"}}': "0+50x120",
        f'vllm:time_to_first_token_seconds_bucket{{{MODEL}, le="20.0"}}': "0+60x120",
        f'vllm:time_to_first_token_seconds_bucket{{{MODEL}, le="+Inf"}}': "0+60x120",
    },
    "DragomanKvCacheFull": {**UP, f"vllm:kv_cache_usage_perc{{{MODEL}}}": "0.97x120"},
    "DragomanKeyRejected": {
        **UP,
        f'dragoman:key_rejections_total{{{JOB}, key="a", limit="requests"}}': "0+2x120",
    },
    "DragomanFileDescriptors": {
        **UP,
        f"process_open_fds{{{JOB}}}": "900x120",
        f"process_max_fds{{{JOB}}}": "1024x120",
    },
    "DragomanRestarted": {**UP, f"process_start_time_seconds{{{JOB}}}": "0+60x120"},
}
"""The series of each situation: values in the notation of promtool, one a minute."""


def read_alerts() -> Sequence[str]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["alert"] for rule in group["rules"]]


def run_promtool(folder: Path, series: Mapping[str, str], expected: Sequence[str]) -> None:
    """Check after two hours that these alerts fire, and no others."""
    assert PROMTOOL is not None
    values = [{"series": name, "values": value} for name, value in series.items()]
    # A query for all firing alerts: `alert_rule_test` compares annotations too.
    fired = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    query: dict[str, Any] = {
        "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "115m",
        "exp_samples": fired,
    }
    suite = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": values, "promql_expr_test": [query]}],
    }
    path = folder / "suite.json"
    path.write_text(json.dumps(suite))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", path], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_situation() -> None:
    assert read_alerts() == list(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_alert_fires_alone_in_its_situation(name: str, tmp_path: Path) -> None:
    run_promtool(tmp_path, SITUATIONS[name], [name])


@pytest.mark.parametrize("name", [name for name in SITUATIONS if name != "DragomanAbsent"])
def test_alert_ignores_other_jobs(name: str, tmp_path: Path) -> None:
    other = {
        series.replace('job="dragoman"', 'job="vllm"'): values
        for series, values in SITUATIONS[name].items()
    }
    run_promtool(tmp_path, {**other, **UP}, [])
