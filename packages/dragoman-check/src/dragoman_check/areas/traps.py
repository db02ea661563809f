"""Checks of traps: what chat templates, tokenizers and settings of a model do
silently, each with the public report of a case.

They need an API that counts prompt tokens. Where the server shows too little to decide,
a check is skipped with "cannot tell".
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import CHAT
from ..error_bodies import check_error_basics
from ..json_objects import get_objects
from ..parsed_response import read_chat
from ..rules.json_values import JsonObject, Violation, require
from ..session import Session
from .generation import MARKERS, STORY, find_context
from .history import FILLER, count_filler, require_prompt_tokens
from .several_parts import QUESTION, build_chat_tool, build_schema

ISSUES = "https://github.com/"
TRAPS = Area("traps", claims=("chat",), source=CHAT.source)
USER = {"role": "user", "content": QUESTION}
TOOL = build_chat_tool("tool_0", "A tool.", build_schema(("A text.",)))
LONG_CONTEXT = 40_000
"""Context length in tokens above which it is not filled: the prompt would take long."""


async def count(s: Session, feature: str | None = None, /, **fields: Any) -> int:
    """Return the prompt tokens of a conversation."""
    body = {**CHAT.build_request(s.model, QUESTION, 1), **fields}
    exchange = await s.request(CHAT.path, body, feature=feature)
    return require_prompt_tokens(read_chat(exchange.json()))


async def require_growth(s: Session, grown: int, what: str) -> None:
    """Check that 30 words more made a prompt longer."""
    filler = await count_filler(
        s, CHAT.name, lambda texts: count(s, messages=[{"role": "user", "content": texts[0]}])
    )
    require(
        grown > filler // 2,
        f"30 words more {what} are {grown} prompt tokens more, in a user's message {filler}",
    )


async def find_template(s: Session) -> str:
    """Return the chat template that llama.cpp's `/props` shows; empty if it does not."""

    async def find() -> str:
        exchange = await s.get(f"/props?model={quote(s.model)}")
        template: object = exchange.json().get("chat_template") if exchange.status == 200 else ""
        return template if isinstance(template, str) else ""

    return await s.share("template", find)


def build_call_turn(content: str | None, **fields: Any) -> JsonObject:
    function = {"name": "tool_0", "arguments": '{"value_0": "Rome"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call], **fields}


RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}


@TRAPS.check(
    "The reasoning of the current turn, before a tool call, is part of the prompt.",
    level="should",
    source=f"{ISSUES}open-webui/open-webui/issues/23175",
)
async def thought_in_prompt(s: Session) -> None:
    async def count_thought(name: str, text: str) -> int:
        turn = build_call_turn(None, **{name: text})
        return await count(s, "tools", messages=[USER, turn, RESULT], tools=[TOOL])

    # Templates drop the reasoning of earlier turns, but a turn with tool calls is not
    # over. Servers read one of two names.
    grown = [
        await count_thought(name, "apple" + FILLER) - await count_thought(name, "apple")
        for name in ("reasoning_content", "reasoning")
    ]
    if not any(grown):
        answer = read_chat((await s.request(CHAT.path, CHAT.build_request(s.model, STORY))).json())
        if not answer.reasoning and "reasoning" not in await find_template(s):
            raise Skipped("cannot tell: the model does not reason, so it may have no place for it")
    await require_growth(s, max(grown), "of reasoning before a tool call")


@TRAPS.check(
    "A keyword argument of the chat template reaches it.",
    level="should",
    source=f"{ISSUES}raullenchai/Rapid-MLX/issues/387",
)
async def template_arguments(s: Session) -> None:
    # A template of the request that renders its argument decides it; few servers allow
    # one.
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ probe }}"
    counts: list[int] = []
    for probe in ("apple", "apple" + FILLER):
        fields = {"chat_template": template, "chat_template_kwargs": {"probe": probe}}
        exchange = await s.post(CHAT.path, {**CHAT.build_request(s.model, QUESTION, 1), **fields})
        if exchange.status != 200:
            break
        counts.append(require_prompt_tokens(read_chat(exchange.json())))
    if len(counts) == 2 and counts[1] > counts[0]:
        return
    for name in ("enable_thinking", "thinking"):
        on, off = [
            await count(s, name, chat_template_kwargs={name: value}) for value in (True, False)
        ]
        if on != off:
            return
    if "enable_thinking" not in await find_template(s):
        raise Skipped("cannot tell: the template may have no arguments")
    raise Violation("the template reads enable_thinking, which changes nothing")


async def list_prompt_ids(s: Session) -> list[int]:
    """Return the token ids of a conversation's prompt, of a server that shows them."""
    body = CHAT.build_request(s.model, QUESTION, 1)
    exchange = await s.post(CHAT.path, {**body, "return_token_ids": True})
    if exchange.status == 200:
        reply = exchange.json()
        for source in (reply, *get_objects(reply, "choices")):
            if ids := source.get("prompt_token_ids"):
                return list(ids)
    exchange = await s.post("/tokenize", {"model": s.model, "messages": body["messages"]})
    ids = exchange.json().get("tokens") if exchange.status == 200 else None
    if not ids:
        raise Skipped("cannot tell: the server does not show the tokens of a prompt")
    return list(ids)


@TRAPS.check(
    "The prompt of a conversation does not start with two BOS tokens.",
    source=f"{ISSUES}ggml-org/llama.cpp/pull/7332",
)
async def double_bos(s: Session) -> None:
    ids = await list_prompt_ids(s)
    require(len(ids) < 2 or ids[0] != ids[1], f"the prompt starts with the tokens {ids[:4]}")


@TRAPS.check(
    "The token that ends a turn in the prompt also ends an answer.",
    source=f"{ISSUES}Blaizzy/mlx-vlm/pull/2112",
)
async def end_of_turn(s: Session) -> None:
    body = {"model": s.model, "messages": [USER, {"role": "assistant", "content": "Sunny."}, USER]}
    exchange = await s.post("/tokenize", {**body, "return_token_strs": True})
    texts = exchange.json().get("token_strs") if exchange.status == 200 else None
    if not texts:
        raise Skipped("cannot tell: the server does not show the tokens of a prompt")
    tokens = exchange.json()["tokens"]
    # The first control token after the assistant's answer ends its turn.
    start = next((i for i in range(len(texts)) if "unny." in "".join(texts[: i + 1])), 0)
    end = next((tokens[i] for i in range(start, len(texts)) if texts[i].strip() in MARKERS), None)
    if end is None:
        raise Skipped("cannot tell: no known control token ends a turn")
    fields = {"logit_bias": {str(end): 100}}
    exchange = await s.request(
        CHAT.path, CHAT.build_request(s.model, QUESTION, 8, **fields), feature="logit_bias"
    )
    reason = read_chat(exchange.json()).reason
    require(
        reason == "stop",
        f"token {end} ends turns, but an answer of it goes on: it ends by {reason!r}",
    )


@TRAPS.check("An answer has no control token as text.", source=f"{ISSUES}Blaizzy/mlx-vlm/pull/2112")
async def no_markup(s: Session) -> None:
    for prompt in ("Say hello.", "What is 2 + 2?"):
        body = CHAT.build_request(s.model, prompt, 96)
        text = read_chat((await s.request(CHAT.path, body)).json()).text
        found = [marker for marker in MARKERS if marker in text]
        require(not found, f"the answer to {prompt!r} contains {found}: {text[:200]!r}")


@TRAPS.check(
    "The context length of the model list is the real one.",
    source=f"{ISSUES}SmetDenis/openwebui-token-usage-display/issues/6",
)
async def context_length(s: Session) -> None:
    context = await find_context(s)
    if context is None or context > LONG_CONTEXT:
        raise Skipped("cannot tell: the context length is unknown, or takes long to fill")
    filler = await count_filler(
        s, CHAT.name, lambda texts: count(s, messages=[{"role": "user", "content": texts[0]}])
    )
    for share in (0.1, 0.9, 1.05):
        words = int(share * context * 30 / filler)
        body = CHAT.build_request(s.model, "apple" + " apple" * words, 1)
        exchange = await s.post(CHAT.path, body)
        if share < 0.5:
            # The time may grow with the square of the length.
            if exchange.seconds * 81 > s.target.timeout / 2:
                raise Skipped(f"cannot tell: {words} words take {exchange.seconds:.1f} s")
            continue
        if share > 1:
            require(exchange.status in (400, 413, 422), f"status {exchange.status} above {context}")
            check_error_basics(exchange.json())
            continue
        require(
            exchange.status == 200,
            f"{words} words are within {context} tokens, but the status is {exchange.status}: "
            f"{exchange.message()}",
        )
        tokens = require_prompt_tokens(read_chat(exchange.json()))
        require(tokens > 0.85 * context, f"{words} words are truncated to {tokens} tokens")


@TRAPS.check(
    "The system message stays in the prompt when tools are given.",
    source=f"{ISSUES}ollama/ollama-js/issues/220",
)
async def system_with_tools(s: Session) -> None:
    counts = [
        await count(s, "tools", messages=[{"role": "system", "content": text}, USER], tools=[TOOL])
        for text in ("apple", "apple" + FILLER)
    ]
    await require_growth(s, counts[1] - counts[0], "of a system message beside tools")


@TRAPS.check(
    "A second system message is part of the prompt, or rejected.",
    source=f"{ISSUES}Arthur-Ficial/apfel/issues/390",
)
async def second_system(s: Session) -> None:
    for roles in (("system", "system", "user"), ("system", "user", "system")):
        counts: list[int] = []
        for text in ("apple", "apple" + FILLER):
            last = len(roles) - 1 - roles[::-1].index("system")
            messages = [
                {"role": role, "content": text if i == last else "Hello"}
                for i, role in enumerate(roles)
            ]
            counts.append(await count(s, "a second system message", messages=messages))
        await require_growth(s, counts[1] - counts[0], f"of the last message of {roles}")


@TRAPS.check(
    "A `developer` message is part of the prompt, or rejected.",
    source=f"{ISSUES}Arthur-Ficial/apfel/issues/390",
)
async def developer_message(s: Session) -> None:
    counts = [
        await count(
            s, "developer messages", messages=[{"role": "developer", "content": text}, USER]
        )
        for text in ("apple", "apple" + FILLER)
    ]
    await require_growth(s, counts[1] - counts[0], "of a developer message")


@TRAPS.check(
    "`content: null` beside tool calls is no text: not the word `None`.",
    source=f"{ISSUES}local-inference-lab/vllm/issues/514",
)
async def null_content(s: Session) -> None:
    null, empty = [
        await count(s, "tools", messages=[USER, build_call_turn(content), RESULT], tools=[TOOL])
        for content in (None, "")
    ]
    require(null <= empty, f"{null} prompt tokens with null, {empty} with an empty text")


@TRAPS.check(
    "Names, nested descriptions and allowed values of a tool's schema are part of the prompt.",
    source=f"{ISSUES}CopilotKit/CopilotKit/issues/2061",
)
async def tool_schema(s: Session) -> None:
    words = "apple" + FILLER
    schemas: dict[str, tuple[JsonObject, JsonObject]] = {
        "parameter names": ({"a": {"type": "string"}}, {words: {"type": "string"}}),
        "allowed values": ({"a": {"enum": ["a"]}}, {"a": {"enum": [words]}}),
        "nested descriptions": (
            {"a": {"type": "object", "properties": {"b": {"description": "a", "type": "string"}}}},
            {
                "a": {
                    "type": "object",
                    "properties": {"b": {"description": words, "type": "string"}},
                }
            },
        ),
        "descriptions of list entries": (
            {"a": {"type": "array", "items": {"type": "string", "description": "a"}}},
            {"a": {"type": "array", "items": {"type": "string", "description": words}}},
        ),
    }
    for what, variants in schemas.items():
        counts = [
            await count(
                s,
                "tools",
                tools=[build_chat_tool("f", "A tool.", {"type": "object", "properties": value})],
            )
            for value in variants
        ]
        await require_growth(s, counts[1] - counts[0], f"in {what} of a tool")


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGA"
    "hKmMIQAAAABJRU5ErkJggg=="
)


@TRAPS.check(
    "Each of several images is part of the prompt, or images are rejected.",
)
async def each_image(s: Session) -> None:
    counts: list[int] = []
    for number in range(4):
        images = [{"type": "image_url", "image_url": {"url": PIXEL}}] * number
        content = [*images, {"type": "text", "text": QUESTION}]
        messages = [{"role": "user", "content": content}]
        body = {**CHAT.build_request(s.model, QUESTION, 1), "messages": messages}
        exchange = await s.post(CHAT.path, body)
        if exchange.status != 200:
            raise Skipped(f"the server rejects images: {exchange.message()}")
        counts.append(require_prompt_tokens(read_chat(exchange.json())))
    if len(set(counts)) == 1:
        answers = [
            read_chat((await s.request(CHAT.path, CHAT.build_request(s.model, text))).json()).text
            for text in (STORY, QUESTION)
        ]
        if answers[0] == answers[1]:
            raise Skipped("cannot tell: the answer does not depend on the prompt")
    require(counts == sorted(set(counts)), f"prompt tokens with 0, 1, 2 and 3 images: {counts}")
