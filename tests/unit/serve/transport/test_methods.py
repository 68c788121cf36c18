"""Arguments and answers of every method arrive with their values and types."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted, NackReason
from justitia_ray.protocol.engine import Output, ResponseHead
from justitia_ray.protocol.messages import (
    IngressMail,
    IngressMessage,
    Opened,
    Pull,
    ReplicaMail,
    ReplicaMessage,
    Submission,
)
from justitia_ray.protocol.stream_parts import Part, Resume
from justitia_ray.serve.transport.methods import REPLICA_METHODS, SCHEDULER_METHODS, Method
from tests.unit.observability.recording_backend import ENDED

HEADERS = dict[str, str]
LEASED = (str, str, HEADERS, bytes)
TYPES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "open_application": ((ApplicationArrived,), Opened),
    "submit_many": ((str, int, int, tuple[Submission, ...]), IngressMail),
    "poll_grants": ((str, int, int), IngressMail),
    "outlooks": ((tuple[str, ...],), dict[str, dict[str, str]]),
    "refuse_lease": ((str, str, NackReason), bool),
    "pull": ((Pull,), ReplicaMail),
    "leave": ((str,), None),
    "claim_session": ((str, bytes, str, bytes | None, str | None), str),
    "find_conversation": ((str, tuple[bytes, ...]), str | None),
    "name_conversation": ((str, tuple[bytes, ...], str), None),
    "restore_names": ((str, tuple[tuple[bytes, str], ...]), None),
    "unary": (LEASED, tuple[int, HEADERS, bytes]),
    "stream": ((*LEASED, Resume | None), ResponseHead | Part),
    "inspect": ((), dict[str, str]),
}
"""Types of the arguments and of the answer of each transport method."""
METHODS: dict[str, Method] = {**SCHEDULER_METHODS, **REPLICA_METHODS}

_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    NoneType: st.none(),
    None: st.none(),
}


_ABOVE_0 = st.none() | st.floats(0.0, 1e9, exclude_min=True)
_FIELDS = {"idle_s": _ABOVE_0, "deadline_s": _ABOVE_0}
"""Hypothesis strategies for fields that do not accept every value of their type."""


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a Hypothesis strategy for values of a message type."""
    if kind in _LEAVES:
        return _LEAVES[kind]
    arguments = get_args(kind)
    match get_origin(kind):
        case origin if origin in (Union, UnionType):
            return st.one_of(*map(values_of, arguments))
        case origin if origin is tuple and arguments[1:] == (...,):
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values_of, arguments))
        case origin if origin in (dict, Mapping):
            return st.dictionaries(*map(values_of, arguments), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    assert dataclasses.is_dataclass(kind) or issubclass(kind, tuple)
    fields = get_type_hints(kind).items()
    drawn = {name: _FIELDS[name] if name in _FIELDS else values_of(of) for name, of in fields}
    return st.builds(kind, **drawn)


def as_received(packed: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(packed))


def test_types_of_every_transport_method_are_tested() -> None:
    """Only methods with an entry are tested."""
    assert METHODS.keys() == TYPES.keys()


@pytest.mark.parametrize("name", METHODS)
def test_arguments_and_answers_survive_encoding(name: str) -> None:
    """A value of another type would fail later, far from its cause.

    Equality is not enough: a named tuple equals a plain one.
    """
    method, (arguments, answer) = METHODS[name], TYPES[name]

    @settings(max_examples=30, deadline=None)
    @given(st.tuples(*map(values_of, arguments)), values_of(answer))
    def check_round_trip(given_arguments: tuple[Any, ...], given_answer: Any) -> None:
        there = method.read_arguments(as_received(method.pack_arguments(given_arguments)))
        back = method.read_answer(as_received(method.pack_answer(given_answer)))

        assert (list(given_arguments), given_answer) == (there, back)
        assert repr((list(given_arguments), given_answer)) == repr((there, back))

    check_round_trip()


@pytest.mark.parametrize("kind", get_args(Submission), ids=lambda kind: kind.__name__)
def test_each_kind_of_submission_keeps_its_type_when_decoded(kind: Any) -> None:
    """Several kinds have equal fields: an end and a cancel differ only in their tag."""
    _check_decoding("submit_many", lambda item: ("i", 1, 2, (item,)), kind)


def _check_decoding(name: str, arguments: Any, kind: Any) -> None:
    method = METHODS[name]

    @settings(max_examples=5, deadline=None)
    @given(values_of(kind))
    def check_item(item: Any) -> None:
        there = method.read_arguments(as_received(method.pack_arguments(arguments(item))))
        assert (item,) == there[-1]
        assert type(item) is type(there[-1][0])

    check_item()


@pytest.mark.parametrize(
    ("name", "mail", "kind"),
    [
        *(("poll_grants", IngressMail, kind) for kind in get_args(IngressMessage)),
        *(("pull", ReplicaMail, kind) for kind in get_args(ReplicaMessage)),
    ],
)
def test_each_kind_of_scheduler_message_keeps_its_type_when_decoded(
    name: str, mail: Any, kind: Any
) -> None:
    """A grant decoded as an abort would end what it should start."""
    method = METHODS[name]

    @settings(max_examples=5, deadline=None)
    @given(values_of(kind))
    def check_message(message: Any) -> None:
        answer = mail(7, ((3, message),))
        assert answer == method.read_answer(as_received(method.pack_answer(answer)))

    check_message()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("submit_many", ["i", 1, 2, [["Grant", {}]]]),
        ("submit_many", ["i", 1, 2, [["builtins.eval", "1"]]]),
        ("submit_many", ["i", 1, 2, [["ApplicationClosed", {"id": "a"}]]]),
        ("refuse_lease", ["q", "l", "no such reason"]),
        ("poll_grants", ["i", "one", 2]),
        ("poll_grants", ["i", 1]),
        ("leave", {"replica_id": "r"}),
    ],
)
def test_arguments_of_other_types_are_an_error(name: str, arguments: Any) -> None:
    """The types are a closed list, so a caller cannot have other classes imported."""
    with pytest.raises((msgspec.MsgspecError, KeyError)):
        METHODS[name].read_arguments(as_received(arguments))


OPENING = ApplicationArrived("a", "c", "t", 1.0, 9.0, "i", recognized_by="metadata", idle_s=30.0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("open_application", lambda fields: [fields]),
        ("submit_many", lambda fields: ["i", 1, 2, [["ApplicationArrived", fields]]]),
    ],
)
def test_decoder_ignores_unknown_fields_and_fills_in_missing_fields(
    name: str, arguments: Any
) -> None:
    """A field with a default needs no new wire version; both releases read the messages."""
    fields = dataclasses.asdict(OPENING)
    later = METHODS[name].read_arguments(as_received(arguments(fields | {"not_yet_known": [1]})))
    del fields["recognized_by"], fields["idle_s"]
    earlier = METHODS[name].read_arguments(as_received(arguments(fields)))

    as_before = dataclasses.replace(OPENING, recognized_by="", idle_s=None)
    assert [OPENING, as_before] == [
        read[-1] if name == "open_application" else read[-1][0] for read in (later, earlier)
    ]


def test_ended_application_of_an_older_scheduler_names_no_recognition_rule() -> None:
    """An ingress may be of a later release than its scheduler."""
    fields = dataclasses.asdict(ENDED)
    del fields["recognized_by"]
    mail = METHODS["poll_grants"].read_answer(
        as_received([7, [[1, "EndApplication", fields]], False, {}])
    )

    assert ((1, dataclasses.replace(ENDED, recognized_by="")),) == mail.messages


def test_caller_raises_an_error_for_a_wrong_number_of_arguments() -> None:
    """The error is raised before the call is sent."""
    with pytest.raises(ValueError, match="zip"):
        METHODS["leave"].pack_arguments(("r", "more"))


def test_stream_parts_are_encoded_in_few_bytes() -> None:
    """A stream has one part per token, so field names are not sent."""
    part = Part(b"data: {}\n\n", 1, (Output((1, 2)),))

    assert len(as_received(REPLICA_METHODS["stream"].pack_answer(part))) < 25


def test_message_of_an_older_scheduler_is_read_as_confirming_no_inference() -> None:
    """An ingress remembers ended inferences only for a scheduler that confirms stored ones."""
    method = METHODS["poll_grants"]
    sent_then = msgspec.msgpack.encode((1, [], False, {}, {}, {}))

    assert IngressMail(1) == method.read_answer(msgspec.Raw(sent_then))


def test_older_ingress_does_not_remember_ended_inferences() -> None:
    """An older ingress never repeats ended inferences, so the replica's reports are counted."""
    fields = dataclasses.asdict(
        InferenceSubmitted("q", "a", "0", "i", 20, 10, 10, is_counted=False)
    )
    del fields["is_counted"], fields["outcome"]
    raw = msgspec.msgpack.encode(("i", 1, 0, [("InferenceSubmitted", fields)]))
    (item,) = METHODS["submit_many"].read_arguments(msgspec.Raw(raw))[-1]

    assert (None, None) == (item.is_counted, item.outcome)
