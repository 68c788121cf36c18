"""`metrics`: what Ray's exporter is given."""

from typing import Annotated

from pydantic import Field

from justitia_ray.config.section import Positive, Section

Label = Annotated[int, Field(gt=0, le=1_000)]


class MetricsSection(Section):
    """Which series there are, and how often they are brought up to date."""

    enabled: bool = True
    """They cost less CPU time than can be told from noise (`scripts/bench_serve --metrics`)."""
    interval_s: Positive = 2.0
    """Ray exports what it was given every 10 s; this adds no more than a fifth to that."""
    max_classes: Label = 15
    """Classes are made by callers; the rest share `other`. With as many tenants, the three
    histograms by class and tenant have at most 11,520 series a model, which one Prometheus holds
    a hundred times."""
    max_tenants: Label = 15
    """So for tenants."""
