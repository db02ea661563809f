"""Checks, and the areas that group them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from .session import Session

Level = Literal["must", "should"]
"""must: a violation breaks clients, or contradicts the specification. should: it costs
    robustness or convenience.
"""
CheckFunction = Callable[[Session], Awaitable[None]]
"""Runs a check: returns if the rule holds; raises Violation if it does not, and Skipped
if that cannot be determined.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule, and the function that checks it.

    id: area and name, such as `chat.stream-role`.
    rule: a sentence.
    source: URL of the rule's specification.
    claims: what a server has to claim for the rule to apply; see `claims.PROFILES`.
    level: see `Level`.
    except_for: profiles whose servers document another behavior.
    is_destructive: it loads the server heavily or changes its state; run only on
        demand.
    """

    id: str
    rule: str
    source: str
    claims: frozenset[str]
    level: Level
    except_for: frozenset[str]
    is_destructive: bool
    run: CheckFunction

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    def matches(self, pattern: str) -> bool:
        """Whether the id contains the pattern, a regular expression."""
        return re.search(pattern, self.id) is not None


class Area:
    """The checks of one API or subject, with defaults: its claims apply to each check,
    its source if none is given.
    """

    def __init__(self, name: str, *, claims: Iterable[str], source: str) -> None:
        self.name = name
        self.checks = list[Check]()
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
        run: CheckFunction,
        *,
        claims: Iterable[str] = (),
        source: str | None = None,
        level: Level = "must",
        except_for: Iterable[str] = (),
        is_destructive: bool = False,
    ) -> None:
        """Add a check. claims: claims besides those of the area."""
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

    def check(self, rule: str, **options: Any) -> Callable[[CheckFunction], CheckFunction]:
        """Add the decorated coroutine function as a check. The check's name is the
        function's, with dashes.

        options: those of `add`.
        """

        def register(run: CheckFunction) -> CheckFunction:
            self.add(getattr(run, "__name__", "").replace("_", "-"), rule, run, **options)
            return run

        return register


async def _run_nothing(_: Session) -> None:
    return None
