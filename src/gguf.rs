//! GGUF files: memory map -> checked header, metadata and tensors. Every claim of the file is proven before use.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::quant::DType;

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what} (at byte {offset})", path.display())]
pub struct Error {
    pub path: PathBuf,
    pub offset: u64,
    pub what: String,
}

/// A checked GGUF file (or a set of split files) in memory maps.
pub struct Gguf {}

/// A metadata value, borrowed from the map.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Raw bytes: `Gguf::str` demands UTF-8, the vocabulary does not have to be.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array: `len` elements of one type, still in their file form.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub element_type: u32,
    pub len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + 'a {
        let _ = self.bytes;
        std::iter::empty()
    }
}

/// A tensor whose place, type and shape have been proven to lie in the file.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// As stored: `dims[0]` is the row length (contiguous). Between 1 and 4 of them.
    pub dims: Vec<u64>,
    data: Bytes,
}

impl Tensor {
    /// The tensor's bytes, shared with the map.
    pub fn data(&self) -> Bytes {
        self.data.clone()
    }
}

/// A range of a memory map that keeps the map alive.
#[derive(Clone, Debug)]
pub struct Bytes {
    map: Arc<Mmap>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// A part of this range, still sharing the map.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len);
        Bytes { map: self.map.clone(), start: self.start + range.start, len: range.end - range.start }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl Gguf {
    /// Opens a file, or all parts of a split model when given the first.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let _ = path;
        unimplemented!()
    }
    /// Path given to `open`.
    pub fn path(&self) -> &Path {
        unimplemented!()
    }
    pub fn version(&self) -> u32 {
        unimplemented!()
    }
    /// Size of all parts together.
    pub fn file_bytes(&self) -> u64 {
        unimplemented!()
    }
    /// Metadata in file order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        std::iter::empty()
    }
    pub fn get(&self, _key: &str) -> Option<Value<'_>> {
        unimplemented!()
    }
    // Typed access: Ok(None) when the key is absent, Err (naming key, found and wanted type, value) when it does not fit.
    /// Any integer width and sign that fits.
    pub fn uint(&self, _key: &str) -> Result<Option<u64>, Error> {
        unimplemented!()
    }
    /// f32 or f64; must be finite.
    pub fn float(&self, _key: &str) -> Result<Option<f32>, Error> {
        unimplemented!()
    }
    pub fn bool(&self, _key: &str) -> Result<Option<bool>, Error> {
        unimplemented!()
    }
    pub fn str(&self, _key: &str) -> Result<Option<&str>, Error> {
        unimplemented!()
    }
    pub fn array(&self, _key: &str) -> Result<Option<Array<'_>>, Error> {
        unimplemented!()
    }
    /// An error about a key of this file, for checks that live elsewhere (model, tokenizer).
    pub fn key_error(&self, _key: &str, _what: impl std::fmt::Display) -> Error {
        unimplemented!()
    }
    /// In file order, all parts.
    pub fn tensors(&self) -> &[Tensor] {
        unimplemented!()
    }
    pub fn tensor(&self, _name: &str) -> Option<&Tensor> {
        unimplemented!()
    }
}
