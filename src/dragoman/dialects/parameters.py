"""The table of all parameters of all dialects, for the docs."""

from __future__ import annotations

from .anthropic.parameters import COUNT_TOKENS, MESSAGES
from .chat.parameters import CHAT
from .completions.parameters import COMPLETIONS
from .responses.parameters import RESPONSES
from .support import Support
from .tokenize.parameters import DETOKENIZE, TOKENIZE

SUPPORT: tuple[Support, ...] = (
    *CHAT.rows,
    *COMPLETIONS.rows,
    *RESPONSES.rows,
    *MESSAGES.rows,
    *COUNT_TOKENS.rows,
    *TOKENIZE.rows,
    *DETOKENIZE.rows,
)
