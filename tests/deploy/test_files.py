"""The files in deploy/, as far as they can be checked here; docs/production.md lists
the rest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import ProcessCollector

from dragoman.ray.settings_check import check_settings
from dragoman.settings import FIELDS, load_settings
from tests.deploy.helm_subset import Chart

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/dragoman"
EVERYTHING: dict[str, Any] = {
    "keysSecret": "keys",
    "environmentSecret": "environment",
    "autoscaling": {"enabled": True},
    "keda": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True},
    "dashboard": {"enabled": True},
    "persistence": {"existingClaim": "models"},
    "networkPolicy": {"ingressFrom": [{"podSelector": {}}]},
    "nodeSelector": {"gpu": "true"},
    "tolerations": [{"operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"a": "b"},
}
KINDS = {
    "configmap.yaml": ("v1", "ConfigMap"),
    "dashboard.yaml": ("v1", "ConfigMap"),
    "deployment.yaml": ("apps/v1", "Deployment"),
    "hpa.yaml": ("autoscaling/v2", "HorizontalPodAutoscaler"),
    "networkpolicy.yaml": ("networking.k8s.io/v1", "NetworkPolicy"),
    "pdb.yaml": ("policy/v1", "PodDisruptionBudget"),
    "prometheusrule.yaml": ("monitoring.coreos.com/v1", "PrometheusRule"),
    "scaledobject.yaml": ("keda.sh/v1alpha1", "ScaledObject"),
    "service.yaml": ("v1", "Service"),
    "servicemonitor.yaml": ("monitoring.coreos.com/v1", "ServiceMonitor"),
}
VARIABLES = {field.environment_variable for field in FIELDS}


@pytest.mark.parametrize("name", KINDS)
def test_helm_template_with_all_options_renders(name: str) -> None:
    (document,) = Chart(CHART, EVERYTHING).render(name)
    assert (document["apiVersion"], document["kind"]) == KINDS[name]
    assert document["metadata"]["name"].startswith("test-dragoman")
    labels = document["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "test"


def test_helm_templates_are_all_listed() -> None:
    assert {file.name for file in (CHART / "templates").glob("*.yaml")} == set(KINDS)


def test_helm_defaults_omit_optional_resources() -> None:
    rendered = {name for name in KINDS if Chart(CHART, {}).render(name)}
    assert rendered == {
        "configmap.yaml",
        "deployment.yaml",
        "networkpolicy.yaml",
        "pdb.yaml",
        "service.yaml",
    }


@pytest.mark.parametrize("overrides", [{}, EVERYTHING])
def test_helm_pod_is_restricted_and_has_probes(overrides: dict[str, Any]) -> None:
    chart = Chart(CHART, overrides)
    (deployment,) = chart.render("deployment.yaml")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    # Otherwise Kubernetes adds variables for each service of the namespace, and the
    # server's all begin with DRAGOMAN_.
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    (settings,) = chart.render("configmap.yaml")
    read = yaml.safe_load(settings["data"]["dragoman.yaml"])
    assert {name.replace("-", "_") for name in read} <= {field.name for field in FIELDS}
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before > 0
    assert (
        before + read["shutdown-timeout"] + read["shutdown-grace"]
        < pod["terminationGracePeriodSeconds"]
    )
    assert {variable["name"] for variable in container.get("env", ())} <= VARIABLES


def test_helm_autoscalers_and_monitors_select_deployment() -> None:
    chart = Chart(CHART, EVERYTHING)
    (deployment,) = chart.render("deployment.yaml")
    (hpa,) = chart.render("hpa.yaml")
    scaled = chart.render("scaledobject.yaml")
    assert "replicas" not in deployment["spec"]
    for scaler in (hpa, *scaled):
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] == "vllm:num_requests_waiting"
    assert "vllm:num_requests_waiting{" in scaled[0]["spec"]["triggers"][0]["metadata"]["query"]
    # In front of an upstream no requests wait, and the CPU is the bottleneck of
    # replicas.
    assert hpa["spec"]["metrics"][1]["resource"] == {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80},
    }
    assert scaled[0]["spec"]["triggers"][1] == {
        "type": "cpu",
        "metricType": "Utilization",
        "metadata": {"value": "80"},
    }
    assert "cpu" in deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    # The metrics come from the pods: with zero pods, the first would never be started.
    assert scaled[0]["spec"]["minReplicaCount"] >= 1
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for name, path in (("service.yaml", ("selector",)), ("pdb.yaml", ("selector", "matchLabels"))):
        selector = chart.render(name)[0]["spec"]
        for part in path:
            selector = selector[part]
        assert selector.items() <= labels.items()
    assert (
        json.loads(chart.render("dashboard.yaml")[0]["data"]["dragoman.json"])["uid"] == "dragoman"
    )
    assert chart.render("prometheusrule.yaml")[0]["spec"]["groups"][0]["name"] == "dragoman"


def test_compose_mounts_existing_files_and_known_variables() -> None:
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"dragoman", "postgres", "prometheus", "grafana"}
    named = set(compose["volumes"])
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source not in named and not source.startswith("$"):
                assert (DEPLOY / "compose" / source).is_file(), source
    server = services["dragoman"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    variables = {name for name in server["environment"] if name.startswith("DRAGOMAN")}
    assert variables <= VARIABLES
    scrape = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())["scrape_configs"][0]
    # The alerts select this job.
    assert scrape["job_name"] == "dragoman"


def test_dockerfile_runs_as_uid_and_requires_hashes() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    final = text[text.rindex("FROM ") :]
    assert re.search(r"^USER \d+:\d+$", final, re.MULTILINE)
    assert "--require-hashes" in text
    assert {name for name in re.findall(r"DRAGOMAN_\w+", text)} <= VARIABLES
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert all(
        any(name.startswith(each) for each in allowed) for line in copied for name in line.split()
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_units_are_valid_and_sandboxed(tmp_path: Path) -> None:
    program = tmp_path / "dragoman"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in ("dragoman.service", "dragoman.socket"):
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/dragoman/bin/dragoman", str(program)))
    units = [str(tmp_path / name) for name in ("dragoman.service", "dragoman.socket")]
    verified = subprocess.run(
        ["systemd-analyze", "verify", *units],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", units[0]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # In tenths: 0 is the least exposure, 100 the highest.
    assert rated.returncode == 0, rated.stdout[-500:] + rated.stderr


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="only Linux has /proc")
def test_systemd_unit_allows_process_metrics(tmp_path: Path) -> None:
    """`ProcSubset=pid` hides the boot time, without which there are no `process_*`
    metrics.
    """
    unit = (DEPLOY / "systemd/dragoman.service").read_text()
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "self").symlink_to("/proc/self")
    (proc / str(os.getpid())).symlink_to("/proc/self")
    if "ProcSubset=pid" not in unit:
        (proc / "stat").symlink_to("/proc/stat")
    assert {
        family.name for family in ProcessCollector(proc=str(proc), registry=None).collect()
    } >= {
        "process_start_time_seconds",
        "process_resident_memory_bytes",
    }


def test_proxies_wait_one_hour_for_response() -> None:
    """Such a response sends nothing until it is complete."""
    (listener,) = yaml.safe_load((DEPLOY / "proxies/envoy.yaml").read_text())["static_resources"][
        "listeners"
    ]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["stream_idle_timeout"] == "3600s"
    assert "proxy_read_timeout 1h;" in (DEPLOY / "proxies/nginx.conf").read_text()
    assert "read_timeout 1h" in (DEPLOY / "proxies/Caddyfile").read_text()


def test_envoy_passes_streams_and_websockets() -> None:
    resources = yaml.safe_load((DEPLOY / "proxies/envoy.yaml").read_text())["static_resources"]
    (filter_,) = resources["listeners"][0]["filter_chains"][0]["filters"]
    manager = filter_["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    route = host["routes"][-1]["route"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    assert (route["timeout"], manager["request_timeout"]) == ("0s", "0s")
    assert manager["upgrade_configs"] == [{"upgrade_type": "websocket"}]
    assert clusters[route["cluster"]]["health_checks"][0]["http_health_check"]["path"] == "/readyz"


RAY_SERVICE = DEPLOY / "kuberay/rayservice.yaml"


def test_kuberay_manifest_serves_mounted_settings() -> None:
    settings, service = yaml.safe_load_all(RAY_SERVICE.read_text())
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    assert (
        f"ray=={cluster['rayVersion']}" in (ROOT / "requirements/ray.txt").read_text().splitlines()
    )
    assert (
        f"ARG BASE=rayproject/ray:{cluster['rayVersion']}-"
        in (DEPLOY / "kuberay/Dockerfile").read_text()
    )
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "dragoman.ray:app"
    file = Path(application["args"]["config"])
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        assert pod["enableServiceLinks"] is False
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == str(file.parent)
        (volume,) = pod["volumes"]
        assert (volume["name"], volume["configMap"]["name"]) == (
            mount["name"],
            settings["metadata"]["name"],
        )
        # These must be the same on all nodes, as each node reads them itself.
        assert container["env"] == groups[0]["template"]["spec"]["containers"][0]["env"]
    assert file.name in settings["data"]


def test_kuberay_manifest_settings_are_valid(tmp_path: Path) -> None:
    settings, service = yaml.safe_load_all(RAY_SERVICE.read_text())
    (name,) = settings["data"]
    (tmp_path / name).write_text(settings["data"][name])
    read = load_settings({"config": str(tmp_path / name)}, {"DRAGOMAN_API_KEY": "key"})
    check_settings(read, is_exposed=True)
    assert read.ray.max_replicas == 8
    # A replica can finish its requests before Kubernetes kills its pod.
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > read.ray.drain_timeout
