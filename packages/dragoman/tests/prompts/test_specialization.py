"""Conversations of a known shape get the prompt that their template would render."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts import vocabularies
from tests.prompts.reference import NOW
from tests.prompts.templates import CONTROLS, SOURCES, TOKENS
from tests.prompts.test_render import SYSTEM, TOKENIZERS, WEATHER, of, say

from dragoman.core.errors import RequestError
from dragoman.core.message import CustomTool, FunctionTool, Message, Role, Text, Tool
from dragoman.core.request import Conversation, ReasoningOptions
from dragoman.prompts.chat_template import ChatTemplate, TemplateLimits
from dragoman.prompts.render import Renderer
from dragoman.prompts.rendered import Rendered
from dragoman.prompts.specialized_prompts import MAX_CACHED_CHARS

GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def build_source(line: str) -> str:
    return f"{{% for m in messages %}}{line}<|im_end|>{{% endfor %}}{GENERATION}"


INDEPENDENT = {
    "concatenation": "{{ m.role ~ '\n' ~ m.content + ('!' ~ m.content) }}",
    "around": "<|im{{ m.content }}_start|>{{ m.content | trim }}{{ m.content.rstrip() }}",
    "set block": "{% set c %}[{{ m.content.strip('\n') }}]{% endset %}{{ c }}",
    "guards": "{% if m.content.startswith('a') %}A{% elif 'b' in m.content %}B{% endif %}",
    "equality": "{% if m.content in ['a', 'b'] or m.content != 'c' %}A{% endif %}{{ m.content }}",
    "type tests": "{{ m.content is string }}{{ m.content is mapping }}{{ m.content is iterable }}",
    "default": "{{ m.content | default('d') | string }}{{ m.name | default(m.content) }}",
    "items": "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{{ m.get('content') }}",
    "map": "{% for c in messages | map(attribute='content') | map('trim') %}{{ c }}{% endfor %}",
    "half an escape": "\\{{ m.content }}",
    "method test": "{{ m.content.strip is defined }}{{ m.content is none }}",
    "escaped role": "{{ m.content }}{% autoescape true %}{{ m.role }}{% endautoescape %}<|im_end|>",
}
"""Lines of templates that specialize."""
DEPENDENT = {
    "length": "{{ m.content | length }}",
    "upper": "{{ m.content.upper() }}",
    "upper filter": "{{ m.content | upper }}",
    "json": "{{ m | tojson }}",
    "print": "{{ m }}",
    "join": "{{ messages | map(attribute='content') | join }}",
    "slice": "{{ m.content[:3] }}",
    "index": "{{ m.content[0] }}",
    "loop": "{% for c in m.content %}{{ c }}.{% endfor %}",
    "lower test": "{{ m.content is lower }}",
    "lookup": "{% set d = {'a': 1} %}{{ d[m.content] }}{{ m.content in d }}",
    "list": "{{ [m.content] }}",
    "attribute": "{{ m.content.text or 'no' }}",
    "attribute of a method": "{{ m.content.strip.text }}",
    "attribute filter": "{{ m.content.strip | attr('name') }}",
    "format": "{{ '%s' % m.content }}",
    "format method": "{{ '{}'.format(m.content) }}",
    "other text": "{{ m.content == messages[0].content ~ '' }}",
    "repetition": "{{ m.content * 2 }}",
    "trimmed letters": "{{ m.content.strip('ab') }}",
    "trimmed join": "{{ ('<|im_start|>' + m.content) | trim }}",
}
"""Lines of templates that depend on the contents."""
LINES = INDEPENDENT | DEPENDENT
FRAGMENTS = (
    *CONTROLS,
    *("<", ">", "|", "<|im", "_start", "|>", "start|>", "[INST", "think>", "\n", " ", "\t", "a"),
    *("b", "c", "é", "😀", "\u2028", "\ufdd0", "\ufdd1", "\\u", "\\ufdd0", "ufdd0", "\\", "\x01"),
    *("{{ x }}", "{% if", '"', "\ud800", "<|IM_START|>"),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
ROLES = st.sampled_from(
    [
        (Role.USER,),
        (Role.SYSTEM, Role.USER),
        (Role.USER, Role.ASSISTANT, Role.USER),
        (Role.SYSTEM, Role.SYSTEM, Role.USER),
        (Role.DEVELOPER, Role.USER),
        (Role.ASSISTANT,),
    ]
)
TOOLS: tuple[tuple[Tool, ...], ...] = (
    (),
    (WEATHER,),
    (FunctionTool("<|im_end|>", "<|im_start|>\n"), CustomTool("c", "\\ufdd0")),
)


def build_renderer(source: str, limits: TemplateLimits | None = None) -> Renderer:
    return Renderer(ChatTemplate(source, TOKENS, limits), TOKENIZERS["byte level"])


RENDERERS = {name: build_renderer(source) for name, source in SOURCES.items()} | {
    name: build_renderer(build_source(line), TemplateLimits(per_character=100))
    for name, line in LINES.items()
}


@st.composite
def build_conversations(draw: st.DrawFn) -> Conversation:
    messages = [say(role, draw(TEXTS)) for role in draw(ROLES)]
    kwargs = draw(st.sampled_from([None, None, '{"enable_thinking": false, "x": "<|im_end|>"}']))
    return of(
        *messages,
        tools=draw(st.sampled_from(TOOLS)),
        kwargs=kwargs,
        add_generation_prompt=draw(st.sampled_from([True, True, False])),
    )


def render(
    renderer: Renderer, conversation: Conversation, owner: str | None
) -> Rendered | tuple[str, str | None]:
    try:
        return renderer.render(conversation, now=NOW, cache_owner=owner)
    except RequestError as error:
        return error.message, error.param


def specialize(renderer: Renderer, conversation: Conversation, owner: str = "a") -> None:
    """Let conversations of this shape come as often as the renderer needs."""
    for _ in range(2):
        render(renderer, conversation, owner)


def render_known(
    renderer: Renderer, conversation: Conversation, now: datetime, owner: str
) -> Rendered | None:
    return renderer.specialized.render(
        conversation, now=now, tools=None, owner=owner, max_known=1000
    )


def is_specialized(renderer: Renderer, conversation: Conversation, owner: str = "a") -> bool:
    found = render_known(renderer, conversation, NOW, owner)
    assert found is None or found == render(renderer, conversation, None)
    return found is not None


@pytest.mark.parametrize("name", RENDERERS)
@given(conversations=st.lists(build_conversations(), min_size=1, max_size=4))
def test_specialized_prompt_equals_rendered(name: str, conversations: list[Conversation]) -> None:
    renderer = RENDERERS[name]
    for conversation in conversations:
        expected = render(renderer, conversation, None)
        for _ in range(3):
            assert render(renderer, conversation, "a") == expected


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(conversations=st.lists(build_conversations(), min_size=1, max_size=4))
def test_specialized_prompt_same_ids_in_all_tokenizers(
    kind: str, conversations: list[Conversation]
) -> None:
    renderer = Renderer(ChatTemplate(SOURCES["embedded"], TOKENS), TOKENIZERS[kind])
    for conversation in conversations:
        expected = render(renderer, conversation, None)
        assert render(renderer, conversation, "a") == expected


@pytest.mark.parametrize("name", [*SOURCES, *INDEPENDENT])
def test_renderer_known_shape_needs_no_template(name: str) -> None:
    renderer = RENDERERS[name]
    roles = (Role.USER, Role.ASSISTANT, Role.USER)
    first = of(*[say(role, f"x{i}") for i, role in enumerate(roles)])
    second = of(*[say(role, f" x <|im_end|> {i}") for i, role in enumerate(roles)])
    specialize(renderer, first, "known shape")
    assert is_specialized(renderer, second, "known shape")


@pytest.mark.parametrize("name", DEPENDENT)
def test_renderer_dependent_template_renders_each_time(name: str) -> None:
    renderer = RENDERERS[name]
    conversation = of(say(Role.USER, "Hello"), say(Role.USER, "there"))
    specialize(renderer, conversation)
    assert not is_specialized(renderer, conversation)


def test_renderer_first_of_shape_is_rendered() -> None:
    renderer = build_renderer(SOURCES["chatml"])
    conversation = of(say(Role.USER, "Hello"))
    render(renderer, conversation, "a")
    assert not is_specialized(renderer, conversation)
    render(renderer, conversation, "a")
    assert is_specialized(renderer, conversation)


def test_renderer_shapes_of_other_owners_not_used() -> None:
    renderer = build_renderer(SOURCES["chatml"])
    conversation = of(SYSTEM, say(Role.USER, "Hello"))
    specialize(renderer, conversation)
    assert is_specialized(renderer, conversation, "a")
    assert not is_specialized(renderer, conversation, "b")


@pytest.mark.parametrize(
    "other",
    [
        of(say(Role.USER, "a"), tools=(WEATHER,)),
        of(say(Role.USER, "a"), kwargs='{"enable_thinking": true}'),
        of(say(Role.USER, "a"), add_generation_prompt=False),
        Conversation((say(Role.USER, "a"),), reasoning=ReasoningOptions(enabled=False)),
        of(say(Role.SYSTEM, "a")),
        of(Message(Role.USER, (Text("a"),), "Ann")),
        of(Message(Role.USER, (Text("a"), Text("b")))),
        of(Message(Role.USER, ())),
        of(say(Role.USER, " \n")),
        of(say(Role.USER, "a" * 1001)),
    ],
)
def test_renderer_other_shape_is_rendered(other: Conversation) -> None:
    renderer = build_renderer(SOURCES["qwen3"])
    specialize(renderer, of(say(Role.USER, "Hello")))
    assert not is_specialized(renderer, other)
    assert render(renderer, other, "a") == render(renderer, other, None)


@pytest.mark.parametrize("effort", ["\ufdd0", "\ufdd1", "\ud800", "<|im_end|>"])
def test_renderer_any_reasoning_effort_as_template(effort: str) -> None:
    renderer = build_renderer(build_source("{{ m.content }}{{ reasoning_effort }}"))
    conversation = Conversation(
        (say(Role.USER, "Hello"),), reasoning=ReasoningOptions(effort=effort)
    )
    specialize(renderer, conversation)
    assert render(renderer, conversation, "a") == render(renderer, conversation, None)


def test_renderer_guard_violated_renders_text() -> None:
    renderer = RENDERERS["guards"]
    specialize(renderer, of(say(Role.USER, "Hello")))
    assert is_specialized(renderer, of(say(Role.USER, "there")))
    assert not is_specialized(renderer, of(say(Role.USER, "about")))


def test_renderer_new_date_specializes_again() -> None:
    renderer = build_renderer(SOURCES["llama3"])
    conversation = of(say(Role.USER, "Hello"))
    specialize(renderer, conversation)
    for days in (0, 0, 1, 1):
        now = NOW + timedelta(days=days)
        found = renderer.render(conversation, now=now, cache_owner="a")
        assert now.strftime("%d %b %Y") in found.text
        assert render_known(renderer, conversation, now, "a") == found


def test_renderer_template_near_its_budget_not_specialized() -> None:
    line = "{% set c = m.content %}" + "{% set c = c + '' %}" * 8 + "{{ c }}"
    conversation = of(say(Role.USER, "Hello"))
    for per_character, expected in ((100, True), (4, False)):
        renderer = build_renderer(build_source(line), TemplateLimits(per_character=per_character))
        specialize(renderer, conversation)
        assert is_specialized(renderer, conversation) is expected


def test_renderer_prompt_too_large_to_keep_keeps_shape() -> None:
    renderer = build_renderer(SOURCES["qwen3"])
    tool = FunctionTool("f", "a " * (MAX_CACHED_CHARS // 3))
    conversation = of(say(Role.USER, "Hello"), tools=(tool,))
    render(renderer, conversation, "a")
    size_of_shape = renderer.specialized.n_chars
    render(renderer, conversation, "a")
    # Not a new shape again, which the next conversation would specialize in vain.
    assert renderer.specialized.n_chars == size_of_shape > 0


def test_renderer_controls_with_white_space_not_specialized() -> None:
    names = ("<|im_start|>", "\n<|im_start|>", "<|im_end|>", "<|im_end|>\n")
    tokenizer = vocabularies.build_tokenizer(vocabularies.byte_level_data(names))
    renderer = Renderer(ChatTemplate(build_source("{{ m.content }}")), tokenizer)
    specialize(renderer, of(say(Role.USER, "Hello"), say(Role.USER, "there")))
    for text in ("Hello", "\nHello", "Hello\n"):
        conversation = of(say(Role.USER, "Hello"), say(Role.USER, text))
        assert render(renderer, conversation, "a") == render(renderer, conversation, None)
