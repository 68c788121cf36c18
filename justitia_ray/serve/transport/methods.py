"""Methods that can be called over a connection, with the types of their arguments and answers.

The values are those of `protocol.messages`. MessagePack does not encode the type of a value, so a
value of one of several types is preceded by the type's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from justitia_ray.core.events import ApplicationArrived, NackReason
from justitia_ray.core.limits import LimitStanding
from justitia_ray.protocol.engine import ResponseHead
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
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    Epoch,
    IngressId,
    LeaseId,
    ReplicaId,
    RequestId,
)

Named = tuple[str, msgspec.Raw]
"""Encoded value of one of several types: the type's name, and the value."""
Headers = dict[str, str]


def _decoders_by_name(union: Any) -> Mapping[str, Callable[[msgspec.Raw], Any]]:
    return {kind.__name__: msgspec.msgpack.Decoder(kind).decode for kind in get_args(union)}


_SUBMISSIONS = _decoders_by_name(Submission)
_INGRESS_MESSAGES = _decoders_by_name(IngressMessage)
_REPLICA_MESSAGES = _decoders_by_name(ReplicaMessage)


@dataclass(frozen=True, slots=True)
class Form:
    """Encoding of a value for a connection between processes."""

    wire: Any
    """Type of the encoded value."""
    pack: Callable[[Any], Any] | None = None
    """Function that converts a value to its encodable form; None: the value is encodable."""
    unpack: Callable[[Any], Any] | None = None
    """Function that converts a decoded value back; None: the decoded value is used as it is."""


def _with_type_name(value: object) -> tuple[str, object]:
    return type(value).__name__, value


_MANY_SUBMISSIONS = Form(
    tuple[Named, ...],
    lambda items: [_with_type_name(item) for item in items],
    lambda items: tuple(_SUBMISSIONS[name](raw) for name, raw in items),
)


class _IngressMail(msgspec.Struct, frozen=True, array_like=True):
    epoch: Epoch
    messages: tuple[tuple[int, str, msgspec.Raw], ...]
    forgotten: bool
    addresses: dict[ReplicaId, str]
    standings: dict[ClientId, tuple[LimitStanding, ...]] = {}
    positions: dict[RequestId, int] = {}


def _unpack_ingress_mail(mail: _IngressMail) -> IngressMail:
    messages = tuple((n, _INGRESS_MESSAGES[name](raw)) for n, name, raw in mail.messages)
    return IngressMail(
        mail.epoch,
        messages,
        mail.forgotten,
        mail.addresses,
        mail.standings,
        mail.positions,
    )


_INGRESS_MAIL = Form(
    _IngressMail,
    lambda mail: (
        mail.epoch,
        [(number, *_with_type_name(message)) for number, message in mail.messages],
        mail.forgotten,
        mail.addresses,
        mail.standings,
        mail.positions,
    ),
    _unpack_ingress_mail,
)


class _ReplicaMail(msgspec.Struct, frozen=True, array_like=True):
    epoch: Epoch
    messages: tuple[tuple[int, str, msgspec.Raw], ...]
    backlog_kv_tokens: int


def _unpack_replica_mail(mail: _ReplicaMail) -> ReplicaMail:
    messages = tuple((n, _REPLICA_MESSAGES[name](raw)) for n, name, raw in mail.messages)
    return ReplicaMail(mail.epoch, messages, mail.backlog_kv_tokens)


_REPLICA_MAIL = Form(
    _ReplicaMail,
    lambda mail: (
        mail.epoch,
        [(number, *_with_type_name(message)) for number, message in mail.messages],
        mail.backlog_kv_tokens,
    ),
    _unpack_replica_mail,
)


class Method:
    """Method that another process may call: how its arguments and its answer are encoded.

    Args:
        arguments: Type of each argument, or its `Form`.
        answer: Type of the answer or of an item, or its `Form`.
        streams: Whether the method answers with a stream of items.
        runs: Whether the call is cancelled when its caller no longer waits for the answer.
    """

    def __init__(
        self, arguments: tuple[Any, ...], answer: Any, *, streams: bool = False, runs: bool = False
    ) -> None:
        forms = [form if isinstance(form, Form) else Form(form) for form in arguments]
        self.streams = streams
        self.runs = runs
        self._forms = forms
        self._answer = answer if isinstance(answer, Form) else Form(answer)
        self._decode_arguments = msgspec.msgpack.Decoder(
            tuple[tuple(form.wire for form in forms)] if forms else tuple[()]  # type: ignore[misc]
        ).decode
        self._decode_answer = msgspec.msgpack.Decoder(self._answer.wire).decode

    def pack_arguments(self, arguments: tuple[Any, ...]) -> list[Any]:
        return [
            value if form.pack is None else form.pack(value)
            for form, value in zip(self._forms, arguments, strict=True)
        ]

    def read_arguments(self, raw: msgspec.Raw) -> list[Any]:
        """Decode the arguments of a call.

        Raises:
            MsgspecError, KeyError: If the arguments have other types.
        """
        values = self._decode_arguments(raw)
        return [
            value if form.unpack is None else form.unpack(value)
            for form, value in zip(self._forms, values, strict=True)
        ]

    def pack_answer(self, answer: Any) -> Any:
        """Return an answer, or an item of a stream, in encodable form."""
        pack = self._answer.pack
        return answer if pack is None else pack(answer)

    def read_answer(self, raw: msgspec.Raw) -> Any:
        """Decode an answer, or an item of a stream.

        Raises:
            MsgspecError, KeyError: If the answer has another type.
        """
        answer, unpack = self._decode_answer(raw), self._answer.unpack
        return answer if unpack is None else unpack(answer)


SCHEDULER_METHODS: dict[str, Method] = {
    "open_application": Method((ApplicationArrived,), Opened),
    "submit_many": Method((IngressId, Epoch, int, _MANY_SUBMISSIONS), _INGRESS_MAIL),
    "poll_grants": Method((IngressId, Epoch, int), _INGRESS_MAIL),
    "outlooks": Method((tuple[ApplicationId, ...],), dict[str, Any]),
    "refuse_lease": Method((RequestId, LeaseId, NackReason), bool),
    "pull": Method((Pull,), _REPLICA_MAIL),
    "leave": Method((ReplicaId,), None),
    "claim_session": Method((str, bytes, str, bytes | None, str | None), str),
    "find_conversation": Method((str, tuple[bytes, ...]), str | None),
    "name_conversation": Method((str, tuple[bytes, ...], str), None),
    "restore_names": Method((str, tuple[tuple[bytes, str], ...]), None),
}
"""Methods of a scheduler that other processes may call."""

_LEASED = (LeaseId, str, Headers, bytes)
"""Types of the arguments of a leased call: lease id, path, headers and body."""
REPLICA_METHODS: dict[str, Method] = {
    "unary": Method(_LEASED, tuple[int, Headers, bytes], runs=True),
    "stream": Method((*_LEASED, Resume | None), ResponseHead | Part, streams=True, runs=True),
    "inspect": Method((), dict[str, Any]),
}
"""Methods of a replica that other processes may call."""
