//! State of the screen, independent of its source and of drawing.

pub(crate) mod list;
pub(crate) mod rank;
pub(crate) mod series;
pub(crate) mod study;
pub(crate) mod trial;
