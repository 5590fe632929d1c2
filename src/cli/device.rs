//! Where to compute: the flags, and the GPU that they come to.

use anyhow::bail;
use clap::Args;

use super::terminal::Terminal;
use crate::backend::cuda::{self, DeviceInfo, Unavailable, Usable};

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    /// Where to compute: auto, cpu, cuda or cuda:N
    ///
    /// `auto` takes the first GPU if it can be used, `cuda` and `cuda:N` insist on one.
    #[arg(long, value_name = "DEVICE", value_parser = Device::parse, default_value = "auto")]
    pub device: Device,

    /// Layers on the GPU: a number, auto or all (also -ngl)
    ///
    /// The last ones of the model, the output head counted as one. `auto`: as many as fit; 0: the CPU computes everything.
    ///
    /// [default: auto]
    #[arg(long, value_name = "N", value_parser = GpuLayers::parse, visible_alias = "n-gpu-layers", allow_negative_numbers = true)]
    pub gpu_layers: Option<GpuLayers>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Auto,
    Cpu,
    Cuda(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLayers {
    Auto,
    All,
    Some(usize),
}

impl Device {
    fn parse(text: &str) -> Result<Device, String> {
        let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        match text {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(number).map(Device::Cuda),
        }
        .ok_or_else(|| "not auto, cpu, cuda or cuda:N with the number of a GPU".to_string())
    }
}

impl GpuLayers {
    fn parse(text: &str) -> Result<GpuLayers, String> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            "all" => Ok(GpuLayers::All),
            _ => text.parse().map(GpuLayers::Some).map_err(|_| "not a number of layers, auto or all".to_string()),
        }
    }
}

/// Where the flags come to.
pub enum Found {
    Gpu(Usable),
    /// With a word on why, if that may be worth one.
    Cpu(Option<String>),
}

impl DeviceArgs {
    pub const CPU: DeviceArgs = DeviceArgs { device: Device::Cpu, gpu_layers: None };

    /// Whether a GPU is asked for by name, so that doing without is an error.
    pub fn insists(&self) -> bool {
        matches!(self.device, Device::Cuda(_)) && self.gpu_layers != Some(GpuLayers::Some(0))
    }

    /// How many layers were asked for, if that is said.
    pub fn asked_layers(&self) -> GpuLayers {
        self.gpu_layers.unwrap_or(GpuLayers::Auto)
    }

    /// The GPU to compute on, if the flags allow one and it can be used. `lacks`: what the GPU side cannot do of what
    /// is asked for.
    pub fn find(&self, lacks: Option<String>, terminal: &Terminal) -> anyhow::Result<Found> {
        let ordinal = match (self.device, self.gpu_layers) {
            (_, Some(GpuLayers::Some(0))) | (Device::Cpu, None | Some(GpuLayers::Auto)) => return Ok(Found::Cpu(None)),
            (Device::Cpu, Some(_)) => {
                terminal.warn("--gpu-layers (-ngl) has no effect beside --device cpu");
                return Ok(Found::Cpu(None));
            }
            (Device::Auto, _) => 0,
            (Device::Cuda(ordinal), _) => ordinal,
        };
        let found = cuda::device(ordinal).and_then(|usable| match lacks {
            Some(lacks) => Err(Unavailable::Unusable(lacks)),
            None => Ok(usable),
        });
        match found {
            Ok(usable) => Ok(Found::Gpu(usable)),
            Err(none @ (Unavailable::NoDriver | Unavailable::NoDevice)) if self.is_default() => {
                Ok(Found::Cpu(Some(format!("{none}: the CPU computes everything"))))
            }
            Err(error) => self.do_without(&error.to_string(), terminal).map(|()| Found::Cpu(None)),
        }
    }

    fn is_default(&self) -> bool {
        self.device == Device::Auto && self.asked_layers() == GpuLayers::Auto
    }

    /// A GPU cannot be used: an error if one was asked for by name, else a warning.
    pub fn do_without(&self, why: &str, terminal: &Terminal) -> anyhow::Result<()> {
        if let Device::Cuda(ordinal) = self.device {
            bail!("--device cuda:{ordinal}: {why}");
        }
        match self.gpu_layers {
            Some(GpuLayers::All) => {
                terminal.warn(&format!("--gpu-layers (-ngl) all: {why}: the CPU computes everything"))
            }
            Some(GpuLayers::Some(n)) => {
                terminal.warn(&format!("--gpu-layers (-ngl) {n}: {why}: the CPU computes everything"));
            }
            _ => terminal.warn(&format!("{why}: the CPU computes everything")),
        }
        Ok(())
    }
}

/// For people.
pub fn name(info: &DeviceInfo) -> String {
    format!("cuda:{} ({})", info.ordinal, info.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_layers_are_read() {
        let device = |text| Device::parse(text).ok();
        assert_eq!(
            ["auto", "cpu", "cuda", "cuda:3"].map(device),
            [Some(Device::Auto), Some(Device::Cpu), Some(Device::Cuda(0)), Some(Device::Cuda(3))]
        );
        for text in
            ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "cuda:1,2", "cuda:99999999999999999999"]
        {
            assert_eq!(device(text), None, "{text:?}");
        }
        let layers = |text| GpuLayers::parse(text).ok();
        assert_eq!(
            ["auto", "all", "0", "99"].map(layers),
            [Some(GpuLayers::Auto), Some(GpuLayers::All), Some(GpuLayers::Some(0)), Some(GpuLayers::Some(99))]
        );
        assert!(["", "-1", "x", "1.5"].iter().all(|text| layers(text).is_none()));
    }
}
