#!/usr/bin/env bash
# How promises of a first token fare through sockets: an emulated engine behind a gateway, asked for
# as much as 0.9 and 1.5 times what it can do, open-loop.
#
#   scripts/promises-through-sockets.sh TOLLGATE [SECONDS]
#
# Each load runs for SECONDS (100) on a gateway that knows nothing yet; with 100, some 5,000 are let
# in. Prints a row for each load, from the gateway's own trace of decisions. Everything listens on
# 127.0.0.1, ports 18300 to 18302, and is ended when it is done.
set -euo pipefail
tollgate=$1 seconds=${2:-100}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

wait_for() {
  for _ in $(seq 300); do curl -sf "$1" > /dev/null && return; sleep 0.1; done
  echo "nothing answers at $1" >&2
  return 1
}

# load URL RATE SECONDS OUT: Poisson arrivals; lengths like those of conversations, made smaller.
load() {
  "$tollgate" bench run --url "$1" --model stub --tokenizer bytes --duration "$3s" --warm-up 0s \
    --drain 20s --slip-max 1s --json "$4" --rows "$4.csv" \
    --tenant "all:rate=$2,prompt=250~0.7,output=130~0.66" > "$4.txt" 2>&1 || true
}

"$tollgate" bench engine --listen 127.0.0.1:18300 --slots 48 --step 4ms --per-sequence 20us \
  --prefill 120000 --kv-tokens 1048576 --waiting-max 100000 --seen 0 > "$work/engine.log" 2>&1 & pids+=($!)
wait_for http://127.0.0.1:18300/health

serve() {
  cat > "$work/$1.yaml" <<CFG
listen: 127.0.0.1:$1
admin: { listen: 127.0.0.1:18302 }
data_dir: $work/data-$1-$2
identity: { anonymous: allow, trust_tenant_header: true }
default_tenant: { class: standard }
models:
  - name: stub
    engine: vllm
    replicas: [{ url: "http://127.0.0.1:18300" }]
    queue: { max_requests: 100000, max_wait: 60s }
    window: { concurrency: 48 }
    slo: { ttft: 300ms, tpot: 100ms, alpha: 0.1 }
CFG
  "$tollgate" serve --config "$work/$1.yaml" > "$work/$1.log" 2>&1 & gateway=$!
  pids+=("$gateway")
  wait_for "http://127.0.0.1:$1/ready"
}

# What the engine completes in a second when it is never without work.
load http://127.0.0.1:18300/v1 150 15 "$work/full"
capacity=$(python3 - "$work/full.csv" <<'PY'
import csv, sys
ends = [int(row["end_us"]) for row in csv.DictReader(open(sys.argv[1])) if row["ending"] == "completed"]
print(f"{sum(5e6 <= end < 15e6 for end in ends) / 10:.1f}")
PY
)
echo "capacity $capacity requests/s, $(nproc) cores, $seconds s each"
echo
echo "| load | came | let in | bounds | kept % | p5 of 10 s % | longest run | bound/outcome | in time of those served % |"
echo "|---|---|---|---|---|---|---|---|---|"
for times in 0.9 1.5; do
  serve 18301 "$times"
  rate=$(python3 -c "print(round($capacity * $times, 1))")
  load http://127.0.0.1:18301/v1 "$rate" "$seconds" "$work/$times"
  status=$("$tollgate" admission status --admin 127.0.0.1:18302 2>&1 || true)
  kill "$gateway"
  wait "$gateway" 2>/dev/null || true
  python3 - "$work/data-18301-$times" "$times" <<'PY'
import csv, glob, sys
rows = []
for path in sorted(glob.glob(sys.argv[1] + "/admission/*.csv")):
    rows += csv.DictReader(open(path))
rows.sort(key=lambda row: (int(row["received_unix_us"]), int(row["request"])))
begin = int(rows[0]["received_unix_us"])
# The first seconds are of a gateway that knows nothing.
scored = [row for row in rows if int(row["received_unix_us"]) >= begin + 10_000_000]
admitted = [row for row in scored if row["verdict"] == "admit"]
due, kept, run, longest, widths, windows, good, served = 0, 0, 0, 0, [], {}, 0, 0
for row in admitted:
    if not row["bound_ttft_us"]:
        continue
    dropped = row["outcome"] == "slo_evicted"
    if not row["ttft_us"] and not dropped:
        continue
    hit = not dropped and int(row["ttft_us"]) <= int(row["bound_ttft_us"])
    due, kept = due + 1, kept + hit
    run = 0 if hit else run + 1
    longest = max(longest, run)
    window = windows.setdefault(int(row["received_unix_us"]) // 10_000_000, [0, 0])
    window[0] += 1
    window[1] += hit
    if not dropped:
        widths.append(int(row["bound_ttft_us"]) / max(1, int(row["ttft_us"])))
        served += 1
        good += int(row["ttft_us"]) <= int(row["limit_ttft_us"])
shares = sorted(100 * hit / n for n, hit in windows.values() if n >= 20)
widths.sort()
print(f"| {sys.argv[2]} | {len(scored)} | {len(admitted)} | {due} | {100 * kept / due:.1f} | "
      f"{shares[int(0.05 * len(shares))]:.1f} | {longest} | {widths[len(widths) // 2]:.3f} | "
      f"{100 * good / served:.1f} |")
PY
  echo "$status" > "$work/status-$times"
done
echo
cat "$work"/status-*
