"""Tests of justitia_ray."""
