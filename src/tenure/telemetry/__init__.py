"""Observing: numbers, traces and log lines about what a process does. Decides nothing."""
