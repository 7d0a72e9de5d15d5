//! CUDA components that a worker needs on its host, and how its process finds them: NVRTC, which compiles
//! kernels, the headers that kernels include, and NCCL.
//!
//! They are in a CUDA toolkit, in PyTorch's wheels or in NVIDIA's. The libraries that load them ask the
//! dynamic loader for few names, and one variable for one include folder. So dtrain searches for them and
//! starts a worker with variables that lead to them; if a name or folder differs from the expected one, the
//! variables lead to symbolic links in the user's cache folder.

mod candidate;
mod component;
#[cfg(test)]
mod fake;
mod host_environment;
mod required_headers;
mod search;
mod selection;
mod symlinks;
#[cfg(test)]
mod tests;

pub use candidate::HeaderFolders;
pub use component::{InstallOrigin, Release, ToolkitComponent};
pub use host_environment::HostEnvironment;
pub use required_headers::RequiredHeader;
pub use selection::{RejectedComponent, Selection, Toolkit};

use dtrain_protocol::DeviceKind;
use nvml_wrapper::Nvml;
use std::io;
use std::process::Command;

/// CUDA release whose functions this program calls, such as `12020`; set in `.cargo/config.toml`.
///
/// If unset, the program was built for the release of `nvcc`, or for the newest one known.
const BUILT_FOR: Option<&str> = option_env!("CUDARC_CUDA_VERSION");

/// Sets the environment of a worker process on a GPU so that it finds the CUDA components of this host. Does
/// nothing for other devices.
///
/// `Err` names the links that could not be made.
pub fn prepare(command: &mut Command, device: DeviceKind) -> io::Result<()> {
    if device != DeviceKind::Cuda {
        return Ok(());
    }
    let place = HostEnvironment::current();
    let driver = driver_release();
    let mut toolkit = Toolkit::with_driver(&place, driver.clone());
    if toolkit.is_refused_by(driver.as_ref()) {
        // Do not cache kernels that the driver refuses: a later process may have another compiler.
        command.env("DTRAIN_KERNEL_CACHE", "off");
    }
    let variables = toolkit.environment(&place).or_else(|_| {
        // Without a folder for links, GPUs do without NCCL, the least necessary component.
        toolkit.nccl.taken = None;
        toolkit.environment(&place)
    });
    let of_links =
        |error: io::Error| io::Error::new(error.kind(), format!("linking the parts of CUDA: {error}"));
    command.envs(variables.map_err(of_links)?);
    Ok(())
}

/// Returns the newest CUDA release that the driver supports, as `nvidia-smi` prints it; `None` if NVML does
/// not report it.
pub fn driver_release() -> Option<Release> {
    let number = Nvml::init().ok()?.sys_cuda_driver_version().ok()?;
    u32::try_from(number).ok().filter(|number| *number > 0).map(Release::of_number)
}

/// Returns the file names by which this program asks the loader for NVRTC, in search order.
pub fn nvrtc_names() -> Vec<String> {
    let built_for = BUILT_FOR.and_then(|release| release.get(..2)).unwrap_or("13");
    let releases = [built_for, "12", "11"];
    let wanted = releases.iter().enumerate().filter(|(at, release)| !releases[..*at].contains(release));
    let longer = wanted.map(|(_, release)| format!("libnvrtc.so.{release}"));
    std::iter::once("libnvrtc.so".to_owned()).chain(longer).collect()
}
