// A Tenure worker in JavaScript: Node 20, no packages, nothing of Tenure's but its protocol.
//
//   TENURE_URL=http://127.0.0.1:7717 TENURE_TOKEN=… node worker.mjs QUEUE HANDLERS.mjs
//
// HANDLERS.mjs exports an object of functions by kind: (payload, grant) => result. Each job runs in
// a thread of its own, so that a handler that never returns can be stopped and never delays a
// heartbeat. What it does and why is in docs/spec/worker-protocol.md; the ids are its sentences.
import { randomUUID } from "node:crypto";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

const say = (...words) => console.error(new Date().toISOString(), ...words);
const now = () => performance.now() / 1000;
const isTransport = (status) => [408, 425, 429].includes(status) || status >= 500;

// Sends one message until it is answered: only what got no answer is sent again, unchanged, and
// only so often. [WP4] [WP5] [WP6] Whatever the coordinator decides comes back. [WP7]
async function ask(path, message, { tries = 6, timeoutS = 15, signal } = {}) {
  const body = JSON.stringify(message);
  for (let n = 1; ; n++) {
    let waitS = Math.random() * Math.min(5, 0.2 * 2 ** n);
    try {
      const signals = [AbortSignal.timeout(Math.ceil(timeoutS * 1000)), ...(signal ? [signal] : [])];
      const response = await fetch(process.env.TENURE_URL + path, {
        method: "POST", body, signal: AbortSignal.any(signals),
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${process.env.TENURE_TOKEN}` },
      });
      const answer = await response.json();
      if (!isTransport(response.status)) return response.ok ? answer : { verdict: "REJECTED", cause: answer.code };
      waitS = Math.max(waitS, Number(response.headers.get("Retry-After")) || 0);
    } catch (error) {
      if (signal?.aborted) throw error;
    }
    if (n >= tries) throw new Error(`${path} was not answered`);
    await sleep(waitS * 1000, undefined, { signal });
  }
}

// One attempt, from its grant to the verdict that ends it.
async function attempt(grant, stopping) {
  const name = `job ${grant.job_id} (${grant.kind}) attempt ${grant.attempt}`;
  const lease = { job_id: grant.job_id, lease_id: grant.lease_id };
  const request = (what, more) => ({ ...lease, request_id: `${grant.lease_id}:${what}`, ...more });
  let hbSeq = grant.hb_seq, fenceAt, nextAt, thread, lost, asked;
  const stop = () => thread?.terminate();
  const lose = (why, cause = "") => { lost ??= why; say(name, why, cause); stop(); };
  const hear = (sentAt, answer) => {
    if (answer.verdict !== "OK") return lose(answer.verdict, answer.cause); // [WP8] [WP9]
    if (answer.settled) return;
    fenceAt = sentAt + 0.9 * answer.lease_ttl_s; // [WP12]
    if (answer.cancel) { asked = "cancel"; stop(); } // [WP13]
  };
  const sentAt = now();
  hear(sentAt, await ask("/v1/start", request("start")));
  if (lost) return;
  nextAt = sentAt + grant.heartbeat_s;
  const beating = setInterval(async () => { // [WP3]
    if (now() >= fenceAt) return lose("no renewal in time");
    if (now() < nextAt) return;
    const beatAt = now();
    nextAt = beatAt + grant.heartbeat_s;
    const beat = { leases: [{ ...lease, hb_seq: ++hbSeq }] };
    const answer = await ask("/v1/heartbeat", beat, { tries: 1, timeoutS: (fenceAt - beatAt) / 2 }).catch(() => null);
    if (!answer) nextAt = Math.min(nextAt, now() + 1); // another one soon, with a higher hb_seq
    else if (!lost) hear(beatAt, answer.verdicts?.[0] ?? answer);
  }, 100);
  const shutDown = () => { asked = "shutdown"; stop(); };
  stopping.addEventListener("abort", shutDown);
  try {
    const workerData = { file: resolve(process.argv[3]), grant };
    thread = new Worker(fileURLToPath(import.meta.url), { workerData });
    if (asked || lost || stopping.aborted) shutDown();
    const [what, report] = await new Promise((done) => {
      thread.on("message", (result) => done(["complete", { result }]));
      thread.on("error", (error) => done(["fail", { // [WP2]
        error: { class: error.permanent ? "permanent" : "unclassified", type: error.name, message: error.message },
      }]));
      thread.on("exit", () => done(["release", {}])); // stopped, or it exited without a result
    });
    if (lost) return; // this attempt has no say any more [WP8]
    const answer = await ask(`/v1/${what}`, request(what, report));
    say(name, what, answer.verdict, answer.disposition ?? answer.cause ?? "");
  } finally {
    clearInterval(beating); // [WP10]
    stopping.removeEventListener("abort", shutDown);
    stop(); // also what a handler left running behind its result
  }
}

async function main([queue, file]) {
  const { default: handlers } = await import(pathToFileURL(resolve(file)));
  const worker = `node-${process.pid}-${randomUUID().slice(0, 8)}`, stop = new AbortController();
  for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => stop.abort());
  for (let seq = 1; !stop.signal.aborted; ) {
    const claim = { worker, queues: [queue], kinds: Object.keys(handlers), claim_seq: seq, request_id: `claim-${seq}`, wait_s: 20 };
    const answer = await ask("/v1/claim", claim, { tries: 20, timeoutS: 40, signal: stop.signal }).catch(() => null);
    seq++; // without an answer too: a new claim takes its place [WP20]
    if (!answer) continue;
    if (answer.verdict !== "OK") { say("the claim was", answer.verdict, answer.cause); return 1; }
    for (const grant of answer.grants) await attempt(grant, stop.signal).catch((error) => say(error.message));
  }
  return 0;
}

if (isMainThread) process.exit(await main(process.argv.slice(2)));
const { default: handlers } = await import(pathToFileURL(workerData.file));
parentPort.postMessage((await handlers[workerData.grant.kind](workerData.grant.payload, workerData.grant)) ?? null);
