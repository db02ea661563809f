"""The checker of the Responses grammar accepts valid streams and detects each broken
rule.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman_check.rules.json_values import Violation
from dragoman_check.rules.responses import RESPONSE_FIELDS, check_object, check_stream

Json = dict[str, Any]
NOTHING: Json = {}
NONE: list[Json] = []
DONE = b"data: [DONE]\n\n"
COUNTS: Json = {
    "input_tokens": 1, "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0}, "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 3,
}  # fmt: skip
RESPONSE: Json = {
    **dict.fromkeys(RESPONSE_FIELDS), "id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress",
    "model": "m",
    "output": [], "tools": [], "tool_choice": "auto", "truncation": "disabled", "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}}, "top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0,
    "top_logprobs": 0, "temperature": 1.0, "store": True, "background": False, "service_tier": "default",
    "metadata": {},
}  # fmt: skip
TEXT: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
MESSAGE: Json = {
    "id": "msg_0",
    "type": "message",
    "status": "in_progress",
    "role": "assistant",
    "content": [],
}
THOUGHT: Json = {"id": "rs_0", "type": "reasoning", "status": "in_progress", "summary": []}
CALL: Json = {
    "id": "fc_0", "type": "function_call", "status": "in_progress", "call_id": "c", "name": "f", "arguments": "",
}  # fmt: skip
FINISHED_MESSAGE: Json = {**MESSAGE, "status": "completed", "content": [{**TEXT, "text": "ab"}]}
CALLED: Json = {**CALL, "status": "completed", "arguments": "{}"}
CUSTOM: Json = {
    "id": "x",
    "type": "custom_tool_call",
    "status": "in_progress",
    "call_id": "c",
    "name": "f",
    "input": "",
}
FAILURE: Json = {"message": "m", "type": "server_error", "param": None, "code": None}
ERROR: Json = {"type": "error", "code": None, "message": "m", "param": None, "error": FAILURE}


def event(kind: str, /, **fields: object) -> Json:
    return {"type": f"response.{kind}", **fields}


def lifecycle(name: str, **fields: object) -> Json:
    return event(name, response={**RESPONSE, **fields})


def build_end(name: str, *items: Json, **fields: object) -> Json:
    return lifecycle(name, status=name, output=list(items), usage=COUNTS, **fields)


def cut(*items: Json) -> Json:
    return build_end("incomplete", *items, incomplete_details={"reason": "max_output_tokens"})


def build_failure(*items: Json) -> Json:
    return lifecycle(
        "failed",
        status="failed",
        output=list(items),
        error={"code": "server_error", "message": "m"},
    )


def add(item: Json, index: int = 0) -> Json:
    return event("output_item.added", output_index=index, item=item)


def build_done(item: Json, index: int = 0) -> Json:
    return event("output_item.done", output_index=index, item=item)


def part(name: str, id: str = "msg_0", /, **fields: object) -> Json:
    where = "summary_index" if "summary" in name else "content_index"
    return event(name, **{"item_id": id, "output_index": 0, where: 0, **fields})


def call(kind: str, id: str = "fc_0", /, **fields: object) -> Json:
    return event(kind, item_id=id, output_index=0, **fields)


CREATED = lifecycle("created")
RUNNING = lifecycle("in_progress")
BEGIN = [CREATED, RUNNING]
END = build_end("completed", FINISHED_MESSAGE)
OPEN = part("content_part.added", part=TEXT)
A, B = (part("output_text.delta", delta=text, logprobs=[]) for text in "ab")
ALL = part("output_text.done", text="ab", logprobs=[])
SHUT = part("content_part.done", part={**TEXT, "text": "ab"})
SAY = [add(MESSAGE), OPEN, A, B, ALL, SHUT, build_done(FINISHED_MESSAGE)]
ASK = [
    add(CALL),
    call("function_call_arguments.delta", delta="{}"),
    call("function_call_arguments.done", name="f", arguments="{}"),
    build_done(CALLED),
]


def think(kind: str, frame: str, text: str, field: str) -> tuple[list[Json], Json]:
    whole = {**THOUGHT, "status": "completed", field: [{"type": text, "text": "a"}]}
    return [
        add(THOUGHT),
        part(f"{frame}.added", "rs_0", part={"type": text, "text": ""}),
        part(f"{kind}.delta", "rs_0", delta="a"),
        part(f"{kind}.done", "rs_0", text="a"),
        part(f"{frame}.done", "rs_0", part={"type": text, "text": "a"}),
        build_done(whole),
    ], whole


RAW, RAW_ITEM = think("reasoning_text", "content_part", "reasoning_text", "content")
SUMMARY, SUMMARY_ITEM = think(
    "reasoning_summary_text", "reasoning_summary_part", "summary_text", "summary"
)
REFUSED: Json = {**MESSAGE, "status": "completed", "content": [{"type": "refusal", "refusal": "a"}]}
REFUSE = [
    add(MESSAGE),
    part("content_part.added", part={"type": "refusal", "refusal": ""}),
    part("refusal.delta", delta="a"),
    part("refusal.done", refusal="a"),
    part("content_part.done", part={"type": "refusal", "refusal": "a"}),
    build_done(REFUSED),
]
RAN: Json = {**CUSTOM, "status": "completed", "input": "x"}
RUN = [
    add(CUSTOM),
    call("custom_tool_call_input.delta", "x", delta="x"),
    call("custom_tool_call_input.done", "x", input="x"),
    build_done(RAN),
]


def sse(*events: Json) -> bytes:
    numbered = ({**event, "sequence_number": i} for i, event in enumerate(events))
    return (
        "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered
        ).encode()
        + DONE
    )


@pytest.mark.parametrize(
    "events",
    [
        [*BEGIN, *SAY, END],
        [*BEGIN, build_end("completed")],
        [CREATED, RUNNING, RUNNING, *SAY[:3], RUNNING, *SAY[3:], RUNNING, END],
        [
            lifecycle("created", status="queued"),
            lifecycle("queued", status="queued"),
            RUNNING,
            *SAY,
            END,
        ],
        [*BEGIN, *RAW, build_end("completed", RAW_ITEM)],
        [*BEGIN, *SUMMARY, build_end("completed", SUMMARY_ITEM)],
        [*BEGIN, *REFUSE, build_end("completed", REFUSED)],
        [*BEGIN, *ASK, build_end("completed", CALLED)],
        [*BEGIN, *RUN, build_end("completed", RAN)],
        [
            *BEGIN,
            *SAY[:-1],
            build_done({**FINISHED_MESSAGE, "status": "incomplete"}),
            cut({**FINISHED_MESSAGE, "status": "incomplete"}),
        ],
        [*BEGIN, *SAY[:3], ERROR, build_failure({**FINISHED_MESSAGE, "status": "incomplete"})],
        [*BEGIN, build_failure()],
    ],
)
def test_check_stream_accepts_valid_stream(events: list[Json]):
    assert [event["sequence_number"] for event in check_stream(sse(*events))] == list(
        range(len(events))
    )


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([*BEGIN, *SAY], "without a terminal event"),
        ([RUNNING], "response.created must be the first event"),
        ([CREATED, CREATED], "response.created at event 1"),
        ([CREATED, *SAY, END], "before response.in_progress"),
        ([*BEGIN, *SAY, END, END], "after the terminal event"),
        ([CREATED, lifecycle("in_progress", id="resp_2")], "id changed"),
        ([CREATED, lifecycle("in_progress", usage=COUNTS)], "usage before the end"),
        ([lifecycle("created", status="completed")], "is 'completed'"),
        ([*BEGIN, *SAY, cut(FINISHED_MESSAGE) | {"type": "response.completed"}], "response.completed is 'incomplete'"),
        ([*BEGIN, *SAY, build_end("completed")], "not the items that were done"),
        ([*BEGIN, *SAY, lifecycle("completed", status="completed", output=[FINISHED_MESSAGE])], "has no usage"),
        ([*BEGIN, *SAY[:3], END], "while an item is open"),
        ([*BEGIN, add(MESSAGE), add(CALL)], "while another is open"),
        ([*BEGIN, add(MESSAGE, 1)], "output_index 1"),
        ([*BEGIN, *SAY, *SAY], "output_index 0"),
        ([*BEGIN, build_done(FINISHED_MESSAGE)], "without an open item"),
        ([*BEGIN, A], "without an open item"),
        ([*BEGIN, add(MESSAGE), A], "without an open part"),
        ([*BEGIN, add(THOUGHT), OPEN | {"item_id": "rs_0"}], "without an open part"),
        ([*BEGIN, add(MESSAGE), OPEN | {"content_index": 1}], "expected 0"),
        ([*BEGIN, add(MESSAGE), OPEN, A | {"content_index": 1}], "of another part"),
        ([*BEGIN, add(MESSAGE), OPEN, A | {"item_id": "msg_1"}], "of item 'msg_1'"),
        ([*BEGIN, add(MESSAGE), OPEN, A | {"delta": ""}], "an empty delta"),
        ([*BEGIN, add(MESSAGE), OPEN, event("output_text.delta", item_id="msg_0", output_index=0, content_index=0,
          delta="a")], "logprobs is None"),
        ([*BEGIN, *SAY[:4], ALL | {"text": ""}], "not the join of its deltas"),
        ([*BEGIN, *SAY[:4], ALL | {"logprobs": [NOTHING]}], "other logprobs"),
        ([*BEGIN, *SAY[:4], SHUT], "out of order"),
        ([*BEGIN, *SAY[:5], A], "out of order"),
        ([*BEGIN, *SAY[:5], part("content_part.done", part=TEXT)], "another text"),
        ([*BEGIN, *SAY[:5], build_done(FINISHED_MESSAGE)], "while a part is open"),
        ([*BEGIN, *SAY[:6], build_done({**FINISHED_MESSAGE, "id": "msg_1"})], "has another id or "
            "type when it is done"),
        ([*BEGIN, *SAY[:6], build_done({**FINISHED_MESSAGE, "status": "in_progress"})], "a done item is 'in_progress'"),
        ([*BEGIN, *SAY[:6], build_done({**FINISHED_MESSAGE, "content": []})], "not what was "
            "streamed"),
        ([*BEGIN, add({**MESSAGE, "content": [TEXT]})], "begins with content"),
        ([*BEGIN, add({**MESSAGE, "status": "completed"})], "begins as 'completed'"),
        ([*BEGIN, add({**MESSAGE, "id": ""})], "without an id"),
        ([*BEGIN, add({**MESSAGE, "type": "video"})], "of type 'video'"),
        ([*BEGIN, add({**CALL, "arguments": "{}"})], "begins with its text"),
        ([*BEGIN, add({**CALL, "name": ""})], "without id or name"),
        ([*BEGIN, *ASK[:1], call("function_call_arguments.delta", delta="")], "an empty delta"),
        ([*BEGIN, *ASK[:1], call("custom_tool_call_input.delta", delta="x")], "in a function_call"),
        ([*BEGIN, *ASK[:2], call("function_call_arguments.done", arguments="")], "not the join of "
            "its deltas"),
        ([*BEGIN, *ASK[:3], ASK[1]], "after the end"),
        ([*BEGIN, *ASK[:2], build_done(CALLED)], "not what was streamed"),
        ([*BEGIN, *ASK[:3], build_done({**CALLED, "name": "g"})], "the call's name changed"),
        ([*BEGIN, ERROR, RUNNING], "after an error"),
        ([*BEGIN, ERROR, add(MESSAGE)], "after an error"),
        ([*BEGIN, ERROR, build_end("completed")], "after an error"),
        ([*BEGIN, ERROR], "without a terminal event"),
        ([*BEGIN, *SAY, build_failure()], "not the items that were done"),
        ([*BEGIN, ERROR | {"message": "n"}], "message differs"),
        ([*BEGIN, {**ERROR, "error": None}], "error is None"),
    ],
)  # fmt: skip
def test_check_stream_rejects_each_rule_violation(events: list[Json], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*events))


def test_check_stream_rejects_sequence_number_gap():
    for wrong in (1, None, "0"):
        event = json.dumps({**CREATED, "sequence_number": wrong})
        with pytest.raises(Violation, match="expected 0"):
            check_stream(f"event: response.created\ndata: {event}\n\n".encode() + DONE)


def test_check_stream_requires_done_at_end():
    with pytest.raises(Violation, match="does not end with"):
        check_stream(sse(*BEGIN, *SAY, END).removesuffix(DONE))


def test_check_object_accepts_valid_objects():
    for body in (END, cut({**CALL, "status": "incomplete"}), build_failure(), CREATED):
        check_object(body["response"])


@pytest.mark.parametrize("key", RESPONSE_FIELDS)
def test_check_object_requires_every_key(key: str):
    lacking = {name: value for name, value in RESPONSE.items() if name != key}
    with pytest.raises(Violation, match=f"has no {key}"):
        check_object(lacking)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"object": "x"}, "object is"),
        ({"id": ""}, "id is empty"),
        ({"created_at": 1.5}, "created_at"),
        ({"status": "done"}, "status is"),
        ({"temperature": None}, "temperature is None, expected a number"),
        ({"store": None}, "store is None"),
        ({"user": None}, "user is null"),
        ({"truncation": None}, "truncation is"),
        ({"text": NOTHING}, "text.format"),
        ({"tools": [{"type": "function", "name": "f"}]}, "has no description"),
        ({"error": {"code": "x", "message": "y"}}, "error is"),
        ({"status": "failed"}, "error is None"),
        ({"status": "incomplete"}, "incomplete_details is None"),
        ({"status": "incomplete", "incomplete_details": {"reason": "tired"}}, r"'tired'\}$"),
        ({"completed_at": 5}, "has completed_at"),
        ({"status": "completed", "output": [MESSAGE]}, "unfinished items"),
        ({"output": [MESSAGE, FINISHED_MESSAGE | {"id": "x"}]}, "not the last"),
        ({"output": [FINISHED_MESSAGE, FINISHED_MESSAGE]}, "the same id"),
        ({"output": [{**FINISHED_MESSAGE, "role": "user"}]}, "role is"),
        ({"output": [{**FINISHED_MESSAGE, "status": None}]}, "status is None"),
        (
            {
                "output": [
                    {
                        **FINISHED_MESSAGE,
                        "content": [{"type": "output_text", "text": "a", "annotations": NONE}],
                    }
                ]
            },
            "logprobs",
        ),
        (
            {"output": [{**FINISHED_MESSAGE, "content": [{"type": "text", "text": "a"}]}]},
            "is of type 'text'",
        ),
        ({"output": [{**FINISHED_MESSAGE, "type": "video"}]}, "is of type 'video'"),
        ({"output": [{"id": "a", "type": "reasoning", "status": "completed"}]}, "summary"),
        ({"output": [{**CALLED, "arguments": None}]}, "arguments"),
        ({"output": [{**CALLED, "namespace": ""}]}, "namespace is empty"),
        ({"usage": {**COUNTS, "total_tokens": 4}}, "total_tokens is 4"),
        ({"usage": {**COUNTS, "input_tokens_details": {"cached_tokens": 1}}}, "cache_write_tokens"),
        (
            {
                "usage": {
                    **COUNTS,
                    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
                }
            },
            "more cached",
        ),
        ({"usage": {**COUNTS, "output_tokens_details": {"reasoning_tokens": 3}}}, "more reasoning"),
    ],
)
def test_check_object_rejects_each_rule_violation(fields: Json, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object({**RESPONSE, **fields})


def test_check_stream_with_variants_allows_missing_fields():
    events = [
        lifecycle("created"),
        lifecycle("in_progress"),
        build_end("completed", completed_at=2),
    ]
    for number, each in enumerate(events):
        each["sequence_number"] = number
        for field in ("completed_at", "presence_penalty", "safety_identifier", "background"):
            del each["response"][field]
        each["response"]["user"] = None
    data = "".join(
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events
    ).encode()
    for stream in (data, data + DONE):
        with pytest.raises(Violation):
            check_stream(stream)
        check_stream(stream, allow_variants=True)
    required = {key: value for key, value in events[-1]["response"].items() if key != "error"}
    with pytest.raises(Violation, match="no error"):
        check_object(required, allow_variants=True)
