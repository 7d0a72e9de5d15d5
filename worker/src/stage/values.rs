//! Reading and changing the values of a stage.

use super::Stage;
use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use std::ops::Range;

impl Stage {
    /// Values of parameter `index`.
    pub fn values(&self, index: usize) -> Vec<f32> {
        self.values[index].to_data().try_to_vec().expect("weights are f32")
    }

    /// Replaces the values of parameter `index`; panics when their number is not the parameter's.
    pub fn set_values(&mut self, index: usize, values: Vec<f32>) {
        let wanted = self.parameters[index].range.len();
        assert_eq!(values.len(), wanted, "values of `{}`", self.parameters[index].name);
        self.values[index] = tensor(values, &self.device);
    }

    /// Copies the values of a flat range, which may begin and end inside parameters, into `out`.
    pub fn copy_values(&self, range: Range<usize>, out: &mut [f32]) {
        assert_eq!(range.len(), out.len(), "a copy is as long as its range");
        for (index, parameter) in self.parameters.iter().enumerate() {
            let both = overlap(&parameter.range, &range);
            if !both.is_empty() {
                let inside = shift(&both, parameter.range.start);
                let values = self.values[index].to_data();
                let values: &[f32] = values.as_slice().expect("weights are f32");
                out[shift(&both, range.start)].copy_from_slice(&values[inside]);
            }
        }
    }

    /// Replaces the values of the flat range that begins at `start`.
    pub fn paste_values(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        for index in 0..self.parameters.len() {
            let own = self.parameters[index].range.clone();
            let both = overlap(&own, &range);
            if !both.is_empty() {
                let inside = shift(&both, own.start);
                let source = &values[shift(&both, start)];
                if self.host {
                    self.update(index, |values, _| values[inside].copy_from_slice(source));
                } else {
                    let mut all = self.values(index);
                    all[inside].copy_from_slice(source);
                    self.set_values(index, all);
                }
            }
        }
    }

    /// Changes the values of parameter `index` in place, given its gradient; only on the host.
    pub(crate) fn update(&mut self, index: usize, change: impl FnOnce(&mut [f32], &[f32])) {
        let empty = tensor(Vec::new(), &self.device);
        let values = std::mem::replace(&mut self.values[index], empty);
        let mut values =
            values.try_into_primitive::<Flex>().expect("values are changed in place on the host only");
        // Copies when a graph still holds the old values, and only then.
        change(values.storage_mut(), &self.gradients.values()[self.parameters[index].range.clone()]);
        self.values[index] = Tensor::from_primitive::<Flex>(values);
    }

    /// Replaces parameter `index` by a function of its value and gradient; only off the host.
    pub(crate) fn update_tensor(
        &mut self,
        index: usize,
        change: impl FnOnce(Tensor<1>, Tensor<1>) -> Tensor<1>,
    ) {
        let value = self.values[index].clone();
        let gradient = self.gradients.tensor(index).unwrap_or_else(|| value.zeros_like());
        self.values[index] = change(value, gradient);
    }
}

pub(super) fn tensor(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start - by..range.end - by
}
