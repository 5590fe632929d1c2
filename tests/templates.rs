//! Every published chat template renders as Python's jinja2 renders it, byte for byte.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use sayfa::gguf::Gguf;
use sayfa::template::{ChatTemplate, Message, Role, family_names, family_source};
use sayfa::tokenizer::Tokenizer;
use serde_json::{Value, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn folder() -> PathBuf {
    let folder = root().join("models/tests/templates");
    assert!(folder.is_dir(), "{} is missing: run `scripts/get_model.sh --tests` first", folder.display());
    folder
}

fn tokenizer() -> Tokenizer {
    let path = root().join("models/tests/vocab/ggml-vocab-llama-spm.gguf");
    let gguf = Gguf::open(&path).unwrap_or_else(|error| panic!("{error}: run `scripts/get_model.sh --tests` first"));
    Tokenizer::from_gguf(&gguf).unwrap()
}

/// Turns of a user and a model, the last one the user's.
const TURNS: [&[&str]; 3] = [
    &["Hello"],
    &["What is 2 + 2?", "It is 4.", "And 3 < 4 & 5 > \"4\"?"],
    &[
        "  Çay ☕ mı, kahve mi?\n\n",
        "<think>\nHe asks for tea.\n</think>\n\nÇay, 'elbette'.",
        "\tif (a < b) { return \"\\n\"; }\n```",
        " {\"answer\": [1, 2]} ",
        "字 and 😀?",
    ],
];

const SYSTEM: &str = "You answer briefly.\nIn plain words, \"please\".";

fn conversations() -> Vec<(Vec<Message>, bool)> {
    let mut conversations = Vec::new();
    for turns in TURNS {
        for system in [None, Some(SYSTEM)] {
            let speakers = [Role::User, Role::Assistant].into_iter().cycle();
            let mut messages: Vec<Message> =
                system.iter().map(|text| Message { role: Role::System, content: text.to_string() }).collect();
            messages.extend(turns.iter().zip(speakers).map(|(text, role)| Message { role, content: text.to_string() }));
            conversations.push((messages.clone(), true));
            conversations.push((messages, false));
        }
    }
    conversations
}

/// What Python answers to `input`, both JSON.
fn python(arguments: &[&str], input: &Value) -> Value {
    let python = std::env::var("SAYFA_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut child = Command::new(&python)
        .args(arguments)
        .env("PYTHONIOENCODING", "utf-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{python}: {error}: set SAYFA_TEST_PYTHON to a Python that has jinja2 3.1.6"));
    // A Python without jinja2 is gone before it reads; its own words say more than a broken pipe.
    let _ = child.stdin.take().unwrap().write_all(input.to_string().as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{python} failed; set SAYFA_TEST_PYTHON to a Python that has jinja2 3.1.6:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// jinja2's renderings of all templates of a folder.
fn reference(folder: &Path, conversations: &[(Vec<Message>, bool)]) -> Value {
    let name = |role| match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let message = |message: &Message| json!({"role": name(message.role), "content": message.content});
    let job = json!({
        "folder": folder,
        "bos": "<s>",
        "eos": "</s>",
        "now": [2025, 3, 9, 14, 5, 7],
        "conversations": conversations.iter().map(|(messages, add_generation_prompt)| json!({
            "messages": messages.iter().map(message).collect::<Vec<_>>(),
            "add_generation_prompt": add_generation_prompt,
        })).collect::<Vec<_>>(),
    });
    let script = root().join("tests/templates_reference.py");
    let answer = python(&[script.to_str().unwrap()], &job);
    assert_eq!(answer["jinja2"], "3.1.6", "the comparison is with jinja2 3.1.6");
    answer["results"].clone()
}

#[test]
fn every_template_renders_as_in_python() {
    let tokenizer = tokenizer();
    let conversations = conversations();
    let reference = reference(&folder(), &conversations);
    let reference = reference.as_object().unwrap();
    assert!(reference.len() >= 70, "only {} templates", reference.len());
    let now = chrono::NaiveDate::from_ymd_opt(2025, 3, 9).unwrap().and_hms_opt(14, 5, 7).unwrap();
    let (mut equal, mut differ, mut failing) = (0, Vec::new(), BTreeSet::new());
    for (name, renderings) in reference {
        let source = std::fs::read_to_string(folder().join(name)).unwrap();
        let mut template = ChatTemplate::from_source(&source, &tokenizer).map_err(|error| error.to_string());
        if let Ok(template) = &mut template {
            template.fix_time(now);
        }
        for ((messages, add_generation_prompt), expected) in conversations.iter().zip(renderings.as_array().unwrap()) {
            let ours = match &template {
                Ok(template) => {
                    template.render_text(messages, *add_generation_prompt).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.clone()),
            };
            match (ours, expected["text"].as_str(), expected["error"].as_str()) {
                (Ok(ours), Some(theirs), _) if ours == theirs => equal += 1,
                (Err(_), None, Some(_)) => {
                    failing.insert((
                        name.as_str(),
                        messages[0].role == Role::System,
                        messages.len(),
                        *add_generation_prompt,
                    ));
                }
                (ours, theirs, error) => {
                    differ.push(format!("{name}: {messages:?}\n  ours   {ours:?}\n  theirs {:?}", theirs.or(error)));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{} differ, {equal} are equal:\n{}", differ.len(), differ.join("\n"));
    // Gemma 2 refuses system messages, and firefunction wants a list of functions in every conversation.
    let must_fail = |name: &str, messages: &[Message]| match name {
        "google-gemma-2-2b-it.jinja" => messages[0].role == Role::System,
        "fireworks-ai-llama-3-firefunction-v2.jinja" => true,
        _ => false,
    };
    let expected: BTreeSet<_> = reference
        .keys()
        .flat_map(|name| conversations.iter().map(move |(messages, prompt)| (name.as_str(), messages, *prompt)))
        .filter(|(name, messages, _)| must_fail(name, messages))
        .map(|(name, messages, prompt)| (name, messages[0].role == Role::System, messages.len(), prompt))
        .collect();
    assert_eq!(failing, expected);
    assert_eq!(equal, reference.len() * conversations.len() - expected.len());
}

fn rendered(source: &str, tokenizer: &Tokenizer, messages: &[Message], prompt: bool) -> Result<String, String> {
    let template = ChatTemplate::from_source(source, tokenizer).map_err(|error| error.to_string())?;
    template.render_text(messages, prompt).map_err(|error| error.to_string())
}

#[test]
fn the_templates_of_families_render_as_in_python() {
    let (tokenizer, conversations) = (tokenizer(), conversations());
    let reference = reference(&root().join("src/template/families"), &conversations);
    let reference = reference.as_object().unwrap();
    let files: BTreeSet<&str> = reference.keys().map(|file| file.strip_suffix(".jinja").unwrap()).collect();
    assert_eq!(files, family_names().collect(), "each family has its file, and each file its family");
    let mut refused = 0;
    for name in family_names() {
        let renderings = reference[&format!("{name}.jinja")].as_array().unwrap();
        for ((messages, prompt), expected) in conversations.iter().zip(renderings) {
            let ours = rendered(family_source(name).unwrap(), &tokenizer, messages, *prompt);
            match (&ours, expected["text"].as_str()) {
                (Ok(ours), Some(theirs)) => assert_eq!(ours, theirs, "{name}"),
                (Err(error), None) => {
                    assert!(name == "gemma" && error.contains("System role not supported"), "{name}: {error}");
                    refused += 1;
                }
                _ => panic!("{name}: {ours:?} and {expected}"),
            }
        }
    }
    assert_eq!(refused, conversations.len() / 2, "gemma refuses system messages");
}

/// Where a family's own template is among the published ones, ours writes the same; BOS is the tokenizer's to add.
#[test]
fn the_templates_of_families_are_the_published_ones() {
    let tokenizer = tokenizer();
    let mut compared = 0;
    for (family, file, takes_system) in [
        ("gemma", "google-gemma-2-2b-it", false),
        ("phi3", "microsoft-Phi-3.5-mini-instruct", true),
        ("mistral-v3-tekken", "mistralai-Mistral-Nemo-Instruct-2407", false),
        ("chatml", "Qwen-Qwen2.5-7B-Instruct", true),
    ] {
        let published = std::fs::read_to_string(folder().join(format!("{file}.jinja"))).unwrap();
        for (messages, prompt) in conversations() {
            let has_system = messages[0].role == Role::System;
            // Qwen puts in a system message of its own where there is none.
            if !prompt || has_system != takes_system {
                continue;
            }
            let theirs = rendered(&published, &tokenizer, &messages, prompt).unwrap();
            let ours = rendered(family_source(family).unwrap(), &tokenizer, &messages, prompt).unwrap();
            assert_eq!(ours, theirs.strip_prefix("<s>").unwrap_or(&theirs), "{family}");
            compared += 1;
        }
    }
    assert_eq!(compared, 12);
}

/// The conversation of llama.cpp's own test of its built-in templates, whose texts these are.
#[test]
fn the_templates_of_families_look_so() {
    let tokenizer = tokenizer();
    let message = |role, content: &str| Message { role, content: content.into() };
    let conversation = [
        message(Role::System, "You are a helpful assistant"),
        message(Role::User, "Hello"),
        message(Role::Assistant, "Hi there"),
        message(Role::User, "Who are you"),
        message(Role::Assistant, "   I am an assistant   "),
        message(Role::User, "Another question"),
    ];
    let texts = family_names().map(|name| {
        let source = family_source(name).unwrap();
        let text = rendered(source, &tokenizer, &conversation, true)
            .or_else(|_| rendered(source, &tokenizer, &conversation[1..], true));
        format!("=== {name}\n{}", text.unwrap())
    });
    insta::assert_snapshot!(texts.collect::<Vec<_>>().join("\n"));
}

/// What templates may call on strings, lists and mappings, on texts of all kinds.
#[test]
fn methods_are_pythons() {
    let texts = [
        "",
        " ",
        "abc",
        "Hello World",
        "they're bill's",
        "  a  b\tc  ",
        "a,b,,c",
        "\n\r\nx\x0by\u{2028}z\r",
        "ÇAY ıİ ß",
        "ßa ﬁn",
        "-42",
        "+7",
        "007",
        "²³",
        "٣٤",
        "½",
        "字😀",
        "x\x1f",
        "aXbXXc",
        "UPPER lower",
        "_id9",
        "9id",
    ];
    let calls = [
        "rsplit()",
        "rsplit(none, 1)",
        "rsplit(' ', 1)",
        "rsplit('X', maxsplit=1)",
        "rsplit(sep=',')",
        "split()",
        "split(none, 1)",
        "split(none, 0)",
        "rsplit(none, 0)",
        "split(',', 2)",
        "split('X', maxsplit=0)",
        "splitlines()",
        "splitlines(true)",
        "splitlines(keepends=true)",
        "partition('X')",
        "rpartition('X')",
        "partition(' ')",
        "rpartition(' ')",
        "center(9)",
        "center(8, '*')",
        "center(5)",
        "center(4, '字')",
        "ljust(6)",
        "ljust(6, '.')",
        "rjust(6)",
        "rjust(-3, '.')",
        "zfill(5)",
        "removeprefix('a')",
        "removesuffix('c')",
        "removeprefix('')",
        "title()",
        "capitalize()",
        "swapcase()",
        "casefold()",
        "istitle()",
        "isdigit()",
        "isdecimal()",
        "isnumeric()",
        "isalpha()",
        "isalnum()",
        "isspace()",
        "isupper()",
        "islower()",
        "isascii()",
        "isidentifier()",
        "find('b')",
        "find('b', 3)",
        "find('', 99)",
        "rfind('X')",
        "rfind('X', 0, -2)",
        "count('X')",
        "count('X', 2)",
        "count('', 1, 3)",
        "startswith('b', 1)",
        "startswith(('z', 'b'), 1, 4)",
        "endswith('b', 0, -1)",
        "endswith(('X', 'c'), 1)",
        "strip()",
        "lstrip()",
        "rstrip()",
        "strip('ac ')",
        "upper()",
        "lower()",
        "replace('X', '-', 1)",
    ];
    let values = [
        "'abc'.index('c')",
        "'abcabc'.rindex('b')",
        "['a', 'b'].index('b')",
        "['a', 'b', 'a'].count('a')",
        "{'a': 1}.get('b', 2)",
        "{'a': 1, 'b': 2}.items()|list",
        "{'a': 1}.keys()|list",
        "{'a': 1}.values()|list",
        "'-'.join(['a', 'b'])",
        "'{:>5}|{}'.format('a', 1)",
    ];
    let expressions: Vec<String> = texts
        .iter()
        .flat_map(|text| calls.iter().map(move |call| format!("{}.{call}", json!(text))))
        .chain(values.iter().map(|value| value.to_string()))
        .collect();
    let program = "import json, sys, jinja2.sandbox\n\
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment()\n\
        environment.filters['tojson'] = lambda x: json.dumps(x, ensure_ascii=False)\n\
        print(json.dumps([environment.from_string('{{ (%s)|tojson }}' % x).render() for x in json.load(sys.stdin)]))";
    let expected = python(&["-c", program], &json!(expressions));
    let tokenizer = tokenizer();
    let mut differ = Vec::new();
    for (expression, expected) in expressions.iter().zip(expected.as_array().unwrap()) {
        let template = ChatTemplate::from_source(&format!("{{{{ ({expression})|tojson }}}}"), &tokenizer).unwrap();
        let ours = template.render_text(&[Message { role: Role::User, content: "?".into() }], true);
        if ours.as_ref().ok().map(String::as_str) != expected.as_str() {
            differ.push(format!("{expression}: ours {ours:?}, Python's {expected}"));
        }
    }
    assert!(differ.is_empty(), "{} of {} differ:\n{}", differ.len(), expressions.len(), differ.join("\n"));
}

/// Expressions are trees, and these are as deep as they are long.
#[test]
fn long_chains_do_not_take_the_stack() {
    let tokenizer = tokenizer();
    let question = [Message { role: Role::User, content: "?".into() }];
    let renders = |source: &str| {
        ChatTemplate::from_source(source, &tokenizer).and_then(|template| template.render_text(&question, true))
    };
    // Pieces that make a level each, and how many of them just pass the bound on the size.
    for (before, piece, after, marks) in [
        ("{{ 1", "+1", " }}", 1),
        ("{{ ", "-", "1 }}", 1),
        ("{{ a", ".b", " }}", 1),
        ("{{ 1", "|string", " }}", 3),
        ("{{ 1", "|abs", " }}", 1),
        ("{{ ", "1 if 1 else ", "1 }}", 1),
        ("{{ 1", " if 1", " }}", 1),
        ("{{ a", "()", " }}", 1),
        ("{{ a", "[0]", " }}", 1),
        ("{{ a", "[:]", " }}", 1),
        ("{{ ", "not ", "1 }}", 1),
        ("{{ 1", " or 1", " }}", 1),
        ("{{ 1", " is odd", " }}", 1),
        ("{{ 'a'", "~'a'", " }}", 1),
        ("{{ 2", "**1", " }}", 2),
        ("{{ (1", ",(1", " }}", 1),
        ("{{ ", "[", " }}", 1),
        ("{{ ", "{1:", " }}", 1),
        ("{{ [1", ",1", "] }}", 0),
        ("{% if 1 %}", "{%elif 1%}", "{% endif %}", 4),
        ("", "{%if 1%}", "", 4),
        ("{% set n = namespace() %}", "{%set n.x=1%}", "", 4),
        ("", "{{1}}", "", 2),
        ("", "{%raw%}{%endraw%}", "", 7),
    ] {
        for count in [5_000, (16_384 - 30) / marks.max(1), 20_000, 100_000, 400_000] {
            let start = Instant::now();
            let result = renders(&format!("{before}{}{after}", piece.repeat(count)));
            let took = start.elapsed();
            assert!(took.as_secs_f64() < 4.0, "{piece} {count} times took {took:?}");
            if count * marks > 16_384 {
                let error = result.expect_err(piece).to_string();
                let bounds = ["at most 16384 are read", "at most 1048576 are read"];
                assert!(bounds.iter().any(|bound| error.contains(bound)), "{piece}: {error}");
            }
        }
    }
    let error = renders(&"a".repeat((1 << 20) + 1)).unwrap_err().to_string();
    assert!(error.contains("1048577 bytes; at most 1048576"), "{error}");
    assert_eq!(renders(&"a".repeat(1 << 20)).unwrap().len(), 1 << 20);
    assert_eq!(renders(&format!("{{{{ 1{} }}}}", "+1".repeat(10_000))).unwrap(), "10001");
    assert_eq!(renders(&format!("{{{{ {}1 }}}}", "-".repeat(10_000))).unwrap(), "1");
}

/// Peak resident memory of this process so far.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn hostile_templates_end_soon_and_small() {
    let tokenizer = tokenizer();
    let before = peak_bytes();
    for source in [
        "{% for i in range(10**12) %}a{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 'a' * 99999999 }}",
        "{{ messages[0].role * 10**10 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n + 1) ~ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '{}'.format(ns.x) }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '-'.join(ns.x) }}",
        "{{ '%99999999999d'|format(1) }}",
        "{{ '{:>99999999999}'.format('a') }}",
        "{{ '{:>999999999}'.format('a') }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
        "{{ 'a\\na'|indent(10**10) }}",
        "{{ [1]|tojson(indent=10**10) * 10**9 }}",
        "{{ [[1]] * 10**9 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os }}",
    ] {
        let start = Instant::now();
        let question = Message { role: Role::User, content: "?".into() };
        let result =
            ChatTemplate::from_source(source, &tokenizer).and_then(|template| template.render_text(&[question], true));
        let error = result.expect_err(source);
        assert!(start.elapsed().as_secs_f64() < 2.0, "{source} took {:?}: {error}", start.elapsed());
    }
    let grown = peak_bytes() - before;
    assert!(grown < 200 << 20, "{} MiB", grown >> 20);
}
