"""Checks that several processes can serve the settings."""

from __future__ import annotations

import sys

from ...settings import FIELDS, Settings, SettingsError
from ..model_plan import ModelPlan, plan_settings

_SINGLE = frozenset({"instances", "kv_events_config", "kv_transfer_config"})
"""Settings with ports or files that only one process can use."""


_OF_ENGINE = frozenset({"kv_offloading_dir"})
"""Settings that only one process can use, and therefore the engine process, if there is
one.
"""


def count_workers(settings: Settings) -> int:
    return settings.api_server_count or settings.workers


def describe_workers(settings: Settings) -> str:
    """Return the option that configures several processes, for messages."""
    if settings.api_server_count is not None:
        return f"--api-server-count {settings.api_server_count}"
    return f"--workers {settings.workers}"


def is_replicable(plan: ModelPlan) -> bool:
    """Whether each worker can run the engine for itself."""
    return plan.spec is not None and plan.spec.is_replicable


def is_shareable(plan: ModelPlan) -> bool:
    """Whether workers can share the engine, as far as it is known before the files of a
    hub's model are listed.
    """
    return plan.spec.is_shareable if plan.spec is not None else plan.reference is not None


def check_workers(settings: Settings) -> ModelPlan | None:
    """Check that several processes can serve the settings. See `check_engines`."""
    option = describe_workers(settings)
    if settings.api_server_count is not None and settings.workers > 1:
        raise SettingsError(f"{option}: use it or --workers, not both")
    if sys.platform == "win32":
        raise SettingsError(
            f"{option}: Windows cannot fork processes; start several servers on ports of their own"
        )
    if settings.store == "memory":
        raise SettingsError(
            f"{option}: with `--store memory` each worker would have responses of its own; use "
            f"`sqlite`, PostgreSQL or "
            "`none`"
        )
    shared = check_engines(settings, option)
    single = _SINGLE | _OF_ENGINE if shared is None else _SINGLE
    for setting in FIELDS:
        if setting.name in single and settings.get(setting.name) != setting.default:
            raise SettingsError(
                f"{option}: {setting.flag} needs a port or files that only one process can have"
            )
    return shared


def check_engines(settings: Settings, option: str) -> ModelPlan | None:
    """Return the plan of the model whose engine the workers share, in a process of its
    own; None if each runs its own.

    option: the option that configures several processes, as the prefix of the message.

    Raises:
        SettingsError: for an engine that the workers can neither share nor each run for
            themselves.
    """
    shared: ModelPlan | None = None
    is_single = not settings.models.entries
    if settings.api_server_count is not None and not is_single:
        raise SettingsError(f"{option}: an engine process serves one model, not those of `models`")
    for each in [settings.for_entry(entry) for entry in settings.models.entries] or [settings]:
        plan = plan_settings(each)
        model = plan.model
        is_hosted = is_shareable(plan)
        if is_replicable(plan) and settings.api_server_count is None:
            continue
        if is_single and is_hosted:
            shared = plan
            continue
        if plan.spec is not None and plan.spec.workers_advice is not None:
            reason = plan.spec.workers_advice(model)
        elif not is_single and is_hosted:
            reason = (
                f"{model} can only be loaded once, and workers can share the engine of one MODEL, "
                f"not those of "
                "`models`; serve each model with its own server"
            )
        elif is_replicable(plan):
            reason = (
                f"the engine `{plan.engine}` cannot have a process of its own; use --workers, with "
                f"which each worker has one"
            )
        else:
            reason = (
                f"each worker would load its own {model}, and the engine `{plan.engine}` cannot "
                f"run in a process that they "
                "share; serve it without --workers, and put a server with several workers in "
                "front of it "
                "(`dragoman serve http://HOST:PORT/v1 --workers N`)"
            )
        raise SettingsError(f"{option}: {reason}")
    return shared
