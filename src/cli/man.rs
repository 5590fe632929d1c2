//! `sayfa man FOLDER`, for `scripts/man.sh` and packagers: a man page of the program and of each command.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::terminal::Terminal;
use super::{Ended, help};

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where to write the pages
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub fn man(args: &ManArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let mut program = help::program().disable_help_subcommand(true);
    program.build();
    let shown: Vec<&Command> = program.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let pages: Vec<String> = shown.iter().map(|command| format!("sayfa-{}(1)", command.get_name())).collect();
    fs::create_dir_all(&args.folder).with_context(|| format!("{} cannot be made", args.folder.display()))?;
    let mut write = |command: &Command, see: &str| {
        let path = write_page(command, see, &args.folder)?;
        terminal.write_line(&path.display().to_string())
    };
    write(&program, &pages.join(", "))?;
    for command in shown {
        write(command, "sayfa(1)")?;
    }
    Ok(Ended::Done)
}

fn write_page(command: &Command, see_also: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    // As in the help: a list of all flags would say less.
    let usage = command.clone().render_usage().to_string();
    let command = command.clone().override_usage(usage.trim_start_matches("Usage: ").to_string());
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.has_subcommands();
    let page = Man::new(command).source(concat!("sayfa ", env!("CARGO_PKG_VERSION")));
    let path = folder.join(page.get_filename());
    File::create(&path)
        .and_then(|mut file| {
            page.render_title(&mut file)?;
            page.render_name_section(&mut file)?;
            page.render_synopsis_section(&mut file)?;
            page.render_description_section(&mut file)?;
            page.render_options_section(&mut file)?;
            if has_commands {
                page.render_subcommands_section(&mut file)?;
            }
            let mut roff = Roff::new();
            for part in after.split("\n\n").filter(|part| !part.is_empty()) {
                after_help(part, &mut roff);
            }
            roff.control("SH", ["SEE ALSO"]).text([roman(see_also)]);
            roff.to_writer(&mut file)?;
            file.flush()
        })
        .with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(path)
}

/// Examples and notes, line by line as they are.
fn after_help(text: &str, roff: &mut Roff) {
    let (heading, text) = match text.strip_prefix("Examples:\n") {
        Some(examples) => ("EXAMPLES", examples),
        None => ("NOTES", text),
    };
    roff.control("SH", [heading]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}
