"""vLLM's `kv_transfer_params` of a request or response."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.core.errors import RequestError

from .sequence import SimulatedSequence

Role = Literal["both", "prefill", "decode"]
"""vLLM's kv_role: kv_both, kv_producer, kv_consumer."""


class KvTransferParams(Struct, frozen=True):
    """`kv_transfer_params` of a request or response. Fields are vLLM's; those of other
    connectors are ignored.

    remote_block_ids: a list per cache group (there is one), or, from older versions,
        the ids themselves.
    remote_blocks_expiry_time: applies only to blocks that the decode side holds, which
        is not simulated.
    remote_prefill_cached_tokens: prompt tokens that the prefill side found in its
        cache.
    """

    do_remote_prefill: bool = False
    do_remote_decode: bool = False
    remote_block_ids: list[list[int] | int] | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    tp_size: int | None = None
    remote_num_tokens: Annotated[int, Meta(ge=0)] | None = None
    dcp_size: int | None = None
    pp_size: int | None = None
    remote_blocks_expiry_time: float | None = None
    remote_registration_generation: int | None = None
    transfer_mode: str | None = None
    remote_prefill_cached_tokens: int | None = None


class KvAddress(Struct, frozen=True):
    """The instance that holds blocks, and its address."""

    engine_id: str
    host: str = "127.0.0.1"
    port: int = 5600
    tp_size: int = 1


def build_transfer_params(sequence: SimulatedSequence, address: KvAddress) -> KvTransferParams:
    """Build the prefill side's response parameters, for a sequence that holds its
    blocks.
    """
    return KvTransferParams(
        do_remote_prefill=True,
        remote_block_ids=[list(sequence.blocks)],
        remote_engine_id=address.engine_id,
        remote_request_id=sequence.id,
        remote_host=address.host,
        remote_port=address.port,
        tp_size=address.tp_size,
        remote_num_tokens=sequence.num_computed_tokens,
        dcp_size=1,
        pp_size=1,
        remote_registration_generation=0,
        transfer_mode="pull",
        remote_prefill_cached_tokens=sequence.num_cached_tokens,
    )


KvRole = Literal["kv_producer", "kv_consumer", "kv_both"]


_PARAM = "kv_transfer_params"


def parse_transfer_params(text: str, role: KvRole) -> KvTransferParams:
    """Parse a request's transfer parameters. Raises RequestError, also for what this
    role does not support.
    """
    try:
        params = msgspec.json.decode(text, type=KvTransferParams)
    except msgspec.DecodeError as error:
        raise RequestError(f"{_PARAM}: {error}", param=_PARAM) from None
    if params.do_remote_decode and params.do_remote_prefill:
        raise RequestError(
            f"{_PARAM}: do_remote_decode and do_remote_prefill cannot be combined", param=_PARAM
        )
    if params.do_remote_decode and role == "kv_consumer":
        raise RequestError(
            f"{_PARAM}: this instance is a kv_consumer; do_remote_decode needs a producer",
            param=_PARAM,
        )
    if params.do_remote_prefill and role == "kv_producer":
        raise RequestError(
            f"{_PARAM}: this instance is a kv_producer; do_remote_prefill needs a consumer",
            param=_PARAM,
        )
    return params
