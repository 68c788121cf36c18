"""Message fields and methods of the current wire version: a change must raise the version."""

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from justitia_ray.serve.transport import frames, handshake, methods
from justitia_ray.serve.transport.handshake import WIRE_VERSION
from tests.unit.serve.transport.test_methods import TYPES

_OF_VERSION_4 = {
    "Answer": "id value",
    "Call": "id method arguments",
    "Cancel": "id",
    "Challenge": "refusal unknown_key nonce proof",
    "End": "id",
    "ExpectedStage": "inferences compute_tokens kv_token_time output_tokens gap_s",
    "Failure": "id error arguments",
    "FailureCause": "crash kill",
    "Hello": "wire_version key_id role name target nonce",
    "Item": "id value",
    "LeaseFinished": (
        "lease_id prompt_tokens output_tokens outcome booked cached_tokens recomputed_tokens"
    ),
    "LeaseProgress": (
        "lease_id prompt_tokens output_tokens running cached_tokens recomputed_tokens"
    ),
    "LeaseRun": "lease_id ran_s",
    "MeasuredPrefill": "cost release",
    "NackReason": "lease connection",
    "Outcome": "finished cancelled failed expired",
    "Output": "tokens finish_reason stop_reason",
    "Part": "body chunks outputs obstacle",
    "PauseStream": "id",
    "Piece": "id data last",
    "Ping": "id",
    "Refusal": (
        "unknown_application application_closed application_cancelled application_expired "
        "application_ending queue_full too_many_applications not_stored superseded "
        "quota_exhausted cap_reached deadline engine_killer"
    ),
    "ResumeStream": "id",
    "StageServed": (
        "inferences sequences prompt_tokens output_tokens kv_token_time longest_output_tokens gap_s"
    ),
    "_IngressMail": "epoch messages forgotten addresses standings positions",
    "_ReplicaMail": "epoch messages backlog_kv_tokens",
}
"""Fields of the types that are encoded by position, and values of the enumerations."""
_ARGUMENTS_OF_VERSION_4 = {
    "open_application": 1,
    "submit_many": 4,
    "poll_grants": 3,
    "outlooks": 1,
    "refuse_lease": 3,
    "pull": 1,
    "leave": 1,
    "claim_session": 5,
    "find_conversation": 2,
    "name_conversation": 3,
    "restore_names": 2,
    "unary": 4,
    "stream": 5,
    "inspect": 0,
}


def _types_within(kind: Any) -> Iterator[type]:
    if get_origin(kind) is not None or get_args(kind):
        for one in get_args(kind):
            yield from _types_within(one)
    elif isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, tuple)):
        yield kind
        for one in get_type_hints(kind).values():
            yield from _types_within(one)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield kind


def _positional_fields() -> dict[str, str]:
    kinds = {
        one: None
        for sent, answer in TYPES.values()
        for kind in (*sent, answer)
        for one in _types_within(kind)
    }
    found = {}
    for kind in kinds:
        if issubclass(kind, Enum):
            found[kind.__name__] = " ".join(str(one.value) for one in kind)
        elif issubclass(kind, tuple):
            found[kind.__name__] = " ".join(get_type_hints(kind))
    for module in (frames, handshake, methods):
        for struct in vars(module).values():
            is_struct = isinstance(struct, type) and issubclass(struct, msgspec.Struct)
            if is_struct and struct.__module__ == module.__name__:
                found[struct.__name__] = " ".join(struct.__struct_fields__)
    return found


def test_changed_message_fields_require_a_new_wire_version() -> None:
    """Without a new wire version, another release would fail at every call.

    If this test fails, raise `WIRE_VERSION` and record the new fields here.
    """
    assert (4, _OF_VERSION_4) == (WIRE_VERSION, _positional_fields())


def test_changed_method_arguments_require_a_new_wire_version() -> None:
    assert _ARGUMENTS_OF_VERSION_4 == {name: len(sent) for name, (sent, _) in TYPES.items()}
