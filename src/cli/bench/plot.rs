//! Tokens per second over depth as an SVG: a panel for each kind of test, a line for each way to keep keys and values (and
//! for each size of test, where there are several).

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Entry, Report};
use super::suite::{Kind, Test};
use crate::cli::Usage;

const WIDTH: u32 = 800;
const PANEL_HEIGHT: u32 = 420;
const LABELS: (&str, u32) = ("sans-serif", 16);
/// Well apart, also for eyes that do not tell red from green.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(128, 128, 128),
];

/// A line: what its tests have in common, and (depth, tokens/s) of each.
struct Series {
    label: String,
    points: Vec<(f64, f64)>,
}

/// Refuses before anything is measured what could not be drawn afterwards.
pub fn check(path: &Path, tests: &[Test]) -> anyhow::Result<()> {
    let depth = tests.first().map(|test| test.depth);
    ensure!(
        tests.iter().any(|test| Some(test.depth) != depth),
        Usage("--plot draws speed over depth: give at least two depths, such as -d 0,1024,4096".to_string())
    );
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir() && !path.is_dir(), "--plot {}: no file can be written there", path.display());
    let was_there = path.exists();
    let tried = OpenOptions::new().append(true).create(true).open(path);
    tried.map_err(|error| anyhow!("--plot {}: {error}", path.display()))?;
    if !was_there {
        std::fs::remove_file(path).map_err(|error| anyhow!("--plot {}: {error}", path.display()))?;
    }
    Ok(())
}

pub fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    let text = draw(report).map_err(|error| anyhow!("--plot {}: {error}", path.display()))?;
    std::fs::write(path, text).map_err(|error| anyhow!("--plot {}: {error}", path.display()))
}

fn draw(report: &Report) -> Result<String, String> {
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|&kind| report.tests.iter().any(|entry| entry.name == kind)).collect();
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, PANEL_HEIGHT * kinds.len() as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        for (panel, &kind) in root.split_evenly((kinds.len(), 1)).iter().zip(&kinds) {
            let title = format!("{}: {}", report.model.name, kind.name());
            draw_panel(panel, &title, &series(&report.tests, kind)).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn draw_panel<B: DrawingBackend>(
    panel: &DrawingArea<B, Shift>,
    title: &str,
    series: &[Series],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let deepest = points().map(|point| point.0).fold(1.0, f64::max);
    let fastest = points().map(|point| point.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(50)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..deepest * 1.02, 0.0..fastest * 1.08)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .label_style(LABELS)
        .x_desc("tokens in the cache")
        .y_desc("tokens/s")
        .x_label_formatter(&|depth| format!("{depth:.0}"))
        .y_label_formatter(&|speed| if fastest < 10.0 { format!("{speed:.1}") } else { format!("{speed:.0}") })
        .draw()?;
    for (series, color) in series.iter().zip(COLORS.into_iter().cycle()) {
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), color.filled().stroke_width(2)).point_size(3))?
            .label(&series.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        // Speed falls with depth: there is room in this corner.
        .configure_series_labels()
        .label_font(LABELS)
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
}

/// The lines of a kind of test, in the order of their first test, their points by depth.
fn series(entries: &[Entry], kind: Kind) -> Vec<Series> {
    let of_kind = || entries.iter().filter(move |entry| entry.name == kind);
    let differ = |get: fn(&Entry) -> usize| of_kind().any(|entry| of_kind().next().map(get) != Some(get(entry)));
    let (sizes_differ, sequences_differ) = (differ(|entry| entry.tokens), differ(|entry| entry.sequences));
    let label = |entry: &Entry| {
        let mut label = format!("{} KV", entry.kv_type);
        if sizes_differ {
            label += &format!(", {} tokens", entry.tokens);
        }
        if sequences_differ {
            label += &format!(", {} at once", entry.sequences);
        }
        label
    };
    let mut all: Vec<Series> = Vec::new();
    for entry in of_kind() {
        let (label, point) = (label(entry), (entry.depth as f64, entry.tokens_per_second));
        match all.iter_mut().find(|series| series.label == label) {
            Some(series) => series.points.push(point),
            None => all.push(Series { label, points: vec![point] }),
        }
    }
    all.iter_mut().for_each(|series| series.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    all
}
