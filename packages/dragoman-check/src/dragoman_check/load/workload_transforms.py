"""Transforms of a workload: scaled arrivals, assigned adapters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .request_table import RequestTable
from .workload import WorkloadRequest


def assign_loras(
    requests: Iterable[WorkloadRequest], names: Sequence[str]
) -> list[WorkloadRequest]:
    """Assign LoRA adapters to the requests in turn; all turns of a conversation get the
    same one.
    """
    loras: dict[str, str] = {}
    result: list[WorkloadRequest] = []
    count = 0
    for request in requests:
        if request.after is None:
            loras[request.id] = names[count % len(names)]
            count += 1
        else:
            loras[request.id] = loras[request.after]
        result.append(msgspec.structs.replace(request, lora=loras[request.id]))
    return result


def scale_arrivals(requests: Sequence[WorkloadRequest], factor: float) -> Sequence[WorkloadRequest]:
    """Return the same requests, arriving `factor` times as fast. Think times between
    turns do not change.
    """
    if not factor > 0:
        raise ValueError("factor must be more than 0")
    if factor == 1:
        return requests
    if isinstance(requests, RequestTable):
        return requests.scale_arrivals(factor)
    changes: dict[str, Any] = {}
    result: list[WorkloadRequest] = []
    for request in requests:
        # A person's think time does not depend on the load.
        changes["arrival_s"] = request.arrival_s / (1 if request.after else factor)
        result.append(msgspec.structs.replace(request, **changes))
    return result
