"""Tests of `justitia_ray.recognition`."""
