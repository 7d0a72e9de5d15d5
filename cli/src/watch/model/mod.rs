//! State of the view, independent of the data's source and of drawing.

pub(crate) mod list;
pub(crate) mod rank;
pub(crate) mod series;
pub(crate) mod study;
pub(crate) mod trial;
