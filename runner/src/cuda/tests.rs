//! Selected components on various machines, and how a worker finds them.

use super::required_headers::HEADERS;
use super::{HostEnvironment, Release, Toolkit, fake};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

const SITE: &str = "/env/lib/python3.12/site-packages";

fn release(number: u32) -> Option<Release> {
    Some(Release::of_number(number))
}

/// Makes a machine with Python packages and a home folder.
fn machine(files: &[&str]) -> (TempDir, HostEnvironment) {
    let (folder, mut place) = fake::machine(files);
    fake::set(&mut place, "VIRTUAL_ENV", "/env");
    fake::set(&mut place, "HOME", "/home/me");
    (folder, place)
}

/// Writes headers of a release into a folder.
fn headers(place: &HostEnvironment, folder: &str, number: u32, names: &[&str]) {
    let release = format!("#define CUDART_VERSION  {number}\n");
    fake::write(place, &format!("{folder}/cuda_runtime_api.h"), &release);
    names.iter().for_each(|name| fake::write(place, &format!("{folder}/{name}"), ""));
}

/// Makes a toolkit with NVRTC of a release and all headers but those of the C++ library.
fn toolkit(place: &HostEnvironment, folder: &str, number: u32) {
    let of = Release::of_number(number);
    let file = format!("{folder}/lib64/libnvrtc.so.{of}.127");
    fake::write(place, &file, "");
    fake::write(place, &format!("{folder}/lib64/libnvrtc-builtins.so.{of}"), "");
    fake::link(place, &format!("{folder}/lib64/libnvrtc.so"), &file);
    headers(place, &format!("{folder}/include"), number, &HEADERS.each_ref().map(|header| header.name));
}

/// Makes NVIDIA's wheels of CUDA 13.
fn wheels_13(place: &HostEnvironment, number: u32) {
    fake::write(place, &format!("{SITE}/nvidia/cu13/lib/libnvrtc.so.13"), "");
    let builtins = format!("{SITE}/nvidia/cu13/lib/libnvrtc-builtins.so.{}", Release::of_number(number));
    fake::write(place, &builtins, "");
    let names = HEADERS.each_ref().map(|header| header.name);
    headers(
        place,
        &format!("{SITE}/nvidia/cu13/include"),
        number,
        &[&names[..], &["cccl/cuda/barrier"]].concat(),
    );
}

/// Makes NVIDIA's wheels of CUDA 12: one folder per component.
fn wheels_12(place: &HostEnvironment) {
    fake::write(place, &format!("{SITE}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"), "");
    fake::write(place, &format!("{SITE}/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.4"), "");
    headers(
        place,
        &format!("{SITE}/nvidia/cuda_runtime/include"),
        12040,
        &["cuda_fp16.h", "mma.h", "cooperative_groups/a.h"],
    );
    for file in
        ["cuda_nvcc/include/crt/mma.h", "cuda_cccl/include/cuda/barrier", "cuda_cccl/include/cuda/std/atomic"]
    {
        fake::write(place, &format!("{SITE}/nvidia/{file}"), "");
    }
}

/// Returns the variables that a worker is started with.
fn environment(toolkit: &Toolkit, place: &HostEnvironment) -> BTreeMap<&'static str, OsString> {
    toolkit.environment(place).expect("links can be made").into_iter().collect()
}

/// Returns the first folder of `LD_LIBRARY_PATH`.
fn library_folder(variables: &BTreeMap<&str, OsString>) -> PathBuf {
    std::env::split_paths(&variables["LD_LIBRARY_PATH"]).next().expect("it names a folder")
}

/// Resolves a link.
fn behind(link: &Path) -> PathBuf {
    link.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", link.display()))
}

#[test]
fn a_toolkit_that_the_loader_finds_and_that_has_all_headers_needs_nothing() {
    let (_folder, mut place) = machine(&["/usr/local/cuda/include/cccl/cuda/barrier"]);
    toolkit(&place, "/usr/local/cuda", 12040);
    fake::write(&place, "/etc/ld.so.cache", "\0/usr/local/cuda/lib64/libnvrtc.so\0");
    let found = Toolkit::with_driver(&place, release(12040));
    let nvrtc = found.nvrtc.taken.clone().expect("it is there");
    assert_eq!(nvrtc.release, release(12040));
    assert!(nvrtc.from.to_string().starts_with("toolkit /"), "its folder is told: {nvrtc}");
    assert!(found.nvrtc.passed_over.is_empty() && found.headers.passed_over.is_empty(), "{found:?}");
    assert!(environment(&found, &place).is_empty());
    // A toolkit in an unusual place is named by a variable.
    fs::rename(place.at("/usr/local/cuda"), place.at("/software")).expect("moved");
    fake::write(&place, "/etc/ld.so.cache", "");
    fake::set(&mut place, "CUDA_PATH", "/software");
    let found = Toolkit::with_driver(&place, release(12040));
    let variables = environment(&found, &place);
    assert!(!variables.contains_key("CUDA_PATH"), "it is set: {variables:?}");
    assert_eq!(
        behind(&library_folder(&variables).join("libnvrtc.so")),
        place.at("/software/lib64/libnvrtc.so.12.4.127")
    );
    assert!(!place.at("/home/me/.cache/dtrain/cuda").join("include").exists());
}

#[test]
fn a_toolkit_without_the_cpp_library_takes_that_of_wheels_of_its_release() {
    let (_folder, place) = machine(&[]);
    toolkit(&place, "/usr/local/cuda", 12040);
    let alone = Toolkit::with_driver(&place, release(12040));
    assert_eq!(alone.headers.taken.as_ref().and_then(|headers| headers.cccl.clone()), None);
    assert!(!environment(&alone, &place).contains_key("CUDA_PATH"), "most kernels do without");
    wheels_13(&place, 13000);
    let newer = Toolkit::with_driver(&place, release(12040));
    assert_eq!(newer.headers.taken.and_then(|headers| headers.cccl), None, "that of CUDA 13 is another");
    fs::remove_dir_all(place.at("/env")).expect("removed");
    wheels_12(&place);
    fs::remove_file(place.at(format!("{SITE}/nvidia/cuda_nvcc/include/crt/mma.h"))).expect("removed");
    let found = Toolkit::with_driver(&place, release(12040));
    let root = PathBuf::from(&environment(&found, &place)["CUDA_PATH"]);
    assert_eq!(behind(&root.join("include/mma.h")), place.at("/usr/local/cuda/include/mma.h"));
    let barrier = place.at(format!("{SITE}/nvidia/cuda_cccl/include/cuda/barrier"));
    assert_eq!(behind(&root.join("include/cccl/cuda/barrier")), barrier);
}

#[test]
fn wheels_of_cuda_13_are_used_by_their_folder_and_a_shorter_name() {
    let (_folder, mut place) = machine(&[]);
    wheels_13(&place, 13050);
    fake::set(&mut place, "LD_LIBRARY_PATH", "/driver");
    let found = Toolkit::with_driver(&place, None);
    assert_eq!(found.nvrtc.taken.as_ref().and_then(|nvrtc| nvrtc.release.clone()), release(13050));
    let variables = environment(&found, &place);
    assert_eq!(PathBuf::from(&variables["CUDA_PATH"]), place.at(format!("{SITE}/nvidia/cu13")));
    let folder = library_folder(&variables);
    assert!(folder.starts_with(place.at("/home/me/.cache/dtrain/cuda")), "{variables:?}");
    let libraries = place.at(format!("{SITE}/nvidia/cu13/lib"));
    assert_eq!(behind(&folder.join("libnvrtc.so")), libraries.join("libnvrtc.so.13"));
    assert_eq!(
        behind(&folder.join("libnvrtc-builtins.so.13.5")),
        libraries.join("libnvrtc-builtins.so.13.5")
    );
    let all: Vec<_> = std::env::split_paths(&variables["LD_LIBRARY_PATH"]).collect();
    assert_eq!(all, [folder, place.at("/driver")], "what was named stays");
    assert_eq!(environment(&found, &place), variables, "the second time the folder is there");
}

#[test]
fn wheels_of_cuda_12_are_put_together_from_their_folders() {
    let (_folder, place) = machine(&[]);
    wheels_12(&place);
    let found = Toolkit::with_driver(&place, release(12040));
    let taken = found.headers.taken.clone().expect("they are there");
    assert!(taken.missing.is_empty() && taken.cccl.is_some(), "{taken:?}");
    let variables = environment(&found, &place);
    let include = PathBuf::from(&variables["CUDA_PATH"]).join("include");
    for (header, part) in
        [("mma.h", "cuda_runtime"), ("crt/mma.h", "cuda_nvcc"), ("cuda/std/atomic", "cuda_cccl")]
    {
        assert_eq!(behind(&include.join(header)), place.at(format!("{SITE}/nvidia/{part}/include/{header}")));
    }
    // If two components have a folder of the same name, the files of both are visible.
    fake::write(&place, &format!("{SITE}/nvidia/cuda_runtime/include/crt/other.h"), "");
    let variables = environment(&Toolkit::with_driver(&place, None), &place);
    let again = PathBuf::from(&variables["CUDA_PATH"]).join("include");
    assert_ne!(again, include, "other links are another folder");
    assert!(again.join("crt/mma.h").exists() && again.join("crt/other.h").exists());
    assert!(
        library_folder(&variables).join("libnvrtc.so").exists(),
        "a folder that the loader does not know"
    );
}

#[test]
fn of_pytorchs_wheels_the_header_that_they_lack_is_told_and_a_toolkit_that_has_it_goes_first() {
    let (_folder, place) = machine(&[]);
    wheels_13(&place, 13000);
    fake::write(&place, &format!("{SITE}/torch/version.py"), "");
    fs::remove_file(place.at(format!("{SITE}/nvidia/cu13/include/crt/mma.h"))).expect("removed");
    let found = Toolkit::with_driver(&place, release(13000));
    let taken = found.headers.taken.expect("most of them are there");
    assert_eq!(taken.missing.iter().map(|header| header.python).collect::<Vec<_>>(), ["nvidia-cuda-crt"]);
    assert!(taken.part.from.to_string().starts_with("PyTorch's wheels in "), "{}", taken.part);

    toolkit(&place, "/usr/local/cuda", 12040);
    let found = Toolkit::with_driver(&place, release(13000));
    assert_eq!(found.nvrtc.taken.and_then(|nvrtc| nvrtc.release), release(12040));
    assert_eq!(found.nvrtc.passed_over[0].reason, "its headers lack crt/mma.h");
    assert_eq!(found.headers.passed_over[0].reason, "lacks crt/mma.h");
}

#[test]
fn the_newest_nvrtc_is_taken_that_the_driver_is_not_older_than() {
    let (_folder, mut place) = machine(&[]);
    toolkit(&place, "/usr/local/cuda-12.2", 12020);
    toolkit(&place, "/usr/local/cuda-12.4", 12040);
    wheels_13(&place, 13050);
    let taken = |place: &HostEnvironment, driver| {
        let found = Toolkit::with_driver(place, driver);
        let taken = found.nvrtc.taken.and_then(|nvrtc| nvrtc.release).expect("one is taken");
        let of_headers =
            found.headers.taken.and_then(|headers| headers.part.release).expect("they are taken");
        assert_eq!(taken, of_headers, "headers are of the release of NVRTC");
        (taken.to_string(), found.nvrtc.passed_over.into_iter().map(|other| other.reason).collect::<Vec<_>>())
    };
    let (release_of_12_2, reasons) = taken(&place, release(12020));
    assert_eq!(release_of_12_2, "12.2");
    assert_eq!(reasons, ["newer than the driver's CUDA 12.2"; 2]);
    assert_eq!(taken(&place, release(13000)).0, "12.4");
    assert_eq!(taken(&place, release(13050)), ("13.5".to_owned(), vec!["older than 13.5".to_owned(); 2]));
    assert_eq!(taken(&place, None).0, "13.5", "a driver that does not tell");
    // A named installation goes first, unless the driver refuses it.
    fake::set(&mut place, "CUDA_PATH", "/usr/local/cuda-12.2");
    let (named, reasons) = taken(&place, release(13050));
    assert_eq!(named, "12.2");
    assert_eq!(reasons, ["CUDA_PATH goes first"; 2]);
    fake::set(&mut place, "CUDA_PATH", "/usr/local/cuda-12.4");
    assert_eq!(taken(&place, release(12020)).0, "12.2");
}

#[test]
fn where_all_are_newer_than_the_driver_one_is_taken_all_the_same() {
    let (_folder, place) = machine(&[]);
    wheels_13(&place, 13050);
    let found = Toolkit::with_driver(&place, release(13000));
    assert!(found.is_refused_by(release(13000).as_ref()), "what it compiles is not kept");
    assert!(!found.is_refused_by(release(13050).as_ref()) && !found.is_refused_by(None));
    assert_eq!(found.nvrtc.taken.and_then(|nvrtc| nvrtc.release), release(13050), "the driver then says why");
}

#[test]
fn where_nothing_is_found_nothing_is_changed() {
    let (_folder, mut place) = machine(&["/env/lib/python3.12/site-packages/torch/version.py"]);
    fake::set(&mut place, "CUDA_PATH", "/opt/elsewhere");
    let found = Toolkit::with_driver(&place, None);
    assert!(found.nvrtc.taken.is_none() && found.headers.taken.is_none() && found.nccl.taken.is_none());
    assert!(environment(&found, &place).is_empty());
    assert!(!place.at("/home/me/.cache").exists());
}

#[test]
fn nccl_of_wheels_is_linked_unless_the_loader_finds_one_or_the_driver_is_too_old_for_it() {
    let library = format!("{SITE}/nvidia/nccl/lib/libnccl.so.2");
    let (_folder, mut place) =
        machine(&[&library, &format!("{SITE}/nvidia_nccl_cu13-2.28.9.dist-info/METADATA")]);
    let found = Toolkit::with_driver(&place, release(13000));
    let taken = found.nccl.taken.clone().expect("it is there");
    assert_eq!(taken.release, Release::of("2.28.9", 3));
    let linked = library_folder(&environment(&found, &place)).join("libnccl.so.2");
    assert_eq!(behind(&linked), place.at(&library));

    let old = Toolkit::with_driver(&place, release(12040));
    assert_eq!(old.nccl.taken, None);
    assert_eq!(old.nccl.passed_over[0].reason, "for CUDA 13, newer than the driver's 12.4");

    fake::write(&place, "/usr/lib64/libnccl.so.2.21.5", "");
    fake::link(&place, "/usr/lib64/libnccl.so.2", "/usr/lib64/libnccl.so.2.21.5");
    let found = Toolkit::with_driver(&place, release(13000));
    assert_eq!(found.nccl.taken.clone().and_then(|nccl| nccl.release), Release::of("2.21.5", 3));
    assert!(environment(&found, &place).is_empty());
    // Wheels around a named library are searched as well.
    place.environment.remove(&OsString::from("VIRTUAL_ENV"));
    wheels_13(&place, 13000);
    fake::set(&mut place, "LD_LIBRARY_PATH", &format!("{SITE}/nvidia/cu13/lib"));
    let beside = Toolkit::with_driver(&place, release(13000));
    assert_eq!(beside.nccl.passed_over.len(), 1, "{:?}", beside.nccl);
}

#[test]
fn ranks_that_start_together_make_one_folder() {
    let (_folder, place) = machine(&[]);
    wheels_12(&place);
    let found = Toolkit::with_driver(&place, None);
    let made = thread::scope(|scope| {
        let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| environment(&found, &place))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("it ends")).collect::<Vec<_>>()
    });
    assert!(made.windows(2).all(|pair| pair[0] == pair[1]), "{made:?}");
    let names = HostEnvironment::names(&place.at("/home/me/.cache/dtrain/cuda"), "");
    assert_eq!(names.len(), 1, "nothing is left behind: {names:?}");
}

#[test]
fn a_folder_of_links_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, place) = machine(&[]);
    wheels_12(&place);
    let found = Toolkit::with_driver(&place, None);
    environment(&found, &place);
    let folder = place.at("/home/me/.cache/dtrain/cuda");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let error = found.environment(&place).expect_err("its libraries would be loaded");
    assert!(error.to_string().contains("XDG_CACHE_HOME"), "{error}");
}
