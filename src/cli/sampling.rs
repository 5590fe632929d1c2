//! Flags of the sampler, under llama.cpp's names and with its defaults.

use clap::Args;

use super::args::{above_zero, number};
use crate::sampler::Params;
use crate::tokenizer::Tokenizer;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0: always the likeliest token
    #[arg(long, value_name = "X", default_value_t = 0.8, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub temp: f32,

    /// Keep the K likeliest tokens; 0 or less: all
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub top_k: i64,

    /// Keep the likeliest tokens that together reach this probability; 1: all
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub top_p: f32,

    /// Keep tokens at least this likely, as a part of the likeliest; 0: all
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub min_p: f32,

    /// Weaken tokens of the last ones by this factor; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = above_zero, allow_negative_numbers = true)]
    pub repeat_penalty: f32,

    /// How many of the last tokens the penalties look at; 0: none, -1: all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i64).range(-1..), allow_negative_numbers = true)]
    pub repeat_last_n: i64,

    /// Subtracted from tokens that were there at all; 0: off
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    pub presence_penalty: f32,

    /// Subtracted from tokens for each time they were there; 0: off
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    pub frequency_penalty: f32,

    /// Seed of the random numbers; the same seed gives the same text; -1: a new one each time
    #[arg(short, long, value_name = "SEED", default_value = "-1", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Seed,

    /// Never end the answer: no end token can come
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    pub fn params(&self, tokenizer: &Tokenizer) -> Params {
        Params {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed.0,
            banned: if self.ignore_eos { tokenizer.end_of_generation().to_vec() } else { Vec::new() },
        }
    }
}

/// `None`: a new one each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

fn seed(text: &str) -> Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed(None));
    }
    text.parse().map(|seed| Seed(Some(seed))).map_err(|_| "not a whole number from -1 to 2^64 - 1".to_string())
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, "a finite number", |_| true)
}

fn zero_or_more(text: &str) -> Result<f32, String> {
    number(text, "a number of 0 or more", |value| value >= 0.0)
}

fn zero_to_one(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_cover_all_of_u64_and_minus_one_is_random() {
        assert_eq!(seed("-1"), Ok(Seed(None)));
        assert_eq!(seed("0"), Ok(Seed(Some(0))));
        assert_eq!(seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        assert!(seed("-2").is_err() && seed("18446744073709551616").is_err() && seed("x").is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for text in ["nan", "inf", "-0.1", "1.5", "", "x"] {
            assert!(zero_to_one(text).is_err(), "{text}");
        }
        assert!(above_zero("0").is_err() && above_zero("-1").is_err() && zero_or_more("0").is_ok());
        assert!(finite("nan").is_err() && finite("-2").is_ok());
    }
}
