"""API keys: created, written, read, found, and never shown."""

import hashlib
import json
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from justitia_ray.access import keys
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.access.keys import (
    KeyRecord,
    KeyTable,
    create_key,
    find_identity,
    looks_like_key,
    public_id,
    public_json,
    read_records,
    read_time,
    record_to_json,
    records_from_json,
    write_records,
    write_time,
)
from justitia_ray.errors import ConfigError, Unauthenticated

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
ZEROS = "jk-" + 43 * "A"
"""API key of 32 zero bytes, which are 43 letters A in base64url."""
DIGEST = hashlib.sha256(ZEROS.encode()).hexdigest()
ID = DIGEST[:8]
ENTRY: dict[str, Any] = {
    "id": ID,
    "sha256": DIGEST,
    "tenant": "acme/search",
    "user": "ci",
    "scopes": ["infer", "own"],
    "max_weight": 2,
    "expires": "2027-01-31T00:00:00Z",
}
repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=60)
LOADERS = [pytest.param(yaml.SafeLoader, id="python"), pytest.param(keys._LOADER, id="as found")]


def zero_bytes(count: int) -> bytes:
    return bytes(count)


def write_key_entry(**changes: object) -> str:
    """Return a key file with one changed entry; a field set to None is left out."""
    fields = {name: value for name, value in (ENTRY | changes).items() if value is not None}
    return yaml.safe_dump({"keys": [fields]})


def read_error_message(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read_records(text)
    return str(refused.value)


# --- making and finding


def test_new_key_has_256_random_bits_and_is_stored_as_a_digest() -> None:
    new = create_key(tenant="acme", now=NOW + 0.7, random_bytes=zero_bytes)

    assert ZEROS == new.secret
    assert KeyRecord(
        ID, DIGEST, "acme", None, frozenset({Scope.INFER, Scope.OWN}), 1.0, None, NOW
    ) == (new.record)


def test_two_new_api_keys_differ() -> None:
    first, second = (create_key(tenant="acme", now=NOW) for _ in range(2))

    assert first.secret != second.secret


def test_new_key_with_a_used_id_is_drawn_again() -> None:
    """An id has 32 bits of the key's digest, so two of 10,000 keys sometimes have the same id."""
    numbers = iter([0, 1])
    new = create_key(
        tenant="acme", now=NOW, taken={ID}, random_bytes=lambda n: bytes([next(numbers)] * n)
    )

    assert "jk-" + "AQEB" * 10 + "AQE" == new.secret


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tenant": None}, "tenant is required without the scope proxy or operate"),
        ({"tenant": "a b"}, "tenant is 'a b': a path of"),
        ({"user": ""}, "user is '': 1 to 256 printable characters are allowed"),
        ({"scopes": []}, "scopes is an empty list"),
        ({"scopes": ["admin"]}, "scopes has 'admin': a list of infer, own, operate, proxy"),
        *(
            ({"max_weight": weight}, f"max_weight is {weight}: a number above 0, 1e+06 at most")
            for weight in (0.0, -1.0, 1e7, float("nan"), float("inf"))
        ),
        ({"expires_at": NOW}, "expires is 2027-01-15T08:00:00Z: a time to come is allowed"),
        ({"expires_at": 1e15}, "a time from 1970 to 9999 is allowed"),
    ],
)
def test_invalid_new_key_is_refused(options: dict[str, Any], said: str) -> None:
    """Keys that are written must be readable, so both directions use the same checks."""
    with pytest.raises(ConfigError) as refused:
        create_key(**{"tenant": "acme", "now": NOW, **options})

    assert str(refused.value).startswith(said)


def test_key_is_resolved_to_its_identity() -> None:
    new = create_key(
        tenant="acme/search",
        user="ci",
        scopes=["infer"],
        max_weight=2.0,
        expires_at=NOW + 10,
        now=NOW,
        random_bytes=zero_bytes,
    )

    assert Identity(
        "acme/search", frozenset({Scope.INFER}), f"key:{ID}", user="ci", max_weight=2.0
    ) == find_identity([KeyTable([new.record])], new.secret, NOW + 9.9)


@pytest.mark.parametrize(
    "secret", ["", "jk-", ZEROS[:-1], ZEROS + "A", DIGEST, "ü\ud800", "A" * 9_999]
)
def test_unknown_key_is_refused_without_being_shown(secret: str) -> None:
    table = KeyTable([create_key(tenant="acme", now=NOW, random_bytes=zero_bytes).record])
    with pytest.raises(Unauthenticated) as refused:
        find_identity([table], secret, NOW)

    assert "the API key is not known" == str(refused.value)
    assert table.record_of(secret) is None


def test_key_is_refused_after_its_expiry() -> None:
    """The error names the key's public id, which its owner finds in the list of keys."""
    new = create_key(tenant="acme", expires_at=NOW + 10, now=NOW, random_bytes=zero_bytes)
    with pytest.raises(Unauthenticated) as refused:
        find_identity([KeyTable([new.record])], new.secret, NOW + 10)

    assert f"the API key {ID} has expired" == str(refused.value)


def test_api_key_and_its_record_have_equal_public_ids() -> None:
    assert ID == public_id(ZEROS)


def test_key_table_refuses_a_duplicate_key() -> None:
    record = create_key(tenant="acme", now=NOW, random_bytes=zero_bytes).record

    with pytest.raises(ConfigError, match=r"keys\[1\].*its sha256 is that of keys\[0\]"):
        KeyTable([record, record])


# --- files


def test_key_file_entry_is_parsed() -> None:
    text = f"""
keys:
  - id: {ID}
    sha256: {DIGEST}
    tenant: acme/search
    user: ci
    scopes: [infer, own]
    max_weight: 2
    expires: 2027-01-31T00:00:00Z
"""
    scopes = frozenset({Scope.INFER, Scope.OWN})
    day = 86_400

    assert (
        KeyRecord(ID, DIGEST, "acme/search", "ci", scopes, 2.0, NOW - 8 * 3600 + 16 * day, None),
    ) == read_records(text)


def test_key_file_without_keys_is_an_empty_table() -> None:
    assert () == read_records("keys: []")
    assert () == read_records(write_records([]))


def test_key_id_of_digits_is_read_as_text() -> None:
    """YAML reads one key id in 40 as a number and one in 400 as an octal number."""
    digest = "01234567" + "a" * 56
    [record] = read_records(
        write_key_entry(id=None, sha256=digest).replace("- ", "- id: 01234567\n  ", 1)
    )

    assert "01234567" == record.key_id


@pytest.mark.parametrize("scope", ["proxy", "operate"])
def test_only_proxies_and_operators_need_no_tenant(scope: str) -> None:
    """A gateway names the tenant of each call, and an operator acts for no tenant."""
    [record] = read_records(write_key_entry(tenant=None, scopes=[scope]))

    assert record.tenant is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": None}, "keys[0]: id is required"),
        ({"id": "00000000"}, f"id is '00000000': the first 8 digits of sha256, {ID}, are required"),
        ({"sha256": None}, f"keys[0] ({ID}): sha256 is required"),
        ({"sha256": DIGEST[:-1]}, "sha256 has 63 characters: 64 of 0-9 a-f are required"),
        ({"sha256": DIGEST.upper()}, "sha256 has 64 characters: 64 of 0-9 a-f are required"),
        ({"sha256": [DIGEST]}, "sha256 has no characters"),
        ({"tenant": None}, "tenant is required without the scope proxy or operate"),
        ({"tenant": "/acme"}, "tenant is '/acme': a path of A-Z a-z 0-9"),
        ({"tenant": ["acme"]}, "tenant is a list: a path such as acme/search is allowed"),
        ({"user": "a\nb"}, r"user is 'a\nb': 1 to 256 printable characters are allowed"),
        ({"user": {"a": "b"}}, "user is a mapping: 1 to 256"),
        ({"scopes": None}, "scopes is required"),
        ({"scopes": []}, "scopes is an empty list: a list of infer, own, operate, proxy"),
        ({"scopes": "infer"}, "scopes is 'infer': a list of"),
        ({"scopes": ["infer", "root"]}, "scopes has 'root': a list of"),
        (
            {"scopes": ["infer", "infer"]},
            "scopes has 'infer': a list of infer, own, operate, proxy",
        ),
        ({"max_weight": None}, "max_weight is required"),
        *(
            ({"max_weight": weight}, "a number above 0, 1e+06 at most, is allowed")
            for weight in (0, -1, 1_000_001, "much", ".nan", ".inf", "1e999", True, [1])
        ),
        *(
            ({"expires": at}, f"expires is '{at}': a time such as 2027-01-31T00:00:00Z, or a day")
            for at in (
                *("soon", "2027-02-30", "2027-01-31T00:00:00", "2027-01-31T25:00:00Z", "20270131"),
                *("1969-12-31", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00"),
            )
        ),
        ({"created": [1]}, "created is a list: a time such as"),
        ({"expiry": "x"}, "'expiry' is an unknown field; id, sha256, tenant, user, scopes,"),
    ],
)
def test_error_names_the_entry_the_field_the_value_and_the_allowed_values(
    changes: dict[str, object], said: str
) -> None:
    told = read_error_message(write_key_entry(**changes))

    assert told.startswith("keys[0]")
    assert said in told
    assert DIGEST not in told


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "is empty: a mapping with `keys`, a list, is required") for text in ("", "# x\n")),
        *((text, "a mapping with `keys`, a list") for text in ("[]", "x", "{}", "~")),
        ("keys:", "keys is null: a list is required"),
        ("keys: {}", "keys is a mapping: a list is required"),
        ("keys: []\nkey: 1", "'key' is an unknown field; keys is allowed"),
        ("keys: [x]", "keys[0]: is 'x': a mapping of id, sha256"),
        ("keys: []\nkeys: []", "line 2 has 'keys' for a second time"),
        ("keys:\n- id: a\n  id: b", "line 3 has 'id' for a second time"),
        ("? [a]\n: b", "line 1 has a field whose name is no text"),
        ("- &a [*a]", "line 1 has an alias: none is allowed"),
        ("keys:\n- scopes: [[infer]]", "line 2 is nested deeper than an entry's scopes"),
        ("keys: []\n---\nkeys: []", "has several YAML documents: one is allowed"),
        ("keys: [\n", "is not YAML in line "),
        ("keys: \x00", "is not YAML"),
        ('keys: "\\UFFFFFFFF"', "is not YAML"),
        ("\ud800", ""),
        *(
            (deep * 100_000, "line 1 is nested deeper than an entry's scopes")
            for deep in ("- ", "{a: ")
        ),
        ("[" * 100_000, "nest"),  # The YAML library may itself refuse this nesting depth.
    ],
    ids=lambda text: repr(text[:20]),
)
def test_key_file_of_another_structure_is_an_error(
    text: str, said: str, loader: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyYAML crashes at deep nesting and silently drops a duplicate field."""
    monkeypatch.setattr(keys, "_LOADER", loader)

    assert said in read_error_message(text)


def test_duplicate_key_id_is_an_error() -> None:
    other = ENTRY | {"sha256": ID + "0" * 56}

    same_id, same = (json.dumps({"keys": [ENTRY, second]}) for second in (other, ENTRY))

    assert f"keys[1] ({ID}): its id is that of keys[0]: each is allowed once" == read_error_message(
        same_id
    )
    assert "its sha256 is that of keys[0]" in read_error_message(same)


records = st.builds(
    lambda digest, **fields: KeyRecord(digest[:8], digest, **fields),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    tenant=st.from_regex(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,11}(/[a-z]{1,12}){0,3}", fullmatch=True),
    user=st.none() | st.text(min_size=1, max_size=12).filter(str.isprintable),
    scopes=st.sets(st.sampled_from(Scope), min_size=1).map(frozenset),
    max_weight=st.floats(0, 1e6, exclude_min=True) | st.sampled_from([1.0, 2.0]),
    expires_at=st.none() | st.integers(0, 253_402_300_799).map(float),
    created_at=st.none() | st.integers(0, 253_402_300_799).map(float),
)
tables = st.lists(records, max_size=4, unique_by=lambda record: record.key_id)


@repeatable
@given(tables)
@example([KeyRecord("1" * 8, "1" * 64, "null", "~", frozenset({Scope.OWN}), 1.0, None, None)])
def test_written_key_file_is_read_back(table: list[KeyRecord]) -> None:
    """The names include texts that YAML would read as null, a number or a time."""
    assert table == list(read_records(write_records(table)))


@repeatable
@given(tables)
def test_written_json_keys_are_read_back(table: list[KeyRecord]) -> None:
    stored = json.loads(json.dumps({record.key_id: record_to_json(record) for record in table}))

    assert (table, []) == records_from_json(stored)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
near_entries = st.fixed_dictionaries(
    {}, optional={name: st.just(ENTRY.get(name)) | values for name in keys._FIELDS}
)
FRAGMENTS = [*"[]{}:,-?&*!|>'\"%@`# \n\t\\~", "keys", "jk-", "0x1", "---", "...", "<<", "é", "\x07"]


@pytest.mark.parametrize("loader", LOADERS)
@repeatable
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join),
        values.map(yaml.safe_dump),
        st.lists(near_entries, max_size=2).map(lambda entries: yaml.safe_dump({"keys": entries})),
    )
)
def test_any_text_is_read_as_keys_or_refused(text: str, loader: type) -> None:
    with patch.object(keys, "_LOADER", loader):
        try:
            read = read_records(text)
        except ConfigError:
            return

    assert read == read_records(write_records(read))


@pytest.mark.parametrize(
    ("at", "text"), [(0.0, "1970-01-01T00:00:00Z"), (NOW + 0.9, "2027-01-15T08:00:00Z")]
)
def test_expiry_is_written_in_utc(at: float, text: str) -> None:
    assert text == write_time(at)
    assert int(at) == read_time(text)


@pytest.mark.parametrize(
    "text", ["2027-01-15", "2027-01-15 00:00:00Z", "2027-01-15T02:00:00+02:00"]
)
def test_expiry_is_read_in_several_formats(text: str) -> None:
    assert NOW - 8 * 3600 == read_time(text)


# --- Redis


def test_damaged_key_records_are_left_out_and_named() -> None:
    """A damaged record must not lock out the callers of the other keys."""
    other = ENTRY | {"id": "0" * 8, "sha256": "0" * 64}
    found, damage = records_from_json(
        {ID: ENTRY, "0" * 8: other | {"max_weight": True}, "1" * 8: other, "2" * 8: {}}
    )

    assert [ID] == [record.key_id for record in found]
    assert [
        "key '00000000': max_weight is true: a number above 0, 1e+06 at most, is allowed",
        "key '11111111': id is 00000000: another id is that of the entry",
        "key '22222222': id is required",
    ] == damage


# --- secrecy


@pytest.mark.parametrize("secret", [ZEROS, ZEROS[:20], f"Bearer {ZEROS}"])
@pytest.mark.parametrize("field", ["id", "sha256", "tenant", "user", "max_weight", "expires", "x"])
def test_error_for_a_plain_text_key_in_a_file_does_not_show_the_key(
    field: str, secret: str
) -> None:
    told = read_error_message(write_key_entry(**{field: secret}))

    assert "holds what looks like a plain key: only digests belong here" in told
    assert secret not in told


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "text",
    [
        *("{key}", "{key}: 1", "keys: {key}", "keys: [{key}]", "keys: [{{{key}: x}}]"),
        *(
            "keys: [{{scopes: [{key}]}}]",
            "keys: *{key}",
            "keys: !{key} [",
            "keys: [\n{key}",
            "@{key}",
        ),
        *("keys: '{key}", "&{key} &{key} x", "%{key} x", "!{key}!x y", "{key}: 1\n{key}: 1"),
        *("a: b: {key}", "keys: [] {key}", "? {key}\n? {key}", "- {key}\n x: {key}", "!<{key}"),
    ],
)
@pytest.mark.parametrize("secret", [ZEROS, DIGEST])
def test_no_error_shows_a_key_or_a_digest(
    text: str, secret: str, loader: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_LOADER", loader)

    assert secret not in read_error_message(text.format(key=secret))


def test_no_repr_shows_a_key_or_a_digest() -> None:
    new = create_key(tenant="acme", now=NOW, random_bytes=zero_bytes)
    table = KeyTable([new.record])
    identity = find_identity([table], ZEROS, NOW)
    shown = f"{new!r} {new.record!r} {table!r} {identity!r} {public_json(new.record)}"

    assert ZEROS not in shown
    assert DIGEST not in shown


@pytest.mark.parametrize("name", ["jk-team", "acme/jk-search", "jk-", ID])
def test_tenant_name_that_begins_like_a_key_is_accepted(name: str) -> None:
    assert not looks_like_key(name)
