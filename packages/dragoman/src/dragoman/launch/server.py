"""Serves until a signal stops the process."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable, Sequence

from ..serving.clock import SystemClock
from ..settings import Settings, SettingsError
from .engine_registry import find_spec_of_model
from .graceful_shutdown import Server, ShutdownConfig
from .greeting import print_greetings
from .listener import SocketFile
from .port_dispatcher import PortDispatcher
from .ports import ListeningPort, ListeningPorts, ServerPorts
from .predecessor import Predecessor, execute_again, inherit_predecessor
from .process_setup import enable_collector, prepare_process
from .reload import Reloader
from .server_assembly import ModelsBuilder, assemble_server
from .signals import install_signal_handlers
from .systemd import Notifier
from .tls import build_tls_context
from .uvicorn_config import build_uvicorn_config

log = logging.getLogger(__name__)


def run(
    settings: Settings,
    print_line: Callable[[str], None],
    build: ModelsBuilder | None = None,
    read_settings: Callable[[], Settings] | None = None,
    command: Sequence[str] | None = None,
) -> int:
    """Serve until a signal stops the server, and return the exit code.

    print_line: prints a line of the greeting.
    build: builds the models from the settings; None means `build_models_in_background`.
    read_settings: reads the settings again for a reload; None if that is not possible.
    command: the program and arguments of this process, which executes them again if a
        failed engine needs a new process; None if it must not.

    Raises: SettingsError for a configuration that cannot be served.
    """
    configured_settings = settings
    predecessor = inherit_predecessor(os.environ) if command else Predecessor()
    settings, inherited, secret = prepare_process(settings, predecessor.take_listeners())
    tls = build_tls_context(settings)
    server_settings = _expand_instances(settings)
    with_ports = [] if inherited else [item for item in server_settings if item.uds is None]
    server_ports = _build_ports(with_ports, tls)
    controllers = server_ports.build_controllers() or [None]
    assembled_servers = [
        assemble_server(item, secret, ports, build)
        for item, ports in zip(server_settings, controllers, strict=True)
    ]
    listeners = inherited or [server_port.listen() for server_port in server_ports.ports]
    socket_file = None
    if settings.uds is not None and predecessor.has_socket_file:
        socket_file = SocketFile(settings.uds, int(settings.uds_mode, 8), inherited[-1])
    elif settings.uds is not None and not inherited:
        socket_file = SocketFile(settings.uds, int(settings.uds_mode, 8))
        listeners.append(socket_file.listener)
    ports: list[int | None] = [server_port.port for server_port in server_ports.ports] or [
        settings.port if settings.uds is None else None
    ]
    app = assembled_servers[0].application
    if settings.instances.items:
        app = PortDispatcher(
            {port: item.application for port, item in zip(ports, assembled_servers, strict=True)}
        )
    shutdown_config = ShutdownConfig(settings.shutdown_timeout, settings.shutdown_grace)
    first = assembled_servers[0]

    def replace_process(duplicates: Sequence[socket.socket]) -> None:
        assert command is not None
        execute_again(
            command,
            duplicates,
            first.models.build_histories(),
            has_socket_file=socket_file is not None,
        )

    server = Server(
        build_uvicorn_config(app, settings, tls),
        *(item.models for item in assembled_servers),
        shutdown_config=shutdown_config,
        server_ports=server_ports,
        reloader=Reloader(
            configured_settings, first.application, first.models, SystemClock(), tls, read_settings
        ),
        notifier=Notifier(os.environ),
        on_replaced=replace_process,
    )
    first.models.succeed(predecessor.models)
    # On Windows the caller of a process that executes a command sees it end.
    if command is not None and len(assembled_servers) == 1 and sys.platform != "win32":
        first.models.on_unusable_process = server.replace
    # A model that a process has served before is loaded again until that succeeds.
    if not predecessor.models:
        for item in assembled_servers:
            item.models.on_start_failure = server.stop_after_failure
    install_signal_handlers(server, server.handle_reload)
    print_greetings(assembled_servers, ports, print_line)
    enable_collector()
    try:
        server.run(sockets=listeners)
    finally:
        if socket_file is not None:
            socket_file.remove()
    if server.failure is not None:
        raise SettingsError(server.failure)
    return 0


def _build_ports(settings: Sequence[Settings], tls: ssl.SSLContext | None) -> ServerPorts:
    """Build the ports of the servers with these settings."""
    spec = find_spec_of_model(settings[0]) if settings else None
    if spec is not None and spec.build_ports is not None:
        return spec.build_ports(settings, tls)
    return ListeningPorts([ListeningPort(item) for item in settings])


def _expand_instances(settings: Settings) -> list[Settings]:
    """Return the settings of each server in this process."""
    if not settings.instances.items:
        return [settings]
    spec = find_spec_of_model(settings)
    if spec is None or spec.expand_instances is None:
        raise SettingsError(f"instances: a process can run only one engine of {settings.model}")
    try:
        return spec.expand_instances(settings)
    except ValueError as error:
        raise SettingsError(f"instances: {error}") from error
