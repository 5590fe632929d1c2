//! The paged KV cache: which sequence owns which pages. Ids only, never bytes.
//!
//! A sequence holds only the pages its tokens fill: waste is at most `BLOCK_TOKENS - 1` tokens.

pub mod layout;
pub mod pool;
pub mod rows;

use layout::{BLOCK_TOKENS, BlockId};
use pool::{BlockPool, OutOfBlocks};

/// The pages of one sequence and how many tokens they hold.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<BlockId>,
    tokens: usize,
}

impl PageTable {
    /// Pages in token order; the last may be partly filled.
    pub fn pages(&self) -> &[BlockId] {
        &self.pages
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Makes room for `n` more tokens, or changes nothing.
    pub fn append(&mut self, n: usize, pool: &mut BlockPool) -> Result<(), OutOfBlocks> {
        let pages = (self.tokens + n).div_ceil(BLOCK_TOKENS);
        let held = self.pages.len();
        while self.pages.len() < pages {
            match pool.allocate() {
                Ok(block) => self.pages.push(block),
                Err(out) => {
                    self.pages.drain(held..).rev().for_each(|block| pool.free(block));
                    return Err(out);
                }
            }
        }
        self.tokens += n;
        Ok(())
    }

    /// Keeps the first `tokens` tokens; gives the freed blocks back to the pool and returns them, so that a backend can
    /// give their memory back too.
    pub fn truncate(&mut self, tokens: usize, pool: &mut BlockPool) -> Vec<BlockId> {
        assert!(tokens <= self.tokens, "cannot keep {tokens} of {} tokens", self.tokens);
        self.tokens = tokens;
        let freed = self.pages.split_off(tokens.div_ceil(BLOCK_TOKENS));
        freed.iter().rev().for_each(|&block| pool.free(block));
        freed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any order of appends and truncations over three sequences: no page is shared, none is lost, waste is bounded.
        #[test]
        fn pages_are_neither_shared_nor_lost(steps in prop::collection::vec((0usize..3, prop::bool::ANY, 0usize..70), 1..60)) {
            let mut pool = BlockPool::new(12);
            let mut tables: [PageTable; 3] = Default::default();
            for (i, append, n) in steps {
                let table = &mut tables[i];
                let before = (table.tokens(), table.pages().to_vec());
                if append {
                    if table.append(n, &mut pool).is_err() {
                        prop_assert_eq!(before, (table.tokens(), table.pages().to_vec()));
                    }
                } else {
                    let keep = n.min(table.tokens());
                    let freed = table.truncate(keep, &mut pool);
                    prop_assert_eq!(&before.1[before.1.len() - freed.len()..], &freed[..]);
                }
                let mut all: Vec<_> = tables.iter().flat_map(|t| t.pages().to_vec()).collect();
                prop_assert_eq!(all.len(), pool.live());
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), pool.live(), "a page has two owners");
                for table in &tables {
                    let slots = table.pages().len() * BLOCK_TOKENS;
                    prop_assert!(slots >= table.tokens() && slots - table.tokens() < BLOCK_TOKENS);
                }
            }
        }
    }
}
