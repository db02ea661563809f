"""The metadata of a command's options and arguments, which stand in annotations.

timeout: Annotated[float, Option(help="Time limit.", metavar="SECONDS")] = 60.0
"""

from __future__ import annotations


class Option:
    """Metadata of an option; its type and default are those of the field or parameter.

    flags: the names, such as `--json` or `--ui/--no-ui`; by default derived from the
        field's.
    help: description.
    group: heading in the help.
    metavar: placeholder for the value in the help; by default the type's name.
    minimum, maximum: bounds of a number, both allowed.
    is_hidden: the help leaves it out.
    """

    def __init__(
        self,
        *flags: str,
        help: str = "",
        group: str = "Options",
        metavar: str | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        is_hidden: bool = False,
    ) -> None:
        self.flags = flags
        self.help = help
        self.group = group
        self.metavar = metavar
        self.minimum = minimum
        self.maximum = maximum
        self.is_hidden = is_hidden


class Argument:
    """Metadata of a positional argument; one with a default may be left out.

    metavar: its name in the usage line.
    help: description.
    """

    def __init__(self, *, metavar: str, help: str = "") -> None:
        self.metavar = metavar
        self.help = help
