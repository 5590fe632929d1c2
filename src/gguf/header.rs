//! The header of one file: counts, keys, values, tensors. Nothing here is allocated by a number that the file merely
//! claims: a count is first held against the bytes that are left, and lists grow with what was really read.
//!
//! Tensor data may lie in any order and with gaps, as long as every tensor starts at a multiple of the alignment, lies
//! in the file and shares no byte with another.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::reader::Reader;
use super::value::{self, Value, id};
use super::{Bytes, Error, Tensor};
use crate::quant::{self, DType};

const MAGIC: &[u8] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMS: u32 = 4;
/// ggml's limit, its terminating zero byte included.
const NAME_LIMIT: usize = 64;
/// Fewest bytes of a key: length, one character, type, a value of one byte.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a tensor's entry: length, one character, number of dims, one dim, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A checked file.
pub(super) struct Part {
    pub map: Arc<Mmap>,
    pub version: u32,
    pub entries: Vec<Entry>,
    pub tensors: Vec<Tensor>,
}

/// A key and where its value lies in the map.
pub(super) struct Entry {
    pub key: String,
    /// Where the value's type stands in the file.
    pub at: usize,
    stored: Stored,
}

enum Stored {
    Scalar(Value<'static>),
    String(Range<usize>),
    Array { element_type: u32, len: usize, bytes: Range<usize> },
}

impl Entry {
    /// The value; `map` is the map that this entry was read from.
    pub fn value<'a>(&self, map: &'a [u8]) -> Value<'a> {
        match &self.stored {
            Stored::Scalar(value) => *value,
            Stored::String(range) => Value::String(&map[range.clone()]),
            Stored::Array { element_type, len, bytes } => {
                Value::Array(value::Array { element_type: *element_type, len: *len, bytes: &map[bytes.clone()] })
            }
        }
    }
}

/// A name from the file, on one line and at a sane length.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // `Value` quotes, escapes and cuts.
        Value::String(self.0).fmt(f)
    }
}

const PLAIN_TEXT: &str = "plain text (UTF-8 without control characters)";

/// Names go to terminals and into messages of one line.
fn plain_text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control))
}

/// What a tensor's entry says of it, before its place is checked.
struct Claim<'a> {
    name: &'a str,
    dims: Vec<u64>,
    type_id: u32,
    /// Of the entry in the file.
    at: usize,
    /// Of the data, from the start of the data section.
    offset: u64,
}

/// Reads and checks the whole header of the file `path` (`part` of a split model, else 0).
pub(super) fn parse(path: &Path, map: Arc<Mmap>, part: usize) -> Result<Part, Error> {
    let mut reader = Reader::new(path, &map);
    let version = magic_and_version(&mut reader)?;
    let n_tensors = reader.u64(format_args!("the number of tensors"))?;
    let n_keys = reader.u64(format_args!("the number of metadata keys"))?;
    count_fits(&reader, 8, n_tensors, MIN_TENSOR_BYTES, "tensors")?;
    count_fits(&reader, 16, n_keys, MIN_KEY_BYTES, "metadata keys")?;
    let entries = entries(&mut reader, n_keys)?;
    let alignment = alignment(&reader, &entries)?;
    let claims = claims(&mut reader, n_tensors, alignment)?;
    let tensors = place(&reader, claims, alignment, &map, part)?;
    Ok(Part { map, version, entries, tensors })
}

fn magic_and_version(reader: &mut Reader) -> Result<u32, Error> {
    let magic = reader.take(reader.left().min(MAGIC.len() as u64), format_args!("the magic"))?;
    if magic != MAGIC {
        return Err(reader.not_gguf());
    }
    let version = reader.u32(format_args!("the version"))?;
    match version {
        2 | 3 => Ok(version),
        _ if version & 0xffff == 0 && version != 0 => Err(reader.error(
            4,
            format_args!(
                "the version reads as {version:#010x}: the byte order does not match, this GGUF is big-endian \
                 (version {}); convert it to little-endian",
                version.swap_bytes()
            ),
        )),
        _ => Err(reader.error(
            4,
            format_args!("GGUF version {version}, but this program reads versions 2 and 3: convert the model anew"),
        )),
    }
}

/// Refuses a count that the rest of the file cannot hold.
fn count_fits(reader: &Reader, at: usize, count: u64, each_bytes: u64, what: &str) -> Result<(), Error> {
    let left = reader.left();
    if count <= left / each_bytes {
        return Ok(());
    }
    Err(reader.error(
        at,
        format_args!(
            "the header claims {count} {what} of at least {each_bytes} bytes each, and {left} bytes are left: the file \
             is cut, still downloading or damaged (it needs at least {} bytes and has {})",
            u128::from(count) * u128::from(each_bytes) + reader.at() as u128,
            reader.file_bytes()
        ),
    ))
}

fn entries(reader: &mut Reader, count: u64) -> Result<Vec<Entry>, Error> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut seen = HashMap::new();
    for index in 0..count {
        let key_at = reader.at();
        let key = reader.string(format_args!("metadata key {} of {count}", index + 1))?;
        if key.is_empty() {
            return Err(reader.error(key_at, format_args!("metadata key {} of {count} has an empty name", index + 1)));
        }
        let Some(key) = plain_text(key) else {
            return Err(reader.error(key_at, format_args!("metadata key {} is not {PLAIN_TEXT}", Shown(key))));
        };
        if let Some(first) = seen.insert(key, key_at) {
            return Err(reader.error(
                key_at,
                format_args!("duplicate metadata key {}, first seen at byte {first}", Shown(key.as_bytes())),
            ));
        }
        entries.push(entry(reader, key)?);
    }
    Ok(entries)
}

fn entry(reader: &mut Reader, key: &str) -> Result<Entry, Error> {
    let at = reader.at();
    let shown = Shown(key.as_bytes());
    let type_id = reader.u32(format_args!("the value type of key {shown}"))?;
    let stored = match (type_id, value::scalar_bytes(type_id)) {
        (_, Some(size)) => {
            let bytes = reader.take(size as u64, format_args!("the {} of key {shown}", value::type_name(type_id)))?;
            bools_are_bools(reader, type_id, bytes, key)?;
            Stored::Scalar(value::scalar(type_id, bytes).expect("scalar_bytes and scalar know the same types"))
        }
        (id::STRING, _) => {
            let len = reader.string(format_args!("the string of key {shown}"))?.len();
            Stored::String(reader.at() - len..reader.at())
        }
        (id::ARRAY, _) => array(reader, key)?,
        _ => {
            return Err(reader.error(
                at,
                format_args!("key {shown} has a value of unknown type {type_id}, the known types are 0 to 12"),
            ));
        }
    };
    Ok(Entry { key: key.to_owned(), at, stored })
}

fn array(reader: &mut Reader, key: &str) -> Result<Stored, Error> {
    let at = reader.at();
    let shown = Shown(key.as_bytes());
    let element_type = reader.u32(format_args!("the element type of array {shown}"))?;
    let count = reader.u64(format_args!("the length of array {shown}"))?;
    let start = reader.at();
    match (element_type, value::scalar_bytes(element_type)) {
        (_, Some(size)) => {
            // Past u64 it is past the file too: the largest number gives the right error.
            let total = count.saturating_mul(size as u64);
            let bytes = reader.take(total, format_args!("array {shown} of {count} elements"))?;
            bools_are_bools(reader, element_type, bytes, key)?;
        }
        (id::STRING, _) => {
            count_fits(reader, at + 4, count, 8, &format!("strings in array {shown}"))?;
            for index in 0..count {
                reader.string(format_args!("string {index} of array {shown}"))?;
            }
        }
        (id::ARRAY, _) => {
            return Err(reader.error(at, format_args!("key {shown} holds an array of arrays, which are not supported")));
        }
        _ => {
            return Err(reader.error(
                at,
                format_args!("array {shown} has elements of unknown type {element_type}, the known types are 0 to 12"),
            ));
        }
    }
    // Every element takes a byte at least, so the count fits a usize once the bytes were there.
    Ok(Stored::Array { element_type, len: count as usize, bytes: start..reader.at() })
}

fn bools_are_bools(reader: &Reader, type_id: u32, bytes: &[u8], key: &str) -> Result<(), Error> {
    if type_id != id::BOOL {
        return Ok(());
    }
    match bytes.iter().position(|&byte| byte > 1) {
        None => Ok(()),
        Some(index) => Err(reader.error(
            reader.at() - bytes.len() + index,
            format_args!("key {} holds the bool {}, which must be 0 or 1", Shown(key.as_bytes()), bytes[index]),
        )),
    }
}

fn alignment(reader: &Reader, entries: &[Entry]) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    let Some(entry) = entries.iter().find(|entry| entry.key == KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    match entry.stored {
        Stored::Scalar(Value::U32(x)) if x.is_power_of_two() && u64::from(x) <= reader.file_bytes() => Ok(x.into()),
        Stored::Scalar(Value::U32(x)) if x.is_power_of_two() => Err(reader.error(
            entry.at,
            format_args!("{KEY} is {x}, more than the {} bytes of the whole file", reader.file_bytes()),
        )),
        Stored::Scalar(Value::U32(x)) => {
            Err(reader.error(entry.at, format_args!("{KEY} is {x}, which is not a power of two")))
        }
        Stored::Scalar(other) => {
            Err(reader.error(entry.at, format_args!("{KEY} is a {}, it must be a u32", other.type_name())))
        }
        _ => Err(reader.error(entry.at, format_args!("{KEY} is not a number, it must be a u32"))),
    }
}

fn claims<'a>(reader: &mut Reader<'a>, count: u64, alignment: u64) -> Result<Vec<Claim<'a>>, Error> {
    let mut claims: Vec<Claim> = Vec::new();
    let mut seen = HashMap::new();
    for index in 0..count {
        let claim = claim(reader, index, count, alignment)?;
        if let Some(first) = seen.insert(claim.name, claim.at) {
            return Err(reader.error(
                claim.at,
                format_args!("duplicate tensor {}, first seen at byte {first}", Shown(claim.name.as_bytes())),
            ));
        }
        claims.push(claim);
    }
    Ok(claims)
}

fn claim<'a>(reader: &mut Reader<'a>, index: u64, count: u64, alignment: u64) -> Result<Claim<'a>, Error> {
    let at = reader.at();
    let bytes = reader.string(format_args!("the name of tensor {} of {count}", index + 1))?;
    let shown = Shown(bytes);
    if bytes.is_empty() || bytes.len() >= NAME_LIMIT {
        return Err(reader.error(
            at,
            format_args!(
                "tensor {} of {count} has a name of {} bytes ({shown}), it must have 1 to {}",
                index + 1,
                bytes.len(),
                NAME_LIMIT - 1
            ),
        ));
    }
    let Some(name) = plain_text(bytes) else {
        return Err(reader.error(at, format_args!("tensor name {shown} is not {PLAIN_TEXT}")));
    };
    let n_dims = reader.u32(format_args!("the number of dims of tensor {shown}"))?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(reader.error(at, format_args!("tensor {shown} has {n_dims} dims, it must have 1 to {MAX_DIMS}")));
    }
    let mut dims = Vec::new();
    let mut elements: u64 = 1;
    for _ in 0..n_dims {
        let dim_at = reader.at();
        let dim = reader.u64(format_args!("the dims of tensor {shown}"))?;
        dims.push(dim);
        if dim == 0 {
            return Err(reader.error(dim_at, format_args!("tensor {shown} has a dim of 0 (dims {dims:?} so far)")));
        }
        // ggml counts elements in an i64.
        elements = elements.checked_mul(dim).filter(|&n| n <= i64::MAX as u64).ok_or_else(|| {
            reader.error(dim_at, format_args!("tensor {shown} has more elements than 2^63 (dims {dims:?} so far)"))
        })?;
    }
    let type_id = reader.u32(format_args!("the type of tensor {shown}"))?;
    let offset = reader.u64(format_args!("the offset of tensor {shown}"))?;
    if offset % alignment != 0 {
        return Err(reader.error(
            at,
            format_args!("tensor {shown} has offset {offset}, which is not a multiple of the alignment {alignment}"),
        ));
    }
    Ok(Claim { name, dims, type_id, at, offset })
}

/// Turns claims into tensors: known types, whole rows of blocks, every range in the file and apart from the others.
fn place(
    reader: &Reader,
    claims: Vec<Claim>,
    alignment: u64,
    map: &Arc<Mmap>,
    part: usize,
) -> Result<Vec<Tensor>, Error> {
    refuse_unsupported(reader, &claims)?;
    let data_start = (reader.at() as u64).next_multiple_of(alignment);
    let mut sizes = Vec::with_capacity(claims.len());
    for claim in &claims {
        sizes.push(size_bytes(reader, claim)?);
    }
    let end_of = |(claim, size): (&Claim, &u64)| u128::from(data_start) + u128::from(claim.offset) + u128::from(*size);
    if let Some(last) = claims.iter().zip(&sizes).max_by_key(|&pair| end_of(pair)) {
        let needs = end_of(last);
        if needs > u128::from(reader.file_bytes()) {
            return Err(reader.error(
                last.0.at,
                format_args!(
                    "the file is cut or still downloading: it needs {needs} bytes and has {} (tensor {} ends last)",
                    reader.file_bytes(),
                    Shown(last.0.name.as_bytes())
                ),
            ));
        }
    }
    // From here on every start and size fits the file, and so a usize.
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_unstable_by_key(|&i| claims[i].offset);
    for pair in order.windows(2) {
        let (a, b) = (&claims[pair[0]], &claims[pair[1]]);
        if a.offset + sizes[pair[0]] > b.offset {
            return Err(reader.error(
                b.at,
                format_args!(
                    "tensors {} and {} overlap: bytes {}..{} and {}..{} of the data section",
                    Shown(a.name.as_bytes()),
                    Shown(b.name.as_bytes()),
                    a.offset,
                    a.offset + sizes[pair[0]],
                    b.offset,
                    b.offset + sizes[pair[1]]
                ),
            ));
        }
    }
    let tensor = |(claim, size): (Claim, u64)| {
        let offset = data_start + claim.offset;
        let data = Bytes { map: map.clone(), start: offset as usize, len: size as usize };
        let dtype = DType::from_id(claim.type_id).expect("unsupported types were refused above");
        Tensor { name: claim.name.to_owned(), dtype, dims: claim.dims, part, offset, entry_at: claim.at, data }
    };
    Ok(claims.into_iter().zip(sizes).map(tensor).collect())
}

/// One error for all tensors of types that cannot be computed with.
fn refuse_unsupported(reader: &Reader, claims: &[Claim]) -> Result<(), Error> {
    let offending: Vec<&Claim> = claims.iter().filter(|claim| DType::from_id(claim.type_id).is_none()).collect();
    let Some(first) = offending.first() else { return Ok(()) };
    let list: Vec<String> = offending
        .iter()
        .map(|claim| {
            let (name, id) = (Shown(claim.name.as_bytes()), claim.type_id);
            format!("{name} is {} (type {id})", quant::unsupported_name(id))
        })
        .collect();
    let known: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    Err(reader.error(
        first.at,
        format_args!(
            "{} of {} tensors have types that this program does not compute with: {}; it knows {}",
            offending.len(),
            claims.len(),
            list.join(", "),
            known.join(" ")
        ),
    ))
}

fn size_bytes(reader: &Reader, claim: &Claim) -> Result<u64, Error> {
    let (name, row) = (Shown(claim.name.as_bytes()), claim.dims[0]);
    let dtype = DType::from_id(claim.type_id).expect("unsupported types were refused before");
    if row % dtype.block_elements() as u64 != 0 {
        return Err(reader.error(
            claim.at,
            format_args!(
                "tensor {name} has rows of {row} elements, which is no multiple of the {} of a {} block",
                dtype.block_elements(),
                dtype.name()
            ),
        ));
    }
    let mut total = dtype.row_bytes(row);
    for &dim in &claim.dims[1..] {
        total = total.and_then(|bytes| bytes.checked_mul(dim));
    }
    total.ok_or_else(|| {
        reader.error(claim.at, format_args!("tensor {name} has more bytes than 2^64 (dims {:?})", claim.dims))
    })
}
