//! Where the time of forward passes goes: what each stage takes, reads and computes.

use std::sync::Mutex;
use std::time::Instant;

/// A stage of a forward pass, in the order of the data. A layer goes through those from `Norm` to `Residual`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Rows of the embedding table; cosines and sines of the positions.
    Embed,
    /// RMS norms, and the int8 form of what the next matrices read.
    Norm,
    Qkv,
    /// RoPE, rotations, the int8 form of q.
    Rope,
    /// K and V into their pages.
    Store,
    Attention,
    /// The output matrix of attention, and the int8 form of what it reads.
    AttnOutput,
    /// Scores and choice of experts.
    Router,
    GateUp,
    /// silu(gate) * up and its int8 form.
    Silu,
    Down,
    /// Sums into the residual stream, and the weighted ones of experts.
    Residual,
    /// The last norm and the output head.
    Head,
}

impl Stage {
    pub const ALL: [Stage; 13] = [
        Stage::Embed,
        Stage::Norm,
        Stage::Qkv,
        Stage::Rope,
        Stage::Store,
        Stage::Attention,
        Stage::AttnOutput,
        Stage::Router,
        Stage::GateUp,
        Stage::Silu,
        Stage::Down,
        Stage::Residual,
        Stage::Head,
    ];

    /// After the tensors of GGUF where there are some.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Embed => "embed",
            Stage::Norm => "norm",
            Stage::Qkv => "attn_qkv",
            Stage::Rope => "rope",
            Stage::Store => "store",
            Stage::Attention => "attention",
            Stage::AttnOutput => "attn_output",
            Stage::Router => "ffn_router",
            Stage::GateUp => "ffn_gate_up",
            Stage::Silu => "silu",
            Stage::Down => "ffn_down",
            Stage::Residual => "residual",
            Stage::Head => "output",
        }
    }
}

/// What a stage has to do, whoever does it: weights and cached rows read once a pass, multiplications and additions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub bytes: f64,
    pub int8_ops: f64,
    pub float_ops: f64,
}

impl Work {
    pub fn add(&mut self, other: Work) {
        self.bytes += other.bytes;
        self.int8_ops += other.int8_ops;
        self.float_ops += other.float_ops;
    }
}

/// Sums over some forward passes, in the order of `Stage::ALL`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    pub passes: usize,
    /// Kernels launched on a GPU.
    pub launches: usize,
    seconds: [f64; Stage::ALL.len()],
    work: [Work; Stage::ALL.len()],
}

impl Profile {
    pub fn seconds(&self, stage: Stage) -> f64 {
        self.seconds[stage as usize]
    }

    pub fn work(&self, stage: Stage) -> Work {
        self.work[stage as usize]
    }

    /// Of all stages.
    pub fn total_seconds(&self) -> f64 {
        self.seconds.iter().sum()
    }

    pub fn total_work(&self) -> Work {
        let mut total = Work::default();
        self.work.iter().for_each(|work| total.add(*work));
        total
    }

    pub fn add_work(&mut self, stage: Stage, work: Work) {
        self.work[stage as usize].add(work);
    }

    /// Takes in what other passes have added up.
    pub fn add(&mut self, other: &Profile) {
        self.passes += other.passes;
        self.launches += other.launches;
        self.seconds.iter_mut().zip(other.seconds).for_each(|(sum, seconds)| *sum += seconds);
        self.work.iter_mut().zip(other.work).for_each(|(sum, work)| sum.add(work));
    }
}

/// Adds the time of a pass up, stage by stage. Only the thread that leads the pass uses it; the lock costs it some 20 ns.
#[derive(Debug, Default)]
pub struct Stopwatch(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    profile: Profile,
    stage: Option<(Stage, Instant)>,
}

impl Stopwatch {
    /// From here on time counts for `stage`; for none: the pass has ended.
    pub fn begin(&self, stage: Option<Stage>) {
        let now = Instant::now();
        let Running { profile, stage: current } = &mut *self.0.lock().expect("nothing panics while it holds this");
        match current.take() {
            Some((before, since)) => profile.seconds[before as usize] += (now - since).as_secs_f64(),
            None => profile.passes += 1,
        }
        *current = stage.map(|stage| (stage, now));
    }

    /// What passes have added up since the last call.
    pub fn profile(&mut self) -> &mut Profile {
        &mut self.0.get_mut().expect("nothing panics while it holds this").profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_listed_in_their_order() {
        assert!(Stage::ALL.iter().enumerate().all(|(i, stage)| *stage as usize == i));
    }

    #[test]
    fn time_counts_for_the_stage_that_was_begun_last() {
        let mut watch = Stopwatch::default();
        for _ in 0..2 {
            watch.begin(Some(Stage::Embed));
            watch.begin(Some(Stage::Head));
            std::thread::sleep(std::time::Duration::from_millis(2));
            watch.begin(None);
        }
        let profile = std::mem::take(watch.profile());
        assert_eq!(profile.passes, 2);
        assert!(profile.seconds(Stage::Head) >= 0.004 && profile.seconds(Stage::Norm) == 0.0);
        assert_eq!(*watch.profile(), Profile::default());

        let mut twice = profile;
        twice.add_work(Stage::Head, Work { bytes: 1.0, int8_ops: 2.0, float_ops: 3.0 });
        twice.add(&profile);
        assert_eq!((twice.passes, twice.total_seconds()), (4, 2.0 * profile.total_seconds()));
        assert_eq!(twice.total_work(), Work { bytes: 1.0, int8_ops: 2.0, float_ops: 3.0 });
    }
}
