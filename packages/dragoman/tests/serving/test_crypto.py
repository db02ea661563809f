"""Data that is encrypted or signed for one caller and purpose is invalid for all
others.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import anthropic
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.sealing import Purpose
from dragoman.engines.scripted import Say, ScriptEntry, Think
from dragoman.serving.crypto import Sealer
from dragoman.serving.serving_options import ServingOptions

from .harness import ServerHarness, build_server

OWN = Sealer(b"a key").for_owner("me")
FOREIGN = (Sealer(b"a key").for_owner("you"), Sealer(b"another").for_owner("me"))


@given(st.text(), st.sampled_from(Purpose))
def test_unseal_requires_same_owner_and_purpose(text: str, purpose: Purpose):
    sealed = OWN.seal(purpose, text)
    assert sealed.isascii()
    assert OWN.unseal(purpose, sealed) == text
    assert all(other.unseal(purpose, sealed) is None for other in FOREIGN)
    assert all(OWN.unseal(other, sealed) is None for other in Purpose if other is not purpose)


@given(st.data())
def test_unseal_damaged_data_returns_none(data: st.DataObject):
    raw = bytearray(base64.b64decode(OWN.seal(Purpose.REASONING, "hm")))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    assert OWN.unseal(Purpose.REASONING, base64.b64encode(raw).decode()) is None


@given(st.text() | st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode()))
def test_unseal_and_verify_reject_arbitrary_text(text: str):
    assert OWN.unseal(Purpose.REASONING, text) is None
    assert not OWN.verify_signature("hm", text)


def test_seal_same_text_twice_differs():
    assert OWN.seal(Purpose.REASONING, "hm") != OWN.seal(Purpose.REASONING, "hm")


@given(st.text(), st.text())
def test_verify_signature_requires_same_text_and_owner(thought: str, other: str):
    signature = OWN.sign(thought)
    assert OWN.verify_signature(thought, signature)
    assert OWN.verify_signature(other, signature) == (thought == other)
    assert not any(each.verify_signature(thought, signature) for each in FOREIGN)


THOUGHT = ScriptEntry((Think("Hm."), Say("Well.")), repeat=True)
INCLUDE: Any = ["reasoning.encrypted_content"]


def two_keys(check: Literal["lenient", "strict"] = "lenient") -> ServerHarness:
    return build_server(
        THOUGHT, options=ServingOptions(api_key=("mine", "yours"), reasoning_verification=check)
    )


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def respond(server: ServerHarness, key: str, input: Any, **fields: Any) -> httpx2.Response:
    return await server.post(
        "/v1/responses", {"model": "m", "input": input, "include": INCLUDE, **fields}, headers(key)
    )


async def test_encrypted_reasoning_round_trips_only_for_its_owner():
    server = two_keys()
    reasoning, *_ = (await respond(server, "mine", "hi")).json()["output"]
    replayed = [{"role": "user", "content": "hi"}, reasoning, {"role": "user", "content": "and?"}]
    assert "x-dragoman-warnings" not in (await respond(server, "mine", replayed)).headers
    assert "input[1]" in (await respond(server, "yours", replayed)).headers["x-dragoman-warnings"]
    rejected = await respond(two_keys("strict"), "mine", replayed)
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (
        400,
        "input[1].encrypted_content",
    )


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_encrypted_reasoning_absent_unless_requested(summary: str | None):
    answer = await respond(two_keys(), "mine", "hi", include=[], reasoning={"summary": summary})
    assert "encrypted_content" not in answer.text


async def test_encrypted_reasoning_contains_no_plaintext():
    reasoning, *_ = (await respond(two_keys(), "mine", "hi", reasoning={"summary": "auto"})).json()[
        "output"
    ]
    assert b"Hm." not in base64.b64decode(reasoning["encrypted_content"])


@pytest.mark.parametrize("display", ["omitted", "summarized"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_block_signature_of_other_owner_rejected(display: str, streamed: bool):
    server = two_keys("strict")
    ask: dict[str, Any] = {
        "model": "m",
        "max_tokens": 20,
        "thinking": {"type": "adaptive", "display": display},
    }
    hello: Any = {"role": "user", "content": "hi"}

    async def post(key: str, messages: list[Any]) -> httpx2.Response:
        return await server.post("/v1/messages", {**ask, "messages": messages}, headers(key))

    client = anthropic.AsyncAnthropic(
        api_key="mine", base_url="http://localhost", http_client=server.http()
    )
    if streamed:
        async with client.messages.stream(**ask, messages=[hello]) as stream:
            text = (await stream.get_final_message()).to_json()
    else:
        text = (await post("mine", [hello])).text
    thinking = json.loads(text)["content"][0]
    assert (thinking["type"], thinking["thinking"]) == (
        "thinking",
        "" if display == "omitted" else "Hm.",
    )
    replayed: list[Any] = [
        hello,
        {"role": "assistant", "content": [thinking]},
        {"role": "user", "content": "and?"},
    ]
    assert (await post("mine", replayed)).status_code == 200
    rejected = await post("yours", replayed)
    assert rejected.status_code == 400
    assert "Invalid `signature` in `thinking` block" in rejected.json()["error"]["message"]
