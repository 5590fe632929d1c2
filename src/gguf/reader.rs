//! A cursor over the bytes of a file that cannot leave them: every read says what it wanted when it fails.

use std::fmt::{Arguments, Display};
use std::path::Path;

use super::{Error, file};

pub(super) struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Reader<'a> {
        Reader { path, bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub fn error(&self, at: usize, what: impl Display) -> Error {
        Error { path: self.path.to_path_buf(), offset: Some(at as u64), what: what.to_string() }
    }

    /// What to say when the file does not start with GGUF's magic.
    pub fn not_gguf(&self) -> Error {
        Error::of_file(self.path, file::not_gguf(self.bytes))
    }

    /// The next `n` bytes. `what` is formatted only when they are not there.
    pub fn take(&mut self, n: u64, what: Arguments) -> Result<&'a [u8], Error> {
        match usize::try_from(n).ok().and_then(|n| self.bytes[self.at..].get(..n)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.cut(n, what)),
        }
    }

    #[cold]
    fn cut(&self, n: u64, what: Arguments) -> Error {
        let (at, has) = (self.at, self.file_bytes());
        let needs = u128::from(n) + at as u128;
        self.error(
            at,
            format_args!(
                "{what} takes {n} bytes and {} are left: the file is cut, still downloading or damaged \
                 (it needs at least {needs} bytes and has {has})",
                self.left()
            ),
        )
    }

    fn array<const N: usize>(&mut self, what: Arguments) -> Result<[u8; N], Error> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take gives as many bytes as it was asked for"))
    }

    pub fn u32(&mut self, what: Arguments) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: Arguments) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A u64 length and that many bytes.
    pub fn string(&mut self, what: Arguments) -> Result<&'a [u8], Error> {
        let len = self.u64(format_args!("the length of {what}"))?;
        self.take(len, what)
    }
}
