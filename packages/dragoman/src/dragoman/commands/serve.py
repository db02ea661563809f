"""`dragoman.serve`, and what `dragoman serve` runs: a server in the foreground. It is
imported when it is called.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..settings import Settings, SettingsError

if TYPE_CHECKING:
    from ..launch.plugin import SupportedEngine
    from ..launch.server_assembly import ModelsBuilder


def serve(
    model: str | None = None,
    *,
    engines: Mapping[str, SupportedEngine] | None = None,
    **settings: Any,  # noqa: ANN401 - each has its own type, see docs/embedding.md
) -> int:
    """Serve until a signal such as Ctrl-C, and return the exit code.

    Call it in the main thread, since it installs signal handlers.

    Args:
        model: as in `dragoman.create_app`.
        engines: as in `dragoman.create_app`.
        settings: as in `dragoman.create_app`.

    Raises:
        SettingsError: a setting is invalid.
    """
    from ..launch.in_process import resolve_models  # noqa: PLC0415 - imports the whole server

    read_settings, build = resolve_models(model, engines, settings, in_background=True)
    if engines is not None and read_settings.is_multiprocess:
        raise SettingsError("workers: engine objects cannot be shared by several worker processes")
    return run_server(read_settings, click.echo, build=build)


def run_server(
    settings: Settings,
    echo: Callable[[str], None],
    read_settings: Callable[[], Settings] | None = None,
    build: ModelsBuilder | None = None,
) -> int:
    """Serve until a signal, and return the exit code.

    echo: prints a line.
    read_settings: reads the settings again for a reload; None if they cannot be
        reloaded.
    build: builds the models; None builds those of the settings.
    """
    # BLAS reads these variables when numpy is first imported. Its threads busy-wait on
    # cores that the event loop needs, and a small model's matrix products are too small
    # to parallelize. torch has its own number of threads.
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, str(settings.threads or 1))
    # Imported modules stay alive: garbage collections during imports would take a sixth
    # of the startup time.
    gc.disable()
    try:
        if settings.is_multiprocess:
            from ..launch.multiprocess.supervisor import run_workers  # noqa: PLC0415 - as below

            return run_workers(settings, echo, read_settings)
        from ..launch import run  # noqa: PLC0415 - imports the whole server

        # A command reads its settings again; a program that calls `dragoman.serve` does
        # more than serve, and is not executed again.
        command = None if read_settings is None else (sys.executable, *sys.orig_argv[1:])
        return run(settings, echo, build, read_settings, command)
    finally:
        gc.enable()
