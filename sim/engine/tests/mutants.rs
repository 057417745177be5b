//! Defects that the engine once had: put back, one at a time, each has to be found.

use crate::{MUTANT_SEEDS, search};

fn is_found(mutant: &'static str, says: &str) {
    let (found, ran) = search(0, MUTANT_SEEDS, mutant, says, &Default::default());
    let Some((seed, failure)) = found else {
        panic!("`{mutant}` is not found in {ran} seeds by \"{says}\"");
    };
    println!("`{mutant}` is found by seed {seed}: {failure}");
}

#[test]
fn who_leaves_wakes_nobody() {
    is_found("who leaves wakes nobody", "sleep, although");
}

#[test]
fn an_owner_has_what_is_lost() {
    is_found("an owner has what is lost", "was lost when it was returned");
}

#[test]
fn a_hold_ends_with_its_lease() {
    is_found("a hold ends with its lease", "was given back, and hears of a loss");
}

#[test]
fn an_upgrade_looks_once() {
    is_found("an upgrade looks once", "not come to their end");
}
