#!/usr/bin/env bash
# Everything CI runs. Each job prints its time; the first one that fails ends the run with its name.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/venv
summary=

fail() {
    echo "test.sh: $*" >&2
    exit 1
}

# job NAME COMMAND...
job() {
    local name=$1 start=$SECONDS status=0
    shift
    echo "== $name"
    # In a subshell of its own, so that `set -e` holds inside functions too.
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    local line
    line=$(printf '%-12s %5d s' "$name" $((SECONDS - start)))
    summary+=$line$'\n'
    echo "== $line"
    if [ "$status" -ne 0 ]; then
        printf '\n%s' "$summary"
        fail "job '$name' failed (exit code $status)"
    fi
}

# On Debian as root (a bare CI machine) what is missing is installed; elsewhere it is named.
preflight() {
    local missing=()
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    # The CUDA tests compile the kernels for the CPU.
    command -v g++ >/dev/null || missing+=(g++)
    command -v python3 >/dev/null || missing+=(python3)
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
    if [ "${#missing[@]}" -gt 0 ]; then
        if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
            apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
        else
            fail "these are missing: ${missing[*]} (Debian package names)"
        fi
    fi
    command -v cargo >/dev/null || fail "cargo is missing: install Rust $(rust_needed) or newer, for example with rustup"
    local have
    have=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$(rust_needed)" "$have" | sort -V | head -n 1)" = "$(rust_needed)" ] ||
        fail "Rust $(rust_needed) or newer is needed, this is $have"
    cargo fmt --version && cargo clippy --version || fail "rustfmt and clippy are needed: rustup component add rustfmt clippy"
    rustc --version
    python3 --version
    cc --version | head -n 1
}

rust_needed() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml
}

# The template test renders with Python's jinja2, at the version its expectations were made for; jsonschema judges what
# was answered under a schema.
python_venv() {
    local have='import jinja2, jsonschema; assert jinja2.__version__ == "3.1.6"'
    if ! "$venv/bin/python" -c "$have" 2>/dev/null; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check jinja2==3.1.6 jsonschema==4.26.0
    fi
    "$venv/bin/python" -c "$have; print('jinja2', jinja2.__version__)"
}

formatting() {
    cargo fmt --check
    cargo fmt --check --manifest-path tests/gguf_oracle/Cargo.toml
}

lints() {
    cargo clippy --locked --release --all-targets -- -D warnings
}

oracle() {
    export CARGO_TARGET_DIR=$PWD/target/oracle
    cargo clippy --locked --release --all-targets --manifest-path tests/gguf_oracle/Cargo.toml -- -D warnings
    cargo test --locked --release --manifest-path tests/gguf_oracle/Cargo.toml
}

# The kernels on the CPU under AddressSanitizer and ThreadSanitizer: all tests of single kernels, and whole toy models.
sanitizers() {
    watch asan variants_of_the_architecture every_type_agrees a_prompt_beside_other_sequences what_free_blocks_hold
    watch tsan variants_of_the_architecture a_prompt_beside_other_sequences
}

# watch asan|tsan NAME...: with those tests of tests/cuda.rs
watch() {
    local build=$1
    shift
    # Only the test programs are watched, not cargo. ThreadSanitizer needs unrandomized addresses on some systems (where
    # a container forbids them it has to do without), and knows nothing of the locks of Rust code, which is not compiled
    # for it.
    local unrandomized="setarch -R"
    $unrandomized true 2>/dev/null || unrandomized=env
    export SAYFA_CUDA_BUILD=$build SAYFA_CUDA_ORDER=random
    export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1
    local library
    library=$(g++ -print-file-name="lib$build.so")
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$unrandomized env LD_PRELOAD=$library"
    cargo test --locked --release --test cuda_attention --test cuda_products --test cuda_rows
    cargo test --locked --release --test cuda -- "$@" | tee target/watched.log
    # A name that fits no test would pass.
    grep -q "^test result: ok. $# passed" target/watched.log || fail "these are not $# tests of tests/cuda.rs: $*"
}

# What a machine with a GPU will be given is packed, and run over the stand-in driver.
gpu_rehearsal() {
    scripts/gpu_check.sh --pack target/gpu_check
    tests/cuda_driver/build.sh target/gpu_check_driver
    target/gpu_check/gpu_check.sh --stand-in target/gpu_check_driver >target/gpu_check.json
}

job preflight preflight
job model scripts/get_model.sh --tests
job python python_venv
export SAYFA_TEST_PYTHON=$PWD/$venv/bin/python
job formatting formatting
job lints lints
job kernels scripts/build_kernels.sh --check
job tests cargo test --locked --release
job man scripts/man.sh target/man
job sanitizers sanitizers
job gpu_check gpu_rehearsal
job oracle oracle
printf '\n%s%-12s %5d s\nall jobs passed\n' "$summary" total "$SECONDS"
