"""A check: one rule with its source, and a coroutine that tries it on a server."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from .session import Session

Json = dict[str, Any]
Level = Literal["must", "should"]
"""must: a broken rule breaks clients or contradicts the specification. should: it costs robustness or comfort."""
Run = Callable[["Session"], Awaitable[None]]
"""Returns if the rule holds; raises Violation if it does not, and Skipped if that cannot be told."""


def get_object(value: Json, name: str) -> Json:
    """The object of this name; empty if it is absent, null or no object."""
    found = value.get(name)
    return cast(Json, found) if isinstance(found, dict) else {}


def get_objects(value: Json, name: str) -> list[Json]:
    """The objects in the list of this name; empty if it is absent, null or no list."""
    found = value.get(name)
    return cast(list[Json], found) if isinstance(found, list) else []


class Skipped(Exception):
    """The rule does not apply to this server, or cannot be judged there. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule.

    id: area and name, such as `chat.stream-role-first`.
    rule: a sentence.
    source: where the rule is written.
    claims: what a server has to claim for the rule to apply; see `profiles`.
    except_for: profiles whose servers document another behaviour.
    is_destructive: it loads the server heavily or changes its state; run only on demand.
    """

    id: str
    rule: str
    source: str
    claims: frozenset[str]
    level: Level
    except_for: frozenset[str]
    is_destructive: bool
    run: Run

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    def matches(self, pattern: str) -> bool:
        """Whether the id contains the pattern, a regular expression."""
        return re.search(pattern, self.id) is not None


class Area:
    """The checks of one API or subject. Its claims, source and level hold for each of them unless it has its own."""

    def __init__(self, name: str, *, claims: Iterable[str], source: str) -> None:
        self.name, self.checks = name, list[Check]()
        self._defaults = Check(
            id=name,
            rule="",
            source=source,
            claims=frozenset(claims),
            level="must",
            except_for=frozenset(),
            is_destructive=False,
            run=_run_nothing,
        )

    def add(
        self,
        name: str,
        rule: str,
        run: Run,
        *,
        claims: Iterable[str] = (),
        source: str | None = None,
        level: Level = "must",
        except_for: Iterable[str] = (),
        is_destructive: bool = False,
    ) -> None:
        """Add a check. claims: beside those of the area."""
        check = replace(
            self._defaults,
            id=f"{self.name}.{name}",
            rule=rule,
            source=source or self._defaults.source,
            claims=self._defaults.claims | frozenset(claims),
            level=level,
            except_for=frozenset(except_for),
            is_destructive=is_destructive,
            run=run,
        )
        self.checks.append(check)

    def check(self, rule: str, **options: Any) -> Callable[[Run], Run]:
        """Add the decorated coroutine function; its name is the check's, with dashes."""

        def register(run: Run) -> Run:
            self.add(getattr(run, "__name__", "").replace("_", "-"), rule, run, **options)
            return run

        return register


async def _run_nothing(_: Session) -> None:
    return None
