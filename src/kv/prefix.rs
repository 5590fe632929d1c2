//! Finds the longest published prefix of a prompt: full blocks by chained hash, proven by their token ids.
//!
//! The hash of a block covers its tokens and the hash of the block before it, the first one's the identity of model and
//! cache settings; so equal hashes mean equal prefixes, up to collisions. A hit compares the ids and that the entry's
//! parent is the very block just matched, so a collision can cost a hit but never give a wrong one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::layout::{BLOCK_TOKENS, BlockId};

type TokenId = u32;

#[derive(Debug)]
struct Entry {
    block: BlockId,
    parent: Option<BlockId>,
    tokens: [TokenId; BLOCK_TOKENS],
}

/// What listing a block did.
#[derive(Debug, PartialEq, Eq)]
pub enum Listed {
    New,
    /// An equal block is listed already: this one stays its sequence's own.
    Known,
    /// The entry led nowhere (its parent was gone) and now names the new block; the old one must be unpublished.
    Replaced(BlockId),
}

#[derive(Debug)]
pub struct PrefixIndex {
    identity: u64,
    by_hash: HashMap<u64, Entry>,
    hash_of: HashMap<BlockId, u64>,
}

impl PrefixIndex {
    /// `identity`: of everything beside the tokens that decides a block's bytes.
    pub fn new(identity: u64) -> PrefixIndex {
        PrefixIndex { identity, by_hash: HashMap::new(), hash_of: HashMap::new() }
    }

    /// The blocks that hold the longest listed prefix of `tokens`, at most `max_tokens` of it.
    pub fn longest(&self, tokens: &[TokenId], max_tokens: usize) -> Vec<BlockId> {
        let mut blocks = vec![];
        let mut hash = self.identity;
        for tokens in tokens[..max_tokens.min(tokens.len())].as_chunks::<BLOCK_TOKENS>().0 {
            hash = chained(hash, tokens);
            match self.by_hash.get(&hash) {
                Some(entry) if entry.tokens == *tokens && entry.parent == blocks.last().copied() => {
                    blocks.push(entry.block);
                }
                _ => break,
            }
        }
        blocks
    }

    /// Lists `block` as the one that follows the listed block `parent` (none: the first) with these tokens.
    pub fn list(&mut self, parent: Option<BlockId>, tokens: &[TokenId; BLOCK_TOKENS], block: BlockId) -> Listed {
        let parent_hash = match parent {
            None => self.identity,
            Some(parent) => self.hash_of[&parent],
        };
        let hash = chained(parent_hash, tokens);
        let entry = Entry { block, parent, tokens: *tokens };
        let listed = match self.by_hash.get(&hash) {
            None => Listed::New,
            Some(known) if known.tokens == *tokens && known.parent != parent => Listed::Replaced(known.block),
            Some(_) => return Listed::Known,
        };
        if let Listed::Replaced(old) = listed {
            self.hash_of.remove(&old);
        }
        self.by_hash.insert(hash, entry);
        self.hash_of.insert(block, hash);
        listed
    }

    /// Whether `block` is listed.
    pub fn contains(&self, block: BlockId) -> bool {
        self.hash_of.contains_key(&block)
    }

    /// The block holds something else now.
    pub fn forget(&mut self, block: BlockId) {
        if let Some(hash) = self.hash_of.remove(&block) {
            self.by_hash.remove(&hash);
        }
    }
}

fn chained(parent: u64, tokens: &[TokenId; BLOCK_TOKENS]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, tokens).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found_by_whole_blocks_and_only_behind_their_parents() {
        let mut index = PrefixIndex::new(7);
        let tokens: Vec<TokenId> = (0..48).collect();
        let [a, b, c] = [0, 16, 32].map(|at| *tokens[at..].first_chunk::<BLOCK_TOKENS>().unwrap());
        assert_eq!(index.list(None, &a, 5), Listed::New);
        assert_eq!(index.list(Some(5), &b, 3), Listed::New);
        assert_eq!(index.list(Some(3), &c, 9), Listed::New);
        assert_eq!(index.longest(&tokens, 48), [5, 3, 9]);
        assert_eq!(index.longest(&tokens, 47), [5, 3], "the last prompt token is always computed");
        assert_eq!(index.longest(&tokens[1..], 47), [] as [BlockId; 0]);

        assert_eq!(index.list(None, &a, 6), Listed::Known);
        index.forget(3);
        assert_eq!(index.longest(&tokens, 48), [5], "what follows a forgotten block is out of reach");
        assert_eq!(index.list(Some(5), &b, 4), Listed::New);
        assert_eq!(index.longest(&tokens, 48), [5, 4], "9 followed another block");
        assert_eq!(index.list(Some(4), &c, 8), Listed::Replaced(9));
        assert_eq!(index.longest(&tokens, 48), [5, 4, 8]);
    }

    #[test]
    fn another_model_or_setting_finds_nothing() {
        let tokens = [1; BLOCK_TOKENS];
        let (mut one, mut other) = (PrefixIndex::new(1), PrefixIndex::new(2));
        one.list(None, &tokens, 0);
        other.list(None, &tokens, 0);
        assert_ne!(one.hash_of[&0], other.hash_of[&0]);
    }
}
