#!/usr/bin/env bash
# Proof on a machine with a GPU, in eight minutes: the CUDA tests against its driver, compute-sanitizer on small models, and
# benches of published shapes with random weights. Prints one JSON object; exit code 1 when a test failed.
#
#   scripts/gpu_check.sh --pack DIR     builds, and puts all that is needed into DIR (under 60 MB): copy it to the machine
#   DIR/gpu_check.sh                    there: needs bash, python3 and the driver; no network, no compiler
#
#   --budget SECONDS                    the whole run takes no longer; parts are left out with a note (default 480)
#   --stand-in DIR                      a rehearsal over the stand-in driver in DIR (tests/cuda_driver): tests, a tiny bench
set -euo pipefail
# What is measured is said here, not in a configuration file.
export SAYFA_CONFIG=
here=$(cd "$(dirname "$0")" && pwd)

suite=(cuda cuda_products cuda_attention cuda_rows)
most_bytes=60000000

fail() {
    echo "gpu_check.sh: $*" >&2
    exit 2
}

pack() {
    local root=$here/.. out=$1 built
    cd "$root"
    mkdir -p "$out/bin"
    cargo build --locked --release
    strip -o "$out/bin/sayfa" target/release/sayfa
    built=$(cargo test --locked --release --no-run --message-format=json "${suite[@]/#/--test=}" |
        python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        print(message["target"]["name"], message["executable"])')
    local name file
    while read -r name file; do
        strip -o "$out/bin/$name" "$file"
    done <<<"$built"
    for name in "${suite[@]}"; do
        [ -x "$out/bin/$name" ] || fail "cargo has not built the test $name"
    done
    for name in micro variants; do
        mkdir -p "$out/tests/data/$name"
        cp tests/data/"$name"/*.gguf "$out/tests/data/$name"
    done
    cp scripts/gpu_check.sh "$out"
    local bytes
    bytes=$(find "$out" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
    [ "$bytes" -le "$most_bytes" ] || fail "$out has $bytes bytes, more than $most_bytes"
    echo "$out: $((bytes / 1000000)) MB"
}

budget=480
stand_in=
while [ $# -gt 0 ]; do
    case $1 in
    --pack) [ $# -eq 2 ] || fail "--pack needs a folder"
        pack "$(realpath -m "$2")"
        exit ;;
    --budget) budget=${2:?--budget needs seconds}; shift 2 ;;
    --stand-in) stand_in=$(realpath "${2:?--stand-in needs a folder}"); shift 2 ;;
    *) fail "there is no option $1 (--pack DIR, --budget SECONDS, --stand-in DIR)" ;;
    esac
done
[ -x "$here/bin/sayfa" ] || fail "$here/bin/sayfa is missing: run this in a folder that --pack has made"

exec python3 - "$here" "$budget" "$stand_in" "${suite[@]}" <<'PYTHON'
import glob, json, os, re, shutil, subprocess, sys, time

folder, budget, stand_in, suite = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:]
start = time.monotonic()
sayfa = f"{folder}/bin/sayfa"
environment = dict(os.environ, REQUIRE_CUDA="1", SAYFA_TEST_ROOT=folder, RUST_BACKTRACE="0")
if stand_in:
    environment["LD_LIBRARY_PATH"] = stand_in
report = {"rehearsal": bool(stand_in), "notes": [], "failures": []}

# Shares of the budget at which a part must have come to its end, so that a slow one leaves room for those behind it.
SUITE_END, SANITIZER_END, BENCH_END = 0.35, 0.5, 0.98


def left(share):
    return start + share * budget - time.monotonic()


def run(command, seconds):
    """(exit code or None after `seconds`, standard output, standard error)"""
    try:
        done = subprocess.run(command, env=environment, timeout=max(seconds, 1), text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        text = lambda part: part.decode(errors="replace") if isinstance(part, bytes) else part or ""
        return None, text(late.stdout), text(late.stderr)


def progress(text):
    print(f"{time.monotonic() - start:6.1f} s  {text}", file=sys.stderr, flush=True)


def fail(what, text):
    report["failures"].append({"what": what, "tail": text.strip().splitlines()[-40:]})
    progress(f"FAILED: {what}")


def note(text):
    report["notes"].append(text)
    progress(text)


def device():
    fields = ["name", "driver_version", "memory.total", "compute_cap"]
    if not stand_in and shutil.which("nvidia-smi"):
        code, out, _ = run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], 30)
        if code == 0 and out.strip():
            return dict(zip(fields, [value.strip() for value in out.splitlines()[0].split(",")]))
    note("nvidia-smi does not tell of the device")
    try:
        with open("/proc/driver/nvidia/version") as version:
            return {"driver_version": version.readline().strip()}
    except OSError:
        return {}


def tests():
    for name in suite:
        if left(SUITE_END) < 5:
            note(f"tests of {name}: not run, time is short")
            continue
        began = time.monotonic()
        # One after another: they share the GPU and its memory.
        code, out, err = run([f"{folder}/bin/{name}", "--test-threads=1"], left(SUITE_END))
        passed = len(re.findall(r"^test .* \.\.\. ok$", out, re.M))
        failed = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", out, re.M)))
        entry = {"name": name, "passed": passed, "failed": failed, "seconds": round(time.monotonic() - began, 1)}
        report.setdefault("suite", []).append(entry)
        progress(f"tests of {name}: {passed} passed, {len(failed)} failed")
        if code is None:
            entry["unfinished"] = True
            note(f"tests of {name}: not all were run, time was short")
        if failed or code not in (0, None) or (code == 0 and passed == 0):
            fail(f"tests of {name}", out + err)


def sanitizer():
    found = shutil.which("compute-sanitizer") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))), None)
    if stand_in or not found:
        report["sanitizer"] = []
        return note("compute-sanitizer is not there: memory errors and races on this device were not looked for")
    report["sanitizer"] = results = []
    for tool, types in [("memcheck", ["Q4_0", "Q6_K", "Q2_K", "IQ4_NL", "F16"]), ("racecheck", ["Q4_K"]), ("initcheck", ["Q5_1"])]:
        for name in types:
            if left(SANITIZER_END) < 10:
                note(f"{tool} on {name}: not run, time is short")
                continue
            # Lengths around tiles, blocks of pages and spans.
            command = [found, "--tool", tool, "--error-exitcode", "99", sayfa, "bench", "--device", "cuda", "--json", "-r", "1",
                       "-m", f"{folder}/tests/data/micro/{name}.gguf", "-p", "1,2,31,33,255,257", "-n", "2", "-d", "0,15,250",
                       "--sequences", "1,3", "--kv-types", "f16,int8", "-t", "1"]
            code, out, err = run(command, left(SANITIZER_END))
            results.append({"tool": tool, "model": name, "ok": code == 0, "finished": code is not None})
            progress(f"{tool} on {name}: {'ok' if code == 0 else 'unfinished' if code is None else 'errors'}")
            if code == 99:
                fail(f"{tool} on {name}", out + err)
            elif code is None:
                note(f"{tool} on {name}: not finished, time was short")
            elif code != 0:
                note(f"{tool} on {name} does not run here: {(err or out).strip().splitlines()[-1:]}")


def bench(subject, flags, seconds):
    command = [sayfa, "bench", "--json", "--device", "cuda", "--gpu-layers", "all", "--stages", *subject, *flags]
    code, out, err = run(command, seconds)
    title = " ".join(subject)
    if code is None:
        return note(f"bench of {title}: not finished, time was short")
    if code != 0:
        return fail(f"bench of {title}", err)
    result = json.loads(out)
    copies = result["ceilings"]["gpu"]["copy_bytes_per_second"]
    report["gpu"], report["copy_bytes_per_second"] = result["machine"]["gpu"], copies
    for test in result["tests"]:
        rate = test["bytes_per_token"] * test["tokens_per_second"]
        entry = {"model": result["model"]["name"], "test": test["name"], "kv": test["kv_type"], "depth": test["depth"],
                 "tokens": test["tokens"], "tokens_per_second": test["tokens_per_second"],
                 "runs_tokens_per_second": test["runs_tokens_per_second"],
                 "bytes_per_token": test["bytes_per_token"], "launches_per_token": test["launches_per_token"],
                 "bytes_per_second": rate, "share_of_copy": rate / copies,
                 "stages": [{"stage": stage["stage"], "step_us": stage["step_us"], "share": stage["share"],
                             "bytes_per_second": stage["bytes_per_second"], "ops_per_second": stage["ops_per_second"]}
                            for stage in test.get("stages", [])]}
        report.setdefault("bench", []).append(entry)
    progress(f"bench of {title}: done")


def benches():
    if stand_in:
        flags = ["-c", "128", "-p", "8", "-n", "2", "-d", "0,64", "--kv-types", "f16,int8", "-r", "1"]
        return bench(["-m", f"{folder}/tests/data/micro/Q4_K.gguf"], flags, left(BENCH_END))
    subjects = [(shape, weights) for shape in ["llama-3-8b", "llama-3.2-1b"] for weights in ["q4_k_m", "q4_0"]]
    for n, (shape, weights) in enumerate(subjects):
        if left(BENCH_END) < 20:
            note(f"bench of {shape} in {weights}: not run, time is short")
            continue
        flags = ["-c", "8704", "-b", "512", "-p", "512", "-n", "64", "-d", "0,8192", "--kv-types", "f16,int8"]
        # What is left is shared out among those that are left, the large ones counting double.
        weight = [2 if shape == "llama-3-8b" else 1 for shape, _ in subjects[n:]]
        bench(["--shape", shape, "--weights", weights], flags, left(BENCH_END) * weight[0] / sum(weight))


def goals():
    name = report.get("gpu", "") + report["device"].get("name", "")
    # Memory of data centre cards is so fast that launches and the ends of kernels weigh more.
    wanted = 0.6 if re.search(r"[ABH][12]00|GH200|H20\b", name) else 0.75
    speeds = {(e["model"], e["test"], e["kv"], e["depth"]): e for e in report.get("bench", [])}
    results = []
    for (model, test, kv, depth), entry in speeds.items():
        if test == "decode" and kv == "f16" and depth == 0 and (stand_in or model.startswith("llama-3-8b")):
            share = entry["share_of_copy"]
            results.append({"goal": f"decode of {model}: share of the measured copy bandwidth", "wanted": wanted,
                            "reached": share, "met": share >= wanted})
        if test == "decode" and kv == "int8" and depth > 0 and (model, test, "f16", depth) in speeds:
            ratio = entry["tokens_per_second"] / speeds[model, test, "f16", depth]["tokens_per_second"]
            results.append({"goal": f"decode of {model} at depth {depth}: INT8 KV faster than F16", "wanted": 1.0,
                            "reached": ratio, "met": ratio > 1.0})
    if not results:
        note("no goal could be looked at: no bench has come to its end")
    return results


report["device"] = device()
tests()
sanitizer()
benches()
report["goals"] = goals()
report["seconds"] = round(time.monotonic() - start, 1)
print(json.dumps(report, indent=1))
sys.exit(1 if report["failures"] else 0)
PYTHON
