//! How matrices are stored on the device: ggml's blocks taken apart into planes that a warp reads in wide, aligned loads.
//! kernels/types.cuh draws the forms; all of them keep the values of `quant::Group` exactly.
//!
//! Plain arithmetic on sizes and bytes: nothing here knows of a driver.

use std::ops::Range;

use crate::quant::{DType, GROUP, IQ4_VALUES, MXFP4_VALUES};

/// `Form` of kernels/types.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
#[repr(i32)]
pub enum Form {
    Q4_0 = 0,
    Q4_1 = 1,
    Q5_0 = 2,
    Q5_1 = 3,
    Q8_0 = 4,
    Q4_K = 5,
    Q5_K = 6,
    Q6_K = 7,
    /// Four bits are the index of a value in a table: IQ4_NL, IQ4_XS, MXFP4.
    Codes = 8,
    Q2_K = 9,
    Q3_K = 10,
    F32 = 11,
    F16 = 12,
    BF16 = 13,
}

impl Form {
    pub const fn of(dtype: DType) -> Form {
        match dtype {
            DType::F32 => Form::F32,
            DType::F16 => Form::F16,
            DType::BF16 => Form::BF16,
            DType::Q4_0 => Form::Q4_0,
            DType::Q4_1 => Form::Q4_1,
            DType::Q5_0 => Form::Q5_0,
            DType::Q5_1 => Form::Q5_1,
            DType::Q8_0 => Form::Q8_0,
            DType::Q2_K => Form::Q2_K,
            DType::Q3_K => Form::Q3_K,
            DType::Q4_K => Form::Q4_K,
            DType::Q5_K => Form::Q5_K,
            DType::Q6_K => Form::Q6_K,
            DType::IQ4_NL | DType::IQ4_XS | DType::MXFP4 => Form::Codes,
        }
    }

    /// Whether the form of this number is one of floats, which read f32 rows.
    pub const fn is_float(form: i32) -> bool {
        form >= Form::F32 as i32
    }

    /// Bytes of eight groups in each plane. (For floats a group is 32 elements.)
    const fn bytes_of_eight_groups(self) -> [usize; PLANES] {
        match self {
            Form::Q4_0 => [128, 0, 16, 0],
            Form::Q4_1 => [128, 0, 32, 0],
            Form::Q5_0 => [128, 32, 16, 0],
            Form::Q5_1 => [128, 32, 32, 0],
            Form::Q8_0 => [256, 0, 16, 0],
            Form::Q4_K => [128, 0, 16, 0],
            Form::Q5_K => [128, 32, 16, 0],
            Form::Q6_K => [128, 64, 16, 2],
            Form::Codes => [128, 0, 32, 0],
            Form::Q2_K => [128, 0, 16, 4],
            Form::Q3_K => [128, 0, 16, 2],
            Form::F32 => [1024, 0, 0, 0],
            Form::F16 | Form::BF16 => [512, 0, 0, 0],
        }
    }
}

/// quants, high, scales, supers
pub const PLANES: usize = 4;

/// Each plane begins at a multiple of this, so that wide loads are aligned.
const ALIGN: usize = 256;

/// Where the planes of a matrix lie in its one piece of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    row_bytes: [usize; PLANES],
    starts: [usize; PLANES],
    bytes: usize,
}

impl Layout {
    /// `cols` is a whole number of the type's blocks.
    pub const fn new(dtype: DType, rows: usize, cols: usize) -> Layout {
        assert!(cols.is_multiple_of(dtype.block_elements()), "rows are whole blocks");
        let eight = Form::of(dtype).bytes_of_eight_groups();
        let (mut row_bytes, mut starts, mut bytes) = ([0; PLANES], [0; PLANES], 0);
        let mut plane = 0;
        while plane < PLANES {
            row_bytes[plane] = eight[plane] * cols / (8 * GROUP);
            starts[plane] = bytes;
            bytes += (row_bytes[plane] * rows).next_multiple_of(ALIGN);
            plane += 1;
        }
        let layout = Layout { dtype, rows, cols, row_bytes, starts, bytes };
        // The table lies where forms that have them keep their supers.
        let table_bytes = if layout.table().is_some() { ALIGN } else { 0 };
        Layout { bytes: bytes + table_bytes, ..layout }
    }

    pub const fn form(&self) -> Form {
        Form::of(self.dtype)
    }

    /// Bytes on the device, all planes and the gaps between them.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where a plane begins; `None` for planes that the form lacks.
    pub const fn plane_start(&self, plane: usize) -> Option<usize> {
        let there = self.row_bytes[plane] > 0 || (plane == PLANES - 1 && self.table().is_some());
        if there { Some(self.starts[plane]) } else { None }
    }

    /// Bytes of rows that follow each other in a plane, from the start of the matrix's memory.
    pub const fn plane_rows(&self, plane: usize, rows: Range<usize>) -> Range<usize> {
        let (start, row_bytes) = (self.starts[plane], self.row_bytes[plane]);
        start + rows.start * row_bytes..start + rows.end * row_bytes
    }

    /// What belongs at the start of the last plane beside the rows: the values that codes stand for.
    pub const fn table(&self) -> Option<[i8; 16]> {
        match self.dtype {
            DType::IQ4_NL | DType::IQ4_XS => Some(IQ4_VALUES),
            DType::MXFP4 => Some(MXFP4_VALUES),
            _ => None,
        }
    }
}

/// Bytes of a matrix on the device: for plans, before anything is loaded.
pub const fn device_bytes(dtype: DType, rows: usize, cols: usize) -> u64 {
    Layout::new(dtype, rows, cols).bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_follow_each_other_without_overlap() {
        for dtype in DType::ALL {
            for rows in [1, 3, 64] {
                let layout = Layout::new(dtype, rows, 512);
                let mut end = 0;
                for plane in 0..PLANES {
                    let Some(start) = layout.plane_start(plane) else {
                        assert!(layout.plane_rows(plane, 0..rows).is_empty());
                        continue;
                    };
                    assert!(start >= end && start.is_multiple_of(ALIGN), "{} plane {plane}", dtype.name());
                    let held = layout.plane_rows(plane, 0..rows);
                    assert_eq!(held.start, start);
                    end = if held.is_empty() { start + 16 } else { held.end };
                    let parts = (0..rows).flat_map(|row| layout.plane_rows(plane, row..row + 1));
                    assert!(parts.eq(held), "rows of {} plane {plane}", dtype.name());
                }
                assert!(layout.bytes() >= end && layout.bytes() - end < ALIGN);
            }
        }
    }

    #[test]
    fn device_memory_is_close_to_the_file() {
        let file = |dtype: DType| dtype.row_bytes(4096).expect("whole blocks") * 4096;
        for dtype in DType::ALL {
            let ratio = device_bytes(dtype, 4096, 4096) as f64 / file(dtype) as f64;
            let most = match dtype {
                DType::Q2_K => 1.77,                   // two bits in four
                DType::Q3_K => 1.33,                   // three bits in four
                DType::IQ4_NL | DType::IQ4_XS => 1.18, // f32 scales
                DType::MXFP4 => 1.18,
                _ => 1.0,
            };
            assert!((1.0..=most).contains(&ratio), "{} takes {ratio} of its bytes in the file", dtype.name());
        }
    }
}
