#!/usr/bin/env bash
# A quiet tenant beside a flood, at one window after the other and at other gateways, in one run:
# what each gives in tokens a second, and what the quiet tenant waits for it.
#
#   scripts/flood-frontier.sh TOLLGATE OUT [KVWARDEN] [ROUNDS] [SCENARIO]
#
# Writes OUT.json, OUT.csv and OUT.svg. Each gateway runs for the whole time and is idle but for its
# turn. Everything listens on 127.0.0.1, ports 18200 to 18230, and is ended when it is done.
set -euo pipefail
tollgate=$1 out=$2 kvwarden=${3:-} rounds=${4:-3} scenario=${5:-flood}
work=$(mktemp -d)
pids=() urls=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# serve PORT NAME LINES: a Tollgate on an emulated engine of 64 sequences.
serve() {
  cat > "$work/$1.yaml" <<CFG
listen: 127.0.0.1:$1
data_dir: $work/data-$1
identity: { anonymous: allow, trust_tenant_header: true }
default_tenant: { class: standard }
models:
  - name: stub
    engine: fake
    max_sequences: 64
    step_tokens: 2048
    queue: { max_requests: 100000, max_wait: 120s }
    fake: { step: 10ms, per_sequence: 150us, prefill_tokens_per_second: 12000, context: 8192, kv_tokens: 262144 }
$3
CFG
  "$tollgate" serve --config "$work/$1.yaml" > "$work/$1.log" 2>&1 & pids+=($!)
  wait_for "http://127.0.0.1:$1/ready"
  [ -z "$2" ] || urls+=(--url "$2=http://127.0.0.1:$1/v1")
}

wait_for() {
  for _ in $(seq 300); do curl -sf "$1" > /dev/null && return; sleep 0.1; done
  echo "nothing answers at $1" >&2
  return 1
}

window() { serve "$1" "Tollgate:$2" "    window: { concurrency: $2, headroom: $3 }"; }
# Four are kept free, so that two newcomers at once find a place.
window 18200 16 4
window 18201 28 4
window 18202 44 4
window 18203 56 4
serve 18204 Tollgate:auto ""
serve 18205 fifo "fairness: { policy: fifo }"

if [ -n "$kvwarden" ]; then
  serve 18206 "" "fairness: { policy: fifo }"
  for point in 18211:300:10 18212:600:10 18213:900:20; do
    IFS=: read -r port rpm burst <<< "$point"
    cat > "$work/$port.yaml" <<CFG
host: 127.0.0.1
port: $port
max_concurrent: 256
admission_queue_size: 2048
tenant_defaults: {max_concurrent_requests: 512, rate_limit_rpm: $rpm, rate_limit_burst: $burst, scheduling: drr}
models: [{model_id: stub, engine: vllm, max_model_len: 4096, port: 18206}]
CFG
    (cd "$work" && KVWARDEN_DEV_SKIP_ENGINE_LAUNCH=1 KVWARDEN_TELEMETRY=0 exec "$kvwarden" serve --config "$work/$port.yaml") > "$work/$port.log" 2>&1 & pids+=($!)
    wait_for "http://127.0.0.1:$port/health"
    urls+=(--url "kvwarden:${rpm}rpm=http://127.0.0.1:$port/v1")
  done
fi

"$tollgate" bench flood --scenario "$scenario" --model stub --tokenizer bytes --drain 2s \
  --rounds "$rounds" --json "$out.json" --plot "$out.svg" "${urls[@]}"
python3 - "$out" <<'PY'
import csv, json, sys
out = sys.argv[1]
arms = json.load(open(out + ".json"))["arms"]
with open(out + ".csv", "w", newline="") as file:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["gateway", "TTFT_p50_ms", "p90_ms", "p99_ms", "quiet_requests", "quiet_refused",
                   "tokens/s_in_all", "others_refused", "of"])
    for arm in arms:
        if arm["invalid"]:
            sys.exit(f"{arm['name']}: {arm['invalid']}")
        wait = arm["quiet_ttft"]
        rows.writerow([arm["name"], *(round(wait[q]) for q in ("p50_ms", "p90_ms", "p99_ms")),
                       *arm["quiet_requests"], round(arm["tokens_per_s"]),
                       arm["other_requests"][1], arm["other_requests"][0]])
PY
