"""Growth of contexts, learned from the turns that continue them."""

import pytest

from justitia_ray.core.context_growth import ContextGrowth
from tests.core_driver import CoreDriver


def test_context_growth_factor_is_one_before_any_turn() -> None:
    assert ContextGrowth().factor == 1.0


def test_context_growth_factor_is_the_token_weighted_mean_of_turns() -> None:
    growth = ContextGrowth()
    for _ in range(200):
        growth.add(1_000, 1_120)
        growth.add(10_000, 10_120)

    assert growth.factor == pytest.approx((1_120 + 10_120) / 11_000, rel=0.01)


@pytest.mark.parametrize(("after", "factor"), [(100, 1.0), (10_000, 1.25)])
def test_context_growth_factor_is_limited(after: int, factor: float) -> None:
    growth = ContextGrowth()
    growth.add(1_000, after)

    assert growth.factor == factor


def test_first_turn_does_not_count_as_context_growth() -> None:
    driver = CoreDriver()
    driver.pull("r0", kv=5_000, caches=True)
    driver.open("a", 1_000_000)
    driver.submit("a1", "a", prompt=900, output=100)
    driver.pull("r0", finished={driver.lease_of("a1"): 100}, kv=5_000, caches=True)
    growth = driver.core.state.context_growth
    assert growth.factor == 1.0

    driver.submit("a2", "a", prompt=1_040, output=40)
    driver.pull("r0", finished={driver.lease_of("a2"): 40}, kv=5_000, caches=True)

    assert growth.factor == pytest.approx(1_080 / 1_000)
