"""Replies of the simulator over HTTP: reproducible, in the model's own syntax, and as
configured.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.types import Message
from tests.serving.harness import scope
from tests.serving.test_metrics import read

from dragoman_sim.engine.embedder import find_image_token
from dragoman_sim.engine.keyed_random import KeyedRandom
from dragoman_sim.engine.reply_generator import LengthDistribution, parse_length_distribution
from dragoman_sim.engine.reply_tokens import fake_logprob
from tests.pictures import data_url, png

from .serving import Twin, twin

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


async def test_chat_text_is_determined_by_seed():
    async with twin() as sim:
        first, again, other = [await sim.get_text(seed=seed) for seed in (1, 1, 2)]
    assert first == again != other


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["city"],
}
FORMATS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}),
    ({"ignore_eos": True}, {"ignore_eos": True}, {"ignore_eos": True}),
    (
        {"structured_outputs": {"regex": "[a-f]{5,9}"}},
        {"structured_outputs": {"regex": "[a-f]{5,9}"}},
        {"regex": "[a-f]{5,9}"},
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"json_schema": json.dumps(SCHEMA)},
    ),
    (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
        {"json_schema": '{"type":"object"}'},
    ),
]


@pytest.mark.parametrize(("chat", "completions", "sglang"), FORMATS)
async def test_equal_ids_and_seed_match_across_dialects(
    chat: dict[str, Any], completions: dict[str, Any], sglang: dict[str, Any]
):
    for seed in (1, 2, 3):
        async with twin() as sim:
            chatted = await sim.chat(
                "Where is it?", seed=seed, max_tokens=60, return_token_ids=True, **chat
            )
            ids = chatted["prompt_token_ids"]
            body = {
                "prompt": ids,
                "seed": seed,
                "max_tokens": 60,
                "return_token_ids": True,
                **completions,
            }
            completed = (await sim.post("/v1/completions", body)).json()
            params = {"sampling_seed": seed, "max_new_tokens": 60, **sglang}
            generated = (
                await sim.post("/generate", {"input_ids": ids, "sampling_params": params})
            ).json()
        token_ids = chatted["choices"][0]["token_ids"]
        assert completed["choices"][0]["token_ids"] == token_ids
        if "response_format" not in chat or "json_schema" in chat["response_format"]:
            assert generated["output_ids"] == token_ids


async def test_server_seed_reproduces_reply_sequence():
    async def answers() -> list[str | None]:
        async with twin(seed=5) as sim:
            return [await sim.get_text() for _ in range(3)]

    first = await answers()
    assert first == await answers()
    assert len(set(first)) == 3


async def test_echo_mode_repeats_last_message():
    async with twin(sim_mode="echo") as sim:
        assert await sim.get_text("Say this: ünïcode & all.") == "Say this: ünïcode & all."


@pytest.mark.parametrize(
    ("body", "count", "reason"), [({"ignore_eos": True, "max_tokens": 70}, 70, "length")]
)
async def test_ignore_eos_generates_max_tokens(body: dict[str, Any], count: int, reason: str):
    async with twin(sim_output_tokens="5") as sim:
        answer = await sim.chat(**body)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (
        count,
        reason,
    )


async def test_output_length_respects_setting_and_token_limits():
    async with twin(sim_output_tokens="5") as sim:
        # The stop token counts as one of the answer's tokens.
        assert (await sim.chat())["usage"]["completion_tokens"] == 6
        assert (await sim.chat(min_tokens=30))["usage"]["completion_tokens"] == 31
        assert (await sim.chat(max_tokens=3))["choices"][0]["finish_reason"] == "length"


async def test_reasoning_is_generated_on_request_within_budget():
    async with twin() as sim:
        thinks: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
        message = (await sim.chat(**thinks))["choices"][0]["message"]
        assert message["reasoning"]
        assert message["content"]
        assert not (await sim.chat())["choices"][0]["message"]["reasoning"]
        usage = (await sim.chat(**thinks, thinking_token_budget=7))["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= 9  # with its marks


@pytest.mark.parametrize("seed", range(6))
async def test_required_tool_call_satisfies_schema(seed: int):
    async with twin() as sim:
        answer = await sim.chat(tools=[WEATHER], tool_choice="required", seed=seed, max_tokens=400)
    (call, *_) = answer["choices"][0]["message"]["tool_calls"]
    jsonschema_rs.validate(
        WEATHER["function"]["parameters"], json.loads(call["function"]["arguments"])
    )


@pytest.mark.parametrize(
    "parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}]
)
@pytest.mark.parametrize("syntax", ["hermes", "qwen3_coder", "mistral", "llama3_json"])
async def test_tool_without_parameters_gets_empty_arguments(parameters: object, syntax: str):
    function = {"name": "ping"} | ({} if parameters is None else {"parameters": parameters})
    async with twin(tool_call_parser=syntax, sim_tool_calls=1.0) as sim:
        for choice in ("required", "auto"):
            answer = await sim.chat(
                tools=[{"type": "function", "function": function}], tool_choice=choice
            )
            for call in answer["choices"][0]["message"]["tool_calls"]:
                assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
                    "ping",
                    {},
                )


@pytest.mark.parametrize(("share", "reason"), [(1.0, "tool_calls"), (0.0, "stop")])
async def test_sim_tool_calls_sets_share_of_tool_calls(share: float, reason: str):
    async with twin(sim_tool_calls=share) as sim:
        answers = [await sim.chat(tools=[WEATHER], seed=seed) for seed in range(4)]
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {reason}


async def test_reply_is_set_by_directive_or_header():
    async with twin(directives=True) as sim:
        assert await sim.get_text("[[say From the prompt.]]") == "From the prompt."
        plain = await sim.post(
            "/v1/completions", {"prompt": "[[say From a plain one.]]", "max_tokens": 50}
        )
        assert plain.json()["choices"][0]["text"] == "From a plain one."
        reply = json.dumps({"reply": [{"text": "From the header."}]})
        assert await sim.get_text(headers={"x-dragoman-reply": reply}) == "From the header."


async def test_directed_tool_call_is_parsed_from_model_syntax():
    async with twin(directives=True) as sim:
        prompt = '[[think Rome.]][[tool get_weather {"city": "Rome", "days": 2}]]'
        message = (await sim.chat(prompt, tools=[WEATHER]))["choices"][0]["message"]
    assert message["reasoning"] == "Rome."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {
        "city": "Rome",
        "days": 2,
    }


async def test_directed_reply_violating_request_returns_400():
    async with twin(directives=True) as sim:
        messages = [{"role": "user", "content": "[[say no JSON]]"}]
        body = {"messages": messages, "stream": True, "response_format": {"type": "json_object"}}
        answer = await sim.post("/v1/chat/completions", body)
    assert answer.status_code == 400


async def test_matching_requests_use_script_and_dataset_replies(tmp_path: Path):
    script = tmp_path / "script.yaml"
    dataset = tmp_path / "data.jsonl"
    script.write_text(
        "- match: {contains: sun}\n  reply: It shines.\n- reply: Something else.\n  repeat: true\n"
    )
    dataset.write_text('{"prompt": "Who are you?", "reply": "A twin."}\n')
    async with twin(sim_replies=str(script), sim_dataset=str(dataset)) as sim:
        assert await sim.get_text("Who are you?") == "A twin."
        assert await sim.get_text("Where is the sun?") == "It shines."
        assert await sim.get_text("And the moon?") == "Something else."


async def test_error_directive_sets_http_status():
    async with twin(directives=True) as sim:
        messages = [{"role": "user", "content": "[[error 429 Slowly.]]"}]
        answer = await sim.post("/v1/chat/completions", {"messages": messages})
    assert answer.status_code == 429


async def test_logit_bias_bans_and_forces_tokens():
    async with twin() as sim:
        common = (await sim.chat(seed=3, return_token_ids=True))["choices"][0]["token_ids"]
        banned = {str(id): -100 for id in set(common)}
        after = (await sim.chat(seed=3, return_token_ids=True, logit_bias=banned))["choices"][0][
            "token_ids"
        ]
        assert not set(after) & set(common)
        only = await sim.chat(
            max_tokens=5, ignore_eos=True, return_token_ids=True, logit_bias={str(common[0]): 100}
        )
    assert only["choices"][0]["token_ids"] == [common[0]] * 5


async def test_n_choices_interleave_and_share_prompt_blocks():
    async with twin(time_scale=100.0) as sim:
        prompt = "word " * 200
        stream = await sim.openai().chat.completions.create(
            model=sim.model,
            messages=[{"role": "user", "content": prompt}],
            n=4,
            max_tokens=20,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        order = [
            chunk.choices[0].index
            async for chunk in stream
            if chunk.choices and chunk.choices[0].delta.content
        ]
        (stats,) = sim.engine.stats()
    assert set(order[:8]) == {0, 1, 2, 3}
    assert stats.prefix_cache_hits is not None
    assert stats.prefix_cache_hits > 500


async def test_client_disconnect_frees_slot_immediately():
    """The client disconnects after the first token."""
    body = {
        "messages": [{"role": "user", "content": "Go on."}],
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
    }
    begin = asyncio.Event()
    end = asyncio.Event()

    async def receive() -> Message:
        if not begin.is_set():
            begin.set()
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await end.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message.get("body"):
            end.set()

    async with twin(time_scale=1.0) as sim:
        await sim.app(scope("/v1/chat/completions"), receive, send)
        (stats,) = sim.engine.stats()
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert stats.success["abort"] == 1


async def test_embeddings_are_reproducible_with_requested_dimensions():
    async with twin() as sim:

        async def vector(**more: Any) -> list[float]:
            answer = await sim.post(
                "/v1/embeddings", {"model": sim.model, "input": "Some words.", **more}
            )
            assert answer.status_code == 200, answer.text
            return answer.json()["data"][0]["embedding"]

        whole, again, short = await vector(), await vector(), await vector(dimensions=64)
    assert whole == again
    assert (len(whole), len(short)) == (1024, 64)
    assert abs(sum(number * number for number in short) - 1) < 1e-3


def test_keyed_random_depends_only_on_key():
    first = KeyedRandom("key", 1)
    again = KeyedRandom("key", 1)
    values = [first.random() for _ in range(50)]
    assert values == [again.random() for _ in range(50)]
    assert all(0 <= value < 1 for value in values)
    assert len(set(values)) == 50
    assert KeyedRandom("key", 2).random() != values[0]
    assert KeyedRandom("ke", "y1").random() != KeyedRandom("key", "1").random()


@pytest.mark.parametrize(
    ("text", "least", "most"), [("7", 7, 7), ("uniform:3,9", 3, 9), ("lognormal:100,0", 100, 100)]
)
def test_length_distribution_samples_within_bounds(text: str, least: int, most: int):
    drawn = {parse_length_distribution(text).sample(KeyedRandom(number)) for number in range(200)}
    assert (min(drawn), max(drawn)) == (least, most)


@pytest.mark.parametrize(
    "text", ["", "x", "uniform:9,3", "normal:1,2", "-4", "1e99", "lognormal:0,1", "nan"]
)
def test_parse_length_distribution_invalid_text_raises(text: str):
    with pytest.raises(ValueError, match="lengths are"):
        parse_length_distribution(text)


def test_length_distribution_median_matches_samples():
    lengths = LengthDistribution(median=100, sigma=0.7)
    drawn = sorted(lengths.sample(KeyedRandom(number)) for number in range(999))
    assert 85 < drawn[499] < 115


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_fake_logprob_is_consistent_with_top(count: int):
    score = fake_logprob(5, count, 300, KeyedRandom("x"))
    assert len(score.top) == count
    if count:
        assert score.top[0] == (5, score.logprob)
        assert len({id for id, _ in score.top}) == count
        assert [each for _, each in score.top] == sorted(
            (each for _, each in score.top), reverse=True
        )


def picture(red: int, green: int, blue: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(png(rgb=(red, green, blue)))}}


async def test_images_count_as_prompt_tokens_and_affect_cache():
    text = {"type": "text", "text": "word " * 40}

    async def usage(sim: Twin, *parts: dict[str, Any]) -> tuple[int, int]:
        answer = await sim.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 1},
        )
        assert answer.status_code == 200, answer.text
        counts = answer.json()["usage"]
        return counts["prompt_tokens"], counts["prompt_tokens_details"]["cached_tokens"]

    async with twin(sim_image_tokens=100) as sim:
        alone, _ = await usage(sim, text)
        both, before = await usage(sim, text, picture(1, 2, 3))
        assert both == alone + 100
        again = await usage(sim, text, picture(1, 2, 3))
        other = await usage(sim, text, picture(3, 2, 1))
        scraped = await sim.get("/metrics")
    assert 0 < before < alone
    assert again == (both, (both - 1) // 16 * 16)
    assert other[0] == both
    assert before <= other[1] < alone, "the text before the image is shared"
    assert read(scraped, "vllm:mm_cache_queries_total") == 3
    assert read(scraped, "vllm:mm_cache_hits_total") == 1


async def test_images_without_configured_cost_are_rejected():
    async with twin() as sim:
        body = {"messages": [{"role": "user", "content": [picture(1, 2, 3)]}]}
        assert (await sim.post("/v1/chat/completions", body)).status_code == 400


def test_find_image_token_skips_tokens_used_by_prompts():
    tokens = {"<|im_end|>": 2, "<unk>": 3, "<|image_pad|>": 4}
    assert find_image_token(tokens, "", ()) == ("<|image_pad|>", 4)
    assert find_image_token(tokens, "a <|image_pad|>", ()) == ("<unk>", 3)
    with pytest.raises(ValueError, match="sim-image-tokens"):
        find_image_token(tokens, "<|image_pad|><|im_end|>", (3,))
