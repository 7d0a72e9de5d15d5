//! Cost profiles of software styles: the time that an engine's software takes, and the communication that it
//! hides.

use crate::engine::SoftwareStyle;
use serde::Deserialize;

/// Cost profile of an engine style; `data/engines.toml` gives the meaning and the source of each constant.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct SoftwareProfile {
    pub passes: f64,
    pub launch: f64,
    pub hidden_tensor: f64,
    pub hidden_data: f64,
    pub hidden_expert: f64,
    pub step: f64,
    pub operations: f64,
    pub late: f64,
    pub message: f64,
    pub message_exposed: f64,
    pub pads_vocabulary: bool,
    pub routes_by_host: bool,
    pub gradient_bytes: f64,
    pub wire_bytes: f64,
    #[serde(default)]
    pub through_host: Option<f64>,
    pub has_master_copy: bool,
    #[serde(default)]
    pub shards_weights: bool,
    pub ties_embeddings: bool,
    pub logit_bytes: f64,
    #[serde(default)]
    pub frees_gradients: bool,
    #[serde(default)]
    pub keeps_norms: bool,
    #[serde(default)]
    pub update_copies: f64,
    #[serde(default)]
    pub applies_in_backward: bool,
    #[serde(default)]
    pub fragmentation: Option<f64>,
    #[serde(default)]
    pub shard_buffers: f64,
    pub loss: f64,
    pub gather_host: f64,
    pub context_bytes: f64,
    pub doubt: f64,
    pub largest: f64,
}

/// The cost profiles of all software styles.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "named after the styles")]
pub struct SoftwareProfiles {
    pub research: SoftwareProfile,
    pub megatron: SoftwareProfile,
    pub modern: SoftwareProfile,
    pub fsdp: SoftwareProfile,
    pub fully_shard: SoftwareProfile,
    pub hugging_face: SoftwareProfile,
    pub compiled: SoftwareProfile,
    pub xla: SoftwareProfile,
    pub dtrain: SoftwareProfile,
}

impl SoftwareProfiles {
    /// Returns the cost profile of `style`.
    pub fn of(&self, style: SoftwareStyle) -> SoftwareProfile {
        match style {
            SoftwareStyle::Research => self.research,
            SoftwareStyle::Megatron => self.megatron,
            SoftwareStyle::Modern => self.modern,
            SoftwareStyle::Fsdp => self.fsdp,
            SoftwareStyle::FullyShard => self.fully_shard,
            SoftwareStyle::HuggingFace => self.hugging_face,
            SoftwareStyle::Compiled => self.compiled,
            SoftwareStyle::Xla => self.xla,
            SoftwareStyle::Dtrain => self.dtrain,
        }
    }
}

impl SoftwareProfiles {
    /// Returns the cost profile of `style`, so that it can be changed.
    pub(crate) fn of_mut(&mut self, style: SoftwareStyle) -> &mut SoftwareProfile {
        match style {
            SoftwareStyle::Research => &mut self.research,
            SoftwareStyle::Megatron => &mut self.megatron,
            SoftwareStyle::Modern => &mut self.modern,
            SoftwareStyle::Fsdp => &mut self.fsdp,
            SoftwareStyle::FullyShard => &mut self.fully_shard,
            SoftwareStyle::HuggingFace => &mut self.hugging_face,
            SoftwareStyle::Compiled => &mut self.compiled,
            SoftwareStyle::Xla => &mut self.xla,
            SoftwareStyle::Dtrain => &mut self.dtrain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::uncertainty::tests::case;
    use crate::analytic::{Constants, PeakMemory, Software, StepInputs, StepTimes};
    use dtrain_recipes::ZeroStage;

    /// Returns the inputs of an 8B Llama on 64 H100s, tensor 8, under `style` at a stage of ZeRO.
    fn under(style: SoftwareStyle, zero: ZeroStage) -> StepInputs<'static> {
        let mut case = case(8);
        case.engine = Software::of(style, Constants::shipped());
        case.config.arrangement.zero = zero;
        case
    }

    #[test]
    fn the_program_for_fsdp2_has_the_constants_of_hugging_face_but_for_what_it_does_otherwise() {
        let SoftwareProfiles { hugging_face, fully_shard, .. } = Constants::shipped().profiles;
        let SoftwareProfile { gradient_bytes, shards_weights, doubt, .. } = hugging_face;
        let alike = SoftwareProfile { gradient_bytes, shards_weights, doubt, ..fully_shard };
        assert_eq!(format!("{alike:?}"), format!("{hugging_face:?}"));
        let unknown = Constants::shipped().general.doubt.unknown_software;
        assert_eq!(fully_shard.doubt.to_bits(), unknown.to_bits());
    }

    #[test]
    fn gradients_in_f32_take_longer_at_every_stage() {
        for zero in [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3] {
            let seconds = |gradient_bytes| {
                let mut case = under(SoftwareStyle::FullyShard, zero);
                // Nothing is hidden, so that all of it shows.
                (case.engine.profile.hidden_data, case.engine.profile.gradient_bytes) = (0.0, gradient_bytes);
                StepTimes::of(&case).total()
            };
            assert!(seconds(4.0) > 1.002 * seconds(2.0), "{zero:?}: {} {}", seconds(4.0), seconds(2.0));
        }
    }

    #[test]
    fn weights_in_shards_are_gathered_for_every_micro_batch() {
        let seconds = |zero, shards_weights| {
            let mut case = under(SoftwareStyle::FullyShard, zero);
            case.engine.profile.shards_weights = shards_weights;
            StepTimes::of(&case).total()
        };
        for zero in [ZeroStage::Zero1, ZeroStage::Zero2] {
            assert!(seconds(zero, true) > 1.001 * seconds(zero, false), "{zero:?}");
        }
        // Without shards there is nothing to gather, and stage 3 gathers them in any style.
        for zero in [ZeroStage::Zero0, ZeroStage::Zero3] {
            assert_eq!(seconds(zero, true).to_bits(), seconds(zero, false).to_bits(), "{zero:?}");
        }
    }

    #[test]
    fn weights_in_shards_are_held_beside_those_that_are_gathered() {
        let bytes = |zero, style| PeakMemory::of(&under(style, zero)).states;
        let parameters = bytes(ZeroStage::Zero0, SoftwareStyle::Fsdp) / 16.0;
        // Eight ranks share the state.
        for (zero, fsdp, program) in [
            (ZeroStage::Zero0, 16.0, 16.0 + 2.0),
            (ZeroStage::Zero1, 8.0 + 8.0 / 8.0, 2.0 + 4.0 + 12.0 / 8.0),
            (ZeroStage::Zero2, 2.0 + 16.0 / 8.0, 2.0 + 16.0 / 8.0),
            (ZeroStage::Zero3, 16.0 / 8.0, 16.0 / 8.0),
        ] {
            let each = |style| bytes(zero, style) / parameters;
            assert!(
                (each(SoftwareStyle::Fsdp) - fsdp).abs() < 1e-9,
                "{zero:?}: {}",
                each(SoftwareStyle::Fsdp)
            );
            let found = each(SoftwareStyle::FullyShard);
            assert!((found - program).abs() < 1e-9, "{zero:?}: {found}");
        }
    }
}
