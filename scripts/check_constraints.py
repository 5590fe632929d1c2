#!/usr/bin/env python3
"""Lets the default model answer under the schemas of tests/data/schemas and has each answer judged by jsonschema.

    scripts/check_constraints.py [--program target/release/sayfa] [--model FILE] [--seeds 200]

Every answer that ends by itself must be valid, and most must end by themselves. Needs Python's jsonschema.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMAS = sorted((ROOT / "tests/data/schemas").glob("*.json"))
MOST_TOKENS = 200


def answers(program, model, schema, prompt, seeds):
    command = [program, "run", "-m", model, "--no-stdin", "--json-schema", schema, "-p", prompt, "--json"]
    command += ["--n", str(seeds), "--seed", "1", "-n", str(MOST_TOKENS), "--temp", "1", "-c", "2048"]
    environment = {**os.environ, "SAYFA_CONFIG": ""}
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)
    if done.returncode != 0:
        sys.exit(f"{schema.name}: sayfa failed with {done.returncode}: {done.stderr}")
    report = json.loads(done.stdout)
    return report.get("completions", [report])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "target/release/sayfa")
    parser.add_argument("--model", default=ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--seeds", type=int, default=200)
    args = parser.parse_args()
    bad = 0
    for path in SCHEMAS:
        schema = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        prompt = f"{schema['description']} Answer in JSON."
        given = answers(args.program, args.model, path, prompt, args.seeds)
        ended = [answer["text"] for answer in given if answer["finish_reason"] == "stop"]
        for text in ended:
            try:
                validator.validate(json.loads(text))
            except (ValueError, jsonschema.ValidationError) as error:
                bad += 1
                print(f"{path.name}: {text!r}: {str(error).splitlines()[0]}")
        different = len(set(ended))
        print(f"{path.name}: {len(ended)} of {len(given)} answers ended by themselves, {different} different ones")
        if len(given) != args.seeds or 2 * len(ended) <= len(given):
            sys.exit(f"{path.name}: too few answers ended by themselves to say anything")
    if bad:
        sys.exit(f"{bad} answers do not follow their schema")
    print(f"all {args.seeds} answers to each of {len(SCHEMAS)} schemas that ended by themselves are valid")


if __name__ == "__main__":
    main()
