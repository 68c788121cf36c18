"""Ray Serve's autoscaling policy of a model: as many replicas as its scheduler asks for.

Serve pickles this module by value into its controller, where this package need not be installed: it
imports nothing of it. What decides runs in the scheduler (`justitia_ray.scaling`); a thread asks it
here, so that the controller never waits. Delays, factors and bounds are Serve's own.
"""

import logging
import math
import threading
import time
import weakref
from collections import deque
from typing import Any, Protocol

import ray
from ray.serve.config import AutoscalingContext

logger = logging.getLogger("ray.serve")  # of the controller

Answer = dict[str, Any]
_ANSWER_S = 5.0
"""Longest wait for an answer; in seconds, as all times here."""
_LOADS_KEPT = 8
"""Loading times of which the next one is told: the median."""


class Answers(Protocol):
    """Where the scheduler's answers come from."""

    def latest(self, question: dict[str, Any]) -> tuple[Answer, float] | None:
        """Return the last answer and its age in seconds; None without any. Never waits."""


class LoadTimes:
    """How long replicas take to load, from how many are wanted and how many run."""

    def __init__(self) -> None:
        self._asked_at: list[float | None] = []
        """When each that does not run was asked for, or found to be missing; None: not known."""
        self._running: int | None = None
        """None before the first sight."""
        self._loads: deque[float] = deque(maxlen=_LOADS_KEPT)

    def observe(self, running: int, target: int, now: float) -> None:
        """Note how many run and how many there are to be."""
        # A controller that is started again sees none at first, and soon those that ran all along.
        missing_since = None if self._running is None else now
        for _ in range(min(max(0, running - (self._running or 0)), len(self._asked_at))):
            asked_at = self._asked_at.pop(0)
            if asked_at is not None:
                self._loads.append(now - asked_at)
        self._running = running
        missing = max(0, target - running)
        while len(self._asked_at) < missing:
            self._asked_at.append(missing_since)
        del self._asked_at[missing:]  # those asked for last are given up first

    @property
    def usual_s(self) -> float | None:
        """The median of the last ones; None before the first."""
        loads = sorted(self._loads)
        return loads[len(loads) // 2] if loads else None


class DrainTimePolicy:
    """Wants what the scheduler wants; keeps what there is while it does not answer."""

    def __init__(
        self,
        scheduler: str,
        namespace: str,
        rules: dict[str, Any],
        poll_s: float = 1.0,
        stale_s: float = 15.0,
        answers: Answers | None = None,
    ) -> None:
        """Begin to ask with the first decision.

        Args:
            scheduler: Name of the scheduler actor.
            namespace: Its Ray namespace.
            rules: `SizingRules`, as a dict.
            poll_s: Time between two questions, in seconds.
            stale_s: Age from which an answer is no longer used, in seconds.
            answers: Where answers come from; None: from that actor.
        """
        self._rules = rules
        self._stale_s = stale_s
        self._answers = answers or PolledAnswers(scheduler, namespace, poll_s)
        self._loads = LoadTimes()

    def __call__(self, ctx: AutoscalingContext) -> tuple[int | float, dict[str, Any]]:
        """Return how many replicas are wanted, and what that rests on."""
        running, target = ctx.current_num_replicas, ctx.target_num_replicas
        self._loads.observe(running, target, ctx.current_time or 0.0)
        fleet = {"starting": max(0, target - running), "load_s": self._loads.usual_s}
        names = [replica.unique_id for replica in ctx.running_replicas or ()]
        question = {"rules": self._rules, "fleet": fleet, "running": names}
        latest = self._answers.latest(question)
        if latest is None or latest[1] > self._stale_s:
            wanted, reason = self._without_answer(ctx), "no answer of the scheduler"
        else:
            wanted, reason = int(latest[0]["wanted"]), str(latest[0]["reason"])
            if wanted:
                # Serve would count them among those that are wanted. A scheduler of an earlier
                # version names none.
                wanted += len({*latest[0].get("leaving", ())} & {*names})
        if wanted and not running:
            # Serve applies no delay here: a smaller number would at once end what is loading.
            wanted = max(wanted, target)
        return wanted, {"wanted": wanted, "reason": reason}

    def _without_answer(self, ctx: AutoscalingContext) -> int:
        """Return what there is to be, or what Serve's own count of requests asks for if more.

        Serve counts few of our requests, for they come by connections of ours: that the count is
        low is no reason for fewer.
        """
        by_count = ctx.total_num_requests / ctx.config.get_target_ongoing_requests()
        return int(max(ctx.target_num_replicas, math.ceil(by_count)))


class _Mailbox:
    """State that thread and policy share, so that the thread does not keep the policy alive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.question: dict[str, Any] = {}
        self.answer: tuple[Answer, float] | None = None
        """An answer, and when it came."""


class PolledAnswers:
    """Answers of the scheduler actor, which a daemon thread asks for again and again."""

    def __init__(self, scheduler: str, namespace: str, poll_s: float) -> None:
        """Ask from the first `latest` on, until this object is no longer used."""
        self._arguments = (scheduler, namespace, poll_s)
        self._mailbox = _Mailbox()
        self._is_asking = False

    def latest(self, question: dict[str, Any]) -> tuple[Answer, float] | None:
        """Return the last answer and its age in seconds; None without any. Never waits."""
        mailbox = self._mailbox
        with mailbox.lock:
            mailbox.question = question
            answer = mailbox.answer
        if not self._is_asking:
            self._is_asking = True
            arguments = (mailbox, *self._arguments)
            threading.Thread(
                target=_keep_asking, args=arguments, name="justitia-drain-policy", daemon=True
            ).start()
            # Serve drops a policy with its deployment, and makes another one when that changes.
            weakref.finalize(self, mailbox.ended.set)
        return None if answer is None else (answer[0], time.monotonic() - answer[1])


def _keep_asking(mailbox: _Mailbox, scheduler: str, namespace: str, poll_s: float) -> None:
    """Ask until the policy has gone; what goes wrong shows in the age of the last answer."""
    failed = ""
    while not mailbox.ended.is_set():
        with mailbox.lock:
            question = mailbox.question
        asked_at = time.monotonic()
        try:
            actor = ray.get_actor(scheduler, namespace=namespace)
            answer = ray.get(actor.size.remote(question), timeout=_ANSWER_S)
        except Exception as error:  # a thread that ends would leave the deployment as it is
            if failed != type(error).__name__:
                failed = type(error).__name__
                logger.warning("scheduler %s gives no size: %s", scheduler, failed)
        else:
            if answer is not None:
                failed = ""
                with mailbox.lock:
                    mailbox.answer = (answer, asked_at)
        mailbox.ended.wait(poll_s)
