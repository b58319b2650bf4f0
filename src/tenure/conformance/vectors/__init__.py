"""Vectors: `responses.json` has the response matrices as data, for implementations in any language.

It is generated from the core. A vector does not say why an answer is right: docs/spec does.
"""
