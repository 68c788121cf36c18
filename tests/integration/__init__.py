"""The serving path on a real Ray cluster and on a real Redis."""
