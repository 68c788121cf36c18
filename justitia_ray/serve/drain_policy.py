"""Ray Serve autoscaling policy of a model: the number of replicas that its scheduler requests.

Serve pickles this module by value into its controller, where this package need not be installed, so
it imports nothing of the package. The decision is made in the scheduler (`justitia_ray.scaling`); a
thread here polls it, so that the controller never waits. Delays, factors and limits are Serve's
own.
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

logger = logging.getLogger("ray.serve")  # logger of Serve's controller

Answer = dict[str, Any]
_ANSWER_S = 5.0
"""Timeout in seconds of a request to the scheduler for its wanted number of replicas."""
_LOADS_KEPT = 8
"""Number of loading times of replicas from which the median is sent to the scheduler."""


class Answers(Protocol):
    """Source of the scheduler's answers about the number of replicas that it wants."""

    def latest(self, question: dict[str, Any]) -> tuple[Answer, float] | None: ...


class LoadTimes:
    """Measures how long replicas take to load, from the numbers of wanted and running replicas."""

    def __init__(self) -> None:
        self._asked_at: list[float | None] = []
        """Time since which each missing replica has been requested; None: unknown."""
        self._running: int | None = None
        """Number of running replicas at the last call of `observe`; None before any call."""
        self._loads: deque[float] = deque(maxlen=_LOADS_KEPT)

    def observe(self, running: int, target: int, now: float) -> None:
        """Update the loading times with the numbers of running and wanted replicas at `now`."""
        # A restarted controller sees no replicas at first, although some have been running.
        missing_since = None if self._running is None else now
        for _ in range(min(max(0, running - (self._running or 0)), len(self._asked_at))):
            asked_at = self._asked_at.pop(0)
            if asked_at is not None:
                self._loads.append(now - asked_at)
        self._running = running
        missing = max(0, target - running)
        while len(self._asked_at) < missing:
            self._asked_at.append(missing_since)
        del self._asked_at[missing:]  # Serve gives up the latest requests first.

    @property
    def median_load_s(self) -> float | None:
        """Median loading time of recent replicas in seconds; None before a replica was loaded."""
        loads = sorted(self._loads)
        return loads[len(loads) // 2] if loads else None


class DrainTimePolicy:
    """Autoscaling policy of Ray Serve that requests the number of replicas from the scheduler.

    Args:
        scheduler: Name of the scheduler actor.
        namespace: Ray namespace of the scheduler actor.
        rules: `SizingRules`, as a dict.
        poll_s: Polling interval in seconds.
        stale_s: Age in seconds from which an answer is no longer used.
        answers: Source of answers; None: polls the actor.
    """

    def __init__(
        self,
        scheduler: str,
        namespace: str,
        rules: dict[str, Any],
        poll_s: float = 1.0,
        stale_s: float = 15.0,
        answers: Answers | None = None,
    ) -> None:
        self._rules = rules
        self._stale_s = stale_s
        self._answers = answers or PolledAnswers(scheduler, namespace, poll_s)
        self._loads = LoadTimes()

    def __call__(self, ctx: AutoscalingContext) -> tuple[int | float, dict[str, Any]]:
        """Return the number of replicas that Serve should run, and the reason as a dict."""
        running, target = ctx.current_num_replicas, ctx.target_num_replicas
        self._loads.observe(running, target, ctx.current_time or 0.0)
        fleet = {"starting": max(0, target - running), "load_s": self._loads.median_load_s}
        names = [replica.unique_id for replica in ctx.running_replicas or ()]
        question = {"rules": self._rules, "fleet": fleet, "running": names}
        latest = self._answers.latest(question)
        if latest is None or latest[1] > self._stale_s:
            wanted, reason = self._target_without_answer(ctx), "no answer of the scheduler"
        else:
            wanted, reason = int(latest[0]["wanted"]), str(latest[0]["reason"])
            if wanted:
                # Serve would count replicas that are leaving as wanted ones.
                wanted += len({*latest[0].get("leaving", ())} & {*names})
        if wanted and not running:
            # Serve would stop loading replicas at once if the number fell before any replica runs.
            wanted = max(wanted, target)
        return wanted, {"wanted": wanted, "reason": reason}

    def _target_without_answer(self, ctx: AutoscalingContext) -> int:
        """Return the larger of Serve's target and its present number of replicas.

        Serve counts only few of the calls, because most use separate connections, so a low count is
        no reason to remove replicas.
        """
        by_count = ctx.total_num_requests / ctx.config.get_target_ongoing_requests()
        return int(max(ctx.target_num_replicas, math.ceil(by_count)))


class _PollingMailbox:
    """State shared by the polling thread and the policy; it does not keep the policy alive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.question: dict[str, Any] = {}
        self.answer: tuple[Answer, float] | None = None
        """Last answer of the scheduler, and the time of its request in seconds (monotonic clock).
        """


class PolledAnswers:
    """Latest answer of the scheduler actor, which a daemon thread polls.

    Polling starts with the first `latest` and ends when this object is no longer used.
    """

    def __init__(self, scheduler: str, namespace: str, poll_s: float) -> None:
        self._arguments = (scheduler, namespace, poll_s)
        self._mailbox = _PollingMailbox()
        self._is_asking = False

    def latest(self, question: dict[str, Any]) -> tuple[Answer, float] | None:
        """Return the scheduler's last answer and its age in seconds; None if there is none yet."""
        mailbox = self._mailbox
        with mailbox.lock:
            mailbox.question = question
            answer = mailbox.answer
        if not self._is_asking:
            self._is_asking = True
            arguments = (mailbox, *self._arguments)
            threading.Thread(
                target=_poll_scheduler, args=arguments, name="justitia-drain-policy", daemon=True
            ).start()
            # The thread ends when Serve drops the policy, with its deployment or later.
            weakref.finalize(self, mailbox.ended.set)
        return None if answer is None else (answer[0], time.monotonic() - answer[1])


def _poll_scheduler(
    mailbox: _PollingMailbox, scheduler: str, namespace: str, poll_s: float
) -> None:
    """Poll the scheduler until the policy is dropped; a failed poll keeps the last answer."""
    failed = ""
    while not mailbox.ended.is_set():
        with mailbox.lock:
            question = mailbox.question
        asked_at = time.monotonic()
        try:
            actor = ray.get_actor(scheduler, namespace=namespace)
            answer = ray.get(actor.size.remote(question), timeout=_ANSWER_S)
        # Any error is caught, because scaling of the deployment depends on this thread.
        except Exception as error:
            if failed != type(error).__name__:
                failed = type(error).__name__
                logger.warning("scheduler %s gives no size: %s", scheduler, failed)
        else:
            if answer is not None:
                failed = ""
                with mailbox.lock:
                    mailbox.answer = (answer, asked_at)
        mailbox.ended.wait(poll_s)
