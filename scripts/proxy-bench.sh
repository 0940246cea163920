#!/usr/bin/env bash
# What a gateway costs: streams and whole answers per second of an engine that costs nothing, asked
# directly, through haproxy, vllm-router and Tollgate, side by side on the same cores.
#
#   scripts/proxy-bench.sh TOLLGATE [VLLM_ROUTER] [ROUNDS] [SECONDS]
#
# Needs rustc, wrk and haproxy. Prints one line for each measurement, and the memory of each gateway
# after its load. Everything listens on 127.0.0.1, ports 18000 to 18005, and is ended when it is done.
set -euo pipefail
cd "$(dirname "$0")/.."
tollgate=$1 router=${2:-} rounds=${3:-3} seconds=${4:-5}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

rustc -O --edition 2024 -o "$work/engine" scripts/instant-engine.rs
for port in 18000 18001; do "$work/engine" "$port" & pids+=($!); done

cat > "$work/haproxy.cfg" <<CFG
global
  nbthread 2
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend in
  bind 127.0.0.1:18003
  default_backend engines
backend engines
  balance leastconn
  server a 127.0.0.1:18000
  server b 127.0.0.1:18001
CFG
haproxy -f "$work/haproxy.cfg" & pids+=($!); haproxy_pid=$!

cat > "$work/tollgate.yaml" <<CFG
listen: 127.0.0.1:18002
data_dir: $work/data
models:
  - name: stub
    engine: vllm
    replicas: [{ url: "http://127.0.0.1:18000" }, { url: "http://127.0.0.1:18001" }]
tenants:
  - name: bench
    keys: [{ env: BENCH_KEY }]
    limits: { rpm: 1000000, burst: 1000000, tpm: 10000000000, concurrency: 10000 }
CFG
# As the router is told to log errors only, so is Tollgate; the ledger has a line for each request.
TOLLGATE_LOG=error BENCH_KEY=sk-bench "$tollgate" serve --config "$work/tollgate.yaml" > "$work/tollgate.log" 2>&1 &
pids+=($!); tollgate_pid=$!

router_pid=
if [ -n "$router" ]; then
  "$router" --host 127.0.0.1 --port 18004 --prometheus-port 18005 --policy power_of_two \
    --worker-urls http://127.0.0.1:18000 http://127.0.0.1:18001 --log-level error \
    > "$work/router.log" 2>&1 &
  pids+=($!); router_pid=$!
fi

body='{"model":"stub","messages":[{"role":"user","content":"Say a few words about rivers."}],"max_tokens":32STREAM}'
for kind in stream whole; do
  [ "$kind" = stream ] && extra=',\"stream\":true' || extra=
  cat > "$work/$kind.lua" <<LUA
wrk.method = "POST"
wrk.body = "$(printf %s "$body" | sed 's/"/\\"/g' | sed "s/STREAM/${extra//\\/\\\\}/")"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer sk-bench"
LUA
done

ready() { for _ in $(seq 200); do curl -sf -o /dev/null "$1" && return; sleep 0.1; done; echo "not ready: $1" >&2; exit 1; }
ready http://127.0.0.1:18002/ready
[ -n "$router" ] && ready http://127.0.0.1:18004/health

# Requests a second, the errors among them, and what a request took; of all processes but wrk.
measure() {
  wrk -t 1 -c 32 -d "$3s" --latency -s "$work/$1.lua" "http://127.0.0.1:$2/v1/chat/completions" |
    awk '/Requests\/sec/ {rate=$2} /99%/ {p99=$2} /50%/ {p50=$2} /Non-2xx/ {bad=$NF} /Socket errors/ {bad=bad" "$0}
         END {printf "%.0f req/s  p50 %s  p99 %s  errors %s\n", rate, p50, p99, bad == "" ? 0 : bad}'
}
rss() { awk '/VmRSS/ {printf "%.0f MB\n", $2 / 1024}' "/proc/$1/status"; }

names=(direct haproxy tollgate) ports=(18000 18003 18002)
if [ -n "$router" ]; then names+=(vllm-router); ports+=(18004); fi
for kind in stream whole; do
  for round in $(seq "$rounds"); do
    for at in "${!names[@]}"; do
      printf '%-7s round %s  %-12s ' "$kind" "$round" "${names[$at]}"
      measure "$kind" "${ports[$at]}" "$seconds"
    done
  done
done
printf 'memory  tollgate %s, haproxy %s' "$(rss "$tollgate_pid")" "$(rss "$haproxy_pid")"
[ -n "$router_pid" ] && printf ', vllm-router %s' "$(rss "$router_pid")"
printf '\n'
