"""``demo``: the whole system in a minute."""
