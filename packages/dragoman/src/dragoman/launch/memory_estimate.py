"""The main memory that a model will need, estimated from its files."""

from __future__ import annotations

from ..settings import Settings
from .model_plan import ModelPlan


def measure_memory(plan: ModelPlan, settings: Settings) -> int:
    """Return the bytes of a model's weights and of the KV cache that its engine may
    allocate in main memory.
    """
    local = plan.local
    is_there = local is not None and plan.argument and plan.path.exists()
    if local is None or local.measure_kv_cache is None or not is_there:
        return measure_weights(plan)
    return measure_weights(plan) + local.measure_kv_cache(settings, plan.path)


def measure_weights(plan: ModelPlan) -> int:
    """Return the bytes of the weights of a model in local files; 0 for any other, and
    for a bundled one.
    """
    if plan.local is None or not plan.argument or not plan.path.exists():
        return 0
    return sum(file.stat().st_size for file in plan.local.format.list_weights(plan.path))
