"""`dragoman keys`: manages named API keys in the file that `dragoman serve --keys-file`
reads.

A key is never an argument: other users of the machine could read it, and it would
remain in the shell's history. A new key is printed once, alone, to standard output.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, cast, get_args

import click
import msgspec

from dragoman_cli import Argument, Option, build_command, build_group, render_table

from ..settings import SettingsError
from ..tenants import KeyHash, Tenant, edit_key_file, generate_key, hash_key, load_key_file
from ..tenants.key_file import Role, generate_id
from .errors import COMMAND_ERRORS

VARIABLE = "DRAGOMAN_KEYS_FILE"
ROLES: tuple[str, ...] = get_args(Role)
MIN_LENGTH = 32
"""Minimum length in characters of a key from standard input: a shorter one could be
guessed from its hash.
"""
MAX_GRACE = 87_600
"""Maximum grace period in hours: ten years."""
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhdw])", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_UNITS: Mapping[str, timedelta] = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}

KeysFile = Annotated[
    str | None,
    Option(
        "--keys-file",
        metavar="FILE",
        help=f"The file of keys; by default {VARIABLE}.",
    ),
]
Expires = Annotated[
    str | None,
    Option(
        metavar="WHEN",
        help="When the key expires: a duration (12h, 90d, 4w), a date (2027-01-31, its end in "
        "UTC) or a time with its zone. By default never.",
    ),
]
Name = Annotated[str, Argument(metavar="NAME", help="The key's name, which logs and metrics show.")]
FromStdin = Annotated[
    bool, Option("--from-stdin", help="Use the key on standard input instead of a new one.")
]


def _build_limit_option(help_text: str) -> Option:
    return Option(metavar="N", help=help_text)


def add_key(
    name: Name,
    keys_file: KeysFile = None,
    role: Annotated[
        str,
        Option(
            help="`user`, `admin`, or `metrics` for a Prometheus: it may only read /metrics, with "
            "the series of all keys."
        ),
    ] = "user",
    model: Annotated[
        tuple[str, ...],
        Option(
            help="Models that it may use: names or patterns such as `qwen*`, comma-separated. "
            "Repeatable; by default all."
        ),
    ] = (),
    expires: Expires = None,
    requests_per_minute: Annotated[
        int | None, _build_limit_option("Maximum number of requests per minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        _build_limit_option("Maximum number of tokens per minute, prompts and answers together."),
    ] = None,
    concurrent_requests: Annotated[
        int | None, _build_limit_option("Maximum number of requests at the same time.")
    ] = None,
    tokens_per_day: Annotated[int | None, _build_limit_option("Budget of tokens per day.")] = None,
    tokens_per_month: Annotated[
        int | None, _build_limit_option("Budget of tokens per month.")
    ] = None,
    weight: Annotated[
        float, Option(help="Share of a busy engine, in relation to other keys.")
    ] = 1.0,
    from_stdin: FromStdin = False,
) -> None:
    """Add a key, and print it. It is not stored, so it cannot be shown again."""
    key = _read_or_generate(from_stdin=from_stdin)
    if role not in ROLES:
        raise SettingsError(f"--role: must be one of {', '.join(ROLES)}, not {role!r}")
    models = _split_patterns(model)
    now = _now()
    end = None if expires is None else parse_expiry(expires, now)

    def add(tenants: dict[str, Tenant]) -> None:
        if name in tenants:
            raise SettingsError(f"a key {name} already exists; `dragoman keys rotate` replaces it")
        tenants[name] = Tenant(
            id=generate_id(),
            secrets=(KeyHash(hash_key(key), end),),
            role=cast("Role", role),
            models=models,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            concurrent_requests=concurrent_requests,
            tokens_per_day=tokens_per_day,
            tokens_per_month=tokens_per_month,
            weight=weight,
            created=now,
        )

    path = _find_file(keys_file)
    edit_key_file(path, add)
    _print_key(key, path, end, from_stdin=from_stdin)


def list_keys(keys_file: KeysFile = None) -> None:
    """List the keys with their limits and states."""
    rows: list[tuple[str, ...]] = [
        (
            "NAME",
            "ID",
            "ROLE",
            "STATE",
            "EXPIRES",
            "MODELS",
            "REQ/MIN",
            "TOK/MIN",
            "CONCURRENT",
            "TOK/DAY",
            "TOK/MONTH",
        )
    ]
    now = _now()
    for name, tenant in load_key_file(_find_file(keys_file)).items():
        limits = (
            tenant.requests_per_minute,
            tenant.tokens_per_minute,
            tenant.concurrent_requests,
            tenant.tokens_per_day,
            tenant.tokens_per_month,
        )
        numbers = ("-" if limit is None else str(limit) for limit in limits)
        rows.append(
            (
                name,
                tenant.id,
                tenant.role,
                _describe_state(tenant, now),
                _describe_expiry(tenant),
                ",".join(tenant.models) or "all",
                *numbers,
            )
        )
    click.echo(render_table(rows), nl=False)


def _describe_state(tenant: Tenant, now: datetime) -> str:
    n_valid = sum(secret.is_valid(now) for secret in tenant.secrets)
    if tenant.disabled or not tenant.secrets:
        return "revoked"
    if not n_valid:
        return "expired"
    return "rotating" if n_valid > 1 else "active"


def _describe_expiry(tenant: Tenant) -> str:
    """Return when the tenant's last key expires."""
    ends = [secret.expires for secret in tenant.secrets]
    known = [end for end in ends if end is not None]
    return _format_time(max(known)) if known and len(known) == len(ends) else "-"


def rotate_key(
    name: Name,
    keys_file: KeysFile = None,
    grace: Annotated[
        float,
        Option(
            help="Hours for which the former key is accepted too.", minimum=0, maximum=MAX_GRACE
        ),
    ] = 24.0,
    expires: Expires = None,
    from_stdin: FromStdin = False,
) -> None:
    """Give a key's owner a new key, and print it. Limits, usage and stored objects
    stay; the expiry does not.
    """
    key = _read_or_generate(from_stdin=from_stdin)
    now = _now()
    end = now + timedelta(hours=grace)
    new_end = None if expires is None else parse_expiry(expires, now)

    def rotate(tenants: dict[str, Tenant]) -> None:
        tenant = _find(tenants, name)
        # A revoked key must not become valid again when its owner gets a new one.
        former = (
            ()
            if tenant.disabled
            else tuple(
                # The grace period never extends a key that expires earlier.
                secret
                if secret.expires is not None and secret.expires < end
                else KeyHash(secret.sha256, end)
                for secret in tenant.secrets
            )
        )
        secrets = (*former, KeyHash(hash_key(key), new_end))
        tenants[name] = msgspec.structs.replace(tenant, secrets=secrets, disabled=False)

    path = _find_file(keys_file)
    edit_key_file(path, rotate)
    _print_key(key, path, new_end, from_stdin=from_stdin)


def revoke_key(
    name: Name,
    keys_file: KeysFile = None,
    delete: Annotated[
        bool, Option("--delete", help="Remove the entry with its limits too.")
    ] = False,
) -> None:
    """Reject a key. What it stored stays; `rotate` gives its owner a new key."""

    def revoke(tenants: dict[str, Tenant]) -> None:
        tenant = _find(tenants, name)
        tenants[name] = msgspec.structs.replace(tenant, secrets=(), disabled=True)
        if delete:
            del tenants[name]

    path = _find_file(keys_file)
    edit_key_file(path, revoke)
    click.echo(f"{name} is revoked in {path}. {_EFFECT}", err=True)


_EFFECT = "Running servers with this file apply the change within 2 seconds."


def _find_file(keys_file: str | None) -> Path:
    path = keys_file or os.environ.get(VARIABLE)
    if not path:
        raise SettingsError(f"no file of keys: set --keys-file FILE or {VARIABLE}")
    return Path(path)


def _find(tenants: Mapping[str, Tenant], name: str) -> Tenant:
    if name not in tenants:
        raise SettingsError(f"there is no key {name}; there are: {', '.join(tenants) or 'none'}")
    return tenants[name]


def _read_or_generate(*, from_stdin: bool) -> str:
    if not from_stdin:
        return generate_key()
    key = sys.stdin.readline().strip()
    if len(key) < MIN_LENGTH or not all("!" <= character <= "~" for character in key):
        raise SettingsError(
            f"a key has at least {MIN_LENGTH} printable ASCII characters without spaces"
        )
    return key


def _split_patterns(values: Sequence[str]) -> tuple[str, ...]:
    """Return the names and patterns of a repeatable option with comma-separated
    values.

    Raises:
        SettingsError: one is empty, and would match no model.
    """
    patterns = [pattern.strip() for value in values for pattern in value.split(",")]
    if not all(patterns):
        raise SettingsError(
            "--model: a name or a pattern is empty; the value is a comma-separated list such as "
            "`tiny,qwen*`"
        )
    return tuple(patterns)


def parse_expiry(text: str, now: datetime) -> datetime:
    """Parse a duration from now, a date or a time.

    Raises:
        SettingsError: it is none of these, has no time zone, or has passed.
    """
    try:
        if (duration := _DURATION.fullmatch(text.strip())) is not None:
            end = now + int(duration[1]) * _UNITS[duration[2]]
        elif _DATE.fullmatch(text.strip()):
            end = datetime.fromisoformat(text.strip()).replace(tzinfo=UTC) + timedelta(days=1)
        else:
            end = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise SettingsError(
            f"--expires: must be a duration such as 12h, 90d or 4w, a date such as 2027-01-31 or "
            f"a time such as 2027-01-31T18:00:00Z, not {text!r}"
        ) from None
    if end.tzinfo is None:
        raise SettingsError(f"--expires: a time needs its zone, such as {text.strip()}Z")
    if end <= now:
        raise SettingsError(f"--expires: {text} has passed")
    # Whole seconds, as in the list and in errors; rounded up, so that 1s is a second.
    return end.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=end.microsecond > 0)


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_key(key: str, path: Path, end: datetime | None, *, from_stdin: bool) -> None:
    if not from_stdin:
        click.echo(key)
    expiry = "never expires" if end is None else f"expires at {_format_time(end)}"
    click.echo(
        f"Stored in {path} as a hash; the key is not shown again, and {expiry}. {_EFFECT}",
        err=True,
    )


def _now() -> datetime:
    return datetime.now(UTC)


COMMAND = build_group(
    "keys",
    "Manage named API keys.",
    [
        build_command("add", add_key, errors=COMMAND_ERRORS),
        build_command("list", list_keys, errors=COMMAND_ERRORS),
        build_command("rotate", rotate_key, errors=COMMAND_ERRORS),
        build_command("revoke", revoke_key, errors=COMMAND_ERRORS),
    ],
)
