//! Keeping news: facts, figures and the spool offset in one transaction, each of them once.

use super::state::State;
use super::{Fault, History, figures, hosts, now_ms, points, stored, unstored};
use crate::fact::{Ended, Fact, Ledger, LedgerError, News};
use crate::strikes::Strike;
use dtrain_protocol::{AttemptId, Failure, Rank, Stamped, TrialId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

impl Ledger for History {
    fn keep(&mut self, trial: &TrialId, news: &News) -> Result<(), LedgerError> {
        self.write("write news to", |transaction| keep(transaction, row_of(transaction, trial)?, news))
    }

    fn facts(&self, trial: &TrialId) -> Result<Vec<Fact>, LedgerError> {
        self.read("read facts from", |database| facts(database, row_of(database, trial)?))
    }

    fn trained_ms(&self, trial: &TrialId) -> Result<Vec<(AttemptId, u64)>, LedgerError> {
        let steps = self.series_by_attempt(trial, "step_seconds", Rank(0))?;
        Ok(steps.into_iter().map(|(attempt, steps)| (attempt, figures::trained_ms(&steps))).collect())
    }

    fn offset(&self, trial: &TrialId, attempt: AttemptId) -> Result<u64, LedgerError> {
        self.read("read an offset from", |database| {
            let offset: Option<i64> = database
                .prepare_cached("SELECT offset FROM spool WHERE trial = ?1 AND attempt = ?2")?
                .query_row(params![row_of(database, trial)?, stored(attempt.0)], |row| row.get(0))
                .optional()?;
            Ok(offset.map_or(0, unstored))
        })
    }

    fn strikes(&self) -> Result<Vec<Strike>, LedgerError> {
        self.read("read strikes from", hosts::strikes)
    }
}

impl History {
    /// Says of every open attempt that nobody is at work on that it was lost; returns these trials.
    ///
    /// Call it after what the spools of dead agents still hold was kept: a result in there wins over the loss.
    pub fn reconcile(&mut self, is_alive: &dyn Fn(&TrialId) -> bool) -> Result<Vec<TrialId>, LedgerError> {
        let lost: Vec<_> = self.open_attempts()?.into_iter().filter(|(trial, _)| !is_alive(trial)).collect();
        for (trial, attempt) in &lost {
            let failure = Failure::Other("its agent is gone and left no record".into());
            let fact = Fact::AttemptEnded { attempt: *attempt, ended: Ended::Lost(failure) };
            self.keep(trial, &News { facts: vec![fact], ..News::default() })?;
        }
        Ok(lost.into_iter().map(|(trial, _)| trial).collect())
    }

    /// Every attempt that started and did not end.
    pub fn open_attempts(&self) -> Result<Vec<(TrialId, AttemptId)>, LedgerError> {
        self.read("read attempts from", |database| {
            let mut select = database.prepare(
                "SELECT trial.uid, attempt.number FROM trial JOIN attempt ON attempt.trial = trial.id
                 WHERE trial.state = 'open' AND attempt.ended IS NULL ORDER BY trial.uid, attempt.number",
            )?;
            let rows =
                select.query_map([], |row| Ok((TrialId(row.get(0)?), AttemptId(unstored(row.get(1)?)))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// The row number of a trial.
pub(super) fn row_of(database: &Connection, trial: &TrialId) -> Result<i64, Fault> {
    database
        .prepare_cached("SELECT id FROM trial WHERE uid = ?1")?
        .query_row([&trial.0], |row| row.get(0))
        .optional()?
        .ok_or_else(|| format!("it has no trial {trial}").into())
}

fn facts(database: &Connection, trial: i64) -> Result<Vec<Fact>, Fault> {
    let mut select = database.prepare_cached("SELECT json FROM fact WHERE trial = ?1 ORDER BY seq")?;
    let rows = select.query_map([trial], |row| row.get::<_, String>(0))?;
    rows.map(|json| Ok(serde_json::from_str(&json?)?)).collect()
}

fn keep(transaction: &Transaction<'_>, trial: i64, news: &News) -> Result<(), Fault> {
    let mut fresh = Vec::new();
    for stamped in &news.events {
        if hear(transaction, trial, stamped)? {
            fresh.extend(figures::points_of(stamped));
        }
    }
    for point in &news.points {
        if points::is_newer(transaction, trial, point)? {
            fresh.push(point.clone());
        }
    }
    points::append(transaction, trial, &fresh)?;
    if !news.facts.is_empty() {
        let mut known = facts(transaction, trial)?;
        for fact in &news.facts {
            if !is_known(&known, fact) {
                add_fact(transaction, trial, known.len(), fact)?;
                known.push(fact.clone());
            }
        }
    }
    hosts::keep(transaction, &news.hosts)?;
    if let Some((attempt, offset)) = news.offset {
        transaction
            .prepare_cached(
                "INSERT INTO spool(trial, attempt, offset) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET offset = max(offset, excluded.offset)",
            )?
            .execute(params![trial, stored(attempt.0), stored(offset)])?;
    }
    Ok(())
}

/// Whether an event is new; remembers it. A rank's events come in order, so the newest stands for all.
fn hear(transaction: &Transaction<'_>, trial: i64, stamped: &Stamped) -> Result<bool, Fault> {
    let changed = transaction
        .prepare_cached(
            "INSERT INTO heard(trial, attempt, rank, sequence) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET sequence = excluded.sequence WHERE excluded.sequence > sequence",
        )?
        .execute(params![trial, stored(stamped.attempt.0), stamped.rank.0, stored(stamped.sequence)])?;
    Ok(changed == 1)
}

/// Whether the facts kept so far already say what `fact` says.
///
/// An attempt starts once and ends once; only a loss that was presumed too early gives way to a finish.
fn is_known(known: &[Fact], fact: &Fact) -> bool {
    match fact {
        Fact::AttemptStarted { attempt, .. } => {
            known.iter().any(|k| matches!(k, Fact::AttemptStarted { attempt: a, .. } if a == attempt))
        }
        Fact::CheckpointDurable { attempt, step, .. } => known.iter().any(
            |k| matches!(k, Fact::CheckpointDurable { attempt: a, step: s, .. } if (a, s) == (attempt, step)),
        ),
        Fact::CheckpointRefused { folder, .. } => {
            known.iter().any(|k| matches!(k, Fact::CheckpointRefused { folder: f, .. } if f == folder))
        }
        Fact::AttemptEnded { attempt, ended } => known.iter().any(|k| match k {
            Fact::AttemptEnded { attempt: a, ended: kept } if a == attempt => {
                !(matches!(kept, Ended::Lost(_)) && matches!(ended, Ended::Finished(_)))
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

fn add_fact(transaction: &Transaction<'_>, trial: i64, seq: usize, fact: &Fact) -> Result<(), Fault> {
    let now = now_ms();
    transaction
        .prepare_cached("INSERT INTO fact(trial, seq, at_ms, json) VALUES (?1, ?2, ?3, ?4)")?
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
            points::seal_attempt(transaction, trial, *attempt)?;
            figures::settle(transaction, trial)?;
        }
        Fact::CheckpointDurable { attempt, step, folder } => {
            transaction.execute(
                "INSERT OR REPLACE INTO checkpoint(trial, attempt, step, at_ms, folder) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![trial, stored(attempt.0), stored(step.0), now, folder.to_string_lossy()],
            )?;
        }
        Fact::CheckpointRefused { step, folder, reason } => {
            transaction.execute(
                "UPDATE checkpoint SET refused = ?4 WHERE trial = ?1 AND step = ?2 AND folder = ?3",
                params![trial, stored(step.0), folder.to_string_lossy(), reason],
            )?;
        }
        Fact::TrialEnded { .. } | Fact::Resumed => {}
    }
    follow_state(transaction, trial, fact, now)
}

/// Brings the stored state after `fact` into the trial's row.
fn follow_state(transaction: &Transaction<'_>, trial: i64, fact: &Fact, now: i64) -> Result<(), Fault> {
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
