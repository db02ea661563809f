"""Decisions: probabilities of the options of questions, over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2
import openai

from dragoman.core.capabilities import Capabilities, Feature
from dragoman.core.events import Alternative, FinishReason, Token, Usage
from dragoman.core.message import Text
from dragoman.core.reply import Choice, Reply
from dragoman.dialects.decisions import read_decisions
from dragoman.dialects.interfaces import Header, ReaderOptions
from dragoman.launch import build_models
from dragoman.pipeline.label_tokens import replace_label_texts
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

CHOICE: dict[str, Any] = {
    "type": "choice",
    "name": "mood",
    "instructions": "How does the customer feel?",
    "choices": [{"value": "calm"}, {"value": "true"}, {"value": True, "description": "angry"}],
}
PREDICATE: dict[str, Any] = {"type": "predicate", "instructions": "The parcel is broken."}
SCORE: dict[str, Any] = {
    "type": "score",
    "instructions": [
        {"type": "input_text", "text": "How urgent is it?"},
        {"type": "input_json", "data": {"since": "Monday"}},
    ],
    "levels": [{"label": "low"}, {"label": "middle"}, {"label": "high", "description": "now"}],
}
INPUT = "The parcel arrived broken."


@asynccontextmanager
async def serving(model: str = "tiny") -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(model=model, served_model_name=("m",)), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


async def decide(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "input": INPUT, "questions": [PREDICATE], **fields}
    answer = await client.post("/v1/decisions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    questions = {"broken": {"type": "noul", "instructions": "Is it broken?"}}
    body = {"model": "m", "state": INPUT, "questions": questions, **fields}
    answer = await client.post("/v1/systemone", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_decisions_openai_sdk_gets_typed_answers_in_order():
    async with serving() as client:
        sdk = openai.AsyncOpenAI(api_key="none", base_url="http://localhost/v1", http_client=client)
        decision = await sdk.decisions.create(
            model="m", input=INPUT, questions=cast(Any, [CHOICE, PREDICATE, SCORE])
        )
    choice, predicate, score = decision.answers
    assert choice.type == "choice"
    assert choice.name == "mood"
    assert [(type(each.value), each.value) for each in choice.probabilities] == [
        (str, "calm"), (str, "true"), (bool, True),
    ]  # fmt: skip
    assert math.isclose(sum(each.probability for each in choice.probabilities), 1)
    best = max(choice.probabilities, key=lambda each: each.probability)
    assert choice.choice == best.value
    assert 0 < choice.confidence <= best.probability
    assert predicate.type == "predicate"
    assert predicate.name is None
    assert 0 < predicate.probability < 1
    assert score.type == "score"
    expected = sum(each.value * each.probability for each in score.probabilities)
    assert math.isclose(score.score, expected)
    assert [each.label for each in score.probabilities] == ["low", "middle", "high"]
    usage = decision.usage
    assert usage.output_tokens == 3
    assert usage.total_tokens == usage.input_tokens + 3


async def test_decision_equals_softmax_over_chat_logprobs():
    async with serving() as client:
        decided = await decide(client)
        content = (
            f"{INPUT}\n\nQuestion: The parcel is broken.\nA: false\nB: true\n"
            "Answer with the letter of one option only."
        )
        ids = [
            (await client.post("/tokenize", json={"model": "m", "prompt": label})).json()["tokens"]
            for label in "AB"
        ]
        chat = await client.post(
            "/v1/chat/completions",
            json={
                "model": "m",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "logprob_token_ids": [id for (id,) in ids],
                "return_tokens_as_token_ids": True,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )
    (token,) = chat.json()["choices"][0]["logprobs"]["content"]
    logprobs = {top["token"]: top["logprob"] for top in token["top_logprobs"]}
    false, true = (math.exp(logprobs[f"token_id:{id}"]) for (id,) in ids)
    assert math.isclose(decided["answers"][0]["probability"], true / (false + true), rel_tol=1e-6)


async def test_systemone_answers_agree_with_their_diagnostics():
    questions = {
        "feeling": {"type": "choice", "criteria": {"calm": None, "angry": "loud"}},
        "broken": {"type": "noul", "criteria": {"true": "damaged"}},
        "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "high"]},
    }
    async with serving() as client:
        answer = await ask(
            client, state={"parcel": ["broken", 1]}, questions=questions, instructions="Be fair."
        )
    answers, diagnostics = answer["answers"], answer["diagnostics"]
    assert list(answers) == list(diagnostics) == list(questions)
    for id, each in answers.items():
        probabilities = each["probabilities"]
        assert math.isclose(sum(probabilities.values()), 1)
        mass = diagnostics[id]["label_mass"]
        assert math.isclose(each["confidence"], max(probabilities.values()) * mass)
    assert answers["broken"]["noul"] == answers["broken"]["probabilities"]["yes"]
    assert answers["urgency"]["legend"] == {"0": "low", "1": "high"}
    assert answer["usage"]["output_tokens"] == 3


async def test_decisions_same_question_same_answer_in_both_apis():
    async with serving() as client:
        question = {**CHOICE, "choices": [{"value": True}, {"value": False}]}
        decided = await decide(client, questions=[question])
        answered = await ask(
            client,
            questions={
                "mood": {
                    "type": "choice",
                    "instructions": CHOICE["instructions"],
                    "criteria": {"true": None, "false": None},
                }
            },
        )
    values = [each["probability"] for each in decided["answers"][0]["probabilities"]]
    assert values == list(answered["answers"]["mood"]["probabilities"].values())


async def test_decisions_conversation_and_calls_are_read():
    async with serving() as client:
        items = [
            {"role": "developer", "content": "You watch a parcel service."},
            {"role": "user", "content": [{"type": "input_text", "text": "Where is it?"}]},
            {"type": "function_call", "call_id": "c1", "name": "track", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "in Rome"},
        ]
        whole = await decide(client, input=items)
        parts = await decide(client, input=items[:2])
    assert whole["usage"]["input_tokens"] > parts["usage"]["input_tokens"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no questions": ({"questions": []}, "questions"),
    "unknown type": ({"questions": [{**PREDICATE, "type": "vote"}]}, "questions[0].type"),
    "one choice": (
        {"questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "questions[0].choices",
    ),
    "27 choices": (
        {"questions": [{**CHOICE, "choices": [{"value": str(i)} for i in range(27)]}]},
        "questions[0].choices",
    ),
    "equal choices": (
        {"questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]},
        "questions[0].choices",
    ),
    "no choices": ({"questions": [{**PREDICATE, "type": "choice"}]}, "questions[0].choices"),
    "no input": ({"input": None}, "input"),
    "unknown item": ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    "no call id": (
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id",
    ),
    "JSON text": (
        {"input": [{"role": "user", "content": [{"type": "input_json", "data": "x"}]}]},
        "input[0].content[0].data",
    ),
    "stream": ({"stream": True}, "stream"),
    "joint": ({"joint": True}, "joint"),
    "image": (
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}
                    ],
                }
            ]
        },
        "input[0].content[0].image_url",
    ),
}  # fmt: skip


async def test_decisions_wrong_bodies_are_rejected_by_field():
    async with serving() as client:
        for name, (fields, param) in WRONG.items():
            body = {"model": "m", "input": INPUT, "questions": [PREDICATE], **fields}
            answer = await client.post("/v1/decisions", json=body)
            assert answer.status_code == 400, name
            assert answer.json()["error"]["param"] == param, name


WRONG_QUESTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"type": "vote"}, "type"),
    "no criteria": ({"type": "choice"}, "criteria"),
    "list of choices": ({"type": "choice", "criteria": ["a", "b"]}, "criteria"),
    "map of levels": ({"type": "score", "criteria": {"a": None}}, "criteria"),
    "one level": ({"type": "score", "criteria": ["a"]}, "criteria"),
    "number": ({"type": "choice", "criteria": {"a": 1, "b": None}}, "criteria.a"),
    "maybe": ({"type": "noul", "criteria": {"maybe": "x"}}, "criteria"),
    "list for noul": ({"type": "noul", "criteria": ["x"]}, "criteria"),
}


async def test_systemone_wrong_questions_are_rejected_by_field():
    async with serving() as client:
        for name, (question, param) in WRONG_QUESTIONS.items():
            body = {"model": "m", "state": INPUT, "questions": {"q": question}}
            answer = await client.post("/v1/systemone", json=body)
            assert answer.status_code == 400, name
            assert answer.json()["error"]["param"] == f"questions.q.{param}", name
        thinking = {"enable_thinking": True}
        body = {"model": "m", "state": INPUT, "questions": {"q": {"type": "noul"}}}
        answer = await client.post("/v1/systemone", json={**body, "chat_template_kwargs": thinking})
        assert answer.json()["error"]["param"] == "chat_template_kwargs"


def finish(*tops: tuple[tuple[str, float], ...]) -> Reply:
    """Return a reply whose choices have one token each, with these alternatives."""
    choices: list[Choice] = []
    for top in tops:
        alternatives = tuple(Alternative(i, text, logprob) for i, (text, logprob) in enumerate(top))
        token = Token(0, top[0][0], top[0][1], alternatives)
        choices.append(Choice((Text(top[0][0], (token,)),), FinishReason.LENGTH))
    return Reply(tuple(choices), Usage(3, len(tops)))


def render(fields: dict[str, Any], reply: Reply) -> dict[str, Any]:
    call = read_decisions(json.dumps({"input": INPUT, **fields}).encode(), ReaderOptions())
    return json.loads(call.writer(Header("decision-1", 0, "m")).render_full(reply))


def test_decision_reads_letters_with_and_without_space():
    reply = finish(((" B", math.log(0.5)), ("A", math.log(0.125)), ("B", math.log(0.25))))
    (answer,) = render({"model": "m", "questions": [PREDICATE]}, reply)["answers"]
    assert math.isclose(answer["probability"], 0.8)


def test_decision_no_option_reported_is_refusal():
    reply = finish((("Well", -0.1), ("So", -3.0)), (("A", -0.1),))
    answers = render({"model": "m", "questions": [CHOICE, PREDICATE]}, reply)["answers"]
    assert answers[0] == {"type": "refusal", "name": "mood"}
    assert answers[1] == {"type": "predicate", "name": None, "probability": 0}


def test_decision_tiny_logprobs_still_add_up_to_one():
    reply = finish((("A", -2000.0), ("B", -2001.0)))
    (answer,) = render({"model": "m", "questions": [PREDICATE]}, reply)["answers"]
    assert math.isclose(answer["probability"], 1 / (1 + math.e))


def test_engine_without_given_tokens_reports_most_likely_ones():
    capabilities = Capabilities(frozenset({Feature.LOGPROBS}), max_logprobs=5)
    body = json.dumps({"model": "m", "input": INPUT, "questions": [PREDICATE]}).encode()
    (request,) = read_decisions(body, ReaderOptions()).requests
    replaced, warnings = replace_label_texts(request, capabilities, 20)
    assert (replaced.logprobs, replaced.logprob_texts) == (5, ())
    assert "only the 5 most likely tokens" in warnings[0]
