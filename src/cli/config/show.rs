//! `sayfa config`: what holds for a command, and where each value came from.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, Args, Command};
use serde_json::{Map, Value as Json, json};

use super::file::{self, Place};
use super::{ConfigArgs, ENVIRONMENT, NO_KEYS, Understood, is_configured, variable};
use crate::cli::terminal::Terminal;
use crate::cli::{Ended, Read, Usage, help};

/// Longest value in the table; `--json` gives all of it.
const VALUE_CHARS: usize = 36;

#[derive(Debug, Args)]
pub struct ConfigCommand {
    /// The command to ask about, with any of its flags
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    asked: Vec<OsString>,

    /// Print one JSON object
    ///
    /// {command, file, preset, presets, settings: {KEY: {value, source, line}}}
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Print the path of the configuration file
    #[arg(long, help_heading = "Output", conflicts_with_all = ["json", "init"])]
    path: bool,

    /// Write an example to start from, if there is no file yet
    #[arg(long, help_heading = "Output", conflicts_with = "json")]
    init: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

pub fn config(args: &ConfigCommand, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    if args.path || args.init {
        ensure!(args.asked.is_empty(), Usage("--path and --init stand alone".to_string()));
        let Some(place) = file::place(args.config.config.as_ref()).filter(|_| !args.config.no_config) else {
            bail!("there is no configuration file: it is switched off");
        };
        if args.init {
            write_example(&place.path)?;
        }
        terminal.write_line(&place.path.display().to_string())?;
        return Ok(Ended::Done);
    }
    let program = help::program();
    // Behind the command only its own flags are expected; this one is meant for us wherever it stands.
    let (own, asked): (Vec<OsString>, _) = args.asked.iter().cloned().partition(|arg| arg == "--json");
    let understood = match crate::cli::read(args.config.before(asked), true, &program)? {
        Read::Help(help) => return terminal.write_help(&help).map(|()| Ended::Done),
        Read::Command(understood) => understood,
    };
    let command = understood.typed.command(&program);
    ensure!(is_configured(command), Usage(format!("'{}' takes nothing from the configuration", command.get_name())));
    understood.check_all(&program)?;
    let place = file::place(args.config.config.as_ref());
    if args.json || !own.is_empty() {
        terminal.write_line(&understood.to_json(command).to_string())?;
    } else {
        for line in understood.head(command, place.as_ref()).into_iter().chain(understood.table(command)) {
            terminal.write_line(&line)?;
        }
    }
    Ok(Ended::Done)
}

/// Never over a file that is there.
fn write_example(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder
        .map_or(Ok(()), |folder| DirBuilder::new().recursive(true).mode(0o700).create(folder))
        .and_then(|()| OpenOptions::new().write(true).create_new(true).open(path))
        .and_then(|mut file| file.write_all(include_str!("example.toml").as_bytes()))
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow::anyhow!("there is a file already, which stays as it is"),
            _ => error.into(),
        })
        .with_context(|| format!("{}: no example is written", path.display()))
}

impl ConfigArgs {
    /// The same flags in front of those of a command.
    fn before(&self, asked: Vec<OsString>) -> Vec<OsString> {
        let mut own: Vec<OsString> = Vec::new();
        if let Some(preset) = &self.preset {
            own.push(format!("--preset={preset}").into());
        }
        if let Some(path) = &self.config {
            let mut flag = OsString::from("--config=");
            flag.push(path);
            own.push(flag);
        }
        if self.no_config {
            own.push("--no-config".into());
        }
        let names = asked.first().is_some_and(|first| !first.to_string_lossy().starts_with('-'));
        let mut asked = asked.into_iter();
        let name = asked.by_ref().take(usize::from(names)).collect::<Vec<_>>();
        std::iter::once("sayfa".into()).chain(name).chain(own).chain(asked).collect()
    }
}

/// Where a value came from.
enum Source {
    Default,
    File(usize),
    Environment(&'static str),
    Preset(usize),
    Flag,
}

/// A flag as it stands.
struct Row<'a> {
    key: &'a str,
    flag: &'a Arg,
    values: Vec<String>,
    source: Source,
}

impl Row<'_> {
    fn value(&self) -> String {
        match &self.values[..] {
            // The default is not a value of the parser: the help tells what it is.
            [] => default_in_words(self.flag).unwrap_or_else(|| "-".to_string()),
            values => values.join(", "),
        }
    }

    fn to_json(&self) -> Json {
        let is_number = |text: &&String| serde_json::from_str::<serde_json::Number>(text).is_ok();
        let value = |text: &String| match text.as_str() {
            _ if super::takes_text(self.flag) => Json::from(text.as_str()),
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            _ => Some(text)
                .filter(is_number)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or(Json::from(text.as_str())),
        };
        if super::is_list(self.flag) {
            return self.values.iter().map(value).collect();
        }
        self.values.first().map_or(Json::Null, value)
    }
}

impl Understood {
    fn rows<'a>(&'a self, command: &'a Command) -> Vec<Row<'a>> {
        let flags = command.get_arguments().filter_map(|flag| Some((flag.get_long()?, flag)));
        flags.filter(|(key, _)| !NO_KEYS.contains(key)).map(|(key, flag)| self.row(key, flag)).collect()
    }

    fn row<'a>(&self, key: &'a str, flag: &'a Arg) -> Row<'a> {
        let id = flag.get_id().as_str();
        let flags = self.matches.subcommand().map(|(_, flags)| flags).unwrap_or(&self.matches);
        let raw = flags.get_raw(id).into_iter().flatten();
        let mut values: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
        let is_off = self.typed.switched_off.iter().any(|long| long == key);
        let source = match self.added.iter().find(|added| added.key == key) {
            _ if is_off || self.typed.flags().value_source(id) == Some(ValueSource::CommandLine) => Source::Flag,
            Some(added) if added.is_preset => Source::Preset(added.line),
            Some(added) => Source::File(added.line),
            None => {
                match ENVIRONMENT.iter().find_map(|&(of, name)| Some((name, variable(name).filter(|_| of == key)?))) {
                    Some((name, value)) => {
                        values = vec![value.to_string_lossy().into_owned()];
                        Source::Environment(name)
                    }
                    None => Source::Default,
                }
            }
        };
        Row { key, flag, values, source }
    }

    fn head(&self, command: &Command, place: Option<&Place>) -> Vec<String> {
        let file = match (&self.file, place) {
            (Some(file), _) => file.path.display().to_string(),
            (None, Some(place)) => format!("none at {}", place.path.display()),
            (None, None) => "none".to_string(),
        };
        let names: Vec<&str> =
            self.file.iter().flat_map(|file| &file.presets).map(|preset| preset.name.as_str()).collect();
        let preset = match (&self.preset, names.is_empty()) {
            (Some(preset), _) => format!("{preset}, of {}", names.join(", ")),
            (None, false) => format!("none of {}", names.join(", ")),
            (None, true) => "none".to_string(),
        };
        [("command", command.get_name()), ("file", &file), ("preset", &preset)]
            .map(|(name, value)| format!("{name:<8} {value}"))
            .to_vec()
    }

    fn table(&self, command: &Command) -> Vec<String> {
        let rows = self.rows(command);
        let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let keys = width(&mut rows.iter().map(|row| row.key.len()));
        // A long value stands out; the others stay in their column.
        let values = rows.iter().map(|row| one_line(&row.value()).chars().count());
        let values = width(&mut values.filter(|&chars| chars <= VALUE_CHARS));
        let mut lines = Vec::new();
        let mut heading = None;
        for row in &rows {
            if heading != Some(row.flag.get_help_heading()) {
                heading = Some(row.flag.get_help_heading());
                lines.extend([String::new(), row.flag.get_help_heading().unwrap_or("Options").to_string()]);
            }
            let source = match row.source {
                Source::Default => "default".to_string(),
                Source::File(line) => format!("file, line {line}"),
                Source::Environment(name) => format!("${name}"),
                Source::Preset(line) => format!("preset, line {line}"),
                Source::Flag => "flag".to_string(),
            };
            lines.push(format!("  {:<keys$}  {:<values$}  {source}", row.key, one_line(&row.value())));
        }
        lines
    }

    fn to_json(&self, command: &Command) -> Json {
        let settings: Map<String, Json> = self
            .rows(command)
            .iter()
            .map(|row| {
                let mut entry = json!({"value": row.to_json()});
                let (source, line) = match row.source {
                    Source::Default => ("default", None),
                    Source::File(line) => ("file", Some(line)),
                    Source::Environment(_) => ("environment", None),
                    Source::Preset(line) => ("preset", Some(line)),
                    Source::Flag => ("flag", None),
                };
                entry["source"] = source.into();
                if let Some(line) = line {
                    entry["line"] = line.into();
                }
                (row.key.to_string(), entry)
            })
            .collect();
        let presets = self.file.iter().flat_map(|file| &file.presets).map(|preset| preset.name.as_str());
        json!({
            "command": command.get_name(),
            "file": self.file.as_ref().map(|file| file.path.display().to_string()),
            "preset": self.preset,
            "presets": presets.collect::<Vec<_>>(),
            "settings": settings,
        })
    }

    /// What is wrong with the file for any command and preset: a command alone looks at its own part of it.
    fn check_all(&self, program: &Command) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let presets: Vec<Option<&str>> =
            std::iter::once(None).chain(file.presets.iter().map(|preset| Some(preset.name.as_str()))).collect();
        for command in program.get_subcommands().filter(|command| is_configured(command)) {
            for preset in &presets {
                let args = vec![OsString::from("sayfa"), command.get_name().into()];
                let typed = crate::cli::Typed::new(args, program)?;
                super::complete(&typed, file, *preset, program)?;
            }
        }
        Ok(())
    }
}

/// `[default: ...]` at the end of a flag's help.
fn default_in_words(flag: &Arg) -> Option<String> {
    let help = flag.get_long_help().or(flag.get_help())?.to_string();
    let (_, words) = help.rsplit_once("[default: ")?;
    Some(words.split(']').next().unwrap_or(words).split_whitespace().collect::<Vec<_>>().join(" "))
}

fn one_line(value: &str) -> String {
    value.replace('\n', "\\n").replace('\t', "\\t")
}
