"""Access control: both headers are checked in one place, on every route."""

import pytest
from starlette.datastructures import Headers

from dragoman.core.errors import AuthenticationError, PermissionDenied
from dragoman.serving.auth import Access, Caller, Keyring

KEYS = Keyring(["alpha", "beta"], ["root"])


def admit(access: Access = Access.USER, keyring: Keyring = KEYS, **headers: str) -> Caller:
    return keyring.authenticate(
        Headers({name.replace("_", "-"): value for name, value in headers.items()}), access
    )


def test_authenticate_without_keys_admits_every_client() -> None:
    assert admit(keyring=Keyring()) == Caller()


def test_authenticate_bearer_and_x_api_key_yield_same_caller() -> None:
    assert (
        admit(authorization="Bearer alpha")
        == admit(x_api_key="alpha")
        == admit(authorization="bearer  alpha ")
    )


def test_caller_owner_does_not_reveal_key() -> None:
    assert "alpha" not in admit(x_api_key="alpha").owner


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer nope"}, {"authorization": "Basic alpha"}, {"x_api_key": ""}],
)
def test_authenticate_without_valid_key_returns_401(headers: dict[str, str]) -> None:
    with pytest.raises(AuthenticationError):
        KEYS.authenticate(
            Headers({name.replace("_", "-"): value for name, value in headers.items()}), Access.USER
        )


def test_authenticate_both_headers_accepts_either_valid_key() -> None:
    assert admit(authorization="Bearer stale", x_api_key="alpha") == admit(x_api_key="alpha")
    assert admit(authorization="Bearer alpha", x_api_key="stale") == admit(x_api_key="alpha")


def test_authenticate_keys_of_two_owners_is_rejected() -> None:
    with pytest.raises(AuthenticationError, match="two different owners"):
        admit(authorization="Bearer alpha", x_api_key="beta")


def test_authenticate_user_key_is_denied_admin_access() -> None:
    with pytest.raises(PermissionDenied):
        admit(Access.ADMIN, x_api_key="alpha")
    assert admit(Access.ADMIN, x_api_key="root").is_admin


def test_authenticate_non_ascii_key_is_rejected() -> None:
    with pytest.raises(AuthenticationError):
        KEYS.authenticate(Headers(raw=[(b"x-api-key", b"\xff\xfe")]), Access.USER)
