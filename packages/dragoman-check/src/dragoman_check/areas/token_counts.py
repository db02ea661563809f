"""Checks of Anthropic's token counts."""

from __future__ import annotations

from typing import Any

from ..client_answer import read_message
from ..dialects import MESSAGES
from ..rules.json_values import require
from ..session import Area, Session
from .generation import STORY, ask_whole
from .messages import PATH, TOOLS

COUNTING = Area(
    "count-tokens",
    claims=("messages", "count-tokens"),
    source="https://docs.anthropic.com/en/api/messages-count-tokens",
)


async def count(s: Session, **fields: Any) -> int:
    body = {**MESSAGES.ask(s.model, STORY), **fields}
    for name in ("max_tokens", "temperature"):
        # The counting endpoint has no sampling fields, and rejects unknown ones.
        body.pop(name, None)
    exchange = await s.ask(f"{PATH}/count_tokens", body, feature="token counts of this model")
    tokens: object = exchange.json().get("input_tokens")
    require(isinstance(tokens, int), f"the answer is {exchange.body[:200]!r}")
    return int(str(tokens))


@COUNTING.check("The count is what the usage of the same request will be.")
async def equals_usage(s: Session) -> None:
    expected, counted = (
        read_message((await ask_whole(s, MESSAGES)).json()).prompt_tokens,
        await count(s),
    )
    require(counted == expected, f"counted {counted}, usage {expected}")


@COUNTING.check("The count covers `system`.")
async def counts_system(s: Session) -> None:
    plain, with_system = await count(s), await count(s, system="apple " * 30)
    require(with_system >= plain + 25, f"30 words of system: {plain} and {with_system}")


@COUNTING.check("The count covers the tools.")
async def counts_tools(s: Session) -> None:
    plain, with_tools = await count(s), await count(s, tools=TOOLS)
    require(with_tools >= plain + 20, f"two tools: {plain} and {with_tools}")


@COUNTING.check("An invalid request is rejected in Anthropic's form.")
async def rejects(s: Session) -> None:
    exchange = await s.post(
        f"{PATH}/count_tokens", {"model": s.model, "messages": [{"role": "user", "content": 5}]}
    )
    require(exchange.status in (400, 422), f"status {exchange.status}")
    MESSAGES.check_error(exchange.json())
