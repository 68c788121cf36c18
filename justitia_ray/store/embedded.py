"""A Redis server of our own, for one node: what the store uses when no `redis_url` is given.

Two locks in the data directory keep it whole. `owner.lock` is held by the process that started the
server, and holds the server's process id; `server.lock` is held by the server itself. No server is
started while another one has the data, and a server is shared only while its owner lives: one whose
owner was killed is about to end, though it may answer for some milliseconds more.
"""

import logging
import os
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from justitia_ray.errors import StoreError
from justitia_ray.store.data_directory import make_private, socket_path, try_lock
from justitia_ray.store.redis_binary import dying_with_parent, find_redis_server, refuse_downgrade
from justitia_ray.units import Seconds

logger = logging.getLogger(__name__)

_POLL_S = 0.01
_ANSWER_TIMEOUT_S = 1.0
_LAST_LINES = 3
_OWNER_LOCK = "owner.lock"


class EmbeddedRedis:
    """A redis-server on a Unix socket that keeps its data in one directory.

    It has no TCP port, and only this user can reach it. Every write is in the append-only file at
    once and on the disk within a second: killing the server loses nothing, losing the machine at
    most its last second. The server ends with this process where util-linux's setpriv is installed.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        start_timeout_s: Seconds = 30.0,
        stop_timeout_s: Seconds = 10.0,
    ) -> None:
        """Name the directory; nothing is touched before `start`.

        Args:
            data_dir: Made with mode 0700 if it is missing. Not on a network file system.
            start_timeout_s: For the server to read its data and answer, in seconds.
            stop_timeout_s: For each step of ending it: asked, terminated; then it is killed.

        Raises:
            StoreError: If no path short enough for a socket can be found.
        """
        self._data_dir = data_dir.expanduser().absolute()
        self._socket = socket_path(self._data_dir)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._owner: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The server's address, for redis-py."""
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> None:
        """Return once a server of this directory answers: one that runs already, or a new one.

        Call it again when the store fails: it does nothing if the server answers, and starts it
        again if it, or the process that had started it, is gone. Blocks; for one thread at a time.

        Raises:
            StoreError: If there is no redis-server to start, the directory cannot be used, or the
                server does not come up in time; the message says what to do, or what it logged.
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
        """Save the data and end the server, if this object started it. Blocks."""
        if self._keeper is not None and self._process is not None:
            self._ask_to_end()
            self._keeper.join(self._stop_timeout_s)
            for end in (self._process.terminate, self._process.kill):
                if self._keeper.is_alive():
                    end()
                    self._keeper.join(self._stop_timeout_s)
            logger.info("store.embedded_stopped", extra={"data_dir": str(self._data_dir)})
        self._keeper = self._process = None
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _try_start(self, deadline: Seconds) -> bool:
        """Return whether a server answers that will stay; one that nobody owns is replaced."""
        if self._process is not None:
            if self._answering_pid() == self._process.pid:
                return True
            self.stop()
        self._owner = try_lock(self._data_dir / _OWNER_LOCK)
        if self._owner is None:
            # Its owner may be about to replace it: only the server that the owner vouches for.
            return self._answering_pid() == self._vouched_pid()
        os.ftruncate(self._owner, 0)
        server_lock = try_lock(self._data_dir / "server.lock")
        if server_lock is None:
            self._ask_to_end()
            self.stop()
            return False
        try:
            if self._answering_pid() is not None:
                # Somebody started a server on this socket by hand: theirs to end, ours to use.
                self.stop()
            else:
                self._launch(server_lock, deadline)
        finally:
            os.close(server_lock)
        return True

    def _launch(self, server_lock: int, deadline: Seconds) -> None:
        executable = find_redis_server()
        refuse_downgrade(executable, self._data_dir)
        tie = dying_with_parent()
        if not tie:
            logger.warning("store.embedded_outlives_parent", extra={"missing": "setpriv"})
        command = [
            *tie,
            str(executable),
            *("--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            *("--dir", str(self._data_dir), "--appendonly", "yes", "--appendfsync", "everysec"),
            # The append-only file holds everything; snapshots beside it would only cost.
            *("--save", ""),
            *("--daemonize", "no", "--databases", "1"),
        ]
        self._keeper, self._process = self._spawn(command, server_lock)
        # setpriv turns into the server without forking, so the process is the server.
        while self._answering_pid() != self._process.pid:
            if not self._keeper.is_alive() or time.monotonic() > deadline:
                raise StoreError(
                    f"{executable} did not come up on {self._data_dir}; it logged:"
                    f" {self._last_lines()}"
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

    def _spawn(
        self, command: list[str], server_lock: int
    ) -> tuple[threading.Thread, subprocess.Popen[bytes]]:
        """Start the server from a thread that lives as long as it does, and return both.

        Linux sends the parent-death signal when the *thread* that forked ends. The caller's may be
        one of a pool.
        """
        started: Future[subprocess.Popen[bytes]] = Future()

        def keep() -> None:
            try:
                with (self._data_dir / "redis.log").open("ab") as log:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=(server_lock,),
                        # A Ctrl-C is for the parent, which may have something to save first.
                        start_new_session=True,
                    )
            except OSError as error:
                started.set_exception(StoreError(f"{command[0]} does not start: {error}"))
                return
            started.set_result(process)
            process.wait()

        keeper = threading.Thread(target=keep, name="embedded-redis", daemon=True)
        keeper.start()
        return keeper, started.result()

    def _vouched_pid(self) -> int:
        """Return the process id of the owner's server, 0 while it has none that is up."""
        written = (self._data_dir / _OWNER_LOCK).read_bytes()
        return int(written) if written.isdigit() else 0

    def _answering_pid(self) -> int | None:
        """Return the process id of the server on the socket, None if none is up and answers."""
        try:
            with self._client(_ANSWER_TIMEOUT_S) as client:
                client.ping()  # refused, unlike INFO, while the server still reads its data
                return int(client.info("server")["process_id"])
        except (RedisError, OSError):
            return None

    def _ask_to_end(self) -> None:
        """Ask the server on the socket, if there is one, to save its data and end."""
        try:
            with self._client(self._stop_timeout_s) as client:
                client.shutdown(save=True)
        except (RedisError, OSError) as error:
            # It hangs, or cannot save: `stop` goes on to end it all the same.
            logger.warning("store.embedded_shutdown_refused", extra={"reason": str(error)})

    def _client(self, timeout_s: Seconds) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self._socket),
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    def _last_lines(self) -> str:
        try:
            lines = (self._data_dir / "redis.log").read_text(errors="replace").splitlines()
        except OSError as error:
            return f"(no log: {error})"
        return " | ".join(lines[-_LAST_LINES:])
