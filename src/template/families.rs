//! Templates of families of models, for files that hold none and for `--chat-template NAME`. Names and forms are those
//! of llama.cpp's built-in templates, but for `llama2`, which follows Meta's own code, and `gemma`, which refuses system
//! messages as the published template does. BOS at the start is the tokenizer's to add.

use crate::gguf::Gguf;
use crate::tokenizer::Tokenizer;

/// Name and source, by name.
const FAMILIES: &[(&str, &str)] = &[
    ("alpaca", include_str!("families/alpaca.jinja")),
    ("chatml", include_str!("families/chatml.jinja")),
    ("command-r", include_str!("families/command-r.jinja")),
    ("deepseek", include_str!("families/deepseek.jinja")),
    ("deepseek2", include_str!("families/deepseek2.jinja")),
    ("deepseek3", include_str!("families/deepseek3.jinja")),
    ("falcon3", include_str!("families/falcon3.jinja")),
    ("gemma", include_str!("families/gemma.jinja")),
    ("granite", include_str!("families/granite.jinja")),
    ("llama2", include_str!("families/llama2.jinja")),
    ("llama3", include_str!("families/llama3.jinja")),
    ("llama4", include_str!("families/llama4.jinja")),
    ("mistral-v1", include_str!("families/mistral-v1.jinja")),
    ("mistral-v3", include_str!("families/mistral-v3.jinja")),
    ("mistral-v3-tekken", include_str!("families/mistral-v3-tekken.jinja")),
    ("mistral-v7", include_str!("families/mistral-v7.jinja")),
    ("mistral-v7-tekken", include_str!("families/mistral-v7-tekken.jinja")),
    ("monarch", include_str!("families/monarch.jinja")),
    ("openchat", include_str!("families/openchat.jinja")),
    ("orion", include_str!("families/orion.jinja")),
    ("phi3", include_str!("families/phi3.jinja")),
    ("phi4", include_str!("families/phi4.jinja")),
    ("vicuna", include_str!("families/vicuna.jinja")),
    ("vicuna-orca", include_str!("families/vicuna-orca.jinja")),
    ("zephyr", include_str!("families/zephyr.jinja")),
];

/// Families that write control tokens of their own: a vocabulary that has all of these was made for them. The first of
/// the list counts, so that a family with more markers comes before one with some of them.
const BY_MARKERS: &[(&str, &[&str])] = &[
    ("phi4", &["<|im_start|>", "<|im_sep|>", "<|im_end|>"]),
    ("chatml", &["<|im_start|>", "<|im_end|>"]),
    ("llama3", &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    ("llama4", &["<|header_start|>", "<|header_end|>", "<|eot|>"]),
    ("gemma", &["<start_of_turn>", "<end_of_turn>"]),
    ("command-r", &["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"]),
    ("deepseek3", &["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"]),
    ("granite", &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"]),
    ("mistral-v7", &["[SYSTEM_PROMPT]", "[INST]", "[/INST]"]),
    ("mistral-v3", &["[INST]", "[/INST]"]),
    ("phi3", &["<|user|>", "<|assistant|>", "<|end|>"]),
];

/// Families whose markers are plain text, by words of the model's name. They share their vocabularies with models that
/// were never taught to chat, so that nothing else tells.
const BY_NAME: &[(&str, &[&str])] = &[
    ("vicuna", &["vicuna"]),
    ("alpaca", &["alpaca"]),
    ("zephyr", &["zephyr"]),
    ("zephyr", &["tinyllama", "chat"]),
    ("openchat", &["openchat"]),
    ("llama2", &["llama-2", "chat"]),
    ("mistral-v1", &["mistral", "instruct"]),
    ("mistral-v1", &["mixtral", "instruct"]),
    ("deepseek", &["deepseek-coder", "instruct"]),
];

/// Keys under which a file may tell what the model is called.
const NAME_KEYS: [&str; 3] = ["general.name", "general.basename", "general.finetune"];

/// The template of a family.
pub fn source(name: &str) -> Option<&'static str> {
    FAMILIES.iter().find(|(family, _)| *family == name).map(|(_, source)| *source)
}

/// A marker that this family writes and the vocabulary does not have as a control token, if there is one.
pub fn missing_marker(family: &str, tokenizer: &Tokenizer) -> Option<&'static str> {
    let (_, markers) = BY_MARKERS.iter().find(|(name, _)| *name == family)?;
    markers.iter().copied().find(|marker| tokenizer.control_token(marker).is_none())
}

/// All names, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// The family of a file without a template, if something sound tells it, and what does.
pub fn of_file(gguf: &Gguf, tokenizer: &Tokenizer) -> Option<(&'static str, String)> {
    // Not by encoding them: a vocabulary without their letters has one id, the unknown token, for any text.
    let has = |marker: &&str| tokenizer.control_token(marker).is_some();
    if let Some((family, markers)) = BY_MARKERS.iter().find(|(_, markers)| markers.iter().all(has)) {
        let is_bpe = gguf.str("tokenizer.ggml.model").ok().flatten() == Some("gpt2");
        let family = match (*family, is_bpe) {
            ("mistral-v3", true) => "mistral-v3-tekken",
            ("mistral-v7", true) => "mistral-v7-tekken",
            (family, _) => family,
        };
        return Some((family, format!("the vocabulary has its markers, such as {}", markers[0])));
    }
    let names = NAME_KEYS.iter().filter_map(|key| gguf.str(key).ok().flatten());
    let name = names.collect::<Vec<_>>().join(" ").to_lowercase().replace([' ', '_'], "-");
    let (family, _) = BY_NAME.iter().find(|(_, words)| words.iter().all(|word| name.contains(word)))?;
    Some((*family, "the file calls the model so".to_string()))
}
