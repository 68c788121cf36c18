"""The rules of `justitia doctor`, on services made up for them."""
