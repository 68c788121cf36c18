"""Exact fluid GPS over explicit sets, and the clock rules on top of it, in fractions.

It is written from the rules, not from the code under test: it stores the work that each session is
still owed, and distributes service over all of them departure by departure. It has neither tags nor
a heap; a tag is computed from the work owed. O(N) per departure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


class GpsServer:
    """Exact GPS server: it serves all sessions with work left, in proportion to their weights."""

    def __init__(self) -> None:
        self.virtual_time = Fraction(0)
        self.given = Fraction(0)
        """Total service that all sessions have used."""
        self.owed: dict[str, Fraction] = {}
        self.weight: dict[str, Fraction] = {}
        self._dry_since: dict[str, Fraction] = {}

    def busy(self) -> set[str]:
        return {name for name, work in self.owed.items() if work > 0}

    def add_work(self, name: str, work: Fraction) -> None:
        self.owed[name] += work

    def join(self, name: str, weight: Fraction) -> None:
        """Add a session without work; an existing session keeps its work."""
        if name not in self.owed:
            self.owed[name] = Fraction(0)
            self._dry_since[name] = self.virtual_time
        self.weight[name] = weight

    def give_service(self, work: Fraction) -> None:
        """Distribute service over the busy sessions until it, or all work, is used up."""
        while work > 0 and (busy := self.busy()):
            total = sum((self.weight[name] for name in busy), Fraction(0))
            to_departure = min(self.owed[name] / self.weight[name] for name in busy)
            step = min(to_departure, work / total)
            self.virtual_time += step
            for name in busy:
                self._take(name, step * self.weight[name])
            work -= step * total
            self.given += step * total

    def remove_work(self, name: str, work: Fraction) -> None:
        """Reduce a session's work; service that it did not need goes to the other sessions."""
        still_owed = min(work, self.owed[name])
        if still_owed > 0:
            self._take(name, still_owed)
        self.give_service(work - still_owed)

    def tag(self, name: str) -> Fraction:
        """Return the virtual finish time of a session: when its work is, or was, done."""
        if self.owed[name] > 0:
            return self.virtual_time + self.owed[name] / self.weight[name]
        return self._dry_since[name]

    def _take(self, name: str, work: Fraction) -> None:
        self.owed[name] -= work
        if self.owed[name] == 0:
            self._dry_since[name] = self.virtual_time


@dataclass
class Ledger:
    """Charged and received service of an application."""

    charged: Fraction
    attained: Fraction = Fraction(0)
    away: bool = False


class ExactFairShare:
    """Reference implementation, on exact GPS, of the seven rules in `core.fair_share`.

    Subclasses redefine charge, refund, service and weight in `_add_work`, `_remove_work`,
    `_give_service` and `_join`.
    """

    def __init__(self) -> None:
        self.gps = GpsServer()
        self.ledgers: dict[str, Ledger] = {}

    def arrive(self, name: str, predicted: Fraction, weight: Fraction) -> None:
        """Charge a new application its predicted cost (rule 6)."""
        charge = max(Fraction(2), predicted)
        self.ledgers[name] = Ledger(charge)
        self._join(name, weight)
        self._add_work(name, charge)

    def key(self, name: str) -> Fraction:
        """Return the virtual time at which GPS has finished an application's work."""
        return self.gps.tag(name)

    def report(self, deliveries: Iterable[tuple[str, Fraction]]) -> None:
        """Charge more to applications that used up their charge, and serve GPS (rules 1 and 2)."""
        total = Fraction(0)
        for name, amount in deliveries:
            total += amount
            ledger = self.ledgers[name]
            ledger.attained += amount
            while ledger.attained > ledger.charged:
                self._add_work(name, ledger.charged)
                ledger.charged += ledger.charged
        self._give_service(total)

    def leave(self, name: str) -> None:
        """Refund an idle application the part of its charge that it has not used (rule 4)."""
        ledger = self.ledgers[name]
        if not ledger.away:
            ledger.away = True
            self._remove_work(name, ledger.charged - ledger.attained)

    def come_back(self, name: str) -> None:
        """Charge an application that returns after a pause (rule 5)."""
        ledger = self.ledgers[name]
        if ledger.away:
            ledger.away = False
            self._add_work(name, ledger.charged - ledger.attained)

    def expect(self, name: str, remaining: Fraction) -> None:
        """Raise an application's charge to its newly expected cost (rule 7)."""
        ledger = self.ledgers[name]
        more = ledger.attained + remaining - ledger.charged
        if more > 0:
            ledger.charged += more
            if not ledger.away:
                self._add_work(name, more)

    def end(self, name: str) -> None:
        """Refund an ended application the unused part of its charge (rule 3)."""
        self.leave(name)
        del self.ledgers[name]

    def reweigh(self, name: str, weight: Fraction) -> None:
        """Refund an application at its old weight, and charge it at the new one."""
        ledger = self.ledgers[name]
        if not ledger.away:
            self._remove_work(name, ledger.charged - ledger.attained)
        self._join(name, weight)
        if not ledger.away:
            self._add_work(name, ledger.charged - ledger.attained)

    def _join(self, name: str, weight: Fraction) -> None:
        self.gps.join(name, weight)

    def _add_work(self, name: str, work: Fraction) -> None:
        self.gps.add_work(name, work)

    def _remove_work(self, name: str, work: Fraction) -> None:
        self.gps.remove_work(name, work)

    def _give_service(self, work: Fraction) -> None:
        self.gps.give_service(work)
