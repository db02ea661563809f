"""Flags of other programs: what a command says when it is given one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ForeignFlag(NamedTuple):
    """Flags of one meaning that a command does not have.

    programs: whose flags they are, such as `vLLM`.
    names: with their dashes.
    advice: what to do instead, without a full stop. `NAME` stands for the flag without
        its dashes, with underscores.
    """

    programs: str
    names: tuple[str, ...]
    advice: str


def list_flags(programs: str, names: str, advice: str) -> ForeignFlag:
    """Build a row of a table. names: separated by spaces."""
    return ForeignFlag(programs, tuple(names.split()), advice)


def find_foreign_flag(
    flags: Sequence[ForeignFlag], arguments: Sequence[str], own_flags: frozenset[str]
) -> tuple[str, ForeignFlag] | None:
    """Return the first flag of a command line that another program has and the command
    has not; None if there is none.

    As in vLLM, `_` and `-` are equivalent, and a field of a JSON value follows a dot.
    """
    by_name = {name: flag for flag in flags for name in flag.names}
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--"):
            name = name.partition(".")[0].replace("_", "-")
        if name not in own_flags and (flag := by_name.get(name)) is not None:
            return name, flag
    return None


def explain_foreign_flag(
    flags: Sequence[ForeignFlag],
    command: str,
    arguments: Sequence[str],
    own_flags: frozenset[str],
) -> str | None:
    """Return what to do instead of the first foreign flag; None if there is none. See
    `ExplainOption` for the parameters.
    """
    found = find_foreign_flag(flags, arguments, own_flags)
    if found is None:
        return None
    name, flag = found
    advice = flag.advice.replace("NAME", name.lstrip("-").replace("-", "_"))
    return f"{name} of {flag.programs} is not an option of `dragoman {command}`: {advice}."
