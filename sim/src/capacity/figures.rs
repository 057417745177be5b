//! The costs of a load, in each second: the common result of the closed form and of a simulation.

/// Rates in a second, over all servers of the store.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Renewed claims.
    pub renewals: f64,
    /// Requests that renew, with what is sent beside them in the same turn.
    pub renew_requests: f64,
    /// Requests of waiters for locks that stay taken, with what keeps their places.
    pub looks: f64,
    /// Locks that went from one process to another.
    pub hand_overs: f64,
    /// All requests to servers.
    pub requests: f64,
    /// Processor seconds of the servers, which is the number of cores in use.
    pub cores: f64,
    /// Syncs of disks.
    pub syncs: f64,
}

impl Figures {
    /// Returns each figure with its name.
    pub fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("renewals", self.renewals),
            ("requests that renew", self.renew_requests),
            ("looks", self.looks),
            ("hand-overs", self.hand_overs),
            ("requests", self.requests),
            ("cores", self.cores),
            ("syncs", self.syncs),
        ]
    }

    /// Returns a line for each figure that differs by more than this part of the other.
    pub fn differences(&self, other: &Figures, tolerance: f64) -> Vec<String> {
        let both = self.named().into_iter().zip(other.named());
        let far =
            both.filter(|((_, one), (_, other))| (one - other).abs() > tolerance * other.abs().max(1e-9));
        far.map(|((name, one), (_, other))| format!("{name}: {one:.4} and {other:.4}")).collect()
    }

    /// Returns the greatest difference, as a part of the other's figure.
    pub fn greatest_difference(&self, other: &Figures) -> f64 {
        let both = self.named().into_iter().zip(other.named());
        let parts = both.filter(|(_, (_, other))| *other > 1e-9);
        parts.map(|((_, one), (_, other))| (one - other).abs() / other).fold(0.0, f64::max)
    }
}
