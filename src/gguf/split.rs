//! Models split into several files: NAME-00001-of-00003.gguf and so on. The first part holds the metadata of the model;
//! `split.no` counts from 0, file names count from 1, `split.tensors.count` is the total over all parts.

use std::path::{Path, PathBuf};

use super::file::Access;
use super::header::{self, Part};
use super::{Error, Gguf};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Most parts that the five digits of a file name can count.
const MAX_PARTS: u64 = 99_999;

/// The file name of part `no` (from 0) of `count`.
fn name_of(prefix: &str, no: u64, count: u64) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1)
}

/// The prefix of a path that names part `no` of `count`.
fn prefix_of(path: &Path, no: u64, count: u64) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(&name_of("", no, count))
}

/// The other parts of the model whose file `first` is, in order; none when it is no split model.
pub(super) fn other_parts(first: &Gguf, access: &mut Access) -> Result<Vec<(PathBuf, Part)>, Error> {
    let path = first.path();
    let count = first.uint(COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    if count > MAX_PARTS {
        return Err(first.key_error(COUNT, format_args!("{count} parts, but a model has at most {MAX_PARTS}")));
    }
    let no =
        first.uint(NO)?.ok_or_else(|| first.key_error(COUNT, format_args!("{count} parts, but {NO} is missing")))?;
    if no >= count {
        return Err(first.key_error(NO, format_args!("{no} is not below {COUNT} ({count})")));
    }
    let Some(prefix) = prefix_of(path, no, count) else {
        let what = format!(
            "this is part {} of {count} of a split model, so its name must end in {} for the other parts to be found \
             beside it",
            no + 1,
            name_of("", no, count)
        );
        return Err(Error::of_file(path, what));
    };
    if no != 0 {
        let first = path.with_file_name(name_of(prefix, 0, count));
        let what =
            format!("this is part {} of {count} of a split model: give its first part, {}", no + 1, first.display());
        return Err(Error::of_file(path, what));
    }
    let wanted = first
        .uint(TENSORS)?
        .ok_or_else(|| first.key_error(COUNT, format_args!("{count} parts, but {TENSORS} is missing")))?;
    // Look for all of them before reading any, so that a missing last part is known at once.
    let paths: Vec<PathBuf> = (1..count).map(|no| path.with_file_name(name_of(prefix, no, count))).collect();
    if let Some(missing) = paths.iter().position(|path| !path.exists()) {
        let what = format!(
            "this is part 1 of {count} of a split model, and part {} is missing: {} must lie beside it",
            missing + 2,
            paths[missing].display()
        );
        return Err(Error::of_file(path, what));
    }
    let mut parts = Vec::new();
    for (path, no) in paths.into_iter().zip(1..) {
        let part = header::parse(&path, access.bytes(&path)?, no)?;
        belongs(&path, &part, no as u64, count)?;
        parts.push((path, part));
    }
    let found = first.tensors().len() + parts.iter().map(|(_, part)| part.tensors.len()).sum::<usize>();
    if found as u64 != wanted {
        return Err(first.key_error(TENSORS, format_args!("{wanted} tensors, but the {count} parts hold {found}")));
    }
    Ok(parts)
}

fn belongs(path: &Path, part: &Part, no: u64, count: u64) -> Result<(), Error> {
    for (key, wanted) in [(NO, no), (COUNT, count)] {
        let found = part.entries.iter().find(|entry| entry.key == key).map(|entry| entry.value(&part.map));
        if found.and_then(|value| value.as_u64()) != Some(wanted) {
            let found = found.map_or("missing".to_owned(), |value| value.to_string());
            return Err(Error::of_file(
                path,
                format_args!("not part {} of {count} as its name says: {key} is {found}, not {wanted}", no + 1),
            ));
        }
    }
    Ok(())
}
