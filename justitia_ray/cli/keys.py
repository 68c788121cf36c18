"""`justitia keys`: create, list and revoke API keys, in a file or in an application's Redis."""

import argparse
import asyncio
import errno
import json
import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from justitia_ray.access.identity import Scope
from justitia_ray.access.key_file import add_key, read_key_file, remove_key
from justitia_ray.access.keys import (
    DEFAULT_SCOPES,
    KeyRecord,
    NewKey,
    create_key,
    is_key_id,
    looks_like_key,
    public_id,
    public_json,
    read_time,
    record_to_json,
    records_from_json,
    write_time,
)
from justitia_ray.cli.text_table import format_cell, text_table
from justitia_ray.errors import ConfigError

if TYPE_CHECKING:
    from justitia_ray.config import AppConfig
    from justitia_ray.store.key_store import KeyStore

MakeKey = Callable[[Collection[str]], NewKey]
"""Function that creates an API key whose id is not among the given ids."""

_DURATION = re.compile(r"([0-9]{1,6})([hd])")
_HOURS = {"h": 1, "d": 24}

T = TypeVar("T")


class KeyStorage(Protocol):
    """Interface of a store of API keys: a file or a Redis."""

    name: str
    """Path of the key file, or address of the Redis, for messages."""

    def load(self) -> tuple[Sequence[KeyRecord], Sequence[str]]:
        """Return the readable API keys, and an error message for each unreadable one."""

    def add(self, make_key: MakeKey) -> NewKey: ...

    def remove(self, key_id: str) -> tuple[bool, KeyRecord | None]:
        """Remove an API key; return whether it existed, and its record if readable."""


class FileKeyStorage:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    def load(self) -> tuple[Sequence[KeyRecord], Sequence[str]]:
        """Return the API keys of the file; raise ConfigError if it is malformed."""
        return read_key_file(self._path), ()

    def add(self, make_key: MakeKey) -> NewKey:
        return add_key(self._path, make_key)

    def remove(self, key_id: str) -> tuple[bool, KeyRecord | None]:
        """Remove an API key; return whether it existed, and its record."""
        record = remove_key(self._path, key_id)
        return record is not None, record


class RedisKeyStorage:
    """API keys in an application's Redis; each operation opens the store anew."""

    def __init__(self, name: str, open_store: Callable[[], "KeyStore"]) -> None:
        self.name = name
        self._open = open_store

    def load(self) -> tuple[Sequence[KeyRecord], Sequence[str]]:
        """Return the API keys in Redis, and an error message for each damaged entry."""

        async def load(store: "KeyStore") -> tuple[Sequence[KeyRecord], Sequence[str]]:
            stored = await store.load()
            records, damage = records_from_json(stored.records)
            return records, [*stored.damage, *damage]

        return self._run_with_store(load)

    def add(self, make_key: MakeKey) -> NewKey:
        """Store a new API key in Redis; if its id is taken, try another id."""

        async def add(store: "KeyStore") -> NewKey:
            taken: set[str] = set()
            while True:
                new = make_key(taken)
                if await store.add(record_to_json(new.record)):
                    return new
                taken.add(new.record.key_id)

        return self._run_with_store(add)

    def remove(self, key_id: str) -> tuple[bool, KeyRecord | None]:
        """Remove an API key; return whether it existed, and its record if readable."""

        async def remove(store: "KeyStore") -> tuple[bool, KeyRecord | None]:
            records, _ = records_from_json((await store.load()).records)
            found = next((record for record in records if record.key_id == key_id), None)
            return await store.revoke(key_id), found

        return self._run_with_store(remove)

    def _run_with_store(self, work: Callable[["KeyStore"], Awaitable[T]]) -> T:
        async def run() -> T:
            async with aclosing(self._open()) as store:
                return await work(store)

        return asyncio.run(run())


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "keys",
        help="create, list and revoke API keys",
        description=(
            "Create, list and revoke API keys, in a file or in an application's Redis. A running"
            " service applies changes within `access.reload_s`."
        ),
    )
    subcommands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    creating = subcommands.add_parser(
        "create",
        help="create a key",
        description=(
            "Create a key and print it, alone, to stdout: it is not stored and never shown again."
            " Other output goes to stderr."
        ),
    )
    creating.add_argument(
        "--tenant",
        help="tenant of the key's calls, e.g. acme/search; optional with proxy or operate",
    )
    creating.add_argument("--user", help="user of the key's calls, for logs")
    creating.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help=f"right of the key; repeatable: {', '.join(Scope)} (default: infer and own)",
    )
    creating.add_argument(
        "--max-weight",
        type=float,
        default=1.0,
        help="largest weight of the key's applications (default 1)",
    )
    creating.add_argument(
        "--expires",
        metavar="WHEN",
        help="expiry: days or hours from now, 90d or 12h, or a time, 2027-01-31 or"
        " 2027-01-31T12:00:00Z (default: never)",
    )
    _add_storage_options(creating)
    _add_audit_options(creating)
    creating.set_defaults(run=run_create)
    listing = subcommands.add_parser(
        "list", help="show the keys", description="Show the keys, without their digests."
    )
    listing.add_argument("--json", action="store_true", help="print the keys as JSON")
    _add_storage_options(listing)
    listing.set_defaults(run=run_list)
    revoking = subcommands.add_parser(
        "revoke", help="revoke a key", description="Revoke a key: remove its record."
    )
    revoking.add_argument(
        "key_id", metavar="ID", help="the key's id, 8 digits (`justitia keys list`)"
    )
    _add_storage_options(revoking)
    _add_audit_options(revoking)
    revoking.set_defaults(run=run_revoke)


def run_create(options: argparse.Namespace) -> int:
    """Create an API key and print it.

    Raises:
        ConfigError: If an option or the file is wrong.
        StoreError: If Redis cannot be reached.
    """
    now = time.time()
    expires_at = None if options.expires is None else read_expiry(options.expires, now)

    def make_key(taken: Collection[str] = ()) -> NewKey:
        return create_key(
            tenant=options.tenant,
            user=options.user,
            scopes=options.scope or DEFAULT_SCOPES,
            max_weight=options.max_weight,
            expires_at=expires_at,
            now=now,
            taken=taken,
        )

    make_key()  # a wrong option is reported before anything is written
    place = _storage_of(options)
    with _audit_log(options.audit) as audit:
        new = place.add(make_key)
        try:
            audit.write("audit.key_created", now, new.record.key_id, None, public_json(new.record))
        finally:  # the new key is valid even if the audit line cannot be written
            print(new.secret, flush=True)
    print(f"key {new.record.key_id} is in {place.name}; it is shown this once", file=sys.stderr)
    return 0


def run_list(options: argparse.Namespace) -> int:
    """Print the API keys; return 1 if some of them cannot be read.

    Raises:
        ConfigError: If an option or the file is wrong.
        StoreError: If Redis cannot be reached.
    """
    place = _storage_of(options)
    records, damage = place.load()
    if options.json:
        print(json.dumps({"keys": [public_json(record) for record in records]}, indent=2))
    else:
        print(key_table(records, time.time()))
    for line in damage:
        print(f"justitia keys: {line}", file=sys.stderr)
    return 1 if damage else 0


def run_revoke(options: argparse.Namespace) -> int:
    """Revoke an API key.

    Raises:
        ConfigError: If an option or the file is wrong, or there is no such key.
        StoreError: If Redis cannot be reached.
    """
    key_id = options.key_id
    if looks_like_key(key_id):
        raise ConfigError(
            f"ID is a plain key, of the id {public_id(key_id)} if nothing is cut off: give that"
        )
    if not is_key_id(key_id):
        raise ConfigError("ID must be 8 digits of 0-9 a-f, as `justitia keys list` shows them")
    place = _storage_of(options)
    with _audit_log(options.audit) as audit:
        was_there, record = place.remove(key_id)
        if not was_there:
            raise ConfigError(f"{place.name}: has no key {key_id}")
        before = {"id": key_id} if record is None else public_json(record)
        audit.write("audit.key_revoked", time.time(), key_id, before, None)
    print(f"key {key_id} is revoked in {place.name}", file=sys.stderr)
    return 0


def key_table(records: Sequence[KeyRecord], now: float) -> str:
    """Return a table of API keys for a terminal, without their digests."""
    rows = [["id", "tenant", "user", "scopes", "max weight", "expires (UTC)", "created (UTC)"]]
    for record in records:
        fields = public_json(record)
        expires = format_cell(fields.get("expires"))
        rows.append(
            [
                record.key_id,
                format_cell(record.tenant),
                format_cell(record.user),
                " ".join(fields["scopes"]),
                f"{record.max_weight:g}",
                f"{expires}, expired" if record.is_expired(now) else expires,
                format_cell(fields.get("created")),
            ]
        )
    return text_table(rows)


def read_expiry(text: str, now: float) -> float:
    """Return the time at which an API key expires, in seconds since 1970.

    Args:
        text: A number of days or hours (`90d`, `12h`), a date, or a date with a time.
        now: Seconds since 1970.

    Raises:
        ConfigError: If the text has another form, or the time is not in the future.
    """
    found = _DURATION.fullmatch(text)
    try:
        at = now + 3600 * int(found[1]) * _HOURS[found[2]] if found else read_time(text)
        write_time(at)
    except (ConfigError, ValueError):
        raise ConfigError(
            f"--expires is {text[:40]!r}: a number of days or hours such as 90d or 12h, a day such"
            " as 2027-01-31, or a time such as 2027-01-31T12:00:00Z is allowed, before 10000"
        ) from None
    if int(at) <= now:
        raise ConfigError(f"--expires is {text!r}: a time to come is allowed")
    return at


def _add_storage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=Path, help="file of keys")
    parser.add_argument(
        "--config",
        type=Path,
        help="Serve configuration file whose `access` names the place of the keys; Redis, if it"
        " names both a file and Redis",
    )
    parser.add_argument(
        "--application", metavar="NAME", help="with --config: application, if the file has several"
    )


def _storage_of(options: argparse.Namespace) -> KeyStorage:
    if (options.file is None) == (options.config is None):
        raise ConfigError("--file or --config is required, and not both")
    if options.file is not None:
        if options.application is not None:
            raise ConfigError("--application goes with --config, not with --file")
        return FileKeyStorage(options.file)
    config = _application_config(options.config, options.application)
    access = config.access
    if access is not None and access.keys_in_redis:
        from justitia_ray.serve.stores import key_store

        return RedisKeyStorage(
            f"the Redis of application {config.name!r}", lambda: key_store(config)
        )
    if access is None or access.keys_file is None:
        raise ConfigError(
            f"{options.config}: `access` names neither keys_file nor keys_in_redis, so there is no"
            " place for keys"
        )
    return FileKeyStorage(Path(access.keys_file).expanduser())


def _application_config(path: Path, name: str | None) -> "AppConfig":
    from justitia_ray.serve.ops.config_file import read_applications

    applications = {a.serve_name: a.configs[0] for a in read_applications(path)}
    if name is None and len(applications) == 1:
        return next(iter(applications.values()))
    there = ", ".join(applications)
    if name is None:
        raise ConfigError(f"--application is required: {path} has {there}")
    if name not in applications:
        raise ConfigError(f"--application is {name!r}: {path} has {there}")
    return applications[name]


class AuditLog:
    """Audit log of changes of API keys, appended to a file or written to stderr."""

    def __init__(self, name: str, file: FileIO | None) -> None:
        self._name = name
        self._file = file

    def write(
        self,
        event: str,
        at: float,
        key_id: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        """Write one line about a completed change of an API key.

        Args:
            event: Name of the change.
            at: Seconds since 1970.
            key_id: The key.
            before: Record of the key before the change, without the digest; None if the key did not
                exist.
            after: Record of the key after the change, without the digest; None if the key does not
                exist any more.

        Raises:
            ConfigError: If the line cannot be written.
        """
        line = {
            "event": event,
            "at": write_time(at),
            "who": _local_user(),
            "key_id": key_id,
            "before": before,
            "after": after,
        }
        try:
            self._append_audit_lines(json.dumps(line) + "\n")
        except OSError as error:
            raise ConfigError(
                f"{self._name}: cannot be written: {error.strerror}; the change of key {key_id} is"
                " made"
            ) from error

    def _append_audit_lines(self, text: str) -> None:
        if self._file is None:
            print(text, end="", file=sys.stderr, flush=True)
            return
        data = text.encode()
        # One write call per line keeps the lines of concurrent commands apart.
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="file to which the audit line is appended (default: stderr)",
    )


@contextmanager
def _audit_log(path: Path | None) -> Iterator[AuditLog]:
    """Open the audit log, before any API key is changed.

    Raises:
        ConfigError: If the file cannot be written.
    """
    if path is None:
        yield AuditLog("stderr", None)
        return
    name = f"--audit {path}"
    try:
        file = FileIO(path, "a")
    except OSError as error:
        raise ConfigError(f"{name}: cannot be written: {error.strerror}") from error
    with file:
        yield AuditLog(name, file)


def _local_user() -> str:
    """Return user and host of this process, as `user@host`."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
