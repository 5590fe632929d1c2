//! The `sayfa` program: parse, run, print the error chain, exit code.

use std::process::ExitCode;

use sayfa::cli::{self, Ended, Usage, terminal::ClosedPipe, terminal::Terminal};

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os().collect()) {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let mut terminal = Terminal::new(command.talk());
    let result = cli::run(command, &mut terminal).and_then(|ended| terminal.flush().map(|()| ended));
    match result {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            terminal.error(&format!("{error:#}"));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}
