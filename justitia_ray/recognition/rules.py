"""Rules by which a call's application is recognised, tried in order until one applies.

`X-Justitia-Application` is an id of this service, and checked as one. `metadata.application_id` is
one if it has the form of ids; other programs store their own names there. All other values come
from other software: they become `rule/value`, or a digest if they do not have the form of ids,
because the user of a harness could not change them.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from justitia_ray.application_key import PLAIN_ID
from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.endpoints import APPLICATION_HEADER, FINAL_HEADER
from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES
from justitia_ray.recognition.harnesses import HARNESSES, Harness

CONVERSATION = "conversation"
"""Rule that recognises an application by the messages of its conversation; see `conversations`."""
PERSONAL = ("user", "prompt_cache_key", "safety_identifier")
"""Body fields that may name a person or a cache; rules use them only if configured."""
RULES = ("header", "metadata", "headers", "harness", "baggage", *PERSONAL, CONVERSATION)
"""All rules of recognition; a rule for a body field has the name of the field."""
DEFAULT_RULES = ("header", "metadata", "headers", "harness", "baggage")

_PLAIN = re.compile(r"[A-Za-z0-9._:-]{1,96}")


@dataclass(frozen=True, slots=True)
class Recognized:
    """The application of a call, as a rule has recognised it."""

    rule: str
    """Name of the rule, or of the harness that sent the headers."""
    application_id: str
    """Id of the application within its tenant. For a sub-agent's session, the id that it would have
    without a parent.
    """
    parent_application_id: str | None = None
    """Id of the parent session's application; None for a root, or if unknown."""
    can_have_parent: bool = False
    application_class: str | None = None
    is_final: bool = False
    """Whether this is the application's last inference."""


class Recognizer:
    """Recognises the application of a call by the operator's rules."""

    def __init__(
        self, rules: Sequence[str], own_headers: Sequence[Harness], baggage_key: str
    ) -> None:
        self._baggage_key = baggage_key
        readers: dict[str, _Reader] = {
            "header": _by_header,
            "metadata": _by_metadata,
            "headers": _HarnessReader(own_headers).read,
            "harness": _HarnessReader(HARNESSES).read,
            "baggage": self._by_baggage,
            **{field: _PersonalReader(field).read for field in PERSONAL},
        }
        self._readers = [readers[rule] for rule in rules if rule != CONVERSATION]
        self._conversing = [one for one in HARNESSES if one.converses and "harness" in rules]

    def recognize(self, headers: Mapping[str, str], fields: Mapping[str, Any]) -> Recognized | None:
        """Return the application of a call; None if no rule recognises it.

        Args:
            headers: Non-empty values by name in lower case.
            fields: The call's body.

        Raises:
            RequestError: If the header that closes the application is neither true nor false.
        """
        is_final = _read_final(headers)
        for read in self._readers:
            found = read(headers, fields)
            if found is not None:
                return replace(found, is_final=True) if is_final else found
        return None

    def harness_without_session(
        self, headers: Mapping[str, str], path: str, fields: Mapping[str, Any]
    ) -> Harness | None:
        """Return the harness of a call without a session id; None if the harness is unknown.

        Args:
            headers: Non-empty values by name in lower case.
            path: Path of the endpoint.
            fields: The call's body, checked by the endpoint's reader.
        """
        for harness in self._conversing:
            if harness.is_marked(headers):
                return harness
        opening = _first_system_text(path, fields) if self._conversing else ""
        for harness in self._conversing:
            if opening.startswith(harness.openings):
                return harness
        return None

    def _by_baggage(
        self, headers: Mapping[str, str], fields: Mapping[str, Any]
    ) -> Recognized | None:
        for member in headers.get("baggage", "").split(","):
            name, _, value = member.partition(";")[0].partition("=")
            if name.strip() == self._baggage_key and value.strip():
                return Recognized("baggage", _application_id_for("baggage", unquote(value.strip())))
        return None


_Reader = Callable[[Mapping[str, str], Mapping[str, Any]], Recognized | None]


def _read_final(headers: Mapping[str, str]) -> bool:
    said = headers.get(FINAL_HEADER, "false").strip().lower()
    if said in ("true", "false"):
        return said == "true"
    raise RequestError(
        f"{FINAL_HEADER} is {shown_short(said)}: true or false is allowed", FINAL_HEADER
    )


def _by_header(headers: Mapping[str, str], fields: Mapping[str, Any]) -> Recognized | None:
    named = headers.get(APPLICATION_HEADER)
    return None if named is None else Recognized("header", named)


def _by_metadata(headers: Mapping[str, str], fields: Mapping[str, Any]) -> Recognized | None:
    metadata = fields.get("metadata")
    if not isinstance(metadata, dict):
        return None
    named = metadata.get("application_id")
    if isinstance(named, str) and named:
        is_ours = PLAIN_ID.fullmatch(named)
        return Recognized("metadata", named if is_ours else f"metadata/{_digest(named)}")
    session = metadata.get("session_id")
    if isinstance(session, str) and session:
        return Recognized("metadata", _application_id_for("metadata", session))
    return None


def _first_system_text(path: str, fields: Mapping[str, Any]) -> str:
    """Return the first text of a system prompt; "" without one.

    Args:
        path: Path of the endpoint.
        fields: The call's body, checked by the endpoint's reader.
    """
    if path == MESSAGES:
        content = fields.get("system")
    elif path in (CHAT, RESPONSES):
        content = fields.get("instructions") if path == RESPONSES else None
        said = fields.get("messages" if path == CHAT else "input")
        first = said[0] if isinstance(said, list) and said else None
        if (
            not content
            and isinstance(first, Mapping)
            and first.get("role") in ("system", "developer")
        ):
            content = first.get("content")
    else:
        return ""
    part = content[0] if isinstance(content, list) and content else content
    text = part.get("text") if isinstance(part, Mapping) else part
    return text.lstrip() if isinstance(text, str) else ""


class _HarnessReader:
    def __init__(self, harnesses: Sequence[Harness]) -> None:
        self._harnesses = harnesses
        self._named = {name for h in harnesses for names in (h.run, h.session) for name in names}

    def read(self, headers: Mapping[str, str], fields: Mapping[str, Any]) -> Recognized | None:
        if self._named.isdisjoint(headers):
            return None
        for harness in self._harnesses:
            session = harness.read(headers)
            if session is not None:
                parent = session.parent_id
                return Recognized(
                    harness.name,
                    _application_id_for(harness.name, session.session_id),
                    None if parent is None else _application_id_for(harness.name, parent),
                    session.can_have_parent,
                    harness.application_class,
                    session.is_final,
                )
        return None


class _PersonalReader:
    def __init__(self, field: str) -> None:
        self._field = field

    def read(self, headers: Mapping[str, str], fields: Mapping[str, Any]) -> Recognized | None:
        value = fields.get(self._field)
        if not isinstance(value, str) or not value:
            return None
        # The value is hashed, because it may be an e-mail address, which logs must not contain.
        return Recognized(self._field, f"{self._field}/{_digest(value)}")


def _application_id_for(rule: str, value: str) -> str:
    """Return an application id for an id from other software, hashed if it is not plain."""
    return f"{rule}/{value if _PLAIN.fullmatch(value) else _digest(value)}"


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:32]
