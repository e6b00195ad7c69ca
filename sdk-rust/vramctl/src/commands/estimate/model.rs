//! Reads the size of a model from its configuration file, in the fields of Hugging Face's `config.json`.

use std::{
    fs, io,
    num::{NonZeroU32, NonZeroU64},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
/// A configuration is a page of text. More is another file by mistake.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Types of models whose feed-forward part has two matrices.
const WITHOUT_GATE: [&str; 13] = [
    "bloom",
    "codegen",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "mpt",
    "opt",
    "phi",
    "starcoder2",
    "xglm",
];

/// A decoder. A field that models name differently has all its names.
#[derive(Debug, Deserialize)]
struct Config {
    #[serde(alias = "n_embd", alias = "d_model")]
    hidden_size: Option<NonZeroU32>,
    #[serde(alias = "n_layer", alias = "num_layers")]
    num_hidden_layers: Option<NonZeroU32>,
    #[serde(alias = "n_head")]
    num_attention_heads: Option<NonZeroU32>,
    num_key_value_heads: Option<NonZeroU32>,
    head_dim: Option<NonZeroU32>,
    #[serde(alias = "n_inner", alias = "ffn_dim")]
    intermediate_size: Option<NonZeroU32>,
    vocab_size: Option<NonZeroU32>,
    tie_word_embeddings: Option<bool>,
    model_type: Option<String>,
    #[serde(alias = "n_routed_experts", alias = "num_experts")]
    num_local_experts: Option<NonZeroU32>,
    n_shared_experts: Option<u32>,
    num_experts_per_tok: Option<NonZeroU32>,
    moe_intermediate_size: Option<NonZeroU32>,
    kv_lora_rank: Option<NonZeroU32>,
    qk_rope_head_dim: Option<u32>,
    #[serde(alias = "dtype")]
    torch_dtype: Option<String>,
    quantization_config: Option<Quantization>,
    /// The decoder of a model that also sees or hears.
    text_config: Option<Box<Config>>,
}

#[derive(Debug, Deserialize)]
struct Quantization {
    quant_method: Option<String>,
    bits: Option<NonZeroU32>,
    load_in_4bit: Option<bool>,
    load_in_8bit: Option<bool>,
}

/// Where the size of the weights is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightsFrom {
    /// The files beside the configuration.
    Files,
    /// The numbers of layers, heads and values.
    Shape,
    CommandLine,
}

/// A model, as far as its size goes. Numbers that are too large to be of a model are `u64::MAX`.
#[derive(Debug, PartialEq)]
pub(super) struct Model {
    pub(super) layers: u64,
    pub(super) hidden: u64,
    pub(super) intermediate: u64,
    pub(super) vocabulary: u64,
    pub(super) bytes_per_value: u64,
    /// The values that a layer keeps of each token, of keys and values together.
    pub(super) cached_per_token: u64,
    pub(super) experts: Option<Experts>,
    pub(super) weights: u64,
    pub(super) weights_from: WeightsFrom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Experts {
    pub(super) all: u64,
    /// How many a token uses.
    pub(super) used: u64,
    /// The bytes of all experts of all layers.
    pub(super) bytes: u64,
}

/// The configuration at a path, which may be the model's folder.
pub(super) fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(CONFIG) } else { path.to_owned() }
}

impl Model {
    /// Reads a configuration. `weights` is their size, if it is known.
    pub(super) fn read(path: &Path, weights: Option<u64>) -> io::Result<Self> {
        let config: Config = serde_json::from_slice(&read(path)?).map_err(invalid)?;
        let beside = match weights {
            Some(_) => None,
            None => weights_beside(path)?,
        };
        let known = match (weights, beside) {
            (Some(bytes), _) => Some((bytes, WeightsFrom::CommandLine)),
            (None, Some(bytes)) => Some((bytes, WeightsFrom::Files)),
            (None, None) => None,
        };
        config.model(known).map_err(invalid)
    }
}

impl Config {
    fn model(&self, weights: Option<(u64, WeightsFrom)>) -> Result<Model, String> {
        if let (None, Some(text)) = (self.hidden_size, &self.text_config) {
            return text.model(weights);
        }
        let [hidden, layers, heads] = [
            needed(self.hidden_size, "hidden_size")?,
            needed(self.num_hidden_layers, "num_hidden_layers")?,
            needed(self.num_attention_heads, "num_attention_heads")?,
        ];
        let kv_heads = self.num_key_value_heads.map_or(heads, wide);
        let head = self.head_dim.map_or(hidden / heads, wide);
        let intermediate = self.intermediate_size.map_or_else(|| hidden.saturating_mul(4), wide);
        let vocabulary = self.vocab_size.map_or(0, wide);
        let bits = self.bits_per_weight();
        let matrices = if self.is_gated() { 3 } else { 2 };
        let expert = product(&[matrices, hidden, self.moe_intermediate_size.map_or(intermediate, wide)]);
        let experts = self.num_local_experts.map(|all| {
            let used = self.num_experts_per_tok.map_or(1, wide).min(wide(all));
            Experts { all: wide(all), used, bytes: bytes_of(product(&[layers, wide(all), expert]), bits) }
        });
        let (weights, weights_from) = match weights {
            Some(known) => known,
            None if self.kv_lora_rank.is_some() => {
                return Err("the size of such weights does not follow from the configuration (`kv_lora_rank`): put it beside \
                            the model's files, or give --weights"
                    .to_owned());
            }
            None => {
                let attention = product(&[2, hidden, head, heads.saturating_add(kv_heads)]);
                let feed_forward = match self.num_local_experts {
                    Some(all) => {
                        let each = wide(all).saturating_add(self.n_shared_experts.unwrap_or(0).into());
                        product(&[each, expert])
                    }
                    None => product(&[matrices, hidden, intermediate]),
                };
                let each = attention.saturating_add(feed_forward);
                let tables = if self.tie_word_embeddings == Some(true) { 1 } else { 2 };
                let tables = product(&[tables, vocabulary, hidden]);
                let values = bytes_of(product(&[layers, each]), bits);
                (values.saturating_add(product(&[tables, self.bytes_per_value()])), WeightsFrom::Shape)
            }
        };
        Ok(Model {
            layers,
            hidden,
            intermediate,
            vocabulary,
            bytes_per_value: self.bytes_per_value(),
            cached_per_token: match self.kv_lora_rank {
                Some(rank) => wide(rank).saturating_add(self.qk_rope_head_dim.unwrap_or(0).into()),
                None => product(&[2, kv_heads, head]),
            },
            experts,
            weights,
            weights_from,
        })
    }

    fn bytes_per_value(&self) -> u64 {
        match self.torch_dtype.as_deref() {
            Some("float32" | "float") => 4,
            Some(name) if name.starts_with("float8") => 1,
            _ => 2,
        }
    }

    /// Whether the feed-forward part has a gate, and so a third matrix. Nearly all newer models have one.
    fn is_gated(&self) -> bool {
        self.model_type.as_deref().is_none_or(|kind| !WITHOUT_GATE.contains(&kind))
    }

    fn bits_per_weight(&self) -> u64 {
        let quantized = self.quantization_config.as_ref().and_then(|it| match it.quant_method.as_deref() {
            _ if it.bits.is_some() => it.bits.map(wide),
            _ if it.load_in_4bit == Some(true) => Some(4),
            _ if it.load_in_8bit == Some(true) => Some(8),
            Some("fp8" | "fbgemm_fp8") => Some(8),
            Some("mxfp4") => Some(4),
            _ => None,
        });
        quantized.unwrap_or_else(|| self.bytes_per_value() * 8)
    }
}

/// The bytes of the weights' files beside the configuration, if there are any.
fn weights_beside(config: &Path) -> io::Result<Option<u64>> {
    let folder = match config.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match read(&folder.join(INDEX)) {
        Ok(index) => {
            let index: Value = serde_json::from_slice(&index).map_err(invalid)?;
            let size =
                index.pointer("/metadata/total_size").and_then(Value::as_u64).and_then(NonZeroU64::new);
            if let Some(size) = size {
                return Ok(Some(size.get()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut sum = 0u64;
    for entry in fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        if path.extension().is_some_and(|it| it == "safetensors" || it == "gguf") {
            sum = sum.saturating_add(fs::metadata(&path)?.len());
        }
    }
    Ok((sum > 0).then_some(sum))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(invalid("it is not a file"));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(invalid(format!("it has {} bytes, which no configuration has", about.len())));
    }
    fs::read(path)
}

fn needed(field: Option<NonZeroU32>, name: &str) -> Result<u64, String> {
    field.map(wide).ok_or_else(|| format!("it has no `{name}`"))
}

fn wide(number: NonZeroU32) -> u64 {
    number.get().into()
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}

fn bytes_of(values: u64, bits: u64) -> u64 {
    match values.checked_mul(bits) {
        Some(all) => all.div_ceil(8),
        None => u64::MAX,
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(config: &str) -> Result<Model, String> {
        serde_json::from_str::<Config>(config).unwrap().model(None)
    }

    const LLAMA_3_70B: &str = r#"{"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "hidden_act": "silu",
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;

    /// The published number of parameters is 70.55 billion.
    #[test]
    fn weights_of_a_llama_follow_from_its_shape() {
        // Many configurations do not say what the activation is.
        let unnamed = LLAMA_3_70B.replace(r#""hidden_act": "silu","#, "");
        for config in [LLAMA_3_70B, &unnamed] {
            let model = model(config).unwrap();
            let parameters = model.weights / 2;
            assert!((70_500_000_000..70_600_000_000).contains(&parameters), "{parameters}");
            assert_eq!((model.cached_per_token, model.weights_from), (2 * 8 * 128, WeightsFrom::Shape));
        }
    }

    /// The published number of parameters is 124 million, with one table of words.
    #[test]
    fn older_names_of_fields_are_known() {
        let gpt2 = r#"{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
            "tie_word_embeddings": true, "torch_dtype": "float32"}"#;
        let parameters = model(gpt2).unwrap().weights / 4;
        assert!((123_000_000..125_000_000).contains(&parameters), "{parameters}");
    }

    /// Mixtral 8x7B has 46.7 billion parameters.
    #[test]
    fn all_experts_count() {
        let mixtral = r#"{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "hidden_act": "silu",
            "num_local_experts": 8, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"}"#;
        let model = model(mixtral).unwrap();
        let parameters = model.weights / 2;
        assert!((46_600_000_000..46_800_000_000).contains(&parameters), "{parameters}");
        let experts = model.experts.unwrap();
        assert_eq!((experts.all, experts.used), (8, 2));
        assert!(experts.bytes < model.weights);
    }

    #[test]
    fn quantized_weights_are_smaller() {
        let four =
            LLAMA_3_70B.replacen('{', r#"{"quantization_config": {"quant_method": "awq", "bits": 4},"#, 1);
        let [whole, four] = [LLAMA_3_70B, &four].map(|config| model(config).unwrap());
        assert!(four.weights * 3 < whole.weights && four.weights * 4 > whole.weights);
        assert_eq!(four.bytes_per_value, 2, "the cache is not quantized");
    }

    #[test]
    fn the_text_part_of_another_model_counts() {
        let nested = format!(r#"{{"model_type": "seeing", "text_config": {LLAMA_3_70B}}}"#);
        assert_eq!(model(&nested), model(LLAMA_3_70B));
    }

    #[test]
    fn a_missing_field_is_named() {
        let none = model(r#"{"hidden_size": 8, "num_hidden_layers": 2}"#).unwrap_err();
        assert_eq!(none, "it has no `num_attention_heads`");
        let latent = r#"{"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64}"#;
        assert!(model(latent).unwrap_err().contains("--weights"));
        let known =
            serde_json::from_str::<Config>(latent).unwrap().model(Some((9, WeightsFrom::CommandLine)));
        assert_eq!(known.unwrap().cached_per_token, 576);
    }

    #[test]
    fn absurd_numbers_do_not_wrap_around() {
        let most = u32::MAX;
        let absurd = format!(
            r#"{{"hidden_size": {most}, "num_hidden_layers": {most}, "num_attention_heads": 1, "vocab_size": {most}}}"#
        );
        assert_eq!(model(&absurd).unwrap().weights, u64::MAX);
    }

    #[test]
    fn files_beside_the_configuration_say_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let read = || Model::read(&file_of(path), None);
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(path.join(CONFIG), LLAMA_3_70B).unwrap();
        assert_eq!(read().unwrap().weights_from, WeightsFrom::Shape);
        fs::write(path.join("a.safetensors"), [0; 100]).unwrap();
        fs::write(path.join("b.safetensors"), [0; 20]).unwrap();
        let model = read().unwrap();
        assert_eq!((model.weights, model.weights_from), (120, WeightsFrom::Files));
        fs::write(path.join(INDEX), r#"{"metadata": {"total_size": 77}}"#).unwrap();
        assert_eq!(read().unwrap().weights, 77);
        assert_eq!(Model::read(&path.join(CONFIG), Some(5)).unwrap().weights, 5);
        fs::write(path.join(CONFIG), "no configuration").unwrap();
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
