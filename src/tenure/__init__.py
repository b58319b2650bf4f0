"""Tenure: a durable job queue and orchestrator whose history you can check.

This module holds the public names and nothing else.
"""
