//! Finds contradictions between values of a recipe that are each valid.

mod arrangement;
mod data;
mod decoder;
mod layout;
mod model;
mod notice;
mod sbatch;
mod sync;
mod training;

use super::hosts::DeclaredHost;
use super::values::ParsedValues;
use crate::document::Document;
use crate::keys::Kind;
use crate::model::Model;
use crate::problem::Problem;

/// Returns a problem for every contradiction between values. A rule is skipped if a value it needs is absent
/// or invalid.
pub(in crate::check) fn contradictions(
    document: &Document,
    values: &ParsedValues,
    hosts: &[DeclaredHost],
) -> Vec<Problem> {
    let mut rules = Rules { document, values, hosts, problems: Vec::new() };
    match values.kind {
        Some(Kind::Decoder) => rules.decoder(),
        Some(Kind::Cnn) => rules.cnn(),
        Some(Kind::Custom) => rules.own(),
        Some(Kind::Command) => rules.command(),
        Some(Kind::Mlp) | None => {}
    }
    rules.data();
    rules.objective();
    rules.tune();
    rules.train();
    rules.layout();
    rules.sync();
    rules.cluster();
    rules.problems
}

/// Returns the problem of a model with more parameters than any hardware could train; `None` if it is small
/// enough.
pub(in crate::check) fn too_large(
    document: &Document,
    values: &ParsedValues,
    model: &Model,
) -> Option<Problem> {
    let mut rules = Rules { document, values, hosts: &[], problems: Vec::new() };
    rules.parameters(model);
    rules.problems.pop()
}

struct Rules<'r> {
    document: &'r Document,
    values: &'r ParsedValues,
    hosts: &'r [DeclaredHost],
    problems: Vec<Problem>,
}

impl Rules<'_> {
    /// Reports a problem at the first of `keys` that the recipe sets; the positions of the others become
    /// notes.
    fn wrong(&mut self, message: String, keys: &[&str], hint: &str) {
        let mut problem = Problem::new(message);
        for key in keys {
            let (Some(origin), Some(value)) = (self.values.said(key), self.values.get(key)) else { continue };
            problem = match problem.origin {
                None => problem.at(origin),
                Some(_) => problem.note_at(format!("`{key}` is {value}"), origin),
            };
        }
        self.problems.push(if hint.is_empty() { problem } else { problem.hint(hint) });
    }

    /// Reports a problem if the number at the key `small` does not divide the number at the key `large`.
    fn divides(&mut self, small: &str, large: &str) {
        let (Some(a), Some(b)) = (self.values.whole(small), self.values.whole(large)) else { return };
        if b.is_multiple_of(a) {
            return;
        }
        let near = (1..=a).rev().find(|n| b.is_multiple_of(*n)).unwrap_or(1);
        let message = format!("`{small}` = {a} does not divide `{large}` = {b}");
        self.wrong(message, &[small, large], &format!("the nearest below that does is {near}"));
    }
}
