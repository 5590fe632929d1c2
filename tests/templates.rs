//! Every published chat template renders as Python's jinja2 renders it, byte for byte.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use sayfa::gguf::Gguf;
use sayfa::template::{ChatTemplate, Message, Role};
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

/// jinja2's renderings of all templates.
fn reference(conversations: &[(Vec<Message>, bool)]) -> Value {
    let name = |role| match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let message = |message: &Message| json!({"role": name(message.role), "content": message.content});
    let job = json!({
        "folder": folder(),
        "bos": "<s>",
        "eos": "</s>",
        "now": [2025, 3, 9, 14, 5, 7],
        "conversations": conversations.iter().map(|(messages, add_generation_prompt)| json!({
            "messages": messages.iter().map(message).collect::<Vec<_>>(),
            "add_generation_prompt": add_generation_prompt,
        })).collect::<Vec<_>>(),
    });
    let python = std::env::var("SAYFA_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut child = Command::new(&python)
        .arg(root().join("tests/templates_reference.py"))
        .env("PYTHONIOENCODING", "utf-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{python}: {error}: set SAYFA_TEST_PYTHON to a Python that has jinja2 3.1.6"));
    // A Python without jinja2 is gone before it reads; its own words say more than a broken pipe.
    let _ = child.stdin.take().unwrap().write_all(job.to_string().as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{python} failed; set SAYFA_TEST_PYTHON to a Python that has jinja2 3.1.6:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["jinja2"], "3.1.6", "{python}: the comparison is with jinja2 3.1.6");
    answer["results"].clone()
}

#[test]
fn every_template_renders_as_in_python() {
    let tokenizer = tokenizer();
    let conversations = conversations();
    let reference = reference(&conversations);
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
