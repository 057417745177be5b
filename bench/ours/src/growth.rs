//! `cargo xtask bench growth`: what a lock costs as there are more of them, on Redis.
//!
//! Each series varies one thing over a factor of ten at a time: locks that are held, waiters of one lock, readers
//! of one lock, processes, servers. Each becomes a plot and a table. A cost that stays flat does not grow; one
//! that rises by the same step at each point grows with the logarithm.

mod locks;
pub(crate) mod page;
mod plot;
mod processes;
mod readers;
mod servers;
mod waiters;

use std::path::Path;

use clap::Args;

use crate::Outcome;

/// Plots of time, commands and memory, from one lock to a hundred thousand
#[derive(Debug, Args)]
pub(crate) struct Growth {
    /// Fewer and smaller points: a minute
    #[arg(long)]
    quick: bool,

    /// The folder in which the page `growth.md` and its plots are written
    #[arg(long, default_value = "docs/book/src")]
    folder: std::path::PathBuf,
}

/// One cost, measured at growing sizes.
#[derive(Debug)]
struct Series {
    /// The name of the plot's file.
    name: &'static str,
    title: &'static str,
    /// The quantity that grows.
    size: &'static str,
    /// The quantity that each column of a point counts, and its unit.
    columns: &'static [&'static str],
    points: Vec<Point>,
}

/// The costs at one size.
#[derive(Debug)]
struct Point {
    size: usize,
    values: Vec<f64>,
}

impl Growth {
    /// Measures all series, and writes the page and its plots.
    pub(crate) fn run(&self) -> Outcome<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let series = runtime.block_on(async {
            let up_to = |most: usize| sizes(if self.quick { most.min(1_000) } else { most });
            eprintln!("held locks …");
            let mut all = vec![locks::measure(&up_to(100_000)).await?];
            eprintln!("waiters of one lock …");
            all.push(waiters::measure(&up_to(10_000)).await?);
            eprintln!("readers of one lock …");
            all.push(readers::measure(&up_to(10_000)).await?);
            eprintln!("processes …");
            let most = if self.quick { 4 } else { 64 };
            all.push(processes::measure(most).await?);
            eprintln!("servers …");
            all.push(servers::measure().await?);
            Outcome::Ok(all)
        })?;
        write(&self.folder, &series)
    }
}

/// Returns 1, 10, 100 and so on.
fn sizes(most: usize) -> Vec<usize> {
    std::iter::successors(Some(1), |size| Some(size * 10)).take_while(|size| *size <= most).collect()
}

fn write(folder: &Path, series: &[Series]) -> Outcome<()> {
    let plots = folder.join("growth");
    std::fs::create_dir_all(&plots)?;
    for series in series {
        std::fs::write(plots.join(format!("{}.svg", series.name)), plot::svg(series))?;
    }
    std::fs::write(folder.join("growth.md"), page::markdown(series)?)?;
    Ok(())
}

/// Returns the median of some values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_tens() {
        assert_eq!(sizes(1_000), [1, 10, 100, 1_000]);
        assert_eq!(sizes(999), [1, 10, 100]);
    }
}
