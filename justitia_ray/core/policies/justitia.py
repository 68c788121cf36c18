"""Justitia: applications in the order of their completion under GPS (v1, Sec. IV-C, Alg. 1).

The order `sgps` is not in the paper: shortest first, wherever GPS's promise to others allows it.
"""

import struct
from collections.abc import Callable, Iterator
from typing import ClassVar

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.clock.slack import Slack
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Policy
from justitia_ray.core.policies.options import Option, PolicyOptions, one_of
from justitia_ray.core.queue import Key, LazyHeap
from justitia_ray.errors import ConfigError
from justitia_ray.units import ApplicationId, ClientId

_MOST_MOVED = 1024
"""Accounts that moved and are not in the slack yet, if nobody asks who is first."""


class ShortestFirst(LazyHeap):
    """Applications by F, but those that may pass first, by what is left of them (`clock/slack`)."""

    __slots__ = ("_application", "_fair_share", "_moved", "_slack")

    def __init__(
        self, fair_share: ServedShare, application: Callable[[ApplicationId], Application]
    ) -> None:
        """Begin empty.

        Args:
            fair_share: The accounts, which tell from now on who moves.
            application: Returns a live application.
        """
        super().__init__()
        self._fair_share = fair_share
        self._application = application
        self._slack = Slack()
        self._moved = fair_share.watch()

    def put(self, name: str, key: Key) -> None:
        """Put an application at its place by F, or move it there."""
        super().put(name, key)
        self._move(name)

    def drop(self, name: str) -> None:
        """Remove an application; what is left of its charge still counts."""
        super().drop(name)
        self._move(name)

    def first(self) -> str | None:
        """Return the application with least left of those that may pass, else that of least F."""
        self._catch_up()
        passing = self._slack.first(self._fair_share.clock.virtual_time)
        return super().first() if passing is None else passing

    def in_order(self) -> Iterator[str]:
        """Yield the applications as they would be served if nothing moved. O(N log N)."""
        self._catch_up()
        passing = self._slack.passing(self._fair_share.clock.virtual_time)
        yield from passing
        passed = set(passing)
        yield from (name for name in super().in_order() if name not in passed)

    def _move(self, name: ApplicationId) -> None:
        self._moved[name] = None
        if len(self._moved) > _MOST_MOVED:
            self._catch_up()

    def _catch_up(self) -> None:
        share = self._fair_share
        for name in self._moved:
            account = share.accounts.get(name)
            is_live = account is not None and not account.withdrawn
            if name not in share.clock or not (is_live or share.clock.session(name).active):
                self._slack.drop(name)
                continue
            session, remaining = share.clock.session(name), 0.0
            if account is not None and is_live:
                remaining = max(0, account.charged - account.attained)
            self._slack.put(
                name,
                session.finish,
                session.sequence,
                session.weight,
                remaining,
                binds=is_live and (remaining > 0 or len(self._application(name).waiting) > 0),
                waits=name in self,
            )
        self._moved.clear()


class JustitiaPolicy(Policy):
    """Smallest (F, arrival sequence) first; the first application is given all it can use."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (Option("order", "finish", one_of("finish", "sgps")),)
    ACCOUNTS_IN_COST: ClassVar[bool] = True

    @classmethod
    def check(cls, options: PolicyOptions) -> None:
        """Refuse what has no slack: another clock, or tenants between applications and GPS."""
        if options.own["order"] == "sgps":
            for name, needed in (("clock", "served"), ("fairness", "application")):
                if getattr(options, name) != needed:
                    raise ConfigError(f"policy_options.order: 'sgps' needs {name}: {needed}")

    @property
    def lets_pass(self) -> bool:
        """Whether it is not F alone that says who is first."""
        return bool(self.options.own["order"] == "sgps")

    def order(self) -> LazyHeap:
        """Return the order by F, or the one in which the shortest pass where they may."""
        if self.lets_pass:
            return ShortestFirst(self.fair_share, self.context.application)
        return super().order()

    def client(self, application: Application) -> ClientId:
        """Return the application, or its tenant if fairness is between tenants."""
        if self.options.fairness == "tenant":
            return application.tenant
        return application.application_id

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (F, arrival sequence); between tenants F is the key of `tenant_share`."""
        return (self.fair_share.tag(application.application_id), application.sequence)

    def application_key(self, application: Application) -> Key:
        """Return the place inside its tenant; of no effect between applications."""
        tag = self.fair_share.tag_in_tenant(application.application_id)
        return (tag, application.sequence)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return F as an integer of the same rank, so that the engine's own order is ours."""
        return rank_preserving_integer(self.fair_share.tag(application.application_id))


def rank_preserving_integer(value: float) -> int:
    """Map a non-negative float to a 63-bit integer: a < b if and only if map(a) < map(b).

    The bit pattern of a non-negative IEEE double rises with its value. Adding 0.0 takes the sign
    from -0.0, which equals 0.0 but has the highest bit set.

    Raises:
        ValueError: If the value is negative or not a number.
    """
    if not value >= 0:
        raise ValueError(f"a tag must be >= 0, got {value}")
    bits: int = struct.unpack(">q", struct.pack(">d", float(value) + 0.0))[0]
    return bits
