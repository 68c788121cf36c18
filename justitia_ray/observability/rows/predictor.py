"""Do predictions hold, and what do they rest on."""

from justitia_ray.observability.grafana import Panel, Query, Row, Threshold
from justitia_ray.observability.metrics import (
    LEARNED_APPLICATIONS_TOTAL,
    MODEL_VERSION,
    PREDICTION_RELATIVE_ERROR,
    PREDICTIONS_TOTAL,
    PREDICTOR_MISSED_TOTAL,
    SETTLEMENTS_TOTAL,
    TRAININGS_TOTAL,
)
from justitia_ray.observability.promql import greatest, per_second, quantile, rise, seen
from justitia_ray.observability.rows.quantiles import quantiles

PREDICTOR = Row(
    500,
    "Predictor",
    (
        Panel(
            501,
            "Relative error by class",
            "|predicted − true| / true of the KV token-time of applications that finished. Where it"
            " stays above 100 %, the order of that class is little better than chance.",
            quantiles(PREDICTION_RELATIVE_ERROR, "application_class", 0.5, 0.9),
            unit="percentunit",
        ),
        Panel(
            502,
            "Relative error by source, p50",
            "The same by what the estimate rested on. A model that looks at the input has to be"
            " better than the mean of its class.",
            (Query(quantile(0.5, PREDICTION_RELATIVE_ERROR, "source"), "{{source}}"),),
            unit="percentunit",
        ),
        Panel(
            503,
            "Predictions compared",
            "Applications that finished in the window and whose estimate could be compared.",
            (Query(seen(PREDICTION_RELATIVE_ERROR, "application_class"), "{{application_class}}"),),
        ),
        Panel(
            504,
            "Estimates by source",
            "Applications that were estimated each second, by what the estimate rests on: a model"
            " of their class, the mean of the class, like classes (neighbours), the request"
            " alone (prior).",
            (Query(per_second(PREDICTIONS_TOTAL, "source"), "{{source}}"),),
            unit="ops",
            stacked=True,
        ),
        Panel(
            505,
            "Estimates that the predictor missed",
            "Estimates each second that the predictor was asked for and did not give in time: the"
            " ingress took its own copy of the class means. All of them: the predictor is gone.",
            (Query(per_second(PREDICTOR_MISSED_TOTAL, "model"), "{{model}}"),),
            unit="ops",
            thresholds=(Threshold(1, "yellow"),),
        ),
        Panel(
            506,
            "Charges raised",
            "Charges that the scheduler raised each second: an application received more than it"
            " was charged (outran), or came to a stage at which more is expected (expected)."
            " Many of them are estimates that are too low.",
            (Query(per_second(SETTLEMENTS_TOTAL, "rule"), "{{rule}}"),),
            unit="ops",
        ),
        Panel(
            507,
            "Applications learned from",
            "Finished applications that the predictor took in each second.",
            (Query(per_second(LEARNED_APPLICATIONS_TOTAL, "model"), "{{model}}"),),
            unit="ops",
        ),
        Panel(
            508,
            "Trainings by result",
            "Trainings that ended in the window: the new model took over, was rejected because the"
            " one in service is better, or the training failed.",
            (Query(rise(TRAININGS_TOTAL, "result"), "{{result}}"),),
        ),
        Panel(
            509,
            "Model version by class",
            "Version of the model that answers for a class; 0 where the mean of the class does.",
            (
                Query(
                    greatest(MODEL_VERSION, "model", "application_class"),
                    "{{model}} {{application_class}}",
                ),
            ),
        ),
    ),
)
