"""`kv_share_cap`: what one application may hold of a replica while others wait."""

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from tests.core_driver import CoreDriver, granted


def _core(cap: float = 0.5) -> CoreDriver:
    """Return an FCFS core with a replica of 100 that asks for work."""
    driver = CoreDriver(SchedulerCore("fcfs", {"kv_share_cap": cap}))
    driver.pull(kv=100)
    for name in ("a", "b"):
        driver.open(name)
    return driver


def _ask(driver: CoreDriver, name: str, prompt: int, output: int = 10) -> list[str]:
    """Submit an inference of the application with the first letter of its name."""
    return granted(driver.submit(name, name[0], prompt=prompt, output=output))


def test_alone_an_application_may_hold_everything() -> None:
    """The cap keeps room for others, and there are none."""
    driver = _core()

    assert [["a1"], ["a2"], ["a3"]] == [_ask(driver, f"a{n}", 20) for n in (1, 2, 3)]


def test_without_a_cap_only_room_counts() -> None:
    """30 to 90 and 40 to 45 are over 100 together, and never at the same time."""
    driver = _core(1.0)
    driver.handle(ev.PullAnswered("r0"))
    _ask(driver, "a1", 30, 60)
    _ask(driver, "a2", 40, 5)
    _ask(driver, "b1", 90)

    assert ["a1", "a2"] == granted(driver.pull(kv=100))


def test_at_its_share_the_first_lets_others_pass() -> None:
    """Held 30, wanted 30 more of 50: b goes before it."""
    driver = _core()
    driver.handle(ev.PullAnswered("r0"))
    for name, prompt in (("a1", 20), ("a2", 20), ("b1", 10)):
        _ask(driver, name, prompt)

    # Once b1 has started nobody else waits, and the cap is off at once.
    assert ["a1", "b1", "a2"] == granted(driver.pull(kv=100))


def test_share_is_filled_and_not_exceeded() -> None:
    """Held 30: 20 more are exactly half of 100, and 21 are not."""
    for prompt, expected in ((10, ["a1", "a2", "b1"]), (11, ["a1", "b1"])):
        driver = _core()
        driver.handle(ev.PullAnswered("r0"))
        for name, size in (("a1", 20), ("a2", prompt), ("b1", 10), ("b2", 60)):
            _ask(driver, name, size)

        # b2 wants 70 and waits: others wait on, and so does the cap.
        assert expected == granted(driver.pull(kv=100))


def test_one_that_holds_nothing_may_always_start_one() -> None:
    """Or an inference above the share would never run beside others that wait."""
    driver = _core()
    driver.handle(ev.PullAnswered("r0"))
    _ask(driver, "a1", 70)
    _ask(driver, "b1", 60)

    assert ["a1"] == granted(driver.pull(kv=100))


def test_share_is_of_each_replica() -> None:
    """What it holds on one does not keep it from another."""
    driver = _core()
    driver.handle(ev.PullAnswered("r0"))
    for name, prompt in (("a1", 40), ("a2", 40), ("b1", 80)):
        _ask(driver, name, prompt)

    assert ["a1"] == granted(driver.pull("r0", kv=100))
    assert ["a2"] == granted(driver.pull("r1", kv=100))


def test_capped_ones_keep_their_order() -> None:
    """Each waits for the other's sake, until one holds nothing: then it starts, and frees both."""
    driver = _core()
    driver.handle(ev.PullAnswered("r0"))
    for name, prompt in (("a1", 30), ("b1", 30), ("b2", 5), ("a2", 5)):
        _ask(driver, name, prompt)

    assert ["a1", "b1"] == granted(driver.pull(kv=100))  # 40 each, and 15 more is over 50
    assert ["a2", "b2"] == granted(driver.handle(ev.InferenceCancelled("a1")))


def test_what_waits_for_room_is_not_capped() -> None:
    """Room and share are two reasons: who waits for room is not passed for its share."""
    driver = _core(0.8)
    driver.handle(ev.PullAnswered("r0"))
    for name, prompt in (("a1", 40), ("a2", 60), ("b1", 5)):
        _ask(driver, name, prompt)

    assert ["a1"] == granted(driver.pull(kv=100))
