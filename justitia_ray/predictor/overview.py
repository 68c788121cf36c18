"""What a predictor tells people: its classes, their versions, and which of them serves."""

from typing import Any

from justitia_ray.predictor.online import LearningPredictor
from justitia_ray.predictor.versions import VersionIndex


def overview(predictor: LearningPredictor) -> dict[str, dict[str, Any]]:
    """Return what is known of each class: statistics, versions, what serves; JSON."""
    table = predictor.table()
    found: dict[str, dict[str, Any]] = {}
    for name in sorted({*table, *predictor.modelled()}):
        index = predictor.index(name)
        known = table.get(name)
        found[name] = {
            "samples": 0 if known is None else known["samples"],
            "kv_token_time_mean": None if known is None else known["kv_token_time_mean"],
            "changes": predictor.changes(name),
            "serving": predictor.serving(name),
            **described(index),
        }
    return found


def described(index: VersionIndex) -> dict[str, Any]:
    """Return what is said of the versions of a class, wherever they are; JSON."""
    return {
        "active": index.active,
        "pinned": index.pinned,
        "last_training": index.last_training,
        "versions": [
            {"version": v.number, "size_bytes": v.size_bytes} | v.record for v in index.versions
        ],
    }
