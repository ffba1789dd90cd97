//! What a workload has measured, as a Markdown table for people and as JSON for programs.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::workload::Summary;

/// Figures of some contenders in interleaved runs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What was done: the workload and the engine.
    title: String,
    lines: Vec<Line>,
}

/// One figure in each run.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    unit: &'static str,
    runs: Vec<f64>,
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Report {
    pub(crate) fn new(title: String) -> Self {
        Self { title, lines: Vec::new() }
    }

    /// A figure with its unit, one a run; left out when no run has it.
    pub(crate) fn line(&mut self, name: impl Into<String>, unit: &'static str, runs: Vec<f64>) {
        if !runs.is_empty() {
            let Summary { median, min, max } = Summary::of(runs.clone());
            self.lines.push(Line { name: name.into(), unit, runs, median, lowest: min, highest: max });
        }
    }

    /// How two figures stand to each other, run by run: neighbours in time saw the same machine.
    pub(crate) fn ratio(&mut self, name: impl Into<String>, of: &[f64], to: &[f64]) {
        self.line(name, "ratio", of.iter().zip(to).map(|(of, to)| of / to).collect());
    }
}

/// Three significant digits are more than a run repeats.
fn shown(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "**{}**\n", self.title)?;
        writeln!(f, "| | median | lowest | highest | |\n|---|---:|---:|---:|---|")?;
        for line in &self.lines {
            let [median, lowest, highest] = [line.median, line.lowest, line.highest].map(shown);
            writeln!(f, "| {} | {median} | {lowest} | {highest} | {} |", line.name, line.unit)?;
        }
        Ok(())
    }
}

#[test]
fn a_report_has_medians_and_ratios_run_by_run() {
    let mut report = Report::new("two contenders".to_owned());
    let (fast, slow) = (vec![20.0, 30.0, 10.0], vec![10.0, 10.0, 10.0]);
    report.ratio("fast / slow", &fast, &slow);
    report.line("fast", "events/s", fast);
    report.line("nothing", "ms", Vec::new());
    let text = report.to_string();
    assert!(text.contains("| fast / slow | 2.00 | 1.00 | 3.00 | ratio |"), "{text}");
    assert!(text.contains("| fast | 20.0 | 10.0 | 30.0 | events/s |") && !text.contains("nothing"), "{text}");
}
