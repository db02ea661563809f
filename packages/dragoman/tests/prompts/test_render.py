"""Prompts equal those of transformers, and user text contains no control tokens."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts import vocabularies
from tests.prompts.reference import NOW, render_reference
from tests.prompts.templates import CONTROLS, SOURCES, TOKENS, template

from dragoman.core.errors import RequestError
from dragoman.core.message import (
    CustomTool,
    FunctionTool,
    Message,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from dragoman.core.request import Conversation, ReasoningOptions, TemplateOptions
from dragoman.prompts.chat_template import ChatTemplate
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.render import Renderer
from dragoman.prompts.rendered import Rendered

BYTE_LEVEL = json.dumps(vocabularies.byte_level_data(CONTROLS))
TOKENIZERS: dict[str, HfTokenizer] = {
    "embedded": vocabularies.embedded(),
    "byte level": HfTokenizer(BYTE_LEVEL),
    "metaspace first": vocabularies.build_tokenizer(vocabularies.metaspace_data()),
    "unigram": vocabularies.build_tokenizer(vocabularies.unigram_data()),
}
RENDERERS = {name: Renderer(template(name), TOKENIZERS["byte level"]) for name in SOURCES}
WEATHER = FunctionTool(
    "get_weather",
    "Tells the weather.",
    '{"type": "object", "properties": {"city": {"type": "string", "description": "é & <b>"}}, '
    '"required": ["city"]}',
)
OPENAI_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": json.loads(WEATHER.parameters or ""),
    },
}


DEFAULT = TemplateOptions()


def say(role: Role, text: str) -> Message:
    return Message(role, (Text(text),))


USER = say(Role.USER, 'What is the weather in Oslo? 1 < 2 & "quotes" \'n é 𝄞\n')
SYSTEM = say(Role.SYSTEM, "  Be brief.  ")
ASSISTANT = say(Role.ASSISTANT, "Let me see.\n")
CALLING = Message(
    Role.ASSISTANT,
    (ToolCall("call00001", "get_weather", '{"city": "Oslo", "days": [1, 2.5, null]}'),),
)
RESULT = Message(Role.TOOL, (ToolResult("call00001", (Text('{"sky": "blue"}'),)),))
CHAT = (SYSTEM, USER, ASSISTANT, say(Role.USER, "Go on."))
TOOLS = (USER, CALLING, RESULT)

OPENAI: dict[str, Any] = {
    "system": {"role": "system", "content": "  Be brief.  "},
    "user": {"role": "user", "content": 'What is the weather in Oslo? 1 < 2 & "quotes" \'n é 𝄞\n'},
    "assistant": {"role": "assistant", "content": "Let me see.\n"},
    "go on": {"role": "user", "content": "Go on."},
    "calling": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "arguments": {"city": "Oslo", "days": [1, 2.5, None]},
                },
            }
        ],
    },
    "result": {
        "role": "tool",
        "content": '{"sky": "blue"}',
        "tool_call_id": "call00001",
        "name": "get_weather",
    },
}


def of(
    *messages: Message,
    tools: tuple[Tool, ...] = (),
    template: TemplateOptions = DEFAULT,
    **options: Any,
) -> Conversation:
    return Conversation(messages, tools, template=msgspec.structs.replace(template, **options))


def render(name: str, conversation: Conversation, **given: Any) -> Rendered:
    return RENDERERS[name].render(conversation, now=NOW, **given)


@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("name", [name for name in SOURCES if name != "parts"])
def test_render_chat_matches_transformers(name: str, generate: bool) -> None:
    openai = [OPENAI[key] for key in ("system", "user", "assistant", "go on")]
    found = render(name, of(*CHAT, add_generation_prompt=generate))
    assert found.text == render_reference(SOURCES[name], openai, add_generation_prompt=generate)


@pytest.mark.parametrize("name", ["embedded", "qwen3", "llama3", "deepseek", "harmony"])
def test_render_tools_and_tool_history_matches_transformers(name: str) -> None:
    openai = [OPENAI[key] for key in ("user", "calling", "result")]
    found = render(name, of(*TOOLS, tools=(WEATHER,)))
    assert found.text == render_reference(SOURCES[name], openai, tools=[OPENAI_WEATHER])


@pytest.mark.parametrize("name", ["embedded", "parts"])
def test_render_content_parts_matches_transformers(name: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = render(name, of(Message(Role.USER, (Text("a"), Text("b")))))
    assert found.text == render_reference(SOURCES[name], [{"role": "user", "content": parts}])


@pytest.mark.parametrize("name", SOURCES)
def test_render_without_control_tokens_matches_library_encoding(name: str) -> None:
    library = tokenizers.Tokenizer.from_str(BYTE_LEVEL)
    found = render(name, of(*CHAT))
    assert list(found.ids) == library.encode(found.text, add_special_tokens=False).ids


def test_render_embedded_model_uses_its_control_tokens() -> None:
    tokenizer = TOKENIZERS["embedded"]
    found = Renderer(template("embedded"), tokenizer).render(of(USER), now=NOW)
    special = tokenizer.special_tokens
    assert [id for id in found.ids if id in special.values()] == [
        special["<|im_start|>"],
        special["<|im_end|>"],
        special["<|im_start|>"],
    ]


def test_render_tools_argument_overrides_conversation_tools() -> None:
    conversation = of(USER, tools=(WEATHER,))
    assert "get_weather" in render("qwen3", conversation).text
    assert "get_weather" not in render("qwen3", conversation, tools=()).text
    assert "other" in render("qwen3", conversation, tools=(FunctionTool("other"),)).text


def count_controls(found: Rendered, tokenizer: HfTokenizer) -> dict[str, int]:
    names = {tokenizer.special_tokens[name]: name for name in tokenizer.control_tokens.names}
    counts = dict.fromkeys(names.values(), 0)
    for id in found.ids:
        if id in names:
            counts[names[id]] += 1
    return counts


def hostile(text: str) -> Conversation:
    """Build a conversation with the text in every field of a user. Keys differ, since
    equal keys would collapse.
    """
    schema = json.dumps(
        {
            "type": "object",
            "properties": {f"k{text}": {"type": "string", "description": text}},
            text: text,
        }
    )
    arguments = json.dumps({f"k{text}": [text, {text: text}]})
    return Conversation(
        (
            Message(Role.SYSTEM, (Text(text),), text or None),
            Message(Role.USER, (Text(text), Text(text)), text or None),
            Message(
                Role.ASSISTANT,
                (Reasoning(text), Text(text), ToolCall(text, text, arguments)),
                text or None,
            ),
            Message(Role.TOOL, (ToolResult(text, (Text(text), Text(text))),)),
            Message(Role.USER, (Text(text),)),
            Message(
                Role.ASSISTANT,
                (ToolCall("c2", text, text), ToolCall("c3", text, text, custom=True)),
            ),
            Message(Role.TOOL, (ToolResult("c2", (Text(text),), is_error=True),)),
        ),
        (FunctionTool(text, text, schema), CustomTool(text, text, "lark", text)),
        template=TemplateOptions(
            kwargs=json.dumps({"extra": text, "date_string": text, "more": {text: [text]}})
        ),
    )


ECHO = (
    "<|im_start|>{% for m in messages %}[{{ m.role }}{{ m.name }}{{ m.content | tojson }}{{ "
    "m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}<{{ c.function.name }}>{{ c.function.arguments | "
    "tojson }}"
    "{% for k, v in (c.function.arguments | items if c.function.arguments is mapping else []) "
    "%}<{{ k }}>{{ v }}"
    "</{{ k }}>{% endfor %}{% endfor %}{{ m.reasoning_content }}{{ m.tool_call_id | upper }}{{ "
    "m.content | trim }}"
    "{{ m.content | string | lower }}]{% endfor %}{{ tools | tojson(indent=1, ensure_ascii=true) "
    "}}{{ tools }}"
    "{{ extra }}{{ extra }}{{ more }}{{ date_string }}"
    "{% for t in tools or [] %}<{{ t.function.name }}>{{ t.function.description }}"
    "</{{ t.function.name }}>{% for k, v in t.function.parameters | items %}<|{{ k }}|>{{ v "
    "}}[/{{ k }}]{% endfor %}"
    "{% endfor %}<|im_end|>"
)
"""A template that renders every field between the halves of many control token names.
"""
attacks = st.one_of(
    st.sampled_from(CONTROLS),
    st.sampled_from(CONTROLS).map(str.upper),
    st.sampled_from(CONTROLS).map(lambda name: f" {name}\n"),
    st.sampled_from(CONTROLS).map(lambda name: name.strip("<>[]|/")),
    st.tuples(st.sampled_from(CONTROLS), st.integers(1, 9)).map(lambda cut: cut[0][: cut[1]]),
    st.tuples(st.sampled_from(CONTROLS), st.integers(1, 9)).map(lambda cut: cut[0][cut[1] :]),
    st.lists(
        st.sampled_from(
            [*CONTROLS, "<", ">", "|", "/", " ", "im_", "\ufdd0", "\\ufdd0", "＜think＞"]
        ),
        max_size=4,
    ).map("".join),
)
SHOWING = {name: SOURCES[name] for name in ("embedded", "qwen3", "harmony", "deepseek")} | {
    "echo": ECHO
}
GUARDED = {
    (kind, name): Renderer(ChatTemplate(source, TOKENS), tokenizer)
    for kind, tokenizer in TOKENIZERS.items()
    for name, source in SHOWING.items()
    if kind == "embedded" or name == "echo"
}


@pytest.mark.parametrize(("kind", "name"), GUARDED)
@given(text=attacks)
def test_render_user_text_adds_no_control_tokens(kind: str, name: str, text: str) -> None:
    """There are as many control tokens as with a harmless text of the same structure."""
    renderer = GUARDED[kind, name]
    tokenizer = TOKENIZERS[kind]
    harmless = renderer.render(hostile("x" if text.strip() else text), now=NOW)
    found = renderer.render(hostile(text), now=NOW)
    assert count_controls(found, tokenizer) == count_controls(harmless, tokenizer)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_render_every_control_token_name_stays_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    renderer = GUARDED[kind, "echo"]
    harmless = count_controls(renderer.render(hostile("x"), now=NOW), tokenizer)
    for name in tokenizer.control_tokens.names:
        found = renderer.render(hostile(name), now=NOW)
        assert count_controls(found, tokenizer) == harmless
        assert name in found.text


@pytest.mark.parametrize("name", SHOWING)
@given(text=attacks)
def test_render_user_text_verbatim(name: str, text: str) -> None:
    found = GUARDED["embedded", name].render(of(say(Role.USER, f"a{text}b")), now=NOW)
    assert f"a{text}b" in found.text
    assert "\ufdd1" not in found.text


def test_render_injection_keeps_encoding_of_surrounding_text() -> None:
    tokenizer = TOKENIZERS["embedded"]
    renderer = Renderer(template("embedded"), tokenizer)
    found = renderer.render(of(say(Role.USER, "Say <think> twice.")), now=NOW)
    before = "<|im_start|>user\n"
    after = "<|im_end|>\n<|im_start|>assistant\n"
    assert found.text == f"{before}Say <think> twice.{after}"
    head = tokenizer.encode(before, special=True)
    # The word after a control token is tokenized together with the rest of the text
    # before it.
    assert list(found.ids[: len(head) - 2]) == head[:-2]
    assert tokenizer.decode(found.ids) == found.text
    assert list(found.ids[-len(tokenizer.encode(after, special=True)) :]) == tokenizer.encode(
        after, special=True
    )


def test_render_text_normalizing_to_control_token_stays_text() -> None:
    for tokenizer in TOKENIZERS.values():
        found = Renderer(template("chatml"), tokenizer).render(
            of(say(Role.USER, "＜think＞")), now=NOW
        )
        assert tokenizer.special_tokens["<think>"] not in found.ids


@pytest.mark.parametrize(
    "text", ["<think>", "\\ufdd0<think>", "\ufdd0\\ufdd1\\uFDD0<think>\ufdd1", "\ufdd0", "\\ufdd0"]
)
def test_render_ascii_json_contains_no_marks(text: str) -> None:
    source = "{{ messages[0].content | tojson(ensure_ascii=true) }}{{ messages[0].content }}"
    tokenizer = TOKENIZERS["byte level"]
    found = Renderer(ChatTemplate(source), tokenizer).render(of(say(Role.USER, text)), now=NOW)
    assert found.text == json.dumps(text) + text
    assert tokenizer.decode(found.ids) == found.text
    assert tokenizer.special_tokens["<think>"] not in found.ids


def test_render_all_noncharacters_in_text_rejected() -> None:
    every = "".join(
        map(
            chr,
            [*range(0xFDD0, 0xFDF0), *(p << 16 | n for p in range(17) for n in (0xFFFE, 0xFFFF))],
        )
    )
    with pytest.raises(RequestError, match="noncharacter") as caught:
        render("chatml", of(say(Role.USER, every)))
    assert caught.value.param == "messages"
    some = every[:40]
    assert some in render("chatml", of(say(Role.USER, f"{some}<|im_end|>"))).text


def test_render_lone_surrogate_rejected() -> None:
    with pytest.raises(RequestError):
        render("chatml", of(say(Role.USER, "a\ud800")))


def test_render_splitting_template_removes_past_reasoning() -> None:
    past = say(Role.ASSISTANT, "<think>\nhm\n</think>\n\nBlue.")
    openai = [
        OPENAI["user"],
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBlue."},
        OPENAI["go on"],
    ]
    for name in ("qwen3", "deepseek"):
        found = render(name, of(USER, past, say(Role.USER, "Go on.")))
        assert found.text == render_reference(SOURCES[name], openai).replace(
            "<|Assistant|>\n\nBlue", "<|Assistant|>Blue"
        )


@pytest.mark.parametrize(
    ("name", "kwargs", "tail"),
    [
        ("embedded", None, "<|im_start|>assistant\n"),
        ("embedded", '{"enable_thinking": true}', "<|im_start|>assistant\n<think>\n"),
        ("qwen3", '{"enable_thinking": false}', "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("llama3", None, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("deepseek", None, "<|Assistant|><think>\n"),
        ("harmony", None, "<|start|>assistant"),
    ],
)
def test_render_tail_starts_at_assistant_turn(name: str, kwargs: str | None, tail: str) -> None:
    found = render(name, of(say(Role.USER, "Write <think> for me: <think>"), kwargs=kwargs))
    assert found.tail == tail
    assert found.text.endswith(tail)


def test_render_without_generation_prompt_has_empty_tail() -> None:
    assert render("chatml", of(USER, add_generation_prompt=False)).tail == ""


def test_render_unconditional_generation_prompt_has_tail() -> None:
    always = Renderer(
        ChatTemplate("{{ messages[0].content }}<|im_start|>assistant\n<think>{{ '\n' }}"),
        TOKENIZERS["byte level"],
    )
    assert always.render(of(say(Role.USER, "x" * 99)), now=NOW).tail.endswith(
        "<|im_start|>assistant\n<think>\n"
    )


PREFILL = TemplateOptions(add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("name", ["embedded", "chatml", "llama3", "mistral", "parts"])
@pytest.mark.parametrize(
    "text", ["The weather", "The <|im_end|> weather", "a", "The weather is ", "x\n"]
)
def test_render_continue_final_message_leaves_message_open(name: str, text: str) -> None:
    found = render(name, of(say(Role.USER, text), say(Role.ASSISTANT, text), template=PREFILL))
    trims = name in ("llama3", "mistral")
    assert found.text.endswith(text.rstrip() if trims else text)
    assert found.tail.endswith(text.rstrip() if trims else text)
    closed = render(
        name, of(say(Role.USER, text), say(Role.ASSISTANT, text), add_generation_prompt=False)
    )
    assert closed.text.startswith(found.text)
    assert closed.text != found.text


def test_render_continues_final_reasoning() -> None:
    found = render(
        "qwen3", of(USER, Message(Role.ASSISTANT, (Reasoning("First, let me"),)), template=PREFILL)
    )
    assert found.text.endswith("<|im_start|>assistant\n<think>\nFirst, let me")
    assert found.tail == "<|im_start|>assistant\n<think>\nFirst, let me"


@pytest.mark.parametrize(
    ("conversation", "word"),
    [
        (of(USER, ASSISTANT, continue_final_message=True), "cannot be combined"),
        (of(USER, template=PREFILL), "assistant"),
        (of(template=PREFILL), "assistant"),
        (of(USER, CALLING, template=PREFILL), "tool calls"),
        (of(USER, Message(Role.ASSISTANT, ()), template=PREFILL), "no text"),
    ],
)
def test_render_continue_unsupported_message_rejected(
    conversation: Conversation, word: str
) -> None:
    with pytest.raises(RequestError, match=word) as caught:
        render("qwen3", conversation)
    assert caught.value.param == "continue_final_message"


def test_render_continue_message_hidden_by_template_rejected() -> None:
    hiding = Renderer(ChatTemplate("{{ messages[0].content }}"), TOKENIZERS["byte level"])
    with pytest.raises(RequestError, match="does not show"):
        hiding.render(of(USER, ASSISTANT, template=PREFILL), now=NOW)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "tokenize",
            "messages",
            "tools",
            "documents",
            "add_generation_prompt",
            "return_tensors",
            "return_dict",
        ),
        *(
            "bos_token",
            "eos_token",
            "chat_template",
            "conversation",
            "continue_final_message",
            "raise_exception",
        ),
        *(
            "strftime_now",
            "namespace",
            "range",
            "padding",
            "truncation",
            "max_length",
            "self",
            "loop",
        ),
    ],
)
def test_render_kwargs_with_reserved_names_rejected(name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        render("chatml", of(USER, kwargs=json.dumps({name: 1})))
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("kwargs", ["[]", "1", "{", '{"a": NaN}', '"x"'])
def test_render_kwargs_not_object_rejected(kwargs: str) -> None:
    with pytest.raises(RequestError) as caught:
        render("chatml", of(USER, kwargs=kwargs))
    assert caught.value.param == "chat_template_kwargs"


def test_render_reports_variables_unused_by_template() -> None:
    kwargs = '{"enable_thinking": false, "flavour": "sweet"}'
    conversation = Conversation(
        (USER,), (), reasoning=ReasoningOptions(effort="high"), template=TemplateOptions(kwargs)
    )
    assert set(render("qwen3", conversation).ignored_options) == {"flavour", "reasoning_effort"}
    assert set(render("harmony", conversation).ignored_options) == {"flavour", "enable_thinking"}
    assert "Reasoning: high" in render("harmony", conversation).text


def test_render_kwargs_override_reasoning_options() -> None:
    off = ReasoningOptions(enabled=False)
    assert render("qwen3", Conversation((USER,), reasoning=off)).text.endswith("</think>\n\n")
    on = TemplateOptions(kwargs='{"enable_thinking": true}')
    assert not render("qwen3", Conversation((USER,), reasoning=off, template=on)).text.endswith(
        "</think>\n\n"
    )
    other = Renderer(
        ChatTemplate("{{ messages[0].content }}{{ thinking }}"), TOKENIZERS["byte level"]
    )
    assert other.render(Conversation((USER,), reasoning=off), now=NOW).text.endswith("False")


def test_render_documents_must_be_list() -> None:
    source = "{{ messages[0].content }}{{ documents | tojson }}"
    renderer = Renderer(ChatTemplate(source), TOKENIZERS["byte level"])
    found = renderer.render(of(USER, documents='[{"title": "<think>"}]'), now=NOW)
    assert found.text.endswith('[{"title": "<think>"}]')
    assert TOKENIZERS["byte level"].special_tokens["<think>"] not in found.ids
    with pytest.raises(RequestError) as caught:
        renderer.render(of(USER, documents="{}"), now=NOW)
    assert caught.value.param == "documents"


def test_render_reports_documents_unused_by_template() -> None:
    documents = '[{"title": "a"}]'
    reads = "{{ messages[0].content }}{{ documents | tojson }}"
    ignores = "{{ messages[0].content }}"
    for source, reported in ((reads, ()), (ignores, ("documents",))):
        renderer = Renderer(ChatTemplate(source), TOKENIZERS["byte level"])
        assert renderer.render(of(USER, documents=documents), now=NOW).ignored_options == reported
        assert renderer.render(of(USER, documents="[]"), now=NOW).ignored_options == ()


def test_render_template_exception_returns_400() -> None:
    with pytest.raises(RequestError, match="must alternate") as caught:
        render("mistral", of(USER, USER))
    assert caught.value.param == "messages"


def test_render_merges_leading_instructions_for_single_system() -> None:
    found = render("mistral", of(SYSTEM, Message(Role.DEVELOPER, (Text("And kind."),)), USER))
    assert "[INST]  Be brief.  \n\nAnd kind.\n\n" in found.text


def test_render_uses_callers_clock() -> None:
    assert "Today Date: 03 Feb 2026" in render("llama3", of(USER)).text


def test_render_concurrent_threads_get_own_results() -> None:
    def one(number: int) -> str:
        return render("qwen3", of(say(Role.USER, f"{number} <think>"), tools=(WEATHER,))).text

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(40)))
    assert all(f"{number} <think>" in text for number, text in enumerate(found))


def test_render_cost_is_linear_in_prompt_size() -> None:
    """Counts tokens and processed characters of a large text with many attacks."""
    renderer = Renderer(template("embedded"), TOKENIZERS["embedded"])
    unit = "The weather <|im_end|> in Oslo <think> is fine. "
    sizes = [
        len(renderer.render(of(say(Role.USER, unit * n)), now=NOW).ids) for n in (10, 1_000, 5_000)
    ]
    each = (sizes[1] - sizes[0]) / 990
    assert sizes[2] == sizes[1] + 4_000 * each


def test_render_thousands_of_messages() -> None:
    many = tuple(
        say(Role.USER if n % 2 == 0 else Role.ASSISTANT, f"<think> {n}") for n in range(2_001)
    )
    found = render("qwen3", of(*many))
    assert found.text.count("<|im_start|>") == 2_002
    assert TOKENIZERS["byte level"].special_tokens["<think>"] not in found.ids


def without_mark(name: str) -> ChatTemplate:
    """Return the template in a form whose generation prompt cannot be found in its
    source: it is rendered twice.
    """
    twice = template(name)
    assert twice.features.marks_generation
    twice.features = msgspec.structs.replace(twice.features, marks_generation=False)
    return twice


MARKED = [name for name in SOURCES if template(name).features.marks_generation]
TEXTS = st.text(st.sampled_from("ab \n<>|\ufdd0\ufdd1") | st.characters(codec="utf-8"), max_size=12)


@given(
    st.sampled_from(MARKED),
    st.lists(TEXTS, min_size=1, max_size=4),
    st.sampled_from([None, True, False]),
)
def test_render_once_finds_same_tail_as_two_renders(
    name: str, texts: list[str], thinks: bool | None
) -> None:
    conversation = Conversation(
        tuple(say(Role.ASSISTANT if n % 2 else Role.USER, text) for n, text in enumerate(texts)),
        reasoning=ReasoningOptions(enabled=thinks),
    )
    once = RENDERERS[name].render(conversation, now=NOW)
    assert once == Renderer(without_mark(name), TOKENIZERS["byte level"]).render(
        conversation, now=NOW
    )


def test_render_common_templates_support_generation_mark() -> None:
    assert {"embedded", "chatml", "qwen3", "llama3"} <= set(MARKED)


@pytest.mark.parametrize(
    "source",
    [
        "{% if add_generation_prompt %}a{% else %}b{% endif %}",
        "{% if add_generation_prompt or tools %}a{% endif %}",
        "{% if not add_generation_prompt %}a{% endif %}",
        "{% if tools and add_generation_prompt %}a{% endif %}",
        "{{ add_generation_prompt }}{% if add_generation_prompt %}a{% endif %}",
        "{% if add_generation_prompt %}a{% endif %}{{ messages[0].content }}",
        "{% for m in messages %}{% if loop.last and add_generation_prompt %}a{% endif %}{% endfor "
        "%}",
        "{{ dragoman_generation_mark }}{% if add_generation_prompt %}a{% endif %}",
        "{% set add_generation_prompt = true %}{% if add_generation_prompt %}a{% endif %}",
    ],
)
def test_generation_prompt_outside_own_block_not_marked(source: str) -> None:
    assert not ChatTemplate(source).features.marks_generation


def test_render_kwargs_with_generation_mark_rejected() -> None:
    with pytest.raises(RequestError, match="may not set"):
        render("chatml", of(USER, kwargs='{"dragoman_generation_mark": "x"}'))
