"""All control tokens of a family's calls and reasoning reach the parsers, even if
several tokens share a marker.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.parsers.goldens import golden

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.core.syntax import ReasoningFormat
from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.parsers import registry
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.reasoning_families import REASONING_FAMILIES
from dragoman.pipeline.detokenizer import Vocabulary
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.output_formats import OutputFormats
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

CALLS = {family.names[0]: golden(family.names[0]) for family in CALL_FAMILIES}
THOUGHTS = {
    family.names[0]: golden(f"reasoning/{family.names[0]}") for family in REASONING_FAMILIES
}
CONTROL = re.compile(r'<[|\uff5c][^<>|\uff5c\s]*[|\uff5c]?>|<[a-z_]+\|>|<\|"\|>')


@pytest.fixture(scope="module")
def knowing() -> ServedModel:
    """Return the embedded model with a tokenizer that has every control token of the
    transcripts.
    """
    (model,) = build_models(Settings(), SystemClock())
    backend = model.backend
    assert isinstance(backend, TokenBackend)
    data = json.loads((tiny.find_bundled_model() / "tokenizer.json").read_bytes())
    known = {token["content"] for token in data["added_tokens"]}
    cases = [case for found in (*CALLS.values(), *THOUGHTS.values()) for case in found]
    controls = sorted({token for case in cases for token in CONTROL.findall(case.raw)} - known)
    first = 1 + max(
        *data["model"]["vocab"].values(), *(token["id"] for token in data["added_tokens"])
    )
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] += [
        {"id": first + n, "content": text, "special": True, **flags}
        for n, text in enumerate(controls)
    ]
    tokenizer = HfTokenizer(json.dumps(data))
    vocabulary = Vocabulary(tokenizer)
    compiler = BoundedCompiler(tokenizer, [0])
    return replace(
        model,
        backend=TokenBackend(
            backend.engine, tokenizer, vocabulary, compiler, frozenset({0}), backend.renderer
        ),
    )


def find_controls(model: ServedModel, texts: list[str]) -> frozenset[int]:
    assert isinstance(model.backend, TokenBackend)
    special = model.backend.tokenizer.special_tokens
    return frozenset(special[token] for text in texts for token in CONTROL.findall(text))


@pytest.mark.parametrize("name", CALLS)
def test_tool_format_control_tokens_reach_parser(knowing: ServedModel, name: str):
    format = registry.find_tool_format(name)
    assert format is not None
    found = replace(knowing, formats=OutputFormats(tools=format))
    controls = find_controls(knowing, [case.raw for case in CALLS[name]])
    assert controls <= found.parser_tokens.markers


@pytest.mark.parametrize("name", THOUGHTS)
def test_reasoning_format_control_tokens_reach_parser(knowing: ServedModel, name: str):
    format: ReasoningFormat | None = registry.find_reasoning_format(name)
    found = replace(knowing, formats=OutputFormats(reasoning=format))
    assert (
        find_controls(knowing, [case.raw for case in THOUGHTS[name]]) <= found.parser_tokens.markers
    )
