"""What one of several owners may take of a limited resource that is not divided by a
queue: places in the store, slots of background responses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def compute_allowance(
    limit: int, owner: str, owners: Collection[str], used: Mapping[str, int]
) -> int:
    """Return the amount that an owner may hold in all.

    Half of the limit is reserved for the owners in equal parts, so that nobody can take
    all; the other half goes to whoever comes first, so that it is not idle while few of
    many owners are active. With one owner there is nothing to reserve.

    owners: all that the limit is reserved for, API keys for instance.
    used: what each owner holds now.
    """
    others = {other for other in owners if other != owner}
    free = limit - sum(amount for other, amount in used.items() if other != owner)
    share = max(1, limit // (2 * (len(others) + 1)))
    held = sum(min(share, used.get(other, 0)) for other in others)
    # With more owners than half of the limit has places, a place for each is too much.
    reserved = max(0, min(share * len(others), limit // 2) - held)
    return max(min(share, free), free - reserved)
