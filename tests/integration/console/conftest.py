"""A stand-in for the service, whose frames the tests send one by one."""

from collections.abc import Iterator

import pytest

from tests.harness.console.stand_in import PAGE, StandIn
from tests.pages import ROOT


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """Server in place of the service, which sends console data only when the test says so."""
    with StandIn(page=ROOT / PAGE, interval_s=None) as service:
        yield service
