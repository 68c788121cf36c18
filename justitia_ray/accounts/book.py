"""Quota book: usage in the window of each quota of the tenants' tree, and open claims on quotas.

A claim has two sizes: its expected usage (`needs`), and its largest usage (`holds`). It is granted
only if every rejecting quota of the tenant and its ancestors has `needs` left after the usage in
its window and the `holds` of all other claims. So all claims together use no more than the limit,
even if messages repeat and processes die. Two usages may exceed it, and are booked when metered:
that of the last claim beyond its `needs`, and that of any claim beyond its `holds`. A claim whose
scheduler no longer reports it counts as used.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from justitia_ray.accounts.messages import (
    Amounts,
    Answer,
    Ask,
    ClaimName,
    Exchange,
    NodeStanding,
    Use,
    Verdict,
)
from justitia_ray.accounts.windows import LENGTHS, UsedWindow
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.records import Record, RecordReader
from justitia_ray.core.tenants import (
    ANY,
    OnExhausted,
    Period,
    Quota,
    TenantTree,
    Unit,
    Window,
    ancestors,
)
from justitia_ray.units import ClientId, Epoch, Seconds

_EXACT = (Unit.APPLICATIONS, Unit.INFERENCES)
"""Units in which usage never exceeds the reserved amount, so that a lost reservation is not booked
twice.
"""
MOST_NODES = 1_000
"""Maximum number of tenants whose quotas are sent in one answer."""


@dataclass(slots=True)
class _Claim:
    """Reserved amounts, by unit, of an application or inference on its tenant's quotas."""

    tenant: ClientId
    holds: dict[Unit, float] = field(default_factory=dict)
    used: dict[Unit, float] = field(default_factory=dict)
    needs: dict[Unit, float] = field(default_factory=dict)
    """Expected usage by unit, where it is smaller than the reserved amount."""

    def unused(self, unit: Unit) -> float:
        """Return the reserved amount of a unit that is not used yet."""
        return max(0, self.holds.get(unit, 0) - self.used.get(unit, 0))

    def expected_further_use(self, unit: Unit) -> float:
        """Return the usage of a unit that is still expected under this reservation."""
        holds = self.holds.get(unit, 0)
        return max(0, min(holds, self.needs.get(unit, holds)) - self.used.get(unit, 0))

    def sizes(self, unit: Unit) -> tuple[float, float]:
        """Return the unused part of a reservation: the whole, and as far as use is expected."""
        return self.unused(unit), self.expected_further_use(unit)


@dataclass(slots=True)
class _Account:
    """Usage of one quota, with the amounts that open reservations (claims) hold of it."""

    quota: Quota
    window: UsedWindow
    claimed: float = 0
    expected: float = 0
    """Part of the reserved amount `claimed` that is expected to be used."""
    exceeded: int = 0

    def left_after_claims(self, now: Seconds) -> float:
        return self.quota.limit - self.window.used(now) - self.claimed

    def left_after_expected(self, now: Seconds) -> float:
        return self.quota.limit - self.window.used(now) - self.expected

    def resize(self, before: tuple[float, float], after: tuple[float, float]) -> None:
        """Replace the unused amount that one claim reserves of this quota."""
        self.claimed += after[0] - before[0]
        self.expected += after[1] - before[1]


class _Refusal(NamedTuple):
    """Refusal of a claim by a quota that has too little left."""

    path: ClientId
    account: _Account
    amount: float
    wait_s: Seconds | None
    waits: bool
    """Whether the refused quota claim would fit if open claims used only their expected amounts."""


_NOTHING = (0.0, 0.0)
"""Unused amounts, in full and as expected, of a quota claim that does not exist."""


@dataclass(slots=True)
class _SchedulerTerm:
    """Latest term of a scheduler as leader, with its open claims on quotas."""

    epoch: Epoch = 0
    number: int = 0
    heard_at: Seconds = 0.0
    restored: tuple[Epoch, int] = (0, 0)
    """Epoch of the scheduler and number of its last exchange with the accounts, as restored from
    Redis.
    """
    claims: dict[ClaimName, _Claim] = field(default_factory=dict)


_AccountKey = tuple[ClientId, str]


class QuotaBook:
    """Usage of a tree of tenants' quotas, and the open claims on them; the only writer of usage."""

    def __init__(self, tree: TenantTree | None = None, epoch: Epoch = 0) -> None:
        self.epoch = epoch
        self._tree = tree or TenantTree()
        self._accounts: dict[_AccountKey, _Account] = {}
        self._kept: dict[_AccountKey, tuple[str, dict[int, float]]] = {}
        """Stored usage windows of quotas that have not been used since the restart."""
        self._terms: dict[str, _SchedulerTerm] = {}
        self._now: Seconds = 0.0
        self._changed: dict[str, None] = {}

    @property
    def tree(self) -> TenantTree:
        return self._tree

    def configure(self, tree: TenantTree, now: Seconds) -> None:
        """Replace the tree of tenants; recorded usage and open claims count on the new quotas.

        A new quota counts the unused amounts of open claims, and usage from now on.
        """
        self._now = max(self._now, now)
        before, self._accounts, self._tree = self._accounts, {}, tree
        for key, account in before.items():
            self._kept[key] = (account.window.kind, account.window.parts)
        for term in self._terms.values():
            for claim in term.claims.values():
                for unit in claim.holds:
                    for account in self._limited_accounts(claim.tenant, unit):
                        account.resize(_NOTHING, claim.sizes(unit))
        for path in (*tree.described, *(path for path, _ in [*self._kept])):
            if not path.endswith(ANY):
                deque(self._accounts_on_path(path), maxlen=0)  # creates missing accounts
        for key, account in self._accounts.items():
            if key in before:
                account.exceeded = before[key].exceeded

    def exchange(self, told: Exchange, now: Seconds) -> Answer:
        """Book a scheduler's reports of usage on quotas, and answer its requests for claims.

        A repeated exchange is not booked again; if it is the last one, its asks are answered by the
        present state, and otherwise the answer is marked as stale.
        """
        self._now = now = max(self._now, now)
        term = self._terms.setdefault(told.scheduler, _SchedulerTerm())
        began_with = term.restored[1] if term.restored[0] == told.epoch else 0
        if (told.epoch, told.number) < (term.epoch, term.number):
            return Answer(self.epoch, is_stale=True, began_with=began_with)
        is_new = (told.epoch, told.number) > (term.epoch, term.number)
        term.heard_at = now
        if is_new:
            term.epoch, term.number = told.epoch, told.number
            self._changed[f"term:{told.scheduler}"] = None
            for use in told.uses:
                self._count_reported_use(told.scheduler, term, use)
            if told.survivors is not None:
                for name in term.claims.keys() - set(told.survivors):
                    self._end_lost_claim(told.scheduler, term, name)
        verdicts = tuple(self._answer_ask(told.scheduler, term, ask) for ask in told.asks)
        nodes = self.nodes(now) if told.wants_nodes else {}
        return Answer(self.epoch, verdicts, nodes, began_with=began_with)

    def expire(self, now: Seconds, silent_s: Seconds) -> None:
        """Book quota claims of schedulers that have been silent for `silent_s` as fully used."""
        self._now = now = max(self._now, now)
        for scheduler, term in self._terms.items():
            if now - term.heard_at >= silent_s:
                for name in list(term.claims):
                    self._end_lost_claim(scheduler, term, name)
        for key, account in list(self._accounts.items()):
            if key[0] not in self._tree.described and not (
                account.window.used(now) or account.claimed
            ):
                del self._accounts[key]
                self._changed[f"window:{key[0]}|{key[1]}"] = None
        for key, (kind, parts) in list(self._kept.items()):
            if not _stored_window(kind, parts).used(now):
                del self._kept[key]
                self._changed[f"window:{key[0]}|{key[1]}"] = None

    def standings(self, tenant: ClientId, now: Seconds) -> tuple[LimitStanding, ...]:
        """Return the state of the quotas that apply to a tenant, from the root of the tree down."""
        return tuple(
            _limit_state(path, account, max(self._now, now))
            for path, account in self._accounts_on_path(tenant)
        )

    def nodes(self, now: Seconds) -> dict[ClientId, tuple[NodeStanding, ...]]:
        """Return the state of quotas with usage or claims, for at most MOST_NODES tenants."""
        now = max(self._now, now)
        found: dict[ClientId, list[NodeStanding]] = {}
        for (path, _), account in self._accounts.items():
            if path not in found and len(found) >= MOST_NODES:
                continue
            quota, used = account.quota, account.window.used(now)
            found.setdefault(path, []).append(
                NodeStanding(
                    quota.unit,
                    quota.per.value,
                    quota.limit,
                    used,
                    account.claimed,
                    max(0, quota.limit - used - account.claimed),
                    account.window.reset_s(now),
                    LENGTHS[quota.per],
                    quota.on_exhausted.value,
                    account.exceeded,
                )
            )
        return {path: tuple(standings) for path, standings in found.items()}

    def take_changed(self) -> list[str]:
        """Return the names of Redis records that have changed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def all_records(self) -> list[str]:
        """Return the names of all Redis records of usage and claims on quotas."""
        names = [f"window:{path}|{name}" for path, name in (*self._accounts, *self._kept)]
        for scheduler, term in self._terms.items():
            names.append(f"term:{scheduler}")
            names += [f"claim:{scheduler}|{claim}" for claim in term.claims]
        return list(dict.fromkeys(names))

    def record(self, name: str) -> Record | None:
        """Return a Redis record as JSON by its name; None if it is empty."""
        kind, _, of = name.partition(":")
        if kind == "window":
            path, _, quota = of.rpartition("|")
            account = self._accounts.get((path, quota))
            if account is not None:
                window, parts = account.window.kind, account.window.parts
            else:
                window, parts = self._kept.get((path, quota), ("", {}))
            if not parts:
                return None
            return {"kind": window, "parts": [[part, amount] for part, amount in parts.items()]}
        if kind == "term":
            term = self._terms[of]
            return {"epoch": term.epoch, "number": term.number}
        scheduler, _, claim_name = of.partition("|")
        claim = self._terms[scheduler].claims.get(claim_name)
        if claim is None:
            return None
        record = {"tenant": claim.tenant, "holds": {**claim.holds}, "used": {**claim.used}}
        return record | {"needs": {**claim.needs}} if claim.needs else record

    def restore(self, records: dict[str, Record], now: Seconds) -> None:
        """Restore stored usage and claims on quotas into an empty book.

        Raises:
            ValueError: If a record lacks a field or has a wrong value.
        """
        self._now = max(self._now, now)
        for name, record in records.items():
            kind, _, of = name.partition(":")
            if kind == "window":
                path, _, quota = of.rpartition("|")
                reader = RecordReader(record, ("kind", "parts"), None, where=name)
                parts = {int(part): amount for part, amount in reader.items("parts")}
                self._kept[path, quota] = (reader.text("kind"), parts)
                _stored_window(*self._kept[path, quota])
            elif kind == "term":
                reader = RecordReader(record, ("epoch", "number"), None, where=name)
                term = self._terms.setdefault(of, _SchedulerTerm(heard_at=self._now))
                term.epoch, term.number = reader.integer("epoch"), reader.integer("number")
                term.restored = term.epoch, term.number
            else:
                scheduler, _, claim_name = of.partition("|")
                term = self._terms.setdefault(scheduler, _SchedulerTerm(heard_at=self._now))
                term.claims[claim_name] = _read_claim(record, name)
        self.configure(self._tree, self._now)

    def _answer_ask(self, scheduler: str, term: _SchedulerTerm, ask: Ask) -> Verdict:
        claim = term.claims.get(ask.name)
        # Another tenant already has a quota claim with this name.
        if claim is not None and claim.tenant != ask.tenant:
            self._end_lost_claim(scheduler, term, ask.name)
            claim = None
        claim = claim or _Claim(ask.tenant)
        more = {
            unit: max(0, want - max(claim.holds.get(unit, 0), claim.used.get(unit, 0)))
            for unit, want in ask.wants.items()
            if want > claim.holds.get(unit, 0)
        }
        refusal = None if ask.is_granted else self._find_refusal(claim, ask, more)
        if refusal is not None:
            refusal.account.exceeded += not refusal.waits
            standing = _limit_state(refusal.path, refusal.account, self._now)
            standing = replace(standing, wanted=refusal.amount)
            return Verdict(
                ask.name, standing, refusal.wait_s, waits=refusal.waits, holds={**claim.holds}
            )
        for unit in more:
            before = claim.sizes(unit)
            claim.holds[unit] = ask.wants[unit]
            if unit in ask.needs:
                claim.needs[unit] = ask.needs[unit]
            for account in self._limited_accounts(claim.tenant, unit):
                account.resize(before, claim.sizes(unit))
        if more:
            term.claims[ask.name] = claim
            self._changed[f"claim:{scheduler}|{ask.name}"] = None
        is_demoted = False
        for unit in claim.holds.keys() | ask.wants.keys():
            for account in self._limited_accounts(claim.tenant, unit):
                how = account.quota.on_exhausted
                if how is not OnExhausted.REJECT and account.left_after_expected(self._now) < 0:
                    account.exceeded += unit in more
                    is_demoted |= how is OnExhausted.DEPRIORITISE
        return Verdict(ask.name, is_deprioritised=is_demoted, holds={**claim.holds})

    def _find_refusal(self, claim: _Claim, ask: Ask, more: Amounts) -> _Refusal | None:
        """Return the quota that refuses a claim for the longest time; None if all have enough."""
        found: list[tuple[bool, Seconds, _Refusal]] = []
        for path, account in self._accounts_on_path(claim.tenant):
            unit = account.quota.unit
            has = max(claim.holds.get(unit, 0), claim.used.get(unit, 0))
            amount = ask.needs.get(unit, more.get(unit, 0) + has) - has
            if account.quota.on_exhausted is not OnExhausted.REJECT or amount <= 0:
                continue
            short = amount - account.left_after_expected(self._now)
            if short > 0:
                wait_s = account.window.wait_s(short, self._now)
                longest = LENGTHS[account.quota.per] if wait_s is None else wait_s
                if amount > account.quota.limit:
                    longest = math.inf
                found.append((True, longest, _Refusal(path, account, amount, wait_s, waits=False)))
            elif unit in more and amount > account.left_after_claims(self._now):
                found.append((False, 0.0, _Refusal(path, account, amount, None, waits=True)))
        return max(found, key=lambda one: one[:2])[2] if found else None

    def _count_reported_use(self, scheduler: str, term: _SchedulerTerm, use: Use) -> None:
        claim = term.claims.get(use.name)
        if claim is None:
            return
        for unit, used in use.used.items():
            if unit in _EXACT:
                used = min(used, claim.holds.get(unit, 0))
            before, sizes = claim.used.get(unit, 0), claim.sizes(unit)
            if used > before:
                claim.used[unit] = used
                self._book(claim.tenant, unit, used - before, sizes, claim.sizes(unit))
        if use.is_final:
            for unit in claim.holds:
                sizes, claim.holds[unit] = claim.sizes(unit), claim.used.get(unit, 0)
                self._book(claim.tenant, unit, 0, sizes, claim.sizes(unit))
        if use.is_over:
            for unit in claim.holds:
                self._book(claim.tenant, unit, 0, claim.sizes(unit), _NOTHING)
            del term.claims[use.name]
        self._changed[f"claim:{scheduler}|{use.name}"] = None

    def _end_lost_claim(self, scheduler: str, term: _SchedulerTerm, name: ClaimName) -> None:
        """Count a quota claim that its scheduler no longer reports as fully used."""
        claim = term.claims[name]
        self._count_reported_use(scheduler, term, Use(name, {**claim.holds}, is_over=True))

    def _book(
        self,
        tenant: ClientId,
        unit: Unit,
        used: float,
        before: tuple[float, float],
        after: tuple[float, float],
    ) -> None:
        """Book usage on a tenant's quotas, and reduce the unused amounts of its claim."""
        for path, account in self._accounts_on_path(tenant):
            if account.quota.unit is unit:
                account.resize(before, after)
                if used:
                    account.window.add(used, self._now)
                    self._changed[f"window:{path}|{account.quota.name}"] = None

    def _limited_accounts(self, tenant: ClientId, unit: Unit) -> Iterator[_Account]:
        return (
            account for _, account in self._accounts_on_path(tenant) if account.quota.unit is unit
        )

    def _accounts_on_path(self, tenant: ClientId) -> Iterator[tuple[ClientId, _Account]]:
        for path in ancestors(tenant):
            for quota in self._tree.node(path).quotas:
                key = (path, quota.name)
                account = self._accounts.get(key)
                if account is None:
                    account = self._accounts[key] = _Account(
                        quota, self._restore_usage_window(key, quota)
                    )
                yield path, account

    def _restore_usage_window(self, key: _AccountKey, quota: Quota) -> UsedWindow:
        """Return a quota's usage window; if its period has changed, old usage counts as new."""
        window = UsedWindow(quota)
        kind, parts = self._kept.pop(key, (window.kind, {}))
        if kind == window.kind:
            return UsedWindow(quota, parts)
        if parts:
            window.add(sum(parts.values()), self._now)
        return window


def _limit_state(path: ClientId, account: _Account, now: Seconds) -> LimitStanding:
    quota = account.quota
    return LimitStanding(
        path,
        quota.unit.value,
        quota.limit,
        max(0, account.left_after_claims(now)),
        account.window.reset_s(now) or LENGTHS[quota.per],
        LENGTHS[quota.per],
    )


def _stored_window(kind: str, parts: dict[int, float]) -> UsedWindow:
    """Return the usage window of a stored record, for reading only.

    Raises:
        ValueError: If the kind is not valid.
    """
    period, _, window = kind.partition("/")
    return UsedWindow(Quota(Unit.TOKENS, 0, Period(period), Window(window)), parts)


def _read_claim(record: Any, where: str) -> _Claim:
    reader = RecordReader(record, ("tenant", "holds", "used"), None, where=where)
    amounts = [
        {Unit(unit): amount for unit, amount in reader.table(name, RecordReader.number).items()}
        for name in ("holds", "used", *(["needs"] if "needs" in record else []))
    ]
    return _Claim(reader.text("tenant"), *amounts)
