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
    from huggingface_hub import errors  # noqa: PLC0415 - takes a fifth of a second
    from huggingface_hub.constants import ENDPOINT  # noqa: PLC0415 - as above

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{name} is gated: accept its terms at {ENDPOINT}/{name} and set HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{name} does not exist at {ENDPOINT}, or is private; check the spelling, or set HF_TOKEN to a token "
            "that may read it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{name} has no such revision; see {ENDPOINT}/{name}/commits/main") from error
    except errors.DisabledRepoError as error:
        raise HubError(f"{name} has been disabled at {ENDPOINT}; choose another model") from error
    except errors.HFValidationError as error:
        raise HubError(f"{name} is not the id of a repository; write `org/name`") from error
    except errors.OfflineModeIsEnabled as error:
        raise _build_offline_error(name) from error
    except errors.HfHubHTTPError as error:
        raise HubError(_describe_status(name, error.response.status_code, ENDPOINT)) from error
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.OfflineModeIsEnabled):
            raise _build_offline_error(name) from error
        if isinstance(error.__cause__, errors.FileMetadataError):
            raise HubError(f"{ENDPOINT} does not answer as a hub does; check HF_ENDPOINT") from error
        raise _build_network_error(ENDPOINT) from error
    except Exception as error:
        # httpx2's errors, or httpx's with huggingface_hub 1.
        if any(base.__name__ == "TransportError" for base in type(error).__mro__):
            raise _build_network_error(ENDPOINT) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HubError(
                f"the disk is full; free space, then run the command again to continue the download of {name} "
                "(HF_HUB_CACHE selects another disk)"
            ) from error
        raise


def _build_offline_error(name: str) -> HubError:
    return HubError(
        f"{name} is not completely downloaded, and HF_HUB_OFFLINE is set; unset it and run `dragoman pull {name}`"
    )


def _build_network_error(endpoint: str) -> HubError:
    return HubError(f"{endpoint} cannot be reached; check the network, HF_ENDPOINT and the proxy settings")


def _describe_status(name: str, status: int, endpoint: str) -> str:
    match status:
        case 401:
            return f"{endpoint} does not accept HF_TOKEN; create a token and set it"
        case 403:
            return f"HF_TOKEN may not read {name}; use a token of an account that has access to it"
        case 429:
            return f"{endpoint} limits the rate of requests; retry in a few minutes, or set HF_TOKEN for a higher limit"
        case _:
            return f"{endpoint} returned status {status} for {name}; retry later"
