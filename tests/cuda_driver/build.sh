#!/usr/bin/env bash
# build.sh OUT_DIR [plain|asan|tsan] [KERNELS.cu]: makes OUT_DIR/libcuda.so, a CUDA driver that runs the kernels (those of
# kernels/sayfa.cu) on the CPU. `plain` is the fast one; the others are watched by AddressSanitizer or ThreadSanitizer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
out=$1
variant=${2:-plain}
kernels=${3:-$root/kernels/sayfa.cu}

case $variant in
plain) kernel_flags="-O2" driver_flags="-O3" link_flags="-Wl,-z,defs" ;;
# An unaligned vector load is a fault on the hardware.
asan)
    link_flags="-fsanitize=address -fsanitize=alignment"
    driver_flags="-O1 -fsanitize=address -fno-omit-frame-pointer"
    kernel_flags="$driver_flags -fsanitize=alignment -fno-sanitize-recover=alignment -fsanitize-sections=emulated_shared"
    ;;
# Only the kernels are instrumented: the scheduler of the threads would report itself.
tsan)
    link_flags="-fsanitize=thread"
    driver_flags="-O3 -DSAYFA_EMULATED_TSAN"
    kernel_flags="-O1 -fsanitize=thread"
    ;;
*) echo "build.sh: no such variant: $variant (plain, asan, tsan)" >&2 && exit 2 ;;
esac

mkdir -p "$out"
# Any x86-64 CPU since 2013. As on the device, a product and a sum are rounded apart unless fmaf is written. Warnings are
# for the compilers of the device.
common="-std=c++17 -g1 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fPIC -fvisibility=hidden -DSAYFA_EMULATED
    -I$here -I$root/kernels"
# The kernels: what carries the attribute that emulated.h gives __global__.
names=$(g++ $common -E -P -x c++ "$kernels" | tr '\n' ' ' |
    grep -oE 'extern "C" __attribute__\(\(used\)\) +void +[A-Za-z0-9_]+' | awk '{ print $NF }')
{
    echo "#include \"$(cd "$(dirname "$kernels")" && pwd)/$(basename "$kernels")\""
    for name in $names; do
        echo "static emulated::Registration register_$name(\"$name\", emulated::Caller<&$name>::call,"
        echo "    emulated::Caller<&$name>::sizes, emulated::Caller<&$name>::count);"
    done
} >"$out/kernels.cpp"

compile() { # SOURCE OBJECT FLAGS
    g++ $common $3 -c "$1" -o "$2"
}
compile_driver() { # SOURCE
    compile "$1" "$objects.unfinished/$(basename "$1" .cpp).o" "$driver_flags -Wall -Wextra"
}
# The driver's part is the same for all kernels and stays beside OUT_DIR.
objects=$(dirname "$out")/objects-$variant-$(cat "$here"/*.cpp "$here"/*.h "$here/build.sh" | sha256sum | cut -c 1-16)
export -f compile compile_driver
export common driver_flags objects
compile "$out/kernels.cpp" "$out/kernels.o" "$kernel_flags -w" &
kernels_build=$!
if ! [ -d "$objects" ]; then
    rm -rf "$objects.unfinished"
    mkdir "$objects.unfinished"
    printf '%s\0' "$here"/*.cpp | xargs -0 -n 1 -P "$(nproc)" bash -c 'compile_driver "$1"' compile
    mv "$objects.unfinished" "$objects"
fi
wait $kernels_build
# The name under which the program looks for a driver: once this file is loaded, glibc answers with it.
g++ -shared $link_flags -Wl,-soname,libcuda.so "$out/kernels.o" "$objects"/*.o -o "$out/libcuda.so"
