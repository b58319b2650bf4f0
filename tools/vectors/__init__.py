"""The response matrices as data: `generate` prints tenure/contract/responses.json.

`situations` says how each situation of docs/spec/responses.md comes about, `exchanges` what a
worker asks in it.
"""
