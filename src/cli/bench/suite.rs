//! Which tests there are, in which order.

use serde::Serialize;

use super::BenchArgs;
use crate::cli::Usage;
use crate::tokenizer::TokenId;

/// Tokens that are generated at each depth by --no-kv-cache: each costs a prefill.
const UNCACHED_TOKENS: usize = 4;
/// Depths of --no-kv-cache when none are given.
const UNCACHED_DEPTHS: [usize; 3] = [64, 128, 256];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    #[serde(rename = "prefill")]
    Prefill,
    #[serde(rename = "decode")]
    Decode,
    /// A token by computing all before it anew.
    #[serde(rename = "decode, no cache")]
    NoCache,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Prefill, Kind::Decode, Kind::NoCache];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Prefill => "prefill",
            Kind::Decode => "decode",
            Kind::NoCache => "decode, no cache",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub kind: Kind,
    /// Tokens of each sequence that are there before.
    pub depth: usize,
    /// Tokens of each sequence that are read or generated.
    pub tokens: usize,
    /// That are computed together.
    pub sequences: usize,
}

impl Test {
    fn new(kind: Kind, depth: usize, tokens: usize) -> Test {
        Test { kind, depth, tokens, sequences: 1 }
    }

    pub fn total_tokens(&self) -> usize {
        self.tokens * self.sequences
    }
}

/// At least one, by depth.
pub fn tests(args: &BenchArgs) -> anyhow::Result<Vec<Test>> {
    let depths: &[usize] = match args.depth.as_slice() {
        [] if args.no_kv_cache => &UNCACHED_DEPTHS,
        [] => &[0],
        depths => depths,
    };
    let mut tests = Vec::new();
    for &depth in depths {
        if args.no_kv_cache {
            tests.extend([Kind::Decode, Kind::NoCache].map(|kind| Test::new(kind, depth, UNCACHED_TOKENS)));
            continue;
        }
        let some = |sizes: &[usize]| sizes.iter().copied().filter(|&tokens| tokens > 0).collect::<Vec<_>>();
        tests.extend(some(&args.prompt_tokens).into_iter().map(|tokens| Test::new(Kind::Prefill, depth, tokens)));
        for &sequences in &args.sequences {
            let decode = |tokens| Test { sequences, ..Test::new(Kind::Decode, depth, tokens) };
            tests.extend(some(&args.gen_tokens).into_iter().map(decode));
        }
    }
    if tests.is_empty() {
        anyhow::bail!(Usage("nothing to measure: give sizes above 0 to -p or -n".to_string()));
    }
    Ok(tests)
}

/// The same ids on every machine (a linear congruential generator); any id does for timing.
pub struct RandomIds {
    state: u64,
    vocab: u64,
}

impl RandomIds {
    pub fn new(vocab: usize) -> RandomIds {
        RandomIds { state: 1, vocab: vocab as u64 }
    }

    pub fn some(&mut self, n: usize) -> Vec<TokenId> {
        self.take(n).collect()
    }
}

impl Iterator for RandomIds {
    type Item = TokenId;
    fn next(&mut self) -> Option<TokenId> {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some(((self.state >> 33) % self.vocab) as TokenId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_stay_in_the_vocabulary() {
        let ids = RandomIds::new(320).some(1000);
        assert!(ids.iter().all(|&id| id < 320) && ids.iter().any(|&id| id != ids[0]));
    }

    #[test]
    fn names_are_those_of_reports() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
