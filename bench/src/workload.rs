//! What is drained, and how figures are summed up.

use clap::Args;

/// Rows of one size over a number of keys.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// Rows to drain.
    #[arg(long, default_value_t = 200_000)]
    pub(crate) rows: u32,
    /// Keys they are spread over.
    #[arg(long, default_value_t = 5_000)]
    pub(crate) keys: u32,
    /// Payload size in bytes.
    #[arg(long, default_value_t = 500)]
    pub(crate) payload: u32,
    /// Rows in a claim.
    #[arg(long, default_value_t = 500)]
    pub(crate) batch: u32,
    /// Interleaved runs of each contender.
    #[arg(long, default_value_t = 5)]
    pub(crate) runs: u32,
}

impl Workload {
    /// Padding that makes a `{"n":…,"pad":"…"}` payload about as long as asked for.
    pub(crate) fn pad(&self) -> u32 {
        self.payload.saturating_sub(24).max(1)
    }
}

/// Median and spread of some runs.
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// Of at least one figure.
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        assert!(!figures.is_empty(), "a summary needs figures");
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        let median = if figures.len() % 2 == 1 {
            figures[middle]
        } else {
            f64::midpoint(figures[middle - 1], figures[middle])
        };
        Self { median, min: figures[0], max: figures[figures.len() - 1] }
    }
}

/// The value below which a share of the figures lies (nearest rank).
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[test]
fn summaries_are_medians_and_ranks() {
    let summary = Summary::of(vec![3.0, 1.0, 2.0]);
    assert_eq!((summary.min, summary.median, summary.max), (1.0, 2.0, 3.0));
    assert_eq!(Summary::of(vec![1.0, 2.0]).median, 1.5);
    let figures: Vec<f64> = (1..=100).map(f64::from).collect();
    assert_eq!((percentile(&figures, 0.99), percentile(&figures, 0.5)), (99.0, 50.0));
}
