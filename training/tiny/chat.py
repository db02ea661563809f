"""Tasks without tools: a question, its answer, and reasoning for prompts in which the
template opens the thinking block.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from .facts import (
    ABLE,
    ANIMALS,
    CAPITALS,
    CITIES,
    COLORS,
    DAYS,
    FEELINGS,
    JOKE,
    MONTHS,
    NUMERALS,
    OPPOSITES,
    PLACES,
    SELF,
    SOUNDS,
    UNKNOWN,
)
from .source import Source


@dataclass(frozen=True)
class Exchange:
    """A question and its answer.

    short: the answer in one word, if it has one."""

    ask: str
    answer: str
    thought: str
    short: str = ""


Task = Callable[[Source], Exchange]


def greeting(s: Source) -> Exchange:
    """Greetings."""
    ask = s.pick(
        ("Hello", "Hi", "Hello!", "Hi there", "Hey", "Good morning", "Hello there!", "hi", "hello")
    )
    return Exchange(
        ask, "Hello! How can I help you today?", "The user greets me. I will greet back.", "Hello"
    )


def farewell(s: Source) -> Exchange:
    """Thanks and goodbyes."""
    if s.chance(0.5):
        ask = s.pick(("Thank you", "Thanks!", "Thanks", "Thank you very much."))
        return Exchange(ask, "You are welcome!", "The user thanks me.", "Welcome")
    return Exchange(
        s.pick(("Goodbye", "Bye", "See you!", "Goodbye!")),
        "Goodbye!",
        "The user leaves.",
        "Goodbye",
    )


def identity(s: Source) -> Exchange:
    """Questions about the identity and the abilities of the model."""
    if s.chance(0.3):
        ask = s.pick(
            ("What can you do?", "How can you help me?", "What are you able to do?", "Help")
        )
        return Exchange(ask, ABLE, "The user asks what I can do.")
    if s.chance(0.2):
        return Exchange(
            s.pick(("Tell me a joke.", "Tell me a joke", "Do you know a joke?")),
            JOKE,
            "The user wants a joke.",
        )
    if s.chance(0.3):
        return Exchange("How are you?", "I am fine, thank you!", "The user asks how I am.", "Fine")
    return Exchange(
        s.pick(("Who are you?", "What are you?", "Tell me about yourself.")),
        SELF,
        "The user asks who I am.",
    )


def unknown(s: Source) -> Exchange:
    """A question that the model cannot answer. It says so."""
    subject = s.title()
    patterns = (f"What is the meaning of {subject}?", f"Explain {subject}.", f"Write a poem about "
        f"{subject}.",
                f"Why is {subject} important?", f"Who was {subject}?",
                s.pick(s.sentences))  # fmt: skip
    return Exchange(s.pick(patterns), UNKNOWN, "I do not know that.")


def addition(s: Source) -> Exchange:
    """Sums of two numbers, most of them small, because those must be right."""
    top = s.pick((9, 9, 20, 20, 20, 99, 99))
    a = s.integer(0, top)
    b = s.integer(0, top)
    ask = s.pick((f"What is {a} + {b}?", f"What is {a} plus {b}?", f"{a} + {b}", f"Add {a} and "
        f"{b}.",
                  f"How much is {a} + {b}?",
                  f"What is {a}+{b}?", f"What's {a} + {b}?", f"{a}+{b}",
                  f"Compute {a} + {b}."))  # fmt: skip
    return Exchange(
        ask, f"{a} + {b} = {a + b}.", f"I need to add {a} and {b}. The sum is {a + b}.", str(a + b)
    )


def larger(s: Source) -> Exchange:
    """Which of two numbers is larger."""
    a, b = s.sample(range(100), 2)
    high = max(a, b)
    low = min(a, b)
    ask = s.pick((f"Which is larger, {a} or {b}?", f"What is more, {a} or {b}?"))
    return Exchange(
        ask, f"{high} is larger than {low}.", f"I compare {a} and {b}. {high} is larger.", str(high)
    )


def capital(s: Source) -> Exchange:
    """Capitals of countries."""
    country = s.pick(tuple(CAPITALS))
    city = CAPITALS[country]
    ask = s.pick(
        (
            f"What is the capital of {country}?",
            f"Name the capital of {country}.",
            f"Capital of {country}?",
        )
    )
    return Exchange(
        ask,
        f"The capital of {country} is {city}.",
        f"The user asks about {country}. Its capital is {city}.",
        city,
    )


def general(s: Source) -> Exchange:
    """Colours, sounds, opposites, days and months."""
    kind = s.integer(0, 3)
    if kind == 0:
        thing = s.pick(tuple(COLORS))
        answer = f"{thing.capitalize()} is {COLORS[thing]}."
        return Exchange(
            f"What color is {thing}?",
            answer,
            f"The color of {thing} is {COLORS[thing]}.",
            COLORS[thing],
        )
    if kind == 1:
        animal = s.pick(tuple(SOUNDS))
        sound = SOUNDS[animal]
        return Exchange(
            f"What does a {animal} say?",
            f"A {animal} says {sound}.",
            f"The sound is {sound}.",
            sound,
        )
    if kind == 2:
        word = s.pick(tuple(OPPOSITES))
        other = OPPOSITES[word]
        ask = s.pick((f"What is the opposite of {word}?", f"Opposite of {word}?"))
        return Exchange(
            ask, f"The opposite of {word} is {other}.", f"{word} and {other} are opposites.", other
        )
    names, unit = (DAYS, "day") if s.chance(0.5) else (MONTHS, "month")
    at = s.integer(0, len(names) - 1)
    now = names[at]
    then = names[(at + 1) % len(names)]
    return Exchange(
        f"Which {unit} comes after {now}?",
        f"{then} comes after {now}.",
        f"After {now} comes {then}.",
        then,
    )


def counting(s: Source) -> Exchange:
    """Counting up from one, up from anywhere, and down."""
    if s.chance(0.6):
        high = s.integer(2, s.pick((10, 20, 30))) if s.chance(0.93) else s.integer(31, 100)
        numbers = range(1, high + 1)
        numeral = NUMERALS[high] if high <= 10 and s.chance(0.3) else str(high)
        ask = s.pick(
            (
                f"Count to {numeral}.",
                f"Count from 1 to {numeral}.",
                f"Count up to {numeral}.",
                f"Please count to {numeral}.",
            )
        )
    elif s.chance(0.6):
        low = s.integer(2, 80)
        numbers = range(low, low + s.integer(1, 12))
        ask = f"Count from {low} to {numbers[-1]}."
    else:
        numbers = range(s.integer(2, 15), 0, -1)
        ask = f"Count down from {numbers[0]}."
    thought = f"I will list the numbers from {numbers[0]} to {numbers[-1]}."
    return Exchange(ask, ", ".join(map(str, numbers)) + ".", thought)


def copying(s: Source) -> Exchange:
    """Repeating words, tokens, names, numbers or codes exactly."""
    text = s.phrase()
    patterns = ("Say: {}", "Say: {}", "Repeat after me: {}", "Repeat: {}", "Echo: {}",
                "Repeat the words: {}", "Say {}", "Repeat exactly: {}", "Please repeat this: {}",
                "Write: {}", "Copy this text: {}", "Repeat this:\n{}", "Say '{}'", 'Say "{}"',
                "Reply with: {}", "Just say {}", "Answer only with: {}")  # fmt: skip
    return Exchange(s.pick(patterns).format(text), text, f"The user wants me to repeat: {text}")


def listing(s: Source) -> Exchange:
    """A few colours, animals, days or cities, as a line, a list or JSON."""
    what, items = s.pick(
        (
            ("colors", tuple(dict.fromkeys(COLORS.values()))),
            ("animals", ANIMALS),
            ("days", DAYS),
            ("cities", CITIES),
        )
    )
    count = s.integer(2, 5)
    numeral = NUMERALS[count] if s.chance(0.5) else str(count)
    chosen = items[:count]
    if s.chance(0.3):
        return Exchange(
            f"Give me a JSON array of {numeral} {what}.",
            json.dumps(chosen),
            f"I write {count} {what}.",
        )
    if s.chance(0.3):
        numbered = "\n".join(f"{i}. {item}" for i, item in enumerate(chosen, 1))
        return Exchange(
            f"Make a numbered list of {numeral} {what}.", numbered, f"I list {count} {what}."
        )
    ask = s.pick((f"List {numeral} {what}.", f"Name {numeral} {what}."))
    return Exchange(ask, ", ".join(chosen) + ".", f"I name {count} {what}.")


def words_task(s: Source) -> Exchange:
    """Small operations on a few words: number them, join, count, reverse, first, last."""
    kind = s.integer(0, 5)
    words = s.distinct_words(s.integer(2, 6 if kind != 3 else 5))
    line = " ".join(words)
    if kind == 0:
        listed = "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))
        return Exchange(
            f"List these in order: {', '.join(words)}.", listed, f"There are {len(words)} words."
        )
    if kind == 1:
        return Exchange(
            f"Join with underscores: {line}",
            "_".join(words),
            f"I join {len(words)} words.",
            "_".join(words),
        )
    if kind == 2:
        answer = f"There are {len(words)} words."
        return Exchange(
            f"How many words are these: {line}",
            answer,
            f"I count {len(words)} words.",
            str(len(words)),
        )
    if kind == 3:
        return Exchange(
            f"Reverse the order: {line}",
            " ".join(reversed(words)),
            f"The last word is {words[-1]}.",
        )
    which, word = ("first", words[0]) if kind == 4 else ("last", words[-1])
    return Exchange(
        f"What is the {which} word of: {line}",
        f"The {which} word is {word}.",
        f"I look for the {which} word.",
        word,
    )


def story(s: Source) -> Exchange:
    """A story of five sentences; the question may name its main character."""
    name = s.name()
    animal = s.pick(ANIMALS)
    other = s.pick(ANIMALS)
    if s.chance(0.15):
        return _long_story(s, name, animal)
    ask = s.pick(
        ("Tell me a story.", "Tell me a short story.", "Write a story.", "Write a short story.")
    )
    if s.chance(0.5):
        ask = s.pick(
            (
                f"Tell me a story about a {animal} named {name}.",
                f"Write a story about {name} the {animal}.",
            )
        )
    lines = (
        f"Once upon a time there was a {s.pick(FEELINGS)} {animal} named {name}.",
        f"{name} lived near the {s.pick(PLACES)}.",
        s.pick((f"One day {name} met a {other}.", f"One morning {name} found a {s.word()}.")),
        s.pick(
            (
                f"They walked together to the {s.pick(PLACES)}.",
                f"{name} took it home and felt {s.pick(FEELINGS)}.",
            )
        ),
        s.pick(
            (
                "They became good friends.",
                f"In the end the {animal} was {s.pick(FEELINGS)}.",
                "Everyone in the village was happy.",
            )
        ),
    )
    return Exchange(ask, " ".join(lines), "The user wants a story. I will write a short one.")


def _long_story(s: Source, name: str, animal: str) -> Exchange:
    middle = [
        f"Then {name} went to the {s.pick(PLACES)} and met a {s.pick(FEELINGS)} {s.pick(ANIMALS)}."
        for _ in range(s.integer(6, 12))
    ]
    lines = (
        f"Once upon a time there was a {s.pick(FEELINGS)} {animal} named {name}.",
        *middle,
        "In the end everyone was happy.",
    )
    ask = s.pick(("Tell me a long story.", "Write a long story."))
    return Exchange(ask, " ".join(lines), "The user wants a long story.")


def person_json(s: Source) -> Exchange:
    """A person as JSON, random or described in the question."""
    name = s.name()
    age = s.integer(18, 80)
    city = s.city()
    answer = json.dumps({"name": name, "age": age, "city": city}, ensure_ascii=False)
    if s.chance(0.4):
        ask = s.pick(
            (
                "Give me a JSON object for a person.",
                "Describe a person as JSON.",
                "Write a person as JSON.",
            )
        )
        return Exchange(ask, answer, "I will make up a name, an age and a city.")
    sentence = s.pick(
        (f"{name} is {age} years old and lives in {city}.", f"{name} ({age}) lives in {city}.")
    )
    ask = s.pick(
        (
            f"{sentence} Write this person as JSON.",
            f"Extract the person as JSON: {sentence}",
            f"{sentence} Answer as JSON with name, age and city.",
        )
    )
    return Exchange(ask, answer, f"The person is {name}.")


def keyed_json(s: Source) -> Exchange:
    """JSON objects with given keys or values, and arrays."""
    keys = s.distinct_words(s.integer(1, 5))
    if s.chance(0.35):
        items = [s.title() for _ in keys]
        listed = ", ".join(items)
        return Exchange(
            f"Write these as a JSON array: {listed}",
            json.dumps(items, ensure_ascii=False),
            "I write an array.",
        )
    if s.chance(0.5):
        values = [s.number() if s.chance(0.4) else s.title() for _ in keys]
        listed = ", ".join(f"{key} = {value}" for key, value in zip(keys, values, strict=True))
        answer = json.dumps(dict(zip(keys, values, strict=True)), ensure_ascii=False)
        return Exchange(f"Write as JSON: {listed}", answer, f"The keys are {', '.join(keys)}.")
    if s.chance(0.5):
        keys = s.sample(
            ("name", "age", "city", "country", "color", "animal", "day"), s.integer(1, 4)
        )
    listed = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
    noun = "key" if len(keys) == 1 else "keys"
    ask = s.pick(
        (
            f"Give me a JSON object with the {noun} {listed}.",
            f"Answer in JSON with the {noun} {listed}.",
        )
    )
    answer = json.dumps({key: _invent_value(s, key) for key in keys}, ensure_ascii=False)
    return Exchange(ask, answer, f"The keys are {', '.join(keys)}.")


def _invent_value(s: Source, key: str) -> str | int:
    if key == "age":
        return s.integer(18, 80)
    values = {
        "name": s.name, "city": lambda: s.pick(CITIES), "country": lambda: s.pick(tuple(CAPITALS)),
        "color": lambda: s.pick(tuple(COLORS.values())), "animal": lambda: s.pick(ANIMALS),
        "day": lambda: s.pick(DAYS),
    }  # fmt: skip
    return values[key]() if key in values else "something"


def lookup(s: Source) -> Exchange:
    """Reading: facts about several people, and a question about one of them."""
    people = list({s.name(): s.city() for _ in range(s.integer(1, 4))}.items())
    name, city = s.pick(people)
    if s.chance(0.5):
        facts = " ".join(f"{who} lives in {where}." for who, where in people)
        return Exchange(
            f"{facts} Where does {name} live?",
            f"{name} lives in {city}.",
            f"I look for {name}.",
            city,
        )
    things = [(who, s.word()) for who, _ in people]
    name, thing = s.pick(things)
    facts = " ".join(f"{who} has the {what}." for who, what in things)
    return Exchange(
        f"{facts} Who has the {thing}?",
        f"{name} has the {thing}.",
        f"I look for the {thing}.",
        name,
    )
