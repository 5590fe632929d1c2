//! `/kv`: the pool of KV blocks, drawn. As wide as the terminal, eighty columns at most, no colour.

use super::session::Session;
use crate::cli::machine::mib;
use crate::kv::Usage;
use crate::kv::layout::BLOCK_TOKENS;

/// Most cells of a drawing in one line.
const WIDTH: usize = 64;
/// On narrower terminals lines are broken anyway.
const LEAST_WIDTH: usize = 8;
/// The bars beside a line of cells, and the last column, which stays empty.
const BESIDE: usize = 3;

/// Most lines that the drawing of one branch takes; of longer ones a cell stands for several pages.
const LINES: usize = 4;

/// Lines that show what the pool holds, and each branch page by page, on so many columns; 0: no terminal.
pub fn draw(session: &Session, columns: usize) -> Vec<String> {
    let width = if columns == 0 { WIDTH } else { columns.saturating_sub(BESIDE).clamp(LEAST_WIDTH, WIDTH) };
    let engine = &session.loaded.engine;
    let (usage, info) = (engine.usage(), engine.info());
    let (k, v) = session.loaded.kv_types();
    let types = if k == v { k.name().to_string() } else { format!("{} keys, {} values", k.name(), v.name()) };
    let bytes = |blocks: usize| mib(blocks as u64 * info.block_stride_bytes);
    let mut lines = vec![
        format!(
            "KV cache  {types}, {} bytes a token; blocks of {BLOCK_TOKENS} tokens, {:.1} KiB each",
            info.kv_bytes_per_token,
            info.block_stride_bytes as f64 / 1024.0
        ),
        format!("pool      {} blocks, {} if all were full", usage.total, bytes(usage.total)),
        format!("|{}|", pool_bar(&usage, width)),
    ];
    let own = usage.live - usage.shared;
    let unused = if session.loaded.gpu.is_some() { "of none, reserved on the GPU" } else { "no memory behind them" };
    let kinds = [
        ('#', own, "own", "of one branch"),
        ('=', usage.shared, "shared", "of several branches"),
        ('o', usage.cached, "cached", "of none, kept for reuse"),
        ('.', usage.free, "free", unused),
    ];
    for (sign, blocks, name, meaning) in kinds {
        let size = if name == "free" { String::new() } else { bytes(blocks) };
        lines.push(format!("{sign} {blocks:>7} {name:<7} {size:>9}  {meaning}"));
    }
    let waiting = session.waiting.iter().rev().map(|branch| (branch.name.as_str(), branch.sequence));
    for (name, sequence) in std::iter::once((session.branch.as_str(), session.sequence)).chain(waiting) {
        let (owners, held) = (engine.page_owners(sequence), engine.held_tokens(sequence));
        let forgotten = engine.tokens(sequence).len() - held;
        lines.push(branch_line(name, &owners, held, forgotten));
        lines.extend(page_lines(&owners, held, width).into_iter().map(|line| format!("|{line}|")));
    }
    lines
}

fn branch_line(name: &str, owners: &[u32], held: usize, forgotten: usize) -> String {
    let shared = owners.iter().filter(|&&owners| owners > 1).count();
    let mut line =
        format!("{name:<9} {held} tokens in {} pages: {shared} shared, {} own", owners.len(), owners.len() - shared);
    if !held.is_multiple_of(BLOCK_TOKENS) {
        line += &format!(", the last partial ({} of {BLOCK_TOKENS})", held % BLOCK_TOKENS);
    }
    if forgotten > 0 {
        line += &format!("; {forgotten} forgotten");
    }
    line
}

/// A cell for each kind's part of the pool; whatever is there at all has one.
fn pool_bar(usage: &Usage, width: usize) -> String {
    let kinds = [('#', usage.live - usage.shared), ('=', usage.shared), ('o', usage.cached)];
    let mut bar = String::new();
    for (sign, blocks) in kinds {
        let cells = (blocks * width).div_ceil(usage.total.max(1));
        bar.extend(std::iter::repeat_n(sign, cells));
    }
    // Rounding up can take a cell too many from the free ones.
    bar.truncate(width);
    format!("{bar:.<width$}")
}

/// Pages in token order: shared, own, and the last one if it is partial.
fn page_lines(owners: &[u32], held: usize, width: usize) -> Vec<String> {
    let per_cell = owners.len().div_ceil(width * LINES).max(1);
    let is_partial = !held.is_multiple_of(BLOCK_TOKENS);
    let cells: Vec<char> = owners
        .chunks(per_cell)
        .enumerate()
        .map(|(i, pages)| match pages.contains(&1) {
            _ if is_partial && (i + 1) * per_cell >= owners.len() => '+',
            true => '#',
            false => '=',
        })
        .collect();
    let mut lines: Vec<String> = cells.chunks(width).map(|cells| cells.iter().collect()).collect();
    if let Some(last) = lines.last_mut().filter(|_| per_cell > 1) {
        *last += &format!(" {per_cell} pages a sign");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_each_kind_that_is_there_and_never_grows() {
        let usage = |free, live, shared, cached| Usage { total: free + live + cached, free, live, shared, cached };
        assert_eq!(pool_bar(&usage(1000, 0, 0, 0), WIDTH), ".".repeat(64));
        assert_eq!(pool_bar(&usage(997, 2, 1, 1), WIDTH), format!("#=o{}", ".".repeat(61)));
        assert_eq!(
            pool_bar(&usage(32, 32, 16, 0), WIDTH),
            format!("{}{}{}", "#".repeat(16), "=".repeat(16), ".".repeat(32))
        );
        assert_eq!(pool_bar(&usage(0, 999, 1, 1), WIDTH).chars().count(), 64);
    }

    #[test]
    fn a_branch_is_drawn_page_by_page() {
        assert_eq!(page_lines(&[2, 2, 1, 1], 64, WIDTH), ["==##"]);
        assert_eq!(page_lines(&[2, 2, 1, 1], 50, WIDTH), ["==#+"]);
        assert!(page_lines(&[], 0, WIDTH).is_empty());
        assert_eq!(page_lines(&[1; 10], 160, 8), ["########", "##"]);
        let long = page_lines(&[1; 300], 300 * BLOCK_TOKENS, WIDTH);
        assert_eq!((long.len(), long[0].len()), (3, 64));
        assert_eq!(long[2], format!("{} 2 pages a sign", "#".repeat(22)));
        assert_eq!(
            branch_line("main", &[2, 1], 20, 0),
            "main      20 tokens in 2 pages: 1 shared, 1 own, the last partial (4 of 16)"
        );
        assert!(branch_line("b", &[1; 4], 64, 32).ends_with("4 own; 32 forgotten"));
    }
}
