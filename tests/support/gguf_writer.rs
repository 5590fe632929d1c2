//! Writes GGUF files for tests: sound ones, and ones with exactly one lie in them.
#![allow(dead_code)] // each test crate that includes this file uses a part of it

/// A metadata value in its file form: type id and bytes.
#[derive(Clone)]
pub struct Val {
    pub type_id: u32,
    pub bytes: Vec<u8>,
}

impl Val {
    pub fn raw(type_id: u32, bytes: &[u8]) -> Val {
        Val { type_id, bytes: bytes.to_vec() }
    }
    pub fn u8(x: u8) -> Val {
        Val::raw(0, &[x])
    }
    pub fn i8(x: i8) -> Val {
        Val::raw(1, &x.to_le_bytes())
    }
    pub fn u16(x: u16) -> Val {
        Val::raw(2, &x.to_le_bytes())
    }
    pub fn i16(x: i16) -> Val {
        Val::raw(3, &x.to_le_bytes())
    }
    pub fn u32(x: u32) -> Val {
        Val::raw(4, &x.to_le_bytes())
    }
    pub fn i32(x: i32) -> Val {
        Val::raw(5, &x.to_le_bytes())
    }
    pub fn f32(x: f32) -> Val {
        Val::raw(6, &x.to_le_bytes())
    }
    /// Any byte: only 0 and 1 are sound.
    pub fn bool(x: u8) -> Val {
        Val::raw(7, &[x])
    }
    pub fn u64(x: u64) -> Val {
        Val::raw(10, &x.to_le_bytes())
    }
    pub fn i64(x: i64) -> Val {
        Val::raw(11, &x.to_le_bytes())
    }
    pub fn f64(x: f64) -> Val {
        Val::raw(12, &x.to_le_bytes())
    }
    pub fn str(x: impl AsRef<[u8]>) -> Val {
        Val { type_id: 8, bytes: string(x.as_ref()) }
    }
    pub fn strs<S: AsRef<[u8]>>(xs: &[S]) -> Val {
        Val::array(8, xs.len() as u64, &xs.iter().flat_map(|x| string(x.as_ref())).collect::<Vec<u8>>())
    }
    pub fn f32s(xs: &[f32]) -> Val {
        Val::array(6, xs.len() as u64, &xs.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    }
    pub fn i32s(xs: &[i32]) -> Val {
        Val::array(5, xs.len() as u64, &xs.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    }
    pub fn u32s(xs: &[u32]) -> Val {
        Val::array(4, xs.len() as u64, &xs.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    }
    /// An array that claims `len` elements, whatever `bytes` holds.
    pub fn array(element_type: u32, len: u64, bytes: &[u8]) -> Val {
        let mut all = element_type.to_le_bytes().to_vec();
        all.extend(len.to_le_bytes());
        all.extend(bytes);
        Val { type_id: 9, bytes: all }
    }
}

/// A u64 length and the bytes.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    let mut all = (bytes.len() as u64).to_le_bytes().to_vec();
    all.extend(bytes);
    all
}

#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
    /// In the data section; `None`: after the tensor before it, padded.
    pub offset: Option<u64>,
}

#[derive(Clone)]
pub struct Writer {
    pub version: u32,
    pub keys: Vec<(Vec<u8>, Val)>,
    pub tensors: Vec<Tensor>,
    /// What the header claims, when not the truth.
    pub claimed_keys: Option<u64>,
    pub claimed_tensors: Option<u64>,
    pub alignment: usize,
}

impl Writer {
    pub fn new() -> Writer {
        Writer {
            version: 3,
            keys: Vec::new(),
            tensors: Vec::new(),
            claimed_keys: None,
            claimed_tensors: None,
            alignment: 32,
        }
    }

    pub fn key(mut self, name: impl AsRef<[u8]>, value: Val) -> Writer {
        self.keys.push((name.as_ref().to_vec(), value));
        self
    }

    /// Replaces the value of a key in its place, or appends the key.
    pub fn set(mut self, name: &str, value: Val) -> Writer {
        match self.keys.iter_mut().find(|(key, _)| key == name.as_bytes()) {
            Some(entry) => entry.1 = value,
            None => self.keys.push((name.as_bytes().to_vec(), value)),
        }
        self
    }

    pub fn without(mut self, name: &str) -> Writer {
        let before = self.keys.len();
        self.keys.retain(|(key, _)| key != name.as_bytes());
        assert_ne!(before, self.keys.len(), "the file has no key {name}");
        self
    }

    pub fn tensor(mut self, name: impl AsRef<[u8]>, dims: &[u64], type_id: u32, data: &[u8]) -> Writer {
        let (name, dims, data) = (name.as_ref().to_vec(), dims.to_vec(), data.to_vec());
        self.tensors.push(Tensor { name, dims, type_id, data, offset: None });
        self
    }

    /// A tensor of F32.
    pub fn f32_tensor(self, name: &str, dims: &[u64], data: &[f32]) -> Writer {
        self.tensor(name, dims, 0, &data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub fn tensor_mut(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name.as_bytes()).expect("the file has such a tensor")
    }

    /// Header with tensor infos, unpadded, and the offset of every tensor in the data section.
    fn header(&self) -> (Vec<u8>, Vec<u64>) {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.claimed_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.claimed_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (name, value) in &self.keys {
            out.extend(string(name));
            out.extend(value.type_id.to_le_bytes());
            out.extend(&value.bytes);
        }
        let mut offsets = Vec::new();
        let mut next = 0u64;
        for tensor in &self.tensors {
            let offset = tensor.offset.unwrap_or(next);
            next = (offset.saturating_add(tensor.data.len() as u64)).div_ceil(self.alignment as u64)
                * self.alignment as u64;
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offsets.push(offset);
        }
        (out, offsets)
    }

    /// The whole file. Data whose offset is absurd is left out.
    pub fn build(&self) -> Vec<u8> {
        let (mut out, offsets) = self.header();
        if self.tensors.is_empty() {
            return out;
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        let start = out.len();
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            let at = start.saturating_add(offset as usize);
            if at > 1 << 30 {
                continue;
            }
            if out.len() < at + tensor.data.len() {
                out.resize(at + tensor.data.len(), 0);
            }
            out[at..at + tensor.data.len()].copy_from_slice(&tensor.data);
        }
        out
    }
}
