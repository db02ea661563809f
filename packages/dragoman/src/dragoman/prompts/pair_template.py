"""The text that a generative reranker reads for a query and a document.

The texts are untrusted: names of control tokens in them are plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.errors import RequestError
from ..core.json_types import JsonObject, JsonValue
from .control_tokens import ControlTokenBreaker
from .hf_tokenizer import HfTokenizer
from .unused_chars import choose_unused_chars

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

_PROBES = ("dragoman query", "dragoman document")
_QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class PairTemplate:
    """Writes pairs between fixed texts.

    prefix, separator, suffix: the texts before, between and after a query and a
        document.
    """

    def __init__(self, tokenizer: HfTokenizer, prefix: str, separator: str, suffix: str) -> None:
        self._tokenizer = tokenizer
        self._prefix = prefix
        self._separator = separator
        self._suffix = suffix
        self._completable = tokenizer.control_tokens.find_completed_names(
            (prefix, separator, suffix)
        )
        self._suffix_ids = tuple(tokenizer.encode(suffix, special=True))

    @property
    def suffix_size(self) -> int:
        """The tokens after a document."""
        return len(self._suffix_ids)

    def encode(self, query: str, document: str, max_tokens: int | None) -> tuple[int, ...]:
        """Encode a pair.

        max_tokens: cuts the end of the document; None cuts nothing.

        Raises:
            RequestError: a text is not valid Unicode.
        """
        mark = choose_unused_chars(
            "".join((query, document, self._prefix, self._suffix))
        ).break_char
        breaker = ControlTokenBreaker(self._tokenizer.control_tokens, mark, self._completable)
        text = "".join(
            (
                self._prefix,
                breaker.break_text(query),
                self._separator,
                breaker.break_text(document),
            )
        )
        ids = tuple(self._tokenizer.encode_broken(text + self._suffix, mark))
        if max_tokens is None or len(ids) <= max_tokens:
            return ids
        body = self._tokenizer.encode_broken(text, mark)
        return (*body[: max_tokens - self.suffix_size], *self._suffix_ids)


def build_pair_template(
    tokenizer: HfTokenizer,
    template: ChatTemplate,
    *,
    prompt: str = "",
    options: Mapping[str, JsonValue],
    has_structured_messages: bool = False,
) -> PairTemplate | None:
    """Build the format of a chat template that knows the roles `query` and `document`, as
    sentence-transformers uses it; None if it does not write both.

    prompt: the system message; empty for none.
    options: further variables.
    has_structured_messages: whether messages have lists of parts instead of texts.
    """

    def write(text: str) -> JsonValue:
        return [{"type": "text", "text": text}] if has_structured_messages else text

    messages: list[JsonValue] = [{"role": "system", "content": write(prompt)}] if prompt else []
    for role, text in zip(("query", "document"), _PROBES, strict=True):
        messages.append({"role": role, "content": write(text)})
    variables: JsonObject = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": False,
        **options,
    }
    try:
        rendered = template.render(variables, now=datetime(2000, 1, 1))
    except RequestError:
        return None
    before, found, rest = rendered.partition(_PROBES[0])
    between, found_second, after = rest.partition(_PROBES[1])
    if not found or not found_second or any(probe in before + between + after for probe in _PROBES):
        return None
    return PairTemplate(tokenizer, before, between, after)


def build_qwen3_template(tokenizer: HfTokenizer, prompt: str) -> PairTemplate:
    """Build the format of Qwen3-Reranker (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B).

    prompt: the instruction; empty for the model's own.
    """
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        f"<|im_start|>user\n<Instruct>: {prompt or _QWEN3_INSTRUCTION}\n<Query>: "
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return PairTemplate(tokenizer, prefix, "\n<Document>: ", suffix)
