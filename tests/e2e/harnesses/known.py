"""Headers and body fields that each client is known to send."""

import json
from pathlib import Path

from tests.e2e.harnesses.recorder import RecordedCall

_KNOWN: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("known.json").read_text(encoding="utf-8")
)


def call_parts(call: RecordedCall) -> set[str]:
    """Return a call's endpoint, its headers, and the fields of its body, two levels deep."""
    fields = call.fields
    found = {f"{call.method} {call.path.partition('?')[0]}"}
    found |= {f"header {name}" for name in call.headers}
    for name, value in fields.items():
        found.add(f"field {name}")
        if isinstance(value, dict):
            found |= {f"field {name}.{inner}" for inner in value}
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                found |= {f"field {name}[].{inner}" for inner in item}
    return found


def unknown_parts(program: str, call: RecordedCall) -> set[str]:
    """Return the headers and fields of a client's call that `known.json` does not list."""
    return call_parts(call) - set(_KNOWN.get(program, ()))
