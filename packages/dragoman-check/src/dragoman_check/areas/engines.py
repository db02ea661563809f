"""Checks of the APIs and extensions of vLLM, SGLang, TGI and llama.cpp, of
tokenization, health and metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from ..rules import sglang, tgi
from ..rules.checks import require
from ..dialects import CHAT, COMPLETIONS, read_chat, read_completion
from ..session import Area, Json, Session, Skipped, get_objects
from .chat import PERSON, check_schema
from .generation import STORY

VLLM_DOCS = "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html"
VLLM = Area("vllm", claims=("vllm",), source=VLLM_DOCS)
TOKENIZE = Area("tokenize", claims=("tokenize",), source=VLLM_DOCS)
OPERATIONS = Area("operations", claims=(), source=VLLM_DOCS)
SGLANG = Area(
    "sglang", claims=("sglang",), source="https://docs.sglang.ai/basic_usage/native_api.html"
)
TGI = Area(
    "tgi", claims=("tgi",), source="https://huggingface.github.io/text-generation-inference/"
)
LLAMACPP = Area(
    "llamacpp",
    claims=("llamacpp",),
    source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
)


async def ask_chat(
    s: Session, feature: str | None = None, /, limit: int = 16, **fields: Any
) -> Json:
    return (
        await s.ask(CHAT.path, CHAT.ask(s.model, STORY, limit, **fields), feature=feature)
    ).json()


async def complete(
    s: Session, feature: str | None = None, /, limit: int = 8, **fields: Any
) -> Json:
    body = {**COMPLETIONS.ask(s.model, STORY, limit), **fields}
    return (await s.ask(COMPLETIONS.path, body, feature=feature)).json()


@VLLM.check("`ignore_eos` goes on to the limit.")
async def ignore_eos(s: Session) -> None:
    async def count(**fields: Any) -> int:
        body = {**CHAT.ask(s.model, "Say hello.", 64), **fields}
        reply = (await s.ask(CHAT.path, body, feature="ignore_eos" if fields else None)).json()
        return reply["usage"]["completion_tokens"]

    tokens = await count(ignore_eos=True)
    require(tokens == 64, f"{tokens} of 64 tokens, without it {await count()}")


@VLLM.check("`min_tokens` is a lower limit.")
async def min_tokens(s: Session) -> None:
    reply = await complete(s, "min_tokens", limit=48, min_tokens=40)
    require(
        reply["usage"]["completion_tokens"] >= 40,
        f"{reply['usage']['completion_tokens']} tokens, at least 40",
    )


@VLLM.check("`min_tokens` above `max_tokens` is rejected.")
async def rejects_min_tokens(s: Session) -> None:
    exchange = await s.post(COMPLETIONS.path, COMPLETIONS.ask(s.model, STORY, 8, min_tokens=20))
    require(exchange.status in (400, 422), f"status {exchange.status}")


@VLLM.check("`stop_token_ids` end the text.")
async def stop_token_ids(s: Session) -> None:
    ids = await find_ids(s)
    reply = await complete(s, "stop_token_ids", limit=16, stop_token_ids=[ids[4]])
    expected = ids.index(ids[4]) + 1
    tokens = reply["usage"]["completion_tokens"]
    # Servers differ in whether usage counts the token that ended the text.
    require(tokens in (expected, expected - 1), f"{tokens} tokens, the id is number {expected}")
    require(
        reply["choices"][0]["finish_reason"] == "stop",
        f"it is {reply['choices'][0]['finish_reason']!r}",
    )


async def find_ids(s: Session) -> list[int]:
    """Return the token ids of an answer of up to 16 tokens. Raises Skipped if it
    differs between two requests.
    """

    async def find() -> list[int]:
        answers: list[list[int]] = []
        for _ in range(2):
            reply = await complete(s, "return_token_ids", limit=16, return_token_ids=True)
            answers.append(reply["choices"][0]["token_ids"])
        if answers[0] != answers[1] or len(answers[0]) < 6:
            raise Skipped("answers to the same request differ, or are too short")
        return answers[0]

    return await s.share("vllm.ids", find)


@VLLM.check("`return_token_ids` has one id for each output token, and the prompt's.")
async def return_token_ids(s: Session) -> None:
    reply = await complete(s, "return_token_ids", return_token_ids=True)
    choice = reply["choices"][0]
    usage = reply["usage"]
    require(
        len(choice["token_ids"]) == usage["completion_tokens"],
        f"{len(choice['token_ids'])} ids, usage {usage}",
    )
    prompt = choice.get("prompt_token_ids") or get_objects(reply, "prompt_token_ids")
    require(
        len(prompt) == usage["prompt_tokens"], f"{len(prompt)} ids of the prompt, usage {usage}"
    )


@VLLM.check("The token ids of an answer, sent as a prompt, are what they were.")
async def ids_round_trip(s: Session) -> None:
    ids = await find_ids(s)
    reply = await complete(s, "token ids", prompt=ids, return_token_ids=True)
    choice = reply["choices"][0]
    prompt_ids = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
    # Only the end is compared: servers may prepend a BOS token.
    require(
        prompt_ids is not None and prompt_ids[-len(ids) :] == ids,
        f"sent {ids}, the prompt is {prompt_ids}",
    )


@VLLM.check("`allowed_token_ids` are the only ones.")
async def allowed_token_ids(s: Session) -> None:
    allowed = (await find_ids(s))[:2]
    reply = await complete(
        s, "allowed_token_ids", allowed_token_ids=allowed, return_token_ids=True, ignore_eos=True
    )
    sampled = set(reply["choices"][0]["token_ids"])
    require(sampled <= set(allowed), f"allowed {allowed}, sampled {sorted(sampled)}")


@VLLM.check("`logit_bias` of -100 excludes a token.")
async def logit_bias(s: Session) -> None:
    ids = await find_ids(s)
    reply = await complete(
        s, "logit_bias", limit=16, logit_bias={str(ids[1]): -100}, return_token_ids=True
    )
    require(
        ids[1] not in reply["choices"][0]["token_ids"],
        f"{ids[1]} is in {reply['choices'][0]['token_ids']}",
    )


def get_tokens(reply: Json) -> list[str]:
    return [str(token) for token in reply["choices"][0]["logprobs"]["tokens"]]


@VLLM.check("`bad_words` do not appear.")
async def bad_words(s: Session) -> None:
    tokens = get_tokens(await complete(s, "logprobs", limit=16, logprobs=1))
    words = [token for token in tokens if re.fullmatch(" [a-z]{3,}", token)]
    if not words:
        raise Skipped("no token of the answer is a word")
    # The word is a single token: vLLM excludes that tokenization of it, not others.
    sampled = get_tokens(
        await complete(s, "bad_words", limit=16, logprobs=1, bad_words=[words[0].strip()])
    )
    require(words[0] not in sampled, f"{words[0]!r} is in {sampled}")


@VLLM.check("`prompt_logprobs` have an entry for each token of the prompt, the first null.")
async def prompt_logprobs(s: Session) -> None:
    reply = await complete(s, "prompt_logprobs", prompt_logprobs=1)
    prompt_logprobs: Any = reply["choices"][0].get("prompt_logprobs") or reply.get(
        "prompt_logprobs"
    )
    entries: list[Any] = prompt_logprobs or []
    require(entries, "no prompt_logprobs")
    require(
        entries[0] is None and len(entries) == reply["usage"]["prompt_tokens"],
        f"{len(entries)} entries",
    )
    for entry in entries[1:]:
        require(all(value["logprob"] <= 0 for value in entry.values()), f"an entry is {entry}")


@VLLM.check("`return_tokens_as_token_ids` writes tokens as `token_id:N`.")
async def tokens_as_ids(s: Session) -> None:
    reply = await complete(
        s, "return_tokens_as_token_ids", logprobs=1, return_tokens_as_token_ids=True
    )
    tokens = reply["choices"][0]["logprobs"]["tokens"]
    require(
        all(re.fullmatch(r"token_id:\d+", token) for token in tokens),
        f"the tokens are {tokens[:4]}",
    )


@VLLM.check("`include_stop_str_in_output` keeps the stop string.")
async def include_stop(s: Session) -> None:
    text = read_completion(await complete(s, limit=16)).text
    if " " not in text[1:]:
        raise Skipped("the answer has no space")
    reply = await complete(
        s, "include_stop_str_in_output", limit=16, stop=[" "], include_stop_str_in_output=True
    )
    require(
        read_completion(reply).text.endswith(" "), f"the text is {read_completion(reply).text!r}"
    )


@VLLM.check("`top_k: 1` is greedy at any temperature.")
async def top_k(s: Session) -> None:
    greedy = {
        read_completion(await complete(s, temperature=0, seed=seed)).text for seed in (1, 2, 3)
    }
    if len(greedy) > 1:
        raise Skipped("greedy answers differ, so nothing can be compared with them")
    texts = [
        read_completion(await complete(s, "top_k", top_k=1, temperature=2.0, seed=seed)).text
        for seed in (1, 2, 3)
    ]
    require(set(texts) == greedy, f"with top_k 1 {texts}, greedy {sorted(greedy)}")


def add_structured_outputs() -> None:
    values: tuple[tuple[str, Json, str], ...] = (
        ("choice", {"choice": ["north", "south"]}, r"north|south"),
        ("regex", {"regex": "[A-C]{2}-[0-9]"}, r"[A-C]{2}-[0-9]"),
        ("grammar", {"grammar": 'root ::= "yes" | "no"'}, r"yes|no"),
    )

    def build(name: str, value: Json, pattern: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            feature = f"structured_outputs.{name}"
            text = read_chat(await ask_chat(s, feature, limit=32, structured_outputs=value)).text
            require(re.fullmatch(pattern, text.strip()), f"{value} is answered with {text!r}")

        return run

    for name, value, pattern in values:
        rule = f"`structured_outputs.{name}` is enforced, or rejected."
        VLLM.add(f"structured-{name}", rule, build(name, value, pattern))


add_structured_outputs()


@VLLM.check("`structured_outputs.json` is enforced, or rejected.")
async def structured_json(s: Session) -> None:
    answer = read_chat(
        await ask_chat(s, "structured_outputs.json", limit=200, structured_outputs={"json": PERSON})
    )
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@VLLM.check("`continuous_usage_stats` counts in every chunk, and never down.")
async def continuous_usage(s: Session) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    exchange = await s.ask(
        CHAT.path, {**CHAT.ask(s.model, STORY, 16), "stream": True, "stream_options": options}
    )
    chunks = [
        json.loads(line[6:])
        for line in exchange.body.decode().splitlines()
        if line.startswith("data: {")
    ]
    if not all(chunk.get("usage") for chunk in chunks):
        warned = exchange.header("x-dragoman-warnings") or ""
        require("continuous_usage_stats" in warned, "chunks without usage")
        return
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    require(counts == sorted(counts), f"the counts are {counts}")


@VLLM.check("`continue_final_message` continues the assistant's message.")
async def continue_final_message(s: Session) -> None:
    messages = [
        {"role": "user", "content": "Tell a story."},
        {"role": "assistant", "content": "Once upon a time"},
    ]
    fields: Json = {
        "messages": messages,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    text = read_chat(await ask_chat(s, "continue_final_message", **fields)).text
    require(not text.startswith("Once upon a time"), f"it repeats the message: {text!r}")


@VLLM.check(
    "`/inference/v1/generate` takes token ids and returns token ids.", claims=("vllm-generate",)
)
async def generate(s: Session) -> None:
    body = {
        "model": s.model,
        "token_ids": [300, 301, 302],
        "sampling_params": {"max_tokens": 5, "temperature": 0},
    }
    reply = (await s.ask("/inference/v1/generate", body, feature="token ids")).json()
    ids = reply["choices"][0]["token_ids"]
    require(0 < len(ids) <= 5 and all(isinstance(id, int) for id in ids), f"the ids are {ids}")


@TOKENIZE.check("`/tokenize` counts the tokens of a text as the usage does.")
async def count(s: Session) -> None:
    reply = (
        await s.ask(
            "/tokenize", {"model": s.model, "prompt": STORY}, feature="/tokenize of this model"
        )
    ).json()
    require(
        reply["count"] == len(reply["tokens"]),
        f"count {reply['count']}, {len(reply['tokens'])} tokens",
    )
    usage = (await complete(s))["usage"]["prompt_tokens"]
    require(reply["count"] == usage, f"count {reply['count']}, usage {usage}")


@TOKENIZE.check("`/detokenize` is the inverse of `/tokenize`.")
async def detokenize(s: Session) -> None:
    text = "A dog, 日本語 and \U0001f600."
    body = {"model": s.model, "prompt": text, "add_special_tokens": False}
    tokens = (await s.ask("/tokenize", body, feature="/tokenize of this model")).json()["tokens"]
    reply = (await s.ask("/detokenize", {"model": s.model, "tokens": tokens})).json()
    require(reply["prompt"] == text, f"{text!r} comes back as {reply['prompt']!r}")


@TOKENIZE.check("`/tokenize` counts a conversation as the usage does.")
async def count_messages(s: Session) -> None:
    body = {"model": s.model, "messages": [{"role": "user", "content": STORY}]}
    exchange = await s.post("/tokenize", body)
    if exchange.status == 400:
        raise Skipped(f"the server rejects the request: {exchange.message()}")
    usage = (await ask_chat(s))["usage"]["prompt_tokens"]
    require(exchange.json()["count"] == usage, f"count {exchange.json()['count']}, usage {usage}")


@TOKENIZE.check("Invalid requests are rejected.")
async def rejects(s: Session) -> None:
    for path, body in (
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
    ):
        exchange = await s.post(path, {"model": s.model, **body})
        require(400 <= exchange.status < 500, f"{path} {body}: status {exchange.status}")


@OPERATIONS.check("`/health` is 200.", claims=("health",))
async def health(s: Session) -> None:
    exchange = await s.get("/health")
    require(exchange.status == 200, f"status {exchange.status}")


METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? -?(\d|NaN|[+-]?Inf).*")
"""A sample in Prometheus' text format: a name, optional labels, and a value."""


async def get_metrics(s: Session) -> list[str]:
    exchange = await s.get("/metrics")
    if exchange.status in (401, 403, 501):
        raise Skipped(f"status {exchange.status}")
    require(exchange.status == 200, f"status {exchange.status}")
    return exchange.body.decode().splitlines()


@OPERATIONS.check("`/metrics` is in Prometheus' text format.", claims=("metrics",))
async def metrics_form(s: Session) -> None:
    lines = [line for line in await get_metrics(s) if line and not line.startswith("#")]
    wrong = [line for line in lines if not METRIC.fullmatch(line)]
    require(lines and not wrong, f"{len(lines)} samples, malformed {wrong[:3]}")


@OPERATIONS.check("No metric is listed twice with the same labels.", claims=("metrics",))
async def metrics_once(s: Session) -> None:
    names = [
        line.rpartition(" ")[0]
        for line in await get_metrics(s)
        if line and not line.startswith("#")
    ]
    # `count` makes this quadratic, so a long list is not checked.
    twice = {name for name in names if names.count(name) > 1} if len(names) < 5000 else set[str]()
    require(not twice, f"twice: {sorted(twice)[:3]}")


@OPERATIONS.check("The token counters grow by exactly the usage.", claims=("metrics", "chat"))
async def metrics_tokens(s: Session) -> None:
    async def count(name: str) -> float | None:
        lines = [
            line
            for line in await get_metrics(s)
            if re.match(rf"(vllm|sglang|llamacpp):{name}(_total)?[{{ ]", line)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None

    names = ("generation_tokens", "prompt_tokens")
    before = [await count(name) for name in names]
    if None in before:
        raise Skipped("the server has no such counters")
    usage = (await ask_chat(s))["usage"]
    after = [await count(name) for name in names]
    grown = [(b or 0) - (a or 0) for a, b in zip(before, after, strict=True)]
    expected = [usage["completion_tokens"], usage["prompt_tokens"]]
    require(grown == expected, f"the counters grew by {grown}, the usage is {expected}")


@OPERATIONS.check("`/version` has the version.", claims=("vllm", "health"), level="should")
async def version(s: Session) -> None:
    exchange = await s.get("/version")
    require(exchange.status == 200 and exchange.json().get("version"), f"status {exchange.status}")


async def generate_sglang(s: Session, **fields: Any) -> Json:
    params = {"max_new_tokens": 12, "temperature": 0}
    body = {"model": s.model, "text": STORY, "sampling_params": params, **fields}
    return (await s.ask("/generate", body)).json()


@SGLANG.check("`/generate` has text, ids and meta_info.")
async def form(s: Session) -> None:
    sglang.check_object(await generate_sglang(s))


@SGLANG.check("A stream of `/generate` has the cumulative text, and ends as the whole answer.")
async def stream(s: Session) -> None:
    whole = await generate_sglang(s)
    params = {"max_new_tokens": 12, "temperature": 0}
    body = {"model": s.model, "text": STORY, "sampling_params": params, "stream": True}
    last = sglang.check_stream((await s.ask("/generate", body)).body)[-1]
    require(last["text"] == whole["text"], f"streamed {last['text']!r}, whole {whole['text']!r}")


@SGLANG.check("`return_logprob` has a logprob for each token.")
async def sglang_logprobs(s: Session) -> None:
    reply = await generate_sglang(s, return_logprob=True)
    sglang.check_object(reply)
    require(
        len(reply["meta_info"]["output_token_logprobs"]) == len(reply["output_ids"]),
        "counts of logprobs and ids differ",
    )


@SGLANG.check("`input_ids` are a prompt.")
async def sglang_ids(s: Session) -> None:
    body = {
        "model": s.model,
        "input_ids": [300, 301, 302],
        "sampling_params": {"max_new_tokens": 4},
    }
    reply = (await s.ask("/generate", body)).json()
    require(reply["meta_info"]["prompt_tokens"] == 3, f"meta_info {reply['meta_info']}")


async def generate_tgi(s: Session, path: str = "/generate", **fields: Any) -> bytes:
    parameters = {"max_new_tokens": 12, "details": True, "do_sample": False, **fields}
    return (await s.ask(path, {"model": s.model, "inputs": STORY, "parameters": parameters})).body


@TGI.check("`/generate` has the text and details.")
async def tgi_form(s: Session) -> None:
    reply = json.loads(await generate_tgi(s))
    tgi.check_object(reply)
    require(
        reply["details"]["generated_tokens"] <= 12,
        f"{reply['details']['generated_tokens']} tokens, the limit is 12",
    )


@TGI.check("The tokens of `/generate_stream` add up to its text, which is that of `/generate`.")
async def tgi_stream(s: Session) -> None:
    whole = json.loads(await generate_tgi(s))["generated_text"]
    events = tgi.check_stream(await generate_tgi(s, "/generate_stream"))
    require(
        events[-1]["generated_text"] == whole,
        f"streamed {events[-1]['generated_text']!r}, whole {whole!r}",
    )


@TGI.check("Invalid parameters are rejected in TGI's form.")
async def tgi_rejects(s: Session) -> None:
    exchange = await s.post(
        "/generate", {"model": s.model, "inputs": STORY, "parameters": {"max_new_tokens": -1}}
    )
    require(exchange.status == 422, f"status {exchange.status}")
    tgi.check_error(exchange.json())


@LLAMACPP.check("`/props` has the model's context.")
async def props(s: Session) -> None:
    reply = (await s.get("/props")).json()
    require(reply.get("default_generation_settings"), f"props {sorted(reply)}")


@LLAMACPP.check("`/completion` answers with content and timings.")
async def completion(s: Session) -> None:
    reply = (await s.ask("/completion", {"prompt": STORY, "n_predict": 8, "temperature": 0})).json()
    require(reply["content"] and reply["tokens_predicted"] <= 8, f"it is {str(reply)[:200]}")


@LLAMACPP.check("`/completion` streams what it answers.")
async def completion_stream(s: Session) -> None:
    body = {"prompt": STORY, "n_predict": 8, "temperature": 0, "seed": 1}
    whole = (await s.ask("/completion", body)).json()["content"]
    exchange = await s.ask("/completion", {**body, "stream": True})
    pieces = [
        json.loads(line[6:])["content"]
        for line in exchange.body.decode().splitlines()
        if line.startswith("data: {")
    ]
    require("".join(pieces) == whole, f"streamed {''.join(pieces)!r}, whole {whole!r}")


@LLAMACPP.check("`/tokenize` and `/detokenize` are inverse.")
async def llamacpp_tokens(s: Session) -> None:
    tokens = (await s.ask("/tokenize", {"content": "A dog."})).json()["tokens"]
    reply = (await s.ask("/detokenize", {"tokens": tokens})).json()
    require(reply["content"].strip() == "A dog.", f"it comes back as {reply['content']!r}")
