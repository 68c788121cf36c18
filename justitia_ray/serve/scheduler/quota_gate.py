"""Quota gate: holds submissions back until the accounts have granted their claims on quotas.

The gate stands before write-through admission, and does nothing if no quota is configured. An
application that opens counts on quotas of applications; each inference claims its maximum usage, by
its `max_tokens`, and must find the expected part of it left. Ended inferences and idle applications
reserve no usage. The usage of an inference is reported once a second and at its end, when the
unused part of its claim is returned. An inference that would fit except for the unexpected part of
other running claims waits for their ends, at most for `scheduler.quota_timeout_s`; later inferences
of its application that fit overtake it.

Unreachable accounts grant nothing: granted inferences keep running, and submissions that wait for a
rejecting quota are refused after `scheduler.quota_timeout_s`. Submissions that only shadow or
deprioritising quotas count are then admitted.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

from justitia_ray.accounts.messages import Verdict as Decision
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Refusal, Refuse, RefuseApplication
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.tenants import METERED, OnExhausted, TenantTree, Unit
from justitia_ray.cost import PrefillCost
from justitia_ray.protocol.messages import Submission
from justitia_ray.serve.scheduler.claim_book import ClaimBook
from justitia_ray.serve.scheduler.claim_exchange import ClaimExchange
from justitia_ray.serve.scheduler.claims import (
    RETRY_AFTER_S,
    UNREACHABLE,
    Accounts,
    Claim,
    RecentRefusals,
    Unopened,
    claim_of_application,
    claim_of_inference,
    claim_of_running,
    limit_of,
    name_of_inference,
    units_of,
)
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.outboxes import Outbox
from justitia_ray.serve.scheduler.write_through import WriteThroughAdmission
from justitia_ray.units import ApplicationId, ClientId, Epoch, RequestId, Seconds

_GIVEN_UP_TOGETHER_S: Seconds = 0.1
"""If the waits of an application's quota claims end within this many seconds, they are decided
together.
"""


class QuotaGate:
    """Admits submissions for which the tenants' quotas have enough left, and holds others back.

    Args:
        scheduler: Name of the scheduler for the accounts.
        admission: Receives the admitted submissions.
        connect: Returns the interface to the accounts; called once there are quotas.
        timeout_s: Longest wait for the accounts.
        resubmitted_within_s: Time within which ingresses resubmit everything to a new scheduler.
    """

    def __init__(
        self,
        scheduler: str,
        admission: WriteThroughAdmission,
        connect: Callable[[], Accounts],
        timeout_s: Seconds,
        resubmitted_within_s: Seconds,
    ) -> None:
        self._admission = admission
        self._timeout_s = timeout_s
        self._tree = TenantTree()
        self.has_quotas = False
        """Whether any tenant has a quota."""
        self.book = ClaimBook()
        self.exchange = ClaimExchange(
            scheduler, admission, self.book, connect, self._decide_all, resubmitted_within_s
        )
        self._queues: dict[ApplicationId, deque[tuple[Submission, Claim | None]]] = {}
        self._requests: dict[RequestId, ApplicationId] = {}
        """Application of each inference that is held back, by request id."""
        self._refused = RecentRefusals()
        self._opening: dict[ApplicationId, asyncio.Future[Refusal | None]] = {}
        self._resubmitted: list[ev.Resubmitted] = []
        """Ends of resubmission that ingresses reported while their submissions wait for a quota
        decision.
        """
        self.refusals = 0
        """Number of applications and inferences that a quota has refused since the start."""

    @property
    def _prefill_cost(self) -> PrefillCost | None:
        return self._driver.core.state.prefill_cost

    @property
    def _driver(self) -> CoreDriver:
        return self._admission.driver

    # --- start, end and settings

    def begin(self, epoch: Epoch) -> None:
        """Claim quotas again for the last scheduler's live applications, if tenants have quotas."""
        self.exchange.begin(epoch)
        self._driver.on_end = self._settle_ended
        self.settings_changed()

    def settings_changed(self) -> None:
        """Apply the quotas in the driver's new settings."""
        self._tree = self._driver.settings.tenant_tree
        had = self.has_quotas
        self.has_quotas = any(node.quotas for node in self._tree.described.values())
        state = self._driver.core.state
        if not self.has_quotas:
            state.ended = None
        elif state.ended is None:
            state.ended = {}
        if self.has_quotas and not had:
            self._claim_again()
        if had and not self.has_quotas:
            for claim in list(self.book.claims.values()):
                self._apply_decision(claim, Decision(claim.name))
            self.book.clear()
            self._refused = RecentRefusals()
        self.exchange.use_tree(self._tree, has_quotas=self.has_quotas)

    def _claim_again(self) -> None:
        """Add claims for everything admitted before this term or before quotas existed."""
        state = self._driver.core.state
        for application in state.applications.values():
            if units_of(self._tree, application.tenant):
                claim = Claim(
                    application.application_id,
                    application.application_id,
                    application.tenant,
                    {},
                    is_decided=True,
                    is_deprioritised=application.is_deprioritised,
                    may_have_run=True,
                )
                self.book.claims[claim.name] = claim
        for inference in state.inferences.values():
            tenant = state.applications[inference.application_id].tenant
            wants, needs = claim_of_running(self._tree, tenant, inference, self._prefill_cost)
            if wants:
                claim = Claim(
                    name_of_inference(inference),
                    inference.application_id,
                    tenant,
                    wants,
                    needs,
                    inference.request_id,
                    is_decided=True,
                    may_have_run=True,
                    has_run=True,
                )
                self.book.claims[claim.name] = claim

    def close(self) -> None:
        """Drop all held submissions without refusals, because this scheduler no longer leads."""
        for claim in self.book.claims.values():
            if claim.deadline is not None:
                claim.deadline.cancel()
        for opening in self._opening.values():
            if not opening.done():
                opening.set_result(None)
        self._queues.clear()
        self.book.drop_claims()
        self._opening.clear()

    # --- submissions

    def admit_submission(self, item: Submission, quiet: Outbox | None = None) -> None:
        """Admit a submission, or hold it back; `quiet` is passed to `CoreDriver.apply`."""
        if isinstance(item, ev.Resubmitted):
            self._resubmitted.append(item)
            self._note_resubmitted()
            return
        if isinstance(item, ev.InferenceCancelled):
            name = self._requests.get(item.request_id)
            if name is not None and self._withdraw_held(name, item.request_id):
                return
        else:
            name = item.application_id
        queue = None if name is None else self._queues.get(name)
        if queue and _drop_repeated(item, queue, self._requests):
            return
        claim = self._claim_of(item)
        if claim is None and queue is None:
            self._admit_or_refuse(item, quiet)
            return
        assert name is not None
        if queue is None:
            queue = self._queues[name] = deque()
        queue.append((item, claim))
        if isinstance(item, ev.InferenceSubmitted):
            self._requests[item.request_id] = name
        if claim is None or claim.is_decided:
            self._advance_held(name)

    async def decided(self, application_id: ApplicationId) -> Decision | Refusal | None:
        """Wait until an application that is held back is admitted (None) or refused.

        A `Decision` is a quota's refusal, a `Refusal` any other.
        """
        if application_id in self._queues:
            loop = asyncio.get_running_loop()
            opening = self._opening.setdefault(application_id, loop.create_future())
            refusal = await asyncio.shield(opening)
            if refusal is not None:
                return refusal
        return self._refused.decision(application_id)

    def cancel_application(self, application_id: ApplicationId) -> None:
        """Refuse the submissions of a cancelled application that were held back."""
        queue = self._queues.pop(application_id, None)
        if queue is not None:
            self._refuse_submissions(application_id, queue, Refusal.APPLICATION_CANCELLED, None)
            self._delete_queue(application_id, Refusal.APPLICATION_CANCELLED)
        claim = self.book.claims.get(application_id)
        if claim is not None and application_id not in self._driver.core.state.applications:
            self.book.settle(claim, claim.unused())

    @property
    def held_back(self) -> int:
        """Number of submissions that are held until the accounts actor decides on their quotas."""
        return sum(map(len, self._queues.values()))

    @property
    def unopened(self) -> int:
        """Number of applications that are not opened until the accounts actor decides on quotas."""
        live = self._driver.core.state.applications
        return sum(name not in live for name in self._queues)

    @property
    def waiting_claims(self) -> int:
        """Number of claims on quotas that the accounts have not decided."""
        return sum(not claim.is_decided for claim in self.book.claims.values())

    # --- standings

    def standings(self, tenant: ClientId) -> tuple[LimitStanding, ...]:
        """Return the quotas that apply to a tenant; see `KnownQuotas.standings`."""
        return self.exchange.known.standings(tenant, asyncio.get_running_loop().time())

    def node_in_the_way(self, application_id: ApplicationId) -> ClientId | None:
        """Return the tenant whose quota holds a live application back; None if none does."""
        refused, _ = self._current_refusal(application_id)
        limit = None if refused is None else limit_of(refused)
        return None if limit is None else limit.scope

    def comes_back_s(self, application_id: ApplicationId) -> Seconds | None:
        """Return the seconds until the quota that holds an application back has enough left."""
        refused, comes_back_s = self._current_refusal(application_id)
        return None if refused is None else comes_back_s

    def _current_refusal(
        self, application_id: ApplicationId
    ) -> tuple[Decision | None, Seconds | None]:
        """Return the quota refusal that holds an application back, and its remaining seconds."""
        claim = self.book.claims.get(application_id)
        if claim is None or claim.in_the_way is None:
            return None, None
        refused, at = claim.in_the_way
        if refused.retry_after_s is None:
            return refused, None
        left_s = at + refused.retry_after_s - asyncio.get_running_loop().time()
        return (refused, left_s) if left_s > 0 else (None, None)

    def unopened_application(self, application_id: ApplicationId) -> Unopened | None:
        """Return an application that waits for the accounts or was recently refused by a quota.

        None if the application is live, or may be opened by now.
        """
        now = asyncio.get_running_loop().time()
        items = [item for item, _ in self._queues.get(application_id, ())]
        arrival = next((one for one in items if isinstance(one, ev.ApplicationArrived)), None)
        claim = self.book.claims.get(application_id)
        if arrival is not None and claim is not None:
            limit = self.exchange.known.in_the_way(claim.tenant, claim.wants, now)
            node, comes_back_s = (None, None) if limit is None else (limit.scope, limit.reset_s)
            waiting = sum(isinstance(one, ev.InferenceSubmitted) for one in items)
            return Unopened(arrival, False, node, comes_back_s, waiting)
        is_live = application_id in self._driver.core.state.applications
        return None if is_live else self._refused.unopened(application_id, now)

    # --- claims

    def _claim_of(self, item: Submission) -> Claim | None:
        """Return the claim on quotas that a submission has to wait for; None if it needs none."""
        state = self._driver.core.state
        if isinstance(item, ev.ApplicationArrived):
            known = self.book.claims.get(item.application_id)
            if known is not None:
                return None if known.is_decided else known
            if item.application_id in state.applications:
                return None
            wants, needs = claim_of_application(self._tree, item.tenant)
            if not wants:
                return None
            if self._driver.core.applications.resubmissions.is_counted(item):
                return None  # The application is reopened only so that its end is counted.
            self._refused.forget(item.application_id)
            name = item.application_id
            return self._make_claim(
                Claim(name, name, item.tenant, wants, needs, may_have_run=item.resubmitted)
            )
        if not isinstance(item, ev.InferenceSubmitted) or item.request_id in state.inferences:
            return None
        if item.is_counted:
            return None
        tenant = self._tenant_of(item.application_id)
        if tenant is None:
            return None
        wants, needs = claim_of_inference(self._tree, tenant, item, self._prefill_cost)
        if not wants:
            return None
        name = name_of_inference(item)
        known = self.book.claims.get(name)
        if known is not None and self._is_of_earlier_run(known, item):
            if wants.keys().isdisjoint(METERED):
                # The quota claim of the inference's earlier run already counts it.
                known.request_id = item.request_id
                return None
            self.book.settle(known, self.exchange.used_of(known)[0], when_stored=True)
            wants.pop(Unit.INFERENCES, None)  # The earlier run's quota claim counts it.
            needs.pop(Unit.INFERENCES, None)
        elif known is not None:
            return None if known.is_decided else known
        claim = Claim(
            name,
            item.application_id,
            tenant,
            wants,
            needs,
            item.request_id,
            may_have_run=item.resubmitted,
            has_run=item.outcome is not None,
        )
        return self._make_claim(claim)

    def _is_of_earlier_run(self, claim: Claim, item: ev.InferenceSubmitted) -> bool:
        """Return whether a quota claim is of an earlier run of a resubmitted inference."""
        of = claim.request_id
        if of is None or of == item.request_id or not claim.is_decided or of in self._requests:
            return False
        is_live = of in self._driver.core.state.inferences
        return not is_live and not self._admission.holds_inference(of)

    def _tenant_of(self, application_id: ApplicationId) -> ClientId | None:
        application = self._driver.core.state.applications.get(application_id)
        if application is not None:
            return application.tenant
        return next(
            (
                item.tenant
                for item, _ in self._queues.get(application_id, ())
                if isinstance(item, ev.ApplicationArrived)
            ),
            None,
        )

    def _make_claim(self, claim: Claim) -> Claim:
        loop = asyncio.get_running_loop()
        claim.deadline = loop.call_later(self._timeout_s, self._give_up, claim)
        self.book.make(claim)
        return claim

    def _give_up(self, claim: Claim) -> None:
        """Decide on a claim without the quota accounts, because they have not answered in time.

        Claims of the same application that expire at the same moment are decided with it.
        """
        claim.deadline = None
        if claim.is_decided:
            return
        soon = asyncio.get_running_loop().time() + _GIVEN_UP_TOGETHER_S
        others = [one for _, one in self._queues.get(claim.application_id, ()) if one is not None]
        for one in others:
            if not one.is_decided and (one.deadline is None or one.deadline.when() <= soon):
                self._apply_decision(one, self._decision_without_accounts(one), advances=False)
        if not claim.is_decided:
            self._apply_decision(claim, self._decision_without_accounts(claim), advances=False)
        self._advance_held(claim.application_id)

    def _decision_without_accounts(self, claim: Claim) -> Decision:
        if claim.waits is not None:
            return replace(claim.waits, waits=False, retry_after_s=RETRY_AFTER_S)
        rejects = any(
            quota.unit in claim.wants and quota.on_exhausted is OnExhausted.REJECT
            for _, node in self._tree.nodes(claim.tenant)
            for quota in node.quotas
        )
        if rejects:
            return Decision(claim.name, UNREACHABLE, RETRY_AFTER_S)
        return Decision(claim.name)

    def _decide_all(self, decisions: Sequence[tuple[Claim, Decision]]) -> None:
        """Record the decisions of an exchange, then admit or refuse the submissions that waited."""
        for claim, decision in decisions:
            self._apply_decision(claim, decision, advances=False)
        for name in dict.fromkeys(claim.application_id for claim, _ in decisions):
            self._advance_held(name)

    def _apply_decision(self, claim: Claim, decision: Decision, *, advances: bool = True) -> None:
        """Record the decision on a quota claim, and admit or refuse what waits for it.

        Args:
            claim: The claim.
            decision: The accounts' decision.
            advances: False: the caller calls `_advance_held` for its application.
        """
        if decision.waits and not claim.is_decided and not decision.holds:
            claim.asks, claim.waits = True, decision
            self.book.wait(claim)
            return
        if claim.deadline is not None:
            claim.deadline.cancel()
            claim.deadline = None
        self.book.stop_waiting(claim)
        was_decided, claim.is_decided = claim.is_decided, True
        if not was_decided and self.book.is_live(claim):
            self.book.fresh[claim.name] = claim
        # A quota claim that an earlier scheduler admitted is not refused, even if it is larger now.
        if decision.holds and not was_decided:
            decision = replace(decision, refused_by=None)
        claim.refused = decision if decision.refused_by is not None else None
        if claim.refused is None:
            claim.holds = decision.holds
        self._note_of_application(claim, decision)
        if advances and not was_decided:
            self._advance_held(claim.application_id)

    def _note_of_application(self, claim: Claim, decision: Decision) -> None:
        """Record what the decision on a quota claim implies for the claim's application."""
        application = self.book.claims.get(claim.application_id)
        if application is None:
            return
        if claim.request_id is None:
            if claim.refused is None:
                self._set_deprioritised(claim, is_so=decision.is_deprioritised)
        elif claim.refused is not None:
            application.in_the_way = claim.refused, asyncio.get_running_loop().time()
        else:
            application.in_the_way = None
            if decision.is_deprioritised:
                self._set_deprioritised(application, is_so=True)

    def _set_deprioritised(self, claim: Claim, *, is_so: bool) -> None:
        if claim.is_deprioritised != is_so:
            claim.is_deprioritised = is_so
            if claim.name in self._driver.core.state.applications:
                self._driver.apply(ev.ApplicationDeprioritised(claim.name, is_so))

    def _settle_ended(self, ended: EndApplication) -> None:
        claim = self.book.claims.get(ended.application_id)
        if claim is not None and claim.is_decided:
            self.book.settle(claim, {Unit.APPLICATIONS: 1.0}, when_stored=True)

    # --- held submissions

    def _advance_held(self, name: ApplicationId) -> None:
        """Admit or refuse an application's held submissions, as far as its quotas were decided.

        Inferences may overtake waiting inferences; other submissions keep their order.
        """
        queue = self._queues.get(name)
        if queue is None:
            return
        kept: deque[tuple[Submission, Claim | None]] = deque()
        passes = True
        while queue:
            item, claim = queue.popleft()
            if self._has_ended(item, claim):
                claim = self._claim_of(item)  # The id belongs to a new application.
            is_inference = isinstance(item, ev.InferenceSubmitted)
            is_next = not kept or (is_inference and passes)
            if not is_next or (claim is not None and not claim.is_decided):
                kept.append((item, claim))
                passes &= is_inference
                continue
            if isinstance(item, ev.InferenceSubmitted):
                self._requests.pop(item.request_id, None)
            refused = None if claim is None else claim.refused
            if refused is None:
                self._admit_or_refuse(item, None, claim)
                self._note_admitted(item, claim)
                continue
            assert claim is not None
            self.book.settle(claim, claim.unused())
            if isinstance(item, ev.ApplicationArrived):
                self._refused.note(item, refused, asyncio.get_running_loop().time())
            self._refuse_submissions(name, deque([(item, claim)]), Refusal.QUOTA_EXHAUSTED, refused)
        if kept:
            self._queues[name] = kept
            return
        self._delete_queue(name)

    def _delete_queue(self, name: ApplicationId, refusal: Refusal | None = None) -> None:
        """Delete the empty queue of an application; `refusal` is a reason other than a quota."""
        self._queues.pop(name, None)
        opening = self._opening.pop(name, None)
        if opening is not None and not opening.done():
            opening.set_result(refusal)
        self._note_resubmitted()

    def _withdraw_held(self, name: ApplicationId, request_id: RequestId) -> bool:
        """Withdraw a held inference that has not run; return whether it was held."""
        queue = self._queues.get(name, deque())
        for place, (item, claim) in enumerate(queue):
            if isinstance(item, ev.InferenceSubmitted) and item.request_id == request_id:
                if claim is None or claim.may_have_run:
                    return False
                del queue[place], self._requests[request_id]
                self.book.settle(claim, claim.unused())
                if not place:
                    self._advance_held(name)
                return True
        return False

    def _note_resubmitted(self) -> None:
        """Pass on delayed `Resubmitted` messages, once no submission is held back."""
        if not self._queues:
            items, self._resubmitted = self._resubmitted, []
            for item in items:
                self._driver.apply(item)

    def _has_ended(self, item: Submission, claim: Claim | None) -> bool:
        """Return whether the application that a submission would have reopened has ended."""
        if claim is None or claim.refused is not None or not claim.is_decided:
            return False
        is_arrival = isinstance(item, ev.ApplicationArrived)
        return is_arrival and not self.book.is_live(claim)

    def _note_admitted(self, item: Submission, claim: Claim | None) -> None:
        """End the quota claim of a submission that will not run, as the core has refused it."""
        if claim is None:
            return
        state = self._driver.core.state
        if isinstance(item, ev.InferenceSubmitted):
            is_known = item.request_id in state.inferences
            if not is_known and not self._admission.holds_inference(item.request_id):
                self.book.settle(claim, claim.unused())
        elif claim.name not in state.applications:
            self.book.settle(claim, claim.unused())
        elif claim.is_deprioritised:
            self._driver.apply(ev.ApplicationDeprioritised(claim.name, True))

    def _admit_or_refuse(
        self, item: Submission, quiet: Outbox | None, claim: Claim | None = None
    ) -> None:
        """Pass a submission to admission, unless a quota has refused its application.

        Args:
            item: The item.
            quiet: As for `CoreDriver.apply`.
            claim: The item's claim; None if it has none.
        """
        if isinstance(item, ev.InferenceSubmitted):
            name = item.application_id
            refused = None
            if name not in self._driver.core.state.applications:
                refused = self._refused.decision(name)
            if refused is not None:
                self._refuse_submissions(
                    name, deque([(item, claim)]), Refusal.QUOTA_EXHAUSTED, refused
                )
                return
        elif isinstance(item, ev.ApplicationArrived):
            self._refused.forget(item.application_id)
        self._admission.admit_submission(item, quiet)

    def _refuse_submissions(
        self,
        name: ApplicationId,
        items: "deque[tuple[Any, Claim | None]]",
        reason: Refusal,
        decision: Decision | None,
    ) -> None:
        limit = None if decision is None else limit_of(decision)
        wait_s = None if decision is None else decision.retry_after_s
        cancelled = {i.request_id for i, _ in items if isinstance(i, ev.InferenceCancelled)}
        refusals: list[Refuse | RefuseApplication] = []
        for item, claim in items:
            if isinstance(item, ev.InferenceSubmitted):
                self._requests.pop(item.request_id, None)
                if claim is not None:
                    self.book.settle(claim, claim.unused())
                if item.request_id not in cancelled:
                    refusals.append(Refuse(item.request_id, item.ingress_id, reason, limit, wait_s))
            elif isinstance(item, ev.ApplicationArrived):
                refusals.append(RefuseApplication(name, item.ingress_id, reason, limit, wait_s))
        for ingress_id in {refusal.ingress_id for refusal in refusals}:
            self._driver.apply(ev.IngressHeartbeat(ingress_id))
        self.refusals += len(refusals)
        self._driver.outboxes.deliver(refusals, self._driver.core.state, None)


def _drop_repeated(
    item: Submission,
    queue: deque[tuple[Submission, Claim | None]],
    requests: Container[RequestId],
) -> bool:
    """Return whether an inference was submitted again while it is held back.

    Its batch then arrived twice. If the batch opens the application, that item is now last in the
    queue and is dropped, because it was processed before.
    """
    if not isinstance(item, ev.InferenceSubmitted) or item.request_id not in requests:
        return False
    is_held = any(
        isinstance(held, ev.InferenceSubmitted)
        and (held.request_id, held.ingress_id) == (item.request_id, item.ingress_id)
        for held, _ in queue
    )
    last, claim = queue[-1]
    is_opening = isinstance(last, ev.ApplicationArrived) and last.ingress_id == item.ingress_id
    opens_again = claim is None or sum(one is claim for _, one in queue) > 1
    if is_held and is_opening and opens_again:
        queue.pop()
    return is_held
