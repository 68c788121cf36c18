"""An event loop whose time jumps to the next deadline: seconds pass in no time, in one order."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.BaseSelector):
    """Never waits: what the loop would wait, it sets its time forward by."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        self._inner = selectors.DefaultSelector()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        if not ready and timeout is not None:
            self._jump(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that begins at 1,000 s."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        super().__init__(_JumpingSelector(self._pass))

    def time(self) -> float:
        return self._now_s

    def _pass(self, seconds: float) -> None:
        self._now_s += max(0.0, seconds)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of virtual time.

    Raises:
        RuntimeError: If it waits for what never happens.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
