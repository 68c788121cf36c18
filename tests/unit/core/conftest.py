"""The core under test, held to its invariants after every event and at teardown."""

from collections.abc import Iterator

import pytest

from justitia_ray.core.invariants import check
from tests.core_driver import CoreDriver


@pytest.fixture
def core() -> Iterator[CoreDriver]:
    """Yield a driver of an empty core with the default policy."""
    driver = CoreDriver()
    yield driver
    check(driver.core)
