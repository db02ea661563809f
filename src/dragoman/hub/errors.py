"""The error of this package, and one sentence for each error of `huggingface_hub`."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager


class HubError(ValueError):
    """A model cannot be found or downloaded. The message is one sentence that ends with the next step."""


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise HubError instead of the errors of `huggingface_hub` and of the network. name: the model, for messages."""
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        message = _describe_answer(name, error) or _describe_failure(name, error)
        if message is None:
            raise
        raise HubError(message) from error


def _describe_answer(name: str, error: Exception) -> str | None:
    """The sentence for an error that the hub answered with."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    endpoint = constants.ENDPOINT
    match error:
        case errors.GatedRepoError():
            return f"{name} is gated: accept its terms at {endpoint}/{name} and set HF_TOKEN to a token of that account"
        case errors.RepositoryNotFoundError():
            return (
                f"{name} does not exist at {endpoint}, or is private; check the spelling, or set HF_TOKEN to a token "
                "that may read it"
            )
        case errors.RevisionNotFoundError():
            return f"{name} has no such revision; see {endpoint}/{name}/commits/main"
        case errors.HFValidationError():
            return f"{name} is not the id of a repository; write `org/name`"
        case errors.HfHubHTTPError():
            return _describe_status(name, error.response.status_code, endpoint)
        case _:
            return None


def _describe_failure(name: str, error: Exception) -> str | None:
    """The sentence for an error of this machine or of the network; None for any other error."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    # LocalEntryNotFoundError says that a file could not be downloaded, and its cause why.
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return (
            f"{name} is not completely downloaded, and HF_HUB_OFFLINE is set; unset it and run `dragoman pull {name}`"
        )
    if isinstance(cause, errors.FileMetadataError):
        return f"{constants.ENDPOINT} does not answer as a hub does; check HF_ENDPOINT"
    # httpx2's errors, or httpx's with huggingface_hub 1.
    is_network_error = any(base.__name__ == "TransportError" for base in type(cause).__mro__)
    if is_network_error or isinstance(error, errors.LocalEntryNotFoundError):
        return f"{constants.ENDPOINT} cannot be reached; check the network, HF_ENDPOINT and the proxy settings"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full; free space, then run the command again to continue the download of {name} "
            "(HF_HUB_CACHE selects another disk)"
        )
    return None


def _describe_status(name: str, status: int, endpoint: str) -> str:
    match status:
        case 401:
            return f"{endpoint} does not accept HF_TOKEN; create a token and set it"
        case 403:
            return f"HF_TOKEN may not read {name}; use a token of an account that has access to it"
        case 451:
            return f"{name} has been disabled at {endpoint}; choose another model"
        case 429:
            return f"{endpoint} limits the rate of requests; retry in a few minutes, or set HF_TOKEN for a higher limit"
        case _:
            return f"{endpoint} returned status {status} for {name}; retry later"
