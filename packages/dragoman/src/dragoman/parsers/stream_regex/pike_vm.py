"""Search of a stream for several patterns at once, reading each character once (a Pike
VM).

The leftmost match wins. Among matches that begin together the longest wins, and among
equally long ones the pattern that is listed first. Within one pattern, greedy and lazy
quantifiers mean the same as in Python's `re`. See
https://swtch.com/~rsc/regexp/regexp2.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from .pattern import (
    AlternationNode,
    CaptureGroupNode,
    CharClass,
    ConcatenationNode,
    EndAnchor,
    Node,
    RepetitionNode,
    StartAnchor,
    UnsupportedPattern,
    find_literals,
)

MAX_INSTRUCTIONS = 5000
MAX_PATHS = 30_000
"""Maximum number of the program's paths without input. `a?` a thousand times has half a
million: each instruction reaches all later ones.
"""
MAX_STABLE_PATTERNS = 256
"""Maximum number of sets of threads whose stable pattern is cached. A hostile text can
cause any number of sets.
"""
MAX_STABLE_THREADS = 64
"""Maximum number of threads for which a stable pattern is searched."""

EpsilonPath = tuple[int, tuple[int, ...]]
"""An instruction that is reachable without input, and the group slots saved on the
path.
"""


class CharOp(Struct, frozen=True):
    """Read one character.

    source: regular expression of the characters that match.
    is_any: any character matches.
    """

    source: str
    is_any: bool


class SplitOp(Struct):
    """Continue at each target; the first is preferred."""

    targets: list[int]


class SaveOp(Struct, frozen=True):
    """Save a group boundary: even slots start a group, the next odd slot ends it."""

    slot: int


class AssertOp(Struct, frozen=True):
    """Assert the start of the response, or its end."""

    is_start: bool


class MatchOp(Struct, frozen=True):
    """The pattern of this index matches."""

    pattern: int


Instruction = CharOp | SplitOp | SaveOp | AssertOp | MatchOp
ANY_CHAR = r"[\s\S]"


class Program:
    """Several patterns compiled into one program, which `PatternSearch` executes.
    Immutable.
    """

    def __init__(self, patterns: Sequence[Node]) -> None:
        self.literals = tuple(text for node in patterns for text in find_literals(node))
        """The fixed texts in the patterns."""
        self.code: list[Instruction] = []
        self.groups: list[str] = []
        """The name of each group, by its number."""
        self.entry_points: list[int] = []
        self.pattern_indices: list[int] = []
        """Per instruction: the index of its pattern."""
        for number, node in enumerate(patterns):
            self.entry_points.append(len(self.code))
            self._compile(node)
            self.code.append(MatchOp(number))
            self.pattern_indices += [number] * (len(self.code) - len(self.pattern_indices))
        self.char_matchers = [
            re.compile(op.source, re.DOTALL).match if isinstance(op, CharOp) else None
            for op in self.code
        ]
        self.epsilon_paths: list[tuple[EpsilonPath, ...]] = []
        num_paths = 0
        for index in range(len(self.code)):
            self.epsilon_paths.append(tuple(self._follow_epsilon(index, at_start=False)))
            num_paths += len(self.epsilon_paths[-1])
            if num_paths > MAX_PATHS:
                raise UnsupportedPattern("the pattern has too many optional parts")
        self.initial_paths = [
            tuple(self._follow_epsilon(index, at_start=True)) for index in self.entry_points
        ]
        """Per pattern: the paths from its first instruction at the start of a response,
        where `^` matches.
        """
        first_ops = [
            self.code[target]
            for start in self.entry_points
            for target, _ in self.epsilon_paths[start]
        ]
        first_sources = [op.source for op in first_ops if isinstance(op, CharOp)]
        self.first_chars = re.compile("|".join(first_sources) or r"(?!)", re.DOTALL)
        """Matches any character with which a match can begin; `(?!)` never matches."""
        self._stable_patterns: dict[tuple[int, ...], re.Pattern[str] | None] = {}

    @property
    def num_cached(self) -> int:
        """The number of cached stable patterns."""
        return len(self._stable_patterns)

    def _compile(self, node: Node) -> None:
        if len(self.code) > MAX_INSTRUCTIONS:
            raise UnsupportedPattern("the pattern is too large")
        match node:
            case CharClass(source):
                self.code.append(CharOp(source, source == ANY_CHAR))
            case ConcatenationNode(items):
                for item in items:
                    self._compile(item)
            case AlternationNode(options):
                self._compile_alternation(options)
            case RepetitionNode(item, min_count, max_count, is_lazy):
                self._compile_repetition(item, min_count, max_count, is_lazy)
            case CaptureGroupNode(name, item) if name is None:
                self._compile(item)
            case CaptureGroupNode(name, item):
                assert name is not None
                if (
                    name not in self.groups
                ):  # A counted repetition compiles its groups more than once.
                    self.groups.append(name)
                slot = 2 * self.groups.index(name)
                self.code.append(SaveOp(slot))
                self._compile(item)
                self.code.append(SaveOp(slot + 1))
            case StartAnchor() | EndAnchor():
                self.code.append(AssertOp(isinstance(node, StartAnchor)))

    def _compile_alternation(self, options: Sequence[Node]) -> None:
        split = SplitOp([])
        self.code.append(split)
        # Each option ends in a jump whose target, the end of the alternation, is known
        # only after the last option.
        exits: list[SplitOp] = []
        for option in options:
            split.targets.append(len(self.code))
            self._compile(option)
            exits.append(SplitOp([]))
            self.code.append(exits[-1])
        for exit_split in exits:
            exit_split.targets.append(len(self.code))

    def _compile_repetition(
        self, item: Node, min_count: int, max_count: int | None, is_lazy: bool
    ) -> None:
        for _ in range(min_count):
            self._compile(item)
        if max_count is None:
            loop = len(self.code)
            split = SplitOp([])
            self.code.append(split)
            self._compile(item)
            self.code.append(SplitOp([loop]))
            self._add_branches(split, loop + 1, is_lazy)
            return
        splits: list[tuple[SplitOp, int]] = []
        for _ in range(max_count - min_count):
            splits.append((SplitOp([]), len(self.code) + 1))
            self.code.append(splits[-1][0])
            self._compile(item)
        for split, body in splits:
            self._add_branches(split, body, is_lazy)

    def _add_branches(self, split: SplitOp, body: int, is_lazy: bool) -> None:
        exit_index = len(self.code)
        split.targets.extend([exit_index, body] if is_lazy else [body, exit_index])

    def _follow_epsilon(self, start: int, *, at_start: bool) -> Iterator[EpsilonPath]:
        """Yield the instructions that are reachable without input, preferred paths
        first.

        An end assertion is yielded too, as only `PatternSearch.close` can decide it.
        """
        stack: list[EpsilonPath] = [(start, ())]
        visited: set[int] = set()
        while stack:
            index, saves = stack.pop()
            if index in visited:
                continue
            visited.add(index)
            match self.code[index]:
                case SplitOp(targets):
                    # The preferred target is pushed last, so its paths are popped and
                    # followed first.
                    stack.extend((target, saves) for target in reversed(targets))
                case SaveOp(slot):
                    stack.append((index + 1, (*saves, slot)))
                case AssertOp(True):
                    if at_start:
                        stack.append((index + 1, saves))
                case _:
                    yield index, saves

    def find_stable_pattern(self, threads: Sequence[MatchThread]) -> re.Pattern[str] | None:
        """Return a pattern of the characters that can change these threads; None if any
        character can.

        After any other character, which only `.` matches, the threads are the same as
        before.
        """
        if len(threads) > MAX_STABLE_THREADS:
            return None
        positions = tuple(thread.instruction for thread in threads)
        if positions in self._stable_patterns:
            return self._stable_patterns[positions]
        is_stable = True
        next_positions = list[int]()
        sources = list[str]()
        for index in positions:
            op = self.code[index]
            if isinstance(op, CharOp) and op.is_any:
                is_stable = is_stable and (index, ()) in self.epsilon_paths[index + 1]
                reachable = [target for target, _ in self.epsilon_paths[index + 1]]
                next_positions += [target for target in reachable if target not in next_positions]
            elif isinstance(op, CharOp):
                sources.append(op.source)
        next_positions += [
            target
            for start in self.entry_points
            for target, _ in self.epsilon_paths[start]
            if target not in next_positions
        ]
        is_stable = is_stable and tuple(next_positions) == positions and bool(sources)
        pattern = re.compile("|".join(sources), re.DOTALL) if is_stable else None
        if len(self._stable_patterns) >= MAX_STABLE_PATTERNS:
            self._stable_patterns.clear()
        self._stable_patterns[positions] = pattern
        return pattern


class MatchThread(Struct, frozen=True, gc=False):
    """One partial match.

    instruction: index of the next instruction.
    start: position of its first character.
    slot_positions: position of each group boundary, -1 if not passed.
    """

    instruction: int
    start: int
    slot_positions: tuple[int, ...]


class PatternMatch(Struct, frozen=True):
    """A match. Positions are characters from the start of the stream.

    pattern: index of the pattern.
    captures: (name, start, end) of each group that matched.
    """

    pattern: int
    start: int
    end: int
    captures: tuple[tuple[str, int, int], ...]


class PatternSearch:
    """A search for the next match from `position` on.

    at_start: the search begins at the start of the response, where `^` matches.
    max_length: maximum characters of a match; longer attempts are abandoned. None means
        unlimited.
    """

    def __init__(
        self, program: Program, position: int, *, at_start: bool, max_length: int | None = None
    ) -> None:
        self._program = program
        self._position = position
        self._max_length = max_length
        self._best: PatternMatch | None = None
        self._threads: list[MatchThread] = []
        """Empty while no match has begun; the start instructions are then implied."""
        if at_start:
            self._add_starts(self._threads, set(), program.initial_paths)

    @property
    def threads(self) -> Sequence[MatchThread]:
        """The attempts that are still open, in the order of preference."""
        return self._threads

    @property
    def pending(self) -> int:
        """The position before which text can no longer belong to a match."""
        return min((thread.start for thread in self._threads), default=self._position)

    def try_skip(self, text: str) -> bool:
        """Skip this text if it cannot belong to a match. Return whether it was skipped."""
        if (
            self._threads
            or self._best is not None
            or self._program.first_chars.search(text) is not None
        ):
            return False
        self._position += len(text)
        return True

    def read(self, text: str, pos: int) -> PatternMatch | None:
        """Read text[pos:] until a match is certain, and return it; None if no match is
        certain by the text's end.
        """
        offset = self._position - pos
        while pos < len(text):
            # Characters that change nothing but the position are skipped.
            if self._best is not None:
                if not self._threads:
                    return self._best
            elif not self._threads:
                match = self._program.first_chars.search(text, pos)
                pos = len(text) if match is None else match.start()
            elif (stable_pattern := self._program.find_stable_pattern(self._threads)) is not None:
                match = stable_pattern.search(text, pos)
                pos = max(pos, (len(text) if match is None else match.start()) - 1)
            self._position = offset + pos
            if pos < len(text):
                pos += 1
                self._step(text[pos - 1])
        return None if self._threads else self._best

    def close(self) -> PatternMatch | None:
        """Return the final match, if any, when the response has ended."""
        if not self._threads and self._best is None:
            self._add_starts(self._threads, set(), None)
        visited: set[int] = set()
        while self._threads:
            # End assertions may follow each other, so threads are advanced until none
            # waits at an end assertion.
            threads = self._threads
            self._threads = []
            for thread in threads:
                if isinstance(
                    self._program.code[thread.instruction], AssertOp
                ) and not self._is_beaten(thread):
                    self._add_threads(
                        self._threads,
                        visited,
                        thread,
                        self._program.epsilon_paths[thread.instruction + 1],
                    )
        return self._best

    def _step(self, char: str) -> None:
        """Read the character at the current position."""
        if not self._threads and self._best is None:
            self._add_starts(self._threads, set(), None)
        self._position += 1
        next_threads: list[MatchThread] = []
        visited: set[int] = set()
        char_matchers = self._program.char_matchers
        paths = self._program.epsilon_paths
        for thread in self._threads:
            char_matcher = char_matchers[thread.instruction]
            if (
                char_matcher is not None
                and char_matcher(char)
                and not self._is_beaten(thread)
                and not (
                    self._max_length is not None
                    and self._position - thread.start > self._max_length
                )
            ):
                self._add_threads(next_threads, visited, thread, paths[thread.instruction + 1])
        # A match may begin at every character, also while earlier attempts are still
        # open.
        if self._best is None and next_threads:
            self._add_starts(next_threads, visited, None)
        self._threads = [thread for thread in next_threads if not self._is_beaten(thread)]

    def _add_starts(
        self,
        threads: list[MatchThread],
        visited: set[int],
        initial_paths: Sequence[Sequence[EpsilonPath]] | None,
    ) -> None:
        empty_positions = (-1,) * (2 * len(self._program.groups))
        for number, start in enumerate(self._program.entry_points):
            paths = (
                self._program.epsilon_paths[start]
                if initial_paths is None
                else initial_paths[number]
            )
            self._add_threads(
                threads, visited, MatchThread(start, self._position, empty_positions), paths
            )

    def _add_threads(
        self,
        threads: list[MatchThread],
        visited: set[int],
        thread: MatchThread,
        paths: Sequence[EpsilonPath],
    ) -> None:
        for target, slots in paths:
            if target in visited:
                continue
            visited.add(target)
            slot_positions = thread.slot_positions
            for slot in slots:
                slot_positions = (
                    *slot_positions[:slot],
                    self._position,
                    *slot_positions[slot + 1 :],
                )
            op = self._program.code[target]
            if not isinstance(op, MatchOp):
                threads.append(MatchThread(target, thread.start, slot_positions))
                continue
            best = self._best
            pattern = op.pattern
            # A match beats the current one if it is earlier, on a preferred path of the
            # same pattern, or longer.
            if best is None or thread.start < best.start or best.pattern == pattern:
                is_better = True
            else:
                is_longer = (self._position, -pattern) > (best.end, -best.pattern)
                is_better = thread.start == best.start and is_longer
            if is_better:
                pairs = zip(
                    self._program.groups, slot_positions[::2], slot_positions[1::2], strict=True
                )
                captures = tuple(
                    (name, begin, end) for name, begin, end in pairs if begin >= 0 and end >= 0
                )
                self._best = PatternMatch(pattern, thread.start, self._position, captures)
            # Any other path of this pattern is less preferred.
            visited.update(
                index
                for index, pattern_index in enumerate(self._program.pattern_indices)
                if pattern_index == pattern
            )
            return

    def _is_beaten(self, thread: MatchThread) -> bool:
        """Whether this thread can no longer win."""
        return self._best is not None and thread.start > self._best.start


def find_matches(program: Program, text: str) -> Iterator[PatternMatch]:
    """Yield all matches in a complete text, like `re.finditer`."""
    pos = 0
    while pos <= len(text):
        search = PatternSearch(program, pos, at_start=pos == 0)
        match = search.read(text, pos) or search.close()
        if match is None:
            return
        yield match
        pos = match.end + (match.end == match.start)
