"""Large bodies wait unparsed for their turn, in fair order and within memory bounds."""

import asyncio
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from justitia_ray.errors import QueueFull
from justitia_ray.serve.ingress.body_room import BodyRoom
from tests.eventually import eventually

_MIB = 2**20


class _Readers:
    """Calls that each parse a body until the test ends them."""

    def __init__(self, room: BodyRoom) -> None:
        self.room = room
        self.reading: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin_call(self, name: str, size_bytes: int) -> None:
        """Start a call; its tenant is the part of its name before the space."""
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._read_body(name, size_bytes))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _read_body(self, name: str, size_bytes: int) -> None:
        with self.room.hold(name.split()[0]) as held:
            held.note_size(size_bytes)
            async with held.turn():
                self.reading.append(name)
                try:
                    await self._ends[name].wait()
                finally:
                    self.reading.remove(name)

    async def end_call(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def cancel_call(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(0)


async def test_tenants_take_turns_to_parse_bounded_amounts_of_request_bytes() -> None:
    readers = _Readers(BodyRoom(1_000 * _MIB, 20 * _MIB))
    for name in ("a 1", "a 2", "a 3", "a 4", "b 1"):
        await readers.begin_call(name, 10 * _MIB)

    assert ["a 1", "a 2"] == readers.reading
    await readers.end_call("a 1")
    assert ["a 2", "b 1"] == readers.reading
    await readers.cancel_call("a 3")
    await readers.end_call("a 2")
    assert ["b 1", "a 4"] == readers.reading
    await readers.cancel_call("a 4")
    await readers.end_call("b 1")
    await readers.begin_call("c 1", 10 * _MIB)
    assert ["c 1"] == readers.reading
    await readers.end_call("c 1")


async def test_request_body_above_the_parsing_limit_is_parsed_alone() -> None:
    readers = _Readers(BodyRoom(1_000 * _MIB, 20 * _MIB))
    for name, size_mib in (("a 1", 1), ("b 1", 30), ("c 1", 1)):
        await readers.begin_call(name, size_mib * _MIB)

    assert ["a 1"] == readers.reading
    await readers.end_call("a 1")
    assert ["b 1"] == readers.reading
    await readers.end_call("b 1")
    assert ["c 1"] == readers.reading
    await readers.end_call("c 1")


async def test_small_request_body_is_read_while_large_bodies_wait() -> None:
    room = BodyRoom(_MIB, _MIB)
    with room.hold("a") as large, room.hold("a") as small:
        large.note_size(_MIB)
        small.note_size(64 * 2**10)
        async with large.turn(), small.turn():
            pass


async def test_request_bodies_of_one_tenant_cannot_take_all_the_memory() -> None:
    """One tenant may take 80 of 100 MiB, so another tenant's body still finds room."""
    readers = _Readers(BodyRoom(100 * _MIB, _MIB))
    for call in range(8):
        await readers.begin_call(f"a {call}", 10 * _MIB)
    with (
        readers.room.hold("a") as last,
        pytest.raises(QueueFull, match=r"ingress\.max_body_bytes_held") as refused,
    ):
        last.note_size(10 * _MIB)
    await readers.begin_call("b 0", 10 * _MIB)
    with readers.room.hold("c") as last, pytest.raises(QueueFull):
        last.note_size(20 * _MIB)
    assert refused.value.retry_after_s == 1.0
    for name in (*(f"a {call}" for call in range(8)), "b 0"):
        await readers.cancel_call(name)
    with readers.room.hold("c") as last:
        last.note_size(100 * _MIB)


def test_single_growing_request_body_may_take_all_the_memory() -> None:
    """A tenant's share limits its second body; a single body may fill the whole room."""
    room = BodyRoom(100 * _MIB)
    with room.hold("a") as body:
        for size_mib in range(101):
            body.note_size(size_mib * _MIB)
        with pytest.raises(QueueFull):
            body.note_size(101 * _MIB)
        body.note_size(50 * _MIB)
        with room.hold("b") as other:
            other.note_size(50 * _MIB)
    with room.hold("b") as last:
        last.note_size(100 * _MIB)


def test_memory_of_a_request_body_is_released_once() -> None:
    room = BodyRoom(100 * _MIB)
    with room.hold("a") as body, room.hold("b") as other:
        body.note_size(50 * _MIB)
        other.note_size(50 * _MIB)
        body.release()
        body.release()
        with pytest.raises(QueueFull), room.hold("c") as last:
            last.note_size(51 * _MIB)


async def test_cancelled_body_keeps_its_memory_until_its_parsing_thread_ends() -> None:
    """A caller that repeatedly sends 16 MB and disconnects occupies only one thread."""
    room = BodyRoom(16 * _MIB, 16 * _MIB)
    began, may_end = threading.Event(), threading.Event()

    def parse_slowly() -> None:
        began.set()
        assert may_end.wait(60.0)

    async def read_body() -> None:
        with room.hold("a") as held:
            held.note_size(16 * _MIB)
            async with held.turn():
                await held.read(parse_slowly)

    def has_room() -> bool:
        with suppress(QueueFull), room.hold("b") as other:
            other.note_size(16 * _MIB)
            return True
        return False

    left = asyncio.create_task(read_body())
    assert await asyncio.to_thread(began.wait, 60.0)
    left.cancel()
    await asyncio.wait({left})
    try:
        assert not has_room()
    finally:
        may_end.set()
    await eventually(has_room, "the room is given back")
    await read_body()


async def test_next_body_is_parsed_when_a_cancelled_callers_thread_ends() -> None:
    readers = _Readers(BodyRoom(100 * _MIB, 16 * _MIB))
    began, may_end = threading.Event(), threading.Event()

    def parse_slowly() -> None:
        began.set()
        assert may_end.wait(60.0)

    async def read_body() -> None:
        with readers.room.hold("a") as held:
            held.note_size(16 * _MIB)
            async with held.turn():
                await held.read(parse_slowly)

    left = asyncio.create_task(read_body())
    assert await asyncio.to_thread(began.wait, 60.0)
    await readers.begin_call("b 1", 16 * _MIB)
    left.cancel()
    await asyncio.wait({left})
    try:
        assert not readers.reading
    finally:
        may_end.set()
    await readers.end_call("b 1")


_PROGRAM = """
import os, random, sys
from justitia_ray.serve.ingress.body_room import give_memory_back

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 2**20

if sys.argv[1] == "returned":
    give_memory_back()
begin, draw, kept = resident_mib(), random.Random(1), []
for _ in range(100):
    bodies = [b"x" * draw.randrange(2**18, 2**23) for _ in range(8)]
    kept.append(b"y" * 2**17)
    del bodies
print(resident_mib() - begin)
"""


def test_memory_of_large_bodies_is_returned_to_the_system() -> None:
    """Freed memory must return to the system although small blocks between it stay in use."""
    command = [sys.executable, "-c", _PROGRAM, "returned"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert int(said) < 30
