//! `--logit-bias`: which token, and what is added to its logit.

use std::fmt;

use anyhow::bail;

use crate::cli::Usage;
use crate::tokenizer::{TokenId, Tokenizer};

#[derive(Clone, Debug, PartialEq)]
pub struct LogitBias {
    pub token: Token,
    /// `None`: it may never come.
    pub bias: Option<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Id(u64),
    Text(String),
}

const WANTED: &str =
    "not a token's id, or its text in quotes, then + or - and a number or inf: 15043+1, '\" Hello\"-inf'";

impl LogitBias {
    /// `15043+1`, `15043-0.5`, `15043-inf`, `15043=false`, or the text of the token as a JSON string before the sign.
    pub fn parse(spelling: &str) -> Result<LogitBias, String> {
        LogitBias::of(spelling.trim()).ok_or_else(|| WANTED.to_string())
    }

    fn of(spelling: &str) -> Option<LogitBias> {
        let (token, bias) = if spelling.starts_with('"') {
            let mut texts = serde_json::Deserializer::from_str(spelling).into_iter::<String>();
            let text = texts.next()?.ok().filter(|text| !text.is_empty())?;
            (Token::Text(text), &spelling[texts.byte_offset()..])
        } else {
            let digits = spelling.find(|c: char| !c.is_ascii_digit())?;
            (Token::Id(spelling[..digits].parse().ok()?), &spelling[digits..])
        };
        let bias = match bias {
            "-inf" | "=false" => None,
            // The sign is the number's, and no second one may follow.
            _ if bias.starts_with(['+', '-']) && bias[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                Some(bias.parse().ok().filter(|bias: &f32| bias.is_finite())?)
            }
            _ => return None,
        };
        Some(LogitBias { token, bias })
    }
}

impl Token {
    /// The ids it means: of a text, all that stand for exactly this.
    pub fn find(&self, tokenizer: &Tokenizer) -> anyhow::Result<Vec<TokenId>> {
        let vocab = tokenizer.vocab();
        match self {
            Token::Id(id) => match TokenId::try_from(*id) {
                Ok(id) if (id as usize) < vocab => Ok(vec![id]),
                _ => bail!(Usage(format!("--logit-bias: there is no token {id}, the last one is {}", vocab - 1))),
            },
            Token::Text(text) => {
                let is_it = |id: &TokenId| tokenizer.bytes(*id) == text.as_bytes();
                let ids: Vec<TokenId> = (0..vocab as TokenId).filter(is_it).collect();
                if ids.is_empty() {
                    bail!(Usage(format!(
                        "--logit-bias: no single token stands for {text:?} (`sayfa tokenize` shows the tokens of a text)"
                    )));
                }
                Ok(ids)
            }
        }
    }
}

impl fmt::Display for LogitBias {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.token {
            Token::Id(id) => write!(f, "{id}")?,
            Token::Text(text) => write!(f, "{}", serde_json::json!(text))?,
        }
        match self.bias {
            Some(bias) => write!(f, "{bias:+}"),
            None => write!(f, "-inf"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_texts_with_any_bias() {
        for (spelling, token, bias) in [
            ("15043+1", Token::Id(15043), Some(1.0)),
            ("15043-0.5", Token::Id(15043), Some(-0.5)),
            ("0+1e2", Token::Id(0), Some(100.0)),
            ("7-inf", Token::Id(7), None),
            ("7=false", Token::Id(7), None),
            (r#"" Hello"+2"#, Token::Text(" Hello".into()), Some(2.0)),
            (r#""\n"-inf"#, Token::Text("\n".into()), None),
            (r#""a\"+1"-3"#, Token::Text("a\"+1".into()), Some(-3.0)),
        ] {
            assert_eq!(LogitBias::parse(spelling), Ok(LogitBias { token, bias }), "{spelling}");
        }
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for spelling in ["15043+1", "15043-0.5", "7-inf", r#"" Hello"+2"#, r#""\n"-inf"#] {
            assert_eq!(LogitBias::parse(spelling).unwrap().to_string(), spelling);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for spelling in [
            "", "15043", "15043+", "+1", "x+1", "-1+1", "7+inf", "7-nan", "7+-1", "7+1e99", r#"""+1"#, r#""a+1"#, "7*2",
        ] {
            assert!(LogitBias::parse(spelling).is_err(), "{spelling}");
        }
    }
}
