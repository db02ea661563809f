"""The groups of KV cache that vLLM forms of a model's layers, and the size of a block.

References: `get_kv_cache_groups` of vllm/v1/core/kv_cache_planning.py, and
`_align_hybrid_block_size` of vllm/platforms/interface.py.
"""

from __future__ import annotations

from msgspec import Struct

from ..engine.profile import ProfileError
from ..engine.scheduler_config import KvCacheGroup
from .model_shape import CachedLayers, ModelShape


class CacheLayout(Struct, frozen=True):
    """How the layers of a model share the blocks of one device.

    groups: the layers by kind; empty if all attend to the whole context.
    block_size: tokens of a block.
    block_bytes: bytes of a block.
    """

    groups: tuple[KvCacheGroup, ...]
    block_size: int
    block_bytes: float


def build_cache_layout(
    shape: ModelShape,
    *,
    token_bytes: float,
    state_bytes: float,
    block_size: int,
    is_hybrid: bool = True,
) -> CacheLayout:
    """Build the layout of a model on one device.

    token_bytes: keys and values of a token, in all layers that have them.
    state_bytes: state of a layer with linear attention.
    block_size: smallest tokens of a block; a block holds a state too.
    is_hybrid: False keeps everything of all layers, as vLLM does with
        `--disable-hybrid-kv-cache-manager`.

    Raises:
        ProfileError: there is no such layout.
    """
    layers = shape.cached_layers
    linear = sum(each.layers for each in layers if each.kind == "state")
    if not token_bytes:
        raise ProfileError(f"{shape.name} has no layer with attention, so no KV cache")
    if linear and not is_hybrid:
        raise ProfileError(
            f"{shape.name} has layers with a state, which need the hybrid KV cache manager"
        )
    if linear and not state_bytes:
        raise ProfileError(
            f"{shape.name}: config.json lacks the sizes of the state of linear attention, such as "
            f"'linear_num_value_heads'"
        )
    if not layers or not is_hybrid:
        return CacheLayout((), block_size, token_bytes * block_size)
    per_layer = token_bytes / (shape.layers - linear)
    if linear:
        # The page of a layer with attention must hold a state.
        pages = -(-state_bytes // (block_size * per_layer))
        block_size = int(block_size * max(1, pages))
    groups, group_layers = form_groups(layers)
    return CacheLayout(groups, block_size, group_layers * per_layer * block_size)


def form_groups(layers: tuple[CachedLayers, ...]) -> tuple[tuple[KvCacheGroup, ...], int]:
    """Form the groups, and return the layers of each table too."""
    if len(layers) == 1:
        (only,) = layers
        return (KvCacheGroup(only.kind, only.window),), only.layers
    fewest = min(each.layers for each in layers)
    most = max(each.layers for each in layers)
    # Nearly equal numbers are padded to the larger one.
    group_layers = most if most < 1.5 * fewest else fewest
    return tuple(
        KvCacheGroup(each.kind, each.window, -(-each.layers // group_layers)) for each in layers
    ), group_layers
