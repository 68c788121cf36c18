"""`justitia keys`: API keys in a file and in Redis, audit lines, and secrecy."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from fakeredis import FakeAsyncRedis, FakeServer, FakeStrictRedis

from justitia_ray.access.identity import Scope
from justitia_ray.access.key_file import read_key_file
from justitia_ray.access.keys import KeyTable, create_key, find_identity, public_id
from justitia_ray.cli import keys
from justitia_ray.cli.keys import read_expiry
from justitia_ray.cli.main import main
from justitia_ray.errors import ConfigError

Json = dict[str, Any]

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
DAY = 86_400
HASH = "justitia:{app}:keys"

APPLICATION = """
  - name: NAME
    route_prefix: /NAME
    import_path: justitia_ray.serve.app:build
    args:
      name: app
      model: {name: NAME, path: none}
      engine: {kind: fake}
      store: {redis_url: "redis://memory", redis_password_env: REDIS_PASSWORD}
"""
IN_REDIS = "      access: {keys_in_redis: true, keys_file: unused.yaml}\n"


@pytest.fixture(autouse=True)
def _fixed_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary directory, a fixed time and a fixed user name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_PASSWORD", "s3cret")
    monkeypatch.setattr(keys, "time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.setattr(keys, "_local_user", lambda: "ann@host")


@pytest.fixture
def redis_client() -> Iterator[FakeStrictRedis]:
    """Replace every Redis connection by an in-memory Redis, and return a client of it."""
    server = FakeServer()
    with patch(
        "justitia_ray.store.connection.Redis.from_url",
        lambda *_, **options: FakeAsyncRedis(server=server),
    ):
        yield FakeStrictRedis(server=server, decode_responses=True)


@pytest.fixture(params=["file", "config with a file", "config with Redis"])
def store_options(request: pytest.FixtureRequest, redis_client: FakeStrictRedis) -> list[str]:
    """Return the command-line options that select the store of the keys."""
    if request.param == "file":
        return ["--file", "keys.yaml"]
    access = "      access: {keys_file: keys.yaml}\n"
    return write_config(IN_REDIS if "Redis" in request.param else access)


def write_config(*access: str) -> list[str]:
    """Write a Serve configuration file with one application for each argument.

    Return its options.
    """
    applications = [
        APPLICATION.replace("NAME", f"a{number}") + one for number, one in enumerate(access)
    ]
    Path("serve.yaml").write_text("applications:" + "".join(applications))
    return ["--config", "serve.yaml"]


def create_tenant_key(
    place: list[str], capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[str, Json]:
    """Create a key; return standard output and the audit line of standard error."""
    assert 0 == main(["keys", "create", *place, "--tenant", "acme/search", *options])
    printed = capsys.readouterr()
    line, said = printed.err.splitlines()
    assert said.endswith("; it is shown this once")
    return printed.out, json.loads(line)


def list_keys(place: list[str], capsys: pytest.CaptureFixture[str]) -> list[Json]:
    assert 0 == main(["keys", "list", "--json", *place])
    found: list[Json] = json.loads(capsys.readouterr().out)["keys"]
    return found


def test_created_key_is_listed_and_revoked(
    store_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit line of each change has the record before and after, without its digest."""
    out, made = create_tenant_key(
        store_options, capsys, "--user", "ci", "--max-weight", "2", "--expires", "90d"
    )
    key_id = public_id(out.strip())
    record = {
        "id": key_id,
        "tenant": "acme/search",
        "user": "ci",
        "scopes": ["infer", "own"],
        "max_weight": 2,
        "expires": "2027-04-15T08:00:00Z",
        "created": "2027-01-15T08:00:00Z",
    }
    change = {"at": "2027-01-15T08:00:00Z", "who": "ann@host", "key_id": key_id}

    assert {"event": "audit.key_created", **change, "before": None, "after": record} == made
    assert [record] == list_keys(store_options, capsys)
    assert 0 == main(["keys", "revoke", key_id, *store_options])
    line, said = capsys.readouterr().err.splitlines()
    assert {"event": "audit.key_revoked", **change, "before": record, "after": None} == json.loads(
        line
    )
    assert said.startswith(f"key {key_id} is revoked in ")
    assert [] == list_keys(store_options, capsys)
    assert 2 == main(["keys", "revoke", key_id, *store_options])
    assert capsys.readouterr().err.endswith(f": has no key {key_id}\n")


def test_standard_output_of_create_is_only_the_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`justitia keys create … | kubectl create secret …` must pipe only the key."""
    out, _ = create_tenant_key(
        ["--file", "keys.yaml"], capsys, "--scope", "operate", "--scope", "proxy"
    )
    identity = find_identity(
        [KeyTable(read_key_file(Path("keys.yaml")))], out.removesuffix("\n"), NOW
    )

    assert frozenset({Scope.OPERATE, Scope.PROXY}) == identity.scopes
    assert ("acme/search", 1.0) == (identity.tenant, identity.max_weight)


def test_key_is_stored_only_as_a_digest(
    store_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the file, Redis, the audit log nor the list contains a key."""
    out, _ = create_tenant_key(store_options, capsys)
    main(["keys", "list", *store_options])
    main(["keys", "list", "--json", *store_options])
    main(["keys", "revoke", out.strip(), *store_options])
    printed = capsys.readouterr()
    files = "".join(path.read_text() for path in Path().iterdir())

    assert out.strip() not in printed.out + printed.err + files
    assert "sha256" not in printed.out


def test_audit_line_of_a_key_is_appended_to_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--file", "keys.yaml", "--audit", "audit.log"]
    assert 0 == main(["keys", "create", "--tenant", "acme", *options])
    printed = capsys.readouterr()
    key_id = public_id(printed.out.strip())
    assert 0 == main(["keys", "revoke", key_id, *options])
    text = Path("audit.log").read_text()
    events = [json.loads(line)["event"] for line in text.splitlines()]

    assert ["audit.key_created", "audit.key_revoked"] == events
    assert "audit" not in printed.err
    assert printed.out.strip() not in text


def test_key_is_printed_even_if_its_audit_line_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The key is already valid when its audit line fails, and would otherwise be lost."""
    status = main(
        ["keys", "create", "--tenant", "a", "--file", "keys.yaml", "--audit", "/dev/full"]
    )
    printed = capsys.readouterr()
    key_id = public_id(printed.out.strip())

    assert 2 == status
    assert (
        f"justitia keys: --audit /dev/full: cannot be written: No space left on device; the change"
        f" of key {key_id} is made\n"
    ) == printed.err


def test_list_of_keys_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--file", "keys.yaml"]
    first, _ = create_tenant_key(place, capsys, "--expires", "1h")
    second, _ = create_tenant_key(place, capsys, "--user", "ci", "--max-weight", "0.5")
    with patch.object(keys, "time", SimpleNamespace(time=lambda: NOW + DAY)):
        main(["keys", "list", *place])
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[one.strip() for one in row if one] for row in rows]
    at = "2027-01-15T08:00:00Z"

    assert [
        ["id", "tenant", "user", "scopes", "max weight", "expires (UTC)", "created (UTC)"],
        *(
            [public_id(secret.strip()), "acme/search", user, "infer own", *others]
            for secret, user, *others in (
                (first, "–", "1", "2027-01-15T09:00:00Z, expired", at),
                (second, "ci", "0.5", "–", at),
            )
        ),
    ] == cells


def test_damaged_key_record_in_redis_is_named_and_can_be_revoked(
    redis_client: FakeStrictRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged record must not hide the other keys."""
    place = write_config(IN_REDIS)
    create_tenant_key(place, capsys)
    redis_client.hset(HASH, "0" * 8, "{}")
    status = main(["keys", "list", "--json", *place])
    printed = capsys.readouterr()

    assert (1, 1) == (status, len(json.loads(printed.out)["keys"]))
    assert "justitia keys: key '00000000': id is required\n" == printed.err
    assert 0 == main(["keys", "revoke", "0" * 8, *place])
    assert {"id": "0" * 8} == json.loads(capsys.readouterr().err.splitlines()[0])["before"]
    assert 1 == redis_client.hlen(HASH)


def test_key_id_taken_in_redis_is_replaced_by_another(
    redis_client: FakeStrictRedis,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = write_config(IN_REDIS)
    numbers = iter([0, 1, 0, 1, 2])  # each command reads the clock once to check its options
    monkeypatch.setattr(
        keys,
        "create_key",
        partial(create_key, random_bytes=lambda count: bytes([next(numbers)] * count)),
    )
    first, _ = create_tenant_key(place, capsys)
    second, _ = create_tenant_key(place, capsys)

    assert first != second
    assert 2 == redis_client.hlen(HASH)


def test_key_command_needs_an_application_name_if_there_are_several(
    redis_client: FakeStrictRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key for the wrong application would be worse than an error."""
    place = write_config(IN_REDIS.replace("true", "false"), IN_REDIS)
    Path("serve.yaml").write_text(Path("serve.yaml").read_text().replace("name: app", "name: b", 1))

    assert 2 == main(["keys", "list", *place])
    assert "--application is required: serve.yaml has a0, a1\n" in capsys.readouterr().err
    create_tenant_key([*place, "--application", "a1"], capsys)
    assert 1 == redis_client.hlen(HASH)


def test_unreachable_redis_is_reported_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    place = write_config(IN_REDIS)
    Path("serve.yaml").write_text(
        Path("serve.yaml").read_text().replace("redis://memory", "unix:///nowhere/r.sock")
    )

    assert 1 == main(["keys", "create", "--tenant", "a", *place])
    printed = capsys.readouterr()
    assert "" == printed.out
    assert printed.err.startswith("justitia keys: Redis at unix:///nowhere/r.sock: ")
    assert 1 == len(printed.err.splitlines())


@pytest.mark.parametrize(
    ("access", "options", "said"),
    [
        ("", "", "serve.yaml: `access` names neither keys_file nor keys_in_redis"),
        ("      access: {anonymous: a}\n", "", "`access` names neither keys_file nor"),
        (IN_REDIS, "--application b", "--application is 'b': serve.yaml has a0"),
        (IN_REDIS, "--file f", "--file or --config is required, and not both"),
        (IN_REDIS, "", "store.redis_password_env: variable REDIS_PASSWORD is not set on this node"),
    ],
)
def test_configuration_without_a_key_store_is_reported(
    access: str,
    options: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the missing setting of the configuration file."""
    place = write_config(access)
    monkeypatch.delenv("REDIS_PASSWORD")

    assert 2 == main(["keys", "list", *place, *options.split()])
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90d", NOW + 90 * DAY),
        ("12h", NOW + DAY / 2),
        ("2027-01-31", NOW - DAY / 3 + 16 * DAY),
        ("2027-01-15T10:00:01+02:00", NOW + 1),
    ],
)
def test_expiry_of_a_key_has_several_formats(text: str, at: float) -> None:
    """The expiry is a number of days, or a date that begins at midnight UTC."""
    assert at == read_expiry(text, NOW)


@pytest.mark.parametrize(
    "text", ["", "soon", "90", "-1d", "0d", "1w", "999999999d", "999999d" * 9, "2027-01-15", "2027"]
)
def test_key_expiry_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--expires is "):
        read_expiry(text, NOW)


def test_audit_line_names_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user without a name, whose numeric id is logged."""
    monkeypatch.undo()
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_123)

    assert "4000123@host" == keys._local_user()
