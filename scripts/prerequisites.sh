#!/usr/bin/env bash
# Checks that everything a build needs is there, and installs what is missing where it may:
# as root or with passwordless sudo, on a system with apt-get. Elsewhere it says what to run.
# Usage: scripts/prerequisites.sh [--tests]   (--tests: also what the tests need)
set -euo pipefail
cd "$(dirname "$0")/.."

for_tests=no
case "${1:-}" in
    --tests) for_tests=yes ;;
    '') ;;
    *) echo "usage: scripts/prerequisites.sh [--tests]" >&2; exit 2 ;;
esac

say() { printf 'prerequisites: %s\n' "$*"; }
fail() { printf 'prerequisites: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# The bindings to llama.cpp are generated with libclang, which they load from these places.
has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null && return 0
    compgen -G '/usr/lib/*-linux-gnu/libclang*.so*' >/dev/null && return 0
    compgen -G '/usr/lib*/libclang*.so*' >/dev/null && return 0
    compgen -G '/Library/Developer/CommandLineTools/usr/lib/libclang.dylib' >/dev/null
}

# Debian keeps the server's programs out of the path.
has_postgres() {
    has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

missing=()
need() { # PACKAGE COMMAND...: the package is missing when the command fails.
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

find_missing() {
    missing=()
    need cmake has cmake
    need make has make
    need g++ eval 'has c++ || has g++ || has clang++'
    need clang has clang
    need libclang-dev has_libclang
    need git has git
    need python3 has python3
    need python3-pip python3 -m pip --version
    if [ "$for_tests" = yes ]; then
        need python3-venv python3 -c 'import ensurepip, venv'
        need postgresql has_postgres
    fi
}

install_missing() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! has sudo || ! sudo -n true 2>/dev/null; then
            fail "missing: ${missing[*]}; run: sudo apt-get install ${missing[*]}"
        fi
        as_root=(sudo -n)
    fi
    local log
    log=$(mktemp)
    local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y)
    step "reading the package lists" "$log" "${as_root[@]}" "${quiet[@]}" update
    step "installing ${missing[*]}" "$log" \
        "${as_root[@]}" "${quiet[@]}" install --no-install-recommends "${missing[@]}"
    rm -f "$log"
}

step() { # TEXT LOG COMMAND...: one line while it runs, and the log only when it fails.
    local text=$1 log=$2
    shift 2
    say "$text"
    if ! "$@" >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        fail "that failed (the log is above, and in $log)"
    fi
}

find_missing
if [ "${#missing[@]}" -gt 0 ]; then
    has apt-get || fail "missing (names of Debian packages): ${missing[*]}; install them and retry"
    install_missing
    find_missing
    [ "${#missing[@]}" -eq 0 ] || fail "still missing after the install: ${missing[*]}"
fi

# Rust comes from rustup: distributions carry it too old.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! has cargo; then
    fail "missing: Rust $wanted; run: curl -sSf https://sh.rustup.rs | sh -s -- -y"
fi
found=$(cargo --version | cut -d ' ' -f 2)
oldest=$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)
if [ "$oldest" != "$wanted" ]; then
    fail "Rust $found is too old, $wanted is needed; run: rustup update stable"
fi
