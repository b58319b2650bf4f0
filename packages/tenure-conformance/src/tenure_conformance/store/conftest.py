"""The kit's fixture for runs by `--pyargs tenure_conformance.store`."""

from tenure_conformance.harness import kit

__all__ = ["kit"]
