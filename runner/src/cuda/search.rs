//! Search for CUDA installations: folders that variables name, toolkits, and Python packages. It looks at
//! file names only; nothing is loaded, and no Python is started.

use super::component::{InstallOrigin, Release};
use super::host_environment::HostEnvironment;
use super::required_headers::HEADERS;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Environment variables that name the folder of a CUDA toolkit.
const NAMED: [&str; 2] = ["CUDA_PATH", "CUDA_HOME"];

/// Name of the folder below `targets` in a CUDA toolkit for this machine's architecture.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "sbsa-linux" } else { "x86_64-linux" };

/// Header that defines the CUDA release of a set of headers.
const RELEASE_HEADER: &str = "cuda_runtime_api.h";

/// CUDA installation: a toolkit, or the wheels of one release in a site-packages folder.
#[derive(Clone, Debug)]
pub(super) struct InstallLocation {
    pub(super) origin: InstallOrigin,
    /// Folders that may hold NVRTC.
    pub(super) libraries: Vec<PathBuf>,
    /// Include folders that are used together.
    pub(super) includes: Vec<PathBuf>,
    /// Folders that may hold NCCL.
    pub(super) nccl: Vec<PathBuf>,
}

impl InstallLocation {
    /// Returns the install location of the CUDA toolkit in `folder`.
    fn toolkit(folder: &Path, origin: InstallOrigin) -> Self {
        let target = Path::new("targets").join(ARCHITECTURE);
        let libraries =
            existing(["lib64".into(), "lib".into(), target.join("lib")].map(|name| folder.join(name)));
        let includes = ["include".into(), target.join("include")].map(|name: PathBuf| folder.join(name));
        let includes = includes.into_iter().find(|include| has_any_header(include));
        Self { origin, nccl: libraries.clone(), libraries, includes: includes.into_iter().collect() }
    }

    /// Returns the CUDA release that the headers define; `None` if they do not.
    pub(super) fn release(&self) -> Option<Release> {
        self.includes.iter().find_map(|include| {
            // The release is defined in the first lines.
            let mut text = Vec::new();
            File::open(include.join(RELEASE_HEADER)).ok()?.take(64 << 10).read_to_end(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text);
            let number = text.split_once("#define CUDART_VERSION")?.1.split_ascii_whitespace().next()?;
            number.parse().ok().map(Release::of_number)
        })
    }

    /// Returns the include folder that holds a header, such as `include` of a toolkit for `mma.h`.
    pub(super) fn folder_with(&self, header: &str) -> Option<PathBuf> {
        self.includes.iter().find(|include| include.join(header).exists()).cloned()
    }
}

/// Lists every CUDA installation on a machine: those named by variables, toolkits, and Python packages.
pub(super) fn install_locations(place: &HostEnvironment) -> Vec<InstallLocation> {
    let mut sources = Vec::new();
    for name in NAMED {
        if let Some(folder) = place.folder(name) {
            sources.push(InstallLocation::toolkit(&folder, InstallOrigin::Variable(name, folder.clone())));
        }
    }
    let known = around_libraries(place);
    let toolkits = toolkits(place, &known);
    sources.extend(
        toolkits
            .iter()
            .map(|folder| InstallLocation::toolkit(folder, InstallOrigin::Toolkit(folder.clone()))),
    );
    let sites =
        sites(place, known.into_iter().chain(NAMED.into_iter().filter_map(|name| place.folder(name))));
    sources.extend(sites.iter().flat_map(|site| wheels(site)));
    sources
}

/// Returns the installation prefix of every NVRTC that the loader knows.
fn around_libraries(place: &HostEnvironment) -> Vec<PathBuf> {
    let cached = place.loader_cache().into_iter().filter(|path| is_nvrtc(path));
    let named = place.variable("LD_LIBRARY_PATH").into_iter().flat_map(std::env::split_paths);
    let named = named.filter(|path| path.is_absolute()).flat_map(|folder| libraries(&folder, "libnvrtc.so"));
    let real = cached.chain(named).filter_map(|library| library.canonicalize().ok());
    real.filter_map(|library| prefix(&library)).collect()
}

/// Lists the libraries in a folder whose names begin with `name`.
pub(super) fn libraries(folder: &Path, name: &str) -> Vec<PathBuf> {
    HostEnvironment::names(folder, name).into_iter().map(|name| folder.join(name)).collect()
}

/// Lists the folders of CUDA toolkits that no variable names; `known` are the prefixes of libraries that the
/// loader knows.
fn toolkits(place: &HostEnvironment, known: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = vec![place.at("/usr/local/cuda"), place.at("/opt/cuda")];
    let releases = HostEnvironment::names(&place.at("/usr/local"), "cuda-").into_iter();
    folders.extend(releases.map(|name| place.at("/usr/local").join(name)));
    let nvcc = [place.program("nvcc"), Some(place.at("/usr/bin/nvcc"))];
    folders.extend(nvcc.into_iter().flatten().filter_map(|program| prefix(&program.canonicalize().ok()?)));
    folders.extend(place.folder("CONDA_PREFIX"));
    folders.extend(known.iter().filter(|folder| site_around(folder).is_none()).cloned());
    distinct(folders)
}

/// Returns the site-packages folder above the folder of a wheel, such as `nvidia/cu13`; `None` for other
/// folders.
fn site_around(folder: &Path) -> Option<PathBuf> {
    let nvidia = folder.parent()?;
    if nvidia.file_name()? == "nvidia" { prefix(folder) } else { None }
}

/// Returns `true` if `folder` has any of the CUDA headers that kernels need.
fn has_any_header(folder: &Path) -> bool {
    let names = HEADERS.iter().map(|header| header.name);
    names.chain([RELEASE_HEADER]).any(|name| folder.join(name).exists())
}

/// Returns the installation prefix of a program or library: the parent of its folder.
fn prefix(file: &Path) -> Option<PathBuf> {
    file.parent()?.parent().map(Path::to_path_buf)
}

pub(super) fn is_nvrtc(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"))
}

/// Lists the site-packages folders with NVIDIA packages: around the folders `known`, of the Pythons in
/// `VIRTUAL_ENV`, `CONDA_PREFIX` and `PATH`, in `PYTHONPATH`, and the user's own.
fn sites(place: &HostEnvironment, known: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| place.folder(name));
    let pythons = environments.map(|prefix| prefix.join("bin/python3")).chain(place.program("python3"));
    let mut prefixes: Vec<PathBuf> = pythons.flat_map(|python| prefixes(&python)).collect();
    let user = place.folder("PYTHONUSERBASE").or_else(|| Some(place.folder("HOME")?.join(".local")));
    prefixes.extend(user);
    let mut sites: Vec<PathBuf> = known.filter_map(|folder| site_around(&folder)).collect();
    sites.extend(place.variable("PYTHONPATH").into_iter().flat_map(std::env::split_paths));
    for prefix in prefixes {
        // Debian's Python in /usr also uses packages that users install in /usr/local.
        for prefix in [prefix.join("local"), prefix] {
            for library in ["lib", "lib64"].map(|name| prefix.join(name)) {
                let pythons =
                    HostEnvironment::names(&library, "python3").into_iter().map(|name| library.join(name));
                sites.extend(
                    pythons
                        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name))),
                );
            }
        }
    }
    // A relative path could lead to another user's files.
    let absolute = sites.into_iter().filter(|site| site.is_absolute());
    distinct(absolute.map(|site| site.join("nvidia")).collect())
        .iter()
        .filter_map(|nvidia| nvidia.parent().map(Path::to_path_buf))
        .collect()
}

/// Returns the prefix of a Python environment, and that of the Python it was made from if packages of that
/// count as well. A pyenv shim stands for each of its Pythons, as it is unknown which one it starts.
fn prefixes(python: &Path) -> Vec<PathBuf> {
    if python.parent().and_then(Path::file_name).is_some_and(|name| name == "shims") {
        let versions = prefix(python).map(|pyenv| pyenv.join("versions")).unwrap_or_default();
        return HostEnvironment::names(&versions, "").into_iter().map(|name| versions.join(name)).collect();
    }
    let own = prefix(python);
    let settings = own.as_ref().and_then(|own| fs::read_to_string(own.join("pyvenv.cfg")).ok());
    let is_closed = settings.is_some_and(|text| !text.contains("include-system-site-packages = true"));
    let base = if is_closed { None } else { python.canonicalize().ok().and_then(|base| prefix(&base)) };
    own.into_iter().chain(base).collect()
}

/// Lists NVIDIA's wheels in a site-packages folder: since CUDA 13 in one folder per release, before in one
/// per component.
fn wheels(site: &Path) -> Vec<InstallLocation> {
    let nvidia = site.join("nvidia");
    let origin = if site.join("torch").exists() { InstallOrigin::PyTorch } else { InstallOrigin::Wheels };
    let source = |libraries: Vec<PathBuf>, includes: Vec<PathBuf>| InstallLocation {
        origin: origin(site.to_owned()),
        libraries: existing(libraries),
        includes: existing(includes),
        nccl: Vec::new(),
    };
    let is_release = |name: &String| name["cu".len()..].parse::<u32>().is_ok();
    let releases = HostEnvironment::names(&nvidia, "cu").into_iter().filter(is_release);
    let releases = releases.map(|name| nvidia.join(name));
    let mut sources: Vec<InstallLocation> =
        releases.map(|folder| source(vec![folder.join("lib")], vec![folder.join("include")])).collect();
    let parts = ["cuda_runtime", "cuda_nvcc", "cuda_cccl"].map(|part| nvidia.join(part).join("include"));
    sources.push(source(vec![nvidia.join("cuda_nvrtc/lib")], parts.into()));
    sources.push(InstallLocation {
        nccl: existing([nvidia.join("nccl/lib")]),
        ..source(Vec::new(), Vec::new())
    });
    sources
}

fn existing(folders: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    folders.into_iter().filter(|folder| folder.is_dir()).collect()
}

/// Returns the folders that exist, each only once after links are resolved.
fn distinct(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut real = Vec::new();
    let is_new = |folder: &PathBuf| {
        let Ok(found) = folder.canonicalize() else { return false };
        let is_new = !real.contains(&found);
        real.push(found);
        is_new
    };
    folders.into_iter().filter(is_new).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    /// Lists the origins of the folders with libraries or headers, as text without the root.
    fn found(place: &HostEnvironment) -> Vec<String> {
        let has_any = |source: &InstallLocation| !source.libraries.is_empty() || !source.includes.is_empty();
        let root = place.root.to_string_lossy().into_owned();
        install_locations(place)
            .iter()
            .filter(|one| has_any(one))
            .map(|one| one.origin.to_string().replace(&root, ""))
            .collect()
    }

    #[test]
    fn toolkits_are_found_once_by_variables_usual_folders_and_programs() {
        let (_folder, mut place) = fake::machine(&[
            "/usr/local/cuda-12.4/lib64/libnvrtc.so.12",
            "/usr/local/cuda-11.8/include/cuda_runtime_api.h",
            "/software/cuda/bin/nvcc",
            "/software/cuda/lib64/libnvrtc.so.13",
        ]);
        fake::link(&place, "/usr/local/cuda", "/usr/local/cuda-12.4");
        assert_eq!(found(&place), ["toolkit /usr/local/cuda", "toolkit /usr/local/cuda-11.8"]);
        fake::set(&mut place, "PATH", "/software/cuda/bin");
        assert_eq!(found(&place)[2..], ["toolkit /software/cuda"]);
        fake::set(&mut place, "CUDA_HOME", "/software/cuda");
        assert_eq!(found(&place)[0], "CUDA_HOME /software/cuda");
    }

    #[test]
    fn a_toolkit_around_a_library_of_the_loader_is_found() {
        let (_folder, place) =
            fake::machine(&["/big/cuda/lib64/libnvrtc.so.12.4.1", "/big/cuda/include/cuda_runtime_api.h"]);
        fake::link(&place, "/big/cuda/lib64/libnvrtc.so", "/big/cuda/lib64/libnvrtc.so.12.4.1");
        assert!(found(&place).is_empty());
        fake::write(&place, "/etc/ld.so.cache", "\0/big/cuda/lib64/libnvrtc.so\0");
        assert_eq!(found(&place), ["toolkit /big/cuda"]);
    }

    #[test]
    fn wheels_are_found_in_the_environment_that_is_active_and_in_the_python_of_the_search_path() {
        let (_folder, mut place) = fake::machine(&[
            "/home/me/env/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "/usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "/usr/local/lib/python3.11/dist-packages/torch/version.py",
            "/home/me/.local/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "/usr/bin/python3.11",
        ]);
        fake::link(&place, "/usr/bin/python3", "/usr/bin/python3.11");
        assert!(found(&place).is_empty(), "no variable names a Python");
        fake::set(&mut place, "PATH", "/usr/bin");
        let system = "PyTorch's wheels in /usr/local/lib/python3.11/dist-packages";
        assert_eq!(found(&place), [system]);
        fake::set(&mut place, "VIRTUAL_ENV", "/home/me/env");
        fake::set(&mut place, "HOME", "/home/me");
        let [active, user] = ["env/lib/python3.12", ".local/lib/python3.9"]
            .map(|at| format!("NVIDIA's wheels in /home/me/{at}/site-packages"));
        assert_eq!(found(&place), [active.as_str(), system, user.as_str()]);
    }

    #[test]
    fn the_pythons_of_pyenv_count_where_its_program_comes_first() {
        let site = "/home/me/.pyenv/versions/3.12.1/lib/python3.12/site-packages";
        let library = format!("{site}/nvidia/cu13/lib/libnvrtc.so.13");
        let (_folder, mut place) =
            fake::machine(&[&library, "/home/me/.pyenv/shims/python3", "/usr/bin/python3"]);
        fake::set(&mut place, "PATH", "/usr/bin");
        assert!(found(&place).is_empty());
        fake::set(&mut place, "PATH", "/home/me/.pyenv/shims");
        assert_eq!(found(&place), [format!("NVIDIA's wheels in {site}")]);
    }

    #[test]
    fn the_packages_of_the_python_that_an_environment_was_made_from_count_only_where_it_says_so() {
        let (_folder, mut place) = fake::machine(&[
            "/opt/python/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "/opt/python/bin/python3.12",
        ]);
        fake::link(&place, "/env/bin/python3", "/opt/python/bin/python3.12");
        fake::write(&place, "/env/pyvenv.cfg", "include-system-site-packages = false\n");
        fake::set(&mut place, "VIRTUAL_ENV", "/env");
        assert!(found(&place).is_empty());
        fake::write(&place, "/env/pyvenv.cfg", "include-system-site-packages = true\n");
        assert_eq!(found(&place), ["NVIDIA's wheels in /opt/python/lib/python3.12/site-packages"]);
    }

    #[test]
    fn the_release_of_headers_is_read_from_them() {
        let (_folder, place) = fake::machine(&[]);
        fake::write(
            &place,
            "/usr/local/cuda/include/cuda_runtime_api.h",
            "/* */\n#define CUDART_VERSION  12040\n",
        );
        assert_eq!(install_locations(&place)[0].release(), Some(Release::of_number(12040)));
    }
}
