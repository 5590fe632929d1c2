#!/usr/bin/env bash
# llama.cpp and sayfa side by side on this machine: builds both, lets them work in turns (A B A B, one process each),
# prints a Markdown table of medians. llama.cpp comes from the PyPI source archive of llama-cpp-python, whose hash is
# checked, and is built for this CPU; what is fetched, built or made lies outside the repository (--cache).
set -euo pipefail
# What is measured is said here, not in a configuration file.
export SAYFA_CONFIG=

usage='usage: scripts/compare_llama_cpp.sh [OPTION...]
  --rounds N       turns of each (default 5); the medians count
  --threads N      for both (default: physical cores)
  --only PATTERN   rows whose name matches (extended regular expression, case ignored)
  --no-amx         build llama.cpp without AMX, in a folder of its own
  --llama DIR      a folder that holds llama-bench and llama-completion: nothing is fetched or built
  --models DIR     where l1b-Q4_0.gguf and l1b-Q4_K_M.gguf (random weights) are, or shall be made (1.9 GB)
  --cache DIR      default: ${XDG_CACHE_HOME:-~/.cache}/sayfa/compare
  --json FILE      write the machine and each single measurement there'

package=llama-cpp-python==0.3.36
archive=llama_cpp_python-0.3.36.tar.gz
archive_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

# name | model | flags of `sayfa bench` | flags of llama-bench. Both know -r: measurements in a process.
# The last row is no benchmark but one process that answers a prompt of 5 tokens with 1 token.
cases='
SmolLM2 prefill 256 | smollm2 | -r 3 -p 256 -n 0 | -r 3 -p 256 -n 0
SmolLM2 decode | smollm2 | -r 3 -p 0 -n 64 | -r 3 -p 0 -n 64
SmolLM2 decode at depth 4096, F16 KV | smollm2 | -r 1 -p 0 -n 64 -d 4096 | -r 1 -p 0 -n 64 -d 4096
SmolLM2 decode at depth 4096, INT8 KV | smollm2 | -r 1 -p 0 -n 64 -d 4096 --kv-type int8 | -r 1 -p 0 -n 64 -d 4096 -ctk q8_0 -ctv q8_0 -fa on
SmolLM2 prefill 4096 | smollm2 | -r 1 -p 4096 -n 0 | -r 1 -p 4096 -n 0
1B Q4_0 prefill 256 | Q4_0 | -r 1 -p 256 -n 0 | -r 1 -p 256 -n 0
1B Q4_0 decode | Q4_0 | -r 1 -p 0 -n 64 | -r 1 -p 0 -n 64
1B Q4_K_M prefill 256 | Q4_K_M | -r 1 -p 256 -n 0 | -r 1 -p 256 -n 0
1B Q4_K_M decode | Q4_K_M | -r 1 -p 0 -n 64 | -r 1 -p 0 -n 64
SmolLM2 start to first token | smollm2 | start | start'

fail() {
    echo "compare_llama_cpp.sh: $*" >&2
    exit 1
}

rounds=5 threads= only=. amx=yes llama= models= json=
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sayfa/compare
while [ $# -gt 0 ]; do
    case $1 in
    --no-amx) amx=no ;;
    -h | --help) echo "$usage" && exit ;;
    --rounds | --threads | --only | --llama | --models | --cache | --json)
        [ $# -ge 2 ] || fail "$1 needs a value"
        declare "${1#--}=$2"
        shift
        ;;
    *) fail "unknown argument $1"$'\n'"$usage" ;;
    esac
    shift
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || fail "--rounds $rounds: not a number above 0"
[[ $threads =~ ^([1-9][0-9]*)?$ ]] || fail "--threads $threads: not a number above 0"
chosen=
shopt -s nocasematch
while IFS= read -r line; do
    [[ -n $line && ${line%% | *} =~ $only ]] && chosen+=$line$'\n'
done <<<"$cases"
shopt -u nocasematch
cases=$chosen
[ -n "$cases" ] || fail "--only $only: no row has such a name"
absolute() { realpath -m -- "$1"; }
cache=$(absolute "$cache") models=$(absolute "${models:-$cache/models}")
llama=${llama:+$(absolute "$llama")} json=${json:+$(absolute "$json")}
cd "$(dirname "$0")/.."
case $cache/ in "$PWD"/*) fail "--cache $cache lies in the repository" ;; esac
mkdir -p "$cache" "$models"
cores=$(lscpu -p=core,socket | grep -v '^#' | sort -u | wc -l)
available=$(nproc)
threads=${threads:-$((cores < available ? cores : available))}

# venv PACKAGE...: installed for python3 below the cache
venv() {
    [ -x "$cache/venv/bin/pip" ] || python3 -m venv "$cache/venv" ||
        fail "python3 cannot make a virtual environment (Debian: apt-get install python3-venv)"
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
}

build_tools() {
    command -v c++ >/dev/null && command -v cmake >/dev/null && command -v ninja >/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends g++ cmake ninja-build
    else
        command -v c++ >/dev/null || fail "a C++ compiler is needed to build llama.cpp"
        venv cmake ninja && PATH=$cache/venv/bin:$PATH
    fi
}

# Into $cache/llama_cpp_python-*, once.
get_llama() {
    local source=$cache/${archive%.tar.gz}
    [ -d "$source" ] && return
    if [ ! -f "$cache/$archive" ]; then
        echo "fetching $package ..." >&2
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
            --dest "$cache" "$package" || fail "pip could not fetch $package"
    fi
    echo "$archive_sha256  $cache/$archive" | sha256sum --check --quiet || fail "$archive has another hash: remove it"
    rm -rf "$source.part" && mkdir "$source.part"
    tar -xzf "$cache/$archive" -C "$source.part" --strip-components 1
    # GCC 12 drops most stores to the tile configuration, as its intrinsic claims to read no more than 8 bytes of it; what
    # follows is an illegal instruction. A barrier keeps them.
    sed -i 's|^ *_tile_loadconfig(&tc);|__asm__ volatile("" : : "r"(\&tc) : "memory");\n&|' \
        "$source.part/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    mv "$source.part" "$source"
}

# Sets llama. Ninja goes on where an interrupted build stopped, and does nothing where it is complete.
build_llama() {
    local source=$cache/${archive%.tar.gz}/vendor/llama.cpp build=$cache/build flags=()
    # ggml asks for what the compiler defines for -march=native, not for its own options.
    [ "$amx" = yes ] || build+=-no-amx flags=(-DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__)
    [ -f "$build/build.ninja" ] || cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF \
        "${flags[@]}" >"$build.log" || fail "cmake failed: see $build.log"
    echo "building llama.cpp in $build ..." >&2
    ninja -C "$build" llama-bench llama-completion >"$build.log" || fail "the build failed: see $build.log"
    llama=$build/bin
}

# make_model QUANT, if a row that is asked for needs it
make_model() {
    local file=$models/l1b-$1.gguf
    [ -f "$file" ] || ! grep -q "| $1 |" <<<"$cases" && return
    echo "making $file ..." >&2
    venv gguf==0.19.0 numpy
    "$cache/venv/bin/python" scripts/synth_gguf.py --shape llama-3.2-1b --quant "$1" "$file.part"
    mv "$file.part" "$file"
}

if [ -z "$llama" ]; then
    build_tools
    get_llama
    build_llama
fi
[ -x "$llama/llama-bench" ] && [ -x "$llama/llama-completion" ] || fail "$llama lacks llama-bench or llama-completion"
scripts/get_model.sh
make_model Q4_0
make_model Q4_K_M
cargo build --locked --release

export cases rounds threads llama models json
# Python takes this process over, so that a signal ends it together with the program it waits for.
exec python3 - <<'PYTHON'
import datetime, json, os, platform, re, signal, subprocess, sys, tempfile, time
from pathlib import Path
from statistics import median

env = {name: os.environ.pop(name) for name in ("cases", "rounds", "threads", "llama", "models", "json")}
threads, rounds = env["threads"], int(env["rounds"])
sayfa, bench, completion = "target/release/sayfa", f"{env['llama']}/llama-bench", f"{env['llama']}/llama-completion"
models = {"smollm2": "models/SmolLM2-135M-Instruct.Q4_1.gguf"}
models |= {quant: f"{env['models']}/l1b-{quant}.gguf" for quant in ("Q4_0", "Q4_K_M")}
# Of 5 tokens for SmolLM2. Starts are short: three of each in a round.
PROMPT, STARTS = "The capital of France is", 3


def run(*command):
    """(stdout, stderr, seconds, peak memory in MB) of one process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = [file.seek(0) or file.read().decode(errors="replace") for file in (out, err)]
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {child.returncode}\n{texts[1]}")
    return *texts, seconds, usage.ru_maxrss * 1024 / 1e6


def bench_llama(model, flags):
    out = run(bench, "-m", model, "-t", threads, "-o", "json", *flags)[0]
    return {"tok/s": median(json.loads(out)[0]["samples_ts"])}


def bench_sayfa(model, flags):
    out = run(sayfa, "bench", "--json", "-q", "-m", model, "-t", threads, *flags)[0]
    return {"tok/s": json.loads(out)["tests"][0]["tokens_per_second"]}


def start_llama(model, flags=()):
    # Its warm-up run would be counted, so it is left out.
    command = [completion, "-m", model, "-t", threads, "-no-cnv", "--no-warmup", "--temp", "0", "-n", "1", "-p", PROMPT]
    _, _, seconds, peak = run(*command, *flags)
    return {"s": seconds, "MB, peak memory": peak}


def start_sayfa(model, _):
    command = [sayfa, "run", "-q", "-m", model, "-t", threads, "--raw", "--temp", "0", "-n", "1", "-p", PROMPT]
    _, _, seconds, peak = run(*command)
    return {"s": seconds, "MB, peak memory": peak}


def machine():
    """What a reader has to know to believe the table, as (name, value)."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    field = lambda name: next(iter(re.findall(rf"^{name}\s*: (.*)", info, re.M)), platform.machine())
    wanted = ("avx2", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
    flags = (field("flags") + " " + field("Features")).split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    log = run(completion, "-m", models["smollm2"], "-no-cnv", "-n", "1", "-p", "a", "-lv", "5")[1]
    built = dict(re.findall(r"(\w+) = (\d)", next(iter(re.findall(r"system_info:.*", log)), "")))
    return {
        "date": datetime.date.today().isoformat(),
        "CPU": f"{field('model name')}, {os.cpu_count()} logical CPUs, {memory:.0f} GiB",
        "instructions": " ".join(name for name in wanted if name in flags),
        "system": f"{platform.system()} {platform.release()}",
        "threads": threads,
        "sayfa": run(sayfa, "--version")[0].strip(),
        "llama.cpp": f"llama-cpp-python 0.3.36, built for this CPU, {'with' if 'AMX_INT8' in built else 'without'} AMX",
    }


def cell(values):
    value = median(values)
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def compare(name, model, sayfa_flags, llama_flags):
    """Runs one row's turns; prints a line for each unit that was measured; returns what was measured."""
    is_start = sayfa_flags == ["start"]
    sides = [("llama.cpp", start_llama, []), ("sayfa", start_sayfa, [])] if is_start else \
        [("llama.cpp", bench_llama, llama_flags), ("sayfa", bench_sayfa, sayfa_flags)]
    if is_start:
        # The first one may find a cold page cache.
        for _, measure, flags in sides:
            measure(model, flags)
    turns = [{side: measure(model, flags) for side, measure, flags in sides} for _ in range(rounds * (STARTS if is_start else 1))]
    rows = []
    for unit in turns[0]["sayfa"]:
        values = {side: [turn[side][unit] for turn in turns] for side, _, _ in sides}
        better = [ours / theirs if unit == "tok/s" else theirs / ours for theirs, ours in zip(values["llama.cpp"], values["sayfa"])]
        print(f"| {name}, {unit} | {cell(values['llama.cpp'])} | {cell(values['sayfa'])} | {median(better):.2f} x | "
              f"{min(better):.2f} - {max(better):.2f} |", flush=True)
        rows.append({"name": name, "unit": unit, **values})
    return rows


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
about = machine()
print("\n".join(f"* {name}: {value}" for name, value in about.items()))
print(f"""
Medians of {rounds} rounds in turns. *Better by*: median of the rounds' ratios (speed: sayfa / llama.cpp; seconds and
memory: llama.cpp / sayfa), with the lowest and the highest.

| | llama.cpp | sayfa | better by | lowest - highest |
| --- | ---: | ---: | ---: | ---: |""", flush=True)
rows = []
for line in env["cases"].splitlines():
    name, model, ours, theirs = (part.strip() for part in line.split("|"))
    rows += compare(name, models[model], ours.split(), theirs.split())
if env["json"]:
    Path(env["json"]).write_text(json.dumps({"machine": about, "rounds": rounds, "rows": rows}, indent=1) + "\n")
PYTHON
