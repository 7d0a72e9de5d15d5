//! How things look. Nothing here decides anything.

pub(crate) mod bar;
pub(crate) mod checkpoint;
pub(crate) mod compare;
pub(crate) mod estimate;
pub(crate) mod figures;
pub(crate) mod history;
pub(crate) mod html;
mod metrics;
pub(crate) mod number;
mod param;
pub(crate) mod phases;
pub(crate) mod plan;
pub(crate) mod preparing;
pub(crate) mod progress;
pub(crate) mod show;
pub(crate) mod sparkline;
pub(crate) mod spent;
pub(crate) mod table;
pub(crate) mod tried;
