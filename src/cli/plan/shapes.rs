//! Models without a file: published shapes, and the types that the usual mixes give to each of their tensors.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::backend::cpu::Widths;
use crate::backend::cuda::forms::device_bytes;
use crate::kv::plan::{LayerSizes, ModelSizes};
use crate::quant::DType;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    pub layers: usize,
    pub dim: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub hidden_dim: usize,
    pub vocab: usize,
    /// Trained context length.
    pub context: usize,
    #[serde(default)]
    pub tied: bool,
    /// Feed-forward networks per layer; 0: one, and no router.
    #[serde(default)]
    pub experts: usize,
}

fn published() -> BTreeMap<String, Shape> {
    toml::from_str(include_str!("../../../models/shapes.toml")).expect("the built-in table is sound: a test reads it")
}

/// The shape of a published model, or a sentence with the names there are.
pub fn find(name: &str) -> Result<Shape, String> {
    let mut shapes = published();
    let names = || shapes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match shapes.contains_key(&name.to_lowercase()) {
        true => Ok(shapes.remove(&name.to_lowercase()).expect("it is there")),
        false => Err(format!("the known shapes are {}", names())),
    }
}

/// The same with its name, for flags.
pub fn named(name: &str) -> Result<(String, Shape), String> {
    find(name).map(|shape| (name.to_lowercase(), shape))
}

/// How a file's weights are quantized: one type, or a mix by llama.cpp's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// All matrices, but a quantized type leaves the output head in Q6_K (Q8_0 and Q6_K have it in their own).
    Type(DType),
    Q4KM,
    Q4KS,
    Q5KM,
    Q3KM,
}

const MIXES: [(&str, Weights); 4] =
    [("q4_k_m", Weights::Q4KM), ("q4_k_s", Weights::Q4KS), ("q5_k_m", Weights::Q5KM), ("q3_k_m", Weights::Q3KM)];

/// The matrices of a layer by their part in the mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    AttnQ,
    AttnK,
    AttnV,
    AttnOutput,
    /// Gate and up.
    FfnIn,
    FfnDown,
}

impl Weights {
    pub fn parse(name: &str) -> Result<Weights, String> {
        let lower = name.to_lowercase();
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name().to_lowercase() == lower).map(Weights::Type);
        let mix = MIXES.into_iter().find(|(mix, _)| *mix == lower).map(|(_, weights)| weights);
        mix.or(dtype).ok_or_else(|| {
            let types = DType::ALL.iter().map(|dtype| dtype.name().to_lowercase());
            let names: Vec<String> = MIXES.iter().map(|(mix, _)| mix.to_string()).chain(types).collect();
            format!("the known types are {}", names.join(", "))
        })
    }

    pub fn name(self) -> String {
        let mix = MIXES.into_iter().find(|(_, weights)| *weights == self).map(|(name, _)| name.to_string());
        mix.unwrap_or_else(|| self.default_type().name().to_lowercase())
    }

    /// Elements in a block of most matrices.
    pub fn block_elements(self) -> usize {
        self.default_type().block_elements()
    }

    /// The type of most matrices.
    fn default_type(self) -> DType {
        match self {
            Weights::Type(dtype) => dtype,
            Weights::Q4KM | Weights::Q4KS => DType::Q4_K,
            Weights::Q5KM => DType::Q5_K,
            Weights::Q3KM => DType::Q3_K,
        }
    }

    fn output_type(self) -> DType {
        match self {
            Weights::Type(dtype) if !dtype.is_quantized() || dtype == DType::Q8_0 => dtype,
            _ => DType::Q6_K,
        }
    }

    /// The type that llama.cpp's mixes give to a matrix of layer `i`.
    fn layer_type(self, role: Role, i: usize, shape: &Shape) -> DType {
        let layers = shape.layers;
        let more = i < layers / 8 || i >= 7 * layers / 8 || (i - layers / 8) % 3 == 2;
        let shares_kv = shape.heads / shape.kv_heads >= 4;
        let (is_70b, has_experts) = (layers == 80, shape.experts == 8);
        match (self, role) {
            (Weights::Q4KM | Weights::Q4KS, Role::AttnK | Role::AttnV) if has_experts => DType::Q8_0,
            (Weights::Q4KM | Weights::Q4KS, Role::AttnOutput) if has_experts => DType::Q5_K,
            (Weights::Q4KM | Weights::Q5KM, Role::AttnV | Role::FfnDown) if more => DType::Q6_K,
            (Weights::Q4KS, Role::AttnV) if i < 4 => DType::Q5_K,
            (Weights::Q4KM | Weights::Q4KS, Role::AttnV) if is_70b => DType::Q5_K,
            (Weights::Q4KS, Role::FfnDown) if i < layers / 8 => DType::Q5_K,
            (Weights::Q3KM, Role::AttnV) => {
                if i < 2 {
                    DType::Q5_K
                } else {
                    DType::Q4_K
                }
            }
            (Weights::Q3KM, Role::FfnDown) => {
                if i < layers / 16 {
                    DType::Q5_K
                } else {
                    DType::Q4_K
                }
            }
            (Weights::Q3KM, Role::AttnOutput) => DType::Q4_K,
            (Weights::Type(DType::Q2_K), Role::AttnV) => {
                if shares_kv {
                    DType::Q4_K
                } else {
                    DType::Q3_K
                }
            }
            (Weights::Type(DType::Q2_K), Role::FfnDown | Role::AttnOutput) => DType::Q3_K,
            (Weights::Type(DType::IQ4_NL | DType::IQ4_XS), Role::AttnV) if shares_kv => DType::Q5_K,
            (Weights::Type(DType::IQ4_NL | DType::IQ4_XS), Role::FfnDown) if i < layers / 8 => DType::Q5_K,
            _ => self.default_type(),
        }
    }
}

/// A matrix of a model, under the name that its file would give it.
#[derive(Clone, Debug)]
pub struct PlannedMatrix {
    /// Without `.weight`.
    pub name: String,
    /// As in a file: the row length first.
    pub dims: Vec<usize>,
    pub dtype: DType,
}

impl PlannedMatrix {
    fn new(name: impl Into<String>, dims: &[usize], wanted: DType) -> PlannedMatrix {
        PlannedMatrix { name: name.into(), dims: dims.to_vec(), dtype: stored_type(wanted, dims[0]) }
    }

    pub fn bytes(&self) -> u64 {
        let row = self.dtype.row_bytes(self.dims[0] as u64).expect("the type was chosen for its rows");
        row * self.dims[1..].iter().product::<usize>() as u64
    }

    /// As it lies on a GPU.
    fn gpu_bytes(&self) -> u64 {
        device_bytes(self.dtype, self.dims[1..].iter().product(), self.dims[0])
    }
}

/// The type in which rows of `cols` elements are stored: what quantizers fall back to where no block divides them.
fn stored_type(dtype: DType, cols: usize) -> DType {
    let fallback = match dtype {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::Q2_K | DType::Q3_K => DType::Q4_0,
        DType::IQ4_XS => DType::IQ4_NL,
        _ => DType::F16,
    };
    let fits = |dtype: &DType| dtype.row_bytes(cols as u64).is_some();
    [dtype, fallback].into_iter().find(fits).unwrap_or(DType::F16)
}

impl Shape {
    fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    pub fn widths(&self) -> Widths {
        Widths {
            dim: self.dim,
            head_dim: self.head_dim(),
            hidden_dim: self.hidden_dim,
            vocab: self.vocab,
            n_heads: self.heads,
            n_kv_heads: self.kv_heads,
            group: self.heads / self.kv_heads,
            n_experts: self.experts,
        }
    }

    pub fn sizes(&self, weights: Weights) -> ModelSizes {
        let (embedding, head) = (self.embedding(weights), self.head(weights));
        let layer = |i| {
            let (matrices, norms) = (self.layer(weights, i), 2 * norm_bytes(self.dim));
            LayerSizes {
                weights_bytes: norms + matrices.iter().map(PlannedMatrix::bytes).sum::<u64>(),
                gpu_bytes: norms + matrices.iter().map(PlannedMatrix::gpu_bytes).sum::<u64>(),
                n_kv_heads: self.kv_heads,
            }
        };
        ModelSizes {
            embedding_bytes: embedding.bytes(),
            head_bytes: norm_bytes(self.dim) + head.as_ref().map_or(0, PlannedMatrix::bytes),
            gpu_head_bytes: norm_bytes(self.dim) + head.as_ref().unwrap_or(&embedding).gpu_bytes(),
            layers: (0..self.layers).map(layer).collect(),
            head_dim: self.head_dim(),
        }
    }

    pub fn embedding(&self, weights: Weights) -> PlannedMatrix {
        let dtype = if self.tied { weights.output_type() } else { weights.default_type() };
        PlannedMatrix::new("token_embd", &[self.dim, self.vocab], dtype)
    }

    /// `None`: the embedding is the head.
    pub fn head(&self, weights: Weights) -> Option<PlannedMatrix> {
        (!self.tied).then(|| PlannedMatrix::new("output", &[self.dim, self.vocab], weights.output_type()))
    }

    /// The matrices of layer `i`.
    pub fn layer(&self, weights: Weights, i: usize) -> Vec<PlannedMatrix> {
        let (dim, kv_dim, hidden) = (self.dim, self.kv_heads * self.head_dim(), self.hidden_dim);
        let ffn = |role, name: &str, cols, rows| match self.experts {
            0 => (role, format!("ffn_{name}"), vec![cols, rows]),
            experts => (role, format!("ffn_{name}_exps"), vec![cols, rows, experts]),
        };
        let attention = |role, name: &str, cols, rows| (role, format!("attn_{name}"), vec![cols, rows]);
        let matrices = [
            attention(Role::AttnQ, "q", dim, dim),
            attention(Role::AttnK, "k", dim, kv_dim),
            attention(Role::AttnV, "v", dim, kv_dim),
            attention(Role::AttnOutput, "output", dim, dim),
            ffn(Role::FfnIn, "gate", dim, hidden),
            ffn(Role::FfnIn, "up", dim, hidden),
            ffn(Role::FfnDown, "down", hidden, dim),
        ];
        let planned = matrices.into_iter().map(|(role, name, dims)| {
            PlannedMatrix::new(format!("blk.{i}.{name}"), &dims, weights.layer_type(role, i, self))
        });
        let router = PlannedMatrix::new(format!("blk.{i}.ffn_gate_inp"), &[dim, self.experts], DType::F32);
        planned.chain((self.experts > 0).then_some(router)).collect()
    }
}

fn norm_bytes(dim: usize) -> u64 {
    4 * dim as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::layout::KvType;
    use crate::kv::plan::KvTypes;

    #[test]
    fn published_models_take_the_published_kv_bytes_per_token() {
        // (names, F16, INT8)
        let table: [(&[&str], u64, u64); 13] = [
            (&["tinyllama"], 22_528, 11_616),
            (&["smollm2-135m"], 23_040, 11_880),
            (&["smollm2-360m"], 40_960, 21_120),
            (&["smollm2-1.7b"], 196_608, 101_376),
            (&["llama-3.2-1b"], 32_768, 16_896),
            (&["llama-3.2-3b"], 114_688, 58_240),
            (&["llama-2-7b"], 524_288, 266_240),
            (&["llama-2-13b"], 819_200, 416_000),
            (&["llama-3-8b", "llama-3.1-8b", "mistral-7b", "mixtral-8x7b"], 131_072, 66_560),
            (&["yi-6b"], 65_536, 33_280),
            (&["yi-34b"], 245_760, 124_800),
            (&["llama-2-70b", "llama-3-70b"], 327_680, 166_400),
            (&["llama-3.1-70b"], 327_680, 166_400),
        ];
        let mut checked = 0;
        for (name, f16, int8) in table.into_iter().flat_map(|(names, f, i)| names.iter().map(move |name| (name, f, i)))
        {
            let sizes = find(name).unwrap().sizes(Weights::Q4KM);
            let of = |kv_type| sizes.on_host(0, KvTypes { k: kv_type, v: kv_type }).kv.per_token;
            assert_eq!((of(KvType::F16), of(KvType::Int8)), (f16, int8), "{name}");
            checked += 1;
        }
        assert_eq!(checked, published().len(), "every shape is in the table");
    }

    /// Sizes of published files, which hold a vocabulary of up to 8 MB beside the weights.
    #[test]
    fn mixes_have_the_size_of_published_files() {
        for (name, weights, file_gb) in [
            ("llama-2-7b", "q4_0", 3.83),
            ("llama-2-7b", "q4_k_s", 3.86),
            ("llama-2-7b", "q4_k_m", 4.08),
            ("llama-2-7b", "q5_k_m", 4.78),
            ("llama-2-7b", "q6_k", 5.53),
            ("llama-2-7b", "q8_0", 7.16),
            ("llama-3-8b", "q2_k", 3.18),
            ("llama-2-7b", "q3_k_m", 3.30),
            ("llama-2-13b", "q4_0", 7.37),
            ("llama-2-13b", "q4_k_m", 7.87),
            ("llama-2-70b", "q4_k_m", 41.42),
            ("llama-3-70b", "q4_k_m", 42.52),
            ("mistral-7b", "q4_k_m", 4.37),
            ("mixtral-8x7b", "q4_k_m", 28.45),
            ("llama-3-8b", "q3_k_m", 4.02),
            ("llama-3-8b", "q4_k_m", 4.92),
            ("llama-3-8b", "q8_0", 8.54),
            ("llama-3.2-1b", "q4_k_m", 0.81),
            ("llama-3.2-3b", "q4_k_m", 2.02),
            ("smollm2-135m", "f16", 0.27),
        ] {
            let gb = find(name).unwrap().sizes(Weights::parse(weights).unwrap()).weights_bytes() as f64 / 1e9;
            assert!((gb - file_gb).abs() < 0.013, "{name} {weights}: {gb:.3} GB, the file has {file_gb}");
        }
    }

    #[test]
    fn rows_that_no_block_divides_fall_back() {
        assert_eq!(stored_type(DType::Q4_K, 576), DType::Q5_0);
        assert_eq!(stored_type(DType::Q6_K, 576), DType::Q8_0);
        assert_eq!(stored_type(DType::Q4_K, 1536), DType::Q4_K);
        assert_eq!(stored_type(DType::Q4_0, 40), DType::F16);
        assert_eq!(stored_type(DType::F32, 7), DType::F32);
        let matrix = |dims: &[usize], dtype| PlannedMatrix::new("m", dims, dtype).bytes();
        assert_eq!(matrix(&[1536, 1], DType::Q4_K), 1536 / 256 * 144);
        assert_eq!(matrix(&[32, 3, 2], DType::Q4_0), 18 * 3 * 2);
        assert_eq!(matrix(&[40, 1], DType::Q4_0), 80);
    }

    #[test]
    fn names_are_found_in_any_case_and_unknown_ones_list_the_known() {
        assert!(find("Llama-2-13B").is_ok());
        assert!(find("gpt-5").unwrap_err().contains("llama-2-13b, llama-2-70b"));
        assert_eq!(Weights::parse("Q4_K_M"), Ok(Weights::Q4KM));
        assert_eq!(Weights::parse("bf16"), Ok(Weights::Type(DType::BF16)));
        assert!(Weights::parse("q9").unwrap_err().contains("q4_k_m"));
        assert!(DType::ALL.iter().all(|dtype| Weights::parse(dtype.name()) == Ok(Weights::Type(*dtype))));
    }
}
