//! Data that is no regular file is refused by what it is, and nothing waits for it.

use dtrain_tests::TestEnv;
use rustix::fs::{FileType, Mode, mknodat};
use std::os::unix::net::UnixListener;

const RECIPE: &str = "[model]
kind = \"decoder\"
layers = 1
hidden = 16
heads = 2
context = 16

[data]
train = \"text.txt\"

[objective]
stop = { steps = 5 }
";

#[test]
fn what_is_no_regular_file_is_told_by_its_kind() {
    let house = TestEnv::default();
    let place = house.file("recipe.toml", RECIPE).with_file_name("place");
    std::fs::create_dir(&place).expect("a folder");
    mknodat(rustix::fs::CWD, place.join("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
    let _socket = UnixListener::bind(place.join("socket")).expect("a socket");
    for (name, kind) in [
        ("place/fifo", "a FIFO"),
        ("place/socket", "a socket"),
        ("/dev/zero", "a device"),
        ("/dev/null", "a device"),
    ] {
        house.file("recipe.toml", RECIPE.replace("text.txt", name));
        for command in [&["check", "recipe.toml"][..], &["data", "recipe.toml"], &["run", "recipe.toml"]] {
            let output = house.expect(2, command);
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let expected = format!("is {kind}, expected a regular file");
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(&expected), "{command:?}: expected `{expected}` in: {said}");
        }
    }
    assert!(!house.state().join("trials").exists(), "nothing was recorded");
}

#[test]
fn a_pipe_in_the_repository_around_a_recipe_is_not_waited_for() {
    let script = "[model]\nkind = \"command\"\nargv = [\"echo\", \"step 1 loss 1\"]\n\
        progress = [\"step {step} loss {loss}\"]\n[objective]\nstop = { steps = 1 }\n[cluster]\nranks = 1\n";
    let house = TestEnv::default();
    for name in ["HEAD", "index", "commondir"] {
        let recipe = house.file(&format!("{name}/recipe.toml"), script);
        let folder = recipe.parent().expect("a folder");
        let made = std::process::Command::new("git").arg("-C").arg(folder).args(["init", "-q"]).status();
        assert!(made.expect("git starts").success());
        let pipe = folder.join(".git").join(name);
        drop(std::fs::remove_file(&pipe));
        mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
        house.expect(0, ["run", &recipe.display().to_string()]);
    }
}
