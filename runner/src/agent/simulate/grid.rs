//! A table of values by attempt and machine: indexed access, and iteration in order.

use dtrain_protocol::AttemptId;
use std::collections::BTreeMap;
use std::ops::Index;

/// Identifies an attempt on a machine.
pub(super) type AttemptOnMachine = (AttemptId, usize);

/// A value for some machines of some attempts.
#[derive(Debug)]
pub(super) struct Grid<T> {
    rows: BTreeMap<AttemptId, AttemptRow<T>>,
}

#[derive(Debug)]
struct AttemptRow<T> {
    cells: Vec<Option<T>>,
    filled: usize,
}

impl<T> Grid<T> {
    pub(super) fn new() -> Self {
        Self { rows: BTreeMap::new() }
    }

    pub(super) fn get(&self, (attempt, machine): &AttemptOnMachine) -> Option<&T> {
        self.rows.get(attempt)?.cells.get(*machine)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, (attempt, machine): &AttemptOnMachine) -> Option<&mut T> {
        self.rows.get_mut(attempt)?.cells.get_mut(*machine)?.as_mut()
    }

    pub(super) fn contains_key(&self, cell: &AttemptOnMachine) -> bool {
        self.get(cell).is_some()
    }

    /// Returns `true` if the attempt has a value on any machine.
    pub(super) fn has_attempt(&self, attempt: AttemptId) -> bool {
        self.rows.contains_key(&attempt)
    }

    pub(super) fn insert(&mut self, (attempt, machine): AttemptOnMachine, value: T) {
        let row = self.rows.entry(attempt).or_insert_with(|| AttemptRow { cells: Vec::new(), filled: 0 });
        if row.cells.len() <= machine {
            row.cells.resize_with(machine + 1, || None);
        }
        row.filled += usize::from(row.cells[machine].replace(value).is_none());
    }

    pub(super) fn remove(&mut self, (attempt, machine): &AttemptOnMachine) -> Option<T> {
        let row = self.rows.get_mut(attempt)?;
        let value = row.cells.get_mut(*machine)?.take()?;
        row.filled -= 1;
        if row.filled == 0 {
            self.rows.remove(attempt);
        }
        Some(value)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = AttemptOnMachine> {
        self.iter().map(|(cell, _)| cell)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (AttemptOnMachine, &T)> {
        self.rows.iter().flat_map(|(attempt, row)| {
            let cells = row.cells.iter().enumerate();
            cells.filter_map(|(machine, cell)| cell.as_ref().map(|value| ((*attempt, machine), value)))
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (AttemptOnMachine, &mut T)> {
        self.rows.iter_mut().flat_map(|(attempt, row)| {
            let cells = row.cells.iter_mut().enumerate();
            cells.filter_map(|(machine, cell)| cell.as_mut().map(|value| ((*attempt, machine), value)))
        })
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(AttemptOnMachine) -> bool) {
        for (attempt, row) in &mut self.rows {
            for (machine, cell) in row.cells.iter_mut().enumerate() {
                if cell.is_some() && !keeps((*attempt, machine)) {
                    *cell = None;
                    row.filled -= 1;
                }
            }
        }
        self.rows.retain(|_, row| row.filled > 0);
    }
}

impl<T> Index<&AttemptOnMachine> for Grid<T> {
    type Output = T;

    fn index(&self, cell: &AttemptOnMachine) -> &T {
        self.get(cell).expect("it is there")
    }
}
