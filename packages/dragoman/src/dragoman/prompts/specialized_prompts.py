"""Renders conversations by what the template did with others of the same shape."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
from msgspec import Struct

from ..core.message import Role, Text, Tool
from ..core.request import Conversation, ReasoningOptions, TemplateOptions
from ..core.sized_cache import SizedCache
from .control_tokens import ControlTokenBreaker
from .hf_tokenizer import HfTokenizer
from .rendered import Rendered
from .specialized_prompt import SpecializedPrompt, build_specialized_prompt
from .template import GENERATION_MARK, Template
from .template_messages import MessageOptions, build_tool_values
from .template_specialization import NotSpecializable, Specializer
from .template_values import TemplateValues
from .unused_chars import USUAL_MARKS, may_have_usual_marks

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

Shape: TypeAlias = tuple[str, tuple[Role, ...], tuple[Tool, ...], TemplateOptions, ReasoningOptions]
"""What conversations have in common that differ in their texts alone: the owner, roles,
tools, and options.
"""
MAX_MESSAGES = 64
"""Maximum messages of a shape; longer conversations rarely have the shape of another."""
MAX_CACHED_CHARS = 1024 * 1024
"""The size of the cache, in characters of tools and prompts."""
ENTRY_CHARS = 1024
"""The overhead of an entry, in characters."""
MESSAGE_CHARS = 256
"""The overhead of a message, in characters."""


class _Entry(Struct, frozen=True):
    """What is known of a shape.

    prompt: None if nothing is, if the template depends on the texts, or if it is too
        large to be cached.
    is_new: one conversation of this shape has come.
    """

    prompt: SpecializedPrompt | None
    is_new: bool = False


class SpecializedPrompts:
    """The prompts of the latest shapes of conversations. Thread-safe.

    breaker: breaks texts with the usual marks.
    """

    def __init__(
        self,
        template: Template,
        tokenizer: HfTokenizer,
        message_options: MessageOptions,
        breaker: ControlTokenBreaker,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._message_options = message_options
        self._break_text = breaker.break_text
        self._is_possible = tokenizer.finds_controls_anywhere and not USUAL_MARKS.may_occur_in(
            template.source
        )
        self._entries: SizedCache[Shape, _Entry] = SizedCache(MAX_CACHED_CHARS)

    @property
    def n_chars(self) -> int:
        return self._entries.size

    def render(
        self,
        conversation: Conversation,
        *,
        now: datetime,
        tools: tuple[Tool, ...] | None,
        owner: str,
        max_known: int | None = None,
    ) -> Rendered | None:
        """Render a conversation if it is known what its template does with such texts.

        tools: see `Renderer.steps`.
        owner: whose conversations may be used.
        max_known: do only what takes little time, however large the tools are: render a
            conversation of at most so many characters if it has a known shape. If not
            set, the second conversation of a shape makes it known.

        Raises:
            RequestError: the conversation has invalid options.
        """
        if not self._is_possible:
            return None
        texts = self._read_texts(conversation)
        if texts is None or (max_known is not None and sum(map(len, texts)) > max_known):
            return None
        if tools is None:
            tools = conversation.tools
        roles = tuple([message.role for message in conversation.messages])
        shape = (owner, roles, tools, conversation.template, conversation.reasoning)
        entry = self._entries.find(shape)
        prompt = None if entry is None else entry.prompt
        if entry is None or entry.is_new or (prompt and prompt.dates and prompt.is_outdated(now)):
            if max_known is not None:
                return None
            try:
                # All texts of the shape.
                encoded = msgspec.json.encode(
                    (tools, conversation.template, conversation.reasoning)
                )
            except UnicodeEncodeError:
                return None
            # To specialize the template takes longer than to render it, and some shapes
            # never come again.
            if entry is not None:
                prompt = (
                    None
                    if may_have_usual_marks(encoded)
                    else self._specialize(conversation, shape, now, texts)
                )
            size = ENTRY_CHARS + len(roles) * MESSAGE_CHARS + len(encoded)
            cached_prompt = prompt
            if prompt is not None:
                if size + prompt.n_chars <= MAX_CACHED_CHARS:
                    size += prompt.n_chars
                else:
                    # The shape alone: otherwise every second conversation of it would
                    # count as new, and the others be specialized in vain.
                    cached_prompt = None
            self._entries.add(shape, _Entry(cached_prompt, is_new=entry is None), size)
        if prompt is None:
            return None
        return prompt.render([*map(self._break_text, texts)], self._tokenizer, owner)

    def _read_texts(self, conversation: Conversation) -> list[str] | None:
        """Return the text of each message, if they have nothing else."""
        messages = conversation.messages
        if (
            conversation.sampled_turns
            or conversation.template.continue_final_message
            or len(messages) > MAX_MESSAGES
        ):
            return None
        texts: list[str] = []
        for message in messages:
            parts = message.parts
            if len(parts) != 1 or type(part := parts[0]) is not Text or message.name is not None:
                return None
            text = part.text
            # Trimmed to nothing, a text would join what the template writes around it.
            if not text or text.isspace() or "\\u" in text:
                return None
            if not text.isascii() and USUAL_MARKS.may_occur_in(text):
                return None
            if message.role is Role.ASSISTANT:
                for marker in self._message_options.reasoning_markers:
                    if marker in text:
                        return None
            texts.append(text)
        return texts

    def _specialize(
        self, conversation: Conversation, shape: Shape, now: datetime, texts: list[str]
    ) -> SpecializedPrompt | None:
        owner, _, tools, options, _ = shape
        template = cast("ChatTemplate", self._template)
        features = template.features
        generate = options.add_generation_prompt
        if generate and features.reads_generation and not features.marks_generation:
            return None
        values = TemplateValues(template, self._message_options, conversation, tools)
        specializer = Specializer(texts, [*map(self._break_text, texts)])
        try:
            variables = values.build_all(
                self._break_text, build_tool_values(tools, self._break_text), specializer.visit
            )
        except NotSpecializable:
            return None
        variables["add_generation_prompt"] = generate
        if generate:
            variables[GENERATION_MARK] = USUAL_MARKS.marker_char
        specialization = template.specialize(
            specializer,
            variables,
            now=now,
            characters=len(msgspec.json.encode(conversation)),
        )
        if specialization is None:
            return None
        return build_specialized_prompt(
            specialization,
            self._tokenizer,
            owner,
            has_tail=generate,
            marks_generation=generate and features.marks_generation,
            ignored_options=values.ignored_options,
        )
