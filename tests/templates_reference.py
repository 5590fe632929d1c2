"""Renders chat templates with jinja2 as Python's transformers does: the reference for tests/templates.rs.

Reads one JSON object from stdin: {"folder", "bos", "eos", "now": [year, ..., second], "conversations": [{"messages", "add_generation_prompt"}]}.
Prints one: {template file: [{"text"} or {"error"} for each conversation]}.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what a model is trained on and renders what is inside."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main():
    job = json.load(sys.stdin)
    now = datetime.datetime(*job["now"])
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = now.strftime
    results = {}
    for path in sorted(pathlib.Path(job["folder"]).glob("*.jinja")):
        # newline="": the file as it is, like the string in a GGUF.
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        results[path.name] = []
        template = environment.from_string(source)
        for conversation in job["conversations"]:
            try:
                text = template.render(
                    messages=conversation["messages"],
                    add_generation_prompt=conversation["add_generation_prompt"],
                    bos_token=job["bos"],
                    eos_token=job["eos"],
                )
                results[path.name].append({"text": text})
            except Exception as error:
                results[path.name].append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps({"jinja2": jinja2.__version__, "results": results}))


main()
