"""Messages of a scheduler to the accounts: report usage of quotas, fetch decisions on claims."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from justitia_ray.accounts.messages import Ask, ClaimName, Exchange, Use, Verdict
from justitia_ray.core.tenants import TenantTree, Unit
from justitia_ray.errors import AdmissionError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.tenant_metrics import ExchangeMeter
from justitia_ray.serve.scheduler.claim_book import ClaimBook
from justitia_ray.serve.scheduler.claims import (
    Accounts,
    Claim,
    name_of_inference,
    use_beyond_claim,
    used_by,
    with_lost_ends,
)
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.known_quotas import KnownQuotas
from justitia_ray.serve.scheduler.write_through import WriteThroughAdmission
from justitia_ray.units import ApplicationId, Epoch, RequestId, Seconds

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_S: Seconds = 1.0
"""Seconds between two reports of all usage to the quota accounts.

Messages in between cover only reservations of quota that are new, decided, waiting or ended.
"""
_IDLE_S: Seconds = 5.0
"""Seconds between two queries for the state of the quotas while no quota is reserved."""
_RETRY_S: Seconds = 0.2
_ANSWER_S: Seconds = 5.0
_ASK_AGAIN_S: Seconds = 0.1
"""Seconds between two requests to the quota accounts while a reservation waits for running
inferences to end.
"""
_MOST_WAITING_ASKED = 16
"""Maximum number of waiting inferences of an application for which quotas are requested at once, in
order.
"""


class ClaimExchange:
    """Sends claims on quotas, and their usage, to the accounts actor while tenants have quotas.

    Args:
        scheduler: Name of the scheduler for the accounts.
        admission: Holds the inferences that wait to be stored.
        book: The scheduler's claims.
        connect: Returns the interface to the accounts; called once there are quotas.
        decide: Receives the decisions of an exchange, in order.
        resubmitted_within_s: Time within which ingresses resubmit everything to a new scheduler.
    """

    def __init__(
        self,
        scheduler: str,
        admission: WriteThroughAdmission,
        book: ClaimBook,
        connect: Callable[[], Accounts],
        decide: Callable[[Sequence[tuple[Claim, Verdict]]], None],
        resubmitted_within_s: Seconds,
    ) -> None:
        self._scheduler = scheduler
        self._admission = admission
        self._book = book
        self._connect = connect
        self._decide = decide
        self._resubmitted_within_s = resubmitted_within_s
        self._tree = TenantTree()
        self._has_quotas = False
        self._all_due_at: Seconds = -math.inf
        """Time at which the next exchange with the quota accounts covers all claims, not only
        changed ones.
        """
        self._began_at: Seconds | None = None
        self._epoch: Epoch = 0
        self._accounts_epoch: Epoch = 0
        self._last_accounts: Epoch = 0
        """Epoch of the quota accounts that answered last."""
        self._greeted: Epoch = 0
        """Epoch of the quota accounts to which possibly lost ends of claims were sent again."""
        self._told: Exchange | None = None
        """Exchange that was sent to the quota accounts and has no answer yet; None without one."""
        self._asked: dict[ClaimName, Claim] = {}
        """Claims on quotas in the unanswered exchange. A later claim may have the same name."""
        self.known = KnownQuotas()
        self.meter = ExchangeMeter()

    @property
    def _driver(self) -> CoreDriver:
        return self._admission.driver

    def begin(self, epoch: Epoch) -> None:
        """Begin a term of the scheduler; its messages to the quota accounts carry the new epoch."""
        self._epoch, self._began_at = epoch, asyncio.get_running_loop().time()

    def use_tree(self, tree: TenantTree, *, has_quotas: bool) -> None:
        """Use another tree of tenants; the quota accounts get it before the next exchange."""
        self._tree = tree
        self._accounts_epoch = 0
        if self._has_quotas and not has_quotas:
            self.known = KnownQuotas()
        self._has_quotas = has_quotas
        self._book.changed.set()

    async def run(self) -> None:
        """Exchange messages with the quota accounts until cancelled, while tenants have quotas."""
        accounts: Accounts | None = None
        while True:
            if not self._has_quotas:
                accounts = self._told = None
                self._book.changed.clear()
                await self._book.changed.wait()
                continue
            try:
                accounts = accounts or self._connect()
                began_at = asyncio.get_running_loop().time()
                async with asyncio.timeout(_ANSWER_S):
                    await self._exchange_once(accounts)
                self.meter.record_answer(asyncio.get_running_loop().time() - began_at)
            except (AdmissionError, TimeoutError) as error:
                self.meter.record_failure()
                log_event(logger, logging.WARNING, "accounts.unreachable", reason=str(error))
                accounts = None
                self._accounts_epoch = 0
                self._drop_unclaimed_ends()
                await asyncio.sleep(_RETRY_S)
                continue
            except Exception:
                # After an unexpected error, later submissions must still be decided.
                self.meter.record_failure()
                logger.exception("accounts.exchange_failed")
                self._told = None
                self._drop_unclaimed_ends()
                await asyncio.sleep(_RETRY_S)
                continue
            if self._told is None:
                await self._wait_for_change(self._until_next_s())

    def _until_next_s(self) -> Seconds:
        """Return the longest time until the next exchange with the quota accounts."""
        if not (self._book.claims or self._book.unstored):
            return _IDLE_S
        due_in_s = max(0.0, self._all_due_at - asyncio.get_running_loop().time())
        return min(_ASK_AGAIN_S, due_in_s) if self._book.waiting else due_in_s

    async def _wait_for_change(self, at_most_s: Seconds) -> None:
        due = asyncio.get_running_loop().call_later(at_most_s, self._book.changed.set)
        try:
            await self._book.changed.wait()
        finally:
            due.cancel()

    async def _exchange_once(self, accounts: Accounts) -> None:
        """Exchange messages with the quota accounts once; repeat an unanswered one unchanged."""
        while not self._accounts_epoch:
            tree = self._tree
            tenants = self._driver.settings.model_dump(mode="json")["tenants"]
            epoch = await accounts.configure(tenants)
            if self._tree is tree:  # The tree of tenants did not change during the call.
                self._accounts_epoch = epoch
            for claim in self._book.claims.values():
                claim.told = {}
            self._all_due_at = -math.inf
        if self._greeted != self._accounts_epoch and not await self._repeat_lost_ends(accounts):
            self._accounts_epoch = 0
            return
        now = asyncio.get_running_loop().time()
        if self._told is None:
            self._told = self._next_exchange(now)
            self._book.changed.clear()
        told = self._told
        granted = tuple(
            Ask(claim.name, claim.tenant, claim.holds, is_granted=True, needs=claim.needs)
            for claim in self._book.claims.values()
            if claim.holds and told.accounts != self._accounts_epoch
        )
        told = replace(told, accounts=self._accounts_epoch, asks=(*granted, *told.asks))
        answer = await accounts.exchange(told)
        if answer.epoch != self._accounts_epoch:
            self._accounts_epoch = 0  # The accounts actor has restarted, and recorded nothing.
            return
        self._told = None
        self._last_accounts = answer.epoch
        if answer.is_stored:
            self._book.lately_told.note_stored(told.number, now)
        if told.wants_nodes:
            self.known.note(answer.nodes, now)
        decided: list[tuple[Claim, Verdict]] = []
        for verdict in answer.verdicts[len(granted) :]:
            asked = self._asked[verdict.name]
            if self._book.is_live(asked):
                decided.append((asked, verdict))
                continue
            # The claim on quotas has ended during the exchange.
            used = next((used for of, used in self._book.untold if of is asked), asked.unused())
            self._book.untold = [untold for untold in self._book.untold if untold[0] is not asked]
            if verdict.refused_by is None and verdict.holds:
                use = Use(verdict.name, used, is_over=True)
                self._book.over.append(use)
                self._book.lately_told.add(asked, use, self._book.exchanges + 1, now)
        self._decide(decided)

    async def _repeat_lost_ends(self, accounts: Accounts) -> bool:
        """Report again the usage of ended inferences that restarted quota accounts have lost.

        Return False if the accounts have restarted since they were configured.
        """
        told = self._told
        if self._book.lately_told:
            hello = Exchange(self._scheduler, self._epoch, 0, accounts=self._accounts_epoch)
            answer = await accounts.exchange(hello)
            if answer.epoch != self._accounts_epoch:
                return False
            lost = self._book.lately_told.after(answer.began_with)
            if told is not None and told.number <= answer.began_with:
                lost = []  # The accounts have stored the last exchange that was sent.
            if lost:
                number = self._book.exchanges + 1 if told is None else told.number
                self._book.exchanges += 1
                if told is None:
                    self._book.over[:0] = lost
                else:
                    live = {n for n, one in self._asked.items() if self._book.is_live(one)}
                    told = self._told = with_lost_ends(told, self._book.exchanges, lost, live)
                asks = self._book.lately_told.asks(answer.began_with)
                self._book.lately_told.renumber(
                    answer.began_with, self._book.exchanges + (told is None)
                )
                claims = Exchange(
                    self._scheduler, self._epoch, number, (), asks, self._accounts_epoch
                )
                answer = await accounts.exchange(claims)
                if answer.epoch != self._accounts_epoch:
                    return False
        self._greeted = self._accounts_epoch
        return True

    def _next_exchange(self, now: Seconds) -> Exchange:
        """Return the next message to the quota accounts: recent usage, and requests for claims."""
        uses: list[Use] = []
        asks: list[Ask] = []
        self._asked = {}
        state = self._driver.core.state
        waiting: Counter[ApplicationId] = Counter()
        for claim in self._claims_to_exchange(now):
            used, is_final = self.used_of(claim)
            if is_final:
                self._book.settle(claim, used, when_stored=True)
                continue
            if used and used != claim.told:
                claim.told = used
                uses.append(Use(claim.name, used))
            if claim.waits is not None and not claim.is_decided:
                waiting[claim.application_id] += 1
                if waiting[claim.application_id] > _MOST_WAITING_ASKED:
                    continue
            for ask in self._requests_for(claim):
                self._asked[claim.name] = claim
                asks.append(ask)
        state.ended = {}
        self._book.fresh.clear()
        uses, self._book.over = [*self._book.over, *uses], []
        for claim, _ in self._book.untold:
            if claim.name not in self._asked:
                self._asked[claim.name] = claim
                asks.append(_request_for(claim, is_granted=True))
        survivors = None
        if self._began_at is not None and now - self._began_at > self._resubmitted_within_s:
            self._began_at = None
            untold = (claim.name for claim, _ in self._book.untold)
            survivors = (*self._book.claims, *self._book.unstored.names(), *untold)
        self._book.exchanges += 1
        return Exchange(
            self._scheduler,
            self._epoch,
            self._book.exchanges,
            tuple(uses),
            tuple(asks),
            self._last_accounts,
            self.known.age_s(now) >= _REPORT_INTERVAL_S,
            survivors,
        )

    def _claims_to_exchange(self, now: Seconds) -> list[Claim]:
        """Return the quota claims that the next message may have to report or request, in order."""
        if now >= self._all_due_at:
            self._all_due_at = now + _REPORT_INTERVAL_S
            for name in self._book.unstored.overdue(now):
                self._book.report_end(name)
            return list(self._book.claims.values())
        found = {claim.name: claim for claim in self._ended_claims().values()} | self._book.fresh
        for waiting in self._book.waiting.values():
            found |= islice(waiting.items(), _MOST_WAITING_ASKED)
        return sorted(found.values(), key=lambda claim: claim.number)

    def _ended_claims(self) -> dict[RequestId, Claim]:
        """Return the claims on quotas of inferences that have ended and were not reported."""
        found: dict[RequestId, Claim] = {}
        for request_id, inference in (self._driver.core.state.ended or {}).items():
            claim = self._book.claims.get(name_of_inference(inference))
            if claim is not None and claim.request_id == request_id:
                found[request_id] = claim
        return found

    def _drop_unclaimed_ends(self) -> None:
        """Drop records of ended inferences without quota claim, while accounts are unreachable."""
        state = self._driver.core.state
        if state.ended:
            claimed = self._ended_claims()
            state.ended = {name: one for name, one in state.ended.items() if name in claimed}

    def used_of(self, claim: Claim) -> tuple[dict[Unit, float], bool]:
        """Return the usage under a claim on quotas, and whether the usage is final."""
        state = self._driver.core.state
        if claim.request_id is None:
            is_open = claim.name in state.applications
            return ({Unit.APPLICATIONS: 1.0} if is_open else {}), False
        if not claim.is_decided:
            return {}, False
        inference = state.inferences.get(claim.request_id)
        if inference is not None:
            return used_by(inference), False
        leaving = state.leaving_requests.get(claim.request_id)
        if leaving is not None:
            return used_by(state.leaving[leaving].inference), False
        ended = (state.ended or {}).get(claim.request_id)
        if ended is not None:
            return used_by(ended), True
        is_held = self._admission.holds_inference(claim.request_id)
        return {Unit.INFERENCES: 1.0}, not is_held

    def _requests_for(self, claim: Claim) -> Iterator[Ask]:
        """Yield a claim's request to the quota accounts if it is new, exceeded or deprioritised."""
        inference = self._driver.core.state.inferences.get(claim.request_id or "")
        more = (
            {}
            if inference is None or not claim.is_decided
            else use_beyond_claim(inference, claim, self._driver.core.state.prefill_cost)
        )
        if more:
            claim.wants = {**claim.wants, **more}
            claim.needs = {**claim.needs, **more}
        is_again = claim.request_id is None and claim.is_deprioritised
        if claim.asks or more or is_again:
            claim.asks = False
            yield _request_for(claim, is_granted=claim.has_run or bool(more))


def _request_for(claim: Claim, *, is_granted: bool) -> Ask:
    return Ask(claim.name, claim.tenant, {**claim.wants}, is_granted, {**claim.needs})
