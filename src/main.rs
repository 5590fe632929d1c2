//! The `sayfa` program: parse, run, print the error chain, exit code.

use std::process::ExitCode;

use sayfa::cli::{self, Asked, Ended, Usage, signals, terminal::ClosedPipe, terminal::Terminal};

fn main() -> ExitCode {
    let asked = cli::parse(std::env::args_os().collect());
    let mut terminal = Terminal::new(asked.as_ref().map(Asked::talk).unwrap_or_default());
    let ended = asked.and_then(|asked| cli::run(asked, &mut terminal));
    match ended.and_then(|ended| terminal.flush().map(|()| ended)) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Interrupted) => ExitCode::from(signals::exit_code()),
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            terminal.error(&format!("{error:#}"));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}
