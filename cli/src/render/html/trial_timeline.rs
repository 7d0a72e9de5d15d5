//! Timeline of a trial: attempts, checkpoints and validations from left to right.

use super::svg::{Anchor, AxisScale, Rectangle, Svg};
use super::{WIDTH, document::moment};
use crate::render::number::seconds;

/// Outcome of a segment or mark, which selects its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentStatus {
    Well,
    Badly,
    Open,
}

/// A segment of time, such as an attempt, on the timeline.
#[derive(Clone, Debug)]
pub(super) struct TimelineSegment {
    pub(super) name: String,
    pub(super) begin_ms: u64,
    pub(super) end_ms: u64,
    pub(super) end: SegmentStatus,
    /// Tooltip of the segment.
    pub(super) words: String,
}

/// A moment on a lane of the timeline.
#[derive(Clone, Debug)]
pub(super) struct TimelineMark {
    pub(super) at_ms: u64,
    pub(super) end: SegmentStatus,
    pub(super) words: String,
}

/// Maximum number of marks per lane; more are thinned evenly.
const MOMENTS_MOST: usize = 400;

/// Left and right edges of the lanes.
const LANES: (f64, f64) = (110.0, WIDTH - 16.0);

/// Draws attempts as bars from left to right, and below them named lanes of marks.
pub(super) fn trial_timeline(attempts: &[TimelineSegment], lanes: &[(&str, Vec<TimelineMark>)]) -> String {
    const ROW: f64 = 26.0;
    let begin = attempts.iter().map(|attempt| attempt.begin_ms).min();
    let end = attempts.iter().map(|attempt| attempt.end_ms).max();
    let (Some(begin), Some(end)) = (begin, end) else { return String::new() };
    let lanes: Vec<_> = lanes.iter().filter(|(_, moments)| !moments.is_empty()).collect();
    #[expect(clippy::cast_precision_loss, reason = "lanes are few")]
    let bottom = 6.0 + ROW * (attempts.len() + lanes.len()) as f64;
    let mut svg = Svg::new(WIDTH, bottom + 44.0, "attempts, checkpoints and validations over time");
    let passed = |at_ms: u64| elapsed(begin, at_ms);
    let scale = AxisScale::even((0.0, passed(end).max(1e-3)), LANES);
    let mut y = 6.0;
    for attempt in attempts {
        let (from, to) = (scale.at(passed(attempt.begin_ms)), scale.at(passed(attempt.end_ms)));
        svg.text((LANES.0 - 10.0, y + ROW / 2.0 - 2.0), Anchor::End, "label", &attempt.name);
        let area = Rectangle { x: from, y, width: (to - from).max(2.0), height: ROW - 6.0 };
        let (class, sign) = match attempt.end {
            SegmentStatus::Well => ("tone-forward", ""),
            SegmentStatus::Badly => ("tone-tensor", "✕ "),
            SegmentStatus::Open => ("tone-idle", "… "),
        };
        svg.area(area, class, Some(&attempt.words));
        let short = format!("{sign}{}", truncated(&attempt.words, area.width));
        if area.width > 60.0 {
            let class = if attempt.end == SegmentStatus::Open { "in-light" } else { "inside" };
            svg.text((from + 8.0, y + ROW / 2.0 - 3.0), Anchor::Start, class, &short);
        }
        y += ROW;
    }
    for (name, moments) in lanes {
        svg.text((LANES.0 - 10.0, y + ROW / 2.0 - 2.0), Anchor::End, "label", name);
        svg.line((LANES.0, y + ROW / 2.0 - 2.0), (LANES.1, y + ROW / 2.0 - 2.0), "grid");
        for moment in moments.iter().step_by(moments.len().div_ceil(MOMENTS_MOST)) {
            let place = (scale.at(passed(moment.at_ms).min(passed(end))), y + ROW / 2.0 - 2.0);
            if moment.end == SegmentStatus::Badly {
                svg.text(place, Anchor::Middle, "mark bad", "✕");
            }
            let class =
                if moment.end == SegmentStatus::Badly { "dot tone-tensor" } else { "dot tone-backward" };
            svg.dot(
                place,
                if moment.end == SegmentStatus::Badly { 2.0 } else { 4.5 },
                class,
                Some(&moment.words),
            );
        }
        y += ROW;
    }
    super::bars::axis(&mut svg, scale, bottom + 8.0, seconds);
    svg.text((LANES.0, bottom + 34.0), Anchor::Start, "small", &format!("since {}", moment(begin)));
    super::wide(&svg.finished())
}

/// Returns the seconds from `begin_ms` to `at_ms`.
#[expect(clippy::cast_precision_loss, reason = "it is drawn")]
pub(super) fn elapsed(begin_ms: u64, at_ms: u64) -> f64 {
    at_ms.saturating_sub(begin_ms) as f64 / 1e3
}

/// Truncates a text to fit a width in units of the drawing.
fn truncated(text: &str, width: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred letters")]
    let most = ((width - 20.0) / 7.0).max(0.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}
