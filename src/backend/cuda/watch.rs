//! Looking at a pass stage by stage: its times for profiles, its values for tests. Each look waits for the device, so that a
//! watched pass is slower than it says and is never captured.

use anyhow::Result;

use super::buffers::RowsBuffer;
use super::driver::{Buffer, Device};
use super::params::XGroup;
use crate::backend::{Stage, Stopwatch, Tap, Tapped};
use crate::quant::GROUP;

pub struct Watch<'a> {
    pub device: &'a Device,
    pub stopwatch: Option<&'a Stopwatch>,
    pub tap: Option<&'a mut Tap>,
    /// The model's number of the first layer here.
    pub first_layer: usize,
}

impl Watch<'_> {
    /// What is launched from here on is this stage's work, in a layer.
    pub fn begin(&self, stage: Stage, layer: usize) -> Result<()> {
        self.device.set_stage(Some((stage, self.first_layer + layer)));
        self.mark(Some(stage))
    }

    pub fn end(&self) -> Result<()> {
        self.device.set_stage(None);
        self.mark(None)
    }

    fn mark(&self, stage: Option<Stage>) -> Result<()> {
        if let Some(stopwatch) = self.stopwatch {
            self.device.synchronize("a stage of a profiled pass")?;
            stopwatch.begin(stage);
        }
        Ok(())
    }

    /// Shows the first `len` values of a stage's result, and puts back what the tap made of them.
    pub fn floats(&mut self, stage: Stage, layer: usize, buffer: &Buffer<f32>, len: usize) -> Result<()> {
        let Some(tap) = &mut self.tap else { return Ok(()) };
        let mut values = vec![0f32; len];
        self.device.read(buffer, 0, &mut values)?;
        tap(stage, self.first_layer + layer, Tapped::Floats(&mut values));
        self.device.write(buffer, 0, &values)
    }

    /// The same for rows (n, cols) that matrices read: as int8 where one of them reads that.
    pub fn rows(
        &mut self,
        stage: Stage,
        layer: usize,
        rows: &RowsBuffer,
        (n, cols, is_quantized): (usize, usize, bool),
    ) -> Result<()> {
        let (q, groups, x) = rows.parts();
        if !is_quantized {
            return self.floats(stage, layer, x, n * cols);
        }
        let Some(tap) = &mut self.tap else { return Ok(()) };
        let mut levels = vec![0i8; n * cols];
        let mut found = vec![XGroup::default(); n * cols / GROUP];
        self.device.read(q, 0, &mut levels)?;
        self.device.read(groups, 0, &mut found)?;
        let mut scales: Vec<f32> = found.iter().map(|group| group.scale).collect();
        tap(stage, self.first_layer + layer, Tapped::Levels(&mut levels, &mut scales));
        let left = levels.as_chunks::<GROUP>().0.iter().zip(&scales).map(|(levels, &scale)| {
            let sum = |half: &[i8]| half.iter().map(|&level| i16::from(level)).sum();
            XGroup { scale, sum: [sum(&levels[..GROUP / 2]), sum(&levels[GROUP / 2..])] }
        });
        self.device.write(q, 0, &levels)?;
        self.device.write(groups, 0, &left.collect::<Vec<_>>())
    }
}
