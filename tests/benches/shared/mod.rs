//! What benches of trainings share: the perceptron that they train, the steps that are heard of it, and how they are told what to do.

pub(crate) mod measured;
pub(crate) mod perceptron;
mod steps;
mod words;

pub(crate) use steps::{Step, heard, now_ms, seen, send, step};
pub(crate) use words::{Words, say};
