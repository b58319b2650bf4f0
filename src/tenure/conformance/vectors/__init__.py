"""Vectors: the response matrices as data, for implementations in any language.

`responses.json` is generated from the core by `generate.py`; `situations.py` says how each
situation of docs/spec/responses.md comes about. A vector never says why: the spec does.
"""
