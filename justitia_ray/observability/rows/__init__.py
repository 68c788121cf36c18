"""What the dashboard shows: a file for each row, in the order of an operator's questions.

The numbers of panels are part of links: a new panel takes the next free one of its row, and the
number of one that is gone stays unused.
"""

from justitia_ray.observability.rows.fairness import FAIRNESS
from justitia_ray.observability.rows.overview import OVERVIEW
from justitia_ray.observability.rows.predictor import PREDICTOR
from justitia_ray.observability.rows.replicas import REPLICAS
from justitia_ray.observability.rows.scheduler import SCHEDULER

ROWS = (OVERVIEW, FAIRNESS, REPLICAS, SCHEDULER, PREDICTOR)
