//! Text about the code versions of compared trials.

use crate::output::PageStyle;
use dtrain_runner::compare::{CodeVersions, Revision};

/// Formats the commits of the trials and their uncommitted changes; `is_shown` if the changes follow as
/// patches.
pub(super) fn same_code(code: &CodeVersions, is_shown: bool, style: PageStyle) -> Vec<String> {
    let named = || ('A'..='Z').zip(&code.revisions);
    let short = |revision: &Revision| revision.commit.chars().take(7).collect::<String>();
    let changes = |revision: &Revision| {
        let files = if revision.files == 1 { "file" } else { "files" };
        let minus = if style.is_ascii { '-' } else { '−' };
        format!("{} {files}, +{} {minus}{}", revision.files, revision.added, revision.removed)
    };
    let patched: Vec<_> = named()
        .filter_map(|(letter, revision)| Some((letter, revision.as_ref()?)))
        .filter(|(_, revision)| revision.patch.is_some())
        .map(|(letter, revision)| format!("{letter} has uncommitted changes ({})", changes(revision)))
        .collect();
    let commits = match code.revisions.first() {
        Some(Some(first)) if code.is_same_commit => format!("same commit {}", short(first)),
        Some(None) if code.is_same_commit => "in no repository".to_owned(),
        Some(_) | None => named()
            .map(|(letter, revision)| {
                format!("{letter} {}", revision.as_ref().map_or("in no repository".to_owned(), short))
            })
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut parts = vec![commits];
    if code.is_same && !patched.is_empty() {
        parts.push("the same uncommitted changes".to_owned());
    } else {
        parts.extend(patched.clone());
    }
    if !patched.is_empty() && !is_shown {
        parts.push("--code shows them".to_owned());
    }
    parts
}

/// Formats each trial's uncommitted changes as patches.
pub(super) fn patches(code: &CodeVersions) -> String {
    let mut page = String::new();
    for (letter, revision) in ('A'..='Z').zip(&code.revisions) {
        if let Some(patch) = revision.as_ref().and_then(|revision| revision.patch.as_ref()) {
            page += &format!("--- {letter}: uncommitted changes\n{patch}");
            if !patch.ends_with('\n') {
                page.push('\n');
            }
        }
    }
    page
}
