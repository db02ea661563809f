"""Reloading of settings on SIGHUP, without a restart.

Each part is validated before it is used. If it is invalid, the previous one stays in
use, and the error is logged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..pipeline.model_registry import Models
from ..serving.app import Application
from ..serving.clock import Clock
from ..settings import FIELDS, Settings, SettingsError
from ..tenants import KeyFileError, Tenant, describe_key_file_error, load_key_file
from .configured_models import build_changed_models
from .tls import load_certificate

log = logging.getLogger(__name__)

RELOADED = frozenset({"keys_file", "models", "log_level", "ssl_certfile", "ssl_keyfile"})
"""Settings that a reload changes."""


class Reloader(Struct):
    """Reloads a server.

    settings: the settings in use.
    tls: the context of the listening sockets; None without a certificate.
    read_settings: reads the settings again from the same command line, environment and
        file; None if a program passed them.
    """

    settings: Settings
    application: Application
    models: Models
    clock: Clock
    tls: ssl.SSLContext | None = None
    read_settings: Callable[[], Settings] | None = None

    async def reload_keys(self) -> str | None:
        """Read the key file again. An error is logged and returned."""
        return await self._attempt("keys", ("keys_file",), self._reload_keys, self.settings)

    async def reload(self, *, has_read_keys: bool = False) -> None:
        """Reload all parts. Errors are logged, not raised: an invalid file must not
        stop the server.

        has_read_keys: whether `reload_keys` was called for this reload, which is enough
            unless the settings name another file.
        """
        new = self.settings
        if self.read_settings is not None:
            try:
                new = await asyncio.to_thread(self.read_settings)
            except (SettingsError, OSError, ValueError) as error:
                log.error("settings not reloaded: %s", error)
        if not has_read_keys or new.keys_file != self.settings.keys_file:
            await self._attempt("keys", ("keys_file",), self._reload_keys, new)
        await self._attempt("models", ("models",), self._reload_models, new)
        await self._attempt(
            "certificate", ("ssl_certfile", "ssl_keyfile"), self._reload_certificate, new
        )
        unchanged = [
            field.flag
            for field in FIELDS
            if field.name not in RELOADED and new.get(field.name) != self.settings.get(field.name)
        ]
        if unchanged:
            log.warning("these settings have changed and need a restart: %s", ", ".join(unchanged))
        await self._attempt("log level", ("log_level",), self._reload_log_level, new)

    async def _attempt(
        self,
        part: str,
        names: tuple[str, ...],
        action: Callable[[Settings], Awaitable[bool]],
        new: Settings,
    ) -> str | None:
        """Reload one part, and record its new settings. An error is logged and
        returned.

        names: the settings of the part.
        action: reloads the part; returns whether it has changed.
        """
        try:
            if await action(new):
                log.info("%s reloaded", part)
        except (SettingsError, DragomanError, OSError, ValueError) as error:
            log.error("%s not reloaded: %s", part, error)
            return str(error)
        self.settings = msgspec.structs.replace(
            self.settings, **{name: getattr(new, name) for name in names}
        )
        return None

    async def _reload_keys(self, new: Settings) -> bool:
        if (new.keys_file is None) != (self.settings.keys_file is None):
            raise SettingsError("--keys-file: adding or removing it requires a restart")
        if new.keys_file is None or self.application.keys is None:
            return False
        try:
            await self.application.keys.reload(Path(new.keys_file))
        except KeyFileError as error:
            raise SettingsError(f"--keys-file: {error}") from error
        return True

    async def _reload_models(self, new: Settings) -> bool:
        # In a thread: reading a model's metadata may wait for a disk or a hub, and
        # requests are served meanwhile.
        served = await asyncio.to_thread(
            build_changed_models, self.models, self.settings, new, self.clock
        )
        if served is None:
            return False
        self.models.replace_models(served)
        return True

    async def _reload_certificate(self, new: Settings) -> bool:
        if (new.ssl_certfile is None) != (self.tls is None):
            raise SettingsError("--ssl-certfile: adding or removing it requires a restart")
        if self.tls is None:
            return False
        # Into the same context, since the listening sockets refer to it.
        load_certificate(self.tls, new)
        return True

    async def _reload_log_level(self, new: Settings) -> bool:
        if new.log_level == self.settings.log_level:
            return False
        logging.getLogger().setLevel(new.log_level.upper())
        return True


def load_tenants(path: str) -> Mapping[str, Tenant]:
    """Load the key file. Raises SettingsError if it is missing or invalid."""
    try:
        return load_key_file(Path(path))
    except (OSError, ValueError) as error:
        reason = describe_key_file_error(Path(path), error)
        raise SettingsError(f"--keys-file: {reason}") from error
