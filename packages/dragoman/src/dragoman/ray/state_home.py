"""The node whose local state binds the replicas to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..settings import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class StateHome:
    """The node whose local state binds the replicas to it.

    node: the node's id; None if replicas may run on any node.
    reason: the settings that replicas on several nodes need, for an error.
    """

    node: str | None = None
    reason: str = ""


def find_state_home(settings: Settings, nodes: Sequence[str]) -> StateHome:
    """Find the node to which the replicas are bound by their local state.

    nodes: ids of the cluster's nodes; empty if they are not known.

    Raises:
        SettingsError: the settings do not allow several replicas, or not on several
            nodes.
    """
    kind = settings.store.partition(":")[0]
    if (settings.ray.max_replicas or settings.ray.replicas) == 1:
        return StateHome()
    if kind == "memory":
        raise SettingsError(
            "store: `memory` works with one replica only. Use `sqlite` on one node, "
            "`postgresql://...` or `none`."
        )
    missing = ["store: replicas on several nodes need PostgreSQL."] if kind == "sqlite" else []
    if settings.keys_file is not None and settings.limits_store.partition(":")[0] == "sqlite":
        missing.append("limits_store: replicas on several nodes need PostgreSQL or Redis.")
    if settings.secret_key is None:
        missing.append(
            "secret_key: replicas on several nodes need the same one: set DRAGOMAN_SECRET_KEY."
        )
    if missing and len(nodes) > 1:
        raise SettingsError(" ".join(missing))
    return StateHome(nodes[0], " ".join(missing)) if missing and nodes else StateHome()
