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


def test_without_keys_every_client_may_use_the_server() -> None:
    assert admit(keyring=Keyring()) == Caller()


def test_bearer_and_x_api_key_name_the_same_caller() -> None:
    assert (
        admit(authorization="Bearer alpha")
        == admit(x_api_key="alpha")
        == admit(authorization="bearer  alpha ")
    )


def test_an_owner_does_not_reveal_its_key() -> None:
    assert "alpha" not in admit(x_api_key="alpha").owner


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer nope"}, {"authorization": "Basic alpha"}, {"x_api_key": ""}],
)
def test_no_good_key_is_a_401(headers: dict[str, str]) -> None:
    with pytest.raises(AuthenticationError):
        KEYS.authenticate(
            Headers({name.replace("_", "-"): value for name, value in headers.items()}), Access.USER
        )


def test_trap_20_with_both_headers_any_valid_one_wins() -> None:
    assert admit(authorization="Bearer stale", x_api_key="alpha") == admit(x_api_key="alpha")
    assert admit(authorization="Bearer alpha", x_api_key="stale") == admit(x_api_key="alpha")


def test_two_good_keys_of_different_owners_are_refused() -> None:
    with pytest.raises(AuthenticationError, match="two different owners"):
        admit(authorization="Bearer alpha", x_api_key="beta")


def test_a_user_is_no_administrator() -> None:
    with pytest.raises(PermissionDenied):
        admit(Access.ADMIN, x_api_key="alpha")
    assert admit(Access.ADMIN, x_api_key="root").is_admin


def test_a_key_that_is_not_ascii_is_refused_and_breaks_nothing() -> None:
    with pytest.raises(AuthenticationError):
        KEYS.authenticate(Headers(raw=[(b"x-api-key", b"\xff\xfe")]), Access.USER)
