"""Threads that do the work of tenants step by step, in fair turns between tenants."""

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from justitia_ray.serve.ingress.turns import Place, Turns
from justitia_ray.units import Seconds

T = TypeVar("T")

_THREADS = 2
_TURN_S: Seconds = 0.005
"""Seconds for which a thread works for one tenant before the next; a switch costs 0.1 ms."""


class _SteppedWork:
    """Work that a thread does in steps, and the future of its result."""

    def __init__(self, steps: Generator[None, None, Any], done: asyncio.Future[Any]) -> None:
        self.steps = steps
        self.done = done

    def run_work_steps(self, turn_s: Seconds) -> tuple[Seconds, bool, Any]:
        """Run steps of the work for `_TURN_S`; return (time taken, if all are done, result)."""
        began_at = time.perf_counter()
        took_s = 0.0
        is_last, result = False, None
        while not is_last and (not took_s or took_s < turn_s):
            try:
                next(self.steps)
            except StopIteration as end:
                is_last, result = True, end.value
            took_s = time.perf_counter() - began_at
        return took_s, is_last, result


class FairThreads:
    """Threads that share their time fairly between tenants; used from one event loop.

    The tenant with the least time so far has the next turn, so that a long work of one tenant
    delays another tenant by one turn. Work is dropped when its caller is cancelled.
    """

    def __init__(self, threads: int = _THREADS, turn_s: Seconds = _TURN_S) -> None:
        self._idle = threads
        self._turn_s = turn_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="fair-turns")
        self._turns: Turns[_SteppedWork] = Turns()

    async def run(self, tenant: str, steps: Generator[None, None, T]) -> T:
        """Run work for a tenant in the threads and return its result."""
        work = _SteppedWork(steps, asyncio.get_running_loop().create_future())
        place = self._turns.join(tenant, work)
        self._start_waiting_work()
        try:
            result: T = await work.done
            return result
        finally:
            self._turns.leave(place)

    def _start_waiting_work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle and (place := self._turns.first()) is not None:
            self._turns.take(place)
            self._idle -= 1
            assert place.item is not None
            turn = loop.run_in_executor(self._threads, place.item.run_work_steps, self._turn_s)
            turn.add_done_callback(partial(self._end_work_turn, place))

    def _end_work_turn(
        self, place: Place[_SteppedWork], turn: "asyncio.Future[tuple[Seconds, bool, Any]]"
    ) -> None:
        self._idle += 1
        work = place.item
        assert work is not None
        if turn.cancelled():  # the threads are closed
            work.done.cancel()
            return
        error = turn.exception()
        if error is not None:
            if not work.done.done():
                work.done.set_exception(error)
        else:
            took_s, is_last, result = turn.result()
            self._turns.charge(place, took_s)
            if not work.done.done():
                if is_last:
                    work.done.set_result(result)
                else:
                    self._turns.line_up(place)
        self._start_waiting_work()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
