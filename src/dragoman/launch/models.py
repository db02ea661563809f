"""Which engine MODEL means. Knows the kinds by their names; each is imported when it is chosen."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import DragomanError
from ..pipeline.models import Models, ServedModel
from ..serving.clock import Clock
from ..settings import Settings, SettingsError
from .directory import Kind, engine_of


def build_models(settings: Settings, clock: Clock) -> Models:
    """Raises SettingsError where MODEL or an option of it cannot be used."""
    try:
        model = _build(settings, clock)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(f"cannot serve {settings.model}: {error}") from error
    if model is None:
        raise SettingsError(
            f"cannot serve `{settings.model}`: "
            "MODEL is a directory with a model in it, which can be told by what to serve it "
            "(`transformers:DIRECTORY`, `mlx:DIRECTORY`, `tiny:DIRECTORY`, `encoder:DIRECTORY`), `tiny` (the "
            "embedded model, the default), `scripted` or `scripted:FILE`, or the URL of another server, as "
            "http://HOST:PORT/v1."
        )
    return Models([model])


def _build(settings: Settings, clock: Clock) -> ServedModel | None:
    """None: there is no such kind of engine. Engines are imported here, so that one is paid for when it is used."""
    kind, _, rest = settings.model.partition(":")
    match kind:
        case "scripted":
            from .scripted import build_scripted  # noqa: PLC0415 - see above

            return build_scripted(settings, clock, rest)
        case "http" | "https":
            from .upstream import build_upstream  # noqa: PLC0415 - see above

            return build_upstream(settings, clock, settings.model)
        case "tiny" if settings.model == "tiny":
            return _in_directory("tiny", settings, clock, "")
        case "tiny" | "transformers" | "mlx" | "encoder" if rest:
            return _in_directory(kind, settings, clock, rest)
        case _ if (Path(settings.model) / "config.json").is_file():
            return _in_directory(engine_of(Path(settings.model)), settings, clock, settings.model)
        case _:
            return None


def _in_directory(kind: Kind, settings: Settings, clock: Clock, path: str) -> ServedModel:
    match kind:
        case "tiny":
            from .tiny import build_tiny  # noqa: PLC0415 - see above

            return build_tiny(settings, clock, path)
        case "transformers":
            from .transformers import build_transformers  # noqa: PLC0415 - see above

            return build_transformers(settings, clock, path)
        case "mlx":
            from .mlx import build_mlx  # noqa: PLC0415 - see above

            return build_mlx(settings, clock, path)
        case "encoder":
            from .encoder import build_encoder  # noqa: PLC0415 - see above

            return build_encoder(settings, clock, Path(path))
