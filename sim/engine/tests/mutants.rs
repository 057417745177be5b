//! Defects that the engine once had: put back, one at a time, each has to be found.
//!
//! Programs that aim at one promise are run without a defect as well, since the random ones do not
//! cover them.

use crate::judge::Verdict;
use crate::world::Run;
use crate::{MUTANT_SEEDS, aims, caught, panics_in, run, search};

fn is_found_by(mutant: &'static str, says: &str, run: impl Fn(u64) -> Verdict + Sync) {
    let (found, ran) = search(0, MUTANT_SEEDS, run, says, &Default::default());
    let Some((seed, failure)) = found else {
        panic!("`{mutant}` is not found in {ran} seeds by \"{says}\"");
    };
    println!("`{mutant}` is found by seed {seed}: {failure}");
}

fn is_found(mutant: &'static str, says: &str) {
    is_found_by(mutant, says, |seed| run(Run { seed, mutant, ..Run::default() }));
}

/// Checks the same where one call of foreign code panics in each run.
fn is_found_by_panics(mutant: &'static str, says: &str) {
    is_found_by(mutant, says, |seed| {
        run(Run { seed, mutant, panics_in: Some(panics_in(seed)), ..Run::default() })
    });
}

/// Checks the same where a program aims at it, in which nothing is found without the defect.
fn is_found_by_aim(mutant: &'static str, says: &str, program: fn(u64, &'static str) -> Verdict) {
    let (found, _) = search(0, AIMED_SEEDS, |seed| caught(|| program(seed, "")), "", &Default::default());
    assert_eq!(found, None, "without `{mutant}`");
    is_found_by(mutant, says, |seed| caught(|| program(seed, mutant)));
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
fn an_owner_waits_for_what_it_let_go_of() {
    is_found("an owner waits for what it let go of", "would wait for itself, and holds nothing");
}

#[test]
fn a_hold_ends_with_its_lease() {
    is_found("a hold ends with its lease", "was released, and reports a loss");
}

#[test]
fn guards_of_one_owner_end_together() {
    is_found("guards of one owner end together", "was released, and reports a loss");
}

#[test]
fn a_panic_of_foreign_code_passes() {
    is_found_by_panics("a panic of foreign code passes", "and was never closed");
}

#[test]
fn a_contender_ends_in_silence() {
    is_found_by_panics("a contender ends in silence", "sleep, although");
}

#[test]
fn a_release_ends_in_silence() {
    is_found_by_panics("a release ends in silence", "remembers");
}

#[test]
fn a_span_ends_as_it_likes() {
    is_found_by_panics("a span ends as it likes", "without holders and waiters");
}

#[test]
fn the_end_of_a_runtime_is_silent() {
    is_found_by_aim("the end of a runtime is silent", "although its runtime", aims::a_runtime_ends);
}

#[test]
fn all_parts_are_released_together() {
    let mutant = "all parts are released together";
    is_found_by_aim(mutant, "a release in a healthy part", aims::one_part_hangs_in_releases);
}

#[test]
fn all_parts_are_renewed_together() {
    let mutant = "all parts are renewed together";
    is_found_by_aim(mutant, "of a healthy part is in doubt", aims::one_part_hangs_in_renewals);
}

#[test]
fn who_is_handed_it_wakes_nobody() {
    is_found_by_aim("who is handed it wakes nobody", "sleeps behind", aims::the_next_behind_a_handoff);
}

#[test]
fn a_closed_client_is_granted() {
    is_found("a closed client is granted", "has been closed");
}

#[test]
fn a_stale_grant_is_asked_for_at_once() {
    let mutant = "a stale grant is asked for at once";
    is_found_by_aim(mutant, "without end", aims::answers_take_longer_than_leases);
}

#[test]
fn a_released_claim_is_requested_again() {
    is_found("a released claim is requested again", "are held at once");
}

#[test]
fn the_claim_of_a_reader_that_wrote_is_handed_off() {
    is_found("the claim of a reader that wrote is handed off", "was granted");
}

#[test]
fn an_upgrade_looks_once() {
    is_found("an upgrade looks once", "not come to their end");
}

#[test]
fn a_writer_waits_for_its_own_process_first() {
    let mutant = "a writer waits for its own process first";
    is_found_by_aim(mutant, "passed a writer", aims::readers_behind_a_writer);
}

#[test]
fn who_tries_passes_who_waits() {
    is_found_by_aim("who tries passes who waits", "a try passed", aims::tries_behind_a_waiter);
}

#[test]
fn who_is_granted_at_once_passes_who_waits() {
    is_found_by_aim("who is granted at once passes who waits", "a try passed", aims::tries_behind_a_waiter);
}

#[test]
fn who_is_granted_at_once_never_pauses() {
    is_found_by_aim("who is granted at once never pauses", "let no other run", aims::a_task_locks_in_a_loop);
}

#[test]
fn who_asks_drops_the_call() {
    is_found("who asks drops the call", "dropped a call of");
}

#[test]
fn a_renewal_that_hangs_is_waited_for() {
    is_found("a renewal that hangs is waited for", "suspect");
}

#[test]
fn an_upgrade_is_not_reported() {
    is_found("an upgrade is not reported", "and reported no acquisition");
}

#[test]
fn a_claim_lingers_without_end() {
    is_found("a claim lingers without end", "without holders and waiters");
}

#[test]
fn what_is_over_is_handed_off() {
    let mutant = "what is over is handed off";
    is_found_by_aim(mutant, "passed a waiter of another", aims::a_waiter_behind_the_use_of_what_lingered);
}

#[test]
fn what_nobody_uses_is_in_the_way() {
    let mutant = "what nobody uses is in the way";
    is_found_by_aim(mutant, "because of what nobody uses", aims::tries_while_nobody_uses_it);
}

#[test]
fn a_try_leaves_alone_what_fits_beside_it() {
    let mutant = "a try leaves alone what fits beside it";
    is_found_by_aim(mutant, "is in the way", aims::tries_beside_an_unused_permit);
}

#[test]
fn a_doubt_about_a_lingering_claim_is_reported() {
    let mutant = "a doubt about a lingering claim is reported";
    is_found_by_aim(mutant, "is reported", aims::doubt_about_a_lingering_claim);
}

#[test]
fn the_end_of_a_max_hold_renews() {
    is_found_by_aim(
        "the end of a max_hold renews",
        "none of which was due",
        aims::limited_uses_of_what_lingers,
    );
}

/// A store that lost the claim grants it to another, and its holder continues beside that one.
#[test]
fn a_lost_claim_is_renewed() {
    let mutant = "a lost claim is renewed";
    for says in ["are held at once", "a renewal was answered with its loss"] {
        is_found(mutant, says);
    }
}

#[test]
fn a_loss_wakes_nobody() {
    is_found("a loss wakes nobody", "nobody told those that wait");
}

#[test]
fn a_released_lock_is_lost() {
    let mutant = "a released lock is lost";
    is_found_by_aim(mutant, "that was released is lost", aims::a_runtime_ends_after_a_release);
}

#[test]
fn claims_linger_without_a_queue() {
    let mutant = "claims linger without a queue";
    is_found_by_aim(mutant, "starves", aims::a_waiter_on_a_store_without_a_queue);
}

#[test]
fn a_claim_of_others_counts_as_asked_for() {
    let mutant = "a claim of others counts as asked for";
    is_found_by_aim(mutant, "as if it had asked", aims::a_claim_of_a_reader_that_left);
}

#[test]
fn what_is_kept_is_not_taken_over() {
    let mutant = "what is kept is not taken over";
    is_found_by_aim(mutant, "while the lock was held", aims::an_owner_returns_to_what_is_kept);
}

#[test]
fn a_refusal_counts_for_every_share() {
    let mutant = "a refusal counts for every share";
    is_found_by_aim(mutant, "only readers hold it", aims::a_read_behind_a_refused_writer);
}

#[test]
fn an_upgrade_is_refused_because_of_its_own_claim() {
    let mutant = "an upgrade is refused because of its own claim";
    is_found_by_aim(mutant, "was refused an upgrade", aims::an_upgrade_without_a_timely_answer);
}

/// The number of seeds of a program that aims at one promise.
const AIMED_SEEDS: u64 = 200;
