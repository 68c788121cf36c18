"""The experiments, in the order of the page; to drop or add one, change this list."""

from justitia_ray.report.experiment import Experiment
from justitia_ray.report.experiments.all_policies import ALL_POLICIES
from justitia_ray.report.experiments.cost_model import COST_MODEL
from justitia_ray.report.experiments.decision_time import DECISION_TIME
from justitia_ray.report.experiments.density import DENSITY
from justitia_ray.report.experiments.elephant import ELEPHANT
from justitia_ray.report.experiments.fair_ratio import FAIR_RATIO
from justitia_ray.report.experiments.offered_load import OFFERED_LOAD
from justitia_ray.report.experiments.prediction_error import PREDICTION_ERROR
from justitia_ray.report.experiments.predictors import PREDICTOR_ERRORS, PREDICTORS
from justitia_ray.report.experiments.replicas import REPLICAS
from justitia_ray.report.experiments.tenants import TENANTS
from justitia_ray.report.experiments.two_dm import TWO_DM
from justitia_ray.report.experiments.variants import ADMISSION, BACKFILL, CLOCK, SHARE_CAP
from justitia_ray.report.experiments.vtc_figures import VTC_FIGURES
from justitia_ray.report.experiments.vtc_tables import VTC_TABLES

EXPERIMENTS: tuple[Experiment, ...] = (
    DENSITY,
    FAIR_RATIO,
    TWO_DM,
    ELEPHANT,
    PREDICTION_ERROR,
    PREDICTORS,
    PREDICTOR_ERRORS,
    COST_MODEL,
    DECISION_TIME,
    CLOCK,
    SHARE_CAP,
    BACKFILL,
    ADMISSION,
    OFFERED_LOAD,
    REPLICAS,
    ALL_POLICIES,
    TENANTS,
    *VTC_FIGURES,
    *VTC_TABLES,
)
