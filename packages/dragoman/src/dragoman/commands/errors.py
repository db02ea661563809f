"""The errors of the server that its commands report in one line."""

from ..core.errors import DragomanError
from ..settings import SettingsError

COMMAND_ERRORS = (DragomanError, SettingsError)
"""Types of errors whose message is meant for the user of a command."""
