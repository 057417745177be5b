//! The suite on models with one fault each: every law notices a fault that it was made for.

#[allow(clippy::unwrap_used, unreachable_pub, reason = "the model is part of the test")]
mod model;

use leasehold_conformance::{Outcome, laws, taker};
use leasehold_core::{Profile, Waiting};
use model::{Defect, Models, polling, remote::Remote, session, strong, weak};

#[allow(clippy::expect_used, reason = "a step of tests")]
/// The laws must notice the fault in a model that promises as the profile says.
fn notice(defect: Defect, profile: fn() -> Profile, broken: &[&str]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let runtime = runtime.expect("a runtime");
    for name in broken {
        let law = laws().iter().find(|law| law.name == *name).unwrap_or_else(|| panic!("no law {name}"));
        let models = match profile().waiting {
            Waiting::Polls => Models::served(profile(), Some(defect)),
            _ => Models::new(profile(), Some(defect)),
        };
        let began = std::time::Instant::now();
        match runtime.block_on(law.check(&models)) {
            Outcome::Broken(why) => println!("{:?}: {name} notices {defect:?}: {why}", began.elapsed()),
            other => panic!("{name} does not notice {defect:?}: {other:?}"),
        }
    }
}

macro_rules! faults {
    ($($test:ident: $defect:ident in $profile:ident breaks $($law:literal),+;)*) => {
        $(#[test]
        fn $test() {
            notice(Defect::$defect, $profile, &[$($law),+]);
        })*

        /// All laws that a fault above must break.
        const NOTICED: &[&str] = &[$($($law),+),*];
    };
}

faults! {
    profiles_differ: ProfilesDiffer in strong breaks "profile::it_is_the_same_on_every_connection";
    first_look_is_busy: FirstLookIsBusy in polling breaks "profile::what_is_free_is_granted_at_once";
    admits_what_it_excludes: AdmitsWhatItExcludes in weak breaks "profile::shares_beyond_it_are_refused";
    forgets_the_fence: ForgetsTheFence in strong breaks "profile::fences_are_there_exactly_if_it_says_so";
    polls_without_hint: PollsWithoutHint in polling breaks "profile::a_poller_answers_at_once_and_says_when";
    polls_in_disguise: PollsInDisguise in strong breaks "profile::a_waiter_is_not_a_poller";
    session_runs_out: SessionRunsOut in session breaks "profile::a_session_needs_no_renewal",
        "crash::a_stopped_holder_keeps_its_session";
    lease_ends_early: LeaseEndsEarly in strong breaks "profile::a_lease_lasts_for_its_ttl",
        "wake::the_end_of_a_lease_wakes_a_waiter";
    lease_never_ends: LeaseNeverEnds in strong breaks "profile::a_lease_lasts_for_its_ttl",
        "finality::an_expired_claim_is_not_renewed";

    admits_one_too_many: AdmitsOneTooMany in strong breaks "safety::each_pair_of_shares_is_decided_by_the_rule",
        "safety::a_capacity_fills_up_exactly", "safety::one_holder_among_many_takers",
        "safety::permits_of_several_weights";
    writer_leaves_room: WriterLeavesRoom in strong breaks "safety::readers_and_writers";
    own_capacity_only: OwnCapacityOnly in strong breaks "safety::the_smallest_capacity_counts";
    forgets_other_capacities: ForgetsOtherCapacities in strong breaks
        "safety::writers_of_different_shares_exclude_each_other";

    second_ask_is_second_claim: SecondAskIsSecondClaim in strong breaks "idempotence::a_granted_claim_asks_again",
        "idempotence::a_repeated_claim_takes_its_weight_once";
    releases_for_ever: ReleasesForEver in strong breaks "idempotence::a_second_release_finds_it_gone";
    renewal_replaces_fence: RenewalReplacesFence in strong breaks "idempotence::a_second_renewal_answers_the_same";
    every_look_takes_a_place: EveryLookTakesAPlace in polling breaks "idempotence::a_waiting_claim_keeps_one_place";
    repeat_goes_last: RepeatGoesLast in polling breaks "idempotence::a_repeated_wait_keeps_its_place";

    renewal_resurrects: RenewalResurrects in strong breaks "finality::a_released_claim_is_not_renewed",
        "finality::an_expired_claim_is_not_renewed";
    renewal_grants: RenewalGrants in strong breaks "finality::a_waiting_claim_is_not_made_a_holder";
    renewal_does_nothing: RenewalDoesNothing in strong breaks "finality::a_renewal_extends_the_lease";
    renewal_shortens: RenewalShortens in strong breaks "finality::a_renewal_never_shortens_the_lease";

    busy_leaves_a_place: BusyLeavesAPlace in strong breaks "residue::a_look_leaves_no_place",
        "residue::an_ended_wait_leaves_no_place", "residue::two_hundred_cancelled_waits_leave_nothing";
    release_ignores_waiting: ReleaseIgnoresWaiting in polling breaks "residue::a_released_wait_leaves_no_place";
    grant_is_dropped_at_the_end: GrantIsDroppedAtTheEnd in polling breaks
        "residue::waits_cancelled_while_they_are_granted_leave_nothing";
    lists_what_is_idle: ListsWhatIsIdle in strong breaks "residue::resources_without_claims_are_not_listed";

    blocks_beyond_patience: BlocksBeyondPatience in strong breaks "honesty::ended_patience_means_one_look",
        "honesty::a_wait_comes_back_when_patience_ends", "honesty::fifty_waits_come_back_together";
    asked_at_the_answer: AskedAtTheAnswer in strong breaks "honesty::a_grant_in_time_is_reported";
    cuts_the_ttl: CutsTheTtl in strong breaks "honesty::a_ttl_beyond_the_profile_is_refused";

    fence_repeats: FenceRepeats in strong breaks "order::fences_rise_over_two_hundred_grants",
        "order::fences_rise_among_holders_together";
    fence_begins_again: FenceBeginsAgain in strong breaks "order::a_fence_survives_the_end_of_a_lease",
        "order::fences_rise_over_two_hundred_grants";
    fence_begins_again_after_a_kill: FenceBeginsAgain in session breaks "crash::a_kill_at_any_instant_leaves_order";
    last_comes_first: LastComesFirst in strong breaks "order::a_line_of_ten_is_granted_in_order";
    passes_the_line: PassesTheLine in strong breaks "order::readers_do_not_pass_a_waiting_writer",
        "order::small_claims_do_not_pass_a_large_one";
    counts_only_holders: CountsOnlyHolders in strong breaks "order::the_hint_counts_those_ahead";

    releases_any_claim: ReleasesAnyClaim in strong breaks "own_only::a_stranger_ends_and_renews_nothing",
        "own_only::a_late_release_spares_the_successor", "own_only::an_expired_holder_spares_the_successor";
    releases_any_claim_after_a_stop: ReleasesAnyClaim in polling breaks "crash::a_stopped_holder_loses_its_lease";
    releases_on_any_resource: ReleasesOnAnyResource in strong breaks
        "own_only::a_claim_is_nothing_on_another_resource";
    waiter_ends_the_holder: WaiterEndsTheHolder in polling breaks "own_only::a_waiting_claim_does_not_free_the_holder";
    release_ends_all: ReleaseEndsAll in strong breaks "own_only::one_of_several_holders_leaves_alone";

    never_wakes: NeverWakes in strong breaks "wake::a_release_wakes_a_waiter";
    looks_before_it_listens: LooksBeforeItListens in strong breaks "wake::no_release_is_lost_between_look_and_wait";
    wakes_one_only: WakesOneOnly in strong breaks "wake::three_readers_wake_when_a_writer_leaves";
    leaves_in_silence: LeavesInSilence in strong breaks "wake::a_waiter_that_leaves_wakes_those_behind_it",
        "wake::a_wake_up_is_passed_on_by_one_that_leaves";
    wakes_who_came_first: WakesWhoCameFirst in strong breaks "wake::a_release_finds_the_next_when_the_first_left";
    never_looks_again: NeverLooksAgain in strong breaks "wake::the_end_of_a_lease_wakes_a_waiter";
    place_is_for_ever: PlaceIsForEver in polling breaks
        "wake::a_place_that_is_never_asked_for_again_blocks_nobody", "crash::a_killed_waiter_blocks_nobody";

    hides_the_note: HidesTheNote in strong breaks "view::holders_and_line_are_shown_as_they_are";
    onlookers_sleep: OnlookersSleep in strong breaks "view::a_change_wakes_an_onlooker";
    onlookers_ignore_the_past: OnlookersIgnoreThePast in strong breaks
        "view::an_onlooker_of_the_past_is_answered_at_once";
    onlookers_stay: OnlookersStay in strong breaks "view::an_onlooker_comes_back_when_patience_ends";
    onlookers_miss_the_end: OnlookersMissTheEnd in strong breaks "view::the_end_of_a_lease_wakes_an_onlooker";
    pages_begin_again: PagesBeginAgain in strong breaks "view::listings_come_in_pages";
    folds_names: FoldsNames in strong breaks "view::names_never_collide";
    cuts_names: CutsNames in strong breaks "view::names_never_collide";

    answers_backwards: AnswersBackwards in strong breaks "batch::three_hundred_mixed_claims_answer_in_order";
    decides_before_it_acts: DecidesBeforeItActs in strong breaks "batch::claims_of_one_resource_share_a_batch";
    answers_nothing_with_something: AnswersNothingWithSomething in strong breaks
        "batch::an_empty_batch_has_no_answers";

    fences_per_process: FencesPerProcess in polling breaks "crash::processes_take_turns";
    double_grants_across_processes: DoubleGrantsAcrossProcesses in polling breaks
        "crash::one_holder_among_processes", "crash::processes_take_turns";
    release_is_delayed: ReleaseIsDelayed in polling breaks "crash::a_release_wakes_another_process";
    death_goes_unnoticed: DeathGoesUnnoticed in session breaks "crash::a_killed_holder_is_succeeded",
        "crash::a_killed_waiter_blocks_nobody";
}

#[test]
fn no_law_is_without_a_fault_that_breaks_it() {
    let idle: Vec<&str> = laws().iter().map(|law| law.name).filter(|law| !NOTICED.contains(law)).collect();
    assert!(idle.is_empty(), "nothing shows that these laws notice anything: {idle:?}");
}

/// The other process of the laws about crashes.
#[test]
fn taker() {
    taker::serve_if_asked(async |place| Remote::open(place));
}
