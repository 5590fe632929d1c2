//! The block pool: which blocks are free, owned or cached, and by how many. Ids only; bytes belong to the backends.
//!
//! A block is *live* while someone owns it, *cached* when nobody does but its contents are published for reuse, else
//! *free*. Allocation takes free blocks, then the cached block that was used longest ago.

use std::collections::BTreeMap;

use super::layout::BlockId;

/// No block is left.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("all {total} KV blocks are in use")]
pub struct OutOfBlocks {
    pub total: usize,
}

/// A block for a new owner.
#[derive(Debug, PartialEq, Eq)]
pub struct Allocated {
    pub block: BlockId,
    /// Its published contents are gone: whoever lists them must forget the block.
    pub was_cached: bool,
}

/// What became of a block that an owner gave up.
#[derive(Debug, PartialEq, Eq)]
pub enum Released {
    StillOwned,
    Cached,
    Free,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    owners: u32,
    is_published: bool,
    /// When it became cached.
    stamp: u64,
}

#[derive(Debug)]
pub struct BlockPool {
    states: Vec<State>,
    /// The block given back last is handed out first: its memory was touched already.
    free: Vec<BlockId>,
    /// Oldest first.
    cached: BTreeMap<u64, BlockId>,
    clock: u64,
}

impl BlockPool {
    pub fn new(total: usize) -> BlockPool {
        BlockPool {
            states: vec![State::default(); total],
            free: (0..total as BlockId).rev().collect(),
            cached: BTreeMap::new(),
            clock: 0,
        }
    }

    pub fn total(&self) -> usize {
        self.states.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn cached(&self) -> usize {
        self.cached.len()
    }

    pub fn live(&self) -> usize {
        self.total() - self.free() - self.cached()
    }

    pub fn owners(&self, block: BlockId) -> u32 {
        self.states[block as usize].owners
    }

    /// Published or shared: appending into it would change what others see.
    pub fn is_immutable(&self, block: BlockId) -> bool {
        let state = self.states[block as usize];
        state.is_published || state.owners > 1
    }

    /// A block for one owner.
    pub fn allocate(&mut self) -> Result<Allocated, OutOfBlocks> {
        let allocated = match self.free.pop() {
            Some(block) => Allocated { block, was_cached: false },
            None => match self.cached.pop_first() {
                Some((_, block)) => Allocated { block, was_cached: true },
                None => return Err(OutOfBlocks { total: self.total() }),
            },
        };
        self.states[allocated.block as usize] = State { owners: 1, ..State::default() };
        Ok(allocated)
    }

    /// One more owner for a live or cached block.
    pub fn retain(&mut self, block: BlockId) {
        let state = &mut self.states[block as usize];
        if state.owners == 0 {
            let cached = self.cached.remove(&state.stamp);
            assert_eq!(cached, Some(block), "block {block} is free and cannot be retained");
        }
        state.owners += 1;
    }

    /// One owner less.
    pub fn release(&mut self, block: BlockId) -> Released {
        let state = &mut self.states[block as usize];
        assert!(state.owners > 0, "block {block} is freed twice");
        state.owners -= 1;
        match (state.owners, state.is_published) {
            (1.., _) => Released::StillOwned,
            (0, true) => {
                self.clock += 1;
                state.stamp = self.clock;
                self.cached.insert(state.stamp, block);
                Released::Cached
            }
            (0, false) => {
                self.free.push(block);
                Released::Free
            }
        }
    }

    /// The contents of a live block are listed for reuse.
    pub fn publish(&mut self, block: BlockId) {
        let state = &mut self.states[block as usize];
        assert!(state.owners > 0, "block {block} is published by nobody");
        state.is_published = true;
    }

    /// They no longer are. True when the block became free by it.
    pub fn unpublish(&mut self, block: BlockId) -> bool {
        let state = &mut self.states[block as usize];
        assert!(state.is_published, "block {block} is not published");
        state.is_published = false;
        let becomes_free = state.owners == 0;
        if becomes_free {
            self.cached.remove(&state.stamp);
            self.free.push(block);
        }
        becomes_free
    }

    /// The cached block that was used longest ago, while there are more than `bound`.
    pub fn oldest_beyond(&self, bound: usize) -> Option<BlockId> {
        if self.cached.len() > bound { self.cached.first_key_value().map(|(_, &block)| block) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_run_out_and_come_back() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.allocate().unwrap().block, pool.allocate().unwrap().block);
        assert_ne!(a, b);
        assert_eq!(pool.allocate(), Err(OutOfBlocks { total: 2 }));
        assert_eq!(pool.release(a), Released::Free);
        assert_eq!((pool.live(), pool.allocate().unwrap().block), (1, a));
    }

    #[test]
    fn published_blocks_outlive_their_owners_until_room_is_needed() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.allocate().unwrap().block, pool.allocate().unwrap().block);
        pool.publish(a);
        pool.publish(b);
        pool.retain(a);
        assert_eq!(pool.release(a), Released::StillOwned);
        assert_eq!((pool.release(b), pool.release(a)), (Released::Cached, Released::Cached));
        assert_eq!((pool.live(), pool.cached(), pool.oldest_beyond(1)), (0, 2, Some(b)));
        pool.retain(b);
        assert_eq!(pool.allocate(), Ok(Allocated { block: a, was_cached: true }));
        assert!(!pool.is_immutable(a) && pool.is_immutable(b));
        assert!(!pool.unpublish(b), "it is still owned");
        assert_eq!(pool.release(b), Released::Free);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap().block;
        pool.release(block);
        pool.release(block);
    }
}
