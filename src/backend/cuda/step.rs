//! What a forward pass takes to the device, in one copy: hidden rows, places, angles, page tables. The places of its parts
//! depend on the sizes of the batch alone, so that a captured graph finds them again.

use std::ops::Range;

use anyhow::Result;

use super::driver::{Buffer, Device, Pinned};
use super::params::{Ptr, Step, Tile, Token};
use crate::backend::Batch;
use crate::kv::layout::BLOCK_TOKENS;
use crate::model::Config;

/// Tokens of a span: the unit of attention (kernels/types.cuh).
pub const SPAN_TOKENS: usize = 256;
/// Most queries that a block of `attention_prefill` takes, so most query heads of a KV head (kernels/types.cuh).
pub const PREFILL_QUERIES: usize = 64;

/// Whether each row of a pass has one token, or more: they go different ways, and the bits of a row must not depend on
/// what else is in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Decode,
    Prefill,
}

/// The rows of a batch that go the same way.
pub struct Pass {
    pub kind: Kind,
    /// Rows of the batch.
    rows: Vec<usize>,
    /// Tokens of the batch, in the order of the pass.
    pub tokens: Vec<usize>,
    /// Tokens of the pass whose logits are wanted, and which entries of `Batch::wanted` they are.
    pub wanted: Vec<usize>,
    pub wanted_at: Vec<usize>,
    /// Of a prefill: what blocks of its attention take.
    tiles: Vec<Tile>,
}

/// The passes that a batch takes: one, unless it mixes rows of one token with longer ones, or its sequences together have
/// more spans than `most_spans`, what the partial results of attention have room for. `group`: query heads per KV head.
pub fn passes(batch: &Batch, most_spans: usize, group: usize) -> Vec<Pass> {
    let mut passes = Vec::new();
    for kind in [Kind::Decode, Kind::Prefill] {
        let mut rows = Vec::new();
        let mut longest = 1;
        for (i, row) in batch.rows.iter().enumerate() {
            if (row.tokens.len() == 1) != (kind == Kind::Decode) {
                continue;
            }
            let spans = bucket(row.cached_tokens + row.tokens.len());
            let is_full = rows.len() == MOST_SEQUENCES
                || kind == Kind::Decode && (rows.len() + 1) * longest.max(spans) > most_spans;
            if is_full && !rows.is_empty() {
                passes.push(Pass::new(batch, kind, std::mem::take(&mut rows), group));
                longest = 1;
            }
            longest = longest.max(spans);
            rows.push(i);
        }
        if !rows.is_empty() {
            passes.push(Pass::new(batch, kind, rows, group));
        }
    }
    passes
}

/// Spans of so many tokens, rounded up so that a context of any length needs few graphs.
pub fn bucket(tokens: usize) -> usize {
    tokens.div_ceil(SPAN_TOKENS).next_power_of_two()
}

/// The sizes on which the launches of a pass depend: equal shapes can replay the same graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub kind: Kind,
    pub tokens: usize,
    pub sequences: usize,
    pub wanted: usize,
    pub tiles: usize,
    /// The bucket of the longest sequence.
    pub spans: usize,
}

impl Pass {
    fn new(batch: &Batch, kind: Kind, rows: Vec<usize>, group: usize) -> Pass {
        let tokens: Vec<usize> = rows.iter().flat_map(|&row| batch.rows[row].tokens.clone()).collect();
        let found = |(at, token): (usize, &usize)| Some((tokens.iter().position(|t| t == token)?, at));
        let (wanted, wanted_at) = batch.wanted.iter().enumerate().filter_map(found).unzip();
        let tiles = if kind == Kind::Prefill { tiles(batch, &rows, group) } else { Vec::new() };
        Pass { kind, rows, tokens, wanted, wanted_at, tiles }
    }

    pub fn shape(&self, batch: &Batch) -> Shape {
        let longest = self.rows.iter().map(|&row| batch.rows[row].cached_tokens + batch.rows[row].tokens.len()).max();
        Shape {
            kind: self.kind,
            tokens: self.tokens.len(),
            sequences: self.rows.len(),
            wanted: self.wanted.len(),
            tiles: self.tiles.len(),
            spans: bucket(longest.unwrap_or(1)),
        }
    }
}

/// Tokens that a block of the prefill's attention takes together: of one sequence, no more than its shared memory holds with
/// all query heads of a KV head. The last ones, which see most, come first: what is left to the end is short.
fn tiles(batch: &Batch, rows: &[usize], group: usize) -> Vec<Tile> {
    let most = PREFILL_QUERIES / group;
    let mut first = 0;
    let mut tiles = Vec::new();
    for &row in rows {
        let len = batch.rows[row].tokens.len();
        let tile = |at: usize| Tile { first: (first + at) as i32, count: most.min(len - at) as i32 };
        tiles.extend((0..len).step_by(most).map(tile));
        first += len;
    }
    tiles.reverse();
    tiles
}

/// Where the parts of a pass lie, in words of four bytes.
struct Places {
    x: Range<usize>,
    tokens: Range<usize>,
    cos: Range<usize>,
    sin: Range<usize>,
    wanted: Range<usize>,
    tiles: Range<usize>,
    pages: Range<usize>,
}

impl Places {
    fn of(shape: &Shape, dim: usize, head_dim: usize) -> Places {
        let mut at = 0;
        let mut take = |words: usize| {
            // the structs among them want eight bytes, wide loads of x sixteen
            let start = at;
            at = (at + words).next_multiple_of(4);
            start..start + words
        };
        let pairs = shape.tokens * head_dim / 2;
        Places {
            x: take(shape.tokens * dim),
            tokens: take(2 * shape.tokens),
            cos: take(pairs),
            sin: take(pairs),
            wanted: take(shape.wanted),
            tiles: take(2 * shape.tiles),
            pages: take(shape.sequences * max_pages(shape)),
        }
    }
}

/// Length of a row of the page table.
fn max_pages(shape: &Shape) -> usize {
    shape.spans * SPAN_TOKENS / BLOCK_TOKENS
}

/// What kernels of a pass read.
#[derive(Clone, Copy)]
pub struct StepData {
    /// (n, dim): the residual stream
    pub x: Ptr<f32>,
    pub step: Step,
    /// (n_wanted)
    pub wanted: Ptr<i32>,
    /// (n_tiles)
    pub tiles: Ptr<Tile>,
}

/// The memory on both sides through which passes go.
pub struct Staging {
    host: Pinned<u32>,
    device: Buffer<u32>,
    dim: usize,
    head_dim: usize,
}

impl Staging {
    /// For passes of up to `batch_tokens` tokens and `context_tokens` in any sequence.
    pub fn new(device: &Device, config: &Config, batch_tokens: usize, context_tokens: usize) -> Result<Staging> {
        let words = Staging::words(config.dim, config.head_dim, batch_tokens, context_tokens);
        let (dim, head_dim) = (config.dim, config.head_dim);
        Ok(Staging { host: device.pinned(words)?, device: device.alloc(words)?, dim, head_dim })
    }

    /// Words that `new` allocates on each side.
    pub fn words(dim: usize, head_dim: usize, batch_tokens: usize, context_tokens: usize) -> usize {
        let shape = Shape {
            kind: Kind::Prefill,
            tokens: batch_tokens,
            sequences: MOST_SEQUENCES.min(batch_tokens),
            wanted: batch_tokens,
            tiles: batch_tokens,
            spans: bucket(context_tokens),
        };
        Places::of(&shape, dim, head_dim).pages.end
    }

    /// Queues a pass to the device: `x` (n, dim) in the order of the pass.
    pub fn queue(
        &mut self,
        device: &Device,
        (batch, pass, shape): (&Batch, &Pass, &Shape),
        config: &Config,
        x: &[f32],
    ) -> Result<()> {
        let places = Places::of(shape, self.dim, self.head_dim);
        let (dim, pairs) = (self.dim, self.head_dim / 2);
        let words = self.host.as_mut_slice()?;
        for (words, &token) in words[places.x].chunks_exact_mut(dim).zip(&pass.tokens) {
            words.iter_mut().zip(&x[token * dim..]).for_each(|(word, x)| *word = x.to_bits());
        }
        let mut at = 0;
        let (mut cos, mut sin) = (vec![0f32; pairs], vec![0f32; pairs]);
        for (sequence, &row) in pass.rows.iter().enumerate() {
            let row = &batch.rows[row];
            for i in 0..row.tokens.len() {
                let place = Token { sequence: sequence as i32, slot: (row.cached_tokens + i) as i32 };
                words[places.tokens.start + 2 * at..][..2].copy_from_slice(&[place.sequence as u32, place.slot as u32]);
                config.rope.angles((row.first_position + i) as u32, &mut cos, &mut sin);
                for (angles, place) in [(&cos, &places.cos), (&sin, &places.sin)] {
                    let words = &mut words[place.start + at * pairs..][..pairs];
                    words.iter_mut().zip(angles).for_each(|(word, angle)| *word = angle.to_bits());
                }
                at += 1;
            }
            let n_pages = (row.cached_tokens + row.tokens.len()).div_ceil(BLOCK_TOKENS);
            let pages = &mut words[places.pages.start + sequence * max_pages(shape)..][..max_pages(shape)];
            pages[..n_pages].copy_from_slice(&row.pages[..n_pages]);
        }
        words[places.wanted].iter_mut().zip(&pass.wanted).for_each(|(word, &token)| *word = token as u32);
        for (words, tile) in words[places.tiles].chunks_exact_mut(2).zip(&pass.tiles) {
            words.copy_from_slice(&[tile.first as u32, tile.count as u32]);
        }
        device.write_queued(&mut self.device, &self.host, places.pages.end)
    }

    /// Where kernels find a pass of this shape.
    pub fn data(&self, shape: &Shape) -> StepData {
        let places = Places::of(shape, self.dim, self.head_dim);
        let address = |place: &Range<usize>| self.device.at(place.start, place.len()).address();
        StepData {
            x: Ptr::new(address(&places.x)),
            step: Step {
                tokens: Ptr::new(address(&places.tokens)),
                pages: Ptr::new(address(&places.pages)),
                cos: Ptr::new(address(&places.cos)),
                sin: Ptr::new(address(&places.sin)),
                max_pages: max_pages(shape) as i32,
                unused: 0,
            },
            wanted: Ptr::new(address(&places.wanted)),
            tiles: Ptr::new(address(&places.tiles)),
        }
    }

    /// The residual stream of the last pass, as it is now.
    pub fn hidden(&self) -> &Buffer<u32> {
        &self.device
    }
}

/// Most sequences of a batch.
pub const MOST_SEQUENCES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BatchRow;

    fn row(tokens: Range<usize>, cached_tokens: usize) -> BatchRow {
        let pages = (cached_tokens + tokens.len()).div_ceil(BLOCK_TOKENS);
        BatchRow { tokens, cached_tokens, first_position: cached_tokens, pages: (0..pages as u32).collect() }
    }

    #[test]
    fn a_batch_is_parted_by_the_length_of_its_rows() {
        let rows = vec![row(0..1, 300), row(1..40, 0), row(40..41, 2)];
        let batch = Batch { tokens: vec![7; 41], rows, wanted: vec![40, 39, 0] };
        let passes = passes(&batch, 64, 3);
        assert_eq!(passes.len(), 2);
        assert_eq!((passes[0].kind, &passes[0].tokens[..]), (Kind::Decode, &[0, 40][..]));
        assert_eq!((&passes[0].wanted[..], &passes[0].wanted_at[..]), (&[1, 0][..], &[0, 2][..]));
        assert_eq!((passes[1].kind, passes[1].tokens.len()), (Kind::Prefill, 39));
        assert_eq!((&passes[1].wanted[..], &passes[1].wanted_at[..]), (&[38][..], &[1][..]));
        let tiles: Vec<_> = passes[1].tiles.iter().map(|tile| (tile.first, tile.count)).collect();
        assert_eq!(tiles, [(21, 18), (0, 21)]);
        assert_eq!(passes[0].shape(&batch).spans, 2);
        // two rows of two spans each, where there is room for three
        let apart = super::passes(&batch, 3, 3);
        assert_eq!(apart.iter().map(|pass| pass.tokens.len()).collect::<Vec<_>>(), [1, 1, 39]);
    }

    #[test]
    fn parts_of_a_pass_do_not_overlap_and_are_aligned() {
        let shape = Shape { kind: Kind::Prefill, tokens: 3, sequences: 2, wanted: 1, tiles: 2, spans: 1 };
        let Places { x, tokens, cos, sin, wanted, tiles, pages } = Places::of(&shape, 33, 64);
        let places = [x, tokens, cos, sin, wanted, tiles, pages];
        assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(places.iter().all(|place| place.start % 4 == 0));
        assert_eq!(places.map(|place| place.len()), [99, 6, 96, 96, 1, 4, 32]);
    }
}
