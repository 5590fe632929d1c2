//! The command line as it was typed: which command it means, and what its flags say before any configuration.

use std::ffi::OsString;

use clap::{ArgAction, ArgMatches, Command, FromArgMatches};

use super::{Cli, Command as Asked};

#[derive(Clone)]
pub struct Typed {
    /// The program, the command, its flags.
    pub args: Vec<OsString>,
    /// Long names of the switches that `--NAME=false` turns off. The parser knows no such thing: it is for a switch that
    /// the configuration turns on.
    pub switched_off: Vec<String>,
    pub matches: ArgMatches,
}

impl Typed {
    /// Without the name of a command the flags are those of `run` if there is something to read, else those of `chat`.
    pub fn parse(args: Vec<OsString>, stdin_is_terminal: bool, program: &Command) -> Result<Typed, clap::Error> {
        let first = args.get(1).map(|first| first.to_string_lossy().into_owned()).unwrap_or_default();
        let names_command = !first.is_empty() && !first.starts_with('-');
        if names_command || ["-h", "--help", "-V", "--version"].contains(&first.as_str()) {
            return Typed::new(args, program);
        }
        let parse_as = |name: &str| {
            let (start, flags) = args.split_at(args.len().min(1));
            let with_name = start.iter().cloned().chain([OsString::from(name)]).chain(flags.iter().cloned());
            Typed::new(with_name.collect(), program)
        };
        match parse_as("run") {
            Ok(typed) if stdin_is_terminal && !typed.gives_prompt() => parse_as("chat"),
            // A flag that only chat has.
            Err(error) if stdin_is_terminal => parse_as("chat").map_err(|_| error),
            typed => typed,
        }
    }

    /// With the name of a command behind the program's.
    pub fn new(mut args: Vec<OsString>, program: &Command) -> Result<Typed, clap::Error> {
        let name = args.get(1).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let switched_off = program.find_subcommand(&name).map(|command| take_switches(&mut args, command));
        let matches = program.clone().try_get_matches_from(&args)?;
        Ok(Typed { args, switched_off: switched_off.unwrap_or_default(), matches })
    }

    pub fn command<'a>(&self, program: &'a Command) -> &'a Command {
        let name = self.matches.subcommand_name().unwrap_or_default();
        program.find_subcommand(name).expect("the parser found it in there")
    }

    /// What the flags of the command say.
    pub fn flags(&self) -> &ArgMatches {
        self.matches.subcommand().map_or(&self.matches, |(_, flags)| flags)
    }

    fn gives_prompt(&self) -> bool {
        match Cli::from_arg_matches(&self.matches) {
            Ok(Cli { command: Asked::Run(run) }) => run.input.is_given(),
            _ => false,
        }
    }
}

/// Makes `--NAME=true` the plain switch and takes `--NAME=false` away, with the same switch before it: the last word counts.
fn take_switches(args: &mut Vec<OsString>, command: &Command) -> Vec<String> {
    let is_switch = |long: &str| {
        let mut switches = command.get_arguments().filter(|flag| matches!(flag.get_action(), ArgAction::SetTrue));
        switches.any(|flag| flag.get_long() == Some(long))
    };
    let mut off: Vec<String> = Vec::new();
    let mut kept: Vec<OsString> = Vec::new();
    let mut rest = std::mem::take(args).into_iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy().into_owned();
        let switch = text.strip_prefix("--").map(|text| text.split_once('=').unwrap_or((text, "true")));
        match switch.filter(|(long, _)| is_switch(long)) {
            Some((long, "false")) => {
                kept.retain(|kept| *kept != *format!("--{long}"));
                off.push(long.to_string());
            }
            Some((long, "true")) => {
                off.retain(|off| off != long);
                kept.push(format!("--{long}").into());
            }
            _ => kept.push(arg),
        }
        // Behind it there are no flags.
        if text == "--" {
            kept.extend(rest.by_ref());
        }
    }
    *args = kept;
    off
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::help;

    fn typed(flags: &str, stdin_is_terminal: bool) -> Result<Typed, clap::Error> {
        let args = std::iter::once("sayfa").chain(flags.split_whitespace()).map(OsString::from).collect();
        Typed::parse(args, stdin_is_terminal, &help::program())
    }

    #[test]
    fn without_a_command_a_prompt_means_run_and_a_terminal_chat() {
        let name = |flags, stdin_is_terminal| {
            typed(flags, stdin_is_terminal).ok()?.matches.subcommand_name().map(str::to_string)
        };
        for (flags, stdin_is_terminal) in
            [("-m M -p hi", true), ("-p hi", false), ("-p x -t 2", true), ("", false), ("-m M", false)]
        {
            assert_eq!(name(flags, stdin_is_terminal).as_deref(), Some("run"), "{flags}");
        }
        for (flags, stdin_is_terminal) in [("", true), ("-m M --temp 0", true), ("chat -m M", false)] {
            assert_eq!(name(flags, stdin_is_terminal).as_deref(), Some("chat"), "{flags}");
        }
        assert!(typed("-m M --no-such-flag", true).is_err() && typed("model.gguf", true).is_err());
    }

    #[test]
    fn switches_take_true_and_false_and_the_last_word_counts() {
        let of = |flags: &str| {
            let typed = typed(flags, true).unwrap();
            (typed.flags().get_flag("mlock"), typed.switched_off)
        };
        let off = || vec!["mlock".to_string()];
        assert_eq!(of("run -p x --mlock=false"), (false, off()));
        assert_eq!(of("run -p x --mlock=true"), (true, vec![]));
        assert_eq!(of("run -p x --mlock --mlock=false"), (false, off()));
        assert_eq!(of("run -p x --mlock=false --mlock"), (true, vec![]));
        assert!(typed("run -p x --mlock=maybe", true).is_err() && typed("inspect --mlock=false x", true).is_err());
        // A value and no flag.
        assert_eq!(typed("inspect -- --json=false", true).unwrap().args.len(), 4);
    }

    #[test]
    fn flags_out_of_range_are_usage_errors_that_name_the_flag() {
        for (flags, name) in [
            ("--top-p -0.1", "--top-p"),
            ("--top-p 1.5", "--top-p"),
            ("--top-p nan", "--top-p"),
            ("--min-p -1", "--min-p"),
            ("--temp -1", "--temp"),
            ("--repeat-penalty 0", "--repeat-penalty"),
            ("--repeat-last-n -2", "--repeat-last-n"),
            ("-c -1", "--ctx-size"),
            ("-b 0", "--batch-size"),
            ("-t -1", "--threads"),
            ("-n -3", "--predict"),
            ("-s -2", "--seed"),
        ] {
            let error = typed(&format!("run -p hi {flags}"), true).err().expect(flags);
            assert!(error.exit_code() == 2 && error.to_string().contains(name), "{flags}: {error}");
        }
        for flags in
            ["--top-k -1", "--top-k 1000000000", "--repeat-last-n -1", "-s 0", "-s -1", "-n -2", "-t 0", "-c 0"]
        {
            assert!(typed(&format!("run -p hi {flags}"), true).is_ok(), "{flags}");
        }
    }
}
