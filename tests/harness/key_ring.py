"""API keys for the tests of a guarded application."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from justitia_ray.access.identity import MAX_WEIGHT
from justitia_ray.access.keys import KeyRecord, create_key, write_records

GATEWAY = "gateway"
"""Name of the key whose calls may be for any tenant."""
OPERATOR = "operator"
"""Name of the key that sees every tenant's usage."""


@dataclass
class KeyRing:
    """The keys of an application: its file, and the secrets by the names that tests have."""

    file: Path
    secrets: dict[str, str] = field(default_factory=dict)
    records: dict[str, KeyRecord] = field(default_factory=dict)

    def add(self, name: str, tenant: str | None, *scopes: str, max_weight: float = 1.0) -> None:
        """Make a key; `write` puts it in force."""
        new = create_key(
            tenant=tenant,
            scopes=scopes or ("infer", "own"),
            max_weight=max_weight,
            now=time.time(),
        )
        self.secrets[name], self.records[name] = new.secret, new.record

    def write(self) -> None:
        """Write the file."""
        self.file.write_text(write_records(self.records.values()), encoding="utf-8")


def gateway_keys(directory: Path) -> KeyRing:
    """Return keys, in force: one may name any tenant, its own is `gateway`; one may operate."""
    keys = KeyRing(directory / "gateway-keys.yaml")
    keys.add(GATEWAY, GATEWAY, "infer", "own", "proxy", max_weight=MAX_WEIGHT)
    keys.add(OPERATOR, None, "operate")
    keys.write()
    return keys
