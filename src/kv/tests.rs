//! Any order of operations on page tables against a naive model: every table reads back its own tokens.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const BLOCKS: usize = 24;
const CACHED: usize = 5;

/// A cache with simulated memory: what stands in every slot of every block.
struct World {
    cache: KvCache,
    memory: HashMap<BlockId, [u32; BLOCK_TOKENS]>,
    /// Page table, the tokens it must read back, and all tokens it ever got (for publishing while whole).
    sequences: Vec<(PageTable, Vec<u32>)>,
}

#[derive(Clone, Debug)]
enum Step {
    New { like: usize, tokens: usize },
    Append { sequence: usize, n: usize, token: u32 },
    Fork { sequence: usize },
    Truncate { sequence: usize, keep: usize },
    Evict { sequence: usize, from: usize, n: usize },
    Free { sequence: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let sequence = 0usize..6;
    prop_oneof![
        2 => (sequence.clone(), 0usize..80).prop_map(|(like, tokens)| Step::New { like, tokens }),
        6 => (sequence.clone(), 0usize..40, 0u32..3).prop_map(|(sequence, n, token)| Step::Append { sequence, n, token }),
        2 => sequence.clone().prop_map(|sequence| Step::Fork { sequence }),
        2 => (sequence.clone(), 0usize..120).prop_map(|(sequence, keep)| Step::Truncate { sequence, keep }),
        1 => (sequence.clone(), 0usize..3, 0usize..3).prop_map(|(sequence, from, n)| Step::Evict { sequence, from, n }),
        1 => sequence.prop_map(|sequence| Step::Free { sequence }),
    ]
}

impl World {
    fn new() -> World {
        World { cache: KvCache::new(BLOCKS, CACHED, 1), memory: HashMap::new(), sequences: vec![] }
    }

    /// Appends tokens as the engine does: room, copies, "compute" (write), publish. False when the pool is full.
    fn append(&mut self, i: usize, tokens: &[u32]) -> bool {
        let (table, held) = &mut self.sequences[i];
        let before = (table.pages.clone(), table.tokens);
        let Ok(moves) = self.cache.append(table, tokens.len()) else {
            assert_eq!(before, (table.pages.clone(), table.tokens), "a failed append changes nothing");
            return false;
        };
        if let Some((from, to)) = moves.copy {
            self.memory.insert(to, self.memory[&from]);
        }
        for block in moves.freed {
            self.memory.insert(block, [u32::MAX; BLOCK_TOKENS]);
        }
        for (at, &token) in (held.len()..).zip(tokens) {
            let block = table.pages[at / BLOCK_TOKENS];
            assert!(!self.cache.pool.is_immutable(block), "a write into a shared or published block");
            self.memory.entry(block).or_insert([u32::MAX; BLOCK_TOKENS])[at % BLOCK_TOKENS] = token;
        }
        held.extend_from_slice(tokens);
        self.cache.publish(table, held);
        true
    }

    /// Freed blocks lose their contents, so that a use after free shows.
    fn poison(&mut self, freed: Vec<BlockId>) {
        for block in freed {
            self.memory.insert(block, [u32::MAX; BLOCK_TOKENS]);
        }
    }

    fn run(&mut self, step: Step) {
        let n = self.sequences.len();
        match step {
            Step::New { like, tokens } if n < 6 => {
                // a prompt that begins like another sequence
                let base = self.sequences.get(like).map_or(vec![], |(_, held)| held.clone());
                let prompt: Vec<u32> = base.into_iter().chain(0..).take(tokens.max(1)).collect();
                let table = self.cache.find(&prompt, prompt.len() - 1);
                assert!(table.tokens < prompt.len(), "the last prompt token is always computed");
                let held = prompt[..table.tokens].to_vec();
                self.sequences.push((table, held.clone()));
                self.append(n, &prompt[held.len()..]);
            }
            Step::Append { sequence, n: count, token } if sequence < n => {
                self.append(sequence, &vec![token; count]);
            }
            Step::Fork { sequence } if sequence < n && n < 6 => {
                let (table, held) = &self.sequences[sequence];
                let (table, held) = (self.cache.fork(table), held.clone());
                self.sequences.push((table, held));
            }
            Step::Truncate { sequence, keep } if sequence < n => {
                let (table, held) = &mut self.sequences[sequence];
                held.truncate(keep);
                let freed = self.cache.truncate(table, held.len());
                self.poison(freed);
            }
            Step::Evict { sequence, from, n: count } if sequence < n => {
                let (table, held) = &mut self.sequences[sequence];
                let full = table.tokens / BLOCK_TOKENS;
                let (from, to) = (from.min(full), (from + count).min(full));
                held.drain(from * BLOCK_TOKENS..to * BLOCK_TOKENS);
                let freed = self.cache.evict(table, from, to);
                self.poison(freed);
            }
            Step::Free { sequence } if sequence < n => {
                let (mut table, _) = self.sequences.remove(sequence);
                let freed = self.cache.truncate(&mut table, 0);
                self.poison(freed);
            }
            _ => {}
        }
    }

    fn check(&self) {
        let usage = self.cache.usage();
        assert_eq!(usage.free + usage.live + usage.cached, BLOCKS);
        assert!(usage.cached <= CACHED, "{} blocks are cached", usage.cached);
        let mut owners: HashMap<BlockId, u32> = HashMap::new();
        for (table, held) in &self.sequences {
            assert_eq!(table.tokens, held.len());
            assert_eq!(table.pages.len(), held.len().div_ceil(BLOCK_TOKENS), "waste is less than a block");
            for (i, &token) in held.iter().enumerate() {
                let stored = self.memory[&table.pages[i / BLOCK_TOKENS]][i % BLOCK_TOKENS];
                assert_eq!(stored, token, "token {i}");
            }
            table.pages.iter().for_each(|&block| *owners.entry(block).or_default() += 1);
        }
        assert_eq!(owners.len(), usage.live, "live blocks are those that sequences own");
        assert!(owners.iter().all(|(&block, &n)| self.cache.pool.owners(block) == n));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_table_reads_back_its_tokens(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.check();
        }
        while !world.sequences.is_empty() {
            world.run(Step::Free { sequence: 0 });
            world.check();
        }
        prop_assert_eq!(world.cache.usage().live, 0);
    }
}

#[test]
fn a_prompt_takes_over_the_pages_of_one_that_began_alike_also_after_it_is_gone() {
    let prompt: Vec<u32> = (0..50).collect();
    for owner_lives in [true, false] {
        let mut world = World::new();
        world.sequences.push(Default::default());
        assert!(world.append(0, &prompt));
        let (mut first, _) = world.sequences.remove(0);
        if !owner_lives {
            let freed = world.cache.truncate(&mut first, 0);
            assert_eq!(freed.len(), 1, "the partial page is free, the three full ones stay cached");
        }
        let mut second = world.cache.find(&prompt, 49);
        assert_eq!(second.tokens(), 48);
        if owner_lives {
            assert_eq!(second.pages()[..3], first.pages()[..3]);
        }
        world.cache.truncate(&mut second, 0);
        if owner_lives {
            world.cache.truncate(&mut first, 0);
        }
        assert_eq!((world.cache.usage().live, world.cache.usage().cached), (0, 3));
    }
}

#[test]
fn an_evicted_sequence_publishes_nothing_until_it_is_computed_anew() {
    let mut cache = KvCache::new(BLOCKS, CACHED, 1);
    let tokens: Vec<u32> = (100..164).collect();
    let mut table = PageTable::default();
    cache.append(&mut table, 64).unwrap();
    cache.evict(&mut table, 1, 2);
    let rest: Vec<u32> = tokens[..16].iter().chain(&tokens[32..]).copied().collect();
    cache.publish(&mut table, &rest);
    assert_eq!(cache.find(&rest, 48).tokens(), 0);
    cache.truncate(&mut table, 0);
    cache.append(&mut table, 64).unwrap();
    cache.publish(&mut table, &tokens);
    assert_eq!(cache.find(&tokens, 63).tokens(), 48);
}
