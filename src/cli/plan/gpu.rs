//! The GPU of a plan: a real one as the driver tells of it, or one of --vram.

use anyhow::bail;

use super::PlanArgs;
use super::question::{Gpu, Question};
use crate::backend::cuda;
use crate::backend::cuda::DeviceInfo;
use crate::cli::Usage;
use crate::cli::device::{self, Device, Found, GpuLayers};
use crate::cli::machine::Memory;
use crate::cli::terminal::Terminal;
use crate::kv::layout::KvType;

/// Memory of a GPU that is left alone, as a share of what is free and at least so much: the driver rounds allocations up
/// to 2 MiB, loads kernels and makes graphs when they are first used, and the windows of a desktop come and go.
const LEFT_ALONE_SHARE: u64 = 20;
const LEAST_LEFT_ALONE: u64 = 256 << 20;

fn usable_bytes(free: u64) -> u64 {
    free.saturating_sub(LEAST_LEFT_ALONE.max(free / LEFT_ALONE_SHARE))
}

impl Gpu {
    /// With nothing on it yet.
    pub fn of(info: &DeviceInfo) -> Gpu {
        let memory = Memory { bytes: usable_bytes(info.free_bytes), limit: "free less 5 % or 256 MiB" };
        Gpu { name: device::name(info), memory, layers: 0 }
    }
}

impl Question {
    /// What the GPU side cannot do of it.
    pub fn gpu_lacks(&self) -> Option<String> {
        cuda::lacks(&self.widths, self.demand.kv_types.k, self.demand.kv_types.v, self.activations)
    }

    /// Puts the GPU of the flags into the plan, and layers on it.
    pub(super) fn add_gpu(&mut self, args: &PlanArgs, terminal: &Terminal) -> anyhow::Result<()> {
        let (gpu, usual_layers) = match args.vram {
            Some(bytes) => {
                self.check_imagined(args, terminal)?;
                let memory = Memory { bytes: usable_bytes(bytes), limit: "--vram less 5 % or 256 MiB" };
                (Gpu { name: "a GPU".to_string(), memory, layers: 0 }, GpuLayers::All)
            }
            None => match args.device.find(self.gpu_lacks(), terminal)? {
                Found::Gpu(usable) => (Gpu::of(&usable.info), GpuLayers::Auto),
                Found::Cpu(note) => {
                    note.iter().for_each(|note| terminal.info(note));
                    return Ok(());
                }
            },
        };
        self.gpu = Some(gpu);
        let all = self.sizes.offloadable();
        let layers = match args.device.gpu_layers.unwrap_or(usual_layers) {
            GpuLayers::All => all,
            GpuLayers::Some(n) => n.min(all),
            GpuLayers::Auto => self.most_gpu_layers(),
        };
        self.gpu.iter_mut().for_each(|gpu| gpu.layers = layers);
        Ok(())
    }

    /// A GPU that is not there is asked for no more than any can do; of a model that none can run it is still worth
    /// knowing what it would take.
    fn check_imagined(&self, args: &PlanArgs, terminal: &Terminal) -> anyhow::Result<()> {
        if args.device.device == Device::Cpu {
            bail!(Usage("--vram plans for a GPU, and --device cpu for none".to_string()));
        }
        let kv = self.demand.kv_types;
        if let Some(lacks) = cuda::lacks(&self.widths, KvType::F16, KvType::F16, self.activations) {
            terminal.warn(&format!("{lacks}, so that the CPU would compute everything"));
        } else if let Some(lacks) = cuda::lacks(&self.widths, kv.k, kv.v, self.activations) {
            bail!("--vram: {lacks}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_memory_is_left_alone() {
        assert_eq!(usable_bytes(100 << 20), 0);
        assert_eq!(usable_bytes(1 << 30), 768 << 20);
        assert_eq!(usable_bytes(100 << 30), 95 << 30);
    }
}
