//! Data that is no regular file is refused by what it is, and nothing waits for it.

use dtrain_tests::House;
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
    let house = House::default();
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
