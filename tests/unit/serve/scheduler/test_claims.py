"""What inferences claim of quotas, and what they have used, by unit."""

from justitia_ray.core.entities import Inference
from justitia_ray.core.events import InferenceSubmitted
from justitia_ray.core.tenants import Period, Quota, TenantNode, TenantTree, Unit
from justitia_ray.serve.scheduler.claims import claim_of_inference, used_by


def _tree(limit: float) -> TenantTree:
    units = (Unit.TOKENS, Unit.COMPUTED_TOKENS)
    return TenantTree({"t": TenantNode(quotas=tuple(Quota(u, limit, Period.DAY) for u in units))})


def test_prompt_that_may_be_cached_needs_what_a_quota_of_computed_tokens_has() -> None:
    """It may have to be computed, too: all of it is reserved where there is as much."""
    item = InferenceSubmitted("q", "a", "q", "i", 1_000, 20, 50, least_output_tokens=7)

    wants, needs = claim_of_inference(_tree(400), "t", item)
    assert {Unit.TOKENS: 1_007, Unit.COMPUTED_TOKENS: 400} == needs
    assert {Unit.TOKENS: 1_050, Unit.COMPUTED_TOKENS: 1_050} == wants

    _, needs = claim_of_inference(_tree(4_000), "t", item)
    assert {Unit.TOKENS: 1_020, Unit.COMPUTED_TOKENS: 1_020} == needs


def test_computed_tokens_are_used_without_what_was_cached() -> None:
    inference = Inference("q", "a", "q", "i", 1_000, 20, 50, 1, 0.0, 1)
    assert 0 == used_by(inference)[Unit.COMPUTED_TOKENS]

    inference.output_tokens, inference.cached_tokens = 3, 960
    assert (1_003, 43) == tuple(
        used_by(inference)[unit] for unit in (Unit.TOKENS, Unit.COMPUTED_TOKENS)
    )
