"""The served clock without settling, which is there to show what settling is worth."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core.policies import parse_options
from justitia_ray.core.unsettled_share import UnsettledShare
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver
from tests.exact import exact


def _share() -> UnsettledShare:
    """Return accounts in fractions."""
    return UnsettledShare(VirtualClock(exact(0)))


def test_too_small_a_prediction_keeps_its_place() -> None:
    """With rule 1 its charge would have doubled twice by 40, and b would come first."""
    share = _share()
    share.arrive("a", exact(10), exact(1), 0)
    share.arrive("b", exact(30), exact(1), 1)

    assert [] == share.deliver([("a", exact(40))])
    assert (10, 30) == (share.tag("a"), share.tag("b"))


def test_too_large_a_prediction_holds_v_back() -> None:
    """With rule 3 the 90 that a never needed would go to b at its end, and V would be at 20."""
    share = _share()
    share.arrive("a", exact(100), exact(1), 0)
    share.arrive("b", exact(20), exact(1), 1)
    share.deliver([("a", exact(10))])

    assert 100 == share.settle("a")
    share.deliver([("b", exact(20))])
    assert 15 == share.clock.virtual_time


def test_gap_changes_nothing() -> None:
    """Rule 4 settles too: it would refund what is left."""
    share = _share()
    share.arrive("a", exact(100), exact(1), 0)
    share.withdraw("a")

    assert not share.resume("a")
    assert 100 == share.tag("a")


def test_weight_changes_what_is_owed() -> None:
    """As under the served clock: 100 at weight 1 are 50 at weight 2."""
    share = _share()
    share.arrive("a", exact(100), exact(1), 0)
    share.reweigh("a", exact(2))

    assert 50 == share.tag("a")


def test_lag_is_measured_against_settled_accounts() -> None:
    """What is compared must be compared with the same GPS."""
    core = CoreDriver(SchedulerCore("justitia", {"clock": "unsettled"}))
    core.open("a", 1)
    core.submit("x", "a", prompt=10, output=3)

    assert core.core.order.lag is not None
    assert core.core.order.fair_share.clock is not core.core.order.lag._accounts.clock


def test_tenants_need_settling() -> None:
    """What GPS owes at two levels is kept in step by the rules that this clock leaves out."""
    with pytest.raises(ConfigError, match="'tenant' needs clock: served"):
        parse_options("justitia", {"clock": "unsettled", "fairness": "tenant"})
