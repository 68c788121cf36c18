"""Numbers published in the papers, which the page shows beside its own results.

v1 and v2 are the two versions of Justitia (arXiv:2510.17015); VTC is the paper of OSDI 2024. Only
numbers printed in text or tables are listed: none was read off a plot.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from justitia_ray.lab.report.experiment import Arm

_TABLE_METRICS = ("most_difference", "mean_difference", "difference_variance", "tokens_per_s")
"""Metrics in the columns of VTC's Tables 2 to 6."""

_REAL = {
    "fcfs": (759.97, 433.53, 32112.00, 777.0),
    "lcf": (750.49, 323.82, 29088.90, 778.0),
    "vtc": (368.40, 251.66, 6549.16, 779.0),
    "vtc-predict": (365.47, 240.33, 5321.62, 773.0),
    "vtc-oracle": (329.46, 227.51, 4475.76, 781.0),
    "rpm 5": (143.86, 83.58, 1020.46, 340.0),
    "rpm 20": (446.76, 195.71, 7449.79, 694.0),
    "rpm 30": (693.66, 309.45, 24221.31, 747.0),
}
_REAL_PROFILED = {
    "fcfs": (743.23, 457.29, 26645.42, 777.0),
    "lcf": (709.35, 384.78, 23299.20, 778.0),
    "vtc": (707.35, 368.74, 21918.67, 780.0),
    "vtc-predict": (617.22, 337.05, 11803.41, 778.0),
    "vtc-oracle": (387.43, 277.18, 4541.57, 783.0),
    "rpm 5": (230.78, 151.00, 823.15, 340.0),
    "rpm 20": (445.34, 270.51, 5938.52, 694.0),
    "rpm 30": (801.16, 377.22, 25980.39, 747.0),
}
_OVERLOAD_PROFILED = {
    "fcfs": (323.18, 317.13, 15.98, 876.0),
    "vtc": (137.27, 74.87, 2819.40, 900.0),
    "vtc-oracle": (4.28, 0.34, 0.91, 893.0),
}
_TWO_CLIENTS = {
    "vtc": (192.88, 103.77, 6981.24, 893.0),
    "vtc-noisy": (33.98, 12.54, 111.94, 904.0),
    "vtc-oracle": (5.87, 0.51, 1.71, 895.0),
}
_EIGHT_CLIENTS = {
    "vtc": (322.16, 162.20, 5151.49, 875.0),
    "vtc-noisy": (99.43, 66.32, 487.10, 875.0),
    "vtc-oracle": (43.23, 36.34, 56.52, 875.0),
}
_DECISION_MS = {"15": 0.778, "20": 1.827, "30": 3.076, "50": 5.190, "100": 8.093}


@dataclass(frozen=True, slots=True)
class Published:
    """Number from a paper, which the report shows beside the measured one."""

    experiment: str
    arm: Arm
    metric: str
    value: float
    source: str
    against: str | None = None
    """Policy to which a relative value refers; None for an absolute value."""


def published_values() -> list[Published]:
    return [*_justitia_numbers(), *_vtc_numbers()]


def _justitia_numbers() -> Iterator[Published]:
    ours, ratio = Arm("", "justitia"), 166 / 210 - 1
    yield Published("two-dm", Arm("", "vtc"), "mean_jct_s", 210.0, "v1, Sec. III-A, Fig. 3a")
    yield Published("two-dm", ours, "mean_jct_s", 166.0, "v1, Sec. III-A, Fig. 3b")
    yield Published("two-dm", ours, "mean_jct_s", ratio, "166 s against 210 s", against="vtc")
    at_3x, end_to_end = Arm("3x", "justitia"), "v1, Sec. V-B; v2, Sec. 5.2"
    yield Published("density", at_3x, "mean_jct_s", -0.575, end_to_end, against="vtc")
    yield Published("density", at_3x, "mean_jct_s", -0.611, end_to_end, against="app-fcfs")
    yield Published("density", Arm("2x", "justitia"), "mean_jct_s", 151.1, "v1, Table II")
    fair = "v1, Fig. 10; v2, Fig. 8"
    yield Published("fair-ratio", at_3x, "no_later_than_vtc", 0.92, fair)
    yield Published("fair-ratio", at_3x, "worst_ratio_to_vtc", 1.26, fair)
    at_3 = Arm("justitia", "λ = 3")
    yield Published("prediction-error", at_3, "mean_jct_s", 0.095, "v2, Fig. 10", against="λ = 1")
    tokens, up_to = Arm("3x", "justitia/C"), "v1, Fig. 12, “up to”, whichever figure and density"
    yield Published("cost-model", tokens, "mean_jct_s", 0.423, up_to, against="justitia")
    for rate, ms in _DECISION_MS.items():
        arm = Arm("", f"{rate} a minute")
        yield Published("decision-time", arm, "decision_ms", ms, "v1, Table III")
    table = "v1, Table II; v2, Table 1"
    for name, error, predict_ms, jct_s, train_s in (
        ("paper’s recipe", 0.530, 2.16, 151.1, 60.0),
        ("S3, random weights", 4.52, 55.7, 366.7, 7_200.0),
    ):
        nine = Arm("mean of the nine classes", name)
        yield Published("predictors", Arm("2x", name), "mean_jct_s", jct_s, table)
        yield Published("predictor-errors", nine, "mean_relative_error", error, table)
        yield Published("predictor-errors", nine, "predict_ms", predict_ms, table)
        yield Published("predictor-errors", nine, "train_s", train_s, table)


def _vtc_numbers() -> Iterator[Published]:
    for experiment, table, rows in (
        ("vtc-real", "Table 2", _REAL),
        ("vtc-real-profiled", "Table 3", _REAL_PROFILED),
        ("vtc-overload-profiled", "Table 4", _OVERLOAD_PROFILED),
        ("vtc-prediction-2", "Table 5", _TWO_CLIENTS),
        ("vtc-prediction-8", "Table 6", _EIGHT_CLIENTS),
    ):
        for name, values in rows.items():
            for metric, value in zip(_TABLE_METRICS, values, strict=True):
                yield Published(experiment, Arm("", name), metric, value, f"VTC, {table}")
