"""Quota accounts of a simulation: their process, their store, and the schedulers' link to them."""

from collections.abc import Callable
from typing import Any, cast

from justitia_ray.accounts.book import QuotaBook
from justitia_ray.accounts.messages import Answer, Exchange
from justitia_ray.config import AppConfig
from justitia_ray.serve.accounts.actor import AccountsActor
from justitia_ray.serve.accounts.handle import AccountsLink
from justitia_ray.serve.accounts.service import AccountsService
from justitia_ray.store.accounts_store import AccountsStore
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.units import Seconds
from tests.harness.simulation.network import Network
from tests.harness.simulation.recorder import Recorder
from tests.harness.simulation.store import RedisMemory, StoreClient
from tests.harness.simulation.use_recorder import UseRecorder
from tests.harness.simulation.virtual_loop import Process, unpark

NAME = "accounts"
_STORED_AGAIN_S: Seconds = 3.0
"""Seconds until lost data is stored again: the quota service tries to store twice a second."""


class WatchedBook(QuotaBook):
    """Quota book that reports to the tests when a reservation is lost with its scheduler."""

    recorders: dict[str, UseRecorder]

    def _end_lost_claim(self, scheduler: str, term: Any, name: str) -> None:
        claim = term.claims[name]
        unused = {unit: claim.unused(unit) for unit in claim.holds}
        super()._end_lost_claim(scheduler, term, name)
        lost = {unit: rest for unit, rest in unused.items() if rest > 0}
        self.recorders[scheduler].claim_lost(name, claim.tenant, lost)

    @property
    def claims(self) -> list[str]:
        return [name for term in self._terms.values() for name in term.claims]


class WatchedAccounts(AccountsService):
    """Quota service whose book the tests can read."""

    recorders: dict[str, UseRecorder]
    book_class: type[WatchedBook] = WatchedBook

    async def begin(self) -> None:
        await super().begin()
        self.book.__class__ = self.book_class
        cast(WatchedBook, self.book).recorders = self.recorders


class AccountsWithoutRay(AccountsActor):
    """Quota service without the parts that need Ray."""

    def __init__(
        self, make_service: Callable[[], AccountsService], on_end: Callable[[], None]
    ) -> None:
        self._config = AppConfig.parse({"model": {"name": "m", "path": "none"}})
        self._redis = None
        self._service = None
        self._starting = None
        self._idle = None
        self._make = make_service
        self._on_end = on_end

    @property
    def service(self) -> WatchedAccounts | None:
        return cast("WatchedAccounts | None", self._service)

    async def _make_service(self) -> AccountsService:
        return self._make()

    async def _end_process(self) -> None:
        await self.retire()
        self._on_end()


class AccountsHost:
    """Simulated process of the quota service."""

    def __init__(self, accounts: "SimulatedAccounts") -> None:
        self.process = Process(NAME)

        def make_service() -> AccountsService:
            store = AccountsStore(None, "app")
            client = StoreClient(accounts.redis, accounts.rng, dict)
            store._store = cast(SchedulerStore, client)
            service = accounts.service_class(
                store, lambda reason: self.actor._step_down(reason), wall=accounts.wall
            )
            service.recorders = accounts.recorders
            return service

        self.actor = self.process.run(
            lambda: AccountsWithoutRay(make_service, lambda: accounts.ended(self))
        )

    @property
    def in_charge(self) -> bool:
        """Whether the process lives, is not paused, and answers calls."""
        return self.process.alive and not self.process.paused and self.actor.service is not None


class SimulatedAccounts:
    """All processes of the quota service so far, on one store; the last is the newest."""

    def __init__(
        self, network: Network, wall_ahead_s: Seconds, service_class: type[WatchedAccounts]
    ) -> None:
        """Start the first process of the quota service.

        Args:
            network: Its lots decide the store's delays.
            wall_ahead_s: How far their wall clock is ahead of the loop's time.
            service_class: What is served.
        """
        self.redis = RedisMemory()
        self.rng = network.rng
        self.wall: Callable[[], Seconds] = lambda: network.now + wall_ahead_s
        self.service_class = service_class
        self.recorders: dict[str, UseRecorder] = {}
        """Recorders of real quota use, by scheduler name."""
        self.forgot_at: list[Seconds] = []
        """Times at which the quota service died with data that were not stored (loop clock)."""
        self.untold_at: list[Seconds] = []
        """Times at which the quota service died while its store was unreachable."""
        self.are_struck = False
        """Whether a fault has hit the quota service."""
        self.over = False
        """Whether the simulation is ending, so that dead processes are not replaced."""
        self._network = network
        self.hosts = [AccountsHost(self)]

    @property
    def newest(self) -> AccountsHost:
        return self.hosts[-1]

    def find(self, source: Process) -> AccountsHost | None:
        """Return the quota process that a caller reaches now; None if no process answers."""
        return self.newest if self.newest.process.alive else None

    def replace_newest(self) -> AccountsHost:
        """Start another quota process beside the current one, which Ray believes dead."""
        before = self.newest
        self._note_knowledge(before)
        self.hosts.append(AccountsHost(self))
        return before

    def crash(self, host: AccountsHost, down_s: Seconds) -> bool:
        """End a quota process, which Ray replaces after `down_s`; return whether it was alive."""
        if not host.process.alive:
            return False
        if host is self.newest:
            self._note_knowledge(host)
            self._network.later(down_s, lambda: self._restart(host))
        unpark(host.process)
        host.process.die()
        return True

    def lose_store(self) -> None:
        """Empty the quota service's store; running processes then write everything back."""
        self.redis.empty()
        if not self.newest.in_charge:
            self.forgot_at.append(self._network.now)

    def ended(self, host: AccountsHost) -> None:
        """Handle the exit of a quota process that lost the leadership."""

        def end() -> None:
            self.crash(host, 0.1)

        self._network.later(0.0, end)

    def _restart(self, host: AccountsHost) -> None:
        if not self.over and self.newest is host:
            self.hosts.append(AccountsHost(self))

    def _note_knowledge(self, host: AccountsHost) -> None:
        """Record whether a dying quota process has data that its successor will lack."""
        service, now = host.actor.service, self._network.now
        if service is None:
            return
        emptied_at = self.redis.emptied_at
        is_theirs = self.redis.epoch == service.book.epoch
        if not is_theirs or (emptied_at is not None and now - emptied_at < _STORED_AGAIN_S):
            self.forgot_at.append(now)
        elif service.trouble is not None:
            self.untold_at.append(now)


class WatchedAccountsLink(AccountsLink):
    """Link to the quota service that shows its answers to the recorder."""

    recorder: Recorder

    async def exchange(self, told: Exchange) -> Answer:
        answer = await super().exchange(told)
        if not answer.is_stale and answer.epoch == told.accounts:
            self.recorder.use.decided(told, answer.verdicts)
        return answer
