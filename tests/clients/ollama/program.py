"""The official Ollama client, LangChain-Ollama and LiteLLM against a server: prints one
JSON line for each trial.

Arguments: the address, and which of them: `ollama`, `langchain` or `litellm`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field

LOOP = (
    '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] '
    "[[say 5 and 8]]"
)
BROKEN = "[[say So far]] [[error 503 out of memory]]"
CAPITAL = "What is the capital of Japan?"
SUM = "What is 17 + 26?"


class Person(BaseModel):
    """A person."""

    name: Literal["Ann", "Bob"]
    age: int = Field(ge=0, le=120)


SCHEMA = Person.model_json_schema()


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def tell(name: str, work: Callable[[], dict[str, Any]]) -> None:
    try:
        result = work()
    except Exception as error:
        result = {
            "error": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "message": str(error),
        }
    print(json.dumps({"name": name, **result}, default=str), flush=True)


def validate(text: str) -> dict[str, Any]:
    return {"valid": Person.model_validate_json(text).age >= 0}


def try_ollama(address: str) -> None:
    import ollama

    client = ollama.Client(address)

    def user(text: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": text}]

    def summarize(parts: Iterable[Any]) -> dict[str, Any]:
        chunks = list(parts)
        messages = [chunk.message for chunk in chunks]
        calls = [call.function for message in messages for call in message.tool_calls or ()]
        last = chunks[-1]
        return {
            "text": "".join(message.content or "" for message in messages),
            "thinking": "".join(message.thinking or "" for message in messages),
            "calls": [[call.name, dict(call.arguments)] for call in calls],
            "counts": [last.prompt_eval_count, last.eval_count, last.done_reason],
            "timed": last.total_duration >= last.eval_duration,
        }

    looped: dict[str, Any] = {"model": "scripted", "messages": user(LOOP), "tools": [add]}
    tell("chat whole", lambda: summarize([client.chat(**looped)]))
    tell("chat streamed", lambda: summarize(client.chat(**looped, stream=True)))

    def loop() -> dict[str, Any]:
        messages = list[Any](user(LOOP))
        results = []
        while True:
            reply = client.chat("scripted", messages, tools=[add])
            messages.append(reply.message)
            if not reply.message.tool_calls:
                return {"text": reply.message.content, "results": results}
            for call in reply.message.tool_calls:
                results.append(add(**call.function.arguments))
                messages.append(
                    {"role": "tool", "tool_name": call.function.name, "content": str(results[-1])}
                )

    tell("chat loop", loop)
    for streamed in (False, True):
        name = "streamed" if streamed else "whole"
        body: dict[str, Any] = {
            "model": "tiny:latest",
            "messages": user(SUM),
            "think": True,
            "stream": streamed,
        }
        tell(
            f"think {name}",
            lambda fields=body: summarize(
                client.chat(**fields) if fields["stream"] else [client.chat(**fields)]
            ),
        )
    tell(
        "format",
        lambda: validate(
            client.chat("tiny", user("Who are you?"), format=SCHEMA).message.content or ""
        ),
    )
    tell(
        "generate format", lambda: validate(client.generate("tiny", "Who?", format=SCHEMA).response)
    )
    tell("generate", lambda: {"text": client.generate("tiny", CAPITAL).response})
    tell(
        "generate streamed",
        lambda: {
            "text": "".join(c.response for c in client.generate("tiny", CAPITAL, stream=True))
        },
    )
    first: Any = client.generate("tiny", CAPITAL).context
    tell(
        "context",
        lambda: {
            "begins": client.generate("tiny", SUM, context=first).context[: len(first)] == first
        },
    )
    logprobs = {"logprobs": True, "top_logprobs": 2}
    tell(
        "logprobs",
        lambda: {
            "top": len(client.chat("tiny", user(CAPITAL), **logprobs).logprobs[0].top_logprobs)
        },
    )
    tell(
        "embed",
        lambda: {"sizes": [len(vector) for vector in client.embed("tiny", ["a", "b"]).embeddings]},
    )
    tell("embeddings", lambda: {"size": len(client.embeddings("tiny", "a").embedding)})
    tell(
        "show",
        lambda: {
            "capabilities": client.show("tiny").capabilities,
            "info": client.show("tiny").modelinfo,
        },
    )
    tell("list", lambda: {"names": [model.model for model in client.list().models]})
    tell("ps", lambda: {"names": sorted(model.model or "" for model in client.ps().models)})
    tell("pull", lambda: {"status": client.pull("tiny").status})
    tell(
        "pull streamed",
        lambda: {"statuses": [part.status for part in client.pull("tiny", stream=True)]},
    )
    tell("unknown", lambda: {"text": client.chat("llama3.2", user("a"))})
    tell("delete", lambda: {"text": client.delete("tiny")})
    tell("refused", lambda: summarize([client.chat("scripted", user("[[error 429 slowly]]"))]))
    tell("broken", lambda: summarize(client.chat("scripted", user(BROKEN), stream=True)))
    tell("load", lambda: {"reason": client.chat("tiny").done_reason})


def try_langchain(address: str) -> None:
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

    there = {"base_url": address}
    adds = tool(add)

    def summarize(message: Any) -> dict[str, Any]:
        usage = message.usage_metadata or {}
        return {
            "text": message.text,
            "thinking": message.additional_kwargs.get("reasoning_content", ""),
            "calls": [[call["name"], call["args"]] for call in message.tool_calls],
            "usage": [usage.get("input_tokens"), usage.get("output_tokens")],
        }

    def folded(model: Any, words: str) -> dict[str, Any]:
        whole: Any = None
        for chunk in model.stream(words):
            whole = chunk if whole is None else whole + chunk
        return summarize(whole)

    scripted = ChatOllama(model="scripted", reasoning=True, **there)
    bound = scripted.bind_tools([adds])
    tell("whole", lambda: summarize(bound.invoke(LOOP)))
    tell("streamed", lambda: folded(bound, LOOP))

    def loop() -> dict[str, Any]:
        messages: list[Any] = [HumanMessage(LOOP)]
        while True:
            messages.append(bound.invoke(messages))
            if not messages[-1].tool_calls:
                return {
                    "text": messages[-1].text,
                    "results": [m.content for m in messages if m.type == "tool"],
                }
            messages += [adds.invoke(call) for call in messages[-1].tool_calls]

    tell("loop", loop)
    tiny = ChatOllama(
        model="tiny", validate_model_on_init=True, temperature=0, keep_alive="5m", **there
    )
    shaped = tiny.with_structured_output(Person)
    tell("object", lambda: {"valid": isinstance(shaped.invoke("Who are you?"), Person)})
    tell("text", lambda: {"text": OllamaLLM(model="tiny", temperature=0, **there).invoke(CAPITAL)})
    embedder = OllamaEmbeddings(model="tiny", **there)
    tell(
        "embed", lambda: {"sizes": [len(vector) for vector in embedder.embed_documents(["a", "b"])]}
    )
    tell("broken", lambda: folded(scripted, BROKEN))


def try_litellm(address: str) -> None:
    import litellm

    litellm.suppress_debug_info = True
    there = {"api_base": address}
    loop = [{"role": "user", "content": LOOP}]
    declared = {
        "type": "function",
        "function": {"name": "add", "description": "Adds", "parameters": NUMBERS},
    }

    def summarize(reply: Any) -> dict[str, Any]:
        message = reply.choices[0].message
        calls = [
            [call.function.name, json.loads(call.function.arguments)]
            for call in message.tool_calls or ()
        ]
        return {
            "text": message.content or "",
            "thinking": getattr(message, "reasoning_content", None) or "",
            "calls": calls,
            "reason": reply.choices[0].finish_reason,
            "usage": [reply.usage.prompt_tokens, reply.usage.completion_tokens],
        }

    def streamed(**fields: Any) -> dict[str, Any]:
        chunks = list(litellm.completion(**fields, stream=True))
        return summarize(litellm.stream_chunk_builder(chunks, messages=fields["messages"]))

    body: dict[str, Any] = {
        "model": "ollama_chat/scripted",
        "messages": loop,
        "tools": [declared],
        **there,
    }
    tell("whole", lambda: summarize(litellm.completion(**body)))
    tell("streamed", lambda: streamed(**body))
    capital = [{"role": "user", "content": CAPITAL}]
    for kind in ("ollama_chat", "ollama"):
        plain: dict[str, Any] = {
            "model": f"{kind}/tiny",
            "messages": capital,
            "temperature": 0,
            **there,
        }
        tell(f"{kind} text", lambda plain=plain: summarize(litellm.completion(**plain)))
        tell(f"{kind} text streamed", lambda plain=plain: streamed(**plain))
    who: dict[str, Any] = {
        "model": "ollama_chat/tiny",
        "messages": [{"role": "user", "content": "Who are you?"}],
    }
    tell(
        "object",
        lambda: validate(
            litellm.completion(**who, response_format=Person, **there).choices[0].message.content
        ),
    )
    tell(
        "embed",
        lambda: {
            "size": len(
                litellm.embedding(model="ollama/tiny", input=["a"], **there).data[0]["embedding"]
            )
        },
    )
    refused = {**body, "messages": [{"role": "user", "content": "[[error 429 slowly]]"}]}
    tell("refused", lambda: summarize(litellm.completion(**refused, num_retries=0)))


NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TRIALS = {"ollama": try_ollama, "langchain": try_langchain, "litellm": try_litellm}

if __name__ == "__main__":
    which, server = sys.argv[1:]
    TRIALS[which](server)
