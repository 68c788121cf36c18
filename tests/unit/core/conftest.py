"""Fixture of the core, whose invariants are checked after every event and at teardown."""

from collections.abc import Iterator

import pytest

from justitia_ray.core.invariants import check
from tests.core_driver import CoreDriver


@pytest.fixture
def core() -> Iterator[CoreDriver]:
    driver = CoreDriver()
    yield driver
    check(driver.core)
