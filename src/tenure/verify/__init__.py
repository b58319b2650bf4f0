"""Verification: the invariants and projections of docs/spec as code over rows and log.

Used alike by `tenure verify`, the conformance kits and the tests. Reads only.
"""

from tenure.verify.acks import (
    Ack,
    AckOp,
    AckWriter,
    answer_line,
    flow_lines,
    flow_redrive_lines,
    grant_lines,
    read_acks,
    request_line,
)
from tenure.verify.invariants import INVARIANTS, Violation, check_across, check_record
from tenure.verify.run import RuleFinding, RuleState, VerifyReport, assert_holds, verify, verify_job

__all__ = [
    "INVARIANTS",
    "Ack",
    "AckOp",
    "AckWriter",
    "RuleFinding",
    "RuleState",
    "VerifyReport",
    "Violation",
    "answer_line",
    "assert_holds",
    "check_across",
    "check_record",
    "flow_lines",
    "flow_redrive_lines",
    "grant_lines",
    "read_acks",
    "request_line",
    "verify",
    "verify_job",
]
