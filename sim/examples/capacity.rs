//! Prints the tables of `docs/book/src/capacity.md`, with the simulation of 10,000 processes and a million locks.
//!
//! `cargo run --release -p leasehold-sim --example capacity`

use leasehold_sim::capacity::tables;

fn main() {
    for (name, table) in tables::formulas().into_iter().chain([tables::simulated()]) {
        println!("{name}:\n\n{table}");
    }
}
