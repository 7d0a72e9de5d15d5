//! CUDA component on a host: its path, release and origin.

use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Release of CUDA or NCCL as a list of numbers, such as 12.4 or 2.27.3.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(Vec<u32>);

impl Release {
    /// Parses the first `most` numbers of a text such as `12.4.127`; `None` if the text does not begin with a
    /// number.
    pub fn of(text: &str, most: usize) -> Option<Self> {
        let numbers: Vec<u32> = text.split('.').map_while(|number| number.parse().ok()).take(most).collect();
        (!numbers.is_empty()).then_some(Self(numbers))
    }

    /// Decodes a CUDA release as headers and the driver write it: 12040 is 12.4.
    pub fn of_number(number: u32) -> Self {
        Self(vec![number / 1000, number % 1000 / 10])
    }

    /// Returns the first number of the release, such as 12 of 12.4.
    pub fn major(&self) -> u32 {
        self.0.first().copied().unwrap_or(0)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl Serialize for Release {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Origin of a component on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallOrigin {
    /// A folder that an environment variable names: name of the variable, and the folder.
    Variable(&'static str, PathBuf),
    /// The dynamic loader's search path, outside the folders of the other variants.
    Loader,
    /// A CUDA toolkit in this folder.
    Toolkit(PathBuf),
    /// The wheels that PyTorch depends on, in this site-packages folder.
    PyTorch(PathBuf),
    /// NVIDIA's wheels, in this site-packages folder.
    Wheels(PathBuf),
}

impl InstallOrigin {
    /// Returns `true` if the origin is a site-packages folder.
    pub fn is_wheels(&self) -> bool {
        matches!(self, Self::PyTorch(_) | Self::Wheels(_))
    }
}

impl fmt::Display for InstallOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name, folder) => write!(f, "{name} {}", folder.display()),
            Self::Loader => f.write_str("the folders of the loader"),
            Self::Toolkit(folder) => write!(f, "toolkit {}", folder.display()),
            Self::PyTorch(folder) => write!(f, "PyTorch's wheels in {}", folder.display()),
            Self::Wheels(folder) => write!(f, "NVIDIA's wheels in {}", folder.display()),
        }
    }
}

impl Serialize for InstallOrigin {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// CUDA component on a host: a library, or a folder of headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolkitComponent {
    /// Path of the component: a file or a folder.
    pub path: PathBuf,
    /// Release of the component; `None` if neither a file name nor a header shows it.
    pub release: Option<Release>,
    /// Origin of the component.
    pub from: InstallOrigin,
}

impl fmt::Display for ToolkitComponent {
    /// Formats a component such as `/usr/local/cuda/lib64/libnvrtc.so, 12.4, of toolkit /usr/local/cuda`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(release) = &self.release {
            write!(f, ", {release}")?;
        }
        write!(f, ", of {}", self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_compared_as_numbers() {
        let of = |text| Release::of(text, 2).expect("it begins with a number");
        assert!(of("12.10.3") > of("12.4") && of("13") > of("12.9"));
        assert!(of("13") <= of("13.0"), "a library that does not tell its minor release is not newer");
        assert_eq!(Release::of_number(12040), of("12.4.127"));
        assert_eq!(Release::of("alt", 2), None);
        assert_eq!(Release::of("2.27.3", 3).expect("numbers").to_string(), "2.27.3");
    }
}
