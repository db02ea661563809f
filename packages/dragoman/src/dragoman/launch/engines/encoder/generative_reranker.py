"""How a generative reranker reads a pair, and from which tokens its score is computed.

Its files say so in one of three forms: a LogitScore module of sentence-transformers,
`classifier_from_token` of vLLM in config.json, or nothing but the class of a causal
model, whose answers are then `yes` and `no`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from ....core.errors import EngineError
from ....engines.sentence_modules import LogitScore, RerankerConfig, decode_file, read_reranker
from ....prompts.chat_template import ChatTemplate
from ....prompts.hf_tokenizer import HfTokenizer
from ....prompts.pair_template import PairTemplate, build_pair_template, build_qwen3_template

_ANSWERS = ("no", "yes")
"""The default of sentence-transformers: of an irrelevant document, of a relevant one."""


class _Config(Struct):
    model_type: str = ""
    classifier_from_token: list[str] | None = None


class GenerativeReranker(Struct, frozen=True):
    """A generative reranker's declaration.

    config: with the tokens of a score.
    template: None if pairs are encoded with the tokenizer's special tokens.
    query_prompt: put before every query if there is no template.
    """

    config: RerankerConfig
    template: PairTemplate | None
    query_prompt: str


def read_generative_reranker(
    directory: Path, tokenizer: HfTokenizer, chat_template: ChatTemplate | None
) -> GenerativeReranker:
    """Read the declaration. Raises EngineError."""
    config = decode_file(directory / "config.json", _Config)
    reranker = read_reranker(directory)
    if reranker.logits is None:
        if reranker.uses_template is not None:
            raise EngineError(
                f"{directory / 'modules.json'}: a causal model needs the module LogitScore to "
                f"score pairs"
            )
        answers = config.classifier_from_token or _ANSWERS
        logits = _find_answers(directory, tokenizer, tuple(answers))
        reranker = msgspec.structs.replace(reranker, logits=logits)
    template = None
    if chat_template is not None and reranker.uses_template is not False:
        template = build_pair_template(
            tokenizer,
            chat_template,
            prompt=reranker.prompt,
            options=reranker.template_options,
            has_structured_messages=reranker.has_structured_messages,
        )
    if template is None and reranker.uses_template:
        raise EngineError(
            f"{directory}: the chat template does not write messages of the roles query and "
            f"document, which modality_config.message requires; set one with --chat-template"
        )
    if template is None and reranker.uses_template is None and config.model_type == "qwen3":
        template = build_qwen3_template(tokenizer, reranker.prompt)
    return GenerativeReranker(reranker, template, "" if template else reranker.prompt)


def _find_answers(directory: Path, tokenizer: HfTokenizer, answers: tuple[str, ...]) -> LogitScore:
    """Find the tokens of the answers: one of a relevant document, or those of an
    irrelevant and a relevant one.
    """
    if len(answers) not in (1, 2):
        raise EngineError(
            f"{directory}: classifier_from_token must name one token, or two (of an irrelevant and "
            f"a relevant document), not {len(answers)}"
        )
    ids = [tokenizer.find_id(answer) for answer in answers]
    for answer, id in zip(answers, ids, strict=True):
        if id is None:
            raise EngineError(
                f"{directory}: {answer!r} is not a token, so it cannot be the answer of a reranker"
            )
    true_id = ids[-1]
    assert true_id is not None
    return LogitScore(true_id, ids[0] if len(ids) == 2 else None)
