#!/usr/bin/env bash
# Writes the man pages of sayfa and its commands into a folder: scripts/man.sh ~/.local/share/man/man1
set -euo pipefail

if [ "$#" -ne 1 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: scripts/man.sh FOLDER" >&2
    exit 2
fi
folder=$(realpath -m "$1")
cd "$(dirname "$0")/.."
cargo build --locked --release --quiet
"${CARGO_TARGET_DIR:-target}/release/sayfa" man "$folder"
