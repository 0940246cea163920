#!/usr/bin/env bash
# Whether fitting trees disturbs streams: an emulated engine with paced answers behind a gateway that
# promises a first token, with no trees, with trees fitted as usual, and with trees fitted each second.
#
#   scripts/refits-beside-streams.sh TOLLGATE [SECONDS [ROUNDS]]
#
# Each arm runs for SECONDS (20) in each of ROUNDS (2) rounds, one after the other. Asked for is a fifth
# more than the engine can do, so that most wait and there is enough to learn from. Prints the gaps
# between tokens that clients saw. Everything listens on 127.0.0.1, ports 18310 and 18311.
set -euo pipefail
tollgate=$1 seconds=${2:-20} rounds=${3:-2}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

wait_for() {
  for _ in $(seq 300); do curl -sf "$1" > /dev/null && return; sleep 0.1; done
  echo "nothing answers at $1" >&2
  return 1
}

"$tollgate" bench engine --listen 127.0.0.1:18310 --slots 32 --step 8ms --per-sequence 10us \
  --prefill 1000000 --kv-tokens 1048576 --waiting-max 100000 --seen 0 > "$work/engine.log" 2>&1 & pids+=($!)
wait_for http://127.0.0.1:18310/health

arm() {
  local name=$1 slo=$2 round=$3
  cat > "$work/$name.yaml" <<CFG
listen: 127.0.0.1:18311
data_dir: $work/data-$name-$round
identity: { anonymous: allow, trust_tenant_header: true }
default_tenant: { class: standard }
admission: { trace: off, state: off }
models:
  - name: stub
    engine: vllm
    replicas: [{ url: "http://127.0.0.1:18310" }]
    queue: { max_requests: 100000, max_wait: 60s }
    window: { concurrency: 32 }
    slo: { ttft: 500ms, $slo }
CFG
  TOLLGATE_LOG=warn,tollgate_server::promises=debug "$tollgate" serve --config "$work/$name.yaml" \
    > "$work/$name-$round.log" 2>&1 & gateway=$!
  pids+=("$gateway")
  wait_for http://127.0.0.1:18311/ready
  "$tollgate" bench run --url http://127.0.0.1:18311/v1 --model stub --tokenizer bytes \
    --duration "${seconds}s" --warm-up 0s --drain 5s --slip-max 1s --rows "$work/$name-$round.csv" \
    --tenant "short:rate=560,prompt=64,output=8" --tenant "long:rate=1,prompt=64,output=300" \
    > "$work/$name-$round.txt" 2>&1 || true
  kill "$gateway"
  wait "$gateway" 2>/dev/null || true
}

for round in $(seq "$rounds"); do
  arm none "model: structural" "$round"
  arm usual "refit: 20s" "$round"
  arm often "refit: 1s" "$round"
done

python3 - "$work" <<'PY'
import csv, glob, sys
print("| trees | fits | gaps | p50 ms | p99 ms | p99.9 ms | worst ms |")
print("|---|---|---|---|---|---|---|")
for name, told in [("none", "none"), ("usual", "fitted every 20 s"), ("often", "fitted every second")]:
    gaps, fits = [], 0
    for path in glob.glob(f"{sys.argv[1]}/{name}-*.csv"):
        for row in csv.DictReader(open(path)):
            # The first seconds are of a gateway that knows nothing.
            if row["ending"] == "completed" and int(row["intended_us"]) > 3_000_000:
                gaps += map(int, row["gaps_us"].split())
    for path in glob.glob(f"{sys.argv[1]}/{name}-*.log"):
        fits += sum("a model of latency was fitted" in line for line in open(path))
    gaps.sort()
    at = lambda part: gaps[min(len(gaps) - 1, int(len(gaps) * part))] / 1e3
    print(f"| {told} | {fits} | {len(gaps)} | {at(.5):.2f} | {at(.99):.2f} | {at(.999):.2f} | {at(1):.1f} |")
PY
