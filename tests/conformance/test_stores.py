"""The store kit on every store of ours. Semantics are tested there and nowhere else.

Which store a test runs on is said by the fixture `tenure_store_factory` in conftest.py.
"""

from tenure_conformance.store import all_tests

globals().update(all_tests())
