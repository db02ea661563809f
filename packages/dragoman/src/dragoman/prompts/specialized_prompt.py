"""The prompts of conversations of one shape: all but their texts is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from .rendered import Rendered, cut_tail
from .template_specialization import Guard, Parts, Slot, Specialization, build_text
from .unused_chars import USUAL_MARKS, escape_char

if TYPE_CHECKING:
    from .hf_tokenizer import HfTokenizer

_BREAK = USUAL_MARKS.break_char
_ESCAPED_BREAK = escape_char(_BREAK)


class SpecializedPrompt(Struct, frozen=True):
    """The prompt of a shape.

    guards, dates: see `Specialization`.
    text: what the template writes, with break characters in its literals.
    tail: see `Rendered`; None if it is not known where it begins.
    layout: token ids, with None in the place of each piece.
    pieces: what stands between control tokens, if texts are in it.
    """

    guards: tuple[Guard, ...]
    dates: tuple[tuple[str, str], ...]
    text: Parts
    tail: str | None
    layout: tuple[tuple[int, ...] | None, ...]
    pieces: tuple[Parts, ...]
    ignored_options: tuple[str, ...]

    def is_outdated(self, now: datetime) -> bool:
        return any([now.strftime(format) != text for format, text in self.dates])

    @property
    def n_chars(self) -> int:
        """The size of the text and of the guards' texts, as their parts."""
        texts = (self.text, *(guard.parts for guard in self.guards))
        return sum(len(part) if isinstance(part, str) else 1 for parts in texts for part in parts)

    def render(self, texts: Sequence[str], tokenizer: HfTokenizer, owner: str) -> Rendered | None:
        """Return the prompt with these texts, whose control tokens are broken; None if
        the template would write something else.

        owner: see `HfTokenizer.encode_broken`.
        """
        if self.guards and not all([guard.holds(texts) for guard in self.guards]):
            return None
        text = build_text(self.text, texts)
        # A text could complete half an escape beside it.
        if _ESCAPED_BREAK in text:
            return None
        layout = self.layout
        pieces = [build_text(parts, texts).replace(_BREAK, "") for parts in self.pieces]
        encoded = iter(
            tokenizer.encode_pieces(
                pieces, begins=bool(layout) and layout[0] is None, cache_owner=owner
            )
        )
        ids: list[int] = []
        for known_ids in layout:
            ids += next(encoded) if known_ids is None else known_ids
        tail = cut_tail(text).replace(_BREAK, "") if self.tail is None else self.tail
        return Rendered(text.replace(_BREAK, ""), tuple(ids), tail, self.ignored_options)


def build_specialized_prompt(
    specialization: Specialization,
    tokenizer: HfTokenizer,
    owner: str,
    *,
    has_tail: bool,
    marks_generation: bool,
    ignored_options: tuple[str, ...],
) -> SpecializedPrompt | None:
    """Build the prompt from what its template writes; None if literals and texts could
    have a meaning together.

    owner: see `HfTokenizer.encode_broken`.
    has_tail: the assistant's turn starts.
    marks_generation: the template has marked where.
    """
    mark_char = USUAL_MARKS.marker_char
    parts = [
        part.replace(_ESCAPED_BREAK, _BREAK) if isinstance(part, str) else part
        for part in specialization.parts
    ]
    tail = None if has_tail else ""
    if marks_generation:
        last = parts.pop() if parts else ""
        if not isinstance(last, str) or mark_char not in last:
            return None
        before, _, tail = last.rpartition(mark_char)
        if not tail:
            return None
        parts.append(before + tail)
    layout, pieces = _split_at_controls(parts, tokenizer)
    next_piece = iter(pieces)
    known: list[tuple[int, ...] | None] = []
    open_pieces: list[Parts] = []
    for number, id in enumerate(layout):
        ids: Sequence[int] = (id,)
        if id == -1:
            piece = next(next_piece)
            if not all(isinstance(part, str) for part in piece):
                open_pieces.append(_remove_char(piece, _BREAK))
                known.append(None)
                continue
            text = build_text(piece, ()).replace(_BREAK, "")
            [ids] = tokenizer.encode_pieces([text], begins=number == 0, cache_owner=owner)
        if known and (last_ids := known[-1]) is not None:
            known[-1] = (*last_ids, *ids)
        else:
            known.append(tuple(ids))
    return SpecializedPrompt(
        specialization.guards,
        specialization.dates,
        tuple(parts),
        tail and tail.replace(_BREAK, ""),
        tuple(known),
        tuple(open_pieces),
        ignored_options,
    )


def _split_at_controls(
    parts: Sequence[str | Slot], tokenizer: HfTokenizer
) -> tuple[list[int], list[list[str | Slot]]]:
    """Return the ids of the control tokens, with -1 in the place of each piece, and the
    pieces.

    All control tokens are in literals: those in texts are broken, and so are texts that
    would form one with a literal.
    """
    layout: list[int] = []
    pieces: list[list[str | Slot]] = []
    # The piece since the last control token.
    piece: list[str | Slot] = []
    for part in parts:
        if not isinstance(part, str):
            piece.append(part)
            continue
        done = 0
        for start, end, id in tokenizer.find_control_spans(part):
            if start > done:
                piece.append(part[done:start])
            if piece:
                layout.append(-1)
                pieces.append(piece)
                piece = []
            layout.append(id)
            done = end
        if done < len(part):
            piece.append(part[done:])
    if piece:
        layout.append(-1)
        pieces.append(piece)
    return layout, pieces


def _remove_char(parts: Sequence[str | Slot], char: str) -> Parts:
    return tuple([part.replace(char, "") if isinstance(part, str) else part for part in parts])
