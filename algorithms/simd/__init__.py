"""Vector values for compiled kernels: types, arithmetic, functions, sums over rows. Knows no algorithm."""
