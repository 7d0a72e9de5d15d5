//! Rendering as text and HTML. Makes no decisions.

pub(crate) mod answer;
pub(crate) mod checkpoint;
pub(crate) mod compare;
pub(crate) mod data_preparation;
pub(crate) mod estimate;
pub(crate) mod eta;
pub(crate) mod figures;
pub(crate) mod history;
pub(crate) mod html;
mod metrics;
pub(crate) mod number;
mod param;
pub(crate) mod phases;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod progress_bar;
pub(crate) mod proposal;
pub(crate) mod show;
pub(crate) mod sparkline;
pub(crate) mod table;
pub(crate) mod template_match;
pub(crate) mod time_spent;
pub(crate) mod truncate;
