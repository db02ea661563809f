"""The `dragoman` command: it finds and runs the sub-commands of the installed packages.

A package registers each of its sub-commands in the entry point group `dragoman.commands`:
the name is the sub-command's, the object a `click.Command`, as `build_command` makes it
from a dataclass or a function. Only the chosen sub-command is imported.
"""

from .command import Command, build_command
from .options import Argument, Option
from .output import print_error, print_warning, read_file, render_table, report_errors
from .progress import OnProgress, show_progress

__all__ = [
    "Argument",
    "Command",
    "OnProgress",
    "Option",
    "build_command",
    "print_error",
    "print_warning",
    "read_file",
    "render_table",
    "report_errors",
    "show_progress",
]
