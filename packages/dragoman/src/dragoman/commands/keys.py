"""`dragoman keys`: manages named API keys in the file that `dragoman serve --keys-file`
reads.

A key is never an argument: other users of the machine could read it, and it would
remain in the shell's history. A new key is printed once, alone, to standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import click
import msgspec

from dragoman_cli import Argument, Option, build_command, build_group, render_table

from ..settings import SettingsError
from ..tenants import KeyHash, Tenant, edit_key_file, generate_key, hash_key, load_key_file
from ..tenants.key_file import generate_id
from .errors import COMMAND_ERRORS

VARIABLE = "DRAGOMAN_KEYS_FILE"
MIN_LENGTH = 32
"""Minimum length in characters of a key from standard input: a shorter one could be
guessed from its hash.
"""
MAX_GRACE = 87_600
"""Maximum grace period in hours: ten years."""

KeysFile = Annotated[
    str | None,
    Option(
        "--keys-file",
        metavar="FILE",
        help=f"The file of keys; by default {VARIABLE}.",
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
    role: Annotated[str, Option(help="`user` or `admin`.")] = "user",
    model: Annotated[
        tuple[str, ...],
        Option(
            help="Model that it may use, or a pattern such as `qwen*`. Repeatable; by default all."
        ),
    ] = (),
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
    if role not in ("user", "admin"):
        raise SettingsError(f"--role: must be user or admin, not {role!r}")

    def add(tenants: dict[str, Tenant]) -> None:
        if name in tenants:
            raise SettingsError(f"a key {name} already exists; `dragoman keys rotate` replaces it")
        tenants[name] = Tenant(
            id=generate_id(),
            secrets=(KeyHash(hash_key(key)),),
            role=role,
            models=model,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            concurrent_requests=concurrent_requests,
            tokens_per_day=tokens_per_day,
            tokens_per_month=tokens_per_month,
            weight=weight,
            created=_now(),
        )

    path = _find_file(keys_file)
    edit_key_file(path, add)
    _print_key(key, path, from_stdin=from_stdin)


def list_keys(keys_file: KeysFile = None) -> None:
    """List the keys with their limits and states."""
    rows: list[tuple[str, ...]] = [
        (
            "NAME",
            "ID",
            "ROLE",
            "STATE",
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
        num_valid = sum(secret.expires is None or secret.expires > now for secret in tenant.secrets)
        state = (
            "revoked"
            if tenant.disabled or not num_valid
            else "rotating"
            if num_valid > 1
            else "active"
        )
        limits = (
            tenant.requests_per_minute,
            tenant.tokens_per_minute,
            tenant.concurrent_requests,
            tenant.tokens_per_day,
            tenant.tokens_per_month,
        )
        numbers = ("-" if limit is None else str(limit) for limit in limits)
        rows.append(
            (name, tenant.id, tenant.role, state, ",".join(tenant.models) or "all", *numbers)
        )
    click.echo(render_table(rows), nl=False)


def rotate_key(
    name: Name,
    keys_file: KeysFile = None,
    grace: Annotated[
        float,
        Option(
            help="Hours for which the former key is accepted too.", minimum=0, maximum=MAX_GRACE
        ),
    ] = 24.0,
    from_stdin: FromStdin = False,
) -> None:
    """Give a key's owner a new key, and print it. Limits, usage and stored objects
    stay.
    """
    key = _read_or_generate(from_stdin=from_stdin)
    end = _now() + timedelta(hours=grace)

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
        secrets = (*former, KeyHash(hash_key(key)))
        tenants[name] = msgspec.structs.replace(tenant, secrets=secrets, disabled=False)

    path = _find_file(keys_file)
    edit_key_file(path, rotate)
    _print_key(key, path, from_stdin=from_stdin)


def revoke_key(
    name: Name,
    keys_file: KeysFile = None,
    delete: Annotated[
        bool, Option("--delete", help="Remove the entry with its limits too.")
    ] = False,
) -> None:
    """Reject a key from the next reload on. What it stored stays; `rotate` gives its
    owner a new key.
    """

    def revoke(tenants: dict[str, Tenant]) -> None:
        tenant = _find(tenants, name)
        tenants[name] = msgspec.structs.replace(tenant, secrets=(), disabled=True)
        if delete:
            del tenants[name]

    path = _find_file(keys_file)
    edit_key_file(path, revoke)
    click.echo(f"{name} is revoked in {path}. {_RELOAD}", err=True)


_RELOAD = "A running server reads the file on SIGHUP."


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


def _print_key(key: str, path: Path, *, from_stdin: bool) -> None:
    if not from_stdin:
        click.echo(key)
    click.echo(f"Stored in {path} as a hash; the key is not shown again. {_RELOAD}", err=True)


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
