#!/bin/sh
# Kills a server 200 times (or as often as the argument says) under a load of streams, whole
# answers, clients that leave and retries, and checks each time what the ledger says.
set -eu
cd "$(dirname "$0")/.."
KILL_CYCLES="${1:-200}" cargo test -p tollgate --test end_to_end whatever_dies -- --nocapture
