"""Ollama's `keep_alive`, which unloads a model when it is not used."""

from __future__ import annotations

import math

from ...core.errors import PermissionDenied, Unsupported
from ...dialects.field_errors import abbreviate
from ...pipeline.model_lifecycle import ModelSlot
from ..http_request import HttpRequest


async def unload(http: HttpRequest, slot: ModelSlot) -> None:
    """Unload a model, when its last request has finished.

    Raises:
        PermissionDenied: the caller may not control models.
        Unsupported: the model is never unloaded.
    """
    if not may_control_models(http):
        raise PermissionDenied("Unloading a model needs an administrator's key.")
    if slot.is_pinned:
        raise Unsupported(
            f"The model {abbreviate(slot.name)} cannot be unloaded: it is not loaded on demand.",
            param="keep_alive",
        )
    await http.service.models.unload(slot)


def explain_keep_alive(
    http: HttpRequest, slot: ModelSlot, keep_alive: float | None
) -> tuple[str, ...]:
    """Return a warning if `keep_alive` has no effect."""
    if keep_alive is None or (slot.is_pinned and keep_alive == math.inf):
        return ()
    if slot.is_pinned:
        return ("keep_alive is ignored: this model is always loaded",)
    return (
        ()
        if may_control_models(http)
        else ("keep_alive is ignored: it needs an administrator's key",)
    )


def apply_keep_alive(http: HttpRequest, slot: ModelSlot, keep_alive: float | None) -> None:
    """Apply `keep_alive` if it is allowed, see `explain_keep_alive`. Call it while the
    model is in use.
    """
    if keep_alive is not None and not slot.is_pinned and may_control_models(http):
        slot.keep_for(None if keep_alive == math.inf else keep_alive)


def may_control_models(http: HttpRequest) -> bool:
    return http.caller.is_admin or http.service.tenancy.keyring.is_open
