"""The settings of several simulated servers in one process.

Each instance is a complete server with its own port, engine, metrics, events, faults,
adapters and stored responses.
"""

from __future__ import annotations

import msgspec

from dragoman.settings import Instances, Settings

from .build import load_profile, read_ranks
from .engine.kv_publisher import is_bound, offset_endpoint_port
from .engine.kv_publisher import parse_kv_events_config as read_kv_events
from .engine.kv_transfer_config import parse_kv_transfer_config as read_kv_transfer


def expand_instances(settings: Settings) -> list[Settings]:
    """Return the settings of each server. Ports and log files that an instance does not
    set get consecutive numbers.

    Raises:
        ValueError: a port number is out of range.
    """
    shared = msgspec.structs.replace(
        # A shared database would expose the responses and files of the other instances.
        settings,
        instances=Instances(),
        store="memory" if settings.store == "sqlite" else settings.store,
    )
    expanded: list[Settings] = []
    # Data-parallel ranks of the preceding instances: each rank publishes its events on
    # its own port.
    ranks = 0
    for number, instance in enumerate(settings.instances.items):
        overrides = dict(instance.overrides)
        overridden = shared.replace(**overrides)
        kv_events = overridden.kv_events_config
        kv_transfer = overridden.kv_transfer_config
        instance_settings = msgspec.structs.replace(
            overridden,
            port=overridden.port
            if "port" in overrides or not shared.port
            else shared.port + number,
            request_log=overridden.request_log and f"{overridden.request_log}.{number}",
            kv_events_config=kv_events
            and _offset_kv_events(kv_events, ranks, is_own="kv_events_config" in overrides),
            kv_transfer_config=kv_transfer
            and _offset_kv_transfer(kv_transfer, number, is_own="kv_transfer_config" in overrides),
        )
        if instance_settings.port >= 1 << 16:
            raise ValueError(f"{number + 1}: {instance_settings.port} is not a valid port")
        ranks += _count_ranks(instance_settings)
        expanded.append(instance_settings)
    return expanded


def _count_ranks(settings: Settings) -> int:
    # MODEL is `sim` or `sim:PROFILE`.
    return read_ranks(settings, load_profile(settings, settings.model.partition(":")[2])).count


def _offset_kv_events(text: str, ranks: int, *, is_own: bool) -> str:
    """Add the number of preceding ranks to the ports of a KV events config that are
    bound here; one to connect to is a subscriber's, which all instances share.

    is_own: whether the config was set for this instance only; its explicit endpoint is
        then used unchanged.
    """
    config = read_kv_events(text)
    if is_own and "endpoint" in msgspec.json.decode(text, type=dict[str, msgspec.Raw]):
        return text
    replay = (
        None
        if config.replay_endpoint is None
        else offset_endpoint_port(config.replay_endpoint, ranks)
    )
    endpoint = (
        offset_endpoint_port(config.endpoint, ranks)
        if is_bound(config.endpoint)
        else config.endpoint
    )
    return msgspec.json.encode(
        msgspec.structs.replace(config, endpoint=endpoint, replay_endpoint=replay)
    ).decode()


def _offset_kv_transfer(text: str, number: int, *, is_own: bool) -> str:
    """Number the port and the engine id of a KV transfer config, unless the instance's
    own config sets them.
    """
    config = read_kv_transfer(text)
    explicit_fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if is_own else {}
    port = (
        config.kv_port
        if "kv_port" in explicit_fields or not config.kv_port
        else config.kv_port + number
    )
    name = (
        config.engine_id
        if "engine_id" in explicit_fields or not config.engine_id
        else f"{config.engine_id}-{number}"
    )
    return msgspec.json.encode(
        msgspec.structs.replace(config, kv_port=port, engine_id=name)
    ).decode()
