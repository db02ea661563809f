"""Checks of Anthropic's token counts."""

from __future__ import annotations

from typing import Any

from ..check_catalog import Area
from ..dialects import MESSAGES
from ..parsed_response import read_message
from ..rules.json_values import require
from ..session import Session
from .generation import STORY, request_unstreamed
from .messages import PATH, TOOLS

COUNTING = Area(
    "count-tokens",
    claims=("messages", "count-tokens"),
    source="https://docs.anthropic.com/en/api/messages-count-tokens",
)


async def count(s: Session, **fields: Any) -> int:
    body = {**MESSAGES.build_request(s.model, STORY), **fields}
    for name in ("max_tokens", "temperature"):
        # The counting endpoint has no sampling fields, and rejects unknown ones.
        body.pop(name, None)
    exchange = await s.request(f"{PATH}/count_tokens", body, feature="token counts of this model")
    tokens: object = exchange.json().get("input_tokens")
    require(isinstance(tokens, int), f"the response is {exchange.body[:200]!r}")
    return int(str(tokens))


@COUNTING.check(
    "`input_tokens` equals the input token count that usage reports for the same request."
)
async def equals_usage(s: Session) -> None:
    expected, counted = (
        read_message((await request_unstreamed(s, MESSAGES)).json()).prompt_tokens,
        await count(s),
    )
    require(counted == expected, f"the count is {counted}, usage reports {expected}")


@COUNTING.check("The count includes `system`.")
async def counts_system(s: Session) -> None:
    plain, with_system = await count(s), await count(s, system="apple " * 30)
    require(
        with_system >= plain + 25,
        f"the count is {with_system} with 30 words of system, {plain} without",
    )


@COUNTING.check("The count includes tool definitions.")
async def counts_tools(s: Session) -> None:
    plain, with_tools = await count(s), await count(s, tools=TOOLS)
    require(with_tools >= plain + 20, f"the count is {with_tools} with two tools, {plain} without")


@COUNTING.check("An invalid request is rejected with Anthropic's error body.")
async def rejects(s: Session) -> None:
    exchange = await s.post(
        f"{PATH}/count_tokens", {"model": s.model, "messages": [{"role": "user", "content": 5}]}
    )
    require(exchange.status in (400, 422), f"status {exchange.status}")
    MESSAGES.check_error(exchange.json())
