#!/bin/sh
# Kills a server 200 times (or as often as the argument says) under a load of streams, whole
# answers, clients that leave and retries, and checks each time what ledger, store, budgets and
# limits say: with the engine in the process, and in front of an emulated engine that counts too.
set -eu
cd "$(dirname "$0")/.."
KILL_CYCLES="${1:-200}" cargo test --release -p tollgate --test end_to_end whatever_dies -- --nocapture
