"""The rules by which a call's application is recognised, one after the other until one does.

`X-Justitia-Application` is an id of ours, checked like one. `metadata.application_id` is one where
it has the form of ids; other programs write names of their own there. Everything else is what
somebody else made: it becomes `rule/value`, or a digest if it has another form than ids have, for a
harness's user could not change it.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from justitia_ray.application_key import PLAIN_ID
from justitia_ray.protocol.endpoints import APPLICATION_HEADER, FINAL_HEADER
from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES
from justitia_ray.recognition.harnesses import HARNESSES, Harness

CONVERSATION = "conversation"
"""Rule that goes by what was said: `conversations`."""
PERSONAL = ("user", "prompt_cache_key", "safety_identifier")
"""Fields of a body that name a person or a cache, and a run only where the operator says so."""
RULES = ("header", "metadata", "headers", "harness", "baggage", *PERSONAL, CONVERSATION)
"""All rules; those of a body's fields have the field's name."""
DEFAULT_RULES = ("header", "metadata", "headers", "harness", "baggage")

_PLAIN = re.compile(r"[A-Za-z0-9._:-]{1,96}")


@dataclass(frozen=True, slots=True)
class Recognized:
    """An application as a rule names it."""

    rule: str
    """Rule, or the harness by whose headers it was recognised."""
    application_id: str
    """Id that its tenant has for it; of a session with a parent, the id that it would have."""
    parent_application_id: str | None = None
    """That of the session that spawned it."""
    can_have_parent: bool = False
    application_class: str | None = None
    is_final: bool = False
    """Whether it takes no more inferences."""


class Recognizer:
    """Recognises applications by the rules of an operator."""

    def __init__(
        self, rules: Sequence[str], own_headers: Sequence[Harness], baggage_key: str
    ) -> None:
        """Prepare.

        Args:
            rules: Names of `RULES`, in the order in which they are tried.
            own_headers: The operator's headers, of the rule `headers`.
            baggage_key: Key of W3C `baggage`, of the rule `baggage`.
        """
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
        """Return the application of a call, None if no rule knows it.

        Args:
            headers: Names in lower case, and values that are not empty.
            fields: The call's body.
        """
        for read in self._readers:
            found = read(headers, fields)
            if found is not None:
                is_final = headers.get(FINAL_HEADER, "").lower() == "true"
                return replace(found, is_final=True) if is_final else found
        return None

    def conversing(
        self, headers: Mapping[str, str], path: str, fields: Mapping[str, Any]
    ) -> Harness | None:
        """Return the harness whose call names no session, None if it is none that is known.

        Args:
            headers: Names in lower case, and values that are not empty.
            path: Path of the endpoint.
            fields: The call's body, checked by the endpoint's reader.
        """
        for harness in self._conversing:
            if harness.is_marked(headers):
                return harness
        opening = _opening_of(path, fields) if self._conversing else ""
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
                return Recognized("baggage", _id_of("baggage", unquote(value.strip())))
        return None


_Reader = Callable[[Mapping[str, str], Mapping[str, Any]], Recognized | None]


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
        return Recognized("metadata", _id_of("metadata", session))
    return None


def _opening_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return the system prompt's first text; empty if there is none, or the path has no messages.

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
                    _id_of(harness.name, session.session_id),
                    None if parent is None else _id_of(harness.name, parent),
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
        # It may be somebody's address, which no log is to have.
        return Recognized(self._field, f"{self._field}/{_digest(value)}")


def _id_of(rule: str, value: str) -> str:
    """Return the id of an application that somebody else has named."""
    return f"{rule}/{value if _PLAIN.fullmatch(value) else _digest(value)}"


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:32]
