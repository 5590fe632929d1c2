//! One test on one model: a repetition to warm up, which also counts the work, then those that are timed.

use std::ops::ControlFlow;
use std::time::Instant;

use super::subject::{self, Subject};
use super::suite::{Kind, RandomIds, Test};
use crate::backend::cpu::Meter;
use crate::backend::{Profile, Work};
use crate::cli::terminal::Interrupts;
use crate::engine::{Engine, Error, SequenceId};
use crate::tokenizer::TokenId;

/// How a test is measured.
pub struct Way<'a> {
    pub repetitions: u32,
    /// Time the stages too, which costs a step some microseconds.
    pub stages: bool,
    pub meter: &'a Meter,
    pub interrupts: &'a Interrupts,
}

pub struct Measured {
    /// Seconds of each repetition.
    pub seconds: Vec<f64>,
    /// What a repetition reads and computes.
    pub work: Work,
    /// Over the timed repetitions, if stages were asked for.
    pub profile: Option<Profile>,
    /// In decode: bytes per second of a plain read of the weights before each repetition.
    pub plain_reads: Vec<f64>,
}

/// `None`: interrupted.
pub fn measure(test: &Test, subject: &mut Subject, way: &Way) -> anyhow::Result<Option<Measured>> {
    let weights = subject::weights(&subject.model);
    let mut run = Run::new(test, &mut subject.engine, way.interrupts);
    let mut measured = Measured { seconds: vec![], work: Work::default(), profile: None, plain_reads: vec![] };
    for repetition in 0..=way.repetitions {
        let is_warm_up = repetition == 0;
        run.go_to_depth()?;
        if !is_warm_up && test.kind == Kind::Decode {
            measured.plain_reads.push(way.meter.read(&weights));
        }
        run.engine.set_profiling(is_warm_up || way.stages);
        let start = Instant::now();
        run.repetition()?;
        let seconds = start.elapsed().as_secs_f64();
        let profile = run.engine.take_profile().unwrap_or_default();
        run.engine.set_profiling(false);
        if way.interrupts.pending() {
            return Ok(None);
        }
        if is_warm_up {
            measured.work = profile.total_work();
            continue;
        }
        measured.seconds.push(seconds);
        if way.stages {
            measured.profile.get_or_insert_default().add(&profile);
        }
    }
    run.sequences.iter().for_each(|(id, _)| run.engine.free_sequence(*id));
    Ok(Some(measured))
}

/// The sequences of a test. Whatever an interrupt cuts short is never looked at.
struct Run<'a> {
    test: &'a Test,
    engine: &'a mut Engine,
    interrupts: &'a Interrupts,
    ids: RandomIds,
    /// With what each holds before the test; no two alike, or they would share pages.
    sequences: Vec<(SequenceId, Vec<TokenId>)>,
}

impl<'a> Run<'a> {
    fn new(test: &'a Test, engine: &'a mut Engine, interrupts: &'a Interrupts) -> Run<'a> {
        let mut ids = RandomIds::new(engine.vocab());
        let sequences = (0..test.sequences).map(|_| (engine.new_sequence(), ids.some(test.depth))).collect();
        Run { test, engine, interrupts, ids, sequences }
    }

    /// Brings every sequence to the test's depth.
    fn go_to_depth(&mut self) -> anyhow::Result<()> {
        for (id, depth_ids) in &self.sequences {
            let is_short = self.engine.tokens(*id).len() < self.test.depth;
            if is_short && self.test.kind != Kind::NoCache && !self.interrupts.pending() {
                prefill(self.engine, *id, depth_ids, self.interrupts)?;
            }
            self.engine.truncate(*id, self.test.depth);
        }
        Ok(())
    }

    /// Once, with new ids, so that no cache can answer for the computation.
    fn repetition(&mut self) -> anyhow::Result<()> {
        match self.test.kind {
            Kind::Prefill => self.prefill(),
            Kind::Decode => self.decode(),
            Kind::NoCache => self.decode_without_cache(),
        }
    }

    fn prefill(&mut self) -> anyhow::Result<()> {
        for (id, depth_ids) in &self.sequences {
            let all = [&depth_ids[..], &self.ids.some(self.test.tokens)].concat();
            prefill(self.engine, *id, &all, self.interrupts)?;
        }
        Ok(())
    }

    fn decode(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.test.tokens {
            if self.interrupts.pending() {
                break;
            }
            let next: Vec<_> = self.sequences.iter().map(|(id, _)| *id).zip(&mut self.ids).collect();
            self.engine.decode_together(&next)?;
        }
        Ok(())
    }

    fn decode_without_cache(&mut self) -> anyhow::Result<()> {
        for (id, depth_ids) in &self.sequences {
            let test_ids = self.ids.some(self.test.tokens);
            for n in 1..=test_ids.len() {
                let mut all = [&depth_ids[..], &test_ids[..n]].concat();
                // Another first token: nothing published begins like this.
                all[0] = self.ids.next().expect("the ids never end");
                self.engine.truncate(*id, 0);
                prefill(self.engine, *id, &all, self.interrupts)?;
                if self.interrupts.pending() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn prefill(engine: &mut Engine, id: SequenceId, ids: &[TokenId], interrupts: &Interrupts) -> anyhow::Result<()> {
    let mut on_progress = |_, _| if interrupts.pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    match engine.prefill(id, ids, &mut on_progress) {
        Ok(_) | Err(Error::Interrupted) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
