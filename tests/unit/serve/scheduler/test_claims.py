"""Reservations of quota for inferences, and the usage that they count, by unit."""

from justitia_ray.accounts.messages import Ask, Use
from justitia_ray.core.entities import Inference
from justitia_ray.core.events import InferenceSubmitted
from justitia_ray.core.tenants import Period, Quota, TenantNode, TenantTree, Unit
from justitia_ray.cost import PrefillCost
from justitia_ray.serve.scheduler.claims import (
    Claim,
    RecentlyReportedEnds,
    claim_of_inference,
    used_by,
)

_UNIT = Unit.APPLICATIONS


def _tree_with_limit(limit: float) -> TenantTree:
    units = (Unit.TOKENS, Unit.COMPUTED_TOKENS)
    return TenantTree({"t": TenantNode(quotas=tuple(Quota(u, limit, Period.DAY) for u in units))})


def test_quota_reservation_counts_possibly_cached_prompts_in_full() -> None:
    """A cached prompt may be evicted before the inference starts, and is then computed."""
    item = InferenceSubmitted("q", "a", "q", "i", 1_000, 20, 50, least_output_tokens=7)

    wants, needs = claim_of_inference(_tree_with_limit(400), "t", item)
    assert {Unit.TOKENS: 1_007, Unit.COMPUTED_TOKENS: 400} == needs
    assert {Unit.TOKENS: 1_050, Unit.COMPUTED_TOKENS: 1_050} == wants

    _, needs = claim_of_inference(_tree_with_limit(4_000), "t", item)
    assert {Unit.TOKENS: 1_020, Unit.COMPUTED_TOKENS: 1_020} == needs


def test_quota_reservation_includes_prefill_of_cached_tokens() -> None:
    item = InferenceSubmitted("q", "a", "q", "i", 1_000, 20, 50, least_output_tokens=7)
    tree = TenantTree({"t": TenantNode(quotas=(Quota(Unit.KV_TOKEN_TIME, 10**6, Period.DAY),))})
    (plain, _), (wants, _) = (
        claim_of_inference(tree, "t", item, cost) for cost in (None, PrefillCost(30))
    )

    assert wants[Unit.KV_TOKEN_TIME] == plain[Unit.KV_TOKEN_TIME] + 30_000


def test_cached_tokens_do_not_count_as_computed_tokens() -> None:
    inference = Inference("q", "a", "q", "i", 1_000, 20, 50, 1, 0.0, 1)
    assert 0 == used_by(inference)[Unit.COMPUTED_TOKENS]

    inference.output_tokens, inference.cached_tokens = 3, 960
    assert (1_003, 43) == tuple(
        used_by(inference)[unit] for unit in (Unit.TOKENS, Unit.COMPUTED_TOKENS)
    )


def test_usage_of_reservations_with_one_name_is_reported_together() -> None:
    """The accounts identify a reservation by its name, so two reports of one would count once."""
    told = RecentlyReportedEnds()
    for number in (1, 2, 3):
        told.add(_claim_of("b"), Use("b", {_UNIT: 1.0}, is_final=True), number, 0.0)
        told.note_over(Use("b", {_UNIT: 1.0}, is_over=True), number, 0.0)
    told.add(_claim_of("b"), Use("b", {}, is_over=True), 4, 0.0)

    assert [Use("b", {_UNIT: 2.0}, is_over=True)] == told.after(1)
    assert (Ask("b", "t", {_UNIT: 2.0}, is_granted=True),) == told.asks(1)
    assert [] == told.after(3)


def test_end_of_an_unused_reservation_changes_no_other_reservation() -> None:
    told = RecentlyReportedEnds()
    told.add(_claim_of("b"), Use("b", {_UNIT: 1.0}, is_over=True), 1, 0.0)
    told.add(_claim_of("b"), Use("b", {}, is_final=True), 5, 0.0)
    told.note_over(Use("b", {}, is_over=True), 6, 0.0)

    assert [] == told.after(1)
    assert [Use("b", {_UNIT: 1.0}, is_over=True)] == told.after(0)


def test_quota_reservation_name_of_two_tenants_is_counted_for_both() -> None:
    told = RecentlyReportedEnds()
    told.add(_claim_of("b"), Use("b", {_UNIT: 1.0}, is_over=True), 1, 0.0)
    told.add(_claim_of("b", "u"), Use("b", {_UNIT: 1.0}, is_over=True), 2, 0.0)

    assert ["t", "u"] == [ask.tenant for ask in told.asks(0)]
    assert [Use("b", {_UNIT: 1.0}, is_over=True)] == told.after(0)


def _claim_of(name: str, tenant: str = "t") -> Claim:
    return Claim(name, name, tenant, {_UNIT: 1.0})
