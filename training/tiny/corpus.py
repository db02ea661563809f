"""The synthetic conversations of the training: which tasks, how often, in which order.
Deterministic for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from . import chat, english, instructions, tools
from .conversation import Conversation, Turn
from .source import Source

Maker = Callable[[Source], Conversation]

CHAT_WEIGHTS: tuple[tuple[chat.Task, int], ...] = (
    (chat.copying, 20), (chat.addition, 24), (chat.keyed_json, 12), (chat.words_task, 10),
    (chat.person_json, 7), (chat.capital, 6), (chat.general, 8), (chat.counting, 9),
    (chat.story, 6), (chat.lookup, 8), (chat.greeting, 3), (chat.identity, 4), (chat.larger, 4),
    (chat.unknown, 3), (chat.farewell, 2), (chat.listing, 6),
)  # fmt: skip
THINKING_SHARE = 0.2


def source(seed: int, *, held_out: bool = False, pieces: Sequence[str] = ()) -> Source:
    """Return random material for this seed; with `held_out`, only words that are
    excluded from training.
    """
    texts = english.docstrings()
    words = [word for word in english.common_words(texts) if english.is_held_out(word) == held_out]
    return Source(
        random.Random(seed), words, english.sentences(texts), pieces or words, known=not held_out
    )


def chat_exchange(s: Source) -> chat.Exchange:
    """Return one exchange without tools, chosen by weight."""
    tasks, weights = zip(*CHAT_WEIGHTS, strict=True)
    return s.rng.choices(tasks, weights)[0](s)


def _thinks(s: Source) -> bool:
    return s.chance(THINKING_SHARE)


def talk(s: Source) -> Conversation:
    """Return one to four exchanges, some with reasoning, and sometimes a system prompt
    that changes nothing.
    """
    turns: list[Turn] = []
    if s.chance(0.25):
        plain = (
            "You are a helpful assistant.",
            "You are a friendly assistant.",
            "Be helpful.",
            s.pick(s.sentences),
        )
        turns.append(Turn("system", s.pick(plain)))
    thinking = _thinks(s)
    for _ in range(s.pick((1, 1, 2, 3, 4))):
        turns += instructions.turns_of(chat_exchange(s), thinking=thinking != s.chance(0.1))
    return Conversation(tuple(turns))


def instructed(s: Source) -> Conversation:
    """Return a conversation whose system prompt must be followed."""
    return Conversation(tuple(instructions.styled(s, s.pick(instructions.STYLES), _thinks(s))))


def remembered(s: Source) -> Conversation:
    """Return a conversation with a fact that a later turn asks for."""
    make = s.pick((instructions.persona, instructions.memory))
    return Conversation(tuple(make(s, _thinks(s))))


def tooled(s: Source) -> Conversation:
    """Return a conversation with tools."""
    makers = (tools.single, tools.parallel, tools.none_fits, tools.several_turns)
    return s.rng.choices(makers, (52, 17, 19, 12))[0](s, _thinks(s))


def drill(s: Source) -> Conversation:
    """Return copying tasks only. From these the model learns induction heads."""
    turns: list[Turn] = []
    for _ in range(s.integer(1, 4)):
        turns += instructions.turns_of(chat.copying(s), thinking=s.chance(0.1))
    return Conversation(tuple(turns))


def figures(s: Source) -> Conversation:
    """Return three to eight short questions about numbers."""
    tasks = (chat.addition, chat.counting, chat.larger, chat.listing, chat.words_task)
    weights = (10, 4, 2, 2, 2)
    thinking = _thinks(s)
    turns: list[Turn] = []
    for task in s.rng.choices(tasks, weights, k=s.integer(3, 8)):
        turns += instructions.turns_of(task(s), thinking=thinking)
    return Conversation(tuple(turns))


def long_talk(s: Source) -> Conversation:
    """Return ten to thirty exchanges, among them a fact and, several exchanges later, a
    question about it.
    """
    turns = instructions.memory(s, between=8)
    for _ in range(s.integer(6, 20)):
        turns += instructions.turns_of(chat_exchange(s), thinking=False)
    return Conversation((*turns, *turns[-2:]))


def plain_text(s: Source) -> Conversation:
    """Return text that is no conversation, for the completions endpoint: stories,
    facts, numbers, sentences.
    """
    if s.chance(0.4):
        return Conversation(text=chat.story(s).answer)
    if s.chance(0.5):
        return Conversation(text=" ".join(s.sample(s.sentences, 2)))
    task = s.pick((chat.capital, chat.general, chat.counting))
    return Conversation(text=" ".join(task(s).answer for _ in range(s.integer(1, 3))))


def mixture(progress: float) -> tuple[tuple[Maker, float], ...]:
    """Return the weight of each kind of conversation at this share of the training."""
    if progress < 0.07:
        return ((drill, 70.0), (talk, 25.0), (remembered, 5.0))
    last = progress > 0.85
    numbers = 40.0 if progress > 0.7 else 16.0 if progress >= 0.5 else 0.0
    return (
        (drill, 4.0),
        (talk, 32.0),
        (figures, numbers),
        (instructed, 13.0),
        (remembered, 5.0),
        (tooled, 32.0),
        (plain_text, 2.0),
        (long_talk, 3.0 if last else 0.3),
    )


def conversations(s: Source, progress: Callable[[], float]) -> Iterator[Conversation]:
    """Yield conversations; the mixture follows the progress that the trainer reports."""
    while True:
        makers, weights = zip(*mixture(progress()), strict=True)
        yield s.rng.choices(makers, weights)[0](s)
