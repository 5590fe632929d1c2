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
    /// Kernels that it launches on a GPU.
    pub launches: usize,
    /// Over the timed repetitions, if stages were asked for; on a GPU over one more.
    pub profile: Option<Profile>,
    /// In decode: bytes per second of a plain read of the weights before each repetition.
    pub plain_reads: Vec<f64>,
}

/// What a repetition is for.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// To warm up, and to count what there is to do.
    Count,
    /// On a GPU steps that are looked into run without graphs: these are made now, before time counts.
    WarmUp,
    Timed,
    TimedByStages,
    /// Looking into a step costs a GPU far more than some microseconds.
    StagesAlone,
}

impl Turn {
    fn all(way: &Way, on_gpu: bool) -> Vec<Turn> {
        let timed = if way.stages && !on_gpu { Turn::TimedByStages } else { Turn::Timed };
        let mut turns = vec![Turn::Count];
        turns.extend(on_gpu.then_some(Turn::WarmUp));
        turns.extend(std::iter::repeat_n(timed, way.repetitions as usize));
        turns.extend((way.stages && on_gpu).then_some(Turn::StagesAlone));
        turns
    }
}

/// `None`: interrupted.
pub fn measure(test: &Test, subject: &mut Subject, way: &Way) -> anyhow::Result<Option<Measured>> {
    let weights = subject::weights(&subject.model);
    let on_gpu = subject.gpu_share().is_some();
    let mut run = Run::new(test, &mut subject.engine, on_gpu, way.interrupts);
    let mut measured =
        Measured { seconds: vec![], work: Work::default(), launches: 0, profile: None, plain_reads: vec![] };
    for turn in Turn::all(way, on_gpu) {
        let is_timed = [Turn::Timed, Turn::TimedByStages].contains(&turn);
        run.go_to_depth()?;
        if is_timed && test.kind == Kind::Decode && !on_gpu {
            measured.plain_reads.push(way.meter.read(&weights));
        }
        run.engine.set_profiling(![Turn::WarmUp, Turn::Timed].contains(&turn));
        let start = Instant::now();
        run.repetition()?;
        let seconds = start.elapsed().as_secs_f64();
        let profile = run.engine.take_profile().unwrap_or_default();
        run.engine.set_profiling(false);
        if way.interrupts.pending() {
            return Ok(None);
        }
        match turn {
            Turn::Count => (measured.work, measured.launches) = (profile.total_work(), profile.launches),
            Turn::WarmUp | Turn::Timed => {}
            Turn::TimedByStages | Turn::StagesAlone => measured.profile.get_or_insert_default().add(&profile),
        }
        if is_timed {
            measured.seconds.push(seconds);
        }
    }
    run.sequences.iter().for_each(|(id, _)| run.engine.free_sequence(*id));
    Ok(Some(measured))
}

/// The sequences of a test. Whatever an interrupt cuts short is never looked at.
struct Run<'a> {
    test: &'a Test,
    engine: &'a mut Engine,
    on_gpu: bool,
    interrupts: &'a Interrupts,
    ids: RandomIds,
    /// With what each holds before the test; no two alike, or they would share pages.
    sequences: Vec<(SequenceId, Vec<TokenId>)>,
}

impl<'a> Run<'a> {
    fn new(test: &'a Test, engine: &'a mut Engine, on_gpu: bool, interrupts: &'a Interrupts) -> Run<'a> {
        let mut ids = RandomIds::new(engine.vocab());
        let sequences = (0..test.sequences).map(|_| (engine.new_sequence(), ids.some(test.depth))).collect();
        Run { test, engine, on_gpu, interrupts, ids, sequences }
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
            match next[..] {
                // As in an answer at temperature 0: a GPU sends one token home, not all logits.
                [(id, token)] if self.on_gpu => self.engine.decode_best(id, token).map(|_| ())?,
                _ => self.engine.decode_together(&next).map(|_| ())?,
            }
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
