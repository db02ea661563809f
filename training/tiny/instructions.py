"""System prompts that change every answer, and facts that a later turn asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from .chat import Exchange, addition, capital, general, greeting, larger
from .conversation import Turn
from .source import Source

Rewrite = Callable[[str, str], str]
SHORT_TASKS = (capital, general, addition, larger)


@dataclass(frozen=True)
class Style:
    """An instruction, and a function from an answer and its one-word form to the answer
    that follows the instruction.
    """

    instruction: str
    rewrite: Rewrite


def short_exchange(s: Source) -> Exchange:
    """Return a question that has an answer in one word."""
    return s.pick((*SHORT_TASKS, greeting))(s) if s.chance(0.8) else greeting(s)


def capitals_style(s: Source) -> Style:
    """Everything in capital letters."""
    text = s.pick(("Always answer in capital letters.", "Answer in capital letters.",
                   "Write everything in upper case.",
                   "Answer only in capital letters."))  # fmt: skip
    return Style(text, lambda answer, _: answer.upper())


def one_word_style(s: Source) -> Style:
    """The answer in one word, without a sentence around it."""
    text = s.pick(
        (
            "Answer with one word.",
            "Always answer with one word.",
            "Answer in one word.",
            "Answer with a single word only.",
        )
    )
    return Style(text, lambda answer, short: short or answer)


def ending_style(s: Source) -> Style:
    """A word at the end of every answer."""
    word = s.title()
    text = s.pick(("End every answer with '{}'.", "Always end your answer with '{}'.",
                   "Finish every answer with '{}'.",
                   "End every answer with the word {}.")).format(word)  # fmt: skip
    return Style(text, lambda answer, _: f"{answer} {word}")


def opening_style(s: Source) -> Style:
    """A word at the start of every answer."""
    word = s.title()
    text = s.pick(("Start every answer with '{}'.", "Always begin your answer with '{}'.",
                   "Begin every answer with '{}'.",
                   "Start every answer with the word {}.")).format(word)  # fmt: skip
    return Style(text, lambda answer, _: f"{word} {answer}")


def constant_style(s: Source) -> Style:
    """The same answer to everything."""
    phrase = s.phrase() if s.chance(0.4) else s.title()
    text = s.pick(("Always answer '{}'.", "Answer every question with '{}'.",
                   "Whatever the user says, answer only '{}'.", "Only say '{}'.",
                   "Reply only with: {}")).format(phrase)  # fmt: skip
    return Style(text, lambda _, __: phrase)


def json_style(s: Source) -> Style:
    """The one-word answer as JSON under a given key."""
    key = "answer" if s.chance(0.3) else s.word()
    text = s.pick(
        (
            "Always answer as JSON with the key '{}'.",
            "Answer in JSON with the key '{}'.",
            "Reply as a JSON object with the key {}.",
        )
    )
    return Style(
        text.format(key),
        lambda answer, short: json.dumps({key: short or answer}, ensure_ascii=False),
    )


STYLES: tuple[Callable[[Source], Style], ...] = (
    capitals_style, one_word_style, ending_style, opening_style, constant_style, json_style,
)  # fmt: skip


def turns_of(
    exchange: Exchange, *, thinking: bool, style: Style | None = None
) -> tuple[Turn, Turn]:
    """Return the exchange as two turns, in the requested style."""
    answer = style.rewrite(exchange.answer, exchange.short) if style else exchange.answer
    return Turn("user", exchange.ask), Turn(
        "assistant", answer, thought=exchange.thought if thinking else ""
    )


def styled(s: Source, make: Callable[[Source], Style], thinking: bool = False) -> list[Turn]:
    """Return a system prompt and one to three short exchanges that follow it. In a few
    cases the instruction comes later in the conversation.
    """
    style = make(s)
    exchanges = [short_exchange(s) for _ in range(s.pick((1, 1, 2, 3)))]
    turns: list[Turn] = []
    if s.chance(0.1):
        turns += turns_of(short_exchange(s), thinking=thinking)
    elif s.chance(0.2):
        style = Style(f"You are a helpful assistant. {style.instruction}", style.rewrite)
    turns.append(Turn("system", style.instruction))
    for exchange in exchanges:
        turns += turns_of(exchange, thinking=thinking, style=style)
    return turns


def persona(s: Source, thinking: bool = False) -> list[Turn]:
    """Return a system prompt with a name or a fact, and a question about it."""
    if s.chance(0.5):
        name = s.name()
        statement = s.pick(
            (
                "Your name is {}.",
                "You are {}.",
                "You are called {}.",
                "You are {}, a helpful assistant.",
            )
        ).format(name)
        ask = s.pick(("What is your name?", "Who are you?", "How are you called?"))
        exchange = Exchange(ask, f"My name is {name}.", f"My name is {name}.", name)
    else:
        thing = s.word()
        value = s.title()
        statement = s.pick((f"The {thing} is {value}.", f"Remember: the {thing} is {value}."))
        exchange = Exchange(
            f"What is the {thing}?", f"The {thing} is {value}.", f"I was told the {thing}.", value
        )
    turns = [Turn("system", statement)]
    if s.chance(0.4):
        turns += turns_of(short_exchange(s), thinking=thinking)
    turns += turns_of(exchange, thinking=thinking)
    if s.chance(0.2):
        turns += turns_of(short_exchange(s), thinking=thinking)
    return turns


def memory(s: Source, thinking: bool = False, between: int = 2) -> list[Turn]:
    """Return a statement of the user, up to `between` other exchanges, and a question
    about it.
    """
    if s.chance(0.4):
        name = s.name()
        statement = Exchange(
            s.pick((f"My name is {name}.", f"I am {name}.", f"Hello, I am {name}.")),
            f"Nice to meet you, {name}!",
            f"The user is {name}.",
        )
        question = Exchange(
            s.pick(("What is my name?", "Who am I?")),
            f"Your name is {name}.",
            f"The user is {name}.",
            name,
        )
    elif s.chance(0.8):
        thing = s.word()
        value = s.title()
        statement = Exchange(
            s.pick((f"My {thing} is {value}.", f"Remember that my {thing} is {value}.")),
            "I will remember that.",
            f"The {thing} is {value}.",
        )
        question = Exchange(
            f"What is my {thing}?", f"Your {thing} is {value}.", f"The {thing} is {value}.", value
        )
    else:
        statement = greeting(s)
        thing = s.pick(("name", s.word()))
        question = Exchange(
            f"What is my {thing}?",
            f"You have not told me your {thing}.",
            "The user has not told me.",
        )
    turns = [*turns_of(statement, thinking=thinking)]
    for _ in range(s.integer(0, between)):
        turns += turns_of(short_exchange(s), thinking=thinking)
    return [*turns, *turns_of(question, thinking=thinking)]
