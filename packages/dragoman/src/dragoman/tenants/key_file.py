"""The keys file: names, hashes, roles and limits of API keys. It never contains a key.

    keys:
      team-a:
        id: key_3f0c...                 # owner of the key's stored objects; unchanged when the key is rotated
        secrets:
          - sha256: 9f86d081...
        requests_per_minute: 600

Generated keys have 256 random bits, so their plain SHA-256 cannot be reversed by
guessing, unlike that of a key that a person chose.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

Role = Literal["user", "admin", "metrics"]
PREFIX = "sk-dragoman-"
MAX_KEYS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class KeyFileError(ValueError):
    """The file is invalid. The message names the file and the entry, and never a key or
    a hash.
    """


class KeyHash(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The hash of one key.

    sha256: SHA-256 of the key, in hexadecimal.
    expires: time at which the key expires; None means never.
    """

    sha256: str
    expires: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or self.expires > now


class Tenant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A named API key; during a rotation it has several secrets. A limit of None means
    unlimited.

    id: owner of the tenant's stored objects; derived from the name if absent.
    role: `metrics` may only read the metrics, those of all keys.
    secrets: hashes of the valid keys.
    models: names of allowed models, or patterns such as `qwen*`; empty for all.
    weight: share of a busy engine, relative to other keys.
    disabled: the key is rejected.
    """

    id: str = ""
    secrets: tuple[KeyHash, ...] = ()
    role: Role = "user"
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    weight: float = 1.0
    created: datetime | None = None
    disabled: bool = False


class _KeyFile(Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[str, Tenant] = {}


def generate_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def generate_id() -> str:
    return f"key_{secrets.token_hex(12)}"


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def load_key_file(path: Path) -> Mapping[str, Tenant]:
    """Load the tenants by name. Raises KeyFileError or OSError."""
    return parse_key_file(path, path.read_bytes())


def describe_key_file_error(path: Path, error: OSError | ValueError) -> str:
    """Return the path of a file that cannot be used, and the reason."""
    reason = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{path}: ")
    return f"{path}: {reason}"


def _load_yaml(path: Path, data: bytes) -> object:
    """Load a YAML document.

    Raises:
        KeyFileError: it is not YAML, or a mapping has a name twice.
    """
    import yaml  # noqa: PLC0415 - as above

    from ..core.strict_yaml import DuplicateKeyError, StrictLoader  # noqa: PLC0415 - as above

    try:
        return StrictLoader(data).get_single_data()
    except DuplicateKeyError as error:
        raise KeyFileError(f"{path}: the mapping at line {error.line} has a name twice") from None
    # ValueError: an impossible date. RecursionError: deep nesting.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # The error's own text quotes the line, which could be a key that was pasted
        # into the wrong place.
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise KeyFileError(f"{path}{line}: not valid YAML") from None


def parse_key_file(path: Path, data: bytes) -> Mapping[str, Tenant]:
    """Parse the file's content. Raises KeyFileError, whose message begins with the
    path.
    """
    raw = _load_yaml(path, data)
    try:
        tenants = msgspec.convert({} if raw is None else raw, _KeyFile, strict=True).keys
    except msgspec.ValidationError as error:
        raise KeyFileError(f"{path}: {error}") from None
    if len(tenants) > MAX_KEYS:
        raise KeyFileError(f"{path}: at most {MAX_KEYS} keys are supported")
    for name, tenant in tenants.items():
        if not tenant.id:
            # Derived, not random: ids own stored objects, so they must be the same
            # after a restart.
            id = f"key_{hashlib.sha256(f'dragoman tenant {name}'.encode()).hexdigest()[:24]}"
            tenants[name] = msgspec.structs.replace(tenant, id=id)
    seen_hashes: dict[str, str] = {}
    seen_ids: dict[str, str] = {}
    for name, tenant in tenants.items():
        problem = _find_problem(name, tenant)
        if problem is not None:
            raise KeyFileError(f"{path}: keys.{name[:64]}: {problem}")
        if (other := seen_ids.setdefault(tenant.id, name)) != name:
            raise KeyFileError(f"{path}: keys.{name}: has the same id as {other}")
        for key_hash in tenant.secrets:
            if key_hash.sha256 in seen_hashes:
                raise KeyFileError(
                    f"{path}: keys.{name}: has the same key as {seen_hashes[key_hash.sha256]}"
                )
            seen_hashes[key_hash.sha256] = name
    return tenants


def _find_problem(name: str, tenant: Tenant) -> str | None:
    expiries = [key_hash.expires for key_hash in tenant.secrets if key_hash.expires is not None]
    problems = {
        "a name is 1 to 64 letters, digits, `.`, `_` and `-`, and begins with a letter or digit": not _NAME.fullmatch(  # noqa: E501
            name
        ),
        "id: 1 to 64 letters, digits, `_` and `-`": not _ID.fullmatch(tenant.id),
        # `tiny,qwen*` is one pattern, which matches no model: the key would have none.
        "models: an item is one name or pattern; write `[tiny, 'qwen*']` for two": any(
            not pattern.strip() or "," in pattern for pattern in tenant.models
        ),
        "secrets: sha256 must be 64 lower-case hexadecimal digits, the SHA-256 of the key": not all(
            _SHA256.fullmatch(key_hash.sha256) for key_hash in tenant.secrets
        ),
        "secrets: expires needs a time zone, such as 2027-01-01T00:00:00Z": any(
            expires.tzinfo is None for expires in expiries
        ),
        "weight must be from 0.001 to 1000": not 0.001 <= tenant.weight <= 1000,
    }
    for field in ("requests_per_minute", "tokens_per_minute", "concurrent_requests"):
        is_valid = _is_in_range(getattr(tenant, field), minimum=1)
        problems[f"{field} must be at least 1; use `disabled: true` to lock a key"] = not is_valid
    for field in ("tokens_per_day", "tokens_per_month"):
        problems[f"{field} must not be negative"] = not _is_in_range(
            getattr(tenant, field), minimum=0
        )
    return next((problem for problem, is_found in problems.items() if is_found), None)


def _is_in_range(value: int | None, *, minimum: int) -> bool:
    return value is None or minimum <= value <= 10**15


def edit_key_file(
    path: Path,
    edit: Callable[[dict[str, Tenant]], None],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Edit the file's tenants, and replace the file atomically. A new file gets the
    mode 0600.

    edit: changes the dict of tenants by name.

    Raises:
        KeyFileError: the file is invalid, before or after the edit.
        OSError: the file cannot be read or replaced.
    """
    # Replace the target of a symbolic link, not the link: a server may read the target
    # directly.
    path = Path(os.path.realpath(path))
    with _lock(path):
        try:
            tenants = dict(load_key_file(path))
            old_stat = path.stat()
        except FileNotFoundError:
            tenants = {}
            old_stat = None
        edit(tenants)
        data = _render(tenants, now())
        # Validate before writing: an invalid entry would lock out all clients at the
        # next reload.
        parse_key_file(path, data)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                # A power failure may otherwise preserve the rename but not the content;
                # an empty file would lock out all clients.
                os.fsync(file.fileno())
            new_stat = os.stat(temporary)
            # Keep the former owner and mode: the server often runs as another user than
            # `dragoman keys`, and could not read a file of that user with mode 0600.
            if old_stat is not None and (new_stat.st_uid, new_stat.st_gid) != (
                old_stat.st_uid,
                old_stat.st_gid,
            ):
                os.chown(temporary, old_stat.st_uid, old_stat.st_gid)
            if old_stat is not None:
                os.chmod(temporary, old_stat.st_mode & 0o777)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def _render(tenants: Mapping[str, Tenant], now: datetime) -> bytes:
    import yaml  # noqa: PLC0415 - as above

    live = {
        name: msgspec.structs.replace(
            # Without a valid one, the expired hashes stay: the server says to their
            # owner that the key has expired.
            tenant,
            secrets=tuple(secret for secret in tenant.secrets if secret.is_valid(now))
            or tenant.secrets,
        )
        for name, tenant in tenants.items()
    }
    builtins = msgspec.to_builtins(_KeyFile(live), builtin_types=(datetime,))
    head = (
        "# Written by `dragoman keys`. It contains hashes of keys, never a key. Running "
        "servers notice changes.\n"
    )
    return (head + yaml.safe_dump(builtins, sort_keys=False, allow_unicode=True)).encode()


@contextmanager
def _lock(path: Path) -> Generator[None]:
    """Lock the file against concurrent edits. Without `fcntl` (Windows) the last edit
    wins.
    """
    try:
        import fcntl  # noqa: PLC0415 - only on Unix
    except ImportError:
        yield
        return
    with open(
        # A separate lock file: the keys file is replaced, and a lock would stay with
        # the replaced file.
        path.with_name(f".{path.name}.lock"),
        "a",
        opener=lambda name, flags: os.open(name, flags, 0o600),
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
