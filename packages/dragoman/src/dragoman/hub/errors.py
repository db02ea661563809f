"""Errors of hubs, with messages that end with the next step."""

from __future__ import annotations

import errno
from collections.abc import Generator, Mapping
from contextlib import contextmanager

MAX_MESSAGE_CHARACTERS = 600


def clean_message(text: str) -> str:
    """Make one line without control characters of a message with foreign names, and
    leave out its middle if it is too long.
    """
    line = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    half = MAX_MESSAGE_CHARACTERS // 2
    return line if len(line) <= 2 * half else f"{line[:half]}...{line[-half:]}"


class HubError(ValueError):
    """A model cannot be found or downloaded. The message is one sentence that ends with
    the next step.
    """

    def __init__(self, message: str) -> None:
        super().__init__(clean_message(message))


class HubUnavailable(HubError):
    """The hub answers that it cannot serve the request now; a later one may succeed."""


class DownloadCancelled(Exception):
    """The download was cancelled. It can be resumed."""


_STATUS_MESSAGES = {
    401: "{endpoint} does not accept HF_TOKEN; create a token and set it",
    403: "access to {name} is forbidden; set HF_TOKEN to a token of an account that has access",
    429: "the rate limit of {endpoint} is exceeded; retry in a few minutes, or set HF_TOKEN for a "
    "higher limit",
    451: "{name} has been disabled at {endpoint}; choose another model",
}


def build_status_error(name: str, status: int, headers: Mapping[str, str]) -> HubError:
    """Build the error for an answer of the hub that is not a success.

    The hub's codes: https://github.com/huggingface/huggingface_hub, `hf_raise_for_status`.

    name: the model, for messages.
    """
    from huggingface_hub import constants  # noqa: PLC0415 - takes a fifth of a second

    endpoint = constants.ENDPOINT
    code = headers.get("x-error-code")
    reason = headers.get("x-error-message")
    if code == "GatedRepo":
        return HubError(
            f"{name} is gated: accept its terms at {endpoint}/{name} and set HF_TOKEN to a token "
            f"of that account"
        )
    if code == "RevisionNotFound":
        return HubError(f"{name} has no such revision; see {endpoint}/{name}/commits/main")
    if code == "EntryNotFound":
        return HubError(f"{endpoint} lacks a listed file of {name}; choose another revision")
    if reason == "Access to this resource is disabled.":
        status = 451
    elif (
        code == "RepoNotFound"
        or status == 404
        # Without a token, the hub does not reveal what exists.
        or (status == 401 and reason != "Invalid credentials in Authorization header")
    ):
        return HubError(
            f"{name} does not exist at {endpoint}, or is private; check the spelling, or set "
            f"HF_TOKEN to a token that may read it"
        )
    message = _STATUS_MESSAGES.get(
        status, "{endpoint} returned status {status} for {name}; retry later"
    ).format(endpoint=endpoint, name=name, status=status)
    return HubUnavailable(message) if status == 429 or status >= 500 else HubError(message)


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise HubError instead of any other error: all that a foreign repository, the
    network or the disk can cause. name: the model, for messages.
    """
    try:
        yield
    except (HubError, DownloadCancelled):
        raise
    except Exception as error:
        raise HubError(_describe_error(name, error)) from error


def _describe_error(name: str, error: Exception) -> str:
    """Describe an error of the hub, the network or the disk in one sentence."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    from dragoman_http import HttpClientError, InvalidRedirect  # noqa: PLC0415 - see `dragoman.hub`

    endpoint = constants.ENDPOINT
    match error:
        case errors.HFValidationError():
            return f"{name} is not the id of a repository; write `org/name`"
        case InvalidRedirect():
            return (
                f"{endpoint} redirects requests for {name} to addresses that cannot be followed; "
                f"check HF_ENDPOINT"
            )
        case HttpClientError():
            return (
                f"{endpoint} cannot be reached; check the network, HF_ENDPOINT and the proxy "
                f"settings"
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return (
                f"the disk is full; free space, then run the command again to continue the "
                f"download of {name} (HF_HUB_CACHE selects another disk)"
            )
        case OSError():
            reason = error.strerror or type(error).__name__
            return f"the cache of {name} cannot be used ({reason}); check HF_HUB_CACHE"
        case _:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"{name} cannot be used ({reason}); choose another repository or revision"
