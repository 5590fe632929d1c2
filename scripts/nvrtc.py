#!/usr/bin/env python3
"""nvrtc.py LIBNVRTC ARCHITECTURE SOURCE [OPTION...] > PTX: compiles CUDA C++ ahead of time, without a toolkit or a GPU."""

import ctypes
import os
import sys


def main():
    library, architecture, source, *options = sys.argv[1:]
    nvrtc = ctypes.CDLL(library)

    def check(result, what):
        if result:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            sys.exit(f"nvrtc.py: {what}: {nvrtc.nvrtcGetErrorString(result).decode()}")

    def text(size_of, get):
        """What a pair of calls says, one for the size, one for the bytes."""
        size = ctypes.c_size_t()
        check(size_of(program, ctypes.byref(size)), "size")
        buffer = ctypes.create_string_buffer(size.value)
        check(get(program, buffer), "text")
        return buffer.value.decode()

    program = ctypes.c_void_p()
    with open(source, "rb") as file:
        code = file.read()
    # The name ends up in the PTX: without a path it is the same everywhere.
    name = os.path.basename(source).encode()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, name, 0, None, None), "create")
    given = [f"--gpu-architecture={architecture}", *options]
    array = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
    result = nvrtc.nvrtcCompileProgram(program, len(given), array)
    log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    if log.strip():
        print(log, file=sys.stderr)
    check(result, source)
    sys.stdout.write(text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))


main()
