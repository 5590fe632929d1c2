//! The configuration file as it is written: found, read within limits, taken apart into keys with their lines. What a key
//! may say is not known here.

use std::env;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use anyhow::{anyhow, bail, ensure};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::cli::Usage;

/// A file of many presets has some kilobytes.
const MOST_BYTES: u64 = 1 << 20;
const PRESETS: &str = "presets";

/// Where the file should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    /// Somebody named it: it has to be there.
    pub is_named: bool,
}

#[derive(Debug)]
pub struct File {
    pub path: PathBuf,
    /// For every command that has the flag.
    pub all: Vec<Setting>,
    pub commands: Vec<Table>,
    pub presets: Vec<Table>,
}

#[derive(Debug)]
pub struct Table {
    pub name: String,
    pub line: usize,
    pub settings: Vec<Setting>,
}

#[derive(Debug)]
pub struct Setting {
    pub key: String,
    pub value: Value,
    pub line: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    Switch(bool),
    One(Scalar),
    Many(Vec<Scalar>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Scalar {
    pub text: String,
    /// A string of the file, not a number.
    pub is_text: bool,
}

/// The file of `--config` or $SAYFA_CONFIG, else that of the user; none if $SAYFA_CONFIG is empty.
pub fn place(flag: Option<&PathBuf>) -> Option<Place> {
    if let Some(path) = flag {
        return Some(Place { path: path.clone(), is_named: true });
    }
    if let Some(path) = env::var_os("SAYFA_CONFIG") {
        return (!path.is_empty()).then(|| Place { path: path.into(), is_named: true });
    }
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(Place { path: folder.join("sayfa/config.toml"), is_named: false })
}

/// `None`: there is no such file, and there need not be.
pub fn read(place: &Place) -> anyhow::Result<Option<File>> {
    let path = place.path.display();
    // The way many programs are told to read none; any other device may never end.
    let about = match fs::metadata(&place.path) {
        _ if place.path.as_os_str() == "/dev/null" => return Ok(None),
        Err(error) if !place.is_named && [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(None);
        }
        about => about.map_err(|error| Usage(format!("{path}: the configuration cannot be read: {error}")))?,
    };
    ensure!(about.is_file(), Usage(format!("{path}: no regular file, so it holds no configuration")));
    let mut bytes = Vec::new();
    fs::File::open(&place.path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| Usage(format!("{path}: the configuration cannot be read: {error}")))?;
    ensure!(
        bytes.len() as u64 <= MOST_BYTES,
        Usage(format!("{path}: more than {} MiB, which no configuration has", MOST_BYTES >> 20))
    );
    let text = String::from_utf8(bytes).map_err(|error| {
        Usage(format!("{path}: the configuration is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })?;
    File::parse(place.path.clone(), text.strip_prefix('\u{feff}').unwrap_or(&text)).map(Some)
}

impl File {
    pub fn parse(path: PathBuf, text: &str) -> anyhow::Result<File> {
        let mut file = File { path, all: Vec::new(), commands: Vec::new(), presets: Vec::new() };
        let line_at =
            |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count();
        let document = DeTable::parse(text).map_err(|error| {
            file.wrong(line_at(error.span().map_or(0, |span| span.start)), &format!("not TOML: {}", error.message()))
        })?;
        let table = |table: &DeTable| settings(table, &line_at).map_err(|(line, what)| file.wrong(line, &what));
        let (mut commands, mut presets) = (Vec::new(), Vec::new());
        let mut top = DeTable::new();
        for (key, value) in document.into_inner() {
            let line = line_at(key.span().start);
            match value.get_ref() {
                DeValue::Table(of_presets) if key.get_ref() == PRESETS => {
                    for (name, value) in of_presets {
                        let line = line_at(name.span().start);
                        let DeValue::Table(preset) = value.get_ref() else {
                            bail!(file.wrong(
                                line,
                                &format!("'{}' is no preset: they are tables, [presets.NAME]", name.get_ref())
                            ));
                        };
                        presets.push(Table { name: name.get_ref().to_string(), line, settings: table(preset)? });
                    }
                }
                DeValue::Table(command) => {
                    commands.push(Table { name: key.get_ref().to_string(), line, settings: table(command)? });
                }
                _ => {
                    top.insert(key, value);
                }
            }
        }
        let all = table(&top)?;
        (file.all, file.commands, file.presets) = (all, commands, presets);
        Ok(file)
    }

    /// A sentence that names the line.
    pub fn wrong(&self, line: usize, what: &str) -> anyhow::Error {
        Usage(format!("{}: {what}", self.line(line))).into()
    }

    /// For people.
    pub fn line(&self, line: usize) -> String {
        format!("{}, line {line}", self.path.display())
    }

    pub fn preset(&self, name: &str) -> anyhow::Result<&Table> {
        let names: Vec<&str> = self.presets.iter().map(|preset| preset.name.as_str()).collect();
        let there = if names.is_empty() { "no presets".to_string() } else { names.join(", ") };
        self.presets.iter().find(|preset| preset.name == name).ok_or_else(|| {
            anyhow!(Usage(format!("there is no preset '{name}' in {}: it has {there}", self.path.display())))
        })
    }
}

/// In the order of the file. What is wrong comes with its line.
fn settings(table: &DeTable, line_at: &impl Fn(usize) -> usize) -> Result<Vec<Setting>, (usize, String)> {
    let mut settings = Vec::new();
    for (key, value) in table {
        let line = line_at(key.span().start);
        let value = self::value(value.get_ref()).map_err(|what| (line, format!("{} {what}", key.get_ref())))?;
        settings.push(Setting { key: key.get_ref().to_string(), value, line });
    }
    settings.sort_by_key(|setting| setting.line);
    Ok(settings)
}

fn value(value: &DeValue) -> Result<Value, String> {
    match value {
        DeValue::Boolean(switch) => Ok(Value::Switch(*switch)),
        DeValue::Array(array) => many(array),
        _ => scalar(value).map(Value::One),
    }
}

fn many(array: &DeArray) -> Result<Value, String> {
    array.iter().map(Spanned::get_ref).map(scalar).collect::<Result<_, _>>().map(Value::Many)
}

fn scalar(value: &DeValue) -> Result<Scalar, String> {
    let number = |text: String| Ok(Scalar { text, is_text: false });
    match value {
        DeValue::String(text) => Ok(Scalar { text: text.to_string(), is_text: true }),
        DeValue::Integer(integer) if integer.radix() == 10 => number(integer.as_str().to_string()),
        DeValue::Integer(integer) => match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(integer) => number(integer.to_string()),
            Err(_) => Err("must be a number of a sensible size".to_string()),
        },
        DeValue::Float(float) => number(float.as_str().to_string()),
        DeValue::Boolean(_) => Err("must be a list of texts or numbers".to_string()),
        DeValue::Datetime(_) => Err("must not be a date".to_string()),
        DeValue::Array(_) => Err("must not be a list of lists".to_string()),
        DeValue::Table(_) => Err("must not be a table: tables are [COMMAND] and [presets.NAME]".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<File> {
        File::parse(PathBuf::from("c.toml"), text)
    }

    #[test]
    fn keys_come_with_their_lines_and_tables() {
        let text = "temp = 0.5\n\n[chat]\nsystem = \"a\\nb\"\nstop = ['x', 7]\n[presets.a]\nmlock = true\n[presets]\nb.seed = 0x10\n";
        let file = parse(text).unwrap();
        let one = |text: &str, is_text| Value::One(Scalar { text: text.to_string(), is_text });
        assert_eq!((file.all[0].key.as_str(), file.all[0].line), ("temp", 1));
        assert_eq!(file.all[0].value, one("0.5", false));
        let chat = &file.commands[0];
        assert_eq!((chat.name.as_str(), chat.line, chat.settings.len()), ("chat", 3, 2));
        assert_eq!((chat.settings[0].line, &chat.settings[0].value), (4, &one("a\nb", true)));
        let Value::Many(stops) = &chat.settings[1].value else { panic!("{:?}", chat.settings[1]) };
        assert_eq!((stops[0].is_text, stops[1].is_text, stops[1].text.as_str()), (true, false, "7"));
        assert_eq!(file.preset("a").unwrap().settings[0].value, Value::Switch(true));
        assert_eq!(file.preset("b").unwrap().settings[0].value, one("16", false));
        assert!(file.preset("c").unwrap_err().to_string().ends_with("in c.toml: it has a, b"));
    }

    #[test]
    fn what_is_no_configuration_is_a_sentence_with_its_line() {
        for (text, words) in [
            ("temp = 0\nthreads 4\n", "c.toml, line 2: not TOML: "),
            ("temp = 1\ntemp = 2\n", "c.toml, line 2: not TOML: duplicate key"),
            ("[chat]\nx.y = 1\n", "c.toml, line 2: x must not be a table"),
            ("a = 1\nb = 2026-01-01\n", "c.toml, line 2: b must not be a date"),
            ("a = [[1]]", "c.toml, line 1: a must not be a list of lists"),
            ("a = [true]", "c.toml, line 1: a must be a list of texts or numbers"),
            ("[presets]\n\nfast = 1\n", "c.toml, line 3: 'fast' is no preset"),
            ("a = 0xffffffffffffffffffffffffffffffffffffff", "line 1: a must be a number of a sensible size"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(words), "{text:?}: {error}");
        }
    }
}
