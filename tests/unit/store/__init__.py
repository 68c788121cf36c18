"""The stores without Redis."""
