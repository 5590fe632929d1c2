//! How the weights of a model get into memory: mapped and read ahead, read whole, locked.

use std::path::Path;

use super::args::ModelArgs;
use super::machine::{self, Memory, mib};
use super::terminal::{Progress, Terminal};
use crate::gguf::Gguf;

/// The file as the flags want it: mapped, or read here and now.
pub fn open(path: &Path, args: &ModelArgs, terminal: &Terminal) -> anyhow::Result<Gguf> {
    if !args.no_mmap {
        return Ok(Gguf::open(path)?);
    }
    let mut progress: Option<Progress> = None;
    let gguf = Gguf::read(path, &mut |done, total| {
        if done == 0 {
            refuse_without_memory(total, args)?;
            progress = Some(terminal.progress_bytes("reading", total));
        }
        progress.iter_mut().for_each(|progress| progress.set(done));
        Ok(())
    })?;
    Ok(gguf)
}

fn refuse_without_memory(bytes: u64, args: &ModelArgs) -> Result<(), String> {
    match machine::available_memory() {
        Some(Memory { bytes: free, limit }) if bytes > free && !args.force => Err(format!(
            "--no-mmap takes {} of memory for this file, but {limit} leaves {}: leave the flag out, or insist with --force",
            mib(bytes),
            mib(free)
        )),
        _ => Ok(()),
    }
}

/// Brings what is mapped into memory, if memory can hold it, and locks it if asked for.
pub fn settle(gguf: &Gguf, args: &ModelArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let bytes = gguf.file_bytes();
    // More than fits would only push out what was read first.
    if machine::total_memory().is_none_or(|memory| bytes <= memory / 2) {
        let mut progress = terminal.progress_bytes("loading", bytes);
        let mut done = 0;
        gguf.read_ahead(&mut |piece| {
            done += piece;
            progress.set(done);
        })?;
    }
    if args.mlock {
        lock(gguf, terminal);
    }
    Ok(())
}

#[cfg(unix)]
fn lock(gguf: &Gguf, terminal: &Terminal) {
    let Err(error) = gguf.lock() else { return };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let why = match limit.filter(|&limit| limit < gguf.file_bytes()) {
        Some(limit) => format!("this process may lock {} (ulimit -l)", machine::size(limit)),
        None => error.to_string(),
    };
    let weights = machine::size(gguf.file_bytes());
    terminal.warn(&format!("--mlock: {weights} of weights are not locked in memory: {why}"));
}

#[cfg(not(unix))]
fn lock(_: &Gguf, terminal: &Terminal) {
    terminal.warn("--mlock: not known how on this system, so the weights are not locked in memory");
}
