"""Ordinary English from the docstrings of the running interpreter's standard library.
Another Python version gives slightly different text, and so slightly different merges.

Only modules that every build of Python has: Debian packages `tkinter`, and with it
`turtle`, separately.
"""

# ruff: noqa: SIM905 (a split string is easier to read than a list of words)
from __future__ import annotations

import importlib
import inspect
import re
import zlib
from collections import Counter

MODULES = (
    "argparse ast asyncio base64 bisect calendar cmd codecs collections concurrent.futures "
    "configparser "
    "contextlib copy csv dataclasses datetime decimal difflib email.message enum filecmp "
    "fractions functools "
    "gettext glob gzip heapq hmac html http.client inspect io ipaddress itertools json logging "
    "mailbox math "
    "mimetypes multiprocessing numbers operator os pathlib pickle platform pprint queue random re "
    "sched secrets "
    "selectors shelve shlex shutil smtplib socket sqlite3 ssl statistics string struct subprocess "
    "tarfile "
    "tempfile textwrap threading time timeit tokenize traceback types unittest urllib.parse "
    "urllib.request "
    "uuid warnings wave weakref zipfile"
).split()


def docstrings() -> list[str]:
    """Return the public docstrings of `MODULES`, each once, in a fixed order."""
    found: dict[str, None] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for _, member in sorted(inspect.getmembers(module), key=lambda pair: pair[0]):
            for text in _texts_of(member):
                found.setdefault(text)
    return list(found)


def _texts_of(member: object) -> list[str]:
    members = [member]
    if inspect.isclass(member):
        members += [value for key, value in sorted(vars(member).items()) if not key.startswith("_")]
    return [text for text in map(_own_doc, members) if text]


def _own_doc(member: object) -> str:
    if not (inspect.isclass(member) or inspect.isroutine(member)):
        return ""
    return inspect.cleandoc(member.__doc__) if isinstance(member.__doc__, str) else ""


def common_words(texts: list[str], least: int = 4) -> list[str]:
    """Return the lower-case words of 3 to 10 letters that occur at least `least` times,
    sorted."""
    counts = Counter(
        word for text in texts for word in re.findall(r"(?<![\w.])[a-z]{3,10}(?![\w.(])", text)
    )
    return sorted(word for word, count in counts.items() if count >= least)


def sentences(texts: list[str]) -> list[str]:
    """Return the plain sentences of 20 to 120 characters on one line, each once, in
    order.
    """
    found: dict[str, None] = {}
    for text in texts:
        for sentence in re.findall(
            r"(?:^|(?<=\. ))[A-Z][a-zA-Z ,'-]{20,118}\.(?=\s|$)", " ".join(text.split())
        ):
            found.setdefault(sentence)
    return list(found)


def is_held_out(word: str) -> bool:
    """Whether a word is excluded from training and used in the evaluation: one in ten."""
    return zlib.crc32(word.encode()) % 10 == 0
