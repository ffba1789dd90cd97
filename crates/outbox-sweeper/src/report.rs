use serde::Serialize;

/// What a round of sweeping did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Claims whose lease had run out, taken apart.
    pub expired_claims: u64,
    /// Rows that went back to PENDING from expired claims.
    pub recovered: u64,
    /// Rows given up as FAILED: too many relays died with them in hand.
    pub failed: u64,
    /// PROCESSING rows without a claim that went back to PENDING.
    pub orphans: u64,
    /// Rows deleted by retention.
    pub purged: u64,
    /// What went wrong, one line each.
    pub errors: Vec<String>,
}

impl SweepReport {
    /// Adds another round's figures to this one's.
    pub fn add(&mut self, other: Self) {
        self.expired_claims += other.expired_claims;
        self.recovered += other.recovered;
        self.failed += other.failed;
        self.orphans += other.orphans;
        self.purged += other.purged;
        self.errors.extend(other.errors);
    }
}
