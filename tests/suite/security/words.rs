//! Untrusted text reaches the reader unchanged, without terminal control sequences.

use super::trap::Trap;

/// Conceals, moves the cursor, turns the direction of text around, and is not seen.
const WILD: &str = "a\u{1b}[8mb\u{1b}[0mc\u{1b}]0;title\u{7}d\u{202e}e\u{200b}f\u{9b}2Jg\u{e0041}h\u{2028}i";

/// A recipe of a script that prints what is wild, and ends with this code.
fn script(trap: &Trap, code: u8) -> String {
    trap.house.file("said", format!("{WILD}\n"));
    let text = format!(
        "[model]\nkind = 'command'\nargv = ['bash', '-c', 'cat said; cat said >&2; exit {code}']\n\
         [objective]\nstop = {{ steps = 1 }}\n"
    );
    trap.house.file(&format!("exits-{code}.toml"), text).display().to_string()
}

#[test]
fn what_scripts_print_and_notes_say_steers_no_terminal() {
    let trap = Trap::set();
    // `ends` looks at all that is printed.
    trap.ends(trap.dtrain(["run", &script(&trap, 0)]), &[0]);
    trap.ends(trap.dtrain(["note", "last", WILD]), &[0]);
    for command in ["logs", "show"] {
        trap.ends(trap.dtrain([command, "last"]), &[0]);
        trap.ends(trap.dtrain([command, "last", "--json"]), &[0]);
    }
    trap.ends(trap.dtrain(["history"]), &[0]);
    trap.ends(trap.dtrain(["history", "--json"]), &[0]);
    let logs = trap.ends(trap.dtrain(["logs", "last"]), &[0]);
    assert!(
        String::from_utf8_lossy(&logs.stdout).contains("\u{fffd}[8mb"),
        "what was printed is still there"
    );
}

#[test]
fn the_last_words_of_a_script_that_failed_steer_no_terminal() {
    let trap = Trap::set();
    let output = trap.ends(trap.dtrain(["run", &script(&trap, 3)]), &[5, 6]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("abcd\u{fffd}e\u{fffd}f"), "they are quoted");
}
