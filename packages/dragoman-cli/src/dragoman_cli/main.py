"""The command line: the sub-commands of all installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import click

from ._version import VERSION
from .command import HELP_OPTIONS

if TYPE_CHECKING:
    from .entry_points import EntryPoint

COMMANDS = "dragoman.commands"
"""The entry point group in which packages register sub-commands."""

PACKAGES: Mapping[str, str] = {
    "serve": "dragoman",
    "deploy": "dragoman",
    "pull": "dragoman",
    "models": "dragoman",
    "rm": "dragoman",
    "run": "dragoman",
    "chat": "dragoman",
    "launch": "dragoman",
    "record": "dragoman",
    "replay": "dragoman",
    "keys": "dragoman",
    "store": "dragoman",
    "check": "dragoman-check",
    "bench": "dragoman-check",
    "simulate": "dragoman-sim",
    "calibrate": "dragoman-sim",
    "profiles": "dragoman-sim",
    "profile": "dragoman-sim",
    "plan": "dragoman-sim",
}
"""The sub-commands of our packages in the order of the help, and the package of each.
"""


def find_commands() -> Mapping[str, EntryPoint]:
    """Find the registered sub-commands, by name."""
    # A fifth of the time that the command line needs, and `--version` needs none.
    from .entry_points import find_entry_points  # noqa: PLC0415

    return {point.name: point for point in find_entry_points(COMMANDS)}


class CommandLine(click.Group):
    """The command `dragoman`; a sub-command is imported when it is chosen, or when the
    help lists it.
    """

    def __init__(self) -> None:
        super().__init__(
            "dragoman",
            help="Inference APIs: serve them, check them, simulate the engines behind them.",
            context_settings=dict(HELP_OPTIONS),
            no_args_is_help=True,
            params=[
                click.Option(
                    ["--version"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    help="Show the version.",
                    callback=_show_version,
                )
            ],
        )

    @cached_property
    def _entry_points(self) -> Mapping[str, EntryPoint]:
        return find_commands()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        known = [name for name in PACKAGES if name in self._entry_points]
        return [*known, *sorted(set(self._entry_points) - set(PACKAGES)), "version"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name == "version":
            return click.Command("version", callback=_print_version, help="Show the version.")
        entry_point = self._entry_points.get(cmd_name)
        return None if entry_point is None else entry_point.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments; for an unknown one, say what to do."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            package = PACKAGES.get(name)
            if package is not None:
                ctx.fail(f"`{name}` is a command of {package}: pip install {package}")
            from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

            matches = get_close_matches(name, [*PACKAGES, *self._entry_points, "version"], n=1)
            suggestion = f" Did you mean {matches[0]!r}?" if matches else ""
            ctx.fail(f"No such command {name!r}.{suggestion}")
        return super().resolve_command(ctx, args)


def _print_version() -> None:
    click.echo(VERSION)


def _show_version(ctx: click.Context, _parameter: click.Parameter, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        _print_version()
        ctx.exit()


def main() -> None:
    """Run the `dragoman` command."""
    CommandLine()(prog_name="dragoman")
