#!/usr/bin/env bash
# A Tenure worker in shell: bash 4, curl and jq, nothing of Tenure's but its protocol.
#
#   TENURE_URL=http://127.0.0.1:7717 TENURE_TOKEN=… ./worker.sh QUEUE HANDLERS
#
# HANDLERS is a directory of programs named after kinds: the payload on stdin, the result as JSON on
# stdout, 0 for success, 65 for a failure that no retry can mend, anything else for one that it may.
# What this does and why is in docs/spec/worker-protocol.md; the ids are its sentences.
set -u -m # -m: what runs in the background is a process group, and can be stopped as one
queue=$1 handlers=$2 worker=shell-$$-$RANDOM stopping='' handler='' asking=''
kinds=$(cd "$handlers" && printf '%s\n' * | jq -Rn '[inputs]')
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
printf 'Content-Type: application/json\nAuthorization: Bearer %s\n' "$TENURE_TOKEN" >"$tmp/head"
say() { echo "$(date -u +%FT%TZ) $*" >&2; }
halt() { [ -z "$1" ] || kill -KILL -- "-$1" 2>/dev/null || :; } # a whole process group
# await PID: how it ended. A signal ends a `wait` early; bash's own message about a killed process is dropped.
await() {
  local code
  while wait "$1"; code=$?; kill -0 "$1"; do :; done
  wait "$1"
  return "$code"
} 2>/dev/null
trap 'stopping=1; echo shutdown >>"$tmp/stop"; halt "${handler:-$asking}"' TERM INT

# ask NAME TRIES SECONDS <message: sends one message until it is answered. Only what got no answer
# is sent again, unchanged, and only so often. [WP4] [WP5] [WP6] Prints what was decided. [WP7]
ask() {
  local got=$tmp/$BASHPID tries=$2 pause=1 status after
  cat >"$got.body"
  while :; do
    status=$(curl -s -m "$3" -H @"$tmp/head" --data-binary @"$got.body" -D "$got.head" -o "$got" \
      -w '%{http_code}' "$TENURE_URL/v1/$1") || status=000
    case $status in
    2??) cat "$got" && return 0 ;;
    000 | 408 | 425 | 429 | 5??) ;; # no answer, or none that decides anything
    *) jq -c '{verdict: "REJECTED", cause: .code}' "$got" && return 0 ;;
    esac
    ((--tries > 0)) || return 1
    after=$(sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]*\).*/\1/p' "$got.head")
    sleep "$((RANDOM % pause + ${after:-0})).$RANDOM" && pause=$((pause < 5 ? pause * 2 : 5))
  done
}

# beat SENT TTL SECONDS HB_SEQ: keeps the lease, and stops the handler when that fails. [WP3]
beat() {
  local fence=$(($1 + $2 - 1)) next=$(($1 + $3)) seq=$4 sent answer
  lose() { say "$name: $1" && echo lost >>"$tmp/stop" && halt "$handler" && exit; }
  while sleep 0.3; do
    ((SECONDS < fence)) || lose "no renewal in time" # [WP12]
    ((SECONDS >= next)) || continue
    sent=$SECONDS next=$((SECONDS + $3)) seq=$((seq + 1))
    answer=$(jq -c --argjson n "$seq" '{leases: [. + {hb_seq: $n}]}' <<<"$lease" |
      ask heartbeat 1 $(((fence - sent + 1) / 2)) | jq -c '.verdicts[0]? // .')
    [ -n "$answer" ] || next=$((SECONDS + 1)) # another one soon, with a higher hb_seq
    case $(jq -r 'if .cancel then "cancel" else .verdict end' <<<"$answer") in
    OK) fence=$((sent + $(jq '(.lease_ttl_s // 0) | floor' <<<"$answer") - 1)) ;;
    cancel) echo cancel >>"$tmp/stop" && halt "$handler" ;; # [WP13]
    CANCELLED | REJECTED) lose "$answer" ;; # [WP8] [WP9]
    esac
  done
}

# One attempt, from its grant to the verdict that ends it.
attempt() {
  local grant=$1 lease name sent answer beating code what more='{}' result=$tmp/result
  lease=$(jq -c '{job_id, lease_id}' <<<"$grant") sent=$SECONDS
  name="job $(jq -r '"\(.job_id) (\(.kind)) attempt \(.attempt)"' <<<"$grant")"
  request() { jq -c --arg what "$1" '. + {request_id: (.lease_id + ":" + $what)}' <<<"$lease"; }
  answer=$(request start | ask start 6 15) || { say "$name: start was not answered" && return; }
  [ "$(jq -r .verdict <<<"$answer")" = OK ] || { say "$name: start: $answer" && return; } # [WP8] [WP9]
  jq -c .payload <<<"$grant" >"$tmp/payload"
  "$handlers/$(jq -r .kind <<<"$grant")" <"$tmp/payload" >"$result" 2>"$tmp/errors" &
  handler=$!
  beat "$sent" "$(jq '.lease_ttl_s | floor' <<<"$answer")" "$(jq '.heartbeat_s | floor' <<<"$grant")" \
    "$(jq .hb_seq <<<"$grant")" &
  beating=$!
  [ -z "$stopping" ] || halt "$handler" # asked to stop before the handler existed
  await "$handler"
  code=$? handler=''
  case $(paste -sd' ' "$tmp/stop")/$code in
  *lost*) halt "$beating" && await "$beating"; return ;; # this attempt has no say any more [WP8]
  ?*/*) what=release ;;
  /0) what=complete more='{result: $result[0]}' ;;
  /*) what=fail more='{error: {type: "exit \($code)", message: $errors, class: $class}}' ;; # [WP2]
  esac
  if [ "$what" = complete ] && ! jq -es 'length == 1' "$result" >/dev/null 2>&1; then
    what=fail more='{stage: "output", error: {class: "permanent", message: "no JSON result"}}'
  fi
  [ "$what" = complete ] || echo null >"$result"
  answer=$(request "$what" | jq -c --slurpfile result "$result" --argjson code "$code" \
    --arg class "$([ "$code" = 65 ] && echo permanent || echo unclassified)" \
    --arg errors "$(tail -c 2000 "$tmp/errors")" ". + $more" | ask "$what" 6 15) || answer='not answered'
  halt "$beating" && await "$beating" # [WP10]
  say "$name: $what: $answer"
}

for ((seq = 1; !stopping; )); do
  : >"$tmp/stop"
  jq -cn --arg worker "$worker" --arg queue "$queue" --argjson kinds "$kinds" --argjson seq "$seq" '{$worker,
    queues: [$queue], $kinds, claim_seq: $seq, request_id: "claim-\($seq)", wait_s: 20}' >"$tmp/claim"
  ask claim 20 40 <"$tmp/claim" >"$tmp/grants" &
  asking=$!
  seq=$((seq + 1)) # without an answer too: a new claim takes its place [WP20]
  await "$asking" || continue
  asking=''
  [ "$(jq -r .verdict "$tmp/grants")" = OK ] || { say "the claim: $(cat "$tmp/grants")" && exit 1; }
  while read -r grant; do attempt "$grant"; done < <(jq -c '.grants[]?' "$tmp/grants")
done
