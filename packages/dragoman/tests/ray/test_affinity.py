"""Routing of requests to replicas: keys of all dialects' bodies, and the ranking of
replicas. Does not need Ray.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dragoman.ray.load_estimates import RECENT, LoadEstimates
from dragoman.ray.replica_ranking import rank_replicas
from dragoman.ray.replica_tag import TaggedIdGenerator, compute_tag
from dragoman.ray.routing_key import RoutingKey, find_key

SYSTEM = "You are an agent."
FIRST = "Fix the bug in main.py."
REPLY = "Which one?"
SECOND = "The one in line 3."


def encode(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def say(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def part(text: str, kind: str = "text", **more: object) -> list[dict[str, object]]:
    return [{"type": kind, "text": text, **more}]


TURNS = {
    "Chat": (
        encode(messages=[say("system", SYSTEM), say("user", FIRST)]),
        encode(
            messages=[
                say("system", SYSTEM),
                say("user", FIRST),
                say("assistant", REPLY),
                say("user", SECOND),
            ]
        ),
    ),
    "Messages, where the cache marker moves": (
        encode(
            system=SYSTEM, messages=[say("user", part(FIRST, cache_control={"type": "ephemeral"}))]
        ),
        encode(
            system=part(SYSTEM, cache_control={"type": "ephemeral"}),
            messages=[
                say("user", FIRST),
                say("assistant", part(REPLY)),
                say("user", part(SECOND, cache_control={"type": "ephemeral"})),
            ],
        ),
    ),
    "Responses, whose first input is text": (
        encode(instructions=SYSTEM, input=[say("user", FIRST)]),
        encode(
            instructions=SYSTEM,
            input=[
                {"type": "message", **say("user", part(FIRST, "input_text"))},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "Hm."}],
                },
                {"type": "message", **say("assistant", part(REPLY, "output_text"))},
                say("user", SECOND),
            ],
        ),
    ),
    "Ollama chat": (
        encode(messages=[say("system", SYSTEM), {**say("user", FIRST), "images": ["aGk="]}]),
        encode(
            messages=[
                say("system", SYSTEM),
                {**say("user", FIRST), "images": ["aGk="]},
                say("assistant", REPLY),
            ]
        ),
    ),
}


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS)
def test_routing_key_equal_for_turns_of_conversation(turns: tuple[bytes, bytes]) -> None:
    first, second = map(find_key, turns)
    assert first is not None
    assert first == second


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS)
def test_routing_key_differs_for_other_conversation(turns: tuple[bytes, bytes]) -> None:
    other = turns[1].replace(FIRST.encode(), b"Write a poem.")
    assert find_key(turns[0]) != find_key(other)
    assert find_key(turns[0]) != find_key(turns[0].replace(b'"model": "m"', b'"model": "adapter"'))


@pytest.mark.parametrize(
    "body",
    [
        encode(prompt="def f(x):"),
        encode(prompt=[1, 2, 3]),
        encode(prompt=["a", "b"]),
        encode(inputs="Hello"),
        encode(text="Hello"),
        encode(input_ids=[[1, 2], [3]]),
        encode(token_ids=[5, 6]),
        encode(input="Hello"),
        encode(prompt="Hello", system="Be brief."),
    ],
)
def test_routing_key_prompt_without_messages_exists(body: bytes) -> None:
    key = find_key(body)
    assert key is not None
    assert key == find_key(body)
    assert key.tag is None


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b"\xff\xfe", b"{" * 50_000, b'{"a":' + b"[" * 50_000, b'{"model']
)
def test_routing_key_body_without_prompt_is_none(body: bytes) -> None:
    assert find_key(body) is None


@given(st.binary(max_size=200))
def test_routing_key_accepts_arbitrary_bytes(body: bytes) -> None:
    find_key(body)


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "input", "system", "thread", "metadata", "conversation", "prompt", "model"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text() | st.just("user"),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(st.sampled_from(["role", "content", "text", "id"]), inner)
            ),
        ),
    )
)
def test_routing_key_accepts_truncated_json(fields: dict[str, object]) -> None:
    body = json.dumps(fields).encode()
    assert find_key(body) == find_key(body[:-1])


def test_routing_key_truncated_body_equals_full_body() -> None:
    full = encode(
        instructions=SYSTEM,
        input=[say("user", FIRST), *([say("assistant", REPLY), say("user", "x")] * 50)],
    )
    assert find_key(full[: len(full) // 2]) == find_key(full)
    assert find_key(full[:-1]) == find_key(full)


def test_routing_key_compressed_body_equals_content() -> None:
    body = TURNS["Chat"][0]
    assert find_key(gzip.compress(body)) == find_key(body)
    assert find_key(zstandard.compress(body)) == find_key(body)
    assert find_key(b"\x1f\x8bbroken") is None
    assert find_key(b"\x28\xb5\x2f\xfdbroken") is None


def test_routing_key_client_session_takes_precedence() -> None:
    named = find_key(encode(prompt_cache_key="thread-7", input="a"))
    assert named is not None
    assert named == find_key(encode(prompt_cache_key="thread-7", input="b"))
    agent = {"user_id": "user_1_account__session_5e6f"}
    assert find_key(encode(metadata=agent, messages=[say("user", "a")])) == find_key(
        encode(metadata=agent, messages=[say("user", "b")])
    )
    # All requests of an application may have the same user.
    assert find_key(encode(metadata={"user_id": "me"}, messages=[say("user", "a")])) != find_key(
        encode(metadata={"user_id": "me"}, messages=[say("user", "b")])
    )
    assert (
        find_key(b"", "tab-3")
        == find_key(encode(input="c"), "tab-3")
        == RoutingKey(text="session tab-3")
    )


def test_routing_key_by_model_equal_for_same_adapter() -> None:
    requests = [
        body.replace(b'"m"', b'"adapter"')
        for body in (encode(input="a"), encode(prompt_cache_key="t", input="b"))
    ]
    assert {find_key(body, by_model=True) for body in requests} == {
        RoutingKey(text="model adapter")
    }
    assert find_key(encode(input="a"), by_model=True) == RoutingKey(text="model m")
    previous = TaggedIdGenerator("one").new("resp_")
    key = find_key(encode(previous_response_id=previous, input="a"), by_model=True)
    assert key is not None
    assert key.tag == compute_tag("one")
    # A client that names its session wants the same replica.
    assert find_key(encode(input="a"), "tab-3", by_model=True) == RoutingKey(text="session tab-3")


@pytest.mark.parametrize(
    ("prefix", "body"),
    [
        ("resp_", {"previous_response_id": "ID", "input": "more"}),
        ("conv_", {"conversation": "ID", "input": "more"}),
        ("conv_", {"conversation": {"id": "ID"}, "input": "more"}),
        ("msg_", {"thread": {"type": "continue", "previous_message_id": "ID"}, "messages": []}),
    ],
)
def test_rank_replicas_continuation_prefers_replica_of_response(
    prefix: str, body: dict[str, object]
) -> None:
    replicas = [f"replica{number}" for number in range(8)]
    for replica in replicas:
        id = TaggedIdGenerator(replica).new(prefix)
        key = find_key(encode(**body).replace(b"ID", id.encode()))
        assert rank_replicas(key, dict.fromkeys(replicas, 0.0))[0] == replica


def test_tagged_ids_are_unique_and_standard_length() -> None:
    ids = TaggedIdGenerator("abc")
    values = {ids.new("resp_") for _ in range(1000)}
    assert len(values) == 1000
    assert all(
        len(id) == len("resp_") + 32 and id.startswith("resp_" + compute_tag("abc"))
        for id in values
    )


def test_rank_replicas_id_of_removed_replica_is_stable() -> None:
    key = find_key(
        encode(previous_response_id=TaggedIdGenerator("gone").new("resp_"), input="more")
    )
    loads = dict.fromkeys("abcdef", 0.0)
    assert rank_replicas(key, loads)[0] == rank_replicas(key, loads)[0]
    foreign = find_key(encode(previous_response_id="resp_from_elsewhere", input="more"))
    assert foreign == RoutingKey(None, "id resp_from_elsewhere")


def test_rank_replicas_added_replica_moves_few_keys() -> None:
    keys = [RoutingKey(text=str(number)) for number in range(3000)]
    before = {key: rank_replicas(key, dict.fromkeys("abc", 0.0))[0] for key in keys}
    after = {key: rank_replicas(key, dict.fromkeys("abcd", 0.0))[0] for key in keys}
    assert all(850 < count < 1150 for count in Counter(before.values()).values())
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {"d"}
    assert 600 < len(moved) < 900


def test_rank_replicas_skips_overloaded_replica() -> None:
    key = RoutingKey(text="popular")
    favourite, second = rank_replicas(key, dict.fromkeys("abc", 10.0))[:2]
    assert rank_replicas(key, {**dict.fromkeys("abc", 10.0), favourite: 20.0})[0] == favourite
    ranked = rank_replicas(key, {**dict.fromkeys("abc", 10.0), favourite: 60.0})
    assert ranked[0] == second
    assert ranked[-1] == favourite


def test_rank_replicas_without_key_orders_by_load() -> None:
    assert rank_replicas(None, {"a": 3.0, "b": 1.0, "c": 2.0}) == ["b", "c", "a"]
    assert {rank_replicas(None, {"a": 0.0, "b": 0.0})[0] for _ in range(50)} == {"a", "b"}
    assert rank_replicas(None, {}) == []


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_load_estimate_includes_requests_since_last_report() -> None:
    clock = Clock()
    loads = LoadEstimates(clock)
    loads.report("a", 2, 10)
    loads.note_sent("a")
    assert loads.estimate("ab") == {"a": 2.0, "b": 0.0}
    clock.time += 0.5
    loads.note_sent("a")
    loads.note_sent("b")
    assert loads.estimate("ab") == {"a": 3.0, "b": 1.0}
    loads.report("a", 2, 10)  # Nothing new.
    assert loads.estimate("ab")["a"] == 3.0
    clock.time += 0.5
    loads.report("a", 3, 10)
    assert loads.estimate("ab") == {"a": 3.0, "b": 1.0}
    clock.time += RECENT
    assert loads.estimate("ab") == {"a": 3.0, "b": 0.0}


def test_load_estimate_accounts_for_short_requests() -> None:
    clock = Clock()
    loads = LoadEstimates(clock)
    loads.report("a", 1, 0)
    clock.time += 1
    loads.report("a", 1, 50)
    for _ in range(25):
        clock.time += 0.02
        loads.note_sent("a")
    assert loads.estimate("a")["a"] < 2
    for _ in range(20):
        loads.note_sent("a")
    assert loads.estimate("a")["a"] > 15


def test_load_estimate_drops_removed_replica() -> None:
    loads = LoadEstimates(Clock())
    loads.report("a", 9, 1)
    assert loads.estimate("b") == {"b": 0.0}
    assert loads.estimate("a") == {"a": 0.0}
