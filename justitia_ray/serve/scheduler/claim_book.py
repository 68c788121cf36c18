"""Claims of a scheduler on quotas, and ended claims that the accounts do not know yet."""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import count

from justitia_ray.accounts.messages import ClaimName, Use
from justitia_ray.core.tenants import Unit
from justitia_ray.serve.scheduler.claims import Claim, EndedClaims, RecentlyReportedEnds
from justitia_ray.units import ApplicationId


class ClaimBook:
    """A scheduler's open claims on quotas, and ended claims whose usage it must still report."""

    def __init__(self) -> None:
        self.claims: dict[ClaimName, Claim] = {}
        self.fresh: dict[ClaimName, Claim] = {}
        """Claims on quotas that were made or decided since the last exchange with the accounts."""
        self.waiting: dict[ApplicationId, dict[ClaimName, Claim]] = {}
        """Claims on quotas that wait until running inferences end, by application, oldest first."""
        self.over: list[Use] = []
        """Usage of ended claims on quotas that the next exchange reports."""
        self.unstored = EndedClaims()
        self.lately_told = RecentlyReportedEnds()
        self.untold: list[tuple[Claim, Mapping[Unit, float]]] = []
        """Usage of claims on quotas that ended before the accounts knew them."""
        self.changed = asyncio.Event()
        """Event that is set when there is something to exchange with the quota accounts."""
        self.exchanges = 0
        """Number of the last exchange with the quota accounts."""
        self._numbers = count(1)

    def is_live(self, claim: Claim) -> bool:
        """Return whether a claim on quotas has not ended, even if a later claim has its name."""
        return self.claims.get(claim.name) is claim

    def make(self, claim: Claim) -> None:
        """Add a claim on quotas, which the accounts have to decide."""
        self.report_end(claim.name)
        claim.number = next(self._numbers)
        self.claims[claim.name] = self.fresh[claim.name] = claim
        self.changed.set()

    def wait(self, claim: Claim) -> None:
        """Make a claim wait until running inferences end, because a quota has too little left."""
        self.waiting.setdefault(claim.application_id, {})[claim.name] = claim

    def stop_waiting(self, claim: Claim) -> None:
        """Remove a quota claim from the claims that wait for running inferences to end."""
        waiting = self.waiting.get(claim.application_id)
        if waiting is not None:
            waiting.pop(claim.name, None)
            if not waiting:
                del self.waiting[claim.application_id]

    def settle(
        self, claim: Claim, used: Mapping[Unit, float], *, when_stored: bool = False
    ) -> None:
        """End a quota claim that has not ended yet; its unused amount returns to the quota.

        Args:
            claim: The claim.
            used: Amounts that were used under it.
            when_stored: Whether to wait until the end of the application or inference is stored.
        """
        if not self.is_live(claim):
            return
        del self.claims[claim.name]
        self.fresh.pop(claim.name, None)
        self.stop_waiting(claim)
        if claim.deadline is not None:
            claim.deadline.cancel()
        if claim.is_unknown_to_accounts:
            self.untold.append((claim, used))
        else:
            now = asyncio.get_running_loop().time()
            use = Use(claim.name, used, is_over=not when_stored, is_final=when_stored)
            self.over.append(use)
            self.lately_told.add(claim, use, self.exchanges + 1, now)
            if when_stored:
                self.unstored.add(Use(claim.name, used, is_over=True), now)
        self.changed.set()

    def report_end(self, name: ClaimName) -> None:
        """Report the end of a claim to the quota accounts, whether the end is stored or not."""
        ended = self.unstored.pop(name)
        if ended is not None:
            self.over.append(ended)
            now = asyncio.get_running_loop().time()
            self.lately_told.note_over(ended, self.exchanges + 1, now)
            self.changed.set()

    def note_stored(self, ends: Iterable[Use]) -> None:
        """Report ended claims to the quota accounts, after the scheduler stored their end."""
        for use in ends:
            if self.unstored.holds(use):
                self.report_end(use.name)

    def drop_claims(self) -> None:
        """Forget the open claims on quotas without reporting their ends."""
        self.claims.clear()
        self.fresh.clear()
        self.waiting.clear()

    def clear(self) -> None:
        """Forget all claims on quotas, open and ended; unreported usage stays."""
        self.drop_claims()
        self.untold.clear()
        self.unstored.clear()
        self.lately_told.clear()
