"""API keys for tests of an application with access control."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from justitia_ray.access.identity import MAX_WEIGHT
from justitia_ray.access.keys import KeyRecord, create_key, write_records

GATEWAY = "gateway"
"""Name of the API key whose calls may name any tenant."""
OPERATOR = "operator"
"""Name of the API key that may read the usage of all tenants."""


@dataclass
class KeyRing:
    """API keys of a test's application, with their secrets and the key file."""

    file: Path
    secrets: dict[str, str] = field(default_factory=dict)
    records: dict[str, KeyRecord] = field(default_factory=dict)

    def add(self, name: str, tenant: str | None, *scopes: str, max_weight: float = 1.0) -> None:
        """Create a key and return its secret; `write` puts the key into the file."""
        new = create_key(
            tenant=tenant,
            scopes=scopes or ("infer", "own"),
            max_weight=max_weight,
            now=time.time(),
        )
        self.secrets[name], self.records[name] = new.secret, new.record

    def write(self) -> None:
        self.file.write_text(write_records(self.records.values()), encoding="utf-8")


def gateway_keys(directory: Path) -> KeyRing:
    """Write two keys, and return both: `gateway` may name any tenant, `operator` may operate."""
    keys = KeyRing(directory / "gateway-keys.yaml")
    keys.add(GATEWAY, GATEWAY, "infer", "own", "proxy", max_weight=MAX_WEIGHT)
    keys.add(OPERATOR, None, "operate")
    keys.write()
    return keys
