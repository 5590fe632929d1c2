//! The bytes of the host pool: one reserved address range, committed by touch, given back block by block.
//!
//! Memory follows use in pages of 4 KiB. But a head's rows of a block are one or two KB and blocks lie far apart, so that
//! attention over a long context misses the TLB with every piece: where 2 MiB are filled with tokens, the system is asked to
//! make one huge page of them. SmolLM2 at depth 4,096 decodes a third faster for it with F16 KV, a tenth with INT8.

use std::ops::Range;

use anyhow::{Context, Result};
use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};

use super::threads::Crew;
use crate::kv::layout::{BLOCK_TOKENS, BlockId, Half, KvType, Layout};

/// Where one token of a batch is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    pub block: BlockId,
    /// Token within the block.
    pub offset: usize,
}

/// Slots that are all different, so that tokens can be stored in parallel.
pub struct Slots(Vec<Slot>);

impl Slots {
    /// Panics when two tokens share a slot: the caller's page tables are broken.
    pub fn new(slots: Vec<Slot>) -> Slots {
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "two tokens of a batch share a KV slot");
        Slots(slots)
    }
}

/// K and V of a batch at one layer, as the matrix product left them.
#[derive(Clone, Copy)]
pub struct NewRows<'a> {
    pub layer: usize,
    pub kv_heads: usize,
    /// (tokens, row_len) f32
    pub rows: &'a [f32],
    pub row_len: usize,
    /// Where in a row its K heads start, and its V heads.
    pub k_at: usize,
    pub v_at: usize,
}

pub struct Pages {
    map: MmapMut,
    layout: Layout,
    n_blocks: usize,
    /// Blocks whose last token has been stored.
    filled: Vec<bool>,
}

/// Of x86-64 and most of AArch64.
const HUGE_PAGE: usize = 2 << 20;

impl Pages {
    /// Reserves addresses for `n_blocks`; memory is used only where tokens are stored.
    pub fn new(layout: Layout, n_blocks: usize) -> Result<Pages> {
        let bytes = n_blocks * layout.block_stride();
        let map = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon();
        let map = map.with_context(|| {
            format!("cannot reserve {} MiB of addresses for the KV cache; use a smaller -c", bytes >> 20)
        })?;
        // A huge page would commit 2 MiB where a block of 360 KiB is touched, and keep it when the block is given back.
        #[cfg(target_os = "linux")]
        if let Err(error) = map.advise(memmap2::Advice::NoHugePage) {
            debug_assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "a kernel without huge pages");
        }
        Ok(Pages { map, layout, n_blocks, filled: vec![false; n_blocks] })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The stored rows of one head in a block, and their scales (empty for float types).
    pub fn head(&self, block: BlockId, layer: usize, half: Half, kv_head: usize) -> (&[u8], &[u8]) {
        assert!((block as usize) < self.n_blocks, "block {block} of {}", self.n_blocks);
        let start = block as usize * self.layout.block_stride() + self.layout.head_offset(layer, half, kv_head);
        let head = &self.map[start..start + self.layout.head_bytes(half)];
        head.split_at(BLOCK_TOKENS * self.layout.row_bytes(half))
    }

    /// Stores K and V of every token of a batch, each row by `encode`.
    pub fn store(
        &mut self,
        crew: &Crew,
        slots: &Slots,
        new: &NewRows,
        encode: fn(KvType, &[f32], &mut [u8], &mut [u8]),
    ) {
        let NewRows { layer, kv_heads, rows, row_len, k_at, v_at } = *new;
        assert_eq!(rows.len(), slots.0.len() * row_len, "a row per token");
        let (base, stride, n_blocks) = (self.map.as_mut_ptr() as usize, self.layout.block_stride(), self.n_blocks);
        let (layout, head_dim) = (&self.layout, self.layout.head_dim());
        crew.split(slots.0.len(), |_, tokens| {
            for (slot, row) in slots.0[tokens.clone()].iter().zip(rows[tokens.start * row_len..].chunks(row_len)) {
                assert!((slot.block as usize) < n_blocks, "block {} of {n_blocks}", slot.block);
                for (half, at) in [(Half::K, k_at), (Half::V, v_at)] {
                    for (head, values) in row[at..at + kv_heads * head_dim].chunks(head_dim).enumerate() {
                        let head = base + slot.block as usize * stride + layout.head_offset(layer, half, head);
                        let (row, scale) = layout.token_ranges(half, slot.offset);
                        // SAFETY: row and scale lie in block `slot.block` of the map, which is borrowed mutably, and do
                        // not overlap; `Slots` are all different, so no other worker touches them, and nothing reads
                        // the map during this region.
                        let (row, scale) = unsafe { (bytes_at(head, row), bytes_at(head, scale)) };
                        encode(layout.row_type(half), values, row, scale);
                    }
                }
            }
        });
        if layer + 1 == self.layout.n_layers() {
            slots.0.iter().filter(|slot| slot.offset + 1 == BLOCK_TOKENS).for_each(|slot| self.fill(slot.block));
        }
    }

    /// Notes that a block is full, and makes huge pages of the ranges that this completes.
    fn fill(&mut self, block: BlockId) {
        self.filled[block as usize] = true;
        for chunk in self.huge_pages(block) {
            let stride = self.layout.block_stride();
            let blocks = chunk.start / stride..chunk.end.div_ceil(stride);
            if self.filled[blocks].iter().all(|&filled| filled) {
                collapse(&mut self.map[chunk]);
            }
        }
    }

    /// The ranges of the map that may be huge pages and hold a part of a block.
    fn huge_pages(&self, block: BlockId) -> impl Iterator<Item = Range<usize>> + use<> {
        let (base, stride, len) = (self.map.as_ptr() as usize, self.layout.block_stride(), self.map.len());
        let start = base + block as usize * stride;
        let chunks = start / HUGE_PAGE..(start + stride).div_ceil(HUGE_PAGE);
        let inside = move |chunk: &usize| chunk * HUGE_PAGE >= base && (chunk + 1) * HUGE_PAGE <= base + len;
        chunks.filter(inside).map(move |chunk| chunk * HUGE_PAGE - base..(chunk + 1) * HUGE_PAGE - base)
    }

    /// The contents of a block.
    pub fn block(&self, block: BlockId) -> &[u8] {
        let start = block as usize * self.layout.block_stride();
        &self.map[start..start + self.layout.block_bytes()]
    }

    /// Overwrites a block.
    pub fn write(&mut self, block: BlockId, contents: &[u8]) {
        let start = block as usize * self.layout.block_stride();
        // One call instead of a fault for each page, which is most of the time that filling a fresh block takes. Where
        // the system does not know it, the faults do it.
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(memmap2::Advice::PopulateWrite, start, self.layout.block_stride());
        self.map[start..start + self.layout.block_bytes()].copy_from_slice(contents);
        self.fill(block);
    }

    pub fn copy(&mut self, from: BlockId, to: BlockId) {
        let start = from as usize * self.layout.block_stride();
        let to = to as usize * self.layout.block_stride();
        self.map.copy_within(start..start + self.layout.block_bytes(), to);
    }

    /// Gives the memory of free blocks back to the system.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            let start = block as usize * self.layout.block_stride();
            self.filled[block as usize] = false;
            // Its next token shall touch a small page again.
            #[cfg(target_os = "linux")]
            for chunk in self.huge_pages(block) {
                let _ = self.map.advise_range(memmap2::Advice::NoHugePage, chunk.start, chunk.len());
            }
            // SAFETY: the range lies in the private anonymous map; dropping its contents is the purpose, and a block is
            // released only when no sequence owns it.
            let given_back = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, self.layout.block_stride())
            };
            debug_assert!(given_back.is_ok(), "madvise on our own map");
        }
    }
}

/// Asks for one huge page in place of the small ones of a range; the system may be unable to, which costs only speed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn collapse(range: &mut [u8]) {
    let address = range.as_mut_ptr().cast();
    // SAFETY: the range is a part of our own map, borrowed mutably; both calls keep its contents.
    unsafe {
        if libc::madvise(address, range.len(), libc::MADV_HUGEPAGE) == 0 {
            libc::madvise(address, range.len(), libc::MADV_COLLAPSE);
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn collapse(_: &mut [u8]) {}

/// The bytes `range` after address `base`.
///
/// # Safety
/// They must lie in one allocation that lives and is not otherwise used as long as the result.
unsafe fn bytes_at<'a>(base: usize, range: Range<usize>) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut((base + range.start) as *mut u8, range.len()) }
}
