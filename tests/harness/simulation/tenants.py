"""Random quotas of the tenants in a simulation."""

import random
from typing import Any

from justitia_ray.core.tenants import OnExhausted, Unit, ancestors

COUNTING = 1_000_000_000
"""Limit of quotas that only count because they are never exhausted."""
_LIMITS = {
    Unit.APPLICATIONS: (1, 2, 3, 5, 12),
    Unit.INFERENCES: (2, 5, 10, 30),
    Unit.KV_TOKEN_TIME: (800, 3_000, 10_000, 60_000),
    Unit.TOKENS: (100, 400, 2_000),
}
_PERIODS = ("second", "minute", "minute", "hour", "day")


def draw_tenants(rng: random.Random, tenants: tuple[str, ...]) -> dict[str, Any]:
    """Return a tenant tree with random quotas, and with a counting quota at each tenant."""
    paths = dict.fromkeys(path for tenant in tenants for path in ancestors(tenant))
    tree: dict[str, Any] = {}
    for path in paths:
        quotas = [_draw_quota(rng, tree, path) for _ in range(rng.choice((0, 1, 1, 2)))]
        if path in tenants:
            quotas += [_counting_quota(unit) for unit in (Unit.APPLICATIONS, Unit.INFERENCES)]
        by_name = {f"{quota['unit']}/{quota['per']}": quota for quota in quotas}
        tree[path] = {"quotas": [*by_name.values()]}
    return tree


def _counting_quota(unit: Unit) -> dict[str, Any]:
    shadow = OnExhausted.SHADOW.value
    return {"unit": unit.value, "limit": COUNTING, "per": "month", "on_exhausted": shadow}


def _draw_quota(rng: random.Random, tree: dict[str, Any], path: str) -> dict[str, Any]:
    unit = rng.choice([*_LIMITS])
    per = rng.choice(_PERIODS)
    limit = rng.choice(_LIMITS[unit])
    above = tree.get(path.rpartition("/")[0], {}).get("quotas", ())
    for quota in above:  # A child's quota may not exceed its parent's.
        if (quota["unit"], quota["per"]) == (unit.value, per):
            limit = min(limit, quota["limit"])
    how = rng.choices([*OnExhausted], (6, 2, 1))[0]
    is_calendar = per == "day" and rng.random() < 0.5
    return {
        "unit": unit.value,
        "limit": limit,
        "per": per,
        "window": "calendar" if is_calendar else "rolling",
        "on_exhausted": how.value,
    }
