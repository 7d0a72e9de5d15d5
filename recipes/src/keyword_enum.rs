//! Enums whose values are words in a recipe. `keyword_enum!` generates the enum, its table of words and its
//! parser from one list, so that each value has exactly one word.

use std::any::TypeId;
use std::fmt;

/// Defines an enum of which each value has one word, in recipes and in JSON.
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
            /// All values, in the order of help and messages.
            pub const ALL: &'static [Self] = &[$(Self::$Value,)+];

            /// The words of [`Self::ALL`], in that order.
            pub const NAMES: &'static [&'static str] = &[$($word,)+];

            /// Returns the word of this value.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $word,)+
                }
            }

            /// Returns the value of a word; `None` if no value has it.
            #[deny(unreachable_patterns)]
            pub fn from_name(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$Value),)+
                    // All words of the list are matched above.
                    _ => None,
                }
            }
        }

        /// Writes the word.
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

/// The words of one enum, for the table of keys.
#[derive(Clone, Copy)]
pub struct Keywords {
    names: &'static [&'static str],
    of: TypeId,
    value: fn(&str) -> Option<usize>,
}

impl Keywords {
    /// Returns the words of the enum `T`.
    pub(crate) const fn of<T: KeywordEnum>() -> Self {
        Self { names: T::NAMES, of: TypeId::of::<T>(), value: place::<T> }
    }

    /// Returns all words, in the order of help and messages.
    pub fn names(self) -> &'static [&'static str] {
        self.names
    }

    /// Returns the index of a word's value in its enum; `None` for a word that the enum does not have.
    pub fn value(self, word: &str) -> Option<usize> {
        (self.value)(word)
    }

    /// Returns the word if it is one of these.
    pub(crate) fn find(self, word: &str) -> Option<Keyword> {
        let name = self.names.get(self.value(word)?)?;
        Some(Keyword { name, of: self.of })
    }
}

/// Returns the index of a word's value among all values of its enum.
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

/// A word, with the enum that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keyword {
    name: &'static str,
    of: TypeId,
}

impl Keyword {
    /// Returns the word of a value.
    pub(crate) fn of<T: KeywordEnum>(value: T) -> Self {
        Self { name: value.name(), of: TypeId::of::<T>() }
    }

    /// Returns the word as a recipe spells it.
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// Returns the value. Panics if `T` is not the enum of the key: a mistake in this crate.
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
