"""Fields of a Messages body are parsed."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.events import (
    ChoiceFinished,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
)
from dragoman.core.message import FunctionTool, Message, Role, Text, ToolChoice
from dragoman.core.request import (
    ClearReasoning,
    ClearToolResults,
    Conversation,
    Edit,
    Extras,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    Regex,
    SamplingOptions,
    TemplateOptions,
)
from dragoman.dialects.anthropic import ThreadUnsupported, read_messages, render_count_tokens
from dragoman.dialects.interfaces import ReaderOptions

from ..bodies import render
from ..sealing_key import ReadableSealingKey
from .bodies import (
    HELLO,
    NOTHING,
    OPTIONS,
    WEATHER,
    conversation,
    count,
    messages,
    read_error,
    read_error_message,
    request,
    turns,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
PREFILL = [*HELLO, {"role": "assistant", "content": "The answer is ("}]


def test_minimal_body_sets_defaults():
    call = messages()
    assert (call.stream, call.id_prefix, call.warnings, call.unknown) == (False, "msg_", (), ())
    assert call.requests[0].model == "tiny"
    assert call.requests[0].limits == GenerationLimits(max_tokens=100)
    assert conversation().messages == (Message(Role.USER, (Text("hello"),)),)


def test_sampling_fields_are_parsed():
    assert request(temperature=0.5, top_p=0.9, top_k=-1).sampling == SamplingOptions(0.5, 0.9, 0)
    assert read_error(temperature=3).param == "temperature"


def test_limit_and_stop_fields_are_parsed():
    limits = request(max_tokens=5, stop_sequences=["a", "b"], min_tokens=2, ignore_eos=True).limits
    assert limits == GenerationLimits(5, 2, ("a", "b"), ignore_eos=True)
    assert read_error(stop_sequences=["a"] * 17).param == "stop_sequences"
    assert read_error(stop_sequences=[""]).param == "stop_sequences"
    assert read_error(max_tokens=1, min_tokens=2).param == "min_tokens"


def test_missing_max_tokens_is_rejected():
    with pytest.raises(RequestError) as caught:
        read_messages(msgspec.json.encode({"messages": HELLO}), OPTIONS)
    assert caught.value.param == "max_tokens"
    assert read_error(max_tokens=None).param == "max_tokens"


def test_max_tokens_zero_or_minus_one_is_accepted():
    assert request(max_tokens=0).limits.max_tokens == 0
    assert request(max_tokens=-1).limits.max_tokens is None


def test_vllm_extension_fields_are_parsed():
    parsed = request(
        min_p=0.1,
        repetition_penalty=1.1,
        seed=3,
        priority=2,
        cache_salt="s",
        structured_outputs={"regex": "a+"},
        kv_transfer_params={"a": 1},
        chat_template_kwargs={"x": 1},
    )
    assert (parsed.sampling.min_p, parsed.sampling.repetition_penalty, parsed.sampling.seed) == (
        0.1,
        1.1,
        3,
    )
    assert (parsed.priority, parsed.cache_salt) == (2, "s")
    assert parsed.constraint == Regex("a+")
    assert parsed.extras == Extras(kv_transfer_params='{"a":1}')
    assert conversation(chat_template_kwargs={"x": 1}).template.kwargs == '{"x":1}'


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be brief.", ("Be brief.",)),
        ([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}], ("A", "B")),
        ("", ()),
        ([], ()),
        (None, ()),
    ],
)
def test_system_prompt_becomes_first_message(system: object, expected: tuple[str, ...]):
    first, *_ = turns(*HELLO, system=system)
    assert first.role is (Role.SYSTEM if expected else Role.USER)
    assert not expected or first.parts == tuple(Text(text) for text in expected)


def test_billing_header_is_dropped_from_system_prompt():
    """The header differs in every request: with it, the prefix cache would never have a
    hit.
    """
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.329; cch=1a2b3;"},
        {"type": "text", "text": "You are Claude Code."},
    ]
    assert turns(*HELLO, system=blocks)[0].parts == (Text("You are Claude Code."),)
    prompt = (
        messages(ReaderOptions(default_model="tiny", drop_nonces=False), system=blocks)
        .requests[0]
        .prompt
    )
    assert isinstance(prompt, Conversation)
    assert len(prompt.messages[0].parts) == 2


def test_trailing_assistant_message_is_continued():
    prompt = conversation(messages=PREFILL)
    assert prompt.template == TemplateOptions(
        add_generation_prompt=False, continue_final_message=True
    )
    assert prompt.messages[-1] == Message(Role.ASSISTANT, (Text("The answer is ("),))


@pytest.mark.parametrize("nothing", ["", []])
def test_empty_trailing_assistant_message_is_dropped(nothing: object):
    prompt = conversation(messages=[*HELLO, {"role": "assistant", "content": nothing}])
    assert prompt.template == TemplateOptions()
    assert [message.role for message in prompt.messages] == [Role.USER]


def test_trailing_tool_use_without_result_is_rejected():
    call = {"type": "tool_use", "id": "a", "name": "f", "input": NOTHING}
    assert read_error_message(
        messages=[*HELLO, {"role": "assistant", "content": [call]}]
    ).startswith("messages.1: tool_use blocks")


def test_output_format_is_parsed():
    assert request(output_config={"format": FORMAT}).constraint == JsonSchema(
        msgspec.json.encode(SCHEMA).decode()
    )
    assert (
        request(output_format=FORMAT).constraint
        == request(output_config={"format": FORMAT}).constraint
    )
    assert (
        read_error(output_config={"format": {"type": "json"}}).param == "output_config.format.type"
    )
    assert (
        read_error(output_config={"format": {"type": "json_schema"}}).param
        == "output_config.format.schema"
    )
    assert read_error(output_config={"format": FORMAT}, structured_outputs={"regex": "a"}).param


def test_output_format_with_prefill_is_rejected():
    """The grammar does not see prefilled text, so that the whole answer would not
    follow it.
    """
    assert read_error(messages=PREFILL, output_config={"format": FORMAT}).param == "messages"


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, ReasoningOptions()),
        (
            {"type": "enabled", "budget_tokens": 2000},
            ReasoningOptions(enabled=True, budget=2000, budget_is_hint=True),
        ),
        ({"type": "adaptive"}, ReasoningOptions(enabled=True)),
        ({"type": "disabled"}, ReasoningOptions(enabled=False)),
        ({"type": "between_tools"}, ReasoningOptions(enabled=False)),
    ],
)
def test_thinking_option_is_parsed(thinking: object, expected: ReasoningOptions):
    assert conversation(thinking=thinking).reasoning == expected


def test_thinking_between_tools_applies_after_tool_result():
    history = [
        *HELLO,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "f", "input": NOTHING}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
    ]
    remarked = [*history, {"role": "system", "content": "Be brief."}]
    assert (
        conversation(messages=history, thinking={"type": "between_tools"}).reasoning.enabled is True
    )
    assert (
        conversation(messages=remarked, thinking={"type": "between_tools"}).reasoning.enabled
        is True
    )


def test_template_kwargs_override_thinking_option():
    kwargs = {"enable_thinking": False}
    assert (
        conversation(chat_template_kwargs=kwargs, thinking={"type": "adaptive"}).reasoning.enabled
        is False
    )


def test_invalid_thinking_option_is_rejected():
    assert read_error(thinking={"type": "enabled"}).param == "thinking.budget_tokens"
    assert read_error(thinking={"type": "sometimes"}).param == "thinking.type"
    assert read_error(thinking={"type": "adaptive", "display": "loud"}).param == "thinking.display"


def test_effort_is_parsed():
    assert conversation(output_config={"effort": "xhigh"}).reasoning.effort == "xhigh"
    assert read_error(output_config={"effort": "some"}).param == "output_config.effort"


def test_system_message_overrides_effort():
    changed = [*HELLO, {"role": "system", "output_config": {"effort": "low"}}]
    prompt = conversation(messages=changed, output_config={"effort": "high"})
    assert prompt.reasoning.effort == "low"
    assert [message.role for message in prompt.messages] == [Role.USER]


@pytest.mark.parametrize("max_tokens", [2, 3, -1])
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (FinishReason.LENGTH, "max_tokens"),
        (FinishReason.CONTEXT_LENGTH, "model_context_window_exceeded"),
    ],
)
def test_stop_reason_does_not_depend_on_token_counts(
    max_tokens: int, reason: FinishReason, expected: str
):
    ended = (ChoiceFinished(0, reason), Finished(Usage(1, 2)))
    assert f'"stop_reason":"{expected}"' in render(
        messages(max_tokens=max_tokens), Started(1), *ended
    )


@pytest.mark.parametrize(
    ("display", "visible"),
    [("omitted", False), ("summarized", True), ("updates", True), (None, True)],
)
def test_thinking_display_controls_visible_reasoning(display: str | None, visible: bool):
    call = messages(thinking={"type": "adaptive", "display": display})
    assert ("thinking_delta" in render(call, Started(1), ReasoningDelta(0, "Hm."))) == visible


def test_thinking_is_signed_with_sealing_key():
    body = msgspec.json.encode({"max_tokens": 5, "messages": HELLO})
    call = read_messages(body, msgspec.structs.replace(OPTIONS, sealing_key=ReadableSealingKey()))
    assert '"signature":"HM."' in render(
        call, Started(1), ReasoningDelta(0, "Hm."), TextDelta(0, "x")
    )


def test_request_id_sets_message_id():
    assert '"id":"msg_abc"' in render(messages(request_id="abc"), Started(1))


def test_thread_is_rejected():
    assert isinstance(read_error(thread={"type": "create"}), ThreadUnsupported)
    assert messages(thread=None).warnings == ()


USES = {"type": "clear_tool_uses_20250919"}
TURNS = {"type": "clear_thinking_20251015"}
ALL = frozenset({"search", "read"})


@pytest.mark.parametrize(
    ("edit", "read"),
    [
        (USES, (ClearToolResults(100_000, keep=3),)),
        (
            {
                **USES,
                "trigger": {"type": "input_tokens", "value": 30_000},
                "keep": {"type": "tool_uses", "value": 0},
                "clear_at_least": {"type": "input_tokens", "value": 5_000},
                "exclude_tools": ["search", "read"],
                "clear_tool_inputs": True,
            },
            (ClearToolResults(30_000, at_least=5_000, exclude=ALL, inputs=None),),
        ),
        (
            {
                **USES,
                "trigger": {"type": "tool_uses", "value": 5},
                "clear_tool_inputs": ["search", "read"],
            },
            (ClearToolResults(100_000, above_uses=5, keep=3, inputs=ALL),),
        ),
        (
            {**USES, "clear_tool_inputs": False, "exclude_tools": None},
            (ClearToolResults(100_000, keep=3),),
        ),
        (TURNS, (ClearReasoning(1),)),
        ({**TURNS, "keep": {"type": "thinking_turns", "value": 2}}, (ClearReasoning(2),)),
        ({**TURNS, "keep": "all"}, ()),
        ({**TURNS, "keep": {"type": "all"}}, ()),
    ],
)
def test_context_management_edits_are_parsed(edit: dict[str, object], read: tuple[Edit, ...]):
    parsed = messages(context_management={"edits": [edit]})
    prompt = parsed.requests[0].prompt
    assert isinstance(prompt, Conversation)
    assert (prompt.edits, parsed.warnings) == (read, ())


def test_unknown_context_edit_is_skipped_with_warning():
    compact = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
    (warning,) = messages(context_management={"edits": [TURNS, compact]}).warnings
    assert warning == "context_management.edits[1]: compact_20260112 is not supported"


@pytest.mark.parametrize(
    ("edit", "param"),
    [
        ({**USES, "trigger": {"type": "tokens", "value": 1}}, "trigger.type"),
        ({**USES, "trigger": {"type": "tool_uses"}}, "trigger.value"),
        ({**USES, "keep": {"type": "thinking_turns", "value": 1}}, "keep.type"),
        ({**USES, "keep": "all"}, "keep"),
        ({**USES, "keep": {"type": "tool_uses", "value": -1}}, "keep"),
        ({**USES, "clear_at_least": {"type": "tool_uses", "value": 1}}, "clear_at_least.type"),
        ({**TURNS, "keep": {"type": "thinking_turns", "value": 0}}, "keep.value"),
        ({**TURNS, "keep": {"type": "thinking_turns"}}, "keep.value"),
        ({**TURNS, "exclude_tools": []}, None),
    ],
)
def test_invalid_context_edit_is_rejected_by_name(edit: dict[str, object], param: str | None):
    at = "context_management.edits[0]"
    assert read_error(context_management={"edits": [edit]}).param == (
        f"{at}.{param}" if param else at
    )


def test_missing_model_without_default_is_rejected():
    assert read_error(ReaderOptions()).param == "model"


def test_unknown_fields_are_reported():
    assert messages(surprise=1).unknown == ("surprise",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "user", "content": ""}]}, "messages: at least one message"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: "),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages.0.content.0.type: Field required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text: Field required",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: expected "),
        ({"max_tokens": "many"}, "max_tokens: expected an integer"),
        ({"max_tokens": -2}, "max_tokens: expected an integer >= -1"),
        ({"system": [{"type": "image"}]}, "system.0.type: 'image'. Supported values are: 'text'."),
        ({"service_tier": "best"}, "service_tier: 'best'."),
        ({"metadata": {"user_id": 5}}, "metadata.user_id: expected a string"),
    ],
)
def test_error_message_names_field(fields: dict[str, object], message: str):
    assert read_error_message(**fields).startswith(message)


def test_null_fields_equal_absent_fields():
    names = (
        "system tools tool_choice thinking output_config stop_sequences metadata service_tier "
        "temperature top_p top_k"
    )
    parsed = messages(
        **dict.fromkeys(names.split()), stream=None, context_management=None, thread=None
    )
    assert parsed.requests == messages().requests
    assert (parsed.warnings, parsed.unknown) == ((), ())


def test_count_tokens_parses_prompt_fields():
    counted = count(
        system="s", tools=[WEATHER], tool_choice={"type": "any"}, thinking={"type": "adaptive"}
    )
    parsed = conversation(
        system="s", tools=[WEATHER], tool_choice={"type": "any"}, thinking={"type": "adaptive"}
    )
    assert counted.conversation == parsed
    assert counted.conversation.tool_choice == ToolChoice("required")
    assert counted.conversation.tools == (
        FunctionTool("weather", None, _text(WEATHER["input_schema"])),
    )
    assert (counted.model, counted.warnings, counted.unknown) == ("tiny", (), ())


def _text(schema: object) -> str:
    return msgspec.json.encode(schema).decode()


def test_count_tokens_accepts_full_request():
    assert count(
        max_tokens=5, temperature=1, stream=True, mcp_servers=[NOTHING], surprise=1
    ).unknown == ("surprise",)
    assert render_count_tokens(42) == b'{"input_tokens":42}'


def test_count_tokens_with_thread_is_rejected():
    with pytest.raises(ThreadUnsupported):
        count(thread={"type": "continue", "previous_message_id": "msg_1"})
