"""The `dragoman` command: it finds and runs the sub-commands of the installed packages.

A package registers each of its sub-commands in the entry point group
`dragoman.commands`: the name is the sub-command's, the object a `click.Command`, as
`build_command` makes it from a dataclass or a function. Only the chosen sub-command is
imported.
"""

from .command import Command, CommandArgument, CommandOption, build_command, build_group
from .foreign_flags import ForeignFlag, explain_foreign_flag, list_flags
from .main import CommandLine
from .options import Argument, Option
from .output import (
    print_error,
    print_text,
    print_warning,
    read_file,
    render_table,
    report_errors,
)
from .progress import OnProgress, show_progress

__all__ = [
    "Argument",
    "Command",
    "CommandArgument",
    "CommandLine",
    "CommandOption",
    "ForeignFlag",
    "OnProgress",
    "Option",
    "build_command",
    "build_group",
    "explain_foreign_flag",
    "list_flags",
    "print_error",
    "print_text",
    "print_warning",
    "read_file",
    "render_table",
    "report_errors",
    "show_progress",
]
