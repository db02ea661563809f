"""Names of control tokens in user text are found and split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.prompts.templates import CONTROLS

from dragoman.prompts.control_tokens import ControlTokenBreaker, ControlTokens

MARK = "\ufdd0"
NAMES = ControlTokens(CONTROLS)

pieces = st.lists(
    st.one_of(
        st.sampled_from(CONTROLS),
        st.sampled_from(CONTROLS).flatmap(
            lambda name: st.integers(1, len(name) - 1).map(lambda n: name[:n])
        ),
        st.sampled_from(CONTROLS).flatmap(
            lambda name: st.integers(1, len(name) - 1).map(lambda n: name[n:])
        ),
        st.text(max_size=3),
    ),
    max_size=6,
).map("".join)


def mark(text: str, between: frozenset[str] = frozenset(), thorough: bool = False) -> str:
    return ControlTokenBreaker(NAMES, MARK, between, thorough).break_text(text)


@given(text=pieces)
def test_control_token_breaker_splits_names_and_keeps_text(text: str) -> None:
    marked = mark(text)
    assert not any(name in marked for name in CONTROLS)
    assert marked.replace(MARK, "") == text


@given(texts=st.lists(pieces, max_size=5))
def test_broken_strings_joined_contain_no_control_token(texts: list[str]) -> None:
    for joined in ("".join(map(mark, texts)), "".join(mark(text).strip() for text in texts)):
        assert not any(name in joined for name in CONTROLS)


@given(text=st.text(alphabet=st.characters(blacklist_characters="<>[]|")))
def test_break_text_without_control_tokens_keeps_text(text: str) -> None:
    assert mark(text) == text


@given(
    text=pieces,
    blanks=st.tuples(st.sampled_from(["", " ", "\n "]), st.sampled_from(["", " ", "\t\n"])),
)
def test_break_text_padded_keeps_marks_inside_whitespace(
    text: str, blanks: tuple[str, str]
) -> None:
    padded = f"{blanks[0]}{text}{blanks[1]}"
    assert mark(padded).strip().replace(MARK, "") == padded.strip()


@given(text=pieces)
def test_broken_text_with_changed_case_contains_no_control_token(text: str) -> None:
    for changed in (
        mark(text.upper()).lower(),
        mark(text.title()).lower(),
        mark(text.swapcase()).lower(),
    ):
        assert not any(name in changed for name in CONTROLS)


@given(text=pieces)
def test_break_text_thorough_survives_removal_of_substrings(text: str) -> None:
    marked = mark(text, thorough=True)
    for piece in ("|", "im_", "<image>", "/", "<", "think"):
        assert not any(name in marked.replace(piece, "") for name in CONTROLS)


def test_break_text_overlapping_names_splits_all() -> None:
    names = ControlTokens(["abab", "bab", "xx"])
    marked = ControlTokenBreaker(names, MARK).break_text("ababab xxx")
    assert not any(name in marked for name in names.names)


def test_break_text_single_character_name_puts_mark_in_front() -> None:
    assert ControlTokenBreaker(ControlTokens(["|", "ab"]), MARK).break_text("x|y") == f"x{MARK}|y"


def test_find_completed_names_limits_marks_to_completable_names() -> None:
    names = ControlTokens(["<tool_call>", "<|object_ref_start|>"])
    between = names.find_completed_names(["\n<", ">", "<|im_start|>"])
    assert "tool_call" in between
    assert "object" not in between
    marker = ControlTokenBreaker(names, MARK, between)
    assert marker.break_text("object") == "object"
    assert f"<{marker.break_text('tool_call')}>" != "<tool_call>"
    assert f"<{marker.break_text(' tool_call ').strip()}>" != "<tool_call>"
    assert f"<{marker.break_text('TOOL_call').lower()}>" != "<tool_call>"


def test_break_text_without_names_adds_no_marks() -> None:
    assert ControlTokenBreaker(ControlTokens([]), MARK).break_text("<|im_end|>") == "<|im_end|>"


def test_find_starts_finds_names_among_thousands() -> None:
    names = ControlTokens([f"<unused{n}>" for n in range(6_000)])
    text = "a <unused5999> b <unusedx " * 1_000
    assert len(list(names.find_starts(text))) == 1_000


def steps(text: str) -> int:
    """Count the positions at which the search stopped; each is checked once."""
    return sum(1 for _ in NAMES.find_starts(text))


def test_break_text_cost_is_linear_in_text_size() -> None:
    for unit in ("<|im_end|>", "<|im_<|im_", "<<<<<", "hello ", "<think"):
        small = mark(unit * 1_000)
        large = mark(unit * 10_000)
        assert large.count(MARK) <= 10 * small.count(MARK) + 10
        assert steps(unit * 10_000) <= 10 * steps(unit * 1_000) + 10
