#!/usr/bin/env bash
# From a fresh clone to an answer on the terminal: fetches the default model once, builds, asks one question.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo >/dev/null || {
    echo "demo.sh: cargo is missing: install Rust, for example with rustup" >&2
    exit 1
}
scripts/get_model.sh
cargo build --locked --release
./target/release/sayfa run -m models/SmolLM2-135M-Instruct.Q4_1.gguf --temp 0 -n 200 \
    -p "Why is the sky blue? Answer in two sentences."
echo >&2
echo "Chat with it:    ./target/release/sayfa chat" >&2
echo "Or pipe text in: ./target/release/sayfa run -p 'Summarize the text above.' < README.md" >&2
