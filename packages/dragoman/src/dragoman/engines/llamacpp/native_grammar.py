"""Grammars for llama.cpp: every end token of the vocabulary may follow a complete
answer.

llguidance in llama.cpp has a single end token, which llama.cpp guesses from names if
the file declares none. A model that ends its turns with another token could never stop,
so the grammar itself allows all end tokens.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable

from .wire import CompletionBody

_HEADER = "%llguidance"


_LEXEME = re.compile(
    r'//[^\n]*|#[^\n]*|"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|<[^<>\s]*>|[{}]|(?<![\w%@-])start(?![\w-])'
)
"""Matches comments, strings, regular expressions, special tokens, braces, and the name
of the first rule, `start`.

Comments, strings, expressions and tokens are matched so that braces and `start` within
them are skipped.
"""


_TRIAL_GRAMMAR = 'start: "x"?'


_FORCING_BIAS = 200.0


def build_native_grammar(grammar: str, end_tokens: Iterable[int]) -> str:
    """Build the grammar that llama.cpp applies; empty if it cannot, because it accepts
    only a single Lark grammar.

    grammar: in llguidance's syntax.
    end_tokens: ids, at least one.
    """
    if not grammar or grammar.startswith("{"):
        return ""
    # The new name of the first rule must not be one that the grammar uses.
    body = "answer_body"
    while body in grammar:
        body += "_"
    # Schemas, and grammars with their own `start`, are nested in braces.
    depth = 0

    def rename_start(match: re.Match[str]) -> str:
        nonlocal depth
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        return body if match[0] == "start" and depth == 0 else match[0]

    header = "" if grammar.startswith(_HEADER) else f"{_HEADER} {{}}\n"
    ids = ",".join(map(str, sorted(end_tokens)))
    return f"{header}{_LEXEME.sub(rename_start, grammar)}\nstart: {body} (<[{ids}]>)?\n"


async def find_impossible_end(
    end_tokens: Iterable[int],
    slot: int,
    complete: Callable[[CompletionBody], Awaitable[tuple[int, ...]]],
) -> int | None:
    """Find an end token that llama.cpp does not sample at the end of a grammar. None if
    it samples all.

    slot: a free one, whose contents are lost.
    complete: returns the tokens of a completion; none if llama.cpp rejects it.
    """
    ids = sorted(end_tokens)
    grammar = build_native_grammar(_TRIAL_GRAMMAR, ids)
    for id in ids:
        body = CompletionBody(
            prompt=(id,),
            n_predict=1,
            id_slot=slot,
            stream=False,
            cache_prompt=False,
            temperature=0.0,
            seed=0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repeat_penalty=1.0,
            repeat_last_n=0,
            return_tokens=True,
            logit_bias=((id, _FORCING_BIAS),),
            grammar=grammar,
        )
        if await complete(body) != (id,):
            return id
    return None
