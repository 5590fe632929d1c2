//! The filter `tojson`.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::python::{MAX_DEPTH, too_deep};

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

pub fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
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
