//! Settings of a custom network in a recipe, which the function that builds it reads.

use burn::tensor::Device;
use dtrain_recipes::{CustomModel, InputSignature, ParamValue};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The keys of `[model]` and `[model.settings]` in a recipe.
pub struct ModelSettings<'a> {
    own: &'a CustomModel,
    read: RefCell<BTreeSet<String>>,
}

/// A Rust type that a setting of a custom network can have.
pub trait SettingValue: Sized {
    /// Description of the type, for messages.
    const WANTED: &'static str;

    /// Converts the value of a setting; `None` if it is of another type.
    fn of(value: &ParamValue) -> Option<Self>;
}

impl<'a> ModelSettings<'a> {
    pub(super) fn of(own: &'a CustomModel) -> Self {
        Self { own, read: RefCell::default() }
    }

    /// Returns the setting `model.settings.KEY`, where `KEY` is `key`; `Err` if it is missing or of
    /// another type.
    pub fn get<T: SettingValue>(&self, key: &str) -> Result<T, String> {
        self.find(key)?.ok_or_else(|| format!("missing `model.settings.{key}`: {}", T::WANTED))
    }

    /// Returns the setting `model.settings.KEY`, where `KEY` is `key`, or `default` if the recipe lacks
    /// it.
    pub fn get_or<T: SettingValue>(&self, key: &str, default: T) -> Result<T, String> {
        Ok(self.find(key)?.unwrap_or(default))
    }

    fn find<T: SettingValue>(&self, key: &str) -> Result<Option<T>, String> {
        self.read.borrow_mut().insert(key.to_owned());
        let Some(value) = self.own.settings.get(key) else { return Ok(None) };
        let found = T::of(value);
        found.map(Some).ok_or_else(|| format!("`model.settings.{key}` must be {}, found {value}", T::WANTED))
    }

    /// Returns the input that the recipe says the network reads.
    pub fn reads(&self) -> InputSignature {
        self.own.reads
    }

    /// Returns the number of tokens in a sequence and the size of the vocabulary; `Err` if the recipe
    /// declares rows.
    pub fn tokens(&self) -> Result<[usize; 2], String> {
        match self.own.reads {
            InputSignature::Tokens { context, vocab } => Ok([context as usize, vocab as usize]),
            InputSignature::Rows { .. } => {
                Err("it reads tokens: set `model.context` in place of `model.inputs` and `model.classes`"
                    .into())
            }
        }
    }

    /// Returns the number of values in a row and the number of classes; `Err` if the recipe declares
    /// tokens.
    pub fn rows(&self) -> Result<[usize; 2], String> {
        match self.own.reads {
            InputSignature::Rows { inputs, classes } => Ok([inputs as usize, classes as usize]),
            InputSignature::Tokens { .. } => {
                Err("it reads rows: set `model.inputs` and `model.classes` in place of `model.context`"
                    .into())
            }
        }
    }

    /// Returns the device on which modules are built: host memory, from which dtrain takes their initial
    /// values.
    pub fn device(&self) -> Device {
        Device::flex()
    }

    /// Checks that the network read every setting in the recipe.
    pub(super) fn all_read(&self) -> Result<(), String> {
        let read = self.read.borrow();
        let Some(odd) = self.own.settings.keys().find(|key| !read.contains(*key)) else { return Ok(()) };
        let known: Vec<_> = read.iter().map(|key| format!("`{key}`")).collect();
        Err(match known.as_slice() {
            [] => format!("it has no setting `model.settings.{odd}`, nor any other"),
            known => format!("it has no setting `model.settings.{odd}`; it has {}", known.join(", ")),
        })
    }
}

impl SettingValue for usize {
    const WANTED: &'static str = "a whole number from 0";

    fn of(value: &ParamValue) -> Option<Self> {
        if let ParamValue::Whole(whole) = value { Self::try_from(*whole).ok() } else { None }
    }
}

impl SettingValue for i64 {
    const WANTED: &'static str = "a whole number";

    fn of(value: &ParamValue) -> Option<Self> {
        if let ParamValue::Whole(whole) = value { Some(*whole) } else { None }
    }
}

impl SettingValue for f64 {
    const WANTED: &'static str = "a number";

    fn of(value: &ParamValue) -> Option<Self> {
        value.number()
    }
}

impl SettingValue for bool {
    const WANTED: &'static str = "true or false";

    fn of(value: &ParamValue) -> Option<Self> {
        if let ParamValue::Flag(flag) = value { Some(*flag) } else { None }
    }
}

impl SettingValue for String {
    const WANTED: &'static str = "a text";

    fn of(value: &ParamValue) -> Option<Self> {
        if let ParamValue::Text(text) = value { Some(text.clone()) } else { None }
    }
}
