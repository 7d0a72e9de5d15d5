//! Constructors of left-aligned and right-aligned columns, for the tables of a device report.

use crate::render::table::TableColumn;
use std::borrow::Cow;

pub(super) fn left(title: &'static str) -> TableColumn {
    TableColumn { title: Cow::Borrowed(title), is_right: false, rank: 9, least: None }
}

pub(super) fn right(title: impl Into<Cow<'static, str>>) -> TableColumn {
    TableColumn { title: title.into(), is_right: true, rank: 9, least: None }
}
