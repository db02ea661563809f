"""The tags of calls whose arguments stand between tags, and the patterns that find
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from .aho_corasick import AhoCorasick

CDATA_START = "<![CDATA["
CDATA_END = "]]>"
QUOTES = ('"', "'")
_MAX_SEARCHED_KEYS = 64
"""Maximum declared arguments whose key tags are searched for in values: the search is
built for every call.
"""


class TagSyntax(Struct, frozen=True):
    """The tags of a call syntax.

    name_suffix: follows the function's name.
    key_tag: precedes the name of an argument.
    key_end_tags: (text, kind) of each tag that may follow the name. The kind is True if
    the value is text, False if it is JSON, a JSON type, or None if the schema decides.
    value_end_tag: follows the value.
    end_tag: ends the call.
    value_tag: precedes the value; "" for none.
    line_break: white space after the name and every argument of enforced calls.
    tag_separator: white space between the two tags of an argument of enforced calls.
    value_padding: white space on both sides of a value of enforced calls. If set, a
    newline there is never part of the value.
    more_key_end_tags: also read after a name, but not enforced.
    has_unmistakable_tags: the next tag ends a value without an end tag, even in the
        middle of a line.
    untyped_is_text: a value whose type the schema does not define is a string, even if
        it is valid JSON.
    has_escaped_names: names are written with `&quot;` and `&amp;`.
    number_suffix: follows the call's number, which then follows `name_suffix`; "" for
        calls without a number.
    has_cdata: values may be enclosed in `<![CDATA[` and `]]>`.
    spliced_keys: keys under which models write one object of all arguments (as in
    vLLM), unless the tool declares an argument of that name.
    """

    name_suffix: str
    key_tag: str
    key_end_tags: tuple[tuple[str, bool | str | None], ...]
    value_end_tag: str
    end_tag: str
    value_tag: str = ""
    line_break: str = "\n"
    tag_separator: str = ""
    value_padding: str = ""
    more_key_end_tags: tuple[str, ...] = ()
    has_unmistakable_tags: bool = False
    untyped_is_text: bool = False
    has_escaped_names: bool = False
    number_suffix: str = ""
    has_cdata: bool = False
    spliced_keys: tuple[str, ...] = ()


class TagPatterns:
    """The patterns of a syntax; immutable, and shared by all calls.

    openers, closers: delimiters, which also end a call without its end tag.
    """

    def __init__(
        self, syntax: TagSyntax, openers: tuple[str, ...], closers: tuple[str, ...]
    ) -> None:
        self.syntax = syntax
        self.openers = openers
        # A quote after a tag belongs to the name: models confuse the two kinds, and
        # leave them out.
        self.key_mark = syntax.key_tag.removesuffix('"')
        self.call_ends = tuple(dict.fromkeys((syntax.end_tag, *closers, *openers)))
        self.next_tags = (self.key_mark, *self.call_ends)
        """What may follow an argument."""
        self.between = AhoCorasick(self.next_tags)
        kinds = {
            **{text: is_text_kind(kind) for text, kind in syntax.key_end_tags},
            **dict.fromkeys(syntax.more_key_end_tags),
        }
        self.key_end_tags = kinds
        bare = {text.removeprefix('"'): kind for text, kind in kinds.items()}
        self.key_kinds = {
            quote: {
                quote + spelling: kind
                for text, kind in bare.items()
                for spelling in (text, text.replace('"', "'"))
            }
            for quote in ("", *QUOTES)
        }
        """By the quote before a name: the tags that may follow it, with their kinds."""
        breaks = (*self.next_tags, syntax.value_end_tag, syntax.value_tag or "\n")
        self.key_patterns = {
            quote: AhoCorasick(list(dict.fromkeys((*ends, *breaks))))
            for quote, ends in self.key_kinds.items()
        }
        next_tags = ("\n" + self.key_mark, "\n" + syntax.end_tag)
        if syntax.has_unmistakable_tags:
            next_tags = (*next_tags, self.key_mark, syntax.end_tag)
        value_ends = (syntax.value_end_tag, syntax.value_padding + syntax.value_end_tag)
        # If a model forgets the closing tag, the value ends at the next tag. Where that
        # tag could also be part of a value, it must begin a line.
        self.value_ends = frozenset((*value_ends, *next_tags))
        # These end it only before another tag.
        padded_ends = (syntax.value_padding + end for end in self.call_ends)
        self._value_texts = (*self.value_ends, *self.call_ends, *padded_ends)
        self.cdata_patterns = AhoCorasick([CDATA_END + end for end in value_ends])
        self.forbidden_in_values = (*next_tags, syntax.value_end_tag)

    def build_value_patterns(self, names: Collection[str]) -> AhoCorasick:
        """Build the search for the end of a value.

        names: the declared arguments. The key tag of one, with the value's tag if there
            is one, ends a value without an end tag even in the middle of a line, where
            any other is more likely to be text.
        """
        keys = () if len(names) > _MAX_SEARCHED_KEYS else self._spell_keys(names)
        return AhoCorasick(list(dict.fromkeys((*self._value_texts, *keys))))

    def _spell_keys(self, names: Collection[str]) -> Iterator[str]:
        value_tag = self.syntax.value_tag
        value_starts = {value_tag, self.syntax.tag_separator + value_tag} if value_tag else {""}
        for name in names:
            written = escape_name(name) if self.syntax.has_escaped_names else name
            for quote in QUOTES if self.syntax.key_tag != self.key_mark else ("",):
                yield from (
                    self.key_mark + quote + written + end + start
                    for end in self.key_kinds[quote]
                    for start in value_starts
                )


def is_text_kind(kind: bool | str | None) -> bool | None:
    return kind == "string" if isinstance(kind, str) else kind


def escape_name(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;")


def unescape_name(name: str) -> str:
    return name.replace("&quot;", '"').replace("&amp;", "&")
