"""Checks that run the official Python SDKs against the server: they must parse its
responses and streams.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..exchange import Exchange
from ..rules.json_values import Violation, require
from ..session import REFUSALS, Session
from .generation import ONE_MODEL, STORY

if TYPE_CHECKING:
    import anthropic
    import openai
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion

AREA = Area("sdk", claims=(), source="https://github.com/openai/openai-python")
ANTHROPIC_SDK = "https://github.com/anthropics/anthropic-sdk-python"
HELLO: list[Any] = [{"role": "user", "content": STORY}]
TOKENS = 32
"""Output token limit of a request."""
OpenaiCheck = Callable[[Session, "openai.AsyncOpenAI"], Awaitable[None]]
AnthropicCheck = Callable[[Session, "anthropic.AsyncAnthropic"], Awaitable[None]]


def with_openai(
    rule: str, claim: str, except_for: tuple[str, ...] = ()
) -> Callable[[OpenaiCheck], None]:
    """Add the decorated function as a check that uses openai-python."""

    def register(body: OpenaiCheck) -> None:
        async def run(s: Session) -> None:
            async with open_openai(s) as client:
                await run_sdk_check(body(s, client), s)

        AREA.add(
            getattr(body, "__name__", "").replace("_", "-"),
            rule,
            run,
            claims=(claim,),
            except_for=except_for,
        )

    return register


def with_anthropic(
    rule: str, claim: str, except_for: tuple[str, ...] = ()
) -> Callable[[AnthropicCheck], None]:
    """Add the decorated function as a check that uses anthropic-python."""

    def register(body: AnthropicCheck) -> None:
        async def run(s: Session) -> None:
            async with open_anthropic(s) as client:
                await run_sdk_check(body(s, client), s)

        name = getattr(body, "__name__", "").replace("_", "-")
        AREA.add(name, rule, run, claims=(claim,), source=ANTHROPIC_SDK, except_for=except_for)

    return register


async def run_sdk_check(work: Awaitable[None], s: Session) -> None:
    """Await a check. Any exception of the SDK becomes a Violation, or Skipped if the
    server rejects the feature.
    """
    try:
        await work
    except (Skipped, Violation):
        raise
    except Exception as error:
        status: object = getattr(error, "status_code", None)
        if status == 501 or (status in REFUSALS and s.target.profile == "auto"):
            raise Skipped(f"the server rejects the request: {error}") from None
        raise Violation(f"the SDK raises {type(error).__name__}: {error}") from None


@asynccontextmanager
async def open_openai(s: Session) -> AsyncGenerator[openai.AsyncOpenAI]:
    require_module("openai")
    import openai  # noqa: PLC0415 - as above

    record_use(s, f"openai-python {openai.__version__}")
    url = f"{s.target.url}/v1"
    key = s.target.api_key or "none"
    async with openai.AsyncOpenAI(
        base_url=url, api_key=key, max_retries=0, timeout=s.target.timeout
    ) as client:
        yield client


@asynccontextmanager
async def open_anthropic(s: Session) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    require_module("anthropic")
    import anthropic  # noqa: PLC0415 - as above

    record_use(s, f"anthropic-python {anthropic.__version__}")
    url = s.target.url
    key = s.target.api_key or "none"
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key=key, max_retries=0, timeout=s.target.timeout
    ) as client:
        yield client


def require_module(module: str) -> None:
    if find_spec(module) is None:
        raise Skipped(f"{module} is not installed")


def record_use(s: Session, name: str) -> None:
    """Count three requests in advance, and add an exchange without a body: the SDK's
    own requests are not recorded.
    """
    for _ in range(3):
        s.client.spend({"prompt": "", "max_tokens": TOKENS})
    s.exchanges.append(Exchange("SDK", name, b""))


@with_openai(
    "The chat stream helper of openai-python returns the text of the non-streamed response.", "chat"
)
async def chat_stream(s: Session, client: openai.AsyncOpenAI) -> None:
    fields: Any = {
        "model": s.model,
        "messages": HELLO,
        "max_tokens": TOKENS,
        "temperature": 0,
        "seed": 1,
    }
    async with client.chat.completions.stream(**fields) as events:
        async for _ in events:
            pass
        snapshot = events.current_completion_snapshot
    create: Any = client.chat.completions.create
    replies: list[ChatCompletion] = [await create(**fields) for _ in range(2)]
    texts = [reply.choices[0].message.content or "" for reply in replies]
    streamed = snapshot.choices[0].message.content or ""
    require(
        texts[0] != texts[1] or streamed == texts[0],
        f"stream: {streamed!r}, non-streamed: {texts[0]!r}",
    )


@with_openai("openai-python parses the chunks of a Completions stream.", "completions")
async def completions_stream(s: Session, client: openai.AsyncOpenAI) -> None:
    pieces: list[str] = []
    stream = await client.completions.create(
        model=s.model, prompt=STORY, max_tokens=16, temperature=0, stream=True
    )
    async for chunk in stream:
        pieces += [choice.text for choice in chunk.choices]
    require("".join(pieces), "the stream has no text")


@with_openai(
    "The Responses stream helper of openai-python returns a final response with text.", "responses"
)
async def responses_stream(s: Session, client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(
        model=s.model, input="Name a colour.", temperature=0, store=False
    ) as events:
        async for _ in events:
            pass
        final = await events.get_final_response()
    require(final.output_text, "the final response has no text")


@with_openai("openai-python parses a non-streamed response of the Responses API.", "responses")
async def responses_whole(s: Session, client: openai.AsyncOpenAI) -> None:
    reply = await client.responses.create(
        model=s.model, input="Name a colour.", temperature=0, store=False
    )
    require(reply.output_text and reply.usage, "the response has no text or no usage")


@with_openai("openai-python parses embeddings, which it requests as base64.", "embeddings")
async def embeddings(s: Session, client: openai.AsyncOpenAI) -> None:
    # A server whose model generates text may have no embeddings: this raises Skipped.
    await s.request(
        "/v1/embeddings",
        {"model": s.model, "input": ["a", "b"]},
        feature="embeddings of this model",
    )
    reply = await client.embeddings.create(model=s.model, input=["a", "b"])
    require(
        len(reply.data) == 2 and len(reply.data[0].embedding) > 1, "the response has no vectors"
    )


@with_openai("openai-python lists the models.", "models")
async def models(s: Session, client: openai.AsyncOpenAI) -> None:
    model_ids = [model.id async for model in client.models.list()]
    require(s.model in model_ids, f"the models are {model_ids}")


@with_openai(
    "openai-python raises NotFoundError or BadRequestError for an unknown model.",
    "chat",
    ONE_MODEL,
)
async def error_class(_: Session, client: openai.AsyncOpenAI) -> None:
    import openai  # noqa: PLC0415 - as above

    try:
        await client.chat.completions.create(model="no-such-model", messages=HELLO)
    except (openai.NotFoundError, openai.BadRequestError) as error:
        require(error.message, "the error has no message")
        return
    raise Violation("the SDK raises no exception")


@with_openai("openai-python accumulates a streamed tool call.", "chat")
async def chat_tools(s: Session, client: openai.AsyncOpenAI) -> None:
    function: Any = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
    fields: Any = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "get_time"}},
    }
    async with client.chat.completions.stream(
        model=s.model, messages=HELLO, max_tokens=200, temperature=0, **fields
    ) as events:
        async for _ in events:
            pass
        calls = events.current_completion_snapshot.choices[0].message.tool_calls or []
    require([call.function.name for call in calls] == ["get_time"], f"the calls are {calls}")


@with_anthropic(
    "The stream helper of anthropic-python returns the text of the non-streamed response.",
    "messages",
)
async def messages_stream(s: Session, client: anthropic.AsyncAnthropic) -> None:
    fields: Any = {
        "model": s.model,
        "max_tokens": TOKENS,
        "messages": HELLO,
        "extra_body": {"temperature": 0},
    }
    async with client.messages.stream(**fields) as events:
        final = await events.get_final_message()
    replies: list[Message] = [await client.messages.create(**fields) for _ in range(2)]
    texts = [
        "".join(block.text for block in message.content if block.type == "text")
        for message in (final, *replies)
    ]
    require(texts[0], "the stream has no text")
    require(
        texts[1] != texts[2] or texts[0] == texts[1],
        f"stream: {texts[0]!r}, non-streamed: {texts[1]!r}",
    )
    require(final.usage.output_tokens > 0, f"usage is {final.usage}")


@with_anthropic("anthropic-python counts tokens.", "count-tokens")
async def messages_count(s: Session, client: anthropic.AsyncAnthropic) -> None:
    reply = await client.messages.count_tokens(model=s.model, messages=HELLO)
    require(reply.input_tokens > 0, f"input_tokens is {reply.input_tokens}")


@with_anthropic(
    "anthropic-python raises NotFoundError or BadRequestError for an unknown model.",
    "messages",
    ONE_MODEL,
)
async def messages_error_class(_: Session, client: anthropic.AsyncAnthropic) -> None:
    import anthropic  # noqa: PLC0415 - as above

    try:
        await client.messages.create(model="no-such-model", max_tokens=8, messages=HELLO)
    except (anthropic.NotFoundError, anthropic.BadRequestError):
        return
    raise Violation("the SDK raises no exception")


@with_anthropic("anthropic-python accumulates a streamed tool call.", "messages")
async def messages_tools(s: Session, client: anthropic.AsyncAnthropic) -> None:
    tools: Any = [{"name": "get_time", "input_schema": {"type": "object", "properties": {}}}]
    choice: Any = {"type": "tool", "name": "get_time"}
    async with client.messages.stream(
        model=s.model, max_tokens=200, messages=HELLO, tools=tools, tool_choice=choice
    ) as events:
        final = await events.get_final_message()
    names = [block.name for block in final.content if block.type == "tool_use"]
    # Several calls are allowed: only `disable_parallel_tool_use` limits them to one.
    require(set(names) == {"get_time"}, f"the calls are {names}")
