"""The experiments in the order of the page; edit this list to add or remove one."""

from justitia_ray.lab.report.experiment import Experiment
from justitia_ray.lab.report.experiments import (
    autoscaling,
    foretold,
    justitia,
    orders,
    outlook,
    predictors,
    recipes,
    rivals,
    sessions,
    variants,
    vtc,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    justitia.DENSITY,
    justitia.FAIR_RATIO,
    justitia.TWO_DM,
    justitia.ELEPHANT,
    justitia.PREDICTION_ERROR,
    predictors.PREDICTORS,
    predictors.PREDICTOR_ERRORS,
    recipes.RECIPES,
    justitia.COST_MODEL,
    justitia.DECISION_TIME,
    *orders.ORDERS,
    foretold.FORETOLD,
    outlook.OUTLOOK,
    autoscaling.AUTOSCALING,
    sessions.SESSIONS,
    rivals.NINE_CLASS_RIVALS,
    variants.CLOCK,
    variants.BACKFILL,
    variants.ADMISSION,
    variants.OFFERED_LOAD,
    variants.REPLICAS,
    variants.ALL_POLICIES,
    variants.TENANTS,
    *vtc.VTC_FIGURES,
    *vtc.VTC_TABLES,
)
