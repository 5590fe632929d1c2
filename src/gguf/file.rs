//! From a path to bytes in memory, and what to say of files that hold no GGUF.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use super::Error;

/// Bytes that are asked of the system at once: large enough for a disk, small enough for a progress bar.
const PIECE_BYTES: usize = 4 << 20;
/// How far the disk is kept ahead of the page tables: several requests under way at any time.
const AHEAD_BYTES: usize = 8 * PIECE_BYTES;

/// Hears of a file that is read (bytes done, bytes in all), first at 0 before any memory is taken; a sentence ends it.
pub type OnRead<'a> = dyn FnMut(u64, u64) -> Result<(), String> + 'a;

/// How the bytes of a file are had.
pub(super) enum Access<'a> {
    Map,
    /// Read whole into memory of our own: slower to start, but nothing that happens to the file matters afterwards.
    Read(&'a mut OnRead<'a>),
}

impl Access<'_> {
    pub fn bytes(&mut self, path: &Path) -> Result<Arc<Mmap>, Error> {
        let (file, file_bytes) = open(path)?;
        let bytes = match self {
            Access::Map => map(path, &file)?,
            Access::Read(on_read) => read(path, file, file_bytes, *on_read)?,
        };
        Ok(Arc::new(bytes))
    }
}

/// Opens a regular file that is not empty. Anything else is refused before it is opened, so that a pipe or a device
/// cannot hang the program.
fn open(path: &Path) -> Result<(File, usize), Error> {
    let about = fs::metadata(path).map_err(|error| cannot_open(path, &error))?;
    if about.is_dir() {
        return Err(Error::of_file(path, "this is a directory: give the .gguf file inside it"));
    }
    if !about.is_file() {
        return Err(Error::of_file(path, "not a regular file, so it cannot be mapped: save the model to a file first"));
    }
    if about.len() == 0 {
        return Err(Error::of_file(path, "the file is empty: its download has failed or not yet begun"));
    }
    let bytes =
        usize::try_from(about.len()).map_err(|_| Error::of_file(path, "larger than this system can address"))?;
    let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
    Ok((file, bytes))
}

fn map(path: &Path, file: &File) -> Result<Mmap, Error> {
    // SAFETY: the map is private to this process and only ever read, as plain bytes for which every value is valid.
    // What no program can prevent is that another process cuts the file short while it is mapped.
    unsafe { Mmap::map(file) }.map_err(|error| Error::of_file(path, format_args!("cannot be mapped: {error}")))
}

/// Into anonymous memory, which is aligned as a map is, in huge pages where the system grants them: fewer misses of the
/// address cache when weights stream by.
fn read(path: &Path, mut file: File, file_bytes: usize, on_read: &mut OnRead) -> Result<Mmap, Error> {
    let wrong = |what: String| Error::of_file(path, what);
    on_read(0, file_bytes as u64).map_err(wrong)?;
    let mut bytes = MmapMut::map_anon(file_bytes)
        .map_err(|error| wrong(format!("no memory for its {file_bytes} bytes: {error}")))?;
    #[cfg(target_os = "linux")]
    // A wish only: without it pages are small.
    let _ = bytes.advise(memmap2::Advice::HugePage);
    let mut done = 0;
    for piece in bytes.chunks_mut(PIECE_BYTES) {
        file.read_exact(piece).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => wrong(format!("shorter than the {file_bytes} bytes it had a moment ago")),
            _ => wrong(format!("cannot be read: {error}")),
        })?;
        done += piece.len() as u64;
        on_read(done, file_bytes as u64).map_err(wrong)?;
    }
    bytes.make_read_only().map_err(|error| wrong(format!("its memory cannot be protected: {error}")))
}

/// Brings the pages of a mapped file into memory and into the page table, in file order: one pass of large reads instead
/// of faults in the order of the layers.
pub(super) fn read_ahead(path: &Path, map: &Mmap, on_progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
    will_need(map, 0, AHEAD_BYTES);
    for start in (0..map.len()).step_by(PIECE_BYTES) {
        will_need(map, start + AHEAD_BYTES, PIECE_BYTES);
        let end = map.len().min(start + PIECE_BYTES);
        populate(map, start..end).map_err(|error| {
            Error::of_file(path, format_args!("cannot be read to its end, is it being replaced? ({error})"))
        })?;
        on_progress((end - start) as u64);
    }
    Ok(())
}

/// Starts the reading without waiting for it.
fn will_need(map: &Mmap, start: usize, bytes: usize) {
    if start < map.len() {
        #[cfg(unix)]
        // Advice that a system does not take costs time, nothing else.
        let _ = map.advise_range(memmap2::Advice::WillNeed, start, bytes.min(map.len() - start));
    }
}

/// On Linux one call for many pages (since 5.14), which also tells of an error that a fault would end the program for;
/// else a fault each.
fn populate(map: &Mmap, range: Range<usize>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    match map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        done => return done,
    }
    // No system has smaller pages.
    const PAGE_BYTES: usize = 4096;
    std::hint::black_box(map[range].iter().step_by(PAGE_BYTES).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    Ok(())
}

fn cannot_open(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => {
                Error::of_file(path, format_args!("this link leads to {}, which does not exist", target.display()))
            }
            Err(_) => Error::of_file(path, "no such file"),
        },
        io::ErrorKind::PermissionDenied => Error::of_file(path, "permission denied: this user may not read the file"),
        _ => Error::of_file(path, format_args!("cannot be opened: {error}")),
    }
}

/// The sentence for a file that does not start with GGUF's magic.
pub(super) fn not_gguf(bytes: &[u8]) -> String {
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let is = |prefix: &[u8]| bytes.starts_with(prefix);
    let what = if b"GGUF".starts_with(bytes) {
        return format!(
            "the file is cut or still downloading: a GGUF header alone takes 24 bytes and it has {}",
            bytes.len()
        );
    } else if is(b"FUGG") {
        return "the magic is byte-reversed: this GGUF is for big-endian machines, convert it to little-endian".into();
    } else if is(b"version https://git-lfs") {
        "it is a Git LFS pointer that stands for the model: fetch the file itself with `git lfs pull`"
    } else if start.starts_with(b"<") {
        "it is a web page (HTML or XML): the download gave a page in place of the model"
    } else if bytes.get(8) == Some(&b'{') {
        "it looks like a safetensors file: convert it to GGUF first"
    } else if start.starts_with(b"{") {
        "it is JSON text: an error message of a server or a configuration, not the model"
    } else if [b"lmgg", b"fmgg", b"tjgg", b"algg"].iter().any(|magic| is(*magic)) {
        "it is in an old GGML format from before GGUF: convert it or fetch a GGUF of the model"
    } else if is(b"PK\x03\x04") {
        "it is a zip archive (PyTorch checkpoints are zip archives too): unpack or convert it first"
    } else if is(b"\x80\x02") || is(b"\x80\x04") {
        "it is a Python pickle, perhaps a PyTorch checkpoint: convert it to GGUF first"
    } else if is(b"\x1f\x8b") || is(b"\x28\xb5\x2f\xfd") || is(b"\xfd7zXZ\0") || is(b"BZh") {
        "it is compressed: unpack it first"
    } else {
        let head: Vec<String> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        return format!("not a GGUF file: it starts with the bytes {} where \"GGUF\" has to stand", head.join(" "));
    };
    format!("not a GGUF file: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_usual_suspects() {
        let cases: [(&[u8], &str); 13] = [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"\n  <html>", "web page"),
            (b"\xef\xbb\xbf<html>", "web page"),
            (b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", "safetensors"),
            (b"{\"error\":\"not found\"}", "JSON"),
            (b"tjgg\x03\0\0\0", "old GGML"),
            (b"PK\x03\x04rest", "zip archive"),
            (b"\x80\x02}q\0", "pickle"),
            (b"\x1f\x8b\x08\0", "compressed"),
            (b"FUGG\0\0\0\x03", "big-endian"),
            (b"GG", "has 2"),
            (b"\0\x01\xfe", "00 01 fe"),
        ];
        for (bytes, expected) in cases {
            let sentence = not_gguf(bytes);
            assert!(sentence.contains(expected), "{sentence:?} does not say {expected:?}");
            assert!(!sentence.contains('\n'));
        }
    }

    #[test]
    fn says_why_a_file_cannot_be_opened() {
        let path = Path::new("model.gguf");
        let denied = cannot_open(path, &io::ErrorKind::PermissionDenied.into()).to_string();
        assert_eq!(denied, "model.gguf: permission denied: this user may not read the file");
        let missing = cannot_open(path, &io::ErrorKind::NotFound.into()).to_string();
        assert_eq!(missing, "model.gguf: no such file");
    }
}
