"""`dragoman deploy`: runs a server as an application of Ray Serve, on a new local
cluster or on an existing one.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Annotated, Any

import click

from dragoman_cli import Argument, Option, build_command

from ..settings import Settings, SettingsError, load_settings
from .errors import COMMAND_ERRORS

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100_000_000
"""Object store of a new cluster. It can be small: requests and responses do not pass
through it.
"""


def deploy(
    model: Annotated[
        str | None,
        Argument(metavar="MODEL", help="As for `dragoman serve`."),
    ] = None,
    config: Annotated[
        str | None,
        Option(help="The settings file of `dragoman serve`, with a section `ray`.", metavar="FILE"),
    ] = None,
    address: Annotated[
        str | None,
        Option(
            help="Deploy on this cluster (`auto`, or HOST:PORT) and return. By default a cluster "
            "on this machine runs "
            "until the command is stopped.",
        ),
    ] = None,
    name: Annotated[str, Option(help="The name of the application.")] = "dragoman",
    replicas: Annotated[str | None, Option(help="Number of replicas.", metavar="N")] = None,
    max_replicas: Annotated[
        str | None, Option(help="Scale up to this number of replicas, by load.", metavar="N")
    ] = None,
    routing: Annotated[
        str | None,
        Option(help="One of prefix, model, session, load; see docs/ray.md.", metavar="WORD"),
    ] = None,
) -> None:
    """Serve a model on a Ray cluster, with replicas (needs `pip install 'dragoman[ray]'`)."""
    overrides = {"replicas": replicas, "max_replicas": max_replicas, "routing": routing}
    settings = load_settings({"model": model, "config": config}, os.environ)
    _run_on_ray(
        settings,
        {key: value for key, value in overrides.items() if value is not None},
        address,
        name,
    )


def _run_on_ray(
    settings: Settings, overrides: dict[str, str], address: str | None, name: str
) -> None:
    """Deploy the application. With a new local cluster, return after SIGINT or SIGTERM.
    Raises SettingsError.
    """
    if find_spec("ray") is None:
        raise SettingsError("Ray is not installed: pip install 'dragoman[ray]'")
    from ..ray.environment import choose_environment  # noqa: PLC0415 - most commands do not need it
    from ..ray.settings_check import override_ray  # noqa: PLC0415 - most commands do not need it

    settings = override_ray(settings, overrides)
    if address is None:
        os.environ.update(choose_environment(settings))
    # Imported after the environment is set, which Ray reads at import.
    ray: Any = import_module("ray")
    serve: Any = import_module("ray.serve")
    from ..ray.application import build_application, is_exposed  # noqa: PLC0415

    try:
        if address is None:
            needed = (settings.ray.max_replicas or settings.ray.replicas) * settings.ray.cpus
            ray.init(
                address="local",
                # Ray's CPUs are reservations, not limits: declare enough of them to
                # place all replicas.
                num_cpus=max(os.cpu_count() or 1, int(needed) + 1),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
            )
        else:
            ray.init(address=address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingsError(f"--address: cannot connect to a Ray cluster: {error}") from error
    try:
        location = "HeadOnly" if address is None else "EveryNode"
        application = build_application(settings, is_exposed=is_exposed())
        try:
            try:
                serve.start(
                    proxy_location=location,
                    http_options={"host": settings.host, "port": settings.port},
                )
            except TimeoutError:
                # Ray gives up waiting after a minute, but the proxy still starts.
                log.warning("the Ray Serve proxy is slow to start")
            serve.run(application, name=name, route_prefix="/")
        except (RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
            raise SettingsError(f"the application did not start: {error}") from error
        click.echo(
            f"Serving on http://{settings.host}:{settings.port}, with {settings.ray.replicas} "
            f"replicas on Ray."
        )
        if address is None:
            stopped = threading.Event()

            def stop(_number: int, _frame: FrameType | None) -> None:
                stopped.set()

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            stopped.wait()
    finally:
        if address is None:
            serve.shutdown()
        ray.shutdown()


COMMAND = build_command(
    "deploy",
    deploy,
    short_help="Serve a model on a Ray cluster, with replicas.",
    errors=COMMAND_ERRORS,
)
