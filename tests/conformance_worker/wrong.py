"""Wrong workers, one fault each: `python -m tests.conformance_worker.wrong NAME` runs one."""

import sys
import time

from tests.conformance_worker.worker import Attempt, Message, Worker


class Misspells(Worker):
    """A field that the protocol does not have."""

    def main(self) -> None:
        self.send("workers/w/alive", {"hots": "here"})
        super().main()


class Embellishes(Worker):
    """Reports a failure as a success."""

    def execute(self, attempt: Attempt) -> str:
        super().execute(attempt)
        return ""


class KeepsSilent(Worker):
    """Sends no heartbeat."""

    fences = False

    def ask(self, name: str, message: Message, tries: int | None = None) -> Message | None:
        return None if name == "heartbeat" else super().ask(name, message, tries)


class CountsNothing(Worker):
    """The same hb_seq again and again: nothing is renewed."""

    fences = False

    def ask(self, name: str, message: Message, tries: int | None = None) -> Message | None:
        if name == "heartbeat":
            message["leases"][0]["hb_seq"] = 1
        return super().ask(name, message, tries)


class RenamesRequests(Worker):
    """A new request_id for every try."""

    def again(self, message: Message, number: int) -> Message:
        return message | {"request_id": f"try-{number}"} if "lease_id" in message else message


class GivesUpAtOnce(Worker):
    """A new claim for every one that got no answer."""

    def ask(self, name: str, message: Message, tries: int | None = None) -> Message | None:
        return super().ask(name, message, 1 if name == "claim" else tries)


class NeverGivesUp(Worker):
    """Repeats for ever."""

    tries = 1_000_000

    def pause(self, number: int, after_s: float) -> None:
        time.sleep(0.05)


class CannotWait(Worker):
    """Takes no notice of Retry-After."""

    def pause(self, number: int, after_s: float) -> None:
        time.sleep(0.1)


class Reassures(Worker):
    """Reports again what was COMMITTED."""

    def after_report(self, what: str, message: Message, answer: Message) -> None:
        if answer.get("verdict") == "COMMITTED":
            self.ask(what, message)


class Insists(Worker):
    """Reports again what was CANCELLED."""

    def after_report(self, what: str, message: Message, answer: Message) -> None:
        if answer.get("verdict") == "CANCELLED":
            self.ask(what, message | {"request_id": "please"})


class BlamesTheJob(Worker):
    """Takes CANCELLED for a failure of the job, and reports it."""

    def after_loss(self, attempt: Attempt) -> None:
        self.report(attempt, "fail", {"error": {"message": "cancelled"}})


class Argues(Worker):
    """Reports again what was REJECTED."""

    def after_report(self, what: str, message: Message, answer: Message) -> None:
        if answer.get("verdict") == "REJECTED":
            self.ask(what, message | {"request_id": "please"})


class BeatsOn(Worker):
    """Its heartbeats do not end with the attempt."""

    fences = False

    def end(self, attempt: Attempt) -> None:
        pass


class RunsOn(Worker):
    """Goes on after CANCELLED, and only reports nothing."""

    def hear_heartbeat(self, attempt: Attempt, answer: Message | None, sent_at: float) -> None:
        super().hear_heartbeat(attempt, answer, sent_at)
        attempt.stop.clear()
        if attempt.lost:
            attempt.is_over.set()


class TrustsItsLease(Worker):
    """Does not stop when nothing renews its lease."""

    fences = False


class IsDeaf(Worker):
    """Ignores the request to stop."""

    def hear_heartbeat(self, attempt: Attempt, answer: Message | None, sent_at: float) -> None:
        if answer is not None and "verdicts" in answer:
            answer["verdicts"][0].pop("cancel")
        super().hear_heartbeat(attempt, answer, sent_at)


class RetriesByItself(Worker):
    """Runs a handler that failed a second time before it reports."""

    def execute(self, attempt: Attempt) -> str:
        return super().execute(attempt) and super().execute(attempt)


class RunsWhatComes(Worker):
    """Executes without a start, and so whatever arrives, however often; reports it once."""

    starts = False
    has_reported = False

    def report(self, attempt: Attempt, what: str, more: Message) -> None:
        if not self.has_reported:
            self.has_reported = True
            super().report(attempt, what, more)


class Guesses(Worker):
    """Takes a heartbeat that failed for CANCELLED."""

    def hear_heartbeat(self, attempt: Attempt, answer: Message | None, sent_at: float) -> None:
        if answer is None:
            attempt.lose()
        super().hear_heartbeat(attempt, answer, sent_at)


class Swallows(Worker):
    """Says nothing of what it heard."""

    def surface(self, what: str, answer: Message | None) -> None:
        pass


class LosesCount(Worker):
    """The same claim_seq for every claim."""

    def claim_message(self) -> Message:
        return super().claim_message() | {"claim_seq": 7}


if __name__ == "__main__":
    globals()[sys.argv[1]]().main()
