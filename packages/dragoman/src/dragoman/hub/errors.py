"""Errors of hubs, with messages that end with the next step."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

_STATUS_MESSAGES = {
    401: "{endpoint} does not accept HF_TOKEN; create a token and set it",
    403: "HF_TOKEN may not read {name}; use a token of an account that has access to it",
    451: "{name} has been disabled at {endpoint}; choose another model",
    429: "the rate limit of {endpoint} is exceeded; retry in a few minutes, or set HF_TOKEN for a "
    "higher limit",
}


class HubError(ValueError):
    """A model cannot be found or downloaded. The message is one sentence that ends with
    the next step.
    """


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise HubError instead of the errors of `huggingface_hub` and of the network.
    name: the model, for messages.
    """
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        message = _describe_error(name, error)
        if message is None:
            raise
        raise HubError(message) from error


def _describe_error(name: str, error: Exception) -> str | None:  # noqa: PLR0911 - a table
    """Describe an error of the hub, the network or the disk in one sentence; None for
    any other error.
    """
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    endpoint = constants.ENDPOINT
    # LocalEntryNotFoundError only says that the download failed; its cause says why.
    is_local = isinstance(error, errors.LocalEntryNotFoundError)
    cause = error.__cause__ if is_local else error
    # httpx2's errors, or httpx's with huggingface_hub 1.
    is_network_error = is_local or any(
        base.__name__ == "TransportError" for base in type(cause).__mro__
    )
    match error:
        case errors.GatedRepoError():
            return (
                f"{name} is gated: accept its terms at {endpoint}/{name} and set HF_TOKEN to a "
                f"token of that account"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"{name} does not exist at {endpoint}, or is private; check the spelling, or set "
                f"HF_TOKEN to a token "
                "that may read it"
            )
        case errors.RevisionNotFoundError():
            return f"{name} has no such revision; see {endpoint}/{name}/commits/main"
        case errors.HFValidationError():
            return f"{name} is not the id of a repository; write `org/name`"
        case errors.HfHubHTTPError():
            status = error.response.status_code
            message = _STATUS_MESSAGES.get(
                status, "{endpoint} returned status {status} for {name}; retry later"
            )
            return message.format(endpoint=endpoint, name=name, status=status)
        case _ if isinstance(cause, errors.OfflineModeIsEnabled):
            return (
                f"{name} is not completely downloaded, and HF_HUB_OFFLINE is set; unset it and "
                f"run `dragoman pull "
                f"{name}`"
            )
        case _ if isinstance(cause, errors.FileMetadataError):
            return f"{endpoint} does not answer like a Hugging Face hub; check HF_ENDPOINT"
        case _ if is_network_error:
            return (
                f"{endpoint} cannot be reached; check the network, HF_ENDPOINT and the proxy "
                f"settings"
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return (
                f"the disk is full; free space, then run the command again to continue the "
                f"download of {name} "
                "(HF_HUB_CACHE selects another disk)"
            )
        case _:
            return None


class DownloadCancelled(Exception):
    """The download was cancelled. It can be resumed."""
