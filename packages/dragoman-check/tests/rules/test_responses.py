"""The checker of the Responses grammar accepts valid streams and detects each broken
rule.
"""

from __future__ import annotations

import json

import pytest

from dragoman_check.rules.json_values import JsonObject, Violation
from dragoman_check.rules.responses import RESPONSE_FIELDS, check_object, check_stream

EMPTY_OBJECT: JsonObject = {}
EMPTY_LIST: list[JsonObject] = []
DONE = b"data: [DONE]\n\n"
USAGE: JsonObject = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 3,
}
RESPONSE: JsonObject = {
    **dict.fromkeys(RESPONSE_FIELDS),
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "in_progress",
    "model": "m",
    "output": [],
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
}
TEXT: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
MESSAGE: JsonObject = {
    "id": "msg_0",
    "type": "message",
    "status": "in_progress",
    "role": "assistant",
    "content": [],
}
REASONING: JsonObject = {"id": "rs_0", "type": "reasoning", "status": "in_progress", "summary": []}
CALL: JsonObject = {
    "id": "fc_0",
    "type": "function_call",
    "status": "in_progress",
    "call_id": "c",
    "name": "f",
    "arguments": "",
}
FINISHED_MESSAGE: JsonObject = {
    **MESSAGE,
    "status": "completed",
    "content": [{**TEXT, "text": "ab"}],
}
FINISHED_CALL: JsonObject = {**CALL, "status": "completed", "arguments": "{}"}
CUSTOM_CALL: JsonObject = {
    "id": "x",
    "type": "custom_tool_call",
    "status": "in_progress",
    "call_id": "c",
    "name": "f",
    "input": "",
}
FAILURE: JsonObject = {"message": "m", "type": "server_error", "param": None, "code": None}
ERROR: JsonObject = {"type": "error", "code": None, "message": "m", "param": None, "error": FAILURE}


def build_event(kind: str, /, **fields: object) -> JsonObject:
    return {"type": f"response.{kind}", **fields}


def build_lifecycle(name: str, **fields: object) -> JsonObject:
    return build_event(name, response={**RESPONSE, **fields})


def build_end(name: str, *items: JsonObject, **fields: object) -> JsonObject:
    return build_lifecycle(name, status=name, output=list(items), usage=USAGE, **fields)


def build_incomplete(*items: JsonObject) -> JsonObject:
    return build_end("incomplete", *items, incomplete_details={"reason": "max_output_tokens"})


def build_failure(*items: JsonObject) -> JsonObject:
    return build_lifecycle(
        "failed",
        status="failed",
        output=list(items),
        error={"code": "server_error", "message": "m"},
    )


def build_added(item: JsonObject, index: int = 0) -> JsonObject:
    return build_event("output_item.added", output_index=index, item=item)


def build_done(item: JsonObject, index: int = 0) -> JsonObject:
    return build_event("output_item.done", output_index=index, item=item)


def build_part_event(name: str, id: str = "msg_0", /, **fields: object) -> JsonObject:
    where = "summary_index" if "summary" in name else "content_index"
    return build_event(name, **{"item_id": id, "output_index": 0, where: 0, **fields})


def build_call_event(kind: str, id: str = "fc_0", /, **fields: object) -> JsonObject:
    return build_event(kind, item_id=id, output_index=0, **fields)


CREATED = build_lifecycle("created")
RUNNING = build_lifecycle("in_progress")
START = [CREATED, RUNNING]
END = build_end("completed", FINISHED_MESSAGE)
PART_ADDED = build_part_event("content_part.added", part=TEXT)
DELTA_A, DELTA_B = (build_part_event("output_text.delta", delta=text, logprobs=[]) for text in "ab")
TEXT_DONE = build_part_event("output_text.done", text="ab", logprobs=[])
PART_DONE = build_part_event("content_part.done", part={**TEXT, "text": "ab"})
MESSAGE_EVENTS = [
    build_added(MESSAGE),
    PART_ADDED,
    DELTA_A,
    DELTA_B,
    TEXT_DONE,
    PART_DONE,
    build_done(FINISHED_MESSAGE),
]
CALL_EVENTS = [
    build_added(CALL),
    build_call_event("function_call_arguments.delta", delta="{}"),
    build_call_event("function_call_arguments.done", name="f", arguments="{}"),
    build_done(FINISHED_CALL),
]


def build_reasoning(
    kind: str, frame: str, text: str, field: str
) -> tuple[list[JsonObject], JsonObject]:
    whole = {**REASONING, "status": "completed", field: [{"type": text, "text": "a"}]}
    return [
        build_added(REASONING),
        build_part_event(f"{frame}.added", "rs_0", part={"type": text, "text": ""}),
        build_part_event(f"{kind}.delta", "rs_0", delta="a"),
        build_part_event(f"{kind}.done", "rs_0", text="a"),
        build_part_event(f"{frame}.done", "rs_0", part={"type": text, "text": "a"}),
        build_done(whole),
    ], whole


REASONING_EVENTS, FINISHED_REASONING = build_reasoning(
    "reasoning_text", "content_part", "reasoning_text", "content"
)
SUMMARY_EVENTS, FINISHED_SUMMARY = build_reasoning(
    "reasoning_summary_text", "reasoning_summary_part", "summary_text", "summary"
)
FINISHED_REFUSAL: JsonObject = {
    **MESSAGE,
    "status": "completed",
    "content": [{"type": "refusal", "refusal": "a"}],
}
REFUSAL_EVENTS = [
    build_added(MESSAGE),
    build_part_event("content_part.added", part={"type": "refusal", "refusal": ""}),
    build_part_event("refusal.delta", delta="a"),
    build_part_event("refusal.done", refusal="a"),
    build_part_event("content_part.done", part={"type": "refusal", "refusal": "a"}),
    build_done(FINISHED_REFUSAL),
]
FINISHED_CUSTOM_CALL: JsonObject = {**CUSTOM_CALL, "status": "completed", "input": "x"}
CUSTOM_CALL_EVENTS = [
    build_added(CUSTOM_CALL),
    build_call_event("custom_tool_call_input.delta", "x", delta="x"),
    build_call_event("custom_tool_call_input.done", "x", input="x"),
    build_done(FINISHED_CUSTOM_CALL),
]


def build_hosted(
    kind: str, stages: tuple[str, ...], **fields: object
) -> tuple[list[JsonObject], JsonObject]:
    """Return the events of a call of a hosted tool, and its item.

    fields: those of the item once it is complete; they are null before.
    """
    item: JsonObject = {"id": "h", "type": kind, "status": "in_progress", **dict.fromkeys(fields)}
    whole = {**item, "status": "completed", **fields}
    events = [build_call_event(f"{kind}.{stage}", "h") for stage in stages]
    return [build_added(item), *events, build_done(whole)], whole


FILE_EVENTS, FINISHED_FILES = build_hosted(
    "file_search_call", ("in_progress", "searching", "completed"), queries=["a"], results=None
)
IMAGE_EVENTS, FINISHED_IMAGE = build_hosted(
    "image_generation_call", ("in_progress", "generating", "completed"), result="YQ=="
)
DRAFT = build_call_event(
    "image_generation_call.partial_image", "h", partial_image_index=0, partial_image_b64="YQ=="
)
SHELL_OUTPUT: JsonObject = {
    "id": "h",
    "type": "shell_call_output",
    "status": "in_progress",
    "call_id": "c",
    "output": [],
}
COMMAND_OUTPUT: JsonObject = {
    "stdout": "ab",
    "stderr": "",
    "outcome": {"type": "exit", "exit_code": 0},
}
FINISHED_OUTPUT: JsonObject = {**SHELL_OUTPUT, "status": "completed", "output": [COMMAND_OUTPUT]}
OUTPUT_EVENTS = [
    build_added(SHELL_OUTPUT),
    *(
        build_call_event(
            "shell_call_output_content.delta", "h", command_index=0, delta={"stdout": text}
        )
        for text in "ab"
    ),
    build_call_event(
        "shell_call_output_content.done", "h", command_index=0, output=[COMMAND_OUTPUT]
    ),
    build_done(FINISHED_OUTPUT),
]
HOSTED_SHELL_CALL: JsonObject = {
    "id": "sh",
    "type": "shell_call",
    "status": "incomplete",
    "call_id": "c",
    "action": {"commands": EMPTY_LIST},
    "environment": {"type": "container_reference", "container_id": "cntr_1"},
}


def encode_events(*events: JsonObject) -> bytes:
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
        [*START, *MESSAGE_EVENTS, END],
        [*START, build_end("completed")],
        [
            CREATED,
            RUNNING,
            RUNNING,
            *MESSAGE_EVENTS[:3],
            RUNNING,
            *MESSAGE_EVENTS[3:],
            RUNNING,
            END,
        ],
        [
            build_lifecycle("created", status="queued"),
            build_lifecycle("queued", status="queued"),
            RUNNING,
            *MESSAGE_EVENTS,
            END,
        ],
        [*START, *REASONING_EVENTS, build_end("completed", FINISHED_REASONING)],
        [*START, *SUMMARY_EVENTS, build_end("completed", FINISHED_SUMMARY)],
        [*START, *REFUSAL_EVENTS, build_end("completed", FINISHED_REFUSAL)],
        [*START, *CALL_EVENTS, build_end("completed", FINISHED_CALL)],
        [*START, *CUSTOM_CALL_EVENTS, build_end("completed", FINISHED_CUSTOM_CALL)],
        [*START, *FILE_EVENTS, build_end("completed", FINISHED_FILES)],
        [
            *START,
            *IMAGE_EVENTS[:3],
            DRAFT,
            DRAFT | {"partial_image_index": 1},
            *IMAGE_EVENTS[3:],
            build_end("completed", FINISHED_IMAGE),
        ],
        [*START, *OUTPUT_EVENTS, build_end("completed", FINISHED_OUTPUT)],
        [
            *START,
            *MESSAGE_EVENTS[:-1],
            build_done({**FINISHED_MESSAGE, "status": "incomplete"}),
            build_incomplete({**FINISHED_MESSAGE, "status": "incomplete"}),
        ],
        [
            *START,
            *MESSAGE_EVENTS[:3],
            ERROR,
            build_failure({**FINISHED_MESSAGE, "status": "incomplete"}),
        ],
        [*START, build_failure()],
    ],
)
def test_check_stream_accepts_valid_stream(events: list[JsonObject]):
    assert [event["sequence_number"] for event in check_stream(encode_events(*events))] == list(
        range(len(events))
    )


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([*START, *MESSAGE_EVENTS], "without a terminal event"),
        ([RUNNING], "response.created must be the first event"),
        ([CREATED, CREATED], "response.created at event 1"),
        ([CREATED, *MESSAGE_EVENTS, END], "before response.in_progress"),
        ([*START, *MESSAGE_EVENTS, END, END], "after the terminal event"),
        ([CREATED, build_lifecycle("in_progress", id="resp_2")], "id changed"),
        ([CREATED, build_lifecycle("in_progress", usage=USAGE)], "usage before the end"),
        ([build_lifecycle("created", status="completed")], "has the status 'completed'"),
        (
            [
                *START,
                *MESSAGE_EVENTS,
                build_incomplete(FINISHED_MESSAGE) | {"type": "response.completed"},
            ],
            "response.completed has the status 'incomplete'",
        ),
        ([*START, *MESSAGE_EVENTS, build_end("completed")], "differs from the items"),
        (
            [
                *START,
                *MESSAGE_EVENTS,
                build_lifecycle("completed", status="completed", output=[FINISHED_MESSAGE]),
            ],
            "has no usage",
        ),
        ([*START, *MESSAGE_EVENTS[:3], END], "while an item is open"),
        ([*START, build_added(MESSAGE), build_added(CALL)], "while another is open"),
        ([*START, build_added(MESSAGE, 1)], "output_index 1"),
        ([*START, *MESSAGE_EVENTS, *MESSAGE_EVENTS], "output_index 0"),
        ([*START, build_done(FINISHED_MESSAGE)], "without an open item"),
        ([*START, DELTA_A], "without an open item"),
        ([*START, build_added(MESSAGE), DELTA_A], "without an open part"),
        (
            [*START, build_added(REASONING), PART_ADDED | {"item_id": "rs_0"}],
            "without an open part",
        ),
        ([*START, build_added(MESSAGE), PART_ADDED | {"content_index": 1}], "expected 0"),
        (
            [*START, build_added(MESSAGE), PART_ADDED, DELTA_A | {"content_index": 1}],
            "of a part that is not open",
        ),
        (
            [*START, build_added(MESSAGE), PART_ADDED, DELTA_A | {"item_id": "msg_1"}],
            "of item 'msg_1'",
        ),
        ([*START, build_added(MESSAGE), PART_ADDED, DELTA_A | {"delta": ""}], "an empty delta"),
        (
            [
                *START,
                build_added(MESSAGE),
                PART_ADDED,
                build_event(
                    "output_text.delta", item_id="msg_0", output_index=0, content_index=0, delta="a"
                ),
            ],
            "logprobs is None",
        ),
        (
            [*START, *MESSAGE_EVENTS[:4], TEXT_DONE | {"text": ""}],
            "differs from its concatenated deltas",
        ),
        (
            [*START, *MESSAGE_EVENTS[:4], TEXT_DONE | {"logprobs": [EMPTY_OBJECT]}],
            "different logprobs",
        ),
        ([*START, *MESSAGE_EVENTS[:4], PART_DONE], "out of order"),
        ([*START, *MESSAGE_EVENTS[:5], DELTA_A], "out of order"),
        (
            [*START, *MESSAGE_EVENTS[:5], build_part_event("content_part.done", part=TEXT)],
            "a different text",
        ),
        ([*START, *MESSAGE_EVENTS[:5], build_done(FINISHED_MESSAGE)], "while a part is open"),
        (
            [*START, *MESSAGE_EVENTS[:6], build_done({**FINISHED_MESSAGE, "id": "msg_1"})],
            "has a different id or type",
        ),
        (
            [
                *START,
                *MESSAGE_EVENTS[:6],
                build_done({**FINISHED_MESSAGE, "status": "in_progress"}),
            ],
            "the status in output_item.done is 'in_progress'",
        ),
        (
            [*START, *MESSAGE_EVENTS[:6], build_done({**FINISHED_MESSAGE, "content": []})],
            "differs from the streamed",
        ),
        ([*START, build_added({**MESSAGE, "content": [TEXT]})], "added item has content"),
        ([*START, build_added({**MESSAGE, "status": "completed"})], "has the status 'completed'"),
        ([*START, build_added({**MESSAGE, "id": ""})], "without an id"),
        ([*START, build_added({**MESSAGE, "type": "video"})], "of type 'video'"),
        ([*START, build_added({**CALL, "arguments": "{}"})], "added call has text"),
        ([*START, build_added({**CALL, "name": ""})], "without call_id or name"),
        (
            [*START, *CALL_EVENTS[:1], build_call_event("function_call_arguments.delta", delta="")],
            "an empty delta",
        ),
        (
            [*START, *CALL_EVENTS[:1], build_call_event("custom_tool_call_input.delta", delta="x")],
            "in a function_call",
        ),
        (
            [
                *START,
                *CALL_EVENTS[:2],
                build_call_event("function_call_arguments.done", arguments=""),
            ],
            "differs from its concatenated deltas",
        ),
        ([*START, *CALL_EVENTS[:3], CALL_EVENTS[1]], "after the end"),
        ([*START, *CALL_EVENTS[:2], build_done(FINISHED_CALL)], "differs from the streamed"),
        (
            [*START, *CALL_EVENTS[:3], build_done({**FINISHED_CALL, "name": "g"})],
            "the call's name changed",
        ),
        ([*START, FILE_EVENTS[0], FILE_EVENTS[2]], "out of order"),
        ([*START, *FILE_EVENTS[:3], FILE_EVENTS[4]], "is 'completed' after"),
        ([*START, *IMAGE_EVENTS[:2], DRAFT], "out of order"),
        ([*START, *IMAGE_EVENTS[:3], DRAFT, DRAFT], "draft 0, expected 1"),
        (
            [*START, *IMAGE_EVENTS[:3], DRAFT | {"partial_image_b64": None}],
            "partial_image_b64 is None",
        ),
        ([*START, build_added({**SHELL_OUTPUT, "output": [COMMAND_OUTPUT]})], "item has content"),
        ([*START, *OUTPUT_EVENTS[:2], OUTPUT_EVENTS[3]], "differs from its concatenated deltas"),
        ([*START, *OUTPUT_EVENTS[:3], OUTPUT_EVENTS[4]], "differs from the streamed one"),
        ([*START, OUTPUT_EVENTS[0], OUTPUT_EVENTS[1] | {"command_index": 1}], "of command 1"),
        ([*START, OUTPUT_EVENTS[0], OUTPUT_EVENTS[1] | {"delta": {"x": "a"}}], r"a delta of \['x'"),
        ([*START, ERROR, RUNNING], "after an error"),
        ([*START, ERROR, build_added(MESSAGE)], "after an error"),
        ([*START, ERROR, build_end("completed")], "after an error"),
        ([*START, ERROR], "without a terminal event"),
        ([*START, *MESSAGE_EVENTS, build_failure()], "differs from the items"),
        ([*START, ERROR | {"message": "n"}], "message differs"),
        ([*START, {**ERROR, "error": None}], "error is None"),
    ],
)
def test_check_stream_rejects_each_rule_violation(events: list[JsonObject], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_events(*events))


def test_check_stream_rejects_sequence_number_gap():
    for wrong in (1, None, "0"):
        event = json.dumps({**CREATED, "sequence_number": wrong})
        with pytest.raises(Violation, match="expected 0"):
            check_stream(f"event: response.created\ndata: {event}\n\n".encode() + DONE)


def test_check_stream_requires_done_at_end():
    with pytest.raises(Violation, match="does not end with"):
        check_stream(encode_events(*START, *MESSAGE_EVENTS, END).removesuffix(DONE))


def test_check_object_accepts_valid_objects():
    for body in (
        END,
        build_incomplete({**CALL, "status": "incomplete"}),
        # A call that the server does not make does not end the answer.
        build_incomplete(HOSTED_SHELL_CALL, FINISHED_MESSAGE),
        build_failure(),
        CREATED,
    ):
        check_object(body["response"])


@pytest.mark.parametrize("key", RESPONSE_FIELDS)
def test_check_object_requires_every_key(key: str):
    incomplete = {name: value for name, value in RESPONSE.items() if name != key}
    with pytest.raises(Violation, match=f"has no {key}"):
        check_object(incomplete)


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
        ({"text": EMPTY_OBJECT}, "text.format"),
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
                        "content": [
                            {"type": "output_text", "text": "a", "annotations": EMPTY_LIST}
                        ],
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
        ({"output": [{**FINISHED_CALL, "arguments": None}]}, "arguments"),
        ({"output": [{**FINISHED_CALL, "namespace": ""}]}, "namespace is empty"),
        ({"output": [{**FINISHED_IMAGE, "result": None}]}, "'completed' has the result None"),
        ({"output": [{**FINISHED_OUTPUT, "call_id": ""}]}, "call_id is empty"),
        (
            {
                "output": [
                    {**FINISHED_OUTPUT, "output": [{**COMMAND_OUTPUT, "outcome": EMPTY_OBJECT}]}
                ]
            },
            "outcome is",
        ),
        (
            {
                "output": [
                    {**HOSTED_SHELL_CALL, "environment": {"type": "local"}},
                    FINISHED_MESSAGE,
                ]
            },
            "not the last",
        ),
        ({"usage": {**USAGE, "total_tokens": 4}}, "total_tokens is 4"),
        ({"usage": {**USAGE, "input_tokens_details": {"cached_tokens": 1}}}, "cache_write_tokens"),
        (
            {
                "usage": {
                    **USAGE,
                    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
                }
            },
            "more cached",
        ),
        ({"usage": {**USAGE, "output_tokens_details": {"reasoning_tokens": 3}}}, "more reasoning"),
    ],
)
def test_check_object_rejects_each_rule_violation(fields: JsonObject, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object({**RESPONSE, **fields})


def test_check_stream_with_variants_allows_missing_fields():
    events = [
        build_lifecycle("created"),
        build_lifecycle("in_progress"),
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
