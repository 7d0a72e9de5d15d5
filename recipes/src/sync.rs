//! Synchronization of data-parallel replicas: gradient compression, DiLoCo, and stale gradients.

use crate::keyword_enum::keyword_enum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The settings of `[sync]`, the synchronization of data-parallel replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Synchronisation {
    /// Compression of the values that replicas exchange.
    #[serde(flatten)]
    pub compress: Compression,
    /// DiLoCo, in which replicas train independently; `None` for an all-reduce of the gradients in every
    /// step.
    #[serde(flatten)]
    pub local: Option<DiLoCo>,
    /// Bounded staleness: maximum number of updates between the weights from which a gradient is computed and
    /// the weights that it updates (Ho et al. 2013).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub staleness: u32,
}

keyword_enum! {
    /// A keyword for `sync.compress`; [`Compression`] also has its parameters.
    pub enum CompressionKind {
        /// Values are sent uncompressed.
        None = "none",
        /// Values are rounded to f16.
        F16 = "f16",
        /// Values are rounded to bf16.
        Bf16 = "bf16",
        /// Matrices are sent as low-rank factors (PowerSGD).
        PowerSgd = "powersgd",
        /// Only the largest values are sent (top-k).
        TopK = "topk",
    }
}

/// The compression of values that replicas exchange.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "compress", rename_all = "snake_case")]
pub enum Compression {
    /// Values are sent uncompressed.
    None,
    /// Values are rounded to f16: 16 bits with an 11-bit significand.
    F16,
    /// Values are rounded to bf16: 16 bits with an 8-bit significand.
    Bf16,
    /// PowerSGD: two low-rank factors are sent per matrix, with error feedback: the error is added in the
    /// next step (Vogels et al. 2019).
    #[serde(rename = "powersgd")]
    PowerSgd {
        /// Rank of the low-rank factors.
        rank: u32,
    },
    /// Top-k: only the largest values are sent, with error feedback: the others are added in the next step
    /// (Aji and Heafield 2017).
    #[serde(rename = "topk")]
    TopK {
        /// Share of the values that is sent, above 0 and at most 1.
        keep: f64,
    },
}

/// DiLoCo: replicas that train independently and average their weight changes at intervals (Douillard et al.
/// 2023).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiLoCo {
    /// Number of optimizer steps from one synchronization to the next, at least 2.
    pub every: u64,
    /// Learning rate of the outer optimizer, which applies the mean weight change.
    pub outer_learning_rate: f64,
    /// Nesterov momentum of the outer optimizer (1983), in [0, 1).
    pub outer_momentum: f64,
}

impl Synchronisation {
    /// Exact synchronization: an uncompressed all-reduce of the gradients in every step.
    pub const EXACT: Self = Self { compress: Compression::None, local: None, staleness: 0 };

    /// Returns `true` if replicas train exactly as a single rank would.
    pub fn is_exact(&self) -> bool {
        *self == Self::EXACT
    }

    /// Returns the number of optimizer steps from one synchronization to the next.
    pub fn every(&self) -> u64 {
        self.local.map_or(1, |local| local.every)
    }
}

impl Default for Synchronisation {
    fn default() -> Self {
        Self::EXACT
    }
}

/// Formats the approximations, such as `bf16 on the wire`; empty if the synchronization is exact.
impl fmt::Display for Synchronisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compress {
            Compression::None => {}
            Compression::F16 => f.write_str("f16 on the wire")?,
            Compression::Bf16 => f.write_str("bf16 on the wire")?,
            Compression::PowerSgd { rank } => write!(f, "matrices of rank {rank} on the wire")?,
            // Rounded, without the noise of binary fractions.
            Compression::TopK { keep } => {
                write!(f, "the largest {} % on the wire", (keep * 1e12).round() / 1e10)?;
            }
        }
        let and = if self.compress == Compression::None { "" } else { ", " };
        match (self.local, self.staleness) {
            (Some(DiLoCo { every, .. }), _) => write!(f, "{and}replicas synchronise every {every} steps"),
            (None, 0) => Ok(()),
            (None, 1) => write!(f, "{and}gradients up to 1 step old"),
            (None, staleness) => write!(f, "{and}gradients up to {staleness} steps old"),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_by_the_keys_of_the_recipe() {
        let local = DiLoCo { every: 8, outer_learning_rate: 0.7, outer_momentum: 0.9 };
        for (sync, json, words) in [
            (Synchronisation::EXACT, r#"{"compress":"none"}"#, ""),
            (
                Synchronisation { compress: Compression::PowerSgd { rank: 2 }, ..Synchronisation::EXACT },
                r#"{"compress":"powersgd","rank":2}"#,
                "matrices of rank 2 on the wire",
            ),
            (
                Synchronisation {
                    compress: Compression::TopK { keep: 0.01 },
                    local: Some(local),
                    staleness: 0,
                },
                r#"{"compress":"topk","keep":0.01,"every":8,"outer_learning_rate":0.7,"outer_momentum":0.9}"#,
                "the largest 1 % on the wire, replicas synchronise every 8 steps",
            ),
            (
                Synchronisation { compress: Compression::Bf16, local: None, staleness: 2 },
                r#"{"compress":"bf16","staleness":2}"#,
                "bf16 on the wire, gradients up to 2 steps old",
            ),
        ] {
            assert_eq!(serde_json::to_string(&sync).expect("text keys only"), json);
            assert_eq!(serde_json::from_str::<Synchronisation>(json).expect("it was just written"), sync);
            assert_eq!(sync.to_string(), words);
            assert_eq!(sync.is_exact(), words.is_empty());
        }
    }
}
