//! `sayfa completions`: what a shell needs to complete commands and flags.

use clap::{Args, Command};
use clap_complete::Shell;

use super::terminal::Terminal;
use super::{Ended, help};

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell that shall complete
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

pub fn completions(args: &CompletionsArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut completed(help::program()), "sayfa", &mut script);
    terminal.write_text(&String::from_utf8_lossy(&script))?;
    Ok(Ended::Done)
}

/// The program without its hidden commands, and with the flags of `run` and `chat`, which count without a command too.
fn completed(program: Command) -> Command {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut completed = Command::new("sayfa").subcommands(shown);
    if let Some(about) = program.get_about() {
        completed = completed.about(about.clone());
    }
    if let Some(version) = program.get_version() {
        completed = completed.version(version.to_string());
    }
    for command in ["run", "chat"].iter().filter_map(|name| program.find_subcommand(name)) {
        let known: Vec<_> = completed.get_arguments().cloned().collect();
        let is_there = |id: &clap::Id| known.iter().any(|known| known.get_id() == id);
        let own = command.get_arguments().filter(|flag| flag.get_id() != "help" && !is_there(flag.get_id()));
        // Both may use a name for different things, and a conflict must be with a flag that is there.
        let own = own.filter(|flag| {
            let is_new = known.iter().all(|known| {
                (flag.get_short().is_none() || known.get_short() != flag.get_short())
                    && (flag.get_long().is_none() || known.get_long() != flag.get_long())
            });
            let conflicts = command.get_arg_conflicts_with(flag);
            known.is_empty() || is_new && conflicts.iter().all(|flag| is_there(flag.get_id()))
        });
        completed = completed.args(own.cloned().collect::<Vec<_>>());
    }
    completed
}
