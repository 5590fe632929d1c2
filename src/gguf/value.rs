//! Metadata values, borrowed from the map and decoded when asked for.

use std::fmt;

/// GGUF's ids of value types.
pub(super) mod id {
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
}

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
#[derive(Clone, Copy)]
pub struct Array<'a> {
    pub element_type: u32,
    pub len: usize,
    pub(super) bytes: &'a [u8],
}

/// Bytes of a value of fixed size; `None` for strings, arrays and unknown ids.
pub(super) fn scalar_bytes(type_id: u32) -> Option<usize> {
    match type_id {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Decodes a value of fixed size; `None` when `bytes` has another length or the type is not of fixed size.
pub(super) fn scalar(type_id: u32, bytes: &[u8]) -> Option<Value<'static>> {
    Some(match type_id {
        0 => Value::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
        1 => Value::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
        2 => Value::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
        3 => Value::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
        4 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
        5 => Value::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
        6 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
        7 => Value::Bool(u8::from_le_bytes(bytes.try_into().ok()?) != 0),
        10 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
        11 => Value::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
        12 => Value::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
        _ => return None,
    })
}

/// GGUF's name of a value type id.
pub(super) fn type_name(type_id: u32) -> &'static str {
    const NAMES: [&str; 13] =
        ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"];
    NAMES.get(type_id as usize).copied().unwrap_or("unknown")
}

impl<'a> Value<'a> {
    /// GGUF's name of the type, "array" for arrays (`Array::element_type_name` has theirs).
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }

    /// An integer of any width, exactly.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }

    pub fn as_u64(&self) -> Option<u64> {
        self.as_int()?.try_into().ok()
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.as_int()?.try_into().ok()
    }

    /// f32 or f64, finite or not.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(x) => Some(x),
            _ => None,
        }
    }

    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Value::String(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A string that is valid UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// One line for a person: strings quoted, escaped and cut to 60 characters, arrays by length and type.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Value::F32(x) => write!(f, "{x}"),
            Value::F64(x) => write!(f, "{x}"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::String(bytes) => {
                const SHOWN_CHARS: usize = 60;
                // A character takes four bytes at most: enough bytes for the cut, however long the string is.
                let head = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * (SHOWN_CHARS + 1))]);
                let shown: String = head.chars().take(SHOWN_CHARS).collect();
                write!(f, "\"{}", shown.escape_debug())?;
                f.write_str(if shown.len() < head.len() { "...\"" } else { "\"" })
            }
            Value::Array(array) => write!(f, "{array:?}"),
            Value::U64(x) => write!(f, "{x}"),
            _ => write!(f, "{}", self.as_int().expect("all other kinds are integers")),
        }
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "[{} x {}]", self.len, self.element_type_name())
    }
}

impl<'a> Array<'a> {
    pub fn element_type_name(&self) -> &'static str {
        type_name(self.element_type)
    }

    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Array { element_type, len, bytes } = *self;
        // A file that is changed while it is mapped ends the walk early; it cannot leave the array's bytes.
        let mut rest = bytes;
        (0..len).map_while(move |_| match scalar_bytes(element_type) {
            Some(size) => scalar(element_type, take(&mut rest, size)?),
            None => next_string(&mut rest).map(Value::String),
        })
    }

    /// The elements of an array of strings.
    pub fn strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        let (len, mut rest) = (self.len, self.bytes);
        (self.element_type == id::STRING).then(|| (0..len).map_while(move |_| next_string(&mut rest)))
    }

    /// The elements of an array of f32.
    pub fn f32s(&self) -> Option<impl ExactSizeIterator<Item = f32> + use<'a>> {
        let bytes = self.bytes;
        (self.element_type == id::F32).then(|| bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)))
    }

    /// The elements of an array of integers of any width: `i32::try_from` and its like say what fits.
    pub fn ints(&self) -> Option<impl Iterator<Item = i128> + use<'a>> {
        matches!(self.element_type, 0..=5 | 10 | 11).then(|| self.iter().filter_map(|value| value.as_int()))
    }
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(n)?;
    *rest = after;
    Some(taken)
}

fn next_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u64::from_le_bytes(take(rest, 8)?.try_into().ok()?);
    take(rest, usize::try_from(len).ok()?)
}
