//! Finds contradictions in `[cluster.notice]`.

use super::Rules;
use crate::check::walk::section_origin;
use crate::problem::Problem;

const COMMAND: &str = "cluster.notice.command";
const URL: &str = "cluster.notice.url";

impl Rules<'_> {
    /// Checks that notices come from either a command or a URL, and that other keys are of what is asked.
    pub(super) fn notice(&mut self) {
        if self.document.get("cluster.notice").is_none() || self.values.is_wrong("cluster.notice") {
            return;
        }
        match (self.values.said(COMMAND).is_some(), self.values.said(URL).is_some()) {
            (true, true) => {
                let message = "`cluster.notice` has a command and a URL".to_owned();
                self.wrong(message, &[COMMAND, URL], "remove one of them");
            }
            (false, false) => {
                let problem = Problem::new("`cluster.notice` needs a command or a URL")
                    .hint("write for example `command = [\"sh\", \"-c\", \"test -e /run/notice\"]`");
                self.problems.push(match section_origin(self.document, COMMAND) {
                    Some(origin) => problem.at(&origin),
                    None => problem,
                });
            }
            (true, false) => {
                for key in ["cluster.notice.contains", "cluster.notice.headers"] {
                    if self.values.said(key).is_some() {
                        let message = format!("`{key}` is for a URL, and the notice comes from a command");
                        self.wrong(message, &[key, COMMAND], "remove it");
                    }
                }
            }
            (false, true) => {}
        }
    }
}
