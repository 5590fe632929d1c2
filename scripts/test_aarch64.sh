#!/usr/bin/env bash
# Tests the AArch64 build under emulation: the kernels, the arithmetic contract, and that all logits have the bits of
# x86-64, on a CPU with the byte dot product and on one without. Not a part of test.sh: emulation is slow.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
sysroot=/usr/aarch64-linux-gnu
# With `sdot`, and from before it.
cpus=(max cortex-a53)

fail() {
    echo "test_aarch64.sh: $*" >&2
    exit 1
}

# On an AArch64 machine itself nothing is emulated, and its own CPU is tested.
if [ "$(uname -m)" = aarch64 ]; then
    cpus=("")
else
    missing=()
    command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
    [ -e "$sysroot/lib/libc.so.6" ] || missing+=(libc6-dev-arm64-cross)
    command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
    if [ "${#missing[@]}" -gt 0 ]; then
        if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
            apt-get update -q
            DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
        else
            fail "these are missing: ${missing[*]} (Debian package names)"
        fi
    fi
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L $sysroot"
fi
command -v cargo >/dev/null || fail "cargo is missing: install Rust, for example with rustup"
if ! [ -d "$(rustc --print target-libdir --target "$target")" ]; then
    command -v rustup >/dev/null || fail "Rust's library for $target is missing, and there is no rustup to install it"
    rustup target add "$target"
fi

check() {
    cargo test --locked --release --target "$target" "$@"
}

for cpu in "${cpus[@]}"; do
    # Read by qemu alone.
    [ -z "$cpu" ] || export QEMU_CPU=$cpu
    echo "== ${cpu:-this CPU}: kernels"
    check --lib simd
    echo "== ${cpu:-this CPU}: the bits of x86-64"
    check --test logit_hashes
    # Left out: what emulation makes take many minutes. The hashes say more than the first, the second needs a real model.
    echo "== ${cpu:-this CPU}: chunks, block numbers and batch mates"
    check --test contract -- --skip every_table_and_thread_count_gives_the_bits_of_scalar_code \
        --skip the_default_model_keeps_the_contract
done
echo "all passed in $SECONDS s"
