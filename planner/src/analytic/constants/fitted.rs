//! Access by name to the constants that the fit may change; cost inputs under changed constants.

use super::{Constants, GeneralConstants};
use crate::analytic::software_profile::SoftwareProfile;
use crate::analytic::{DeviceThroughput, StepInputs};
use crate::engine::SoftwareStyle;
use crate::hardware::{self, GpuGeneration, GpuSpec};

/// A constant of the cost model that the fit may change.
#[derive(Clone, Debug)]
pub struct FittedConstant {
    /// Table and key of the constant, as in `modern.passes`; `general` is the table of `constants.toml`.
    pub name: String,
    place: ConstantSlot,
}

#[derive(Clone, Debug)]
enum ConstantSlot {
    General(fn(&mut GeneralConstants) -> &mut f64),
    Profile(SoftwareStyle, fn(&mut SoftwareProfile) -> &mut f64),
    Generation(String, fn(&mut GpuGeneration) -> &mut f64),
}

/// Lists the given fields of a struct, each with its name.
macro_rules! fields {
    ($of:ty: $($field:ident)*) => {
        &[$((stringify!($field), (|all: &mut $of| &mut all.$field) as fn(&mut $of) -> &mut f64)),*]
    };
}

/// Name of a field of `T` and the function that borrows it.
type NamedField<T> = (&'static str, fn(&mut T) -> &mut f64);

const GENERAL: &[NamedField<GeneralConstants>] = fields!(
    GeneralConstants: wave align_8 align_4 align_2 align_1 kernel stream flash_1 flash_2 fused
    narrow_head flash_backward attention_ramp attention_short ring unfused scores_forward scores_backward plain quantise blocks link link_start link_member
    network network_start network_member all_to_all gather_again contention straggler loss_passes optimizer_bytes operations
    operations_backward operations_tensor operations_unfused operations_experts operations_expert routing imbalance grouped expert_passes
    product_again adapter_passes dequantise operations_adapter host_link host_stream);

const PROFILE: &[NamedField<SoftwareProfile>] = fields!(
    SoftwareProfile: passes launch hidden_tensor hidden_data hidden_expert step operations
    late message message_exposed loss gather_host);

const GENERATION: &[NamedField<GpuGeneration>] =
    fields!(GpuGeneration: ceiling_16 sustained_16 ceiling_8 sustained_8 flash fused);

const STYLES: [SoftwareStyle; 7] = [
    SoftwareStyle::Research,
    SoftwareStyle::Megatron,
    SoftwareStyle::Modern,
    SoftwareStyle::Fsdp,
    SoftwareStyle::HuggingFace,
    SoftwareStyle::Compiled,
    SoftwareStyle::Xla,
];

/// Upper limit of the constants that are shares of communication time that is hidden.
const MOST_HIDDEN: f64 = 0.98;

impl FittedConstant {
    /// Finds a constant by its name; `None` if the fit has no constant of that name.
    pub fn named(name: &str) -> Option<Self> {
        let (table, key) = name.split_once('.')?;
        let place = if table == "general" {
            ConstantSlot::General(field(GENERAL, key)?)
        } else if let Some(style) = STYLES.into_iter().find(|style| style.name() == table) {
            ConstantSlot::Profile(style, field(PROFILE, key)?)
        } else {
            hardware::generations().get(table)?;
            ConstantSlot::Generation(table.to_owned(), field(GENERATION, key)?)
        };
        Some(Self { name: name.to_owned(), place })
    }

    /// Returns the value of this constant in `constants`.
    pub fn of(&self, constants: &Constants) -> f64 {
        let mut copy = constants.clone();
        *self.at(&mut copy)
    }

    /// Sets the value of this constant in `constants`; shares of hidden time stay below 1.
    pub fn set(&self, constants: &mut Constants, value: f64) {
        let is_share = self.name.contains(".hidden_") || self.name.contains("message_exposed");
        *self.at(constants) = if is_share { value.min(MOST_HIDDEN) } else { value };
    }

    /// Returns `true` if the step time of `case` on `gpu` can depend on this constant.
    pub fn concerns(&self, case: &StepInputs<'_>, gpu: &GpuSpec) -> bool {
        match &self.place {
            ConstantSlot::General(_) => true,
            ConstantSlot::Profile(style, _) => *style == case.engine.style,
            ConstantSlot::Generation(name, _) => *name == gpu.generation,
        }
    }

    fn at<'a>(&self, constants: &'a mut Constants) -> &'a mut f64 {
        match &self.place {
            ConstantSlot::General(field) => field(&mut constants.general),
            ConstantSlot::Profile(style, field) => field(constants.profiles.of_mut(*style)),
            ConstantSlot::Generation(name, field) => {
                field(constants.generations.get_mut(name).expect("it was there when the constant was named"))
            }
        }
    }
}

fn field<T>(fields: &[NamedField<T>], key: &str) -> Option<fn(&mut T) -> &mut f64> {
    fields.iter().find(|(name, _)| *name == key).map(|(_, field)| *field)
}

/// Returns the inputs `case` on `gpu` under other `constants`; layout, engine and links stay the same.
pub fn with_constants<'a>(case: &StepInputs<'a>, gpu: &GpuSpec, constants: &'a Constants) -> StepInputs<'a> {
    let (mut before, mut after) =
        (case.constants.profile(case.engine.style), constants.profile(case.engine.style));
    let mut engine = case.engine;
    for (_, field) in PROFILE {
        let (before, after, own) = (field(&mut before), field(&mut after), field(&mut engine.profile));
        // An engine that differs from its style keeps its ratio to it.
        if before == own {
            *own = *after;
        } else if *before > 0.0 {
            *own *= *after / *before;
        }
    }
    StepInputs {
        engine,
        device: DeviceThroughput::of(
            gpu,
            case.products,
            case.kernel,
            case.model.head,
            case.device.power,
            constants,
        ),
        links: case.links.with_constants(&case.constants.general, &constants.general),
        constants,
        ..*case
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_under_its_own_constants_is_the_same_and_what_only_its_engine_does_stays() {
        let constants = Constants::shipped();
        let mut case = crate::analytic::uncertainty::tests::case(8);
        case.engine.profile.hidden_tensor = 0.5;
        let gpu = crate::hardware::gpu("H100").expect("it is in the table");
        let same = with_constants(&case, gpu, constants);
        assert_eq!((same.device, same.links), (case.device, case.links));
        assert_eq!(same.engine.profile.hidden_tensor.to_bits(), 0.5f64.to_bits());
        let hidden = FittedConstant::named("modern.launch").expect("there is one");
        let mut moved = constants.clone();
        hidden.set(&mut moved, 2.0 * constants.profiles.modern.launch);
        assert!(
            (with_constants(&case, gpu, &moved).engine.profile.launch / case.engine.profile.launch - 2.0)
                .abs()
                < 1e-12
        );
    }

    #[test]
    fn a_name_is_a_table_and_a_key() {
        let constants = Constants::shipped();
        let value = |name: &str| FittedConstant::named(name).map(|fitted| fitted.of(constants));
        assert_eq!(value("general.wave"), Some(constants.general.wave));
        assert_eq!(value("modern.passes"), Some(constants.profiles.modern.passes));
        assert_eq!(value("hopper.sustained_16"), Some(constants.generations["hopper"].sustained_16));
        assert_eq!(value("modern.frobnicate").or(value("wave")).or(value("frob.passes")), None);
    }
}
