//! What is shown, without where it comes from and how it is drawn.

pub(crate) mod list;
pub(crate) mod rank;
pub(crate) mod series;
pub(crate) mod study;
pub(crate) mod trial;
