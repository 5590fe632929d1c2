//! The block pool: which blocks are free and which are owned. Ids only; bytes belong to the backends.

use super::layout::BlockId;

/// No block is left.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("all {total} KV blocks are in use")]
pub struct OutOfBlocks {
    pub total: usize,
}

/// Hands out blocks 0..total, the one given back last first, so that memory already touched is used again.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<BlockId>,
    total: usize,
    live: Vec<bool>,
}

impl BlockPool {
    pub fn new(total: usize) -> BlockPool {
        BlockPool { free: (0..total as BlockId).rev().collect(), total, live: vec![false; total] }
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn live(&self) -> usize {
        self.total - self.free.len()
    }

    /// A block for one owner.
    pub fn allocate(&mut self) -> Result<BlockId, OutOfBlocks> {
        let block = self.free.pop().ok_or(OutOfBlocks { total: self.total })?;
        self.live[block as usize] = true;
        Ok(block)
    }

    /// Gives an owned block back.
    pub fn free(&mut self, block: BlockId) {
        let was_live = std::mem::replace(&mut self.live[block as usize], false);
        assert!(was_live, "block {block} is freed twice");
        self.free.push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_run_out_and_come_back() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        assert_ne!(a, b);
        assert_eq!(pool.allocate(), Err(OutOfBlocks { total: 2 }));
        pool.free(a);
        assert_eq!((pool.live(), pool.allocate()), (1, Ok(a)));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap();
        pool.free(block);
        pool.free(block);
    }
}
