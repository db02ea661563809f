"""Checks of vLLM's extensions of OpenAI's APIs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import CHAT, COMPLETIONS
from ..json_objects import get_objects
from ..parsed_response import read_chat, read_completion
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks
from .generation import STORY
from .sample_schemas import PERSON, check_schema
from .sampling import Sampler, add_effects, build_send

VLLM_DOCS = "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html"
VLLM = Area("vllm", claims=("vllm",), source=VLLM_DOCS)


async def request_chat(
    s: Session, feature: str | None = None, /, limit: int = 16, **fields: Any
) -> JsonObject:
    return (
        await s.request(
            CHAT.path, CHAT.build_request(s.model, STORY, limit, **fields), feature=feature
        )
    ).json()


async def complete(
    s: Session, feature: str | None = None, /, limit: int = 8, **fields: Any
) -> JsonObject:
    body = {**COMPLETIONS.build_request(s.model, STORY, limit), **fields}
    return (await s.request(COMPLETIONS.path, body, feature=feature)).json()


@VLLM.check("With `ignore_eos`, generation continues to the token limit.")
async def ignore_eos(s: Session) -> None:
    async def count(**fields: Any) -> int:
        body = {**CHAT.build_request(s.model, "Say hello.", 64), **fields}
        reply = (await s.request(CHAT.path, body, feature="ignore_eos" if fields else None)).json()
        return reply["usage"]["completion_tokens"]

    tokens = await count(ignore_eos=True)
    require(tokens == 64, f"{tokens} of 64 tokens, {await count()} without ignore_eos")


@VLLM.check("`min_tokens` is the minimum number of output tokens.")
async def min_tokens(s: Session) -> None:
    reply = await complete(s, "min_tokens", limit=48, min_tokens=40)
    require(
        reply["usage"]["completion_tokens"] >= 40,
        f"{reply['usage']['completion_tokens']} tokens, the minimum is 40",
    )


@VLLM.check("`min_tokens` above `max_tokens` is rejected.")
async def rejects_min_tokens(s: Session) -> None:
    exchange = await s.post(
        COMPLETIONS.path, COMPLETIONS.build_request(s.model, STORY, 8, min_tokens=20)
    )
    require(exchange.status in (400, 422), f"status {exchange.status}")


@VLLM.check("A token of `stop_token_ids` ends the text.")
async def stop_token_ids(s: Session) -> None:
    ids = await find_ids(s)
    reply = await complete(s, "stop_token_ids", limit=16, stop_token_ids=[ids[4]])
    expected = ids.index(ids[4]) + 1
    tokens = reply["usage"]["completion_tokens"]
    # Servers differ in whether usage counts the token that ended the text.
    require(
        tokens in (expected, expected - 1), f"{tokens} tokens, the stop token is number {expected}"
    )
    require(
        reply["choices"][0]["finish_reason"] == "stop",
        f"finish_reason is {reply['choices'][0]['finish_reason']!r}",
    )


async def find_ids(s: Session) -> list[int]:
    """Return the token ids of a response of up to 16 tokens. Raises Skipped if they
    differ between two requests.
    """

    async def find() -> list[int]:
        answers: list[list[int]] = []
        for _ in range(2):
            reply = await complete(s, "return_token_ids", limit=16, return_token_ids=True)
            answers.append(reply["choices"][0]["token_ids"])
        if answers[0] != answers[1] or len(answers[0]) < 6:
            raise Skipped("repeated requests have different responses, or too short ones")
        return answers[0]

    return await s.share("vllm.ids", find)


@VLLM.check("`return_token_ids` returns one id per output token, and the ids of the prompt.")
async def return_token_ids(s: Session) -> None:
    reply = await complete(s, "return_token_ids", return_token_ids=True)
    choice = reply["choices"][0]
    usage = reply["usage"]
    require(
        len(choice["token_ids"]) == usage["completion_tokens"],
        f"{len(choice['token_ids'])} ids, usage is {usage}",
    )
    prompt = choice.get("prompt_token_ids") or get_objects(reply, "prompt_token_ids")
    require(
        len(prompt) == usage["prompt_tokens"], f"{len(prompt)} prompt token ids, usage is {usage}"
    )


@VLLM.check("The token ids of a response, sent as a prompt, are unchanged in the prompt.")
async def ids_round_trip(s: Session) -> None:
    ids = await find_ids(s)
    reply = await complete(s, "token ids", prompt=ids, return_token_ids=True)
    choice = reply["choices"][0]
    prompt_ids = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
    # Only the end is compared: servers may prepend a BOS token.
    require(
        prompt_ids is not None and prompt_ids[-len(ids) :] == ids,
        f"sent were {ids}, the prompt is {prompt_ids}",
    )


@VLLM.check("Only tokens of `allowed_token_ids` are sampled.")
async def allowed_token_ids(s: Session) -> None:
    allowed = (await find_ids(s))[:2]
    reply = await complete(
        s, "allowed_token_ids", allowed_token_ids=allowed, return_token_ids=True, ignore_eos=True
    )
    sampled = set(reply["choices"][0]["token_ids"])
    require(sampled <= set(allowed), f"allowed are {allowed}, sampled were {sorted(sampled)}")


@VLLM.check("A `logit_bias` of -100 excludes a token.")
async def logit_bias(s: Session) -> None:
    ids = await find_ids(s)
    reply = await complete(
        s, "logit_bias", limit=16, logit_bias={str(ids[1]): -100}, return_token_ids=True
    )
    require(
        ids[1] not in reply["choices"][0]["token_ids"],
        f"{ids[1]} is in {reply['choices'][0]['token_ids']}",
    )


def get_tokens(reply: JsonObject) -> list[str]:
    return [str(token) for token in reply["choices"][0]["logprobs"]["tokens"]]


@VLLM.check("`bad_words` are not generated.")
async def bad_words(s: Session) -> None:
    tokens = get_tokens(await complete(s, "logprobs", limit=16, logprobs=1))
    words = [token for token in tokens if re.fullmatch(" [a-z]{3,}", token)]
    if not words:
        raise Skipped("no token of the response is a word")
    # The word is a single token: vLLM excludes that tokenization of it, not others.
    sampled = get_tokens(
        await complete(s, "bad_words", limit=16, logprobs=1, bad_words=[words[0].strip()])
    )
    require(words[0] not in sampled, f"{words[0]!r} is in {sampled}")


@VLLM.check("`prompt_logprobs` returns one entry per prompt token, `null` for the first.")
async def prompt_logprobs(s: Session) -> None:
    reply = await complete(s, "prompt_logprobs", prompt_logprobs=1)
    prompt_logprobs: Any = reply["choices"][0].get("prompt_logprobs") or reply.get(
        "prompt_logprobs"
    )
    entries: list[Any] = prompt_logprobs or []
    require(entries, "the response has no prompt_logprobs")
    require(
        entries[0] is None and len(entries) == reply["usage"]["prompt_tokens"],
        f"{len(entries)} entries, the first is {entries[0]}, usage is {reply['usage']}",
    )
    for entry in entries[1:]:
        require(all(value["logprob"] <= 0 for value in entry.values()), f"an entry is {entry}")


@VLLM.check("With `return_tokens_as_token_ids`, tokens have the form `token_id:N`.")
async def tokens_as_ids(s: Session) -> None:
    reply = await complete(
        s, "return_tokens_as_token_ids", logprobs=1, return_tokens_as_token_ids=True
    )
    tokens = reply["choices"][0]["logprobs"]["tokens"]
    require(
        all(re.fullmatch(r"token_id:\d+", token) for token in tokens),
        f"the tokens are {tokens[:4]}",
    )


@VLLM.check("With `include_stop_str_in_output`, the text includes the stop string.")
async def include_stop(s: Session) -> None:
    text = read_completion(await complete(s, limit=16)).text
    if " " not in text[1:]:
        raise Skipped("the text has no space")
    reply = await complete(
        s, "include_stop_str_in_output", limit=16, stop=[" "], include_stop_str_in_output=True
    )
    require(
        read_completion(reply).text.endswith(" "), f"the text is {read_completion(reply).text!r}"
    )


def add_structured_outputs() -> None:
    values: tuple[tuple[str, JsonObject, str], ...] = (
        ("choice", {"choice": ["north", "south"]}, r"north|south"),
        ("regex", {"regex": "[A-C]{2}-[0-9]"}, r"[A-C]{2}-[0-9]"),
        ("grammar", {"grammar": 'root ::= "yes" | "no"'}, r"yes|no"),
    )

    def build(name: str, value: JsonObject, pattern: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            feature = f"structured_outputs.{name}"
            text = read_chat(
                await request_chat(s, feature, limit=32, structured_outputs=value)
            ).text
            require(re.fullmatch(pattern, text.strip()), f"{value} returns {text!r}")

        return run

    for name, value, pattern in values:
        rule = f"`structured_outputs.{name}` is enforced or rejected."
        VLLM.add(f"structured-{name}", rule, build(name, value, pattern))


add_structured_outputs()


@VLLM.check("`structured_outputs.json` is enforced or rejected.")
async def structured_json(s: Session) -> None:
    answer = read_chat(
        await request_chat(
            s, "structured_outputs.json", limit=200, structured_outputs={"json": PERSON}
        )
    )
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@VLLM.check("With `continuous_usage_stats`, every chunk has usage, and the counts never decrease.")
async def continuous_usage(s: Session) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    exchange = await s.request(
        CHAT.path,
        {**CHAT.build_request(s.model, STORY, 16), "stream": True, "stream_options": options},
    )
    chunks = parse_chunks(exchange.body)
    if not all(chunk.get("usage") for chunk in chunks):
        warned = exchange.header("x-dragoman-warnings") or ""
        require("continuous_usage_stats" in warned, "a chunk has no usage")
        return
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    require(counts == sorted(counts), f"the counts are {counts}")


@VLLM.check(
    "With `continue_final_message`, the final assistant message is continued, not repeated."
)
async def continue_final_message(s: Session) -> None:
    messages = [
        {"role": "user", "content": "Tell a story."},
        {"role": "assistant", "content": "Once upon a time"},
    ]
    fields: JsonObject = {
        "messages": messages,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    text = read_chat(await request_chat(s, "continue_final_message", **fields)).text
    require(not text.startswith("Once upon a time"), f"the response repeats the message: {text!r}")


@VLLM.check("`/inference/v1/generate` accepts and returns token ids.", claims=("vllm-generate",))
async def generate(s: Session) -> None:
    body = {
        "model": s.model,
        "token_ids": [300, 301, 302],
        "sampling_params": {"max_tokens": 5, "temperature": 0},
    }
    reply = (await s.request("/inference/v1/generate", body, feature="token ids")).json()
    ids = reply["choices"][0]["token_ids"]
    require(0 < len(ids) <= 5 and all(isinstance(id, int) for id in ids), f"the ids are {ids}")


add_effects(
    Sampler(
        area=VLLM,
        send=build_send(COMPLETIONS),
        hot=2.0,
        seed="seed",
        narrow={"top_k": 1, "min_p": 1.0},
        penalties={"repetition_penalty": (2.0, 0.5)},
    )
)
