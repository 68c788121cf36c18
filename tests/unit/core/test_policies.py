"""Keys and engine priorities of the shipped policies, and the checks of their options."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.fair_share import NominalShare, ServedShare
from justitia_ray.core.policies import POLICIES, PolicyOptions, parse_options
from justitia_ray.core.policies.fcfs import FcfsPolicy
from justitia_ray.core.policies.justitia import JustitiaPolicy, rank_preserving_integer
from justitia_ray.errors import ConfigError
from tests.exact import exact

_TAGS = st.floats(min_value=-0.0, allow_nan=False)


def _application(name: str, sequence: int) -> Application:
    return Application(name, "class", "tenant", 1, 1, "i0", 0.0, sequence)


def _inference(submitted_at: float, sequence: int) -> Inference:
    return Inference("r", "a", "0", "i0", 1, 1, 1, 1, submitted_at, sequence)


@settings(derandomize=True, database=None, max_examples=300)
@given(_TAGS, _TAGS)
def test_priority_has_the_rank_of_the_tag(one: float, other: float) -> None:
    """The engine compares integers; its order must be ours, ties included."""
    first, second = rank_preserving_integer(one), rank_preserving_integer(other)

    assert (one < other, one == other) == (first < second, first == second)
    assert 0 <= first < 2**63


def test_priority_of_neighbouring_tags_differs() -> None:
    """Rounding to whole token·iterations would make ties of near tags."""
    assert rank_preserving_integer(1e6) < rank_preserving_integer(1e6 + 1e-9)
    assert rank_preserving_integer(exact(1, 2)) == rank_preserving_integer(0.5)


@pytest.mark.parametrize("value", [-1.0, -1e-300, float("nan")])
def test_priority_of_no_tag_is_refused(value: float) -> None:
    """The bits of a negative float fall as it rises."""
    with pytest.raises(ValueError, match="a tag must be >= 0"):
        rank_preserving_integer(value)


def test_justitia_orders_by_tag_and_then_by_arrival() -> None:
    """Ties go to the application that was first seen, whatever it submitted when."""
    share = ServedShare()
    share.arrive("a", 10, 1, 1)
    share.arrive("b", 10, 1, 2)
    share.arrive("c", 5, 1, 3)
    policy = JustitiaPolicy(share)
    keys = {
        name: policy.key(_application(name, sequence), _inference(9.0 - sequence, sequence))
        for name, sequence in (("a", 1), ("b", 2), ("c", 3))
    }

    assert keys == {"a": (10, 1), "b": (10, 2), "c": (5, 3)}
    assert rank_preserving_integer(5) == policy.engine_priority(_application("c", 3), 77)


def test_fcfs_orders_by_submission_and_then_by_sequence() -> None:
    """The application does not matter; the engine serves in the order of the grants."""
    policy = FcfsPolicy(ServedShare())
    application = _application("a", 1)

    assert policy.key(application, _inference(3.5, 12)) == (3.5, 12)
    assert policy.engine_priority(application, 77) == 77


def test_policies_that_charge_on_nothing_change_no_key() -> None:
    """The queue sorts anew exactly what a hook returns."""
    policy = FcfsPolicy(ServedShare())
    application, inference = _application("a", 1), _inference(0.0, 1)

    assert [
        policy.submitted(application, inference),
        policy.dispatched(application, inference),
        policy.served([]),
        policy.ended(application, inference),
    ] == [[]] * 4


@pytest.mark.parametrize("policy", POLICIES)
def test_options_default_to_the_served_clock(policy: str) -> None:
    """With the nominal clock small applications queue behind a large one that cannot use M."""
    options = parse_options(policy, {})

    assert PolicyOptions("served", 0.03) == options
    assert type(options.fair_share()) is ServedShare


def test_nominal_clock_is_built_from_its_options() -> None:
    """An int of seconds is a number too."""
    options = parse_options("justitia", {"clock": "nominal", "nominal_iteration_s": 1})

    assert PolicyOptions("nominal", 1.0) == options
    assert isinstance(options.fair_share(), NominalShare)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("lifo", {}, "policy: 'lifo' is not one of justitia, fcfs"),
        ("fcfs", {"clok": "served"}, "policy_options: 'clok' is not one of clock"),
        ("fcfs", {"clock": "wall"}, "policy_options.clock: 'wall' is not one of served, nominal"),
        ("fcfs", {"nominal_iteration_s": "1"}, "nominal_iteration_s: '1' is not a number"),
        ("fcfs", {"nominal_iteration_s": True}, "nominal_iteration_s: True is not a number"),
        ("fcfs", {"nominal_iteration_s": 0}, "nominal_iteration_s: 0 must be above 0"),
        ("fcfs", {"nominal_iteration_s": float("inf")}, "inf must be above 0 and finite"),
        ("fcfs", {"nominal_iteration_s": float("nan")}, "nan must be above 0 and finite"),
    ],
)
def test_wrong_option_is_named_with_what_is_allowed(
    policy: str, options: dict[str, object], message: str
) -> None:
    """A typo in the configuration must not silently mean the default."""
    with pytest.raises(ConfigError, match=message):
        parse_options(policy, options)


def test_options_of_the_same_clock_are_recognised() -> None:
    """Only a clock that moves otherwise is started anew when options change."""
    served, nominal = PolicyOptions(), PolicyOptions("nominal", 0.03)

    assert served.same_clock(PolicyOptions("served", 1.0))
    assert not served.same_clock(nominal)
    assert not nominal.same_clock(PolicyOptions("nominal", 1.0))
    assert nominal.same_clock(PolicyOptions("nominal", 0.03))
