"""Tests of the replica count without Ray and without a clock."""
