//! Driver, agent and toy ranks as real processes, killed at any moment.
//!
//! This program is all of them: without a known first argument it runs the tests below whose names contain
//! one of its arguments.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test says how it went")]

mod blame;
mod claims;
mod control;
mod far;
mod faults;
mod fleet;
mod foreign;
mod hosts;
mod launches;
mod lost;
mod rare;
mod regrouping;
mod relays;
mod toy;
mod undisturbed;
mod unseen;
mod world;

use control::{
    a_second_controller_is_refused, a_stopped_trial_resumes, nothing_runs_is_said_of_what_does_not_run,
    stop_reaches_a_trial_of_another_process, the_second_interrupt_kills,
    training_goes_on_without_a_controller,
};
use dtrain_protocol::TrialId;
use dtrain_runner::relay_server;
use dtrain_runner::{DriveError, Home, TrialEvent, agent, channel, driver, probe};
use faults::{
    a_damaged_checkpoint_is_refused_by_name, a_damaged_record_is_skipped_and_told, a_frozen_rank_is_replaced,
    a_killed_agent_is_replaced, a_killed_rank_is_relaunched, a_rank_that_talks_nonsense_is_replaced,
    a_spool_that_cannot_be_read_further_is_told_once, out_of_memory_and_divergence_are_verdicts,
    what_cannot_be_started_is_tried_again, whatever_is_killed,
};
use foreign::{
    a_failed_foreign_command_is_recorded_with_its_last_words, a_foreign_command_is_run_once_for_each_rank,
    foreign_ranks_of_hosts_meet_at_the_first, foreign_ranks_run_in_the_folder_that_their_hosts_received,
    what_a_foreign_command_started_ends,
};
use hosts::{
    a_checkpoint_on_a_host_that_is_away_is_waited_for, a_controller_that_is_cut_off_waits,
    a_host_that_freezes_is_lost, a_host_that_gives_notice_leaves_and_the_others_continue,
    a_host_that_is_asked_to_end_leaves_and_the_others_continue, a_host_that_is_lost_is_started_again,
    a_host_that_was_just_lost_is_not_waited_for, a_host_without_ranks_lends_what_it_has,
    a_machine_alone_that_gives_notice_saves_and_stops, a_removed_trial_leaves_its_hosts,
    checkpoints_outlive_a_host, hosts_that_share_a_folder_save_there_once, hosts_train_what_one_machine_does,
};
use rare::{
    a_controller_that_slept_goes_on, a_history_without_room_stops_nobody_else, a_launch_needs_enough_files,
    a_rank_killed_for_memory_ends_the_trial, a_rank_that_hangs_is_replaced, of_many_controllers_one_drives,
};
use regrouping::{
    a_drained_host_leaves_and_takes_part_again_when_the_drain_is_lifted,
    a_host_that_is_back_takes_part_again_after_a_checkpoint,
    a_spare_stands_by_and_takes_the_place_of_a_host_that_is_lost,
    no_attempt_is_launched_on_fewer_hosts_than_the_recipe_asks_for,
};
use std::fs::File;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use undisturbed::{
    a_trial_completes_and_everything_seen_was_kept, only_the_newest_checkpoints_are_kept, ranks_meet_over_tls,
};
use world::{World, programs};

/// Exit code of a controller whose trial another one drives, or drove.
const TAKEN: u8 = 17;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["agent", .., channel] => agent::run(take(channel)),
        ["worker", .., channel] => toy::run(take(channel)),
        ["relay", host, idle] => far_end(Path::new(host), idle, None),
        ["relay", host, idle, shared] => far_end(Path::new(host), idle, Some(Path::new(shared))),
        ["fleet", root, trial, hosts, steps] => fleet::controller(Path::new(root), trial, hosts, steps),
        ["crew", hosts, attempt, from, until] => fleet::crew([hosts, attempt, from, until]),
        ["controller", verb, root, trial] => controller(verb, Path::new(root), trial),
        filters => run_tests(filters),
    }
}

/// Opens the pipe whose number is the last argument of an agent or a rank.
fn take(number: &str) -> File {
    channel::open_inherited(number.parse().expect("a number")).expect("the parent process made it")
}

/// Runs a remote host of a controller that may be silent for `idle` milliseconds; checkpoints of its trials are in
/// `shared`.
fn far_end(host: &Path, idle: &str, shared: Option<&Path>) -> ExitCode {
    let (home, shared) = (Home::at(host), shared.map(Home::at));
    let idle = Duration::from_millis(idle.parse().expect("a number"));
    let facts = || probe::host_facts(Vec::new());
    match relay_server::serve(&home, shared.as_ref(), &programs(host), idle, facts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => panic!("{error}"),
    }
}

fn run_tests(filters: &[&str]) -> ExitCode {
    let tests: &[(&str, fn())] = &[
        ("a_trial_completes_and_everything_seen_was_kept", a_trial_completes_and_everything_seen_was_kept),
        ("a_killed_rank_is_relaunched_from_the_newest_checkpoint", a_killed_rank_is_relaunched),
        ("a_frozen_rank_is_replaced", a_frozen_rank_is_replaced),
        ("a_killed_agent_takes_its_ranks_along_and_is_replaced", a_killed_agent_is_replaced),
        ("whatever_is_killed_and_when_the_final_state_is_the_same", whatever_is_killed),
        ("training_goes_on_without_a_controller", training_goes_on_without_a_controller),
        ("a_stopped_trial_saves_and_resumes_to_the_same_state", a_stopped_trial_resumes),
        ("the_second_interrupt_kills", the_second_interrupt_kills),
        ("stop_reaches_a_trial_of_another_process", stop_reaches_a_trial_of_another_process),
        ("a_damaged_checkpoint_is_refused_by_name", a_damaged_checkpoint_is_refused_by_name),
        ("out_of_memory_and_divergence_are_verdicts", out_of_memory_and_divergence_are_verdicts),
        ("a_rank_that_talks_nonsense_is_replaced", a_rank_that_talks_nonsense_is_replaced),
        ("a_damaged_record_is_skipped_and_told", a_damaged_record_is_skipped_and_told),
        (
            "a_spool_that_cannot_be_read_further_is_told_once",
            a_spool_that_cannot_be_read_further_is_told_once,
        ),
        ("what_cannot_be_started_is_tried_again_until_the_user_stops", what_cannot_be_started_is_tried_again),
        ("a_second_controller_is_refused", a_second_controller_is_refused),
        (
            "a_host_that_is_back_takes_part_again_after_a_checkpoint",
            a_host_that_is_back_takes_part_again_after_a_checkpoint,
        ),
        (
            "a_drained_host_leaves_and_takes_part_again_when_the_drain_is_lifted",
            a_drained_host_leaves_and_takes_part_again_when_the_drain_is_lifted,
        ),
        (
            "a_spare_stands_by_and_takes_the_place_of_a_host_that_is_lost",
            a_spare_stands_by_and_takes_the_place_of_a_host_that_is_lost,
        ),
        (
            "no_attempt_is_launched_on_fewer_hosts_than_the_recipe_asks_for",
            no_attempt_is_launched_on_fewer_hosts_than_the_recipe_asks_for,
        ),
        ("only_the_newest_checkpoints_are_kept", only_the_newest_checkpoints_are_kept),
        ("ranks_meet_over_tls", ranks_meet_over_tls),
        ("a_foreign_command_is_run_once_for_each_rank", a_foreign_command_is_run_once_for_each_rank),
        ("what_a_foreign_command_started_ends_with_its_agent", what_a_foreign_command_started_ends),
        (
            "a_failed_foreign_command_is_recorded_with_its_last_words",
            a_failed_foreign_command_is_recorded_with_its_last_words,
        ),
        ("foreign_ranks_of_hosts_meet_at_the_first", foreign_ranks_of_hosts_meet_at_the_first),
        (
            "foreign_ranks_run_in_the_folder_that_their_hosts_received",
            foreign_ranks_run_in_the_folder_that_their_hosts_received,
        ),
        ("hosts_train_what_one_machine_does", hosts_train_what_one_machine_does),
        ("a_host_that_is_lost_is_started_again", a_host_that_is_lost_is_started_again),
        (
            "a_host_that_is_lost_twice_is_left_out_and_named",
            blame::a_host_that_is_lost_twice_is_left_out_and_named,
        ),
        (
            "a_host_that_is_asked_to_end_leaves_and_the_others_continue",
            a_host_that_is_asked_to_end_leaves_and_the_others_continue,
        ),
        (
            "a_host_that_gives_notice_leaves_and_the_others_continue",
            a_host_that_gives_notice_leaves_and_the_others_continue,
        ),
        (
            "a_machine_alone_that_gives_notice_saves_and_stops",
            a_machine_alone_that_gives_notice_saves_and_stops,
        ),
        ("a_host_that_freezes_is_lost", a_host_that_freezes_is_lost),
        ("a_host_that_was_just_lost_is_not_waited_for", a_host_that_was_just_lost_is_not_waited_for),
        ("a_host_without_ranks_lends_what_it_has", a_host_without_ranks_lends_what_it_has),
        (
            "a_checkpoint_on_a_host_that_is_away_is_waited_for",
            a_checkpoint_on_a_host_that_is_away_is_waited_for,
        ),
        ("a_controller_that_is_cut_off_waits", a_controller_that_is_cut_off_waits),
        ("hosts_that_share_a_folder_save_there_once", hosts_that_share_a_folder_save_there_once),
        ("checkpoints_outlive_a_host", checkpoints_outlive_a_host),
        ("a_removed_trial_leaves_its_hosts", a_removed_trial_leaves_its_hosts),
        ("a_rank_that_hangs_is_replaced", a_rank_that_hangs_is_replaced),
        ("a_rank_killed_for_memory_ends_the_trial", a_rank_killed_for_memory_ends_the_trial),
        ("a_controller_that_slept_goes_on", a_controller_that_slept_goes_on),
        ("of_many_controllers_one_drives", of_many_controllers_one_drives),
        ("a_history_without_room_stops_nobody_else", a_history_without_room_stops_nobody_else),
        ("a_launch_needs_enough_files", a_launch_needs_enough_files),
        ("a_controller_of_many_hosts_keeps_up", fleet::a_controller_of_many_hosts_keeps_up),
        (
            "the_only_host_of_an_attempt_that_is_asked_to_end_is_replaced",
            lost::the_only_host_of_an_attempt_that_is_asked_to_end_is_replaced,
        ),
        (
            "a_host_that_is_lost_during_the_first_launch_is_given_up",
            lost::a_host_that_is_lost_during_the_first_launch_is_given_up,
        ),
        (
            "the_only_host_of_an_attempt_is_given_up_and_ends_it_when_it_is_back",
            lost::the_only_host_of_an_attempt_is_given_up_and_ends_it_when_it_is_back,
        ),
        (
            "a_fenced_host_is_given_up_at_once_and_not_used_again",
            lost::a_fenced_host_is_given_up_at_once_and_not_used_again,
        ),
        (
            "a_trial_that_ends_leaves_no_attempt_that_was_given_up_without_a_word",
            lost::a_trial_that_ends_leaves_no_attempt_that_was_given_up_without_a_word,
        ),
        (
            "an_interrupt_ends_a_launch_whose_answer_does_not_come",
            lost::an_interrupt_ends_a_launch_whose_answer_does_not_come,
        ),
        ("a_launch_whose_answer_is_lost_is_found_out", launches::a_launch_whose_answer_is_lost_is_found_out),
        (
            "a_launch_that_comes_after_its_attempt_was_told_to_be_gone_is_refused",
            launches::a_launch_that_comes_after_its_attempt_was_told_to_be_gone_is_refused,
        ),
        (
            "what_a_lost_leader_committed_is_found_on_the_others",
            unseen::what_a_lost_leader_committed_is_found_on_the_others,
        ),
        (
            "how_a_trial_ended_outlives_the_host_that_led",
            unseen::how_a_trial_ended_outlives_the_host_that_led,
        ),
        (
            "how_a_trial_ended_outlives_the_disk_of_the_host_that_led",
            unseen::how_a_trial_ended_outlives_the_disk_of_the_host_that_led,
        ),
        (
            "what_ended_unseen_is_read_however_long_it_takes",
            unseen::what_ended_unseen_is_read_however_long_it_takes,
        ),
        (
            "what_ended_on_a_host_that_is_away_is_not_taken_for_lost",
            unseen::what_ended_on_a_host_that_is_away_is_not_taken_for_lost,
        ),
        (
            "of_two_controllers_with_copies_of_a_history_the_first_one_ends",
            claims::of_two_controllers_with_copies_of_a_history_the_first_one_ends,
        ),
        (
            "a_loss_after_another_controller_took_over_is_recorded_by_that_one_alone",
            claims::a_loss_after_another_controller_took_over_is_recorded_by_that_one_alone,
        ),
        ("a_relay_ends_when_its_controller_is_silent", relays::a_relay_ends_when_its_controller_is_silent),
        (
            "an_agent_outlives_the_relay_of_a_silent_controller",
            relays::an_agent_outlives_the_relay_of_a_silent_controller,
        ),
        ("a_relay_reaps_what_it_started", relays::a_relay_reaps_what_it_started),
        ("nothing_runs_is_said_of_what_does_not_run", nothing_runs_is_said_of_what_does_not_run),
    ];
    let options: Vec<&str> = filters.iter().copied().filter(|filter| filter.starts_with("--")).collect();
    let names: Vec<&str> = filters.iter().copied().filter(|filter| filter.contains('_')).collect();
    let is_exact = options.contains(&"--exact");
    let is_chosen = |test: &str| {
        names.is_empty()
            || names.iter().any(|name| if is_exact { test == *name } else { test.contains(name) })
    };
    let chosen: Vec<_> = tests.iter().filter(|(name, _)| is_chosen(name)).collect();
    if options.contains(&"--list") {
        // Lists tests like libtest; none of them is ignored.
        let listed = if options.contains(&"--ignored") { &[][..] } else { &chosen };
        listed.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((name, test)) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let started = Instant::now();
                    let ok = catch_unwind(test).is_ok();
                    failed.fetch_add(usize::from(!ok), Ordering::SeqCst);
                    let word = if ok { "ok" } else { "FAILED" };
                    println!("test {name} ... {word} ({:.1?})", started.elapsed());
                }
            });
        }
    });
    let failed = failed.into_inner();
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {} passed; {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a controller that prints every record after it was stored, as a line of JSON.
fn controller(verb: &str, root: &Path, trial: &str) -> ExitCode {
    let world = World::at(root, TrialId(trial.into()));
    let verb = if verb == "start" { driver::start } else { driver::resume };
    let mut say = |seen: &TrialEvent| {
        if let TrialEvent::Record(fact) = seen {
            let line = serde_json::to_string(fact).expect("facts are JSON") + "\n";
            std::io::stdout().write_all(line.as_bytes()).expect("a file");
        }
    };
    match world.drive_and(verb, &mut say) {
        Ok(_) => ExitCode::SUCCESS,
        Err(DriveError::Busy { .. } | DriveError::Launched(_)) => ExitCode::from(TAKEN),
        Err(error) => panic!("{error}"),
    }
}
