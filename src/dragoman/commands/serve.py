"""`dragoman serve` and `dragoman.serve`: a server in the foreground. Brings the server only when it is called."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from ..settings import Settings, SettingsError

if TYPE_CHECKING:
    from ..launch.plugin import SupportedEngine
    from ..launch.server import ModelsBuilder


def serve(
    model: str | None = None,
    *,
    engines: Mapping[str, SupportedEngine] | None = None,
    **settings: Any,  # noqa: ANN401 - each has its own type, see docs/embedding.md
) -> int:
    """Serve until a signal stops it (Ctrl-C), and return the exit code. Arguments as of `dragoman.create_app`.

    For the main thread, since it handles signals. Raises SettingsError for what cannot be served.
    """
    from ..launch.embedding import resolve_models  # noqa: PLC0415 - it brings the whole server

    read_settings, build = resolve_models(model, engines, settings, in_background=True)
    if engines is not None and read_settings.is_multiprocess:
        raise SettingsError("workers: engines that a program has made cannot be copied into several processes")
    return run_server(read_settings, typer.echo, build=build)


def run_server(
    settings: Settings,
    echo: Callable[[str], None],
    read_settings: Callable[[], Settings] | None = None,
    build: ModelsBuilder | None = None,
) -> int:
    """Serve until a signal stops it, and return the exit code.

    read_settings: reads the settings again, for a reload. build: the models; None builds those of settings.
    """
    # BLAS reads these when numpy is first imported. Its threads spin while they wait for each other, on the
    # core that the event loop needs, and a small model's products are too small to share. torch gets its own number.
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, str(settings.threads or 1))
    # Objects of imports live forever: collecting garbage among them takes a sixth of the startup time.
    gc.disable()
    try:
        if settings.is_multiprocess:
            from ..launch.multiprocess.supervisor import run_workers  # noqa: PLC0415 - as below

            return run_workers(settings, echo, read_settings)
        from ..launch import run  # noqa: PLC0415 - it brings the whole server

        return run(settings, echo, build, read_settings)
    finally:
        gc.enable()
