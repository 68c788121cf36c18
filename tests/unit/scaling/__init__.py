"""How many replicas are wanted, without Ray and without a clock."""
