//! The Jinja of Python's transformers on top of minijinja: settings, methods, filters and functions that templates use.

use std::fmt::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::format::StrftimeItems;
use chrono::{Local, NaiveDateTime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

const NAME: &str = "chat template";
/// Of values in values: more is an attempt at the stack.
const MAX_DEPTH: usize = 100;

/// A level of values costs several units of fuel to build, and a few hundred bytes of stack to drop.
const STACK_BYTES_PER_FUEL: usize = 128;
const MAX_STACK_BYTES: usize = 1 << 30;

/// `source` compiled with the settings of transformers.
pub fn environment(source: &str, recursion_limit: usize) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_recursion_limit(recursion_limit);
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(|output, state, value| {
        charge(state, value, 0)?;
        minijinja::escape_formatter(output, state, value)
    });
    environment.add_filter("tojson", to_json);
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// On a thread of its own, for two reasons. Dropping or printing values in values takes stack for each level, and a
/// template can build as many levels as its fuel allows; only what is used of that stack is memory. And a few operators
/// (`~`, `==`) pay nothing for walking a value whose parts are shared over and over: such a template is left to itself
/// after a time that no sound one takes.
pub fn render(environment: &Environment<'static>, context: Value, fuel: u64) -> Result<String, Error> {
    let mut environment = environment.clone();
    environment.set_fuel(Some(fuel));
    let stack_bytes =
        usize::try_from(fuel).unwrap_or(usize::MAX).saturating_mul(STACK_BYTES_PER_FUEL).min(MAX_STACK_BYTES);
    let deadline = Duration::from_millis(1200) + Duration::from_micros(fuel);
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .stack_size(stack_bytes)
        .spawn(move || {
            let rendered = environment.get_template(NAME).and_then(|template| template.render(context));
            // Nobody listens any more when it took too long.
            let _ = sender.send(rendered);
        })
        .map_err(|error| {
            let what = format!("no thread with {stack_bytes} bytes of stack: {error}");
            Error::new(ErrorKind::InvalidOperation, what)
        })?;
    match receiver.recv_timeout(deadline) {
        Ok(rendered) => rendered,
        Err(RecvTimeoutError::Timeout) => Err(Error::from(ErrorKind::OutOfFuel)),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::new(ErrorKind::InvalidOperation, "the template engine broke down"))
        }
    }
}

/// `{% generation %}` marks what a model is trained on; to a reader it is nothing.
fn without_generation_tags(source: &str) -> String {
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let tag = &rest[start + 2..];
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        let before_word = start + 2 + tag.len() - word.len();
        let replaced = [("generation", "if true"), ("endgeneration", "endif")].into_iter().find(|(name, _)| {
            let after = word.strip_prefix(name).map(|after| after.trim_start().trim_start_matches(['-', '+']));
            after.is_some_and(|after| after.starts_with("%}"))
        });
        rewritten.push_str(&rest[..before_word]);
        rest = &rest[before_word..];
        if let Some((name, replacement)) = replaced {
            rewritten.push_str(replacement);
            rest = &rest[name.len()..];
        }
    }
    rewritten + rest
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

pub fn strftime_now(fixed_time: Option<NaiveDateTime>) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        let items = StrftimeItems::new(format)
            .parse()
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("'{format}' is no time format")))?;
        let now = fixed_time.unwrap_or_else(|| Local::now().naive_local());
        let mut text = String::new();
        write!(text, "{}", now.format_with_items(items.iter())).map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, format!("'{format}' asks for more than the local time"))
        })?;
        Ok(text)
    })
}

/// Python's methods. Two of them can write more than they were given, and pay for it first.
fn call_method(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let (Some(text), "format" | "join") = (value.as_str(), method) {
        arguments.iter().try_for_each(|argument| charge(state, argument, 0))?;
        if method == "format" {
            let widths = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            widths
                .map(|digits| digits.parse().unwrap_or(u64::MAX))
                .try_for_each(|width: u64| state.consume_fuel(width / 64))?;
        }
    }
    pycompat::unknown_method_callback(state, value, method, arguments)
}

/// Pays for the text of a value. Values may share their parts, so that the text is far larger than the memory.
fn charge(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
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

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("values are nested more than {MAX_DEPTH} deep"))
}

/// Python's `json.dumps`, as transformers sets it up: not for HTML, and readable beyond ASCII.
struct Json<'a> {
    state: &'a State<'a, 'a>,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
    text: String,
}

fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.to_string()),
            None => Some(" ".repeat(usize::try_from(indent)?.min(100))),
        },
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes two separators")),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let mut json = Json {
        state,
        indent,
        item_separator,
        key_separator,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        text: String::new(),
    };
    options.assert_all_used()?;
    json.value(value, 0)?;
    Ok(Value::from(json.text))
}

impl Json<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let before = self.text.len();
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool | ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', items.len(), depth, |json, index| json.value(&items[index], depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', keys.len(), depth, |json, index| {
                    let key = &keys[index];
                    match key.as_str() {
                        Some(text) => json.string(text),
                        None => json.string(&key.to_string()),
                    }
                    json.text.push_str(&json.key_separator);
                    json.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value that is {other} cannot be written as JSON"),
                ));
            }
        }
        self.state.consume_fuel(1 + (self.text.len() - before) as u64 / 64)
    }

    fn number(&mut self, value: &Value) {
        let text = value.to_string();
        self.text.push_str(match text.as_str() {
            "True" => "true",
            "False" => "false",
            "nan" => "NaN",
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            _ => &text,
        });
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: usize,
        depth: usize,
        mut write: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        for index in 0..items {
            if index > 0 {
                self.text.push_str(&self.item_separator);
            }
            self.line_break(depth + 1);
            write(self, index)?;
        }
        if items > 0 {
            self.line_break(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn line_break(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            (0..depth).for_each(|_| self.text.push_str(indent));
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for c in string.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                // The marks of shielded text must stay what they are.
                '\u{fdd0}'..='\u{fdef}' => self.text.push(c),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}
