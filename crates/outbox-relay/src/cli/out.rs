//! The one writer of what a command prints. Data goes to standard output, everything said about it to standard error.

use std::fmt::Display;
use std::io::{self, Write};

use super::Failure;

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Columns for people.
    Table,
    /// One JSON document.
    Json,
}

/// One line of data, flushed.
pub(super) fn line(text: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::from_write)
}

/// One line about what is going on. Nobody can be told when this fails.
pub(super) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A JSON document, one line.
pub(super) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    line(serde_json::to_string(value).map_err(anyhow::Error::from)?)
}

/// Rows under their headings, each column as wide as its longest cell.
pub(super) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> Result<(), Failure> {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    line(render(&widths, &headings))?;
    rows.iter().try_for_each(|row| line(render(&widths, row)))
}

fn render<S: AsRef<str>>(widths: &[usize], cells: &[S]) -> String {
    let padded = widths.iter().zip(cells).map(|(&width, cell)| format!("{:width$}", one_line(cell.as_ref())));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// An error text of a broker may have line breaks and control characters; a table's cell must not.
fn one_line(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
