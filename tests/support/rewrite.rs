//! A GGUF that was read, as a writer of the same file: to change one thing and write it anew.

use sayfa::gguf::{Array, Gguf, Value};

use super::gguf_writer::{Val, Writer, string};

/// The same keys in the same order, the same tensors with their data in the same order.
pub fn rewrite(gguf: &Gguf) -> Writer {
    let writer = gguf.metadata().fold(Writer::new(), |writer, (key, value)| writer.key(key, val(value)));
    gguf.tensors()
        .iter()
        .fold(writer, |writer, tensor| writer.tensor(&tensor.name, &tensor.dims, tensor.dtype.id(), &tensor.data()))
}

fn val(value: Value) -> Val {
    match value {
        Value::U8(x) => Val::u8(x),
        Value::I8(x) => Val::i8(x),
        Value::U16(x) => Val::u16(x),
        Value::I16(x) => Val::i16(x),
        Value::U32(x) => Val::u32(x),
        Value::I32(x) => Val::i32(x),
        Value::F32(x) => Val::f32(x),
        Value::Bool(x) => Val::bool(x.into()),
        Value::String(x) => Val::str(x),
        Value::Array(array) => array_val(array),
        Value::U64(x) => Val::u64(x),
        Value::I64(x) => Val::i64(x),
        Value::F64(x) => Val::f64(x),
    }
}

fn array_val(array: Array) -> Val {
    let bytes: Vec<u8> = match array.strings() {
        Some(strings) => strings.flat_map(string).collect(),
        None => array.iter().flat_map(|element| val(element).bytes).collect(),
    };
    Val::array(array.element_type, array.len as u64, &bytes)
}
