//! The stages by name, and the order in which they work.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    Typical,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

impl Stage {
    /// In llama.cpp's order.
    pub const ALL: [Stage; 9] = [
        Stage::Penalties,
        Stage::Dry,
        Stage::TopNSigma,
        Stage::TopK,
        Stage::Typical,
        Stage::TopP,
        Stage::MinP,
        Stage::Xtc,
        Stage::Temperature,
    ];

    /// llama.cpp's name, its other spellings, and its letter.
    const fn names(self) -> (&'static str, &'static [&'static str], char) {
        match self {
            Stage::Penalties => ("penalties", &[], 'e'),
            Stage::Dry => ("dry", &[], 'd'),
            Stage::TopNSigma => ("top_n_sigma", &["top_nsigma"], 's'),
            Stage::TopK => ("top_k", &[], 'k'),
            Stage::Typical => ("typ_p", &["typ", "typical", "typical_p"], 'y'),
            Stage::TopP => ("top_p", &["nucleus"], 'p'),
            Stage::MinP => ("min_p", &[], 'm'),
            Stage::Xtc => ("xtc", &[], 'x'),
            Stage::Temperature => ("temperature", &["temp"], 't'),
        }
    }

    pub fn name(self) -> &'static str {
        self.names().0
    }

    fn of_name(name: &str) -> Option<Stage> {
        let name = name.to_lowercase().replace('-', "_");
        Stage::ALL.into_iter().find(|stage| stage.name() == name || stage.names().1.contains(&name.as_str()))
    }

    fn of_letter(letter: char) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.names().2 == letter)
    }
}

/// The stages between the logits and the draw, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(pub Vec<Stage>);

impl Default for Chain {
    fn default() -> Chain {
        Chain(Stage::ALL.to_vec())
    }
}

impl Chain {
    pub fn has(&self, stage: Stage) -> bool {
        self.0.contains(&stage)
    }

    /// From the short form, such as `kpt`: top-k, top-p, temperature.
    pub fn of_letters(letters: &str) -> Result<Chain, UnknownStage> {
        let of = |letter| Stage::of_letter(letter).ok_or_else(|| UnknownStage::letter(letter));
        letters.chars().map(of).collect::<Result<_, _>>().map(Chain)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0.iter().map(|stage| stage.name()).collect::<Vec<_>>().join(";"))
    }
}

/// Names between semicolons, or commas.
impl FromStr for Chain {
    type Err = UnknownStage;

    fn from_str(names: &str) -> Result<Chain, UnknownStage> {
        let of = |name: &str| Stage::of_name(name.trim()).ok_or_else(|| UnknownStage::name(name.trim()));
        names.split([';', ',']).map(of).collect::<Result<_, _>>().map(Chain)
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no stage '{unknown}', only {known}")]
pub struct UnknownStage {
    unknown: String,
    known: String,
}

impl UnknownStage {
    fn name(unknown: &str) -> UnknownStage {
        UnknownStage { unknown: unknown.to_string(), known: Stage::ALL.map(Stage::name).join(", ") }
    }

    fn letter(unknown: char) -> UnknownStage {
        let known = Stage::ALL.map(|stage| format!("{} ({})", stage.names().2, stage.name()));
        UnknownStage { unknown: unknown.to_string(), known: known.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_order_of_llama_cpp_in_both_forms() {
        let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(Chain::default().to_string(), names);
        assert_eq!(names.parse(), Ok(Chain::default()));
        assert_eq!(Chain::of_letters("edskypmxt"), Ok(Chain::default()));
    }

    #[test]
    fn other_spellings_and_any_order() {
        let chain: Chain = "temp; Top-P,nucleus;typical;typical-p;typ;top-n-sigma;top-nsigma".parse().unwrap();
        assert_eq!(chain.to_string(), "temperature;top_p;top_p;typ_p;typ_p;typ_p;top_n_sigma;top_n_sigma");
        assert_eq!(Chain::of_letters("tk").unwrap().to_string(), "temperature;top_k");
    }

    #[test]
    fn an_unknown_name_or_letter_is_told_with_those_there_are() {
        let error = "top_k;tfs_z".parse::<Chain>().unwrap_err().to_string();
        assert!(error.starts_with("there is no stage 'tfs_z', only penalties, dry, top_n_sigma, "), "{error}");
        assert!("top_k;".parse::<Chain>().is_err() && "".parse::<Chain>().is_err());
        let error = Chain::of_letters("kz").unwrap_err().to_string();
        assert!(error.starts_with("there is no stage 'z', only e (penalties), d (dry), "), "{error}");
    }
}
