"""A worker in plain Python that keeps every obligation, made so that each can be taken away.

Run as a program it is the right worker; `wrong.py` has the others. Nothing of Tenure's is used.
"""

import json
import os
import random
import sys
import threading
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TRANSPORT = {408, 425, 429}
Message = dict[str, Any]


class Worker:
    """Claims one job after the other. What a wrong worker does differently is a method here."""

    tries = 6
    starts = True
    fences = True

    def __init__(self) -> None:
        self.name = f"python-{os.getpid()}"
        self.claim_seq = 0

    def main(self) -> None:
        while True:
            self.claim_seq += 1
            answer = self.ask("claim", self.claim_message())
            if answer is None:
                continue  # a new claim takes its place
            if answer["verdict"] != "OK":
                self.surface("claim", answer)
                sys.exit(1)
            for grant in answer["grants"]:
                self.attempt(Attempt(self, grant))

    def claim_message(self) -> Message:
        seq = self.claim_seq
        return {
            "worker": self.name,
            "queues": ["conform"],
            "claim_seq": seq,
            "request_id": f"c{seq}",
            "wait_s": 2,
        }

    # --- the wire

    def ask(self, name: str, message: Message, tries: int | None = None) -> Message | None:
        for number in range(1, (tries or self.tries) + 1):
            status, answer, after_s = self.send(name, self.again(message, number))
            if answer is not None and status not in TRANSPORT and status < 500:
                return answer
            self.pause(number, after_s)
        return None

    def send(self, name: str, message: Message) -> tuple[int, Message | None, float]:
        request = Request(  # noqa: S310 - the address of the kit
            f"{os.environ['TENURE_URL']}/v1/{name}",
            json.dumps(message).encode(),
            {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ['TENURE_TOKEN']}",
            },
        )
        try:
            with urlopen(request, timeout=20) as answer:  # noqa: S310 - the kit again
                return 200, json.load(answer), 0.0
        except HTTPError as refused:
            with refused:
                after_s = float(refused.headers.get("Retry-After") or 0)
                return refused.code, json.load(refused), after_s
        except OSError:
            return 0, None, 0.0

    def again(self, message: Message, number: int) -> Message:
        """What is sent at the n-th try."""
        return message

    def pause(self, number: int, after_s: float) -> None:
        time.sleep(max(after_s, random.random() * 0.2 * 2**number))

    # --- an attempt

    def attempt(self, attempt: "Attempt") -> None:
        if self.starts and not attempt.started():
            return
        beating = threading.Thread(target=attempt.beat, daemon=True)
        beating.start()
        error = self.execute(attempt)
        if attempt.lost:
            self.after_loss(attempt)
        elif attempt.asked:
            self.report(attempt, "release", {})
        elif error:
            self.report(attempt, "fail", {"error": {"message": error}})
        else:
            self.report(attempt, "complete", {"result": None})
        self.end(attempt)

    def execute(self, attempt: "Attempt") -> str:
        return attempt.run()

    def report(self, attempt: "Attempt", what: str, more: Message) -> None:
        message = attempt.request(what) | more
        answer = self.ask(what, message)
        self.surface(what, answer)
        self.after_report(what, message, answer or {})

    def after_report(self, what: str, message: Message, answer: Message) -> None:
        """The attempt is over."""

    def after_loss(self, attempt: "Attempt") -> None:
        """The attempt has no say any more."""

    def end(self, attempt: "Attempt") -> None:
        attempt.is_over.set()

    def hear_heartbeat(self, attempt: "Attempt", answer: Message | None, sent_at: float) -> None:
        if answer is None:
            return
        answer = answer["verdicts"][0] if "verdicts" in answer else answer
        if answer["verdict"] != "OK":
            self.surface("heartbeat", answer)
            attempt.lose()
        elif answer.get("lease_ttl_s"):
            attempt.ends_at = sent_at + answer["lease_ttl_s"]
        if answer.get("cancel"):
            attempt.ask_to_stop()

    def surface(self, what: str, answer: Message | None) -> None:
        sys.stderr.write(f"{what} was {answer and answer['verdict']}\n")


class Attempt:
    """One grant, and how far it is."""

    def __init__(self, worker: Worker, grant: Message) -> None:
        self.worker = worker
        self.grant = grant
        self.hb_seq = 0
        self.lost = False
        self.asked = False
        self.stop = threading.Event()
        self.is_over = threading.Event()
        self.ends_at = time.monotonic() + grant["lease_ttl_s"]

    def request(self, what: str) -> Message:
        lease = {key: self.grant[key] for key in ("job_id", "lease_id")}
        return lease | {"request_id": f"{what}-1"}

    def started(self) -> bool:
        sent_at = time.monotonic()
        answer = self.worker.ask("start", self.request("start"))
        if answer is None or answer["verdict"] != "OK":
            self.worker.surface("start", answer)
            return False
        self.ends_at = sent_at + answer["lease_ttl_s"]
        return True

    def run(self) -> str:
        """The handler; an error, or nothing."""
        payload = self.grant["payload"]
        for _ in range(payload["effects"]):
            if self.stop.is_set():
                return "stopped"
            urlopen(Request(payload["effect_url"], method="POST")).close()  # noqa: S310 - the kit
            self.stop.wait(payload["every_s"])
        return "" if payload["outcome"] == "succeed" else "told to fail"

    def lose(self) -> None:
        self.lost = True
        self.stop.set()

    def ask_to_stop(self) -> None:
        self.asked = True
        self.stop.set()

    def beat(self) -> None:
        beat_at = time.monotonic() + self.grant["heartbeat_s"]
        while not self.is_over.wait(0.1):
            now = time.monotonic()
            if self.worker.fences and now > self.ends_at - 0.5:
                self.lose()
            elif now >= beat_at:
                self.hb_seq += 1
                answer = self.send_beat()
                self.worker.hear_heartbeat(self, answer, now)
                beat_at = now + (self.grant["heartbeat_s"] if answer else 1.0)

    def send_beat(self) -> Message | None:
        lease = {key: self.grant[key] for key in ("job_id", "lease_id")}
        beat = {"leases": [lease | {"hb_seq": self.hb_seq}]}
        return self.worker.ask("heartbeat", beat, tries=1)


if __name__ == "__main__":
    Worker().main()
