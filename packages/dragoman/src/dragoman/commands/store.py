"""`dragoman store`: backup, check and statistics of the store that `dragoman serve
--store` uses.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click

from dragoman_cli import (
    Argument,
    Option,
    build_command,
    build_group,
    print_error,
    print_warning,
    render_table,
)

from ..settings import SettingsError
from .errors import COMMAND_ERRORS

VARIABLE = "DRAGOMAN_STORE"
STORE_FILE = "store.db"
KEY_FILE = "store.db.key"
KEYS_FILE = "keys.yaml"

Store = Annotated[
    str | None,
    Option(
        "--store",
        metavar="STORE",
        help=f"The store: `sqlite` or `sqlite:PATH`, as for `dragoman serve`; by default "
        f"{VARIABLE}, else `sqlite`.",
    ),
]


def back_up_store(
    folder: Annotated[
        str, Argument(metavar="FOLDER", help="A new folder for the copy; it may not exist yet.")
    ],
    store: Store = None,
    keys_file: Annotated[
        str | None,
        Option(
            "--keys-file",
            metavar="FILE",
            help="Copy this file of API keys too; by default DRAGOMAN_KEYS_FILE.",
        ),
    ] = None,
) -> None:
    """Copy the store, its secret key and the file of API keys to a new folder, also
    while the server runs.

    The copy is the state of one moment, is checked, and can be read by this user only.
    """
    from ..launch.secret_key import find_key_file  # noqa: PLC0415 - imports the whole server
    from ..store.sqlite_maintenance import back_up  # noqa: PLC0415 - `--help` needs no SQLite

    target = Path(folder)
    source = _find_sqlite_file(store)
    keys = keys_file or os.environ.get("DRAGOMAN_KEYS_FILE")
    if target.exists():
        raise SettingsError(f"{folder} exists; a backup needs a new folder")
    # Renamed at the end: a folder of this name is always a whole backup.
    draft = target.with_name(f"{target.name}.partial")
    if draft.exists():
        raise SettingsError(f"{draft} is left from a backup that was interrupted; remove it")
    draft.mkdir(mode=0o700, parents=True)
    try:
        back_up(source, draft / STORE_FILE)
        copied = [STORE_FILE]
        secret = find_key_file(_read_store(store), os.environ)
        if secret.is_file():
            _copy_private(secret, draft / KEY_FILE)
            copied.append(KEY_FILE)
        if keys:
            _copy_private(Path(keys), draft / KEYS_FILE)
            copied.append(KEYS_FILE)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft)
        raise
    click.echo(f"{folder}: {', '.join(copied)} ({_format_size(target / STORE_FILE)})")
    if KEY_FILE not in copied:
        print_warning(
            f"there is no {secret}: the server has its key from DRAGOMAN_SECRET_KEY or "
            "--secret-key, which is not in this backup"
        )


def check_store(store: Store = None) -> None:
    """Read the whole store and report damage; exit with 1 if there is any."""
    from ..store.sqlite_maintenance import find_problems  # noqa: PLC0415 - as above

    path = _find_sqlite_file(store)
    problems = find_problems(path)
    for problem in problems:
        print_error(f"{path}: {problem}")
    if problems:
        raise click.exceptions.Exit(1)
    click.echo(f"{path}: no problems")


def show_stats(store: Store = None) -> None:
    """Show what is in the store, by kind."""
    from ..hub import format_bytes  # noqa: PLC0415 - as above
    from ..store.sqlite_maintenance import measure  # noqa: PLC0415 - as above

    path = _find_sqlite_file(store)
    stats = measure(path)
    rows = [("KIND", "RECORDS", "BYTES", "KEYS", "OLDEST", "NEWEST")]
    rows += [
        (
            kind.kind,
            str(kind.records),
            format_bytes(kind.size),
            str(kind.owners),
            *(datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d") for time in kind.created),
        )
        for kind in stats.kinds
    ]
    click.echo(
        f"{path}: schema {stats.schema}, {format_bytes(stats.file_size)} and "
        f"{format_bytes(stats.wal_size)} of write-ahead log, {format_bytes(stats.free_size)} free"
    )
    click.echo(render_table(rows), nl=False)


def _read_store(store: str | None) -> str:
    return store or os.environ.get(VARIABLE) or "sqlite"


def _find_sqlite_file(store: str | None) -> Path:
    """Return the file of the store.

    Raises:
        SettingsError: it is not in SQLite.
    """
    from ..launch.store_builder import find_store_file  # noqa: PLC0415 - imports the whole server

    kind, _, path = _read_store(store).partition(":")
    match kind:
        case "sqlite":
            return find_store_file(path, os.environ)
        case "postgresql" | "postgres":
            raise SettingsError(
                "--store: a store in PostgreSQL is backed up with PostgreSQL's tools: "
                "`pg_dump --format=custom --table='dragoman_*' DATABASE`, and `pg_restore` to "
                "restore it; see docs/operations.md"
            )
        case "memory" | "none":
            raise SettingsError(f"--store: `{kind}` keeps nothing that could be backed up")
        case _:
            raise SettingsError(
                f"--store: must be `sqlite` or `sqlite:PATH`, not `{kind}`; the stores of "
                "plug-ins and the counts in Redis have tools of their own"
            )


def _copy_private(source: Path, target: Path) -> None:
    """Copy a file of secrets to a new file with mode 0600. Raises OSError."""
    data = source.read_bytes()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _format_size(path: Path) -> str:
    from ..hub import format_bytes  # noqa: PLC0415 - as above

    return format_bytes(path.stat().st_size)


COMMAND = build_group(
    "store",
    "Back up, check and measure the store.",
    [
        build_command("backup", back_up_store, errors=COMMAND_ERRORS),
        build_command("check", check_store, errors=COMMAND_ERRORS),
        build_command("stats", show_stats, errors=COMMAND_ERRORS),
    ],
)
