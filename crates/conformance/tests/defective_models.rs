//! The suite on models with one fault each: every law notices a fault that it was made for.

#[allow(clippy::unwrap_used, unreachable_pub, reason = "the model is part of the test")]
mod model;

use leasehold_conformance::{Outcome, laws, taker};
use leasehold_core::{Profile, WaitMode};
use model::{Defect, Models, polling, remote::Remote, session, single_permits, strong, weak};

/// One fault in a model that promises as the profile says, and a law that must notice it.
type Case = (Defect, fn() -> Profile, &'static str);

/// Checks that each case is noticed. All cases run at once: they mostly wait for something that does not
/// come.
#[allow(clippy::expect_used, clippy::panic, reason = "a step of tests")]
fn notice(cases: &'static [Case]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let checks: Vec<_> = cases
        .iter()
        .map(|(defect, profile, name)| {
            let law = laws().iter().find(|law| law.name == *name).unwrap_or_else(|| panic!("no law {name}"));
            let models = match profile().waiting {
                WaitMode::Polls => Models::served(profile(), Some(*defect)),
                _ => Models::new(profile(), Some(*defect)),
            };
            runtime.spawn(async move { law.check(&models).await })
        })
        .collect();
    let mut missed = Vec::new();
    for ((defect, _, name), check) in cases.iter().zip(checks) {
        match runtime.block_on(check).expect("a law does not panic") {
            Outcome::Broken(why) => println!("{name} notices {defect:?}: {why}"),
            other => missed.push(format!("{name} does not notice {defect:?}: {other:?}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

macro_rules! faults {
    ($($group:ident { $($defect:ident in $profile:ident breaks $($law:literal),+;)* })*) => {
        $(#[test]
        fn $group() {
            const CASES: &[Case] = &[$($((Defect::$defect, $profile, $law)),+),*];
            notice(CASES);
        })*

        /// All laws that a fault above must break.
        const NOTICED: &[&str] = &[$($($($law),+),*),*];
    };
}

faults! {
    profile {
        ProfilesDiffer in strong breaks "profile::promises_are_the_same_on_every_connection";
        FirstCallIsBusy in polling breaks "profile::free_resource_is_granted_at_once";
        AdmitsWhatItExcludes in weak breaks "profile::shares_beyond_the_profile_are_refused";
        AdmitsWhatItExcludes in single_permits breaks "profile::shares_beyond_the_profile_are_refused";
        CutsTheTtl in strong breaks "profile::a_ttl_beyond_the_profile_is_refused";
        ForgetsTheFence in strong breaks "profile::fences_exist_exactly_if_the_profile_says_so";
        CutsTheNote in strong breaks "profile::note_is_shown_up_to_its_promised_length";
        PollsWithoutHint in polling breaks "profile::polling_backend_answers_at_once_with_a_retry_delay";
        PollsInDisguise in strong breaks "profile::notifying_backend_blocks_until_something_changes";
        SessionRunsOut in session breaks "profile::a_session_needs_no_renewal",
            "processes::a_stopped_holder_keeps_its_session";
        LeaseEndsEarly in strong breaks "profile::a_lease_lasts_for_its_ttl",
            "wake::the_end_of_a_lease_wakes_a_waiter";
        LeaseNeverEnds in strong breaks "profile::a_lease_lasts_for_its_ttl",
            "renewal::an_expired_claim_is_not_renewed", "adoption::claim_that_is_not_adopted_ends_with_its_lease";
    }
    at_once {
        GrantsAtOnceInSecret in strong breaks "at_once::a_decision_at_once_counts_like_any_other";
        DeclinesWithAPlace in strong breaks "at_once::a_decision_at_once_counts_like_any_other";
        PassesTheQueueAtOnce in strong breaks "at_once::no_decision_at_once_passes_the_queue",
            "direct::no_direct_request_passes_the_queue";
    }
    direct {
        GrantsDirectlyInSecret in strong breaks "direct::a_direct_request_counts_like_any_other";
        DirectRequestLeavesAPlace in strong breaks "direct::a_direct_request_counts_like_any_other";
        DirectRequestComesLate in strong breaks "direct::what_is_left_of_a_dropped_answer_can_be_released";
        DirectReleaseFreesNothing in strong breaks "direct::a_direct_request_counts_like_any_other";
        DirectReleaseWaitsForItsCaller in strong breaks
            "direct::a_direct_release_needs_no_caller_that_waits_for_it";
    }
    admission {
        AdmitsOneTooMany in strong breaks "safety::each_pair_of_shares_is_decided_by_the_rule",
            "safety::a_capacity_fills_up_exactly", "safety::one_holder_among_many_takers",
            "safety::permits_of_several_weights";
        AdmitsOneTooMany in single_permits breaks "safety::a_capacity_fills_up_exactly",
            "safety::permits_of_several_weights", "idempotence::a_repeated_claim_takes_its_weight_once";
        WriterLeavesRoom in strong breaks "safety::readers_and_writers";
        OwnCapacityOnly in strong breaks "safety::the_smallest_capacity_counts";
        ForgetsOtherCapacities in strong breaks
            "safety::writers_of_different_shares_exclude_each_other";
    }
    repetition {
        SecondAskIsSecondClaim in strong breaks "idempotence::repeated_contend_returns_the_same_grant",
            "idempotence::a_repeated_claim_takes_its_weight_once",
            "adoption::another_client_adopts_a_claim";
        ReleasesForEver in strong breaks "idempotence::second_release_answers_gone";
        RenewalReplacesFence in strong breaks "idempotence::a_second_renewal_answers_the_same";
        EveryCallTakesAPlace in polling breaks "idempotence::a_waiting_claim_keeps_one_place";
        RepeatGoesLast in polling breaks "idempotence::a_repeated_wait_keeps_its_place";
    }
    renewal {
        RenewalResurrects in strong breaks "renewal::a_released_claim_is_not_renewed",
            "renewal::an_expired_claim_is_not_renewed";
        RenewalGrants in strong breaks "renewal::renewal_does_not_grant_a_waiting_claim";
        RenewalDoesNothing in strong breaks "renewal::a_renewal_extends_the_lease";
        RenewalShortens in strong breaks "renewal::a_renewal_never_shortens_the_lease";
        RenewalLastsTooLong in strong breaks "renewal::a_renewed_lease_ends_with_its_ttl";
        RenewalNeverEnds in strong breaks "renewal::a_renewed_lease_ends_with_its_ttl";
    }
    residue {
        BusyLeavesAPlace in strong breaks "residue::contend_without_patience_leaves_no_place",
            "residue::an_ended_wait_leaves_no_place", "residue::two_hundred_cancelled_waits_leave_nothing";
        ReleaseIgnoresWaiting in polling breaks "residue::a_released_wait_leaves_no_place";
        GrantIsDroppedAtTheEnd in polling breaks
            "residue::waits_cancelled_while_they_are_granted_leave_nothing";
        ListsWhatIsIdle in strong breaks "residue::resources_without_claims_are_not_listed";
    }
    patience {
        BlocksBeyondPatience in strong breaks "patience::ended_patience_means_one_attempt",
            "patience::wait_returns_when_patience_ends", "patience::fifty_waits_return_together";
        AskedAtTheAnswer in strong breaks "patience::a_grant_in_time_is_reported";
    }
    order {
        FenceRepeats in strong breaks "order::fences_rise_over_two_hundred_grants",
            "order::fences_rise_among_holders_together";
        FenceBeginsAgain in strong breaks "order::a_fence_survives_the_end_of_a_lease",
            "order::fences_rise_over_two_hundred_grants";
        FenceBeginsAgain in session breaks "processes::kill_at_any_instant_leaves_no_damage";
        FenceDrawnBeforeTheGrant in strong breaks "safety::one_holder_among_many_takers",
            "safety::writers_of_different_shares_exclude_each_other", "safety::readers_and_writers";
        LastComesFirst in strong breaks "order::queue_of_ten_is_granted_in_order";
        PassesTheQueue in strong breaks "order::readers_do_not_pass_a_waiting_writer",
            "order::small_claims_do_not_pass_a_large_one";
        CountsOnlyHolders in strong breaks "order::hint_counts_the_claims_ahead";
    }
    own_only {
        ReleasesAnyClaim in strong breaks "own_only::unknown_id_ends_and_renews_nothing",
            "own_only::late_release_does_not_end_the_successor", "own_only::expired_holder_does_not_end_the_successor";
        ReleasesAnyClaim in polling breaks "processes::a_stopped_holder_loses_its_lease";
        ReleasesInSilence in strong breaks "own_only::unknown_id_ends_and_renews_nothing",
            "own_only::late_release_does_not_end_the_successor", "own_only::expired_holder_does_not_end_the_successor";
        ReleasesInSilence in polling breaks "processes::a_stopped_holder_loses_its_lease";
        ReleasesOnAnyResource in strong breaks
            "own_only::a_claim_is_nothing_on_another_resource";
        WaiterEndsTheHolder in polling breaks "own_only::a_waiting_claim_does_not_free_the_holder";
        ReleaseEndsAll in strong breaks "own_only::release_of_one_holder_keeps_the_others";
    }
    wake {
        NeverWakes in strong breaks "wake::a_release_wakes_a_waiter";
        ChecksBeforeItSubscribes in strong breaks "wake::no_release_is_lost_between_check_and_wait";
        WakesOneOnly in strong breaks "wake::three_readers_wake_when_a_writer_leaves";
        LeavesInSilence in strong breaks "wake::leaving_waiter_wakes_the_waiters_behind_it",
            "wake::leaving_waiter_passes_its_wake_up_on";
        WakesTheFirstArrival in strong breaks "wake::release_wakes_the_next_waiter_if_the_first_left";
        NeverChecksAgain in strong breaks "wake::the_end_of_a_lease_wakes_a_waiter";
        PlaceIsForEver in polling breaks
            "wake::abandoned_place_does_not_block_the_queue", "processes::killed_waiter_does_not_block_the_queue",
            "processes::killed_waiter_does_not_block_free_capacity",
            "processes::killed_waiters_are_passed_over_together";
    }
    view {
        HidesTheNote in strong breaks "view::holders_and_queue_are_shown_as_they_are";
        WatchersSleep in strong breaks "view::change_wakes_a_watcher";
        WatchersIgnoreThePast in strong breaks
            "view::watcher_of_an_old_version_is_answered_at_once";
        WatchersStay in strong breaks "view::watcher_returns_when_patience_ends";
        WatchersMissTheEnd in strong breaks "view::end_of_a_lease_wakes_a_watcher";
        AdoptionsAreNoChange in strong breaks "view::adoption_wakes_a_watcher";
        PagesBeginAgain in strong breaks "view::listings_come_in_pages";
        FoldsNames in strong breaks "view::names_never_collide";
        CutsNames in strong breaks "view::names_never_collide";
    }
    batch {
        AnswersBackwards in strong breaks "batch::three_hundred_mixed_claims_answer_in_order";
        FenceBeginsAgain in strong breaks "batch::concurrent_requests_of_tasks_get_their_own_answers";
        DecidesBeforeItActs in strong breaks "batch::claims_of_one_resource_share_a_batch";
        AnswersNothingWithSomething in strong breaks
            "batch::an_empty_batch_has_no_answers";
    }
    registers {
        RegistersDiffer in strong breaks "registers::promises_are_the_same_on_every_connection";
        ReportsAnotherStamp in strong breaks "registers::value_is_kept_until_it_is_removed";
        StaleStampsWrite in strong breaks "registers::a_stale_stamp_never_writes",
            "registers::of_many_writes_on_one_state_one_succeeds";
        StampNamesTheValue in strong breaks "registers::no_two_writes_have_one_stamp";
        ReadsText in strong breaks "registers::every_value_reads_back_byte_for_byte";
        TakesAnyLength in polling breaks "registers::a_value_that_is_too_long_is_refused";
        FoldsNames in strong breaks "registers::registers_of_different_names_are_different";
        CutsNames in polling breaks "registers::registers_of_different_names_are_different";
        RegistersAreLocks in strong breaks "registers::lock_and_register_of_one_name_are_independent";
        ChecksBeforeItWrites in polling breaks "registers::successful_writes_form_one_chain",
            "registers::of_many_writes_on_one_state_one_succeeds", "registers::no_addition_is_lost";
        ReadsThePast in strong breaks "registers::no_addition_is_lost",
            "registers::value_is_kept_until_it_is_removed";
        WritesByHalf in strong breaks "registers::values_are_never_read_by_half";
        ChangesInSilence in strong breaks "registers::register_change_wakes_its_waiters";
        ChecksBeforeItSubscribes in strong breaks "registers::no_change_is_lost_between_check_and_wait";
        WaitsForTheNextChange in strong breaks "registers::waiter_with_an_old_state_is_answered_at_once";
        StaysBeyondPatience in strong breaks "registers::register_wait_returns_when_patience_ends";
        StaysBeyondPatience in polling breaks "registers::register_wait_returns_when_patience_ends";
        ForgetsEarly in strong breaks "registers::a_value_is_forgotten_in_time_and_not_earlier";
        NeverForgets in strong breaks "registers::a_value_is_forgotten_in_time_and_not_earlier",
            "registers::end_of_a_value_wakes_its_waiters";
        KeepsInSilence in session breaks "registers::a_value_is_forgotten_in_time_and_not_earlier";
        RoundsUpWhatIsLeft in strong breaks "registers::reported_remaining_time_never_exceeds_the_real_one";
        RemovalsAreAlike in strong breaks "registers::removal_leaves_a_state_of_its_own";
        EndsInSilence in strong breaks "registers::end_of_a_value_wakes_its_waiters";
    }
    processes {
        FencesPerProcess in polling breaks "processes::processes_take_turns";
        DoubleGrantsAcrossProcesses in polling breaks
            "processes::one_holder_among_processes", "processes::processes_take_turns";
        ReleaseIsDelayed in polling breaks "processes::a_release_wakes_another_process";
        DeathGoesUnnoticed in session breaks "processes::a_killed_holder_is_succeeded",
            "processes::killed_waiter_does_not_block_the_queue",
            "processes::killed_waiter_does_not_block_free_capacity";
    }
}

#[test]
fn no_law_is_without_a_fault_that_breaks_it() {
    let idle: Vec<&str> = laws().iter().map(|law| law.name).filter(|law| !NOTICED.contains(law)).collect();
    assert!(idle.is_empty(), "nothing shows that these laws notice anything: {idle:?}");
}

/// Runs the other process of the laws about crashes.
#[test]
fn taker() {
    taker::serve_if_asked(async |place| Remote::open(place));
}
