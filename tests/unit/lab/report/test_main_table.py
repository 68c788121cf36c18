"""The main table of the papers' reproduction does not move: a small run of it, digit by digit.

Two loads of the nine classes at 3x are simulated on the paper's engine: one synthesised, and one of
recorded runs where the data directory is there. A changed figure here means that the table of
`justitia_ray/lab/README.md` and the first rows of the README are out of date.

Renew the figures only for a change that is meant to alter the paper's order, cost, charges, engine
or load, and measure the tables anew in the same change (`justitia report`). A change of placement,
contexts, tenants, prefill or speed leaves them as they are. `python -m
tests.unit.lab.report.test_main_table` prints the figures of the present code.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from justitia_ray.lab.report.experiments.nine_class import GAP_AT_1X_S
from justitia_ray.lab.report.tasks import PAPER_ENGINE
from justitia_ray.sim.results import RunResult, summarise
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication
from tests.unit.sim.data_directory import REAL, needs_real_data

pytestmark = pytest.mark.slow

_SEED, _APPLICATIONS = 101, 60
_PAPERS_COST = {"cost": "kv_token_time"}
_ROWS: Mapping[str, RunSettings] = {
    "vtc": RunSettings(PAPER_ENGINE, "vtc"),
    "app-fcfs": RunSettings(PAPER_ENGINE, "app-fcfs"),
    "srjf": RunSettings(PAPER_ENGINE, "srjf"),
    "justitia": RunSettings(PAPER_ENGINE, "justitia", _PAPERS_COST),
    "justitia, λ = 3": RunSettings(
        PAPER_ENGINE, "justitia", _PAPERS_COST, prediction="noisy:3", seed=_SEED
    ),
}
_FIGURES = ("mean_jct_s", "p90_jct_s", "no_later_than_vtc", "worst_ratio_to_vtc")

_LOADS = {"synthesised": "f1486ce1ab1df81b", "recorded": "061ce02db0f5a61e"}
"""Digest of the applications of each load."""
_TABLES = {
    "synthesised": {
        "vtc": ("81.424079", "181.752905", "1.000000", "1.000000", "d8b5d982e9662a71"),
        "app-fcfs": ("90.784268", "148.272587", "0.433333", "7.429902", "77814537a291861f"),
        "srjf": ("44.697806", "119.275807", "0.866667", "2.369810", "01475afe1606d5c0"),
        "justitia": ("44.519806", "120.144386", "0.866667", "1.657041", "cb54d59eecbec8b9"),
        "justitia, λ = 3": ("45.026306", "126.885534", "0.850000", "2.331282", "7e54c6fffd50c3ce"),
    },
    "recorded": {
        "vtc": ("83.351349", "174.131827", "1.000000", "1.000000", "866d63d9795f65b4"),
        "app-fcfs": ("88.418349", "143.972141", "0.466667", "5.198843", "635b225f838ad5ba"),
        "srjf": ("40.426849", "114.774493", "0.866667", "2.806882", "ccf5fcbc5094c69d"),
        "justitia": ("40.379849", "115.486498", "0.900000", "2.302390", "71da86305168e850"),
        "justitia, λ = 3": ("40.044849", "113.360960", "0.900000", "2.638718", "9a093c5bde06eec6"),
    },
}
"""Published figures by load and row, with a digest of all completion times."""


def _load(data_dir: Path | None) -> list[WorkloadApplication]:
    window_s = _APPLICATIONS * GAP_AT_1X_S / 3
    options = SuiteOptions(
        count=_APPLICATIONS, window_s=window_s, seed=_SEED, data_dir=data_dir, mix=None
    )
    return build_suite("nine-class", options)


def _digest(rows: object) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def _load_digest(load: list[WorkloadApplication]) -> str:
    calls = [
        (a.application_class, a.arrived_at_s, c.prompt_tokens, c.output_tokens, c.after, c.delay_s)
        for a in load
        for c in a.inferences
    ]
    return _digest(calls)


def _table(load: list[WorkloadApplication]) -> dict[str, tuple[str, ...]]:
    """Return each row's figures, and a digest of all completion times to the microsecond."""
    runs = {name: simulate(load, settings) for name, settings in _ROWS.items()}
    return {
        name: (*(f"{figures[figure]:.6f}" for figure in _FIGURES), _times_digest(runs[name]))
        for name, figures in summarise(runs).items()
    }


def _times_digest(run: RunResult) -> str:
    return _digest([(a.application_id, f"{a.jct_s:.6f}") for a in run.applications])


@pytest.mark.parametrize(
    ("name", "data_dir"),
    [
        ("synthesised", None),
        pytest.param("recorded", REAL, marks=needs_real_data),
    ],
)
def test_main_results_table_equals_the_published_table(name: str, data_dir: Path | None) -> None:
    """The load is checked first, because another load has other figures."""
    load = _load(data_dir)

    assert _LOADS[name] == _load_digest(load)
    assert _TABLES[name] == _table(load)


if __name__ == "__main__":
    for _name, _directory in (("synthesised", None), ("recorded", REAL)):
        _applications = _load(_directory)
        sys.stdout.write(f"{_name}: load {_load_digest(_applications)!r}\n")
        for _row in _table(_applications).items():
            sys.stdout.write(f"    {_row[0]!r}: {_row[1]!r},\n")
