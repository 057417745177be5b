//! The statistics of a striped mutex.

use std::fmt;
use std::time::Duration;

use super::MAX_STRIPES;

/// The statistics of one client about a striped mutex.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StripeReport {
    /// The name of the lock.
    pub name: String,
    /// The statistics of each stripe, by its number.
    pub stripes: Vec<StripeUse>,
}

/// The statistics of one client about one stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StripeUse {
    /// The number of attempts to acquire it that found it free or taken, whether they were granted then or not. One for
    /// any stripe is counted at the stripe where it begins.
    pub attempts: u64,
    /// The number of times that it was acquired.
    pub taken: u64,
    /// The number of attempts that found it taken.
    pub waited: u64,
    /// The time that all acquisitions took together.
    pub wait: Duration,
}

impl StripeReport {
    /// Returns the part of all attempts that found their stripe taken, between 0 and 1.
    pub fn contention(&self) -> f64 {
        let waited: u64 = self.stripes.iter().map(|stripe| stripe.waited).sum();
        #[expect(clippy::cast_precision_loss, reason = "a part of a whole, to a few digits")]
        let part = waited as f64 / self.attempts().max(1) as f64;
        // The counters are read one after the other.
        part.min(1.0)
    }

    fn attempts(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.attempts).sum()
    }

    /// Returns the number of stripes that would leave one attempt in twenty waiting, if keys spread as
    /// they did; `None` before there are enough attempts.
    ///
    /// An attempt finds its stripe taken about as often as a stripe is held, which falls as their
    /// number rises. If single stripes stand out, the keys are uneven, and more stripes help little.
    pub fn recommended(&self) -> Option<u32> {
        if self.attempts() < ENOUGH {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let wanted = (self.contention() * self.stripes.len() as f64 / AIM).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
        let wanted = wanted.clamp(1.0, f64::from(MAX_STRIPES)) as u32;
        Some(wanted)
    }
}

impl fmt::Display for StripeReport {
    /// Prints a line for the whole, and one for each of the ten stripes that were waited for most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} stripes, {:.1} % of attempts waited",
            self.name,
            self.stripes.len(),
            100.0 * self.contention()
        )?;
        if let Some(recommended) = self.recommended() {
            write!(f, "; {recommended} stripes would do for {:.0} %", 100.0 * AIM)?;
        }
        let mut worst: Vec<(usize, &StripeUse)> = self.stripes.iter().enumerate().collect();
        worst.sort_by_key(|(_, stripe)| std::cmp::Reverse(stripe.waited));
        for (number, stripe) in worst.into_iter().take(10).filter(|(_, stripe)| stripe.waited > 0) {
            write!(
                f,
                "\n  #{number}: taken {}, waited {} times, {:.1?} in all",
                stripe.taken, stripe.waited, stripe.wait
            )?;
        }
        Ok(())
    }
}

/// The part of attempts that may wait.
const AIM: f64 = 0.05;
/// The smallest number of attempts for a recommendation.
const ENOUGH: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_report_recommends_a_count_from_contention() {
        let report = |taken, waited| StripeReport {
            name: "stock".to_owned(),
            stripes: vec![StripeUse { attempts: taken, taken, waited, wait: Duration::ZERO }; 4],
        };
        assert_eq!(report(10, 10).recommended(), None, "too little was seen");
        assert_eq!(report(1_000, 0).recommended(), Some(1));
        assert_eq!(report(1_000, 50).recommended(), Some(4));
        assert_eq!(report(1_000, 500).recommended(), Some(40));
        let shown = report(1_000, 500).to_string();
        assert!(shown.contains("50.0 % of attempts waited; 40 stripes would do for 5 %"), "{shown}");
    }
}
