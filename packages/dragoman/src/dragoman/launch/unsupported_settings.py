"""Warnings about settings without an effect: those that no configured engine supports,
and what the command line contains besides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..settings import (
    Settings,
    SettingsError,
    describe_unsupported,
    find_changed_settings,
)
from .model_plan import plan_settings

log = logging.getLogger(__name__)


def warn_unsupported(settings: Settings) -> None:
    """Warn about settings without an effect.

    Raises:
        SettingsError: instead of a warning, with `--strict`.
    """
    report_ignored(settings, settings.notices)
    entries = settings.models.entries
    kinds = [
        plan_settings(each).engine
        for each in [settings.for_entry(entry) for entry in entries] or [settings]
    ]
    warn_unsupported_names(settings, find_changed_settings(settings), *kinds)
    for entry, kind in zip(entries, kinds, strict=False):
        warn_unsupported_names(settings, dict(entry.overrides), kind)
    for instance in settings.instances.items:
        warn_unsupported_names(settings, dict(instance.overrides), *kinds)


def warn_unsupported_names(settings: Settings, names: Iterable[str], *kinds: str) -> None:
    report_ignored(settings, describe_unsupported(names, *kinds))


def report_ignored(settings: Settings, warnings: Iterable[str]) -> None:
    """Warn about settings without effect.

    Raises:
        SettingsError: instead of a warning, with `--strict`.
    """
    for warning in warnings:
        if settings.strict:
            raise SettingsError(warning)
        log.warning(warning)
