//! The paged KV cache: which sequence owns which pages. Ids only, never bytes.
//!
//! A sequence holds only the pages its tokens fill: waste is at most `BLOCK_TOKENS - 1` tokens. Full pages of a sequence
//! that is whole from position 0 are published: other sequences that begin alike take them over instead of computing
//! them, also after their first owner is gone. Published and shared pages never change: who appends into one gets a
//! copy first. What a page table cannot do itself, moving bytes, is returned for the backend to do.

pub mod layout;
pub mod plan;
pub mod pool;
pub mod prefix;
pub mod rows;
pub mod session;

use layout::{BLOCK_TOKENS, BlockId};
use pool::{BlockPool, OutOfBlocks, Released};
use prefix::{Listed, PrefixIndex};

/// The pages of one sequence and how many tokens they hold.
#[derive(Debug)]
pub struct PageTable {
    pages: Vec<BlockId>,
    tokens: usize,
    /// Leading pages that are in the index, ours or an equal one's.
    published: usize,
    /// No page was evicted: token i stands at position i.
    is_whole: bool,
}

impl Default for PageTable {
    fn default() -> PageTable {
        PageTable { pages: vec![], tokens: 0, published: 0, is_whole: true }
    }
}

impl PageTable {
    /// Pages in token order; the last may be partly filled.
    pub fn pages(&self) -> &[BlockId] {
        &self.pages
    }

    /// Tokens held; evicted ones do not count.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// What a backend must do before the next write, in this order.
#[derive(Debug, Default)]
pub struct Moves {
    /// (from, to): the page that the sequence goes on in was not its own.
    pub copy: Option<(BlockId, BlockId)>,
    /// Nobody owns these any more.
    pub freed: Vec<BlockId>,
}

/// Blocks by what they are, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub total: usize,
    pub free: usize,
    pub live: usize,
    /// Live ones with more than one owner.
    pub shared: usize,
    pub cached: usize,
}

#[derive(Debug)]
pub struct KvCache {
    pool: BlockPool,
    index: PrefixIndex,
    /// Most blocks that are kept for reuse without an owner.
    cached_bound: usize,
}

impl KvCache {
    /// `identity`: of everything beside the tokens that decides a block's bytes.
    pub fn new(total_blocks: usize, cached_bound: usize, identity: u64) -> KvCache {
        KvCache { pool: BlockPool::new(total_blocks), index: PrefixIndex::new(identity), cached_bound }
    }

    pub fn usage(&self) -> Usage {
        let pool = &self.pool;
        let shared = (0..pool.total() as BlockId).filter(|&block| pool.owners(block) > 1).count();
        Usage { total: pool.total(), free: pool.free(), live: pool.live(), shared, cached: pool.cached() }
    }

    pub fn owners(&self, block: BlockId) -> u32 {
        self.pool.owners(block)
    }

    /// A table that shares the published pages of the longest prefix of `tokens`, at most `max_tokens` of it.
    pub fn find(&mut self, tokens: &[u32], max_tokens: usize) -> PageTable {
        let pages = self.index.longest(tokens, max_tokens);
        pages.iter().for_each(|&block| self.pool.retain(block));
        let (published, tokens) = (pages.len(), pages.len() * BLOCK_TOKENS);
        PageTable { pages, tokens, published, is_whole: true }
    }

    /// A table that shares all pages of another.
    pub fn fork(&mut self, table: &PageTable) -> PageTable {
        table.pages.iter().for_each(|&block| self.pool.retain(block));
        PageTable { pages: table.pages.clone(), ..*table }
    }

    /// Makes room for `n` more tokens, or changes nothing.
    pub fn append(&mut self, table: &mut PageTable, n: usize) -> Result<Moves, OutOfBlocks> {
        let pages = (table.tokens + n).div_ceil(BLOCK_TOKENS);
        let last_partial = (!table.tokens.is_multiple_of(BLOCK_TOKENS) && n > 0).then(|| table.pages.len() - 1);
        let to_copy = last_partial.filter(|&page| self.pool.is_immutable(table.pages[page]));
        let needed = pages - table.pages.len() + usize::from(to_copy.is_some());
        let mut fresh = Vec::with_capacity(needed);
        while fresh.len() < needed {
            match self.pool.allocate() {
                Ok(allocated) => {
                    if allocated.was_cached {
                        self.index.forget(allocated.block);
                    }
                    fresh.push(allocated.block);
                }
                Err(out) => {
                    for block in fresh.into_iter().rev() {
                        self.pool.release(block);
                    }
                    return Err(out);
                }
            }
        }
        let mut moves = Moves::default();
        if let Some(page) = to_copy {
            let (from, to) = (table.pages[page], fresh.remove(0));
            table.pages[page] = to;
            table.published = table.published.min(page);
            moves = Moves { copy: Some((from, to)), freed: self.give_up(vec![from]) };
        }
        table.pages.extend(fresh);
        table.tokens += n;
        Ok(moves)
    }

    /// Lists the full pages of a whole sequence, whose tokens are `tokens`, for reuse by others.
    pub fn publish(&mut self, table: &mut PageTable, tokens: &[u32]) {
        assert_eq!(tokens.len(), table.tokens, "the tokens of the table");
        if !table.is_whole {
            return;
        }
        for (page, tokens) in tokens.as_chunks::<BLOCK_TOKENS>().0.iter().enumerate().skip(table.published) {
            let parent = page.checked_sub(1).map(|parent| table.pages[parent]);
            // behind a page that only equals a listed one, nothing of ours can be listed
            if parent.is_some_and(|parent| !self.index.contains(parent)) {
                return;
            }
            let block = table.pages[page];
            match self.index.list(parent, tokens, block) {
                Listed::New => self.pool.publish(block),
                Listed::Known => return,
                Listed::Replaced(old) => {
                    self.pool.publish(block);
                    self.pool.unpublish(old);
                }
            }
            table.published = page + 1;
        }
    }

    /// Keeps the first `tokens` tokens. Returns the blocks that nobody owns any more, so that a backend can give their
    /// memory back.
    pub fn truncate(&mut self, table: &mut PageTable, tokens: usize) -> Vec<BlockId> {
        assert!(tokens <= table.tokens, "cannot keep {tokens} of {} tokens", table.tokens);
        table.tokens = tokens;
        let pages = table.pages.split_off(tokens.div_ceil(BLOCK_TOKENS));
        table.published = table.published.min(tokens / BLOCK_TOKENS);
        table.is_whole |= tokens == 0;
        self.give_up(pages)
    }

    /// Takes out the full pages `from..to`: their tokens are forgotten, the others keep their positions. From then on
    /// the sequence publishes nothing.
    pub fn evict(&mut self, table: &mut PageTable, from: usize, to: usize) -> Vec<BlockId> {
        assert!(from <= to && to <= table.tokens / BLOCK_TOKENS, "only full pages can be evicted");
        table.tokens -= (to - from) * BLOCK_TOKENS;
        table.published = table.published.min(from);
        table.is_whole &= from == to;
        let pages = table.pages.drain(from..to).collect();
        self.give_up(pages)
    }

    /// Releases pages, last first (of a prefix, the end is dropped before the beginning), and trims what is cached.
    fn give_up(&mut self, pages: Vec<BlockId>) -> Vec<BlockId> {
        let mut freed = vec![];
        for block in pages.into_iter().rev() {
            if self.pool.release(block) == Released::Free {
                freed.push(block);
            }
        }
        while let Some(block) = self.pool.oldest_beyond(self.cached_bound) {
            self.index.forget(block);
            self.pool.unpublish(block);
            freed.push(block);
        }
        freed
    }
}

#[cfg(test)]
mod tests;
