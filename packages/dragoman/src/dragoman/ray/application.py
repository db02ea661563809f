"""The Ray Serve application: builds its deployments from the settings."""

from __future__ import annotations

import os
import secrets
from importlib import import_module
from typing import Any

import msgspec

from ..launch.secret_key import load_secret_key
from ..settings import (
    FIELDS,
    NEGATED_NAMES,
    RaySettings,
    Settings,
    SettingsError,
    is_loopback,
    load_settings,
    suggest_name,
)
from .autoscaling import build_policy_arguments
from .environment import BODY_VARIABLE, HAPROXY_VARIABLE
from .replica import Replica
from .routers import AffinityRouter, IngressRouter
from .settings_check import check_settings, override_ray
from .state_home import find_state_home

ray: Any = import_module("ray")
serve: Any = import_module("ray.serve")
serve_config: Any = import_module("ray.serve.config")

STATS_INTERVAL = 1.0
"""Seconds between two reports of a replica's load to the routers."""
LOOK_BACK = 15.0
"""Seconds over which the autoscaler averages the load: more than the 10 between two
reports of a replica.
"""
HEALTH_INTERVAL = 2.0
"""Seconds between two health checks of a replica, which also detect that it has died;
Ray's default is 10.
"""
ROUTER_REQUESTS = 1000
"""Concurrent routing requests of a router; Ray's default is 5."""
LOGGING = {"enable_access_log": False}
"""Disables Ray's access log: the replicas write a request log of their own."""


def app(args: dict[str, Any]) -> Any:  # noqa: ANN401 - a Serve application; Ray has no types
    """Build the application, for `serve run dragoman.ray:app` and for configuration
    files of Ray Serve.

    args: settings by name, including those inside `ray`. Other settings come from the
        environment and the file `config`.

    Raises SettingsError.
    """
    names = {*(field.name for field in FIELDS), *NEGATED_NAMES}
    ray_names = set(RaySettings.__struct_fields__)
    values = {name.replace("-", "_"): value for name, value in args.items()}
    for name in values:
        if name not in names | ray_names:
            raise SettingsError(f"{name}: unknown setting.{suggest_name(name)}")
    settings = load_settings(
        {name: value for name, value in values.items() if name in names}, os.environ
    )
    settings = override_ray(settings, {name: values[name] for name in values if name in ray_names})
    return build_application(settings, is_exposed=os.environ.get(HAPROXY_VARIABLE) == "1")


def build_application(settings: Settings, *, is_exposed: bool) -> Any:  # noqa: ANN401 - as above
    """Build the application for the cluster that this process is connected to. Raises
    SettingsError.

    is_exposed: whether other machines can reach Ray's proxy, regardless of the setting
        `host`.
    """
    options = settings.ray
    check_settings(settings, is_exposed=is_exposed)
    nodes = (
        [node["NodeID"] for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []
    )
    home = find_state_home(settings, nodes)
    secret = load_secret_key(settings, os.environ) or secrets.token_bytes(32)
    uses_haproxy = os.environ.get(HAPROXY_VARIABLE) == "1"
    router_config = serve_config.RequestRouterConfig()
    if options.routing != "load":
        router_config = serve_config.RequestRouterConfig(
            request_router_class=AffinityRouter, request_routing_stats_period_s=STATS_INTERVAL
        )
    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas is not None:
        scaling = {"autoscaling_config": _build_autoscaling(options, options.max_replicas)}
    replica = serve.deployment(
        serve.ingress()(Replica),
        name="Dragoman",
        # Ray must not queue requests: the server's own limits and queues count tokens
        # and know API keys.
        max_ongoing_requests=settings.max_connections,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        graceful_shutdown_timeout_s=options.drain_timeout,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=HEALTH_INTERVAL,
        logging_config=LOGGING,
        request_router_config=router_config,
        **scaling,
    )
    # Without the settings that only Ray uses.
    replica_settings = msgspec.structs.replace(
        settings, ray=RaySettings(drain_timeout=options.drain_timeout)
    )
    application = replica.bind(replica_settings, secret, home)
    if not uses_haproxy or options.routing == "load":
        return application
    # Ray's own LLM applications use this method, which is not public:
    # https://github.com/ray-project/ray/issues/59681
    if not hasattr(application, "_with_ingress_request_router"):
        raise SettingsError(
            "ray: this version of Ray asks no router of ours behind HAProxy: set `routing` to "
            "`load`"
        )
    reads_bodies = options.routing in ("prefix", "model")
    if reads_bodies and os.environ.get(BODY_VARIABLE) != "1":
        raise SettingsError(
            f"ray: `routing: {options.routing}` needs {BODY_VARIABLE}=1 in the environment of all "
            f"nodes; otherwise set "
            "`routing`"
        )
    router = serve.deployment(
        serve.ingress()(IngressRouter),
        name="DragomanRouter",
        max_ongoing_requests=ROUTER_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=HEALTH_INTERVAL,
        logging_config=LOGGING,
    )
    return application._with_ingress_request_router(router.bind(application, options.routing))


def is_exposed() -> bool:
    """Whether a running proxy is reachable from other machines; a new proxy listens on
    the setting `host`.
    """
    client = import_module("ray.serve.context")._get_global_client(
        raise_if_no_controller_running=False
    )
    return client is not None and not is_loopback(client.http_config.host or "")


def _build_autoscaling(options: RaySettings, max_replicas: int) -> Any:  # noqa: ANN401 - Ray has no types
    return serve_config.AutoscalingConfig(
        initial_replicas=max(options.replicas, options.min_replicas),
        min_replicas=options.min_replicas,
        max_replicas=max_replicas,
        target_ongoing_requests=options.target_requests,
        upscale_delay_s=options.upscale_delay,
        downscale_delay_s=options.downscale_delay,
        look_back_period_s=LOOK_BACK,
        policy=serve_config.AutoscalingPolicy(
            policy_function="dragoman.ray.autoscaling:LoadPolicy",
            policy_kwargs=build_policy_arguments(options),
        ),
    )
