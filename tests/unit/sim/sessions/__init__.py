"""Tests of recorded sessions on modelled replicas."""
