"""Virtual time, and the accounts that are charged and served by it."""
