//! Constants that are fitted, each by its name and its place among [`Constants`]; and a case under other constants.

use super::{Constants, General};
use crate::analytic::engine::{Profile, Style};
use crate::analytic::hardware::{Generation, Gpu};
use crate::analytic::{Case, Device};

/// A constant that can be fitted.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// Its table and key, as in `modern.passes`; `general` is the table of `constants.toml`.
    pub name: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    General(fn(&mut General) -> &mut f64),
    Profile(Style, fn(&mut Profile) -> &mut f64),
    Generation(String, fn(&mut Generation) -> &mut f64),
}

/// Fields of a struct by name.
macro_rules! fields {
    ($of:ty: $($field:ident)*) => {
        &[$((stringify!($field), (|all: &mut $of| &mut all.$field) as fn(&mut $of) -> &mut f64)),*]
    };
}

/// A field of `T` with its name.
type Field<T> = (&'static str, fn(&mut T) -> &mut f64);

const GENERAL: &[Field<General>] = fields!(General: wave align_8 align_4 align_2 align_1 kernel stream flash_1 flash_2 fused
    narrow_head flash_backward attention_ramp ring unfused scores_forward scores_backward plain quantise blocks link link_start link_member
    network network_start network_member all_to_all gather_again contention straggler loss_passes optimizer_bytes operations
    operations_backward operations_tensor operations_unfused operations_experts operations_expert routing imbalance grouped expert_passes
    product_again);

const PROFILE: &[Field<Profile>] = fields!(Profile: passes launch hidden_tensor hidden_data hidden_expert step operations
    late message message_exposed);

const GENERATION: &[Field<Generation>] =
    fields!(Generation: ceiling_16 sustained_16 ceiling_8 sustained_8 flash fused);

const STYLES: [Style; 6] =
    [Style::Research, Style::Megatron, Style::Modern, Style::Fsdp, Style::Compiled, Style::Xla];

/// The largest value of a constant that is a share.
const MOST_HIDDEN: f64 = 0.98;

impl Fitted {
    /// The constant called `name`; `None` where there is none.
    pub fn named(name: &str) -> Option<Self> {
        let (table, key) = name.split_once('.')?;
        let place = if table == "general" {
            Place::General(field(GENERAL, key)?)
        } else if let Some(style) = STYLES.into_iter().find(|style| style.name() == table) {
            Place::Profile(style, field(PROFILE, key)?)
        } else {
            super::generations().get(table)?;
            Place::Generation(table.to_owned(), field(GENERATION, key)?)
        };
        Some(Self { name: name.to_owned(), place })
    }

    /// Its value.
    pub fn of(&self, constants: &Constants) -> f64 {
        let mut copy = constants.clone();
        *self.at(&mut copy)
    }

    /// Sets it. What is a share of what can be hidden stays below 1.
    pub fn set(&self, constants: &mut Constants, value: f64) {
        let is_share = self.name.contains(".hidden_") || self.name.contains("message_exposed");
        *self.at(constants) = if is_share { value.min(MOST_HIDDEN) } else { value };
    }

    /// Whether the price of `case` on `gpu` can depend on it.
    pub fn concerns(&self, case: &Case<'_>, gpu: &Gpu) -> bool {
        match &self.place {
            Place::General(_) => true,
            Place::Profile(style, _) => *style == case.engine.style,
            Place::Generation(name, _) => *name == gpu.generation,
        }
    }

    fn at<'a>(&self, constants: &'a mut Constants) -> &'a mut f64 {
        match &self.place {
            Place::General(field) => field(&mut constants.general),
            Place::Profile(style, field) => field(constants.profiles.of_mut(*style)),
            Place::Generation(name, field) => {
                field(constants.generations.get_mut(name).expect("it was there when the constant was named"))
            }
        }
    }
}

fn field<T>(fields: &[Field<T>], key: &str) -> Option<fn(&mut T) -> &mut f64> {
    fields.iter().find(|(name, _)| *name == key).map(|(_, field)| *field)
}

/// `case`, which is of `gpu`, under other `constants`: the same layout, engine and links.
pub fn under<'a>(case: &Case<'a>, gpu: &Gpu, constants: &'a Constants) -> Case<'a> {
    let (mut before, mut after) =
        (case.constants.profile(case.engine.style), constants.profile(case.engine.style));
    let mut engine = case.engine;
    for (_, field) in PROFILE {
        let (before, after, own) = (field(&mut before), field(&mut after), field(&mut engine.profile));
        // An engine may differ from its style: it keeps its ratio to it.
        if before == own {
            *own = *after;
        } else if *before > 0.0 {
            *own *= *after / *before;
        }
    }
    Case {
        engine,
        device: Device::of(gpu, case.products, case.kernel, case.model.head, case.device.power, constants),
        links: case.links.under(&case.constants.general, &constants.general),
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
        let mut case = crate::analytic::doubt::tests::case(8);
        case.engine.profile.hidden_tensor = 0.5;
        let gpu = crate::analytic::hardware::gpu("H100").expect("it is in the table");
        let same = under(&case, gpu, constants);
        assert_eq!((same.device, same.links), (case.device, case.links));
        assert_eq!(same.engine.profile.hidden_tensor.to_bits(), 0.5f64.to_bits());
        let hidden = Fitted::named("modern.launch").expect("there is one");
        let mut moved = constants.clone();
        hidden.set(&mut moved, 2.0 * constants.profiles.modern.launch);
        assert!(
            (under(&case, gpu, &moved).engine.profile.launch / case.engine.profile.launch - 2.0).abs()
                < 1e-12
        );
    }

    #[test]
    fn a_name_is_a_table_and_a_key() {
        let constants = Constants::shipped();
        let value = |name: &str| Fitted::named(name).map(|fitted| fitted.of(constants));
        assert_eq!(value("general.wave"), Some(constants.general.wave));
        assert_eq!(value("modern.passes"), Some(constants.profiles.modern.passes));
        assert_eq!(value("hopper.sustained_16"), Some(constants.generations["hopper"].sustained_16));
        assert_eq!(value("modern.frobnicate").or(value("wave")).or(value("frob.passes")), None);
    }
}
