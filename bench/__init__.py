"""Benchmarks: how fast Tenure is beside others, measured in one run. See README.md."""
