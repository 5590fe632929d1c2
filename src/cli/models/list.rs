//! `sayfa models`: what `-m` can name, how big it is, whether it runs here and fits. Reads no more than headers.

use clap::Args;
use serde_json::{Value as Json, json};

use super::places::{Kind, Listed, MOST_ENTRIES, Places};
use crate::cli::Ended;
use crate::cli::args::Talk;
use crate::cli::machine::size;
use crate::cli::plan::{self, Fit};
use crate::cli::terminal::Terminal;
use crate::gguf::Gguf;
use crate::model::{Model, RopeOverrides};

/// Columns of a name before it gets a line to itself, so that a row keeps to 80.
const NAME_COLUMNS: usize = 30;

/// Mixes by `general.file_type`, as llama.cpp numbers them.
const FILE_TYPES: &[(u64, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (25, "IQ4_NL"),
    (30, "IQ4_XS"),
    (32, "BF16"),
    (38, "MXFP4"),
];

#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print one JSON object {models, memory_bytes}; sizes in bytes
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    pub talk: Talk,
}

/// A model of the list, as far as its header tells.
struct Row {
    listed: Listed,
    /// Why the file cannot be read.
    broken: Option<String>,
    bytes: u64,
    of_type: String,
    architecture: String,
    /// Whether it fits, or why it does not run here.
    runs: Result<Fit, String>,
}

pub fn models(args: &ModelsArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let places = Places::of_environment();
    let (mut listed, unread) = places.list();
    name_apart(&mut listed);
    let is_cut = |kind: Kind| listed.iter().filter(|listed| listed.kind == kind).count() >= MOST_ENTRIES;
    if [Kind::Folder, Kind::LlamaCpp].into_iter().any(is_cut) {
        terminal.warn(&format!("of a folder with more than {MOST_ENTRIES} entries only so many are looked at"));
    }
    unread.iter().for_each(|why| terminal.detail(&format!("cannot look into {why}")));
    let rows: Vec<Row> = listed.into_iter().map(Row::new).collect();
    if args.json {
        let models: Vec<Json> = rows.iter().map(Row::to_json).collect();
        let memory = rows.iter().find_map(|row| row.runs.as_ref().ok()).map(|fit| fit.memory.bytes);
        terminal.write_line(&json!({"models": models, "memory_bytes": memory}).to_string())?;
        return Ok(Ended::Done);
    }
    if rows.is_empty() {
        terminal.warn(&format!("no models in {}; scripts/get_model.sh gets the default one", places.shown()));
        return Ok(Ended::Done);
    }
    for line in report(&rows) {
        terminal.write_line(&line)?;
    }
    Ok(Ended::Done)
}

/// A name leads to the first of those that have it; the others are known by their paths.
fn name_apart(listed: &mut [Listed]) {
    let mut seen = Vec::new();
    for model in listed {
        if seen.contains(&model.name)
            && let Ok(found) = &model.found
        {
            model.name = found.path.display().to_string();
        }
        seen.push(model.name.clone());
    }
}

fn report(rows: &[Row]) -> Vec<String> {
    let width = rows.iter().map(|row| row.listed.name.chars().count()).filter(|&columns| columns <= NAME_COLUMNS);
    let width = width.max().unwrap_or(0).max("MODEL".len());
    let line = |[name, size, of_type, fits, kind, runs]: [&str; 6]| {
        format!("{name:<width$} {size:>9} {of_type:<7} {fits:<4} {kind:<9} {runs}").trim_end().to_string()
    };
    let mut lines = vec![line(["MODEL", "SIZE", "TYPE", "FITS", "WHERE", "RUNS HERE"])];
    for row in rows {
        // What somebody called a file must not move the cursor of whoever reads the list.
        let name: String = row.listed.name.chars().filter(|c| !c.is_control()).collect();
        let is_long = name.chars().count() > width;
        lines.extend(is_long.then(|| name.clone()));
        let bytes = if row.bytes > 0 { size(row.bytes) } else { "-".to_string() };
        let (runs, fits) = row.verdict();
        let name = if is_long { "" } else { &name };
        lines.push(line([name, &bytes, &row.of_type, fits, row.listed.kind.name(), &runs]));
        lines.extend(row.reason().into_iter().flat_map(indented));
    }
    lines.extend(remarks(rows));
    lines
}

/// What the words of the last columns mean, if they stand there.
fn remarks(rows: &[Row]) -> Vec<String> {
    let fits: Vec<&Fit> = rows.iter().filter_map(|row| row.runs.as_ref().ok()).collect();
    let Some(first) = fits.first() else { return Vec::new() };
    let memory = if first.memory.bytes == u64::MAX { "unknown".to_string() } else { size(first.memory.bytes) };
    let mut lines = vec![
        String::new(),
        format!("FITS: on the CPU, with {memory} ({}) for the weights and a context", first.memory.limit),
        "of up to 8192 tokens in f16; `sayfa plan -m MODEL` tells more, also of GPUs.".to_string(),
    ];
    if fits.iter().any(|fit| fit.fits && !fit.fits_with_weights) {
        lines.push("slow: all but the weights fits, and every token will read the disk.".to_string());
    }
    lines
}

impl Row {
    fn new(listed: Listed) -> Row {
        let opened = match &listed.found {
            Ok(found) => Gguf::open(&found.path).map_err(|error| error.what),
            Err(error) => Err(format!("{error:#}")),
        };
        let gguf = match opened {
            Ok(gguf) => gguf,
            Err(why) => {
                let bytes = listed.found.as_ref().ok().and_then(|found| found.path.metadata().ok());
                let bytes = bytes.filter(|about| about.is_file()).map_or(0, |about| about.len());
                let (of_type, architecture) = ("-".to_string(), "-".to_string());
                return Row { listed, broken: Some(why.clone()), bytes, of_type, architecture, runs: Err(why) };
            }
        };
        let runs = match Model::from_gguf(&gguf, &RopeOverrides::default()) {
            _ if gguf.tensors().is_empty() => Err("only a vocabulary".to_string()),
            Ok(model) => Ok(plan::fit(&gguf, &model.config)),
            Err(error) => Err(format!("{error:#}")),
        };
        let architecture = gguf.str("general.architecture").ok().flatten().unwrap_or("-").to_string();
        Row { listed, broken: None, bytes: gguf.file_bytes(), of_type: type_of(&gguf), architecture, runs }
    }

    /// Whether it runs, and whether it fits.
    fn verdict(&self) -> (String, &'static str) {
        match &self.runs {
            Ok(fit) if fit.fits_with_weights => ("yes".to_string(), "yes"),
            Ok(fit) if fit.fits => ("yes".to_string(), "slow"),
            Ok(_) => ("yes".to_string(), "no"),
            Err(_) if self.broken.is_some() => ("no".to_string(), "-"),
            Err(_) if self.is_of_another_kind() => (format!("no: {}", self.architecture), "-"),
            Err(_) => ("no".to_string(), "-"),
        }
    }

    /// Why it does not run, where the columns do not tell.
    fn reason(&self) -> Option<&str> {
        self.runs.as_ref().err().filter(|_| !self.is_of_another_kind()).map(String::as_str)
    }

    fn is_of_another_kind(&self) -> bool {
        self.broken.is_none() && self.architecture != "llama"
    }

    fn to_json(&self) -> Json {
        let found = self.listed.found.as_ref().ok();
        let fit = self.runs.as_ref().ok();
        json!({
            "name": self.listed.name,
            "path": found.map(|found| found.path.display().to_string()),
            "where": self.listed.kind.name(),
            "bytes": self.bytes,
            "type": Some(&self.of_type).filter(|name| *name != "-"),
            "architecture": Some(&self.architecture).filter(|name| *name != "-"),
            "runs": fit.is_some(),
            "reason": self.runs.as_ref().err(),
            "fits": fit.map(|fit| fit.fits_with_weights),
            "context_tokens": fit.map(|fit| fit.context_tokens),
            "weights_bytes": fit.map(|fit| fit.weights_bytes),
            "needed_bytes": fit.map(|fit| fit.needed_bytes),
        })
    }
}

/// The mix that the file names, else the type that most of its bytes have.
fn type_of(gguf: &Gguf) -> String {
    let named = gguf.uint("general.file_type").ok().flatten();
    let named = named.and_then(|number| FILE_TYPES.iter().find(|(of, _)| *of == number));
    if let Some((_, name)) = named {
        return name.to_string();
    }
    let mut types: Vec<(u64, &str)> = Vec::new();
    for tensor in gguf.tensors() {
        match types.iter_mut().find(|(_, name)| *name == tensor.dtype.name()) {
            Some((bytes, _)) => *bytes += tensor.size_bytes(),
            None => types.push((tensor.size_bytes(), tensor.dtype.name())),
        }
    }
    types.into_iter().max().map_or_else(|| "-".to_string(), |(_, name)| name.to_string())
}

/// A reason below its row, in lines that keep to 80 columns where its words do.
fn indented(reason: &str) -> Vec<String> {
    const COLUMNS: usize = 80;
    const MOST_CHARS: usize = 400;
    let reason = match reason.char_indices().nth(MOST_CHARS) {
        Some((cut, _)) => format!("{}…", &reason[..cut]),
        None => reason.to_string(),
    };
    let mut lines: Vec<String> = Vec::new();
    for word in reason.split_whitespace() {
        match lines.last_mut().filter(|line| line.chars().count() + word.chars().count() < COLUMNS) {
            Some(line) => line.extend([" ", word]),
            None => lines.push(format!("  {word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Found;
    use super::super::places::Kind;
    use super::*;

    #[test]
    fn of_equal_names_the_later_ones_are_paths() {
        let model = |name: &str, path: &str| Listed {
            name: name.into(),
            kind: Kind::Folder,
            found: Ok(Found::file(PathBuf::from(path))),
        };
        let mut listed = [model("a", "one/a.gguf"), model("b", "one/b.gguf"), model("a", "two/a.gguf")];
        name_apart(&mut listed);
        assert_eq!(listed.map(|model| model.name), ["a", "b", "two/a.gguf"]);
    }
}
