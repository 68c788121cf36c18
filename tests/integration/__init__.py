"""Integration tests of the serving path on a real Ray cluster and a real Redis."""
