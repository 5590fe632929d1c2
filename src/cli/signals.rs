//! Signals that end the program: Ctrl-C (SIGINT), SIGTERM and SIGHUP. Also the state of the terminal that must be put
//! back when one does.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

static CATCHING: AtomicBool = AtomicBool::new(false);
/// The first signal noted by the present or last `Interrupts`, 0 if there was none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
/// The last signal that was noted at all: what ends the program when its work is done.
static NOTED: AtomicI32 = AtomicI32::new(0);
/// Ctrl-C is meant for a program that runs in front of this one.
static LEFT_TO_CHILD: AtomicBool = AtomicBool::new(false);
/// How the terminal was before an editor or `without_echo` changed it.
static AT_START: OnceLock<Termios> = OnceLock::new();

/// From here on a signal ends the program with 128 and its number, after what was written has been handed on. While an
/// `Interrupts` lives the first one is only noted.
pub fn install() -> anyhow::Result<()> {
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(wanted).context("signals cannot be caught")?;
    // Caught, not ignored, so that no editor inherits it: a file beyond `ulimit -f` becomes an error of the write.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("signals cannot be caught")?;
    let wait = move || signals.forever().for_each(arrived);
    std::thread::Builder::new().name("signals".to_string()).spawn(wait).context("signals cannot be waited for")?;
    Ok(())
}

fn arrived(signal: i32) {
    if signal == SIGINT && LEFT_TO_CHILD.load(Ordering::SeqCst) {
        return;
    }
    if CATCHING.load(Ordering::SeqCst) && CAUGHT.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    {
        NOTED.store(signal, Ordering::SeqCst);
        return;
    }
    restore_terminal();
    std::process::exit(128 + signal);
}

/// Bit n - 1: whoever started the program lets it ignore signal n, as nohup and background jobs of scripts do.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// While this lives, the first signal is noted instead of ending the program.
pub struct Interrupts(());

impl Interrupts {
    pub fn catch() -> Interrupts {
        CAUGHT.store(0, Ordering::SeqCst);
        CATCHING.store(true, Ordering::SeqCst);
        Interrupts(())
    }

    pub fn pending(&self) -> bool {
        CAUGHT.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        CATCHING.store(false, Ordering::SeqCst);
    }
}

/// While this lives, Ctrl-C is for the program that this one waits for.
pub struct LeftToChild(());

pub fn leave_to_child() -> LeftToChild {
    LEFT_TO_CHILD.store(true, Ordering::SeqCst);
    LeftToChild(())
}

impl Drop for LeftToChild {
    fn drop(&mut self) {
        LEFT_TO_CHILD.store(false, Ordering::SeqCst);
    }
}

/// Whether the last noted signal asks for the end of the program, and not, as Ctrl-C may, only for that of its work.
pub fn end_is_wanted() -> bool {
    ![0, SIGINT].contains(&NOTED.load(Ordering::SeqCst))
}

/// The exit code of a program that a signal has ended.
pub fn exit_code() -> u8 {
    let signal = NOTED.load(Ordering::SeqCst);
    128 + u8::try_from(if signal == 0 { SIGINT } else { signal }).expect("signals have small numbers")
}

/// To be called before a command changes how the terminal works, so that it is put back however the program ends.
pub fn keep_terminal() {
    if let Ok(modes) = tcgetattr(io::stdin()) {
        let _ = AT_START.set(modes);
    }
}

/// While this lives, what is typed does not show, so that it cannot mix with an answer. It is not lost.
pub struct Silence(());

pub fn without_echo() -> Silence {
    if let Some(modes) = AT_START.get() {
        let mut modes = modes.clone();
        modes.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
    }
    Silence(())
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Some(modes) = AT_START.get() {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
        }
    }
}

fn restore_terminal() {
    let Some(modes) = AT_START.get() else { return };
    // From the background this would stop the program instead.
    if tcgetpgrp(io::stdin()).ok() != Some(getpgrp()) {
        return;
    }
    let edited = tcgetattr(io::stdin()).is_ok_and(|now| !now.local_modes.contains(LocalModes::ICANON));
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
    if edited && io::stderr().is_terminal() {
        // The line editor marks pastes, and the cursor stands behind its prompt.
        let _ = writeln!(io::stderr(), "\x1b[?2004l");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_is_noted_and_later_ones_do_not_replace_it() {
        let interrupts = Interrupts::catch();
        assert!(!interrupts.pending() && !end_is_wanted());
        arrived(SIGTERM);
        assert!(interrupts.pending() && end_is_wanted());
        assert_eq!(exit_code(), 143);
        drop(interrupts);
        // What is saved after an answer catches anew, and the program still ends by the signal of the answer.
        let saving = Interrupts::catch();
        assert!(!saving.pending() && end_is_wanted());
        assert_eq!(exit_code(), 143);
        drop(saving);
        // Else this would end the tests.
        let _left = leave_to_child();
        arrived(SIGINT);
    }
}
