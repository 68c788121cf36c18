"""A Redis server that a run may kill, stop, empty and start again: a process beside Ray's."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from justitia_ray.errors import StoreError
from justitia_ray.store.redis_binary import dying_with_parent, find_redis_server
from justitia_ray.units import Seconds

_UP_WITHIN_S: Seconds = 20.0
_POLL_S: Seconds = 0.02


class ChaosRedis:
    """One server on a port of the loopback address, with its data in a directory."""

    def __init__(self, directory: Path, port: int) -> None:
        """Name both; nothing is started.

        Args:
            directory: Made if it is missing.
            port: A free one.
        """
        self._directory = directory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://{self.address}/0"

    @property
    def pid(self) -> int | None:
        """Of the server that runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers. Blocks; from the thread that lives longest.

        Raises:
            StoreError: If it does not come up.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [
            *dying_with_parent(),
            str(find_redis_server()),
            *("--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._directory)),
            *("--appendonly", "yes", "--save", "", "--daemonize", "no"),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + _UP_WITHIN_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise StoreError(f"the Redis server on {self.address} did not come up")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Kill it at once; its data stay. Nothing happens if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        """Remove the data of a server that was killed."""
        shutil.rmtree(self._directory)

    def suspend(self) -> None:
        """Let it stand still: it takes connections and answers nothing."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
