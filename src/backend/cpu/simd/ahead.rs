//! Memory is asked for before a product comes to it.

/// How far ahead of the current rows memory is asked for. 32 KB into the L2 cache doubles the rate of cold reads; 8 KB are
/// too little for small matrices.
const PREFETCH_BYTES: usize = 32 << 10;

/// Where a thread reads next: on through its rows, and from their end on in those that follow.
#[derive(Clone, Copy)]
pub struct Ahead {
    end: usize,
    next: usize,
}

impl Ahead {
    pub fn new(rows: &[u8], next: &[u8]) -> Ahead {
        // nothing follows: the first rows, which are in the cache and cost nothing
        let next = if next.is_empty() { rows } else { next };
        Ahead { end: rows.as_ptr_range().end as usize, next: next.as_ptr() as usize }
    }

    /// What lies one prefetch distance after `at`.
    #[inline]
    pub fn of(self, at: *const u8) -> *const u8 {
        let ahead = at.wrapping_add(PREFETCH_BYTES);
        let beyond = (ahead as usize).checked_sub(self.end);
        beyond.map_or(ahead, |beyond| (self.next + beyond) as *const u8)
    }
}
