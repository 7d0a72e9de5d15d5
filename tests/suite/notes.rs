//! Notes of any length that a trial can have.

use dtrain_tests::TestEnv;

const SCRIPT: &str = "name = \"script\"\n[model]\nkind = \"command\"\nargv = [\"echo\", \"step 1 loss 1\"]\n\
    progress = [\"step {step} loss {loss}\"]\n[objective]\nstop = { steps = 1 }\n[cluster]\nranks = 1\n";

#[test]
fn the_longest_note_is_shown_and_a_longer_one_is_refused() {
    let house = TestEnv::default();
    house.file("recipe.toml", SCRIPT);
    house.expect(0, ["run", "recipe.toml"]);
    let refused = house.expect(2, ["note", "last", &"x".repeat(70_000)]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("a note has at most 65536 bytes, not 70000"), "{words}");
    house.expect(0, ["note", "last", &"x".repeat(65_536), "--tag", &format!("long={}", "y".repeat(65_536))]);
    let shown = house.expect(0, ["show", "last"]);
    let page = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(page.contains("NOTES") && page.contains(" xxx") && page.contains("long  yyy"), "{page}");
}
