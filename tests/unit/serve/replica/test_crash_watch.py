"""A watcher process reports a crash of its process; kills and exits are not reported."""

import asyncio
import base64
import faulthandler
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from justitia_ray.config import TlsSection, TransportSection
from justitia_ray.errors import StoreError
from justitia_ray.serve.replica import crash_sender
from justitia_ray.serve.replica.crash_watch import CrashWatch
from justitia_ray.serve.transport.crash_notice import crash_notice
from justitia_ray.serve.transport.endpoint import listen
from justitia_ray.serve.transport.handshake import Key, Keyring, Offer, Peer
from justitia_ray.serve.transport.listener import Listener
from tests.certificates import Authority
from tests.eventually import eventually

_NAME = "scheduler"
_KEY = Key("k", b"secret")
_REPLICA = Peer("replica", "r0")
_PROGRAM = """
import os, sys
from justitia_ray.config import TransportSection
from justitia_ray.serve.replica.crash_watch import CrashWatch
from justitia_ray.serve.transport.handshake import Key, Offer, Peer

address, section, how = sys.argv[1:]
watch = CrashWatch(Peer("replica", "r0"), TransportSection.model_validate_json(section))
watch.start()
watch.take_offer(Offer("127.0.0.1:9", "an earlier scheduler", Key("before", b"other")))
watch.take_offer(Offer(address, "scheduler", Key("k", b"secret")))
print(watch._sender.pid, flush=True)
if how == "stop":
    watch.stop()
elif how == "fork":
    if not os.fork():
        os.kill(os.getpid(), 11)
    os.wait()
else:
    os.kill(os.getpid(), int(how))
"""


class CrashRecorder:
    """Fake scheduler port that records the processes reported as crashed."""

    def __init__(self) -> None:
        self.crashed: list[Peer] = []
        self.refuses = 0
        """Number of crash notices that are refused before one is accepted."""

    async def note(self, peer: Peer) -> None:
        if self.refuses:
            self.refuses -= 1
            raise StoreError("no scheduler leads")
        self.crashed.append(peer)


@pytest.fixture
def section(request: pytest.FixtureRequest, tmp_path: Path) -> TransportSection:
    """Transport settings, without and with certificates."""
    if request.param == "plain":
        return TransportSection()
    ours = Authority.in_folder(tmp_path / "ours")
    certificate, key = (str(path) for path in ours.issue("node"))
    return TransportSection(
        tls=TlsSection(certificate=certificate, key=key, authority=str(ours.file))
    )


@pytest.fixture
def crashes() -> CrashRecorder:
    return CrashRecorder()


@pytest.fixture
async def scheduler_port(
    crashes: CrashRecorder, section: TransportSection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Listener]:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    keyring = Keyring()
    keyring.add(_KEY)
    port = await listen(section, _NAME, keyring, {}, {}, on_crashed=crashes.note)
    yield port
    await port.stop()


async def run_watched(
    scheduler_port: Listener, section: TransportSection, how: str
) -> tuple[int, str]:
    """Run a watched process whose watcher has ended; return exit code and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, scheduler_port.address, section.model_dump_json(), how),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()  # both processes have ended
    sender = Path(f"/proc/{int(out)}")
    await eventually(lambda: not sender.exists(), "the sender has ended")
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "fault"),
    [("plain", signal.SIGSEGV), ("tls", signal.SIGABRT)],
    indirect=["section"],
)
async def test_crash_of_a_replica_process_is_reported_once(
    fault: signal.Signals,
    crashes: CrashRecorder,
    scheduler_port: Listener,
    section: TransportSection,
) -> None:
    """The process's log has its traceback, as without the watcher."""
    code, errors = await run_watched(scheduler_port, section, str(int(fault)))

    assert [_REPLICA] == crashes.crashed
    assert -fault == code
    assert errors.startswith("Fatal Python error: ")
    assert 'File "<string>", line' in errors
    assert "was not told" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("section", ["plain"], indirect=True)
@pytest.mark.parametrize("how", [str(int(signal.SIGKILL)), "stop", "fork"])
async def test_killed_or_cleanly_ended_process_is_not_reported_as_a_crash(
    how: str, crashes: CrashRecorder, scheduler_port: Listener, section: TransportSection
) -> None:
    """The crash of a fork, such as an engine, is reported by the replica itself."""
    await run_watched(scheduler_port, section, how)

    assert not crashes.crashed


@pytest.mark.slow
@pytest.mark.parametrize("section", ["plain"], indirect=True)
async def test_crash_notice_is_repeated_until_the_scheduler_leads(
    crashes: CrashRecorder, scheduler_port: Listener, section: TransportSection
) -> None:
    crashes.refuses = 2
    _, errors = await run_watched(scheduler_port, section, str(int(signal.SIGSEGV)))

    assert [_REPLICA] == crashes.crashed
    assert "was not told" not in errors


@pytest.mark.parametrize("section", ["plain"], indirect=True)
async def test_crash_is_reported_after_a_certificate_rotation(
    crashes: CrashRecorder,
    scheduler_port: Listener,
    section: TransportSection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watcher reads the certificates again at each attempt."""
    notice = crash_notice(Offer(scheduler_port.address, _NAME, _KEY), _REPLICA)
    order = {
        "address": scheduler_port.address,
        "tls": ["no certificate", "no key", "no authority"],
        "request": base64.b64encode(notice).decode(),
    }
    pieces = [json.dumps(order).encode() + b"\n", b"Fatal Python error", b""]
    errors: list[bytes] = []
    found: list[Any] = [FileNotFoundError("no certificate"), None]

    def next_encryption(_: Any) -> Any:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(crash_sender, "_PAUSE_S", 0.0)
    monkeypatch.setattr(crash_sender, "_tls_context", next_encryption)
    system = SimpleNamespace(
        read=lambda *_: pieces.pop(0), write=lambda _, text: errors.append(text)
    )
    monkeypatch.setattr(crash_sender, "os", system)
    await asyncio.to_thread(crash_sender.main)

    assert [_REPLICA] == crashes.crashed
    assert [b"Fatal Python error"] == errors


def test_killed_watcher_process_is_restarted_three_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After the fourth kill one failure is logged, and no further watcher is started."""
    monkeypatch.setattr(faulthandler, "enable", lambda **_: None)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    watch = CrashWatch(_REPLICA, TransportSection())
    watch.start()
    offer = Offer("127.0.0.1:9", _NAME, _KEY)
    senders = []
    while (sender := watch._sender) is not None:
        senders.append(sender)
        watch.take_offer(offer)
        sender.kill()
        sender.wait()
        watch.take_offer(offer)

    assert 4 == len(senders)
    failed = [one.getMessage() for one in caplog.records]
    assert 1 == len(failed)
    assert "it has ended 4 times" in failed[0]
    watch.take_offer(offer)
    watch.stop()
