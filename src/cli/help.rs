//! How the program presents itself: what the derived flags of each command leave open. The order of their headings, the
//! flags that every working command has, examples.

use clap::{Arg, ArgAction, Args, Command, CommandFactory};

use super::Cli;
use super::config::ConfigArgs;

/// Headings from what people look for first to what is the same everywhere. Others come before `Output`.
const HEADINGS: [&str; 14] = [
    "Prompt",
    "Model",
    "Sizes",
    "Generation",
    "Sampling",
    "Constraints",
    "KV cache",
    "Device",
    "Machine",
    "Simulation",
    "Session",
    OUTPUT,
    "Messages",
    "Configuration",
];
const OUTPUT: &str = "Output";

const EXAMPLES: &[(&str, &str)] = &[
    (
        "chat",
        "  sayfa chat -m llama-3.2-1b.Q4_K_M.gguf --system \"Answer in one sentence.\"\n  \
           sayfa chat --session talk.session              go on where it ended\n  \
           sayfa chat --temp 0 -c 8192 --kv-type int8\n\
         In a chat /? lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.",
    ),
    (
        "run",
        "  sayfa run -p \"Name three rivers.\" --temp 0\n  \
           git diff | sayfa run -p \"Write a commit message for this change.\"\n  \
           sayfa run -f report.txt -p \"What is the main point?\" --json\n  \
           sayfa run -p \"A name for a cat\" --n 5 -n 20",
    ),
    ("models", "  sayfa models\n  sayfa models --json"),
    ("tokenize", "  sayfa tokenize -p \"Hello world\"\n  sayfa tokenize --json < report.txt"),
    (
        "plan",
        "  sayfa plan -m llama-3.2-1b.Q4_K_M.gguf -c 32768\n  \
           sayfa plan --shape llama-2-13b --weights q4_0 -c 4000 --vram 24GiB\n  \
           sayfa plan --shape llama-2-7b --vram 12GiB --simulate --trace trace.txt\n\
         The exit code is 1 when it does not fit.",
    ),
    ("inspect", "  sayfa inspect llama-3.2-1b.Q4_K_M.gguf\n  sayfa inspect --json --full model.gguf"),
    ("perplexity", "  sayfa perplexity -f report.txt\n  sayfa perplexity -f report.txt --compare-kv"),
    (
        "bench",
        "  sayfa bench -m llama-3.2-1b.Q4_K_M.gguf -d 0,4096 --kv-types f16,int8\n  \
           sayfa bench --shape llama-3.2-1b --weights q4_0 --stages\n  \
           sayfa bench --json > before.json; sayfa bench --compare before.json",
    ),
    (
        "config",
        "  sayfa config                      what `sayfa` alone would use\n  \
           sayfa config run --temp 0         what `sayfa run --temp 0` would use\n  \
           sayfa config --preset precise bench\n  \
           sayfa config --init               writes an example to start from",
    ),
    (
        "completions",
        "  sayfa completions bash > ~/.local/share/bash-completion/completions/sayfa\n  \
           sayfa completions fish > ~/.config/fish/completions/sayfa.fish\n  \
           sayfa completions zsh > _sayfa        into a folder of $fpath",
    ),
];

/// The program as the parser, the help, completions and man pages know it.
pub fn program() -> Command {
    let mut place = 0;
    Cli::command().mut_subcommands(|command| {
        let command = with_examples(command);
        // What talks while it works is configured too.
        let works = command.get_arguments().any(|arg| arg.get_id() == "quiet");
        let command = if works { arranged(ConfigArgs::augment_args(command)) } else { command };
        place += 1;
        command.display_order(place)
    })
}

fn with_examples(command: Command) -> Command {
    match EXAMPLES.iter().find(|(name, _)| *name == command.get_name()) {
        Some((_, examples)) => command.after_help(format!("Examples:\n{examples}")),
        None => command,
    }
}

/// The same command with its flags in the order of their headings, whatever the order of the structs they come from: a
/// parser lists headings as it meets them.
fn arranged(command: Command) -> Command {
    let rank = |arg: &Arg| {
        let place = |heading| HEADINGS.iter().position(|&known| Some(known) == heading);
        place(arg.get_help_heading()).map_or(2 * place(Some(OUTPUT)).unwrap_or_default() - 1, |place| 2 * place)
    };
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help_heading("Messages")
        .display_order(usize::MAX)
        .help("This help, in short (-h) or in full (--help)");
    let mut args: Vec<Arg> = command.get_arguments().cloned().chain([help]).collect();
    args.sort_by_key(rank);
    let mut arranged = Command::new(command.get_name().to_string())
        .disable_help_flag(true)
        .groups(command.get_groups().cloned())
        .args(args)
        .hide(command.is_hide_set())
        .visible_aliases(command.get_visible_aliases().map(str::to_string).collect::<Vec<_>>());
    if let Some(about) = command.get_about() {
        arranged = arranged.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        arranged = arranged.long_about(about.clone());
    }
    if let Some(examples) = command.get_after_help() {
        arranged = arranged.after_help(examples.clone());
    }
    arranged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_sound() {
        program().debug_assert();
    }

    #[test]
    fn the_help_of_every_command_follows_one_order_of_headings() {
        for command in
            program().get_subcommands().filter(|command| command.get_arguments().any(|arg| arg.get_id() == "quiet"))
        {
            let mut seen: Vec<&str> = command.get_arguments().filter_map(Arg::get_help_heading).collect();
            seen.dedup();
            let known: Vec<usize> =
                seen.iter().filter_map(|seen| HEADINGS.iter().position(|known| known == seen)).collect();
            assert!(known.is_sorted_by(|a, b| a < b), "{}: {seen:?}", command.get_name());
        }
    }

    #[test]
    fn commands_are_listed_as_they_are_written_down() {
        let program = program();
        let names: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
        assert_eq!(names[..2], ["chat", "run"]);
        assert!(program.get_subcommands().map(Command::get_display_order).is_sorted_by(|a, b| a < b), "{names:?}");
    }

    #[test]
    fn examples_belong_to_commands_that_are_there_and_parse() {
        for (name, examples) in EXAMPLES {
            assert!(program().find_subcommand(name).is_some(), "{name}");
            assert!(examples.contains(&format!("sayfa {name}")), "{name}: {examples}");
        }
    }
}
