"""The scheduler's handle, for those who repeat a call that the scheduler's death has lost.

Ray tells the caller of an actor that is being started again only after a second or more that a call
of it has failed (it waits for word of how the actor died). Who repeats each call after its failure
finds the new actor up to so much too late. So once a call has failed the actor is asked ten times a
second whether it is there, whatever became of the questions before; when it answers, every call
begun earlier fails.
"""

import asyncio
from contextlib import suppress
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from justitia_ray.units import Seconds

_EVERY_S: Seconds = 0.1
_MOST = 30
"""Questions at once: of a scheduler that is there and waits for Redis, the answers are awaited."""


class ReturningHandle:
    """A handle whose calls fail as soon as there is another scheduler, and not before.

    A call that failed may have been executed, by the old scheduler or, if it was on its way when
    the new one was found, by that one.
    """

    def __init__(self, scheduler: Any) -> None:
        """Wrap a handle; nothing is asked before a call of it fails.

        Args:
            scheduler: An actor's; its `version` answers once it is in office.
        """
        self._scheduler = scheduler
        self._search: asyncio.Task[None] | None = None
        self._returned: asyncio.Future[None] | None = None
        """Done when the scheduler was found again after it had been away."""

    def __getattr__(self, method: str) -> "_Method":
        return _Method(self, getattr(self._scheduler, method))

    async def call(self, method: Any, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the wrapped handle.

        Raises:
            RayError: If the call fails; of one that found no scheduler, once there is one.
        """
        if self._returned is None or self._returned.done():
            self._returned = asyncio.get_running_loop().create_future()
        returned = self._returned
        answer = asyncio.ensure_future(method.remote(*arguments))
        try:
            await asyncio.wait({answer, returned}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ActorUnavailableError("the scheduler was started again", None)
            return answer.result()
        except ActorDiedError:
            raise  # for good
        except RayActorError:
            if not returned.done():
                await self._found(returned)
            raise
        finally:
            answer.cancel()

    async def _found(self, returned: "asyncio.Future[None]") -> None:
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._keep_asking(returned))
        await asyncio.wait({returned})

    async def _keep_asking(self, returned: "asyncio.Future[None]") -> None:
        found = asyncio.Event()
        questions: set[asyncio.Task[None]] = set()
        try:
            while not found.is_set():
                if len(questions) < _MOST:
                    question = asyncio.create_task(self._ask(found))
                    questions.add(question)
                    question.add_done_callback(questions.discard)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY_S):
                        await found.wait()
        finally:
            for question in questions:
                question.cancel()
            returned.set_result(None)

    async def _ask(self, found: asyncio.Event) -> None:
        try:
            await self._scheduler.version.remote()
        except ActorDiedError:
            pass  # for good: who calls it is to hear that
        except RayActorError:
            return
        except RayError:
            pass  # it is there, and says itself what is wrong
        found.set()


class _Method:
    """A method of the scheduler."""

    def __init__(self, handle: ReturningHandle, method: Any) -> None:
        self._handle = handle
        self._method = method

    async def remote(self, *arguments: Any) -> Any:
        """See `ReturningHandle.call`."""
        return await self._handle.call(self._method, arguments)
