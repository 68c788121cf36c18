"""Where release 0.1.0 has `Sample`: its ingresses send pickled samples until they are replaced."""

from justitia_ray.predictor.observation import Sample as Sample
