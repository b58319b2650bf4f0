"""The kit's fixture for runs by `--pyargs tenure.conformance.store`."""

from tenure.conformance.harness import kit

__all__ = ["kit"]
