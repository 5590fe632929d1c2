//! The Jinja of Python's transformers on top of minijinja: settings, methods, filters and functions that templates use.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::namespace::Namespaces;
use super::{json, methods, tags};

const NAME: &str = "chat template";
/// The largest published template has 17 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The largest published template has 2,600 of `MARKS`.
const MAX_MARKS: usize = 1 << 14;
/// Expressions are trees to minijinja, which walks and drops them level by level, and every level of a tree takes at
/// least one of these. That text has them too only makes the bound a safe one.
const MARKS: &[char] = &['+', '-', '*', '/', '%', '~', '|', '.', '[', '(', '{', '<', '>', '=', '!'];
const MARK_WORDS: &[&str] = &["not", "if", "and", "or", "is", "in"];
/// Sixteen times what the deepest of them take with optimization. Only what is used becomes memory.
const STACK_BYTES_PER_MARK: usize = 8 << 10;
/// Of values in values: more is an attempt at the stack.
pub const MAX_DEPTH: usize = 100;

/// A level of values costs several units of fuel to build, and a few hundred bytes of stack to drop.
const STACK_BYTES_PER_FUEL: usize = 128;
const MAX_STACK_BYTES: usize = 1 << 30;

/// `source` compiled with the settings of transformers. What it does to the stack is bounded by its size.
pub fn environment(source: &str, recursion_limit: usize) -> Result<Environment<'static>, Error> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(too_large(format!("{} bytes; at most {MAX_SOURCE_BYTES} are read", source.len())));
    }
    let marks =
        source.matches(MARKS).count() + MARK_WORDS.iter().map(|word| source.matches(word).count()).sum::<usize>();
    if marks > MAX_MARKS {
        return Err(too_large(format!("{marks} operators and brackets; at most {MAX_MARKS} are read")));
    }
    let mut environment = Environment::new();
    environment.set_debug(false);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_recursion_limit(recursion_limit);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|output, state, value| {
        charge(state, value, 0)?;
        minijinja::escape_formatter(output, state, value)
    });
    environment.add_filter("tojson", json::to_json);
    // Both walk all values of the template, and jinja2 has no `debug`.
    environment.remove_global("debug");
    environment.add_filter("pprint", |state: &State, value: &Value| {
        charge(state, value, 0)?;
        Ok(minijinja::filters::pprint(value))
    });
    let source = tags::rewritten(source);
    let stack_bytes = STACK_BYTES_PER_MARK * (MAX_MARKS + 1);
    let compiled = on_a_thread(stack_bytes, Duration::from_secs(2), move || {
        environment.add_template_owned(NAME, source)?;
        Ok(environment)
    })?;
    compiled.ok_or_else(|| too_large("more than two seconds of reading"))
}

fn too_large(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("it is too large: {what}"))
}

/// Dropping or printing values in values takes stack for each level, and a template can build as many levels as its
/// fuel allows. And a few operators (`~`, `==`) pay nothing for walking a value whose parts are shared over and over:
/// the clock ends those.
pub fn render(environment: &Environment<'static>, context: Value, fuel: u64) -> Result<String, Error> {
    let mut environment = environment.clone();
    environment.set_fuel(Some(fuel));
    let stack_bytes =
        usize::try_from(fuel).unwrap_or(usize::MAX).saturating_mul(STACK_BYTES_PER_FUEL).min(MAX_STACK_BYTES);
    let deadline = Duration::from_millis(1200) + Duration::from_micros(fuel);
    let rendered = on_a_thread(stack_bytes, deadline, move || {
        let namespaces = Namespaces::default();
        namespaces.add_to(&mut environment);
        let rendered = environment.get_template(NAME).and_then(|template| template.render(context));
        namespaces.clear();
        rendered
    })?;
    rendered.ok_or_else(|| Error::from(ErrorKind::OutOfFuel))
}

/// On a thread of its own, for its stack, only the used part of which is memory. `None` when it takes longer than any
/// sound template does; then it is left to itself.
fn on_a_thread<T: Send + 'static>(
    stack_bytes: usize,
    deadline: Duration,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<Option<T>, Error> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .stack_size(stack_bytes)
        .spawn(move || {
            // Nobody listens any more when it took too long.
            let _ = sender.send(work());
        })
        .map_err(|error| {
            let what = format!("no memory for a thread with {stack_bytes} bytes of stack: {error}");
            Error::new(ErrorKind::InvalidOperation, what)
        })?;
    match receiver.recv_timeout(deadline) {
        Ok(done) => done.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::new(ErrorKind::InvalidOperation, "the template engine broke down"))
        }
    }
}

/// Fails with the template's own words and leaves them in `raised`.
pub fn raise_exception(raised: Arc<Mutex<Option<String>>>) -> Value {
    Value::from_function(move |words: &str| -> Result<Value, Error> {
        if let Ok(mut raised) = raised.lock() {
            raised.get_or_insert_with(|| words.to_string());
        }
        Err(Error::new(ErrorKind::InvalidOperation, words.to_string()))
    })
}

/// Pays for the text of a value. Values may share their parts, so that the text is far larger than the memory.
pub fn charge(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    state.consume_fuel(1 + value.as_str().map_or(0, str::len) as u64 / 64)?;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        for item in value.try_iter()? {
            charge(state, &item, depth + 1)?;
            if value.kind() == ValueKind::Map {
                charge(state, &value.get_item(&item)?, depth + 1)?;
            }
        }
    }
    Ok(())
}

pub fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("values are nested more than {MAX_DEPTH} deep"))
}
