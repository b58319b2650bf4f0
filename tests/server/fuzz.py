"""Fuzzes a real server by its own description: `make fuzz-http` runs it, apart from `make test`.

Schemathesis lives in an environment of its own and is given, for each role, the part of the
description that the role may ask. No answer may be a fault, undocumented, or of another shape.
What it printed is shown for a role in which it found something. The last line says what came of
it; equal seeds ask equal questions.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tenure.core.vocabulary import Role
from tests.server.processes import House

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "missing_required_header",
    "unsupported_method",
    "ignored_auth",
)
LONGEST_WAIT_S = 0.05
"""A claim may wait a minute; a fuzzer that does learns nothing from it."""


def description_for(role: Role, whole: dict[str, Any]) -> dict[str, Any]:
    """What of the description a role may ask."""
    part: dict[str, Any] = json.loads(json.dumps(whole))
    for path, operations in list(part["paths"].items()):
        for method, operation in list(operations.items()):
            if operation["security"] and role.value not in operation["x-tenure-roles"]:
                del operations[method]
        if not operations:
            del part["paths"][path]
    claim = part["components"]["schemas"]["ClaimMessage"]
    claim["properties"]["wait_s"]["maximum"] = LONGEST_WAIT_S
    return part


def asked_in(report: str) -> int:
    """The fuzzer's own count of what it asked; a run without one asked nothing."""
    counted = re.search(r"^\s*(\d+) generated, ", report, re.MULTILINE)
    return int(counted[1]) if counted else 0


def main(schemathesis: str, examples: str, seed: str) -> int:
    """0 if nothing was found."""
    program = Path(schemathesis).absolute()  # it runs elsewhere
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        house = House(f"sqlite:///{directory / 'fuzz.db'}", directory)
        tokens = {role: house.token(role, f"fuzz-{role}", "--max-polls", "10") for role in Role}
        server = house.serve()
        try:
            whole = server.ask("GET", "/openapi.json", token=tokens[Role.VIEWER]).json
            for role in Role:
                file = directory / f"{role}.json"
                file.write_text(json.dumps(description_for(role, whole)))
                command = [str(program), "run", str(file), "--url", server.address]
                command += ["--header", f"Authorization: Bearer {tokens[role]}"]
                command += ["--checks", ",".join(CHECKS), "--max-examples", examples]
                command += ["--phases", "coverage,fuzzing", "--continue-on-failure"]
                command += ["--seed", seed]
                ran = subprocess.run(
                    command, check=False, cwd=directory, capture_output=True, text=True
                )
                asked = asked_in(ran.stdout)
                if ran.returncode != 0 or not asked:
                    faults.append(f"what was answered to the role {role}")
                    sys.stdout.write(ran.stdout + ran.stderr)
                sys.stdout.write(f"asked as {role}: {asked} times\n")
            if server.stop() != 0:
                faults.append("how the server ended")
            if "Traceback" in server.log:
                faults.append("what the server wrote")
            sys.stderr.write(server.log)
        finally:
            house.close()
    verdict = f"FAILED: {'; '.join(faults)}" if faults else f"{len(Role)} roles, no fault"
    sys.stdout.write(f"fuzz-http, seed {seed}, {examples} examples an operation: {verdict}\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
