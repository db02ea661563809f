"""The Serve application that is built from settings, and the manifest for KubeRay.
Needs Ray, but no cluster.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.ray.environment import BODY_VARIABLE, HAPROXY_VARIABLE
from dragoman.settings import SettingsError

pytest.importorskip("ray.serve", reason="needs ray[serve]")

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def proxy_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HAPROXY_VARIABLE, raising=False)


def build(**args: object) -> Any:
    return import_module("dragoman.ray").app(args)


def test_build_application_splits_server_and_ray_arguments() -> None:
    deployment = build(
        model="tiny", replicas="3", cpus=0.5, **{"max-connections": "99"}
    )._bound_deployment
    assert deployment.num_replicas == 3
    assert deployment.max_ongoing_requests == 99
    assert deployment.ray_actor_options["num_cpus"] == 0.5
    scaled = build(model="tiny", max_replicas=4, target_requests=7)._bound_deployment
    policy = scaled._deployment_config.autoscaling_config
    assert (policy.min_replicas, policy.max_replicas, policy.target_ongoing_requests) == (1, 4, 7)


def test_build_application_passes_vllm_args_to_replicas() -> None:
    arguments = {"distributed_executor_backend": "ray", "tensor_parallel_size": 8}
    deployment = build(
        model="vllm:./Llama-405B", vllm_args=json.dumps(arguments), gpus=0
    )._bound_deployment
    settings = deployment.init_args[0]
    assert deployment.ray_actor_options["num_gpus"] == 0
    assert (settings.model, json.loads(settings.get("vllm_args"))) == (
        "vllm:./Llama-405B",
        arguments,
    )


def test_build_application_invalid_argument_error_names_it() -> None:
    with pytest.raises(SettingsError, match=r"modell: unknown setting\. Did you mean model\?"):
        build(modell="tiny")
    with pytest.raises(SettingsError, match="ray: replicas: Expected `int` >= 1"):
        build(model="tiny", replicas=0)


def test_build_application_haproxy_requires_auth_and_body_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(HAPROXY_VARIABLE, "1")
    monkeypatch.delenv(BODY_VARIABLE, raising=False)
    with pytest.raises(SettingsError, match="api_key: with HAProxy"):
        build(model="tiny")
    with pytest.raises(SettingsError, match=f"needs {BODY_VARIABLE}=1"):
        build(model="tiny", no_auth=True)
    assert build(model="tiny", no_auth=True, routing="load")._ingress_request_router is None
    router = build(model="tiny", no_auth=True, routing="session")._ingress_request_router
    assert router._bound_deployment.name == "DragomanRouter"


def test_kuberay_manifest_matches_ray_schema() -> None:
    manifest = Path(__file__).parents[4] / "deploy/kuberay/rayservice.yaml"
    _, service = yaml.safe_load_all(manifest.read_text())
    schema: Any = import_module("ray.serve.schema").ServeDeploySchema
    read = schema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    assert [application.import_path for application in read.applications] == ["dragoman.ray:app"]
