"""API keys: their records, the form of records in files and in Redis, and the look-up of a key.

A key is `jk-` and 32 random bytes as 43 characters of base64url. Only the SHA-256 of a key is
stored: 256 random bits cannot be guessed, so a deliberately slow hash would only cost time. The
public name of a key, e.g. in logs, is the first 8 digits of that hash.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import yaml

from justitia_ray.access.identity import MAX_WEIGHT, Identity, Scope, check_tenant
from justitia_ray.errors import ConfigError, RequestError, Unauthenticated, shown_short
from justitia_ray.units import Seconds

JsonObject: TypeAlias = dict[str, Any]

LONGEST_USER = 256
DEFAULT_SCOPES = frozenset({Scope.INFER, Scope.OWN})

_PREFIX = "jk-"
_RANDOM_BYTES = 32
_ID_DIGITS = 8

_ID = re.compile(rf"[0-9a-f]{{{_ID_DIGITS}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# The minimum of 16 characters also finds truncated API keys, but no usual names.
_PLAIN_KEY = re.compile(rf"{_PREFIX}[A-Za-z0-9_-]{{16,}}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:]{8}(Z|[+-][0-9]{2}:[0-9]{2}))?")
_LATEST = 253_402_300_799
"""Last second of the year 9999, in seconds since 1970: the latest expiry of a key."""

_FIELDS = ("id", "sha256", "tenant", "user", "scopes", "max_weight", "expires", "created")
_REQUIRED = ("id", "sha256", "scopes", "max_weight")

_HEADER = (
    "# API keys, as `justitia keys` writes them: it keeps no comments. Hashes, not the keys.\n"
)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Stored record of an API key: its hash, and the rights of its callers."""

    key_id: str
    """Public id of an API key: the first 8 hex digits of its digest."""
    digest: str = field(repr=False)
    """SHA-256 of the whole API key, as 64 hex digits."""
    tenant: str | None
    user: str | None
    scopes: frozenset[Scope]
    max_weight: float
    expires_at: float | None
    """Expiry of an API key in whole seconds since 1970; None: never."""
    created_at: float | None
    """Creation time of an API key in whole seconds since 1970; None: not known."""

    def is_expired(self, now: Seconds) -> bool:
        """Return whether the API key has expired at `now` (seconds since 1970)."""
        return self.expires_at is not None and now >= self.expires_at

    @property
    def identity(self) -> Identity:
        """Identity of a caller with this API key."""
        return Identity(self.tenant, self.scopes, f"key:{self.key_id}", self.user, self.max_weight)


@dataclass(frozen=True, slots=True)
class NewKey:
    """Newly created API key, with its record."""

    secret: str = field(repr=False)
    """The API key itself, which is not stored."""
    record: KeyRecord


class KeyTable:
    """Immutable table of API keys, found by key or by key id.

    Raises:
        ConfigError: If two records have the same id or digest.
    """

    def __init__(self, records: Iterable[KeyRecord] = ()) -> None:
        self.records = tuple(records)
        check_distinct(self.records)
        self._by_digest = {record.digest: record for record in self.records}

    def __len__(self) -> int:
        return len(self.records)

    def record_of(self, secret: str) -> KeyRecord | None:
        """Return the record of an API key, expired or not; None if the key is unknown."""
        digest = _sha256(secret)
        record = self._by_digest.get(digest)
        # A timing attack gains nothing here, because callers cannot choose the digest.
        if record is None or not hmac.compare_digest(record.digest, digest):
            return None
        return record


def find_identity(tables: Iterable[KeyTable], secret: str, now: Seconds) -> Identity:
    """Return the identity of a caller with an API key.

    Args:
        tables: Tables of keys, searched until one contains the key.
        secret: Credential as the caller sent it.
        now: Seconds since 1970.

    Raises:
        Unauthenticated: If the key is unknown or has expired.
    """
    expired = None
    for table in tables:
        record = table.record_of(secret)
        if record is not None:
            if not record.is_expired(now):
                return record.identity
            expired = record
    if expired is not None:
        raise Unauthenticated(f"the API key {expired.key_id} has expired")
    raise Unauthenticated("the API key is not known")


def public_id(secret: str) -> str:
    """Return the public id of an API key, known or unknown, for logs."""
    return _sha256(secret)[:_ID_DIGITS]


def looks_like_key(text: str) -> bool:
    """Return whether a text contains a plain API key, whole or truncated."""
    return _PLAIN_KEY.search(text) is not None


def is_key_id(text: str) -> bool:
    """Return whether a text has the form of an API key's public id."""
    return _ID.fullmatch(text) is not None


def create_key(
    *,
    tenant: str | None,
    user: str | None = None,
    scopes: Iterable[str] = DEFAULT_SCOPES,
    max_weight: float = 1.0,
    expires_at: float | None = None,
    now: Seconds,
    taken: Container[str] = (),
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> NewKey:
    """Return a new random API key.

    Args:
        tenant: Tenant of the key; None only with the scope `proxy` or `operate`.
        user: User who is logged for the key's calls.
        scopes: Rights of the key.
        max_weight: Largest weight that applications with the key may request.
        expires_at: Seconds since 1970, rounded down; None: never.
        now: Seconds since 1970.
        taken: Ids of existing keys.
        random_bytes: Returns the given number of random bytes.

    Raises:
        ConfigError: If a value is not allowed; the message names the field.
    """
    while True:
        text = base64.urlsafe_b64encode(random_bytes(_RANDOM_BYTES)).decode().rstrip("=")
        secret = _PREFIX + text
        if public_id(secret) not in taken:
            break
    fields = {
        "id": public_id(secret),
        "sha256": _sha256(secret),
        "tenant": tenant,
        "user": user,
        "scopes": sorted(scopes),
        "max_weight": max_weight,
        "expires": None if expires_at is None else write_time(expires_at),
        "created": write_time(now),
    }
    if expires_at is not None and int(expires_at) <= now:
        raise ConfigError(f"expires is {fields['expires']}: a time to come is allowed")
    return NewKey(secret, _read_record(fields))


# --- form of records in files


def read_records(text: str) -> tuple[KeyRecord, ...]:
    """Return the API keys of a file written by `write_records`.

    Raises:
        ConfigError: If the file has a mistake; the message names entry, field, value and what is
            allowed, and shows neither a key nor a digest.
    """
    root = _read_yaml(text)
    if not isinstance(root, dict) or "keys" not in root:
        raise ConfigError("a mapping with `keys`, a list, is required")
    for name in root:
        if name != "keys":
            raise ConfigError(f"{_quote(name)} is an unknown field; keys is allowed")
    if not isinstance(root["keys"], list):
        raise ConfigError(f"keys is {_quote(root['keys'])}: a list is required")
    records = []
    for index, fields in enumerate(root["keys"]):
        try:
            records.append(_read_record(fields))
        except ConfigError as error:
            raise ConfigError(f"{_entry_name(index, fields)}: {error}") from None
    check_distinct(records)
    return tuple(records)


def write_records(records: Iterable[KeyRecord]) -> str:
    """Return the text of a key file with these records."""
    entries = [record_to_json(record) for record in records]
    return _HEADER + yaml.safe_dump({"keys": entries}, sort_keys=False, allow_unicode=True)


def check_distinct(records: Sequence[KeyRecord]) -> None:
    """Check that no two API keys have the same id or digest.

    Raises:
        ConfigError: If two keys have the same id or digest.
    """
    by_id: dict[str, int] = {}
    for index, record in enumerate(records):
        # Equal digests are found too: a key's id is the start of its digest.
        first = by_id.setdefault(record.key_id, index)
        if first != index:
            same = "sha256" if records[first].digest == record.digest else "id"
            raise ConfigError(
                f"keys[{index}] ({record.key_id}): its {same} is that of keys[{first}]: each is"
                " allowed once"
            )


def record_to_json(record: KeyRecord) -> JsonObject:
    """Return an API key's record as a JSON object, including its digest."""
    weight = record.max_weight
    fields = {
        "id": record.key_id,
        "sha256": record.digest,
        "tenant": record.tenant,
        "user": record.user,
        "scopes": [scope.value for scope in Scope if scope in record.scopes],
        "max_weight": int(weight) if weight == int(weight) else weight,
        "expires": None if record.expires_at is None else write_time(record.expires_at),
        "created": None if record.created_at is None else write_time(record.created_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


def public_json(record: KeyRecord) -> JsonObject:
    """Return an API key's record as a JSON object without its digest, for output."""
    fields = record_to_json(record)
    del fields["sha256"]
    return fields


def records_from_json(
    stored: Mapping[str, Mapping[str, Any]],
) -> tuple[list[KeyRecord], list[str]]:
    """Return the API keys stored in Redis, with one message for each record that cannot be read."""
    records, damage = [], []
    for key_id, fields in stored.items():
        try:
            record = _read_record(dict(fields))
            if record.key_id != key_id:
                raise ConfigError(f"id is {record.key_id}: another id is that of the entry")
        except ConfigError as error:
            damage.append(f"key {_quote(key_id)}: {error}")
        else:
            records.append(record)
    return records, damage


# --- times


def read_time(text: str) -> float:
    """Parse the expiry of an API key; return seconds since 1970.

    Raises:
        ValueError: If the time is malformed; the message says what is allowed.
    """
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        at = datetime.fromisoformat(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if not 0 <= seconds <= _LATEST:
            raise ValueError
    except ValueError:
        raise ValueError(
            "a time such as 2027-01-31T00:00:00Z, or a day such as 2027-01-31, is allowed, from"
            " 1970 to 9999"
        ) from None
    return seconds


def write_time(at: float) -> str:
    """Format seconds since 1970 as a time in UTC, in whole seconds.

    Raises:
        ConfigError: If the time is not in the years 1970 to 9999.
    """
    if not 0 <= at <= _LATEST:
        raise ConfigError("a time from 1970 to 9999 is allowed")
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- fields of a record


def _read_record(fields: object) -> KeyRecord:
    if not isinstance(fields, dict):
        raise ConfigError(f"is {_quote(fields)}: a mapping of {', '.join(_FIELDS)} is required")
    _check_no_plain_key(fields)
    for name in fields:
        if name not in _FIELDS:
            raise ConfigError(
                f"{_quote(name)} is an unknown field; {', '.join(_FIELDS)} are allowed"
            )
    for name in _REQUIRED:
        if fields.get(name) is None:
            raise ConfigError(f"{name} is required")
    digest = _read_digest(fields["sha256"])
    scopes = _read_scopes(fields["scopes"])
    return KeyRecord(
        key_id=_read_id(fields["id"], digest),
        digest=digest,
        tenant=_read_tenant(fields.get("tenant"), scopes),
        user=_read_user(fields.get("user")),
        scopes=scopes,
        max_weight=_read_weight(fields["max_weight"]),
        expires_at=_read_field_time("expires", fields.get("expires")),
        created_at=_read_field_time("created", fields.get("created")),
    )


def _check_no_plain_key(fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        texts = [name, *(value if isinstance(value, list) else [value])]
        is_cut = name in ("id", "sha256") and str(value).startswith(_PREFIX)
        if is_cut or any(isinstance(text, str) and looks_like_key(text) for text in texts):
            place = name if name in _FIELDS else "a field"
            raise ConfigError(
                f"{place} holds what looks like a plain key: only digests belong here, the SHA-256"
                " of a key as 64 hex digits; revoke this key and make another"
            )


def _read_digest(value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ConfigError(
            f"sha256 has {len(value) if isinstance(value, str) else 'no'} characters: 64 of 0-9 a-f"
            " are required"
        )
    return value


def _read_id(value: object, digest: str) -> str:
    expected = digest[:_ID_DIGITS]
    if value != expected:
        raise ConfigError(
            f"id is {_quote(value)}: the first {_ID_DIGITS} digits of sha256, {expected}, are"
            " required"
        )
    return expected


def _read_scopes(value: object) -> frozenset[Scope]:
    known = [scope.value for scope in Scope]
    allowed = f"a list of {', '.join(known)}, each at most once, is allowed"
    if not isinstance(value, list) or not value:
        raise ConfigError(f"scopes is {_quote(value)}: {allowed}, with one at least")
    for index, name in enumerate(value):
        if not isinstance(name, str) or name not in known or name in value[:index]:
            raise ConfigError(f"scopes has {_quote(name)}: {allowed}")
    return frozenset(map(Scope, value))


def _read_tenant(value: object, scopes: frozenset[Scope]) -> str | None:
    if value is None:
        if scopes.isdisjoint({Scope.PROXY, Scope.OPERATE}):
            raise ConfigError("tenant is required without the scope proxy or operate")
        return None
    if not isinstance(value, str):
        raise ConfigError(f"tenant is {_quote(value)}: a path such as acme/search is allowed")
    try:
        check_tenant(value)
    except RequestError as error:
        raise ConfigError(_redact(str(error))) from None
    return value


def _read_user(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_USER or not value.isprintable():
        raise ConfigError(
            f"user is {_quote(value)}: 1 to {LONGEST_USER} printable characters are allowed"
        )
    return value


def _read_weight(value: object) -> float:
    try:
        weight = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        weight = 0.0
    if isinstance(value, bool) or not 0 < weight <= MAX_WEIGHT:
        raise ConfigError(
            f"max_weight is {_quote(value)}: a number above 0, {MAX_WEIGHT:g} at most, is allowed"
        )
    return weight


def _read_field_time(name: str, value: object) -> float | None:
    if value is None:
        return None
    try:
        return read_time(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ConfigError(f"{name} is {_quote(value)}: {error}") from None


# --- YAML


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's parser in C if available, because it is ten times as fast."""
_NULLS = ("", "~", "null", "Null", "NULL")
_DEPTH = 4
"""Maximum nesting of a key file: the mapping, its list of keys, one key, its scopes."""


def _read_yaml(text: str) -> object:
    """Parse YAML in which every scalar is a string, or None for null.

    It uses the parser's events instead of PyYAML's composer, because ids such as 12345678 must stay
    strings, deep nesting crashes the composer, and a duplicate field must be an error.
    """
    try:
        events = iter(yaml.parse(text, Loader=_LOADER))
        next(events)
        if isinstance(next(events), yaml.StreamEndEvent):
            raise ConfigError("is empty: a mapping with `keys`, a list, is required")
        value = _read_node(next(events), events, _DEPTH)
        next(events)
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise ConfigError("has several YAML documents: one is allowed")
    except yaml.YAMLError as error:
        # PyYAML's message quotes the line, which may contain an API key.
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or ""
        place = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"is not YAML{place}: {_redact(str(problem))}") from None
    except (ValueError, OverflowError):
        raise ConfigError("is not YAML: has a character or escape that is not allowed") from None
    return value


def _read_node(event: Any, events: Iterator[Any], depth: int) -> object:
    line = event.start_mark.line + 1
    if isinstance(event, yaml.ScalarEvent):
        is_null = event.implicit[0] and event.value in _NULLS
        return None if is_null else event.value
    if isinstance(event, yaml.AliasEvent):
        raise ConfigError(f"line {line} has an alias: none is allowed")
    if depth == 0:
        raise ConfigError(f"line {line} is nested deeper than an entry's scopes")
    if isinstance(event, yaml.SequenceStartEvent):
        values = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            values.append(_read_node(inner, events, depth - 1))
        return values
    fields: dict[str, object] = {}
    while not isinstance(inner := next(events), yaml.MappingEndEvent):
        line = inner.start_mark.line + 1
        if not isinstance(inner, yaml.ScalarEvent):
            raise ConfigError(f"line {line} has a field whose name is no text")
        if inner.value in fields:
            raise ConfigError(f"line {line} has {_quote(inner.value)} for a second time")
        fields[inner.value] = _read_node(next(events), events, depth - 1)
    return fields


# --- messages


def _entry_name(index: int, fields: object) -> str:
    key_id = fields.get("id") if isinstance(fields, dict) else None
    is_fine = isinstance(key_id, str) and is_key_id(key_id)
    return f"keys[{index}] ({key_id})" if is_fine else f"keys[{index}]"


def _quote(value: object) -> str:
    """Return a short text of a value for error messages, without API keys and digests."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None:
        return "null"
    return shown_short(_redact(value) if isinstance(value, str) else value)


def _redact(text: str) -> str:
    """Return a text in which anything that may be an API key or digest is truncated."""
    hidden = _PLAIN_KEY.sub(f"{_PREFIX}…", text)
    return _SECRET.sub(lambda found: f"{found[0][:_ID_DIGITS]}…", hidden)


def _sha256(secret: str) -> str:
    # Headers may contain lone surrogates, which `surrogatepass` encodes.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
