//! Enums whose variants are keywords in a recipe. `keyword_enum!` generates the enum, its table of keywords
//! and its parser from one list, so that each variant has exactly one keyword.

use std::any::TypeId;
use std::fmt;

/// Defines an enum with one keyword per variant, used in recipes and in JSON.
macro_rules! keyword_enum {
    (
        $(#[$about:meta])*
        pub enum $Name:ident { $($(#[$meaning:meta])* $Value:ident = $word:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $Name {
            $($(#[$meaning])* #[serde(rename = $word)] $Value,)+
        }

        impl $Name {
            /// All variants, in the order of help and messages.
            pub const ALL: &'static [Self] = &[$(Self::$Value,)+];

            /// The keywords of [`Self::ALL`], in the same order.
            pub const NAMES: &'static [&'static str] = &[$($word,)+];

            /// Returns the keyword of this variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $word,)+
                }
            }

            /// Returns the variant with this keyword; `None` if there is none.
            #[deny(unreachable_patterns)]
            pub fn from_name(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$Value),)+
                    // All words of the list are matched above.
                    _ => None,
                }
            }
        }

        /// Formats the variant as its keyword.
        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl crate::keyword_enum::KeywordEnum for $Name {
            const ALL: &'static [Self] = Self::ALL;
            const NAMES: &'static [&'static str] = Self::NAMES;

            fn name(self) -> &'static str {
                self.name()
            }

            fn from_name(word: &str) -> Option<Self> {
                Self::from_name(word)
            }
        }
    };
}

pub(crate) use keyword_enum;

/// An enum defined by [`keyword_enum!`].
pub(crate) trait KeywordEnum: Copy + Eq + 'static {
    const ALL: &'static [Self];
    const NAMES: &'static [&'static str];
    fn name(self) -> &'static str;
    fn from_name(word: &str) -> Option<Self>;
}

/// The keywords of one enum, without its type, for the table of keys.
#[derive(Clone, Copy)]
pub struct Keywords {
    names: &'static [&'static str],
    of: TypeId,
    value: fn(&str) -> Option<usize>,
}

impl Keywords {
    /// Returns the keywords of the enum `T`.
    pub(crate) const fn of<T: KeywordEnum>() -> Self {
        Self { names: T::NAMES, of: TypeId::of::<T>(), value: place::<T> }
    }

    /// Returns all keywords of the enum, in the order of help and messages.
    pub fn names(self) -> &'static [&'static str] {
        self.names
    }

    /// Returns the index of the variant with the keyword `word`; `None` if the enum has no such keyword.
    pub fn value(self, word: &str) -> Option<usize> {
        (self.value)(word)
    }

    /// Returns `word` as a [`Keyword`]; `None` if the enum has no such keyword.
    pub(crate) fn find(self, word: &str) -> Option<Keyword> {
        let name = self.names.get(self.value(word)?)?;
        Some(Keyword { name, of: self.of })
    }
}

/// Returns the index in `T::ALL` of the variant with the keyword `word`.
fn place<T: KeywordEnum>(word: &str) -> Option<usize> {
    let value = T::from_name(word)?;
    T::ALL.iter().position(|other| *other == value)
}

impl PartialEq for Keywords {
    fn eq(&self, other: &Self) -> bool {
        self.of == other.of
    }
}

impl fmt::Debug for Keywords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names.fmt(f)
    }
}

/// A keyword, with the enum that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keyword {
    name: &'static str,
    of: TypeId,
}

impl Keyword {
    /// Returns the keyword of an enum's variant.
    pub(crate) fn of<T: KeywordEnum>(value: T) -> Self {
        Self { name: value.name(), of: TypeId::of::<T>() }
    }

    /// Returns the keyword as a recipe spells it.
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// Returns the variant of `T` with this keyword. Panics if the keyword belongs to another enum, which is
    /// a mistake in this crate.
    pub(crate) fn value<T: KeywordEnum>(self) -> Option<T> {
        assert_eq!(self.of, TypeId::of::<T>(), "{:?} is no word of {:?}", self.name, T::NAMES);
        T::from_name(self.name)
    }
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the enum of a test is public, as all of `keyword_enum!` are")]
mod tests {
    use super::*;

    keyword_enum! {
        /// Signals of a crossing.
        pub enum Signal {
            /// Do not go.
            Stop = "stop",
            /// Go.
            GoOn = "go_on",
        }
    }

    #[test]
    fn a_word_is_the_same_in_recipes_and_in_json() {
        for (signal, word) in [(Signal::Stop, "stop"), (Signal::GoOn, "go_on")] {
            assert_eq!((signal.name(), Signal::from_name(word)), (word, Some(signal)));
            assert_eq!(signal.to_string(), word);
            let json = serde_json::to_value(signal).expect("a word");
            assert_eq!(json, word);
            assert_eq!(serde_json::from_value::<Signal>(json).expect("it was just written"), signal);
        }
        assert_eq!((Signal::ALL.len(), Signal::NAMES), (2, ["stop", "go_on"].as_slice()));
        assert_eq!(Signal::from_name("GoOn"), None);
    }

    #[test]
    #[should_panic(expected = "\"stop\" is no word of [\"decoder\"")]
    fn a_word_has_no_value_of_another_enum() {
        Keyword::of(Signal::Stop).value::<crate::keys::Kind>();
    }
}
