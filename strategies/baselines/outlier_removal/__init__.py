"""Outlier removal in the l2 norm: Asi, Liu 2024; Lowy, Liu, Asi 2024; deterministic weights and test: ours."""
