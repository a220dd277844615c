"""The cluster's rules: who is there (``membership``), and what the one sequence is (``replica`` and its rules)."""
