//! The one list of laws, for the tests that [`suite!`](crate::suite) makes and for [`laws`].

use crate::law::{Law, Outcome};
use crate::subject::Subject;

/// Returns all laws, in the order in which a new backend should be made to keep them.
pub fn laws() -> &'static [Law] {
    LAWS
}

/// Checks the law of this name in a runtime of its own, as a test.
///
/// A law that the profile opts out of passes, and a line on stderr says which and why.
///
/// # Panics
/// If the backend breaks the law, or no law has this name.
#[track_caller]
pub fn prove(name: &str, subject: &dyn Subject) {
    let Some(law) = LAWS.iter().find(|law| law.name == name) else {
        panic!("unknown law {name:?}: leasehold_conformance::laws() lists the known ones");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime for {name}: {error}"),
    };
    match runtime.block_on(law.check(subject)) {
        Outcome::Kept => {}
        Outcome::OptedOut(reason) => report(&format!("LEASEHOLD-OPTED-OUT {} {reason}\n", test_name(name))),
        Outcome::Absent => report(&format!("LEASEHOLD-ABSENT {} nothing to connect to\n", test_name(name))),
        Outcome::Broken(why) => panic!("{name} is broken: {why}\n{name} says: {}", law.says),
    }
}

/// Returns the path of the running test, which libtest gives to its thread.
fn test_name(law: &str) -> String {
    std::thread::current().name().unwrap_or(law).to_owned()
}

/// Writes past libtest's capture, which hides what a passing test prints. A closed stderr is not a reason
/// to fail.
fn report(line: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

/// Enough that tasks really run at once, few enough for a small machine that runs several tests together.
const WORKERS: usize = 4;

const LAWS: &[Law] = crate::__each_law!(__list_laws;);

/// Makes one test of each law, named after it, for a subject: `suite!(expression)`.
///
/// The expression is evaluated once for each test, in the module that calls the macro. Put suites of several
/// subjects into modules of their own.
#[macro_export]
macro_rules! suite {
    ($subject:expr) => {
        fn conformance_subject() -> impl $crate::Subject {
            $subject
        }
        $crate::__each_law!(__test_laws;);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __test_laws {
    ($($group:ident { $($case:ident: $says:literal,)* })*) => {
        $(mod $group {
            $(#[doc = $says]
            #[test]
            fn $case() {
                let name = concat!(stringify!($group), "::", stringify!($case));
                $crate::prove(name, &super::conformance_subject());
            })*
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __list_laws {
    ($($group:ident { $($case:ident: $says:literal,)* })*) => {
        &[$($(Law {
            name: concat!(stringify!($group), "::", stringify!($case)),
            says: $says,
            check: |trial| Box::pin($crate::laws::$group::$case(trial)),
        },)*)*]
    };
}

/// Hands the list to another macro of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! __each_law {
    ($then:ident;) => {
        $crate::$then! {
            profile {
                promises_are_the_same_on_every_connection: "all connections to one store promise the same",
                free_resource_is_granted_at_once: "a claim that fits does not wait",
                shares_beyond_the_profile_are_refused: "a share beyond the profile fails as Unsupported, without effect",
                a_ttl_beyond_the_profile_is_refused: "a ttl that cannot be kept is refused, not cut",
                fences_exist_exactly_if_the_profile_says_so: "a grade above none means a fence with every grant",
                note_is_shown_up_to_its_promised_length: "note_max bytes of a holder's note are shown as they are",
                polling_backend_answers_at_once_with_a_retry_delay: "Polls: contend never blocks, and says when to ask again",
                notifying_backend_blocks_until_something_changes: "Notifies and Blocks: contend stays until something changes",
                a_session_needs_no_renewal: "Session: a claim outlives its ttl while the session lives",
                a_lease_lasts_for_its_ttl: "Lease: a claim ends with its ttl, not earlier and not later",
            }
            safety {
                each_pair_of_shares_is_decided_by_the_rule: "weights together within the smallest capacity, or not",
                a_capacity_fills_up_exactly: "as many as fit hold together, and not one more",
                one_holder_among_many_takers: "of 32 takers of the whole, one is inside",
                writers_of_different_shares_exclude_each_other: "a mutex, a writer and all permits exclude each other",
                permits_of_several_weights: "32 takers of one, two and three permits of three never hold four",
                readers_and_writers: "readers together or one writer, never both",
                the_smallest_capacity_counts: "of different capacities the smallest bounds all",
            }
            at_once {
                a_decision_at_once_counts_like_any_other: "a grant at once counts, and a refusal leaves nothing",
                no_decision_at_once_passes_the_queue: "Fifo: a claim that is decided at once passes none that waits",
            }
            direct {
                a_direct_request_counts_like_any_other: "a direct request grants or leaves nothing",
                what_is_left_of_a_dropped_answer_can_be_released: "a release ends a request whose answer was dropped",
                a_direct_release_needs_no_caller_that_waits_for_it: "a direct release is sent when it is called for",
                no_direct_request_passes_the_queue: "Fifo: a direct request passes no claim that waits",
            }
            idempotence {
                repeated_contend_returns_the_same_grant: "contending again after the grant answers the same grant",
                a_repeated_claim_takes_its_weight_once: "a claim that asks again takes no second share",
                second_release_answers_gone: "a release answers Freed once and Gone from then on",
                a_second_renewal_answers_the_same: "renewing again changes nothing but the end of the lease",
                a_waiting_claim_keeps_one_place: "a claim that waits is queued once",
                a_repeated_wait_keeps_its_place: "a claim that asks again while it waits keeps its place",
            }
            adoption {
                another_client_adopts_a_claim: "where it adopts: another client holds on, under the same fence",
                claim_that_is_not_adopted_ends_with_its_lease: "where it adopts: a claim that its client forgoes ends with its lease",
            }
            renewal {
                a_released_claim_is_not_renewed: "a renewal after the release answers Lost and brings nothing back",
                an_expired_claim_is_not_renewed: "a renewal after the end of the lease answers Lost",
                renewal_does_not_grant_a_waiting_claim: "a renewal grants nothing",
                a_renewal_extends_the_lease: "a lease renewed in time continues",
                a_renewed_lease_ends_with_its_ttl: "a lease ends with its ttl after the last renewal",
                a_renewal_never_shortens_the_lease: "a renewal with a shorter ttl leaves the longer one",
            }
            residue {
                contend_without_patience_leaves_no_place: "contend with ended patience leaves nothing behind",
                an_ended_wait_leaves_no_place: "a wait gives up its place before it returns",
                a_released_wait_leaves_no_place: "the release of a waiting claim takes it out of the queue",
                two_hundred_cancelled_waits_leave_nothing: "waits that end at random moments leave nothing",
                waits_cancelled_while_they_are_granted_leave_nothing: "nor do waits that end as their turn comes",
                resources_without_claims_are_not_listed: "a resource without claims is not listed",
            }
            patience {
                ended_patience_means_one_attempt: "without patience contend looks once and answers",
                wait_returns_when_patience_ends: "a wait ends with its patience, within a second",
                fifty_waits_return_together: "so do fifty waits whose patience ends at once",
                a_grant_in_time_is_reported: "a grant says when it was asked for, and is one",
            }
            order {
                fences_rise_over_two_hundred_grants: "a grant's fence is above all before, over all clients",
                fences_rise_among_holders_together: "also among claims that hold together",
                a_fence_survives_the_end_of_a_lease: "also after a holder that never released",
                queue_of_ten_is_granted_in_order: "Fifo: first come, first served, over all connections",
                readers_do_not_pass_a_waiting_writer: "Fifo: a reader that comes later waits behind the writer",
                small_claims_do_not_pass_a_large_one: "Fifo: one permit does not pass a claim for three",
                hint_counts_the_claims_ahead: "the number ahead counts the holders and the waiters ahead",
            }
            own_only {
                unknown_id_ends_and_renews_nothing: "an unknown id answers Gone and Lost, and changes nothing",
                a_claim_is_nothing_on_another_resource: "an id counts only on the resource that it claimed",
                late_release_does_not_end_the_successor: "a release that comes again does not end the next holder",
                expired_holder_does_not_end_the_successor: "nor does the release of one whose lease ran out",
                a_waiting_claim_does_not_free_the_holder: "the end of a wait changes nothing for others",
                release_of_one_holder_keeps_the_others: "one of several holders leaves, the others stay",
            }
            wake {
                a_release_wakes_a_waiter: "a release reaches a waiter, far sooner than a poll would",
                no_release_is_lost_between_check_and_wait: "also one that comes just before the wait begins",
                three_readers_wake_when_a_writer_leaves: "all waiters that fit are woken, not the first alone",
                leaving_waiter_wakes_the_waiters_behind_it: "Fifo: a waiter that leaves the queue makes way",
                release_wakes_the_next_waiter_if_the_first_left: "a release reaches the next waiter that is left",
                leaving_waiter_passes_its_wake_up_on: "also when the first leaves at that very moment",
                the_end_of_a_lease_wakes_a_waiter: "Lease: a silent holder blocks nobody beyond its ttl",
                abandoned_place_does_not_block_the_queue: "Polls: nor a silent place in the queue",
            }
            view {
                holders_and_queue_are_shown_as_they_are: "ids, shares, fences, notes and the queue are visible",
                change_wakes_a_watcher: "a watcher of this version is answered at the next change",
                watcher_of_an_old_version_is_answered_at_once: "a watcher of an older version does not wait",
                watcher_returns_when_patience_ends: "a watcher is not kept longer",
                end_of_a_lease_wakes_a_watcher: "Lease: also when the change is that a lease ran out",
                adoption_wakes_a_watcher: "where it adopts: also when the change is that another client holds on",
                listings_come_in_pages: "listings are sorted, begin behind a name, and end at a limit",
                names_never_collide: "names that differ in one byte are two resources",
            }
            processes {
                processes_take_turns: "one process sees what another holds, and fences rise over all of them",
                one_holder_among_processes: "of the takers of several processes, one is inside",
                a_release_wakes_another_process: "a release in one process reaches a waiter in another",
                a_killed_holder_is_succeeded: "a killed holder frees at once (Session) or after its time",
                killed_waiter_does_not_block_the_queue: "a waiter killed in the middle of the queue delays nobody",
                killed_waiter_does_not_block_free_capacity: "SharedExclusive: nor one that wanted more than there is",
                killed_waiters_are_passed_over_together: "Fifo: nor do many that are killed together, longer than one",
                kill_at_any_instant_leaves_no_damage: "a process killed at any instant leaves nothing damaged",
                a_stopped_holder_loses_its_lease: "Lease, Heartbeat: a holder stopped past its time learns that it has lost",
                a_stopped_holder_keeps_its_session: "Session: a holder that is only stopped keeps its claim",
            }
            batch {
                three_hundred_mixed_claims_answer_in_order: "each claim of a batch gets its own answer, in order",
                concurrent_requests_of_tasks_get_their_own_answers: "tasks that come together get each its own answer",
                claims_of_one_resource_share_a_batch: "also those of one resource, and one that comes twice",
                an_empty_batch_has_no_answers: "no claims, no answers",
            }
            registers {
                promises_are_the_same_on_every_connection: "all connections promise the same of their registers",
                value_is_kept_until_it_is_removed: "what was written is what everybody reads",
                a_stale_stamp_never_writes: "a write on a state that has passed is refused",
                no_two_writes_have_one_stamp: "also a value that is removed and written again is another state",
                removal_leaves_a_state_of_its_own: "where it is promised: a removal brings back no state before",
                every_value_reads_back_byte_for_byte: "also an empty one, and one as long as may be",
                a_value_that_is_too_long_is_refused: "longer ones fail as Invalid, without effect",
                registers_of_different_names_are_different: "names that differ in one byte are two registers",
                lock_and_register_of_one_name_are_independent: "neither changes, shows or ends the other",
                no_addition_is_lost: "no concurrent addition is lost, and no read goes back",
                successful_writes_form_one_chain: "each write that succeeds follows the one that it saw",
                of_many_writes_on_one_state_one_succeeds: "one state is left once",
                values_are_never_read_by_half: "of two long values no reader sees a mixture",
                register_change_wakes_its_waiters: "a change, also a removal, reaches its waiters",
                no_change_is_lost_between_check_and_wait: "also one that comes just before the wait begins",
                waiter_with_an_old_state_is_answered_at_once: "a waiter with an older state does not wait",
                register_wait_returns_when_patience_ends: "and gets the state that is still current",
                a_value_is_forgotten_in_time_and_not_earlier: "or Unsupported where the store forgets nothing",
                reported_remaining_time_never_exceeds_the_real_one: "also of a value that is written again with what is left",
                end_of_a_value_wakes_its_waiters: "a waiter learns that a value was forgotten",
            }
        }
    };
}
