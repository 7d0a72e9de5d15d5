//! Writer of batches: records, points and the spool offset in one transaction, each stored only once.

use super::lookup::row_of;
use super::point_log::{PointLog, RecordHeader};
use super::relocate::relocated;
use super::state::{State, TrialActivity};
use super::{
    BoxError, Corruption, History, figures, hosts, now_ms, open_points, points, stored, throughput, unstored,
};
use crate::checkpoints::ADOPTED;
use crate::fact::{AttemptEnd, Fact, Ledger, LedgerError, TrialUpdate};
use crate::strikes::Strike;
use dtrain_protocol::{AttemptId, Failure, Rank, StampedEvent, TrialId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::path::Path;

/// Cached records of the trial that was written last, so that they are read only once.
#[derive(Debug)]
pub(super) struct CachedFacts {
    trial: TrialId,
    facts: Vec<Fact>,
}

impl Ledger for History {
    fn record(&mut self, trial: &TrialId, news: &TrialUpdate) -> Result<(), LedgerError> {
        let mut known = self.known.take().filter(|known| known.trial == *trial).unwrap_or_else(|| {
            let (trial, facts) = (trial.clone(), Vec::new());
            CachedFacts { trial, facts }
        });
        self.write("write news to", |transaction| {
            record_update(transaction, row_of(transaction, trial)?, news, &mut known.facts)
        })?;
        self.known = Some(known);
        Ok(())
    }

    fn facts(&self, trial: &TrialId) -> Result<Vec<Fact>, LedgerError> {
        self.read("read facts from", |database| {
            let mut facts = facts(database, row_of(database, trial)?, 0)?;
            for fact in &mut facts {
                if let Fact::CheckpointCommitted { folder, .. } | Fact::CheckpointRefused { folder, .. } =
                    fact
                {
                    *folder = relocated(self.root(), trial, std::mem::take(folder));
                }
            }
            Ok(facts)
        })
    }

    fn trained_ms(&self, trial: &TrialId) -> Result<Vec<(AttemptId, u64)>, LedgerError> {
        let steps = self.curve_by_attempt(trial, "step_seconds")?;
        Ok(steps.into_iter().map(|(attempt, steps)| (attempt, figures::trained_ms(&steps))).collect())
    }

    fn offset(&self, trial: &TrialId, attempt: AttemptId) -> Result<u64, LedgerError> {
        self.read("read an offset from", |database| {
            let trial = row_of(database, trial)?;
            let sealed: Option<i64> = database
                .prepare_cached("SELECT offset FROM spool WHERE trial = ?1 AND attempt = ?2")?
                .query_row(params![trial, stored(attempt.0)], |row| row.get(0))
                .optional()?;
            let log = open_points::read(database, trial)?;
            let open = log.iter().flat_map(PointLog::heads).filter_map(|head| head.offset);
            let open = open.filter(|(of, _)| *of == attempt).map(|(_, offset)| offset).max();
            Ok(sealed.map_or(0, unstored).max(open.unwrap_or(0)))
        })
    }

    fn strikes(&self) -> Result<Vec<Strike>, LedgerError> {
        self.read("read strikes from", hosts::strikes)
    }
}

impl History {
    /// Marks the open attempts of trials without a living agent or controller as lost; returns these trials.
    ///
    /// Call it after the spools of dead agents have been read: a result in there takes precedence over the
    /// loss.
    pub fn mark_lost_attempts(
        &mut self,
        activity: &dyn Fn(&TrialId) -> TrialActivity,
    ) -> Result<Vec<TrialId>, LedgerError> {
        let lost: Vec<_> = self
            .open_attempts()?
            .into_iter()
            .filter(|(trial, _)| activity(trial) == TrialActivity::None)
            .collect();
        for (trial, attempt) in &lost {
            let failure = Failure::Other("its agent is gone and left no record".into());
            let fact = Fact::AttemptEnded { attempt: *attempt, ended: AttemptEnd::Lost(failure) };
            self.record(trial, &TrialUpdate { facts: vec![fact], ..TrialUpdate::default() })?;
        }
        Ok(lost.into_iter().map(|(trial, _)| trial).collect())
    }

    /// Lists all attempts that started on this machine and did not end; imported trials are skipped.
    pub fn open_attempts(&self) -> Result<Vec<(TrialId, AttemptId)>, LedgerError> {
        self.read("read attempts from", |database| {
            let mut select = database.prepare(
                "SELECT trial.uid, attempt.number FROM trial JOIN attempt ON attempt.trial = trial.id
                 WHERE trial.state = 'open' AND attempt.ended IS NULL
                   AND NOT EXISTS (SELECT 1 FROM imported_trial WHERE imported_trial.trial = trial.id) ORDER BY trial.id, attempt.number",
            )?;
            let rows =
                select.query_map([], |row| Ok((TrialId(row.get(0)?), AttemptId(unstored(row.get(1)?)))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Returns the records of a trial after the first `known` ones. `Err` if one is missing: records are numbered
/// without gaps.
fn facts(database: &Connection, trial: i64, known: usize) -> Result<Vec<Fact>, BoxError> {
    let mut select = database
        .prepare_cached("SELECT seq, json FROM record WHERE trial = ?1 AND seq >= ?2 ORDER BY seq")?;
    let mut rows = select.query([trial, stored(known as u64)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(0)? != stored((known + found.len()) as u64) {
            return Err(Corruption("the order of the facts of a trial").into());
        }
        found.push(serde_json::from_str(row.get_ref(1)?.as_str()?)?);
    }
    Ok(found)
}

fn record_update(
    transaction: &Transaction<'_>,
    trial: i64,
    news: &TrialUpdate,
    known: &mut Vec<Fact>,
) -> Result<(), BoxError> {
    if news.events.is_empty() && news.points.is_empty() {
        if let Some((attempt, offset)) = news.offset {
            open_points::store_spool_offset(transaction, trial, attempt, offset)?;
        }
    } else {
        record_points(transaction, trial, news)?;
    }
    if !news.facts.is_empty() {
        // Records are only ever added, so those read before are still valid.
        known.extend(facts(transaction, trial, known.len())?);
        for fact in &news.facts {
            if !is_known(known, fact) {
                add_fact(transaction, trial, known.len(), fact, now_ms())?;
                known.push(fact.clone());
            }
        }
    }
    // A list of trials reads the open points of each, so a trial that is over must not have any.
    if is_over(transaction, trial)? {
        open_points::seal(transaction, trial)?;
    }
    hosts::record_hosts(transaction, &news.hosts)
}

fn is_over(database: &Connection, trial: i64) -> Result<bool, BoxError> {
    let query = "SELECT state NOT IN ('created', 'open') FROM trial WHERE id = ?1";
    Ok(database.prepare_cached(query)?.query_row([trial], |row| row.get(0))?)
}

/// Stores the figures of new events, new points and the spool offset.
fn record_points(transaction: &Transaction<'_>, trial: i64, news: &TrialUpdate) -> Result<(), BoxError> {
    let log = open_points::read(transaction, trial)?;
    let mut heard = LatestRankEvents::of(trial, log.as_ref());
    let mut fresh = Vec::new();
    let is_foreign = figures::runs_foreign_program(transaction, trial)?;
    let mut lowest = figures::LowestRanks::of(trial);
    for stamped in &news.events {
        if heard.is_new(transaction, stamped)? {
            for point in figures::points_of(stamped, is_foreign) {
                if !is_foreign || lowest.should_record(transaction, &point)? {
                    fresh.push(point);
                }
            }
        }
    }
    if !news.points.is_empty() {
        let newest = points::NewestSteps::of(trial, log.as_ref())?;
        for point in &news.points {
            if newest.is_before(transaction, point)? {
                fresh.push(point.clone());
            }
        }
    }
    let head = RecordHeader { offset: news.offset, heard: heard.into_new() };
    if fresh.is_empty() && head == RecordHeader::default() {
        return Ok(());
    }
    points::append(transaction, trial, log, &head, &fresh)
}

/// Newest stored event of each rank. Events of a rank come in order, so its newest event stands for all
/// before it.
struct LatestRankEvents {
    trial: i64,
    newest: BTreeMap<(AttemptId, Rank), (Option<u64>, bool)>,
}

impl LatestRankEvents {
    /// Returns the newest stored events of a trial whose open points are in `log`.
    fn of(trial: i64, log: Option<&PointLog>) -> Self {
        let mut newest = BTreeMap::new();
        for (attempt, rank, sequence) in
            log.into_iter().flat_map(PointLog::heads).flat_map(|head| &head.heard)
        {
            newest.insert((*attempt, *rank), (Some(*sequence), false));
        }
        Self { trial, newest }
    }

    /// Returns `true` if an event is new; remembers the event.
    fn is_new(&mut self, database: &Connection, stamped: &StampedEvent) -> Result<bool, BoxError> {
        let of = (stamped.attempt, stamped.rank);
        let known = match self.newest.get(&of) {
            Some((known, _)) => *known,
            None => sealed_sequence(database, self.trial, of)?,
        };
        let is_new = known.is_none_or(|known| stamped.sequence > known);
        if is_new {
            self.newest.insert(of, (Some(stamped.sequence), true));
        } else {
            self.newest.entry(of).or_insert((known, false));
        }
        Ok(is_new)
    }

    /// Returns the newest event of each rank that had new events: attempt, rank and sequence number.
    fn into_new(self) -> Vec<(AttemptId, Rank, u64)> {
        let fresh = self.newest.into_iter().filter(|(_, (_, is_new))| *is_new);
        fresh.filter_map(|((attempt, rank), (sequence, _))| Some((attempt, rank, sequence?))).collect()
    }
}

fn sealed_sequence(
    database: &Connection,
    trial: i64,
    (attempt, rank): (AttemptId, Rank),
) -> Result<Option<u64>, BoxError> {
    let sequence: Option<i64> = database
        .prepare_cached("SELECT sequence FROM last_event WHERE trial = ?1 AND attempt = ?2 AND rank = ?3")?
        .query_row(params![trial, stored(attempt.0), rank.0], |row| row.get(0))
        .optional()?;
    Ok(sequence.map(unstored))
}

/// Returns `true` if the stored records already contain `fact`.
///
/// An attempt starts once and ends once; only a presumed loss can be replaced by a later finish.
fn is_known(known: &[Fact], fact: &Fact) -> bool {
    match fact {
        Fact::AttemptStarted { attempt, .. } => {
            known.iter().any(|k| matches!(k, Fact::AttemptStarted { attempt: a, .. } if a == attempt))
        }
        Fact::CheckpointCommitted { attempt: ADOPTED, folder, .. } => {
            newest_fact_about(known, folder).is_some_and(|k| matches!(k, Fact::CheckpointCommitted { .. }))
        }
        Fact::CheckpointCommitted { attempt, step, .. } => known.iter().any(
            |k| matches!(k, Fact::CheckpointCommitted { attempt: a, step: s, .. } if (a, s) == (attempt, step)),
        ),
        Fact::CheckpointRefused { folder, .. } => {
            newest_fact_about(known, folder).is_some_and(|k| matches!(k, Fact::CheckpointRefused { .. }))
        }
        Fact::AttemptEnded { attempt, ended } => known.iter().any(|k| match k {
            Fact::AttemptEnded { attempt: a, ended: kept } if a == attempt => {
                !(matches!(kept, AttemptEnd::Lost(_)) && matches!(ended, AttemptEnd::Finished(_)))
            }
            _ => false,
        }),
        Fact::TrialEnded { .. } => known
            .iter()
            .rev()
            .find(|k| matches!(k, Fact::TrialEnded { .. } | Fact::Resumed | Fact::AttemptStarted { .. }))
            .is_some_and(|k| matches!(k, Fact::TrialEnded { .. })),
        Fact::Resumed => matches!(known.last(), Some(Fact::Resumed)),
    }
}

/// Returns the newest record about the checkpoint in a folder. A checkpoint adopted from another trial can be
/// adopted again after it was refused.
fn newest_fact_about<'a>(known: &'a [Fact], folder: &Path) -> Option<&'a Fact> {
    known.iter().rev().find(|fact| match fact {
        // The state folder may have been moved since.
        Fact::CheckpointCommitted { folder: of, .. } | Fact::CheckpointRefused { folder: of, .. } => {
            of.file_name() == folder.file_name()
        }
        _ => false,
    })
}

/// Adds the record `fact` with its time, and updates the tables that depend on it.
pub(super) fn add_fact(
    transaction: &Transaction<'_>,
    trial: i64,
    seq: usize,
    fact: &Fact,
    now: i64,
) -> Result<(), BoxError> {
    transaction
        .prepare_cached("INSERT INTO record(trial, seq, at_ms, json) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![trial, stored(seq as u64), now, serde_json::to_string(fact)?])?;
    match fact {
        Fact::AttemptStarted { attempt, from } => {
            transaction.execute(
                "INSERT INTO attempt(trial, number, from_step, started_ms) VALUES (?1, ?2, ?3, ?4)",
                params![trial, stored(attempt.0), from.map(|step| stored(step.0)), now],
            )?;
            transaction.execute(
                "UPDATE trial SET started_ms = coalesce(started_ms, ?2) WHERE id = ?1",
                [trial, now],
            )?;
        }
        Fact::AttemptEnded { attempt, ended } => {
            transaction.execute(
                "UPDATE attempt SET ended_ms = ?3, ended = ?4 WHERE trial = ?1 AND number = ?2",
                params![trial, stored(attempt.0), now, serde_json::to_string(ended)?],
            )?;
            open_points::seal(transaction, trial)?;
            throughput::update_throughput(transaction, trial)?;
        }
        Fact::CheckpointCommitted { attempt, step, folder } => {
            transaction.execute(
                "INSERT OR REPLACE INTO checkpoint(trial, attempt, step, at_ms, folder) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![trial, stored(attempt.0), stored(step.0), now, folder.to_string_lossy()],
            )?;
        }
        Fact::CheckpointRefused { step, folder, reason } => {
            transaction.execute(
                "UPDATE checkpoint SET refused = ?4
                 WHERE trial = ?1 AND step = ?2 AND (folder = ?3 OR substr(folder, -length(?5)) = ?5)",
                params![trial, stored(step.0), folder.to_string_lossy(), reason, path_suffix(folder)],
            )?;
        }
        Fact::TrialEnded { .. } | Fact::Resumed => {}
    }
    follow_state(transaction, trial, fact, now)
}

/// Returns the last parts of a checkpoint folder's path, which do not depend on the state folder.
fn path_suffix(folder: &Path) -> String {
    folder.file_name().map_or_else(String::new, |name| format!("/{}", name.to_string_lossy()))
}

/// Updates the state in the row of a trial after the record `fact`.
fn follow_state(transaction: &Transaction<'_>, trial: i64, fact: &Fact, now: i64) -> Result<(), BoxError> {
    let word: String =
        transaction.query_row("SELECT state FROM trial WHERE id = ?1", [trial], |row| row.get(0))?;
    let before = State::parse(&word).ok_or_else(|| format!("a trial has the unknown state `{word}`"))?;
    let after = before.after(fact);
    let (ended_ms, verdict) = match fact {
        Fact::TrialEnded { verdict } => (Some(now), Some(serde_json::to_string(verdict)?)),
        _ => (None, None),
    };
    if after != before || verdict.is_some() {
        transaction.execute(
            "UPDATE trial SET state = ?2, ended_ms = ?3, verdict = ?4 WHERE id = ?1",
            params![trial, after.word(), ended_ms, verdict],
        )?;
    }
    Ok(())
}
