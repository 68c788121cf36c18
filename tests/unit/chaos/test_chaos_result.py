"""The document holds what other tools rely on; what must not be is a failure."""

from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.chaos.counts import Counts
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.order import OrderMeasure
from justitia_ray.chaos.result import Outcome, Struck, document, summary, table, together
from tests.unit.chaos.made_up import hit

CLEAN = Outcome(
    "fake",
    Counts(10, 12, (), (), (), (), (), 2),
    OrderMeasure(100, 1, (), 4, ()),
    (
        Struck(hit(Kind.SCHEDULER_KILLED, 13.0), 2.0),
        Struck(hit(Kind.SCHEDULER_KILLED, 33.0), 4.0),
        Struck(hit(Kind.REPLICA_KILLED, 43.0), 6.5, 1.25),
        Struck(hit(Kind.REPLICA_KILLED, 48.0), None, hit_nothing=True),
        Struck(hit(Kind.REDEPLOYED, 50.0), 60.0),
    ),
    (),
    3.0,
    99.0,
)


def test_document_has_the_fields_of_the_contract() -> None:
    """Others read them by these names."""
    found = document(CLEAN)

    assert (10, 0, 0, 0, 0) == tuple(
        found[name] for name in ("inferences", "lost", "doubled", "wrong", "leaked")
    )
    assert 6.5 == found["max_recovery_s"]
    assert {
        "kind": "scheduler-killed",
        "strike": 0,
        "at_s": 10.0,
        "away_s": 0.0,
        "recovery_s": 2.0,
        "elsewhere_s": None,
        "nothing_to_recover": False,
        "target": "",
    } == found["faults"][0]
    assert {"times": 2, "median_s": 3.0, "max_s": 4.0} == found["recovery_by_kind"][
        Kind.SCHEDULER_KILLED
    ]


def test_table_says_which_targets_are_met() -> None:
    """5 s for the scheduler and for a replica's work."""
    lines = {line.split()[0]: line.split() for line in table(CLEAN).splitlines()[1:]}

    assert "MET" == lines["scheduler-killed"][-1]
    assert "MISSED" == lines["replica-killed"][-1]
    assert "60.00" == lines["redeployed"][-1]


@pytest.mark.parametrize(
    ("struck", "verdict"),
    [
        (Struck(hit(Kind.ENGINE_KILLED, 5.0), None), "MISSED"),
        (Struck(hit(Kind.ENGINE_KILLED, 5.0), None, hit_nothing=True), "5.00"),
    ],
)
def test_a_fault_that_is_not_over_misses_and_one_that_hit_nothing_shows_nothing(
    struck: Struck, verdict: str
) -> None:
    """An idle engine that is killed says nothing of how soon its work is leased again."""
    line = table(replace(CLEAN, struck=(struck,))).splitlines()[-1]

    assert verdict == line.split()[-1]
    assert struck.hit_nothing == ("with nothing to recover" in line)


@pytest.mark.parametrize("name", ["lost", "doubled", "wrong", "cut", "broken"])
def test_each_count_is_a_failure(name: str) -> None:
    """Any of them ends the run with status 1."""
    found: dict[str, Any] = {name: ("a.0",)}
    counts = replace(CLEAN.counts, **found)

    assert (f"{name}: a.0",) == replace(CLEAN, counts=counts).failures


def test_leaks_and_disorder_are_failures() -> None:
    """As bad as something lost."""
    order = replace(CLEAN.order, unexplained=("b before a",), tags_changed=("c: 1 became 2",))

    assert () == CLEAN.failures
    assert (
        "leaked: in_flight: 1 in place of 0",
        "out of order: b before a",
        "tag changed: c: 1 became 2",
    ) == replace(CLEAN, order=order, leaked=("in_flight: 1 in place of 0",)).failures


def test_engines_are_summed_in_one_document() -> None:
    """Its top level has the fields of the contract for the whole run."""
    slow = replace(CLEAN, struck=(Struck(hit(Kind.INGRESS_KILLED, 5.0), 8.0),))
    whole = together({"fake": document(CLEAN), "vllm": document(slow)})

    assert (20, 8.0, 6) == (whole["inferences"], whole["max_recovery_s"], len(whole["faults"]))
    assert "vllm" == whole["faults"][-1]["engine"]


def test_summary_names_every_count() -> None:
    """What is read by people says the same as the file."""
    assert "10 inferences in 12 calls: lost 0, doubled 0, wrong 0" in summary(CLEAN)
    assert "began elsewhere after 1.25 s" in summary(CLEAN)
