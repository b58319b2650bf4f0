"""The commands people type, run as they are typed, against a SQLite file."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Complete
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, RequestId
from tenure.core.kind_settings import KindChange
from tenure.core.policy import Policy
from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec
from tests.cli.harness import Run, enqueued, started


def test_an_enqueued_job_is_listed_and_shown_with_its_timeline(run: Run) -> None:
    job_id = enqueued(run, "mail", '{"to":"ada"}', "-q", "post", "--correlation-id", "order-7")

    listed = json.loads(run("jobs", "ls", "--json").stdout)
    shown = run("jobs", "show", job_id)
    events = json.loads(run("jobs", "events", job_id, "--json").stdout)["events"]

    assert [(job["id"], job["kind"], job["queue"], job["status"]) for job in listed] == [
        (job_id, "mail", "post", "queued")
    ]
    assert "order-7" in shown.stdout
    assert "enqueued" in shown.stdout
    assert [(event["seq"], event["type"], event["class"]) for event in events] == [
        (1, "enqueued", "transition")
    ]
    assert [(event["id"], event["name"], event["cause"]) for event in events] == [
        (f"{job_id}:1", "job_enqueued", "enqueue")
    ]


def test_ls_and_show_name_the_last_worker_of_a_finished_job(run: Run, serving: Coordinator) -> None:
    enqueued(run, "mail")
    held = started(serving)
    serving.execute(Complete(**held, request_id=RequestId("end"), result=b"1"))

    head, row = run("jobs", "ls").stdout.splitlines()
    facts = [line.split() for line in run("jobs", "show", held["job_id"]).stdout.splitlines()]

    assert ["worker", "w"] in facts
    assert (head.split()[-1], row.split()[-1]) == ("WORKER", "w")


def test_a_list_of_failed_jobs_has_their_errors(run: Run) -> None:
    job_id = enqueued(run, "mail")
    run("jobs", "dead-letter", job_id, "-m", "no such mailbox")

    every = run("jobs", "ls").stdout
    head, row = run("jobs", "ls", "-s", "failed", "-s", "dead_lettered").stdout.splitlines()

    assert "ERROR" not in every
    assert head.split()[-1] == "ERROR"
    assert row.endswith("  DeadLettered: no such mailbox")


@spec("S12")
def test_commands_accept_the_status_words_of_older_documents(run: Run) -> None:
    job_id = enqueued(run, "mail")

    queued = json.loads(run("jobs", "ls", "-s", "assigned", "-s", "queued", "--json").stdout)
    done = json.loads(run("jobs", "ls", "--status", "COMPLETED", "--json").stdout)
    claimed = run("jobs", "cancel", "--all", "--status", "assigned", "--yes")
    finished = run("jobs", "cancel", "--all", "--status", "COMPLETED", "--yes")
    wrong = run("jobs", "ls", "--status", "done")

    assert [job["id"] for job in queued] == [job_id]
    assert (done, claimed.stdout) == ([], "")
    assert (finished.exit_code, wrong.exit_code) == (2, 2)
    assert "a finished job cannot be cancelled" in finished.stderr
    assert "no such status" in wrong.stderr


def test_the_help_of_a_list_names_every_status(run: Run) -> None:
    shown = " ".join(run("jobs", "ls", "--help").stdout.split())

    assert ", ".join(JobStatus) in shown


def test_payloads_are_shown_only_when_asked_for(run: Run) -> None:
    job_id = enqueued(run, "mail", '{"password":"hunter2"}')

    assert "hunter2" not in run("jobs", "show", job_id).stdout
    assert "hunter2" not in run("jobs", "show", job_id, "--json").stdout
    assert "hunter2" not in run("jobs", "ls", "--json").stdout
    assert "hunter2" in run("jobs", "show", job_id, "--bodies").stdout


def test_a_second_enqueue_with_the_key_of_an_unfinished_job_finds_that_job(run: Run) -> None:
    first = enqueued(run, "mail", "--key", "a")
    second = run("enqueue", "mail", "--key", "a")

    assert second.stdout.strip() == first
    assert "which has not finished, has the key a" in second.stderr


@pytest.mark.parametrize("time", ["2030-12-01T08:00+01:00", "2030-12-01T07:00:00Z"])
def test_a_job_is_enqueued_for_a_time(run: Run, time: str) -> None:
    job_id = enqueued(run, "mail", "--run-at", time)

    job = json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]

    assert datetime.fromisoformat(job["run_at"]) == datetime(2030, 12, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--run-at", "2030-12-01T08:00"), "has no time zone; add Z for UTC"),
        (("--run-at", "tomorrow"), "'tomorrow' is not a time; write"),
        (("--run-at", "2030-12-01T08:00Z", "--delay", "5m"), "--run-at: given together with"),
    ],
)
def test_a_time_without_a_zone_or_with_a_delay_is_refused(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    refused = run("enqueue", "mail", *words)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr


@spec("EX1")
def test_a_job_that_expires_is_shown_with_its_time(run: Run) -> None:
    job_id = enqueued(run, "mail", "--expires", "10m")
    patient = enqueued(run, "mail")

    shown = json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]
    wrong = run("enqueue", "mail", "--expires", "0s")

    assert shown["start_by"] > shown["enqueued_at"]
    [line] = [li for li in run("jobs", "show", job_id).stdout.splitlines() if "expires" in li]
    assert line.split()[1] == shown["start_by"]
    assert "expires" not in run("jobs", "show", patient).stdout
    assert wrong.exit_code == 2
    assert "--expires: is 0" in wrong.stderr


@spec("D13", "D17")
def test_a_job_whose_key_stays_taken_says_until_when(run: Run) -> None:
    def key_line(job_id: str) -> list[str]:
        shown = run("jobs", "show", job_id).stdout.splitlines()
        return [line for line in shown if line.startswith("key taken until")]

    job_id = enqueued(run, "mail", "--key", "k", "--unique-for", "2h")
    [while_it_lives] = key_line(job_id)
    run("jobs", "cancel", job_id)
    [after_its_end] = key_line(job_id)
    again = enqueued(run, "mail", "--key", "k")
    other = enqueued(run, "mail", "--key", "other")

    assert while_it_lives.endswith(" 2 h after the job has ended")
    assert after_its_end.endswith("(in 2 h)")
    assert again == job_id
    assert key_line(other) == []
    for words, said in (
        (("--unique-for", "1h"), "--unique-for: given without a key"),
        (("--key", "k2", "--unique-for", "0s"), "--unique-for: is 0"),
        (("--key", "k2", "--unique-for", "400d"), "--unique-for: 400 days is outside"),
    ):
        wrong = run("enqueue", "mail", *words)
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert said in wrong.stderr


def test_cancelling_works_once_and_rerunning_makes_a_linked_job(run: Run) -> None:
    job_id = enqueued(run, "mail")

    assert run("jobs", "cancel", job_id, "--reason", "not wanted").exit_code == 0
    again = run("jobs", "cancel", job_id)
    rerun = run("jobs", "rerun", job_id, "--request-id", "r1").stdout.strip()
    repeated = run("jobs", "rerun", job_id, "--request-id", "r1").stdout.strip()

    assert again.exit_code == 0
    assert rerun == repeated != job_id
    assert json.loads(run("jobs", "show", rerun, "--json").stdout)["job"]["origin_id"] == job_id


def test_a_refused_command_says_why_and_exits_with_1(run: Run) -> None:
    job_id = enqueued(run, "mail")

    requeue = run("jobs", "requeue", job_id)
    rerun = run("jobs", "rerun", job_id)
    unknown = run("jobs", "show", "01890000-0000-7000-8000-000000000000")

    assert (requeue.exit_code, requeue.stderr) == (
        1,
        f"tenure: job {job_id}: it is queued already (not_held)\n",
    )
    assert (rerun.exit_code, "not_finished" in rerun.stderr) == (1, True)
    assert (unknown.exit_code, "there is no job" in unknown.stderr) == (1, True)
    assert run("jobs", "cancel", "01890000-0000-7000-8000-000000000000").stderr == unknown.stderr


@spec("N5")
def test_only_a_job_that_a_worker_has_is_stalled(run: Run) -> None:
    job_id = enqueued(run, "mail")

    refused = run("jobs", "stall", job_id)

    assert (refused.exit_code, refused.stderr) == (
        1,
        f"tenure: job {job_id}: it is queued: no worker has it (not_leased)\n",
    )


def test_requeue_refuses_a_finished_job(run: Run) -> None:
    dead, cancelled = enqueued(run, "mail"), enqueued(run, "mail")
    run("jobs", "dead-letter", dead)
    run("jobs", "cancel", cancelled)

    refused = [run("jobs", "requeue", job_id) for job_id in (dead, cancelled)]

    assert [result.exit_code for result in refused] == [1, 1]
    assert "it is dead_lettered already" in refused[0].stderr
    assert "it is cancelled already" in refused[1].stderr


def test_bodies_that_were_not_asked_for_are_left_out(run: Run) -> None:
    job_id = enqueued(run, "mail", '{"to":"ada"}')

    plain = json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]
    (listed,) = json.loads(run("jobs", "ls", "--json").stdout)
    full = json.loads(run("jobs", "show", job_id, "--json", "--bodies").stdout)["job"]

    bodies = {"payload", "result", "checkpoint"}
    assert bodies.isdisjoint(plain)
    assert bodies.isdisjoint(listed)
    assert bodies & full.keys() == {"payload"}


@spec("J11")
def test_a_rerun_job_is_the_newest(run: Run) -> None:
    first, last = enqueued(run, "mail"), enqueued(run, "mail")
    run("jobs", "cancel", first)

    rerun = run("jobs", "rerun", first).stdout.strip()

    ids = [job["id"] for job in json.loads(run("jobs", "ls", "--json").stdout)]
    assert ids == [rerun, last, first]


def test_enqueue_names_the_store_that_it_creates(run: Run, tmp_path: Path) -> None:
    made, used = run("enqueue", "mail"), run("enqueue", "mail")

    created, _ = made.stderr.splitlines()
    assert created == f"tenure: created sqlite:///{tmp_path / 'tenure.db'}"
    assert "created" not in used.stderr


@spec("F11")
def test_enqueue_warns_of_a_kind_that_no_worker_declared(run: Run, serving: Coordinator) -> None:
    undeclared = run("enqueue", "once")
    policy = Policy(max_attempts=1)
    change = KindChange(kind=Kind("once"), policy=policy)
    serving.store.settings.put_kind(DEFAULT_NAMESPACE, change, only_new=True)

    declared = run("enqueue", "once")

    assert undeclared.stderr.splitlines()[-1] == (
        "tenure: no worker has declared kind once: the job has the default policy"
        " (15 attempts, lease 1m, timeout 1h)"
    )
    assert (declared.exit_code, declared.stderr) == (0, "")
    shown = json.loads(run("jobs", "show", declared.stdout.strip(), "--json").stdout)["job"]
    assert shown["policy"]["max_attempts"] == 1
    assert "1 attempt, lease 1m, timeout 1h" in run("kinds", "ls").stdout


def test_a_job_that_an_operator_dead_letters_has_the_reason_given(run: Run) -> None:
    job_id = enqueued(run, "mail")

    result = run("jobs", "dead-letter", job_id, "--reason", "policy_violation", "-m", "spam")
    job = json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]

    assert result.exit_code == 0
    assert (job["status"], job["reason_code"], job["error"]["message"]) == (
        "dead_lettered",
        "policy_violation",
        "spam",
    )


def test_a_user_with_a_very_long_name_can_enqueue(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "a" * 129)

    enqueued(run, "mail")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("enqueue", "no spaces"), "KIND"),
        (("enqueue", "mail", '{"a":NaN}'), "payload"),
        (("enqueue", "mail", "{"), "payload"),
        (("enqueue", "mail", "--priority", "99999"), "--priority"),
        (("enqueue", "mail", "--delay", "400d"), "--delay"),
        (("enqueue", "mail", "--key", ""), "--key"),
        (("enqueue", "mail", "--id", "7"), "--id"),
        (("jobs", "show", "7"), "ID"),
        (("jobs", "ls", "--namespace", "\udcff"), "namespace"),
        (("jobs", "ls", "--queue", "\udcff"), "queue"),
        (("jobs", "ls", "--kind", "\udcff"), "kind"),
        (("jobs", "ls", "--correlation-id", "\udcff"), "correlation_id"),
        (("dlq", "ls", "--kind", "\udcff"), "kind"),
        (("queues", "ls", "--namespace", "\udcff"), "namespace"),
        (("queues", "pause", "a b"), "queue"),
    ],
)
def test_bad_input_names_the_field_and_exits_with_2(
    run: Run, words: tuple[str, ...], field: str
) -> None:
    enqueued(run, "mail")

    result = run(*words)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"tenure: {field}: ")
    assert result.stdout == ""


def test_a_wait_that_times_out_says_why_the_job_waits(run: Run) -> None:
    job_id = enqueued(run, "mail")

    result = run("jobs", "wait", job_id, "--timeout", "1ms")

    why = "no worker is alive that takes kind mail from queue default"
    assert (result.exit_code, result.stderr) == (
        1,
        f"tenure: job {job_id} is still queued: {why}\n"
        f"tenure: job {job_id} keeps running; `tenure jobs wait {job_id}` shows it\n",
    )


def test_queues_are_paused_limited_and_opened_again(run: Run) -> None:
    enqueued(run, "mail", "-q", "post")

    run("queues", "pause", "post")
    run("queues", "limit", "post", "3")
    (paused,) = json.loads(run("queues", "ls", "--json").stdout)
    run("queues", "resume", "post")
    run("queues", "limit", "post", "0")
    (opened,) = json.loads(run("queues", "ls", "--json").stdout)

    assert (paused["paused"], paused["limit"]) == (True, 3)
    assert (opened["paused"], opened["limit"]) == (False, None)


def test_queues_show_how_deep_they_are(run: Run) -> None:
    for words in ([], [], ["--delay", "1h"]):
        enqueued(run, "mail", "-q", "post", *words)
    run("queues", "pause", "empty", "--create")

    empty, post = json.loads(run("queues", "ls", "--json").stdout)
    head, *_, row = run("queues", "ls").stdout.splitlines()

    assert (post["ready"], post["delayed"], post["live"]) == (2, 1, 0)
    assert post["oldest_ready_s"] > 0
    assert (empty["ready"], empty["oldest_ready_s"]) == (0, None)
    assert head.split()[:6] == ["QUEUE", "STATE", "READY", "DELAYED", "WAITING", "RUNNING"]
    assert row.split()[:6] == ["post", "open", "2", "1", "0", "0"]


@pytest.mark.parametrize("words", [("pause",), ("resume",), ("limit", "3")])
def test_a_queue_without_jobs_is_created_only_with_create(run: Run, words: tuple[str, ...]) -> None:
    enqueued(run, "mail", "-q", "research")
    command, *more = words

    refused = run("queues", command, "reserch", *more)
    known = {each["name"] for each in json.loads(run("queues", "ls", "--json").stdout)}
    made = run("queues", command, "reserch", *more, "--create")
    again = run("queues", command, "reserch", *more)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        "tenure: queue: no job has used reserch so far; did you mean research? `create` makes the"
        " queue\n"
    )
    assert known == {"research"}
    assert (made.exit_code, again.exit_code, made.stderr) == (0, 0, "")


def test_control_characters_of_data_never_reach_the_terminal(run: Run) -> None:
    job_id = enqueued(run, "mail", "--correlation-id", "evil\u202egnp.exe")

    shown = run("jobs", "show", job_id).stdout

    assert "\u202e" not in shown
    assert "\\u202e" in shown


@spec("OB26")
def test_a_job_without_a_correlation_id_is_shown_and_found_under_its_own_id(run: Run) -> None:
    own = run("enqueue", "mail").stdout.strip()
    run("enqueue", "mail", "--correlation-id", "order-7")

    shown = json.loads(run("jobs", "show", own, "--json").stdout)
    found = json.loads(run("jobs", "ls", "--correlation-id", own, "--json").stdout)

    assert [(job["id"], job["correlation_id"]) for job in found] == [(own, own)]
    assert [each["correlation_id"] for each in (shown["job"], *shown["events"])] == [own, own]
    assert ["correlation", own] in [
        line.split() for line in run("jobs", "show", own).stdout.splitlines()
    ]


@pytest.mark.parametrize("words", ["jobs show ID", "dlq ls"])
@pytest.mark.parametrize(("form", "escaped"), [("", "a\\x1b[2Jb"), (" --json", "a\\u001b[2Jb")])
def test_escape_sequences_of_data_are_shown_and_not_obeyed(
    run: Run, words: str, form: str, escaped: str
) -> None:
    job_id = enqueued(run, "mail")
    run("jobs", "dead-letter", job_id, "--reason", "policy_violation", "-m", "a\x1b[2Jb\x07\x9bc")

    shown = run(*(words + form).replace("ID", job_id).split())

    assert escaped in shown.stdout
    assert all(each.isprintable() or each == "\n" for each in shown.output)


def test_a_list_creates_no_store(run: Run, tmp_path: Path) -> None:
    result = run("jobs", "ls")

    assert (result.exit_code, "there is no store in" in result.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_store_is_one_clear_line(run: Run) -> None:
    result = run("jobs", "ls", "--url", "redis://:hunter2@host")

    assert result.exit_code == 2
    assert "hunter2" not in result.stderr
    assert result.stderr.count("\n") == 1


@spec("J12")
def test_jobs_are_searched_by_error_worker_and_time(run: Run) -> None:
    job_id = enqueued(run, "mail", "--meta", "tenant=acme", "--meta", "request=r=17")
    run("jobs", "dead-letter", job_id, "-m", "no such mailbox")
    enqueued(run, "mail")

    def listed(*options: str) -> list[str]:
        return [job["id"] for job in json.loads(run("jobs", "ls", "--json", *options).stdout)]

    assert listed("--error", "SUCH mail") == listed("--finished-since", "1h") == [job_id]
    assert listed("--meta", "tenant=acme") == listed("--meta", "request=r=17") == [job_id]
    assert listed("--worker", "nobody") == listed("--until", "1h") == []
    assert "request=r=17, tenant=acme" in run("jobs", "show", job_id).stdout
    refused = [run("enqueue", "mail", "--meta", wrong).stderr for wrong in ("a", "a b=c")]
    assert "--meta: 'a' is not KEY=VALUE" in refused[0]
    assert "--meta: 'a b' is not a key of meta" in refused[1]
    assert len(listed("--since", "1h")) == 2
