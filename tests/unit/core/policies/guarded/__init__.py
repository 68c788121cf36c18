"""Tests of the policy `justitia-guarded`."""
