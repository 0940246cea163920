#!/usr/bin/env bash
# What a gateway costs, side by side on the same cores: an engine asked directly, through a relay that
# looks at nothing, haproxy, Tollgate, vllm-router and smg.
#
#   scripts/proxy-bench.sh rates|first|paced TOLLGATE [VLLM_ROUTER [SMG]]
#
# rates: streams and whole answers a second of an engine that costs nothing, 32 connections, in ROUNDS
#        rounds (3) of SPAN seconds (4) each, and what the gateway's processes took of a CPU for one.
# first: the time to the first token at 200 requests a second, open loop, of the same engine, SPAN
#        seconds (10) each.
# paced: 512 streams of a token every 20 ms at once: the gaps between tokens, SPAN seconds (10) each.
#
# Prints a line of CSV for each measurement. Needs rustc, wrk, haproxy and curl. Everything listens on
# 127.0.0.1, ports 18000 to 18008, and is ended when it is done.
set -euo pipefail
cd "$(dirname "$0")/.."
phase=$1 tollgate=$2 router=${3:-} smg=${4:-}
rounds=${ROUNDS:-3} span=${SPAN:-}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT

start() { "$@" > "$work/log" 2>&1 & pids+=($!); last=$!; }
ready() {
  for _ in $(seq 300); do curl -sf -o /dev/null "$1" && return; sleep 0.1; done
  echo "not ready: $1" >&2; exit 1
}

case $phase in
  rates | first)
    rustc -O --edition 2024 -o "$work/engine" scripts/instant-engine.rs
    for port in 18000 18001; do start "$work/engine" "$port"; done ;;
  paced)
    for port in 18000 18001; do
      # KV for all streams to their end: where it is short, those past it wait, as they should.
      start "$tollgate" bench engine --listen "127.0.0.1:$port" --slots 600 --step 20ms \
        --per-sequence 0us --prefill 100000000 --kv-tokens 1000000
    done ;;
  *) echo "rates, first or paced, not $phase" >&2; exit 2 ;;
esac
rustc -O --edition 2024 -o "$work/relay" scripts/bare-relay.rs
start "$work/relay" 18008 18000 18001; relay_pid=$last

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
start haproxy -f "$work/haproxy.cfg"; haproxy_pid=$last

cat > "$work/tollgate.yaml" <<CFG
listen: 127.0.0.1:18002
data_dir: $work/data
models:
  - name: stub
    engine: vllm
    max_sequences: 1024
    replicas: [{ url: "http://127.0.0.1:18000" }, { url: "http://127.0.0.1:18001" }]
tenants:
  - name: bench
    keys: [{ env: BENCH_KEY }]
    limits: { rpm: 1000000, burst: 1000000, tpm: 10000000000, concurrency: 10000 }
CFG
# As the routers are told to log errors only, so is Tollgate; the ledger has a line for each request.
export TOLLGATE_LOG=error BENCH_KEY=sk-bench
start "$tollgate" serve --config "$work/tollgate.yaml"; tollgate_pid=$last
ready http://127.0.0.1:18002/ready
names=(direct haproxy tollgate bare-relay) ports=(18000 18003 18002 18008)
owners=(0 "$haproxy_pid" "$tollgate_pid" "$relay_pid")

if [ -n "$router" ]; then
  start "$router" --host 127.0.0.1 --port 18004 --prometheus-port 18005 --policy power_of_two \
    --worker-urls http://127.0.0.1:18000 http://127.0.0.1:18001 --log-level error
  names+=(vllm-router) ports+=(18004) owners+=("$last")
  ready http://127.0.0.1:18004/health
fi
if [ -n "$smg" ]; then
  start "$smg" launch --host 127.0.0.1 --port 18006 --prometheus-port 18007 --policy power_of_two \
    --worker-urls http://127.0.0.1:18000 http://127.0.0.1:18001 --log-level error \
    --history-backend none
  names+=(smg) ports+=(18006) owners+=("$last")
  ready http://127.0.0.1:18006/health
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

# A process and all that it started, in milliseconds of CPU, and in MB of memory.
family() {
  local of=$1 child
  [ "$of" = 0 ] && return
  echo "$of"
  for child in $(cat "/proc/$of/task/"*/children 2>/dev/null); do family "$child"; done
}
cpu() { for one in $(family "$1"); do cat "/proc/$one/stat"; done | awk '{sum += $14 + $15} END {print sum * 10 + 0}'; }
memory() {
  for one in $(family "$1"); do cat "/proc/$one/status"; done | awk '/VmRSS/ {sum += $2} END {printf "%.0f", sum / 1024}'
}
# The value below which so many per cent of the numbers on standard input are.
percentile() { sort -n | awk -v p="$1" '{all[NR] = $1} END {n = int(NR * p / 100 + 0.5); print all[n < 1 ? 1 : n]}'; }

rates() {
  echo 'kind,round,gateway,a_second,p50,p99,errors,cpu_us,memory_mb'
  for kind in stream whole; do
    for round in $(seq "$rounds"); do
      for at in "${!names[@]}"; do
        before=$(cpu "${owners[$at]}")
        wrk -t 1 -c 32 -d "${span:-4}s" --latency -s "$work/$kind.lua" \
          "http://127.0.0.1:${ports[$at]}/v1/chat/completions" > "$work/wrk"
        after=$(cpu "${owners[$at]}")
        awk -v head="$kind,$round,${names[$at]}" -v spent=$((after - before)) -v mb="$(memory "${owners[$at]}")" '
          /requests in/ {count = $1} /Requests\/sec/ {rate = $2} /99%/ {p99 = $2} /50%/ {p50 = $2}
          /Non-2xx/ {bad = $NF} /Socket errors/ {bad = bad + $4 + $6 + $8 + $10}
          END {printf "%s,%.0f,%s,%s,%d,%.1f,%s\n", head, rate, p50, p99, bad, spent * 1000 / count, mb}' "$work/wrk"
      done
    done
  done
}

# A load on one gateway; what came of it is in $work/rows.
load() {
  "$tollgate" bench run --url "http://127.0.0.1:$1/v1" --model stub --tokenizer bytes --key '*=BENCH_KEY' \
    --rows "$work/rows" "${@:2}" > "$work/report" 2>&1 || { cat "$work/report" >&2; }
}
# Times to first tokens, in microseconds from the intended send.
ttfts() {
  awk -F, 'NR == 1 {for (i = 1; i <= NF; i++) at[$i] = i; next}
    $at["first_token_us"] != "" {print $at["first_token_us"] - $at["intended_us"]}' "$work/rows"
}
# A column of the rows, by its name.
column() {
  awk -F, -v name="$1" 'NR == 1 {for (i = 1; i <= NF; i++) if ($i == name) at = i; next} $at != "" {print $at}' "$work/rows"
}

first() {
  echo 'gateway,round,requests,ttft_p50_ms,ttft_p99_ms'
  for round in $(seq "$rounds"); do
    for at in "${!names[@]}"; do
      load "${ports[$at]}" --tenant bench:rate=200,prompt=64,output=4 --duration "${span:-10}s" --warm-up 2s --drain 5s
      ms() { ttfts | percentile "$1" | awk '{printf "%.2f", $1 / 1000}'; }
      echo "${names[$at]},$round,$(ttfts | wc -l),$(ms 50),$(ms 99)"
    done
  done
}

paced() {
  echo 'gateway,round,streams,gaps,itl_p50_ms,itl_p99_ms,itl_max_ms,cpu_us_a_token'
  for round in $(seq "$rounds"); do
    for at in "${!names[@]}"; do
      before=$(cpu "${owners[$at]}")
      load "${ports[$at]}" --closed 512 --tenant bench:rate=100,prompt=64,output=$((${span:-10} * 45)) \
        --duration 1s --warm-up 0s --drain 60s
      after=$(cpu "${owners[$at]}")
      column gaps_us | tr ' ' '\n' | grep . > "$work/gaps" || true
      ms() { percentile "$1" < "$work/gaps" | awk '{printf "%.2f", $1 / 1000}'; }
      count=$(wc -l < "$work/gaps")
      echo "${names[$at]},$round,$(column gaps_us | wc -l),$count,$(ms 50),$(ms 99),$(ms 100),$(
        awk -v ms=$((after - before)) -v count="$count" 'BEGIN {printf "%.1f", ms * 1000 / (count + 1)}')"
    done
  done
}

"$phase"
