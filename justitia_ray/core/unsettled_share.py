"""Clocks that settle nothing: the served one without its rules for that, and the paper's."""

from collections.abc import Iterable

from justitia_ray.core.fair_share import ServedShare
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds


class UnsettledShare(ServedShare):
    """The served clock without rules 1, 3 and 7, to show what settling is worth. Not for service.

    What was predicted too high holds V back for good; what was predicted too low keeps its place.
    """

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book one report's service (rule 2); no charge changes."""
        total: KvTokenTime = 0
        for application_id, amount in deliveries:
            self.accounts[application_id].attained += amount
            total += amount
        self.clock.serve(total)
        return []

    def withdraw(self, application_id: ApplicationId) -> None:
        """Nothing: what GPS gives an application in a gap is settled nowhere either."""

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> bool:
        """Nothing: what was predicted too low keeps its place."""
        return False


class NominalShare(UnsettledShare):
    """Accounts under the paper's clock: V moves with time, at M per iteration (v1, Eq. 2).

    Its tags never change, through tool gaps neither.

    The rate is in token·iterations per second: M tokens of KV memory over an iteration of
    `iteration_s`. A clock that forgets the iterations turns the order into shortest-job-first.
    """

    def __init__(self, iteration_s: Seconds, clock: VirtualClock | None = None) -> None:
        super().__init__(clock)
        self._iteration_s = iteration_s
        self._rate: float = 0
        self._advanced_to: Seconds | None = None

    def advance(self, now: Seconds) -> None:
        """Move V by the nominal service since the last call."""
        if self._advanced_to is not None and now > self._advanced_to:
            self.clock.serve((now - self._advanced_to) * self._rate)
        self._advanced_to = now if self._advanced_to is None else max(self._advanced_to, now)

    def set_rate(self, kv_tokens: int, now: Seconds) -> None:
        """Serve at the rate of `kv_tokens` of KV memory from `now` on."""
        self.advance(now)
        self._rate = kv_tokens / self._iteration_s

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book what was attained; neither V nor a tag changes."""
        for application_id, amount in deliveries:
            self.accounts[application_id].attained += amount
        return []
