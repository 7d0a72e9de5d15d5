//! An environment with a program `fire` on the path, which reports when it runs.

use dtrain_recipes::sanitize::is_harmful;
use dtrain_tests::TestEnv;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Texts that a shell, a program's options, a path or a terminal would make something of. Each that a shell could run runs `fire`.
pub(super) const ATTACKS: [&str; 32] = [
    "$(fire)",
    "`fire`",
    "; fire",
    "x; fire #",
    "| fire",
    "x && fire &",
    "' ; fire ; '",
    "\" ; fire ; \"",
    "\"; import os; os.system(\"fire\") #",
    "'$(fire)'",
    "\\\"$(fire)\\\"",
    "a\nfire\n",
    "a\r\nfire\r\n#",
    "a\n#SBATCH --wrap=fire\n",
    "EOF\nfire\n",
    "${IFS}fire",
    "<(fire)",
    "-oProxyCommand=fire",
    "--wrap=fire",
    "--comment=$(fire);`fire`",
    "--export=ALL,BASH_ENV=fire",
    "-x",
    "--",
    "me@-oProxyCommand=fire",
    "node1,-oProxyCommand=fire",
    "../../x",
    "/etc/passwd",
    "step {step} loss {loss} $(fire)",
    "\u{1b}]0;fire\u{7}\u{1b}[2J\u{9b}2J",
    "\u{202e}fire\u{202c}",
    "<script>fire</script>",
    "a\0fire",
];

/// A house, and a look at whether `fire` ran.
pub(super) struct Trap {
    pub(super) house: TestEnv,
}

impl Trap {
    pub(super) fn set() -> Self {
        let trap = Self { house: TestEnv::default() };
        trap.program("fire", &format!("echo \"$0 $* by $PPID\" >>{}", trap.sentinel().display()));
        trap
    }

    /// Puts a script of bash on the path.
    pub(super) fn program(&self, name: &str, script: &str) {
        let path = self.house.file(&format!("bin/{name}"), format!("#!/bin/bash\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// The program with these arguments, which finds what lies in `bin` first, as all that it starts.
    pub(super) fn dtrain<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.with_path(self.house.dtrain(args))
    }

    /// A command that finds what lies in `bin` first.
    pub(super) fn with_path(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder().join("bin").display())).stdin(Stdio::null());
        command
    }

    /// Runs to the end, with one of these exit codes; what was said steers no terminal, and nothing fired.
    pub(super) fn ends(&self, mut command: Command, codes: &[i32]) -> Output {
        let output = command.output().expect("the program starts");
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let words =
            || format!("{command:?}: {}\n--- stdout\n{}\n--- stderr\n{}", output.status, said[0], said[1]);
        assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{}", words());
        assert!(
            !said.iter().any(|text| text.contains(is_harmful)),
            "a control character, or an invisible one, is printed: {:?}",
            words()
        );
        self.nothing_fired(&words);
        output
    }

    /// Fails when `fire` ran; `what` says after what.
    pub(super) fn nothing_fired(&self, what: &dyn Fn() -> String) {
        let fired = fs::read_to_string(self.sentinel()).unwrap_or_default();
        assert!(fired.is_empty(), "fired: {fired}\nafter {}", what());
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.house.state().parent().expect("the state lies in the house").to_owned()
    }

    /// A file, or folders and a file, whose path is hostile; `None` where no file can be called so.
    pub(super) fn hostile_file(&self, name: &str, text: &str) -> Option<String> {
        let is_inside = !name.contains("..") && !name.starts_with('/') && !name.contains('\0');
        is_inside.then(|| {
            self.house.file(name, text);
            name.to_owned()
        })
    }

    fn sentinel(&self) -> PathBuf {
        self.folder().join("SENTINEL")
    }
}

#[test]
fn the_trap_works() {
    let trap = Trap::set();
    let fires = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        drop(trap.with_path(command).output().expect("bash is there"));
        let has_fired = trap.sentinel().exists();
        drop(fs::remove_file(trap.sentinel()));
        has_fired
    };
    let harmful = |attack: &&&str| fires(&format!("echo {attack}")) || fires(&format!("echo '{attack}'"));
    let count = ATTACKS.iter().filter(|attack| !attack.contains('\0')).filter(harmful).count();
    assert!(count >= 14, "unquoted, {count} of the attacks fire");
    assert!(!fires("echo harmless"));
}
