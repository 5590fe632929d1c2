//! The configuration file: defaults of flags, and named presets, under the long names of the flags. What it says is handed
//! to the parser as flags in front of the user's own, so that the same code checks both. Who counts, from the highest:
//! flags, the preset, the environment, the table of the command, the top of the file. What a higher one says or excludes
//! is left out below.

mod file;
mod show;

use std::any::TypeId;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{Typed, Usage, usage};
use file::{File, Scalar, Setting, Table, Value};

pub use show::{ConfigCommand, config};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct ConfigArgs {
    /// Use this preset of the configuration file
    #[arg(long, value_name = "NAME", conflicts_with = "no_config")]
    preset: Option<String>,

    /// Read this configuration file
    ///
    /// [default: $SAYFA_CONFIG, else sayfa/config.toml in $XDG_CONFIG_HOME or ~/.config]
    #[arg(long, value_name = "FILE", conflicts_with = "no_config")]
    config: Option<PathBuf>,

    /// Read no configuration file
    #[arg(long)]
    no_config: bool,
}

/// Flags that the file cannot set: they say what is done with it.
const NO_KEYS: [&str; 5] = ["preset", "config", "no-config", "help", "version"];

/// Variables that count like a flag, above the file and below a preset.
const ENVIRONMENT: [(&str, &str); 2] = [("model", "SAYFA_MODEL"), ("simd", "SAYFA_SIMD")];

/// Flags that leave out others in the file without a conflict on the command line: the whole its parts, and of two ways to
/// say the same the lower one.
const REPLACES: [(&str, &str); 4] =
    [("kv-type", "kv-type-k"), ("kv-type", "kv-type-v"), ("samplers", "sampler-seq"), ("sampler-seq", "samplers")];

/// A command line with all that counts.
pub struct Understood {
    pub matches: ArgMatches,
    pub typed: Typed,
    pub added: Vec<Added>,
    file: Option<File>,
    preset: Option<String>,
}

/// What the file adds to a command line.
#[derive(Clone, Debug)]
pub struct Added {
    key: String,
    short: Option<char>,
    /// Empty for a switch that is off.
    args: Vec<OsString>,
    line: usize,
    /// `PATH, line N`.
    place: String,
    is_preset: bool,
}

impl Understood {
    /// From what was typed and the configuration that it names.
    pub fn new(typed: Typed, program: &Command) -> anyhow::Result<Understood> {
        let command = typed.command(program);
        if !is_configured(command) {
            let matches = typed.matches.clone();
            return Ok(Understood { matches, typed, added: Vec::new(), file: None, preset: None });
        }
        let flags = ConfigArgs::from_arg_matches(typed.flags())?;
        let file = if flags.no_config { None } else { flags.read()? };
        let (matches, added) = match &file {
            Some(file) => {
                check_names(file, program)?;
                complete(&typed, file, flags.preset.as_deref(), program)?
            }
            None => (typed.matches.clone(), Vec::new()),
        };
        Ok(Understood { matches, typed, added, file, preset: flags.preset })
    }
}

/// What was typed together with what the file adds to it.
fn complete(
    typed: &Typed,
    file: &File,
    preset: Option<&str>,
    program: &Command,
) -> anyhow::Result<(ArgMatches, Vec<Added>)> {
    let mut added = additions(file, preset, typed, typed.command(program))?;
    let parse = |added: &[Added]| {
        let (start, flags) = typed.args.split_at(2);
        let added = added.iter().flat_map(|added| &added.args);
        program.clone().try_get_matches_from(start.iter().chain(added).chain(flags))
    };
    let lacks_another = |error: &clap::Error| error.kind() == ErrorKind::MissingRequiredArgument;
    let mut parsed = parse(&added);
    // What was typed lacks nothing: a key waits for another flag, which nobody gave.
    if parsed.as_ref().is_err_and(lacks_another) {
        added.retain(|one| !parse(std::slice::from_ref(one)).as_ref().is_err_and(lacks_another));
        parsed = parse(&added);
    }
    let matches = parsed.map_err(|error| blame(&error, &added))?;
    Ok((matches, added))
}

impl ConfigArgs {
    fn read(&self) -> anyhow::Result<Option<File>> {
        let place = file::place(self.config.as_ref());
        let file = place.as_ref().map(file::read).transpose()?.flatten();
        match (&self.preset, &file) {
            (Some(preset), None) => {
                let place = place.map_or_else(
                    || "$SAYFA_CONFIG is empty, which means none".to_string(),
                    |place| format!("there is none at {}", place.path.display()),
                );
                bail!(Usage(format!("--preset {preset} needs a configuration file: {place}")))
            }
            _ => Ok(file),
        }
    }
}

/// Whether the command takes anything from the file.
fn is_configured(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == "no_config") && command.get_name() != "config"
}

/// The flag that a key stands for.
fn flag<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|flag| flag.get_long() == Some(key) && !NO_KEYS.contains(&key))
}

/// Whether every key is a flag of its command, those outside of the commands' tables of any.
fn check_names(file: &File, program: &Command) -> anyhow::Result<()> {
    let configured = || program.get_subcommands().filter(|command| is_configured(command));
    let check = |setting: &Setting, commands: &[&Command], there: &str| {
        if commands.iter().any(|command| flag(command, &setting.key).is_some()) {
            return Ok(());
        }
        let suggestion = commands.iter().find_map(|command| suggestion(command, &setting.key));
        let suggestion = suggestion.map_or_else(String::new, |key| format!(", did you mean {key}?"));
        Err(file.wrong(setting.line, &format!("there is no key '{}'{there}{suggestion}", setting.key)))
    };
    let all: Vec<&Command> = configured().collect();
    let anywhere = file.all.iter().chain(file.presets.iter().flat_map(|preset| &preset.settings));
    for setting in anywhere {
        check(setting, &all, "")?;
    }
    for Table { name, line, settings } in &file.commands {
        let Some(command) = configured().find(|command| command.get_name() == name) else {
            let names: Vec<&str> = configured().map(Command::get_name).collect();
            bail!(
                file.wrong(
                    *line,
                    &format!("there is no table '{name}': tables are presets.NAME, {}", names.join(", "))
                )
            );
        };
        for setting in settings {
            check(setting, &[command], &format!(" for {name}"))?;
        }
    }
    Ok(())
}

/// The long name that somebody may have meant, by other names of the flag and by what the parser would suggest.
fn suggestion(command: &Command, key: &str) -> Option<String> {
    let dashes = key.replace('_', "-");
    let named = |arg: &&Arg| {
        arg.get_long() == Some(&dashes) || arg.get_all_aliases().unwrap_or_default().contains(&dashes.as_str())
    };
    if let Some(long) = command.get_arguments().find(named).and_then(Arg::get_long) {
        return (!NO_KEYS.contains(&long)).then(|| long.to_string());
    }
    let error = command.clone().try_get_matches_from(["", &format!("--{key}")]).err()?;
    usage::suggested_flag(&error).map(|flag| flag.trim_start_matches("--").to_string())
}

/// What the file adds for this command.
fn additions<'a>(file: &'a File, preset: Option<&str>, typed: &Typed, command: &Command) -> anyhow::Result<Vec<Added>> {
    let preset = preset.map(|name| file.preset(name)).transpose()?;
    let table = file.commands.iter().find(|table| table.name == command.get_name());
    let settings = |table: Option<&'a Table>| table.map_or([].iter(), |table| table.settings.iter());
    // Flags that are settled, and whether they rule out those that they conflict with.
    let mut settled: Vec<(&Arg, bool)> = Vec::new();
    for flag in command.get_arguments() {
        let is_off = typed.switched_off.iter().any(|long| flag.get_long() == Some(long));
        if is_off || typed.flags().value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine) {
            settled.push((flag, !is_off));
        }
    }
    let environment = ENVIRONMENT.iter().filter(|(_, name)| variable(name).is_some());
    let environment: Vec<_> = environment.filter_map(|(key, _)| Some((flag(command, key)?, false))).collect();
    let mut added = Vec::new();
    let layers =
        [(settings(preset), vec![], true), (settings(table), environment, false), (file.all.iter(), vec![], false)];
    for (layer, above, is_preset) in layers {
        settled.extend(above);
        let mut settled_here = Vec::new();
        for setting in layer {
            let Some(flag) = flag(command, &setting.key) else { continue };
            if settled.iter().any(|&(above, rules_out)| {
                above.get_id() == flag.get_id() || rules_out && excludes(command, above, flag)
            }) {
                continue;
            }
            let args = arguments(setting, flag)
                .map_err(|what| file.wrong(setting.line, &format!("{} {what}", setting.key)))?;
            settled_here.push((flag, !args.is_empty()));
            let place = file.line(setting.line);
            added.push(Added {
                key: setting.key.clone(),
                short: flag.get_short(),
                args,
                line: setting.line,
                place,
                is_preset,
            });
        }
        settled.extend(settled_here);
    }
    Ok(added)
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether the lower flag says nothing beside the higher one.
fn excludes(command: &Command, higher: &Arg, lower: &Arg) -> bool {
    let conflicts = |a, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id());
    let longs = (higher.get_long().unwrap_or_default(), lower.get_long().unwrap_or_default());
    conflicts(higher, lower) || conflicts(lower, higher) || REPLACES.contains(&longs)
}

/// The setting as the parser knows it; empty for a switch that is off. An error says what the value must be.
fn arguments(setting: &Setting, flag: &Arg) -> Result<Vec<OsString>, String> {
    let is_switch = matches!(flag.get_action(), ArgAction::SetTrue);
    match &setting.value {
        Value::Switch(true) if is_switch => Ok(vec![format!("--{}", setting.key).into()]),
        Value::Switch(false) if is_switch => Ok(Vec::new()),
        _ if is_switch => Err("must be true or false".to_string()),
        Value::Switch(switch) => Err(format!("must be a value, not {switch}")),
        Value::Many(_) if !is_list(flag) => Err("must be one value, not a list".to_string()),
        Value::One(value) => Ok(vec![argument(value, flag)?]),
        // No value at all would be a flag without one.
        Value::Many(values) => values.iter().map(|value| argument(value, flag)).collect(),
    }
}

/// Whether the flag takes several values.
fn is_list(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::Append) || flag.get_value_delimiter().is_some()
}

/// Whether any value will do.
fn takes_text(flag: &Arg) -> bool {
    let texts = [TypeId::of::<String>(), TypeId::of::<OsString>(), TypeId::of::<PathBuf>()];
    texts.iter().any(|text| flag.get_value_parser().type_id() == *text)
}

fn argument(value: &Scalar, flag: &Arg) -> Result<OsString, String> {
    if takes_text(flag) && !value.is_text {
        return Err(format!("must be a text in quotation marks, not {}", value.text));
    }
    let is_path = flag.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let mut argument = OsString::from(format!("--{}=", flag.get_long().unwrap_or_default()));
    // What a shell would do for a flag.
    match (value.text.strip_prefix("~/").filter(|_| is_path), env::var_os("HOME")) {
        (Some(rest), Some(home)) => argument.push(Path::new(&home).join(rest)),
        _ => argument.push(&value.text),
    }
    Ok(argument)
}

/// What was typed alone is sound, so the file is to blame.
fn blame(error: &clap::Error, added: &[Added]) -> anyhow::Error {
    let key = |flag: &str| flag.trim_start_matches('-').to_string();
    let about = key(&usage::flag(error));
    let sentence = usage::wrong(error, &[], "config", key);
    let place = added.iter().find(|added| added.key == about).or(added.first());
    anyhow!(Usage(format!("{}: {sentence}", place.map_or("the configuration", |added| &added.place))))
}

/// An error with a word on the flags in it that stand in the file rather than on the command line.
pub fn explained(error: anyhow::Error, added: &[Added]) -> anyhow::Error {
    let text = format!("{error:#}");
    let places: Vec<String> = added
        .iter()
        .filter(|added| {
            let short = added.short.is_some_and(|short| mentions(&text, &format!("-{short}")));
            !added.args.is_empty() && (short || mentions(&text, &format!("--{}", added.key)))
        })
        .map(|added| format!("{} is set in {}", added.key, added.place))
        .collect();
    match (places.is_empty(), error.is::<Usage>()) {
        (true, _) => error,
        (false, true) => Usage(format!("{text} ({})", places.join("; "))).into(),
        (false, false) => anyhow!("{text} ({})", places.join("; ")),
    }
}

/// Whether a text holds this flag, and not a longer one that begins or ends like it.
fn mentions(text: &str, flag: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-';
    text.match_indices(flag)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + flag.len()..].starts_with(is_part))
}

#[cfg(test)]
mod tests;
