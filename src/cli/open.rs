//! From a plan to an engine: on the GPU if the plan has one, and on the CPU if that fails.

use std::sync::Arc;

use super::args::ModelArgs;
use super::device::DeviceArgs;
use super::plan::{self, Room};
use super::terminal::Terminal;
use crate::backend;
use crate::backend::cpu;
use crate::engine::{self, Engine};
use crate::gguf::Gguf;
use crate::model::Model;

/// An engine, and how it was made.
pub struct Made {
    pub engine: Engine,
    pub engine_options: engine::Options,
    pub gpu: Option<backend::Gpu>,
}

/// What an engine is made of.
pub struct Parts<'a> {
    pub model: &'a Arc<Model>,
    pub gguf: &'a Gguf,
    pub args: &'a ModelArgs,
    pub options: &'a cpu::Options,
    /// That must be able to be full at once.
    pub sequences: usize,
    pub terminal: &'a Terminal,
}

impl Parts<'_> {
    /// Before anything more is allocated: a context that does not fit is refused at once.
    pub fn room(&self) -> anyhow::Result<Room> {
        let sizes = (self.options.threads, self.sequences);
        plan::room(self.args, sizes, self.gguf, &self.model.config, self.terminal)
    }

    /// The engine for a plan. If the GPU fails for a reason that no plan knows of, the CPU stands in where the flags allow
    /// it, with a plan of its own.
    pub fn engine(
        &self,
        room: &Room,
        options: &dyn Fn(&Room) -> anyhow::Result<engine::Options>,
    ) -> anyhow::Result<Made> {
        let (engine_options, gpu) = (options(room)?, room.backend_gpu());
        let engine = backend::open(self.model.clone(), self.options, gpu)
            .and_then(|backend| Engine::new(backend, &engine_options));
        match engine {
            Err(error) if gpu.is_some() => {
                self.args.device.do_without(&format!("{error:#}"), self.terminal)?;
                let args = ModelArgs { device: DeviceArgs::CPU, ..self.args.clone() };
                let parts = Parts { args: &args, ..*self };
                parts.engine(&parts.room()?, options)
            }
            engine => Ok(Made { engine: engine?, engine_options, gpu }),
        }
    }
}
