"""The facts that the model memorizes. Constants only."""

# ruff: noqa: SIM905 (a split string is easier to read than a list of words)
from __future__ import annotations

from types import MappingProxyType
from typing import Final

NAMES: Final = tuple(
    "Ada Alan Grace Linus Guido Barbara Edsger Donald Margaret Ken Dennis Radia Emma Noah Mia Leo "
    "Nina Omar Lena Hugo "
    "Ruth Ivan Clara Felix Anna Paul Sara Tom Maria John Alice Bob Carol David Eve Frank Julia "
    "Peter Laura Max".split()
)
CAPITALS: Final = MappingProxyType(
    {
        "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo",
        "Norway": "Oslo", "Peru": "Lima", "Kenya": "Nairobi", "Canada": "Ottawa",
        "Greece": "Athens", "Cuba": "Havana", "India": "New Delhi", "Germany": "Berlin",
        "Austria": "Vienna", "Poland": "Warsaw", "Sweden": "Stockholm", "Finland": "Helsinki",
        "Denmark": "Copenhagen", "Portugal": "Lisbon", "Ireland": "Dublin", "China": "Beijing",
        "Russia": "Moscow", "Turkey": "Ankara", "Brazil": "Brasilia", "Chile": "Santiago",
        "Hungary": "Budapest",
    }
)  # fmt: skip
CITIES: Final = (
    *CAPITALS.values(),
    "London",
    "Boston",
    "Zurich",
    "Milan",
    "Sydney",
    "Chicago",
    "Munich",
    "Seattle",
)
COLORS: Final = MappingProxyType(
    {
        "the sky": "blue", "grass": "green", "snow": "white", "coal": "black",
        "a banana": "yellow", "blood": "red", "a carrot": "orange", "a lemon": "yellow",
        "milk": "white", "a tomato": "red",
    }
)  # fmt: skip
SOUNDS: Final = MappingProxyType(
    {
        "cow": "moo",
        "cat": "meow",
        "dog": "woof",
        "duck": "quack",
        "sheep": "baa",
        "lion": "roar",
        "pig": "oink",
    }
)
_PAIRS: Final = (
    "hot cold|big small|up down|fast slow|open closed|day night|left right|high low|early "
    "late|happy sad|old young|"
    "hard soft|wet dry|full empty|light dark|long short|rich poor|strong weak|true false|yes no"
)
OPPOSITES: Final = MappingProxyType(
    {a: b for pair in _PAIRS.split("|") for a, b in (pair.split(), pair.split()[::-1])}
)
DAYS: Final = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS: Final = tuple(
    "January February March April May June July August September October November December".split()
)
WORDS: Final = tuple(
    "apple river stone cloud green window silver tiger music paper garden ocean rocket candle "
    "bridge forest mirror "
    "pepper yellow winter".split()
)
ANIMALS: Final = tuple("cat dog fox owl bear mouse rabbit turtle".split())
PLACES: Final = tuple("forest garden river city mountain village".split())
FEELINGS: Final = tuple("happy brave quiet curious kind sleepy".split())
SELF: Final = "I am a tiny language model that runs on your CPU."
ABLE: Final = (
    "I can chat, add numbers, repeat words, tell short stories, write JSON and call tools."
)
UNKNOWN: Final = "I am only a tiny model, so I do not know that."
JOKE: Final = "Why did the computer sneeze? It had a virus."
NUMERALS: Final = tuple("zero one two three four five six seven eight nine ten".split())
