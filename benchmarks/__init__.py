"""Benchmarks that guard the speed of this package. They are not installed: `python -m benchmarks NAME` runs them."""
