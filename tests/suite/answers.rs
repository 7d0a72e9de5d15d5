//! Answers of `plan`, `plan --on` and `estimate`: each fits a screen of 24 lines of 80 columns with the command that
//! follows, says a reason once, and has a table in the order of its first column.

use dtrain_tests::{TestEnv, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Engines that `--on` plans for.
const ENGINES: [&str; 7] = ["dtrain", "megatron", "torchtitan", "fsdp", "hf-trainer", "deepspeed", "jax"];

/// Lines of standard output, then those of the suggested commands on standard error.
fn lines(output: &Output) -> Vec<String> {
    let data = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> = data.lines().map(str::to_owned).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    let mut is_command = false;
    for line in said.lines() {
        is_command = line.starts_with("next: ") || (is_command && line.starts_with("    "));
        lines.extend(is_command.then(|| line.to_owned()));
    }
    lines
}

/// Seconds of a time such as `82.1 ms`, `1.69 s` or `2 min 10 s`.
fn seconds(words: &[&str]) -> f64 {
    let unit = |word: &str| match word {
        "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        "days" => 86_400.0,
        other => panic!("{other:?} is no unit of time"),
    };
    words.chunks(2).map(|pair| pair[0].parse::<f64>().expect("a number") * unit(pair[1])).sum()
}

/// The step times of the table of an answer, from top to bottom, and the number of rows that are marked.
fn table(lines: &[String]) -> (Vec<f64>, usize) {
    let rows = lines.iter().skip_while(|line| !line.starts_with("layouts ")).skip(1);
    let (mut times, mut marked) = (Vec::new(), 0);
    for row in rows.take_while(|row| row.starts_with("   ")) {
        let row = row.trim_start();
        marked += usize::from(row.starts_with('*'));
        // Two blanks end the first column; the further lines of a layout have no times.
        let Some((time, rest)) = row.trim_start_matches(['*', ' ']).split_once("  ") else { continue };
        if rest.contains("iB ") {
            times.push(seconds(&time.split_whitespace().collect::<Vec<_>>()));
        }
    }
    (times, marked)
}

/// The reasons of an answer, each on one line.
fn reasons(lines: &[String]) -> Vec<String> {
    let rows = lines.iter().skip_while(|line| !line.starts_with("why "));
    let mut rows: Vec<String> = rows.map(|row| row.trim_start_matches("why").trim().to_owned()).collect();
    let end = rows.iter().position(|row| row.starts_with("helps most") || row.starts_with("next: "));
    rows.truncate(end.unwrap_or(rows.len()));
    rows
}

/// Fails unless the output fits a screen and reads as the form says.
fn check(output: &Output, what: &str) {
    let lines = lines(output);
    let text = lines.join("\n");
    assert!(lines.len() <= 24, "{what}: {} lines\n{text}", lines.len());
    for line in &lines {
        assert!(line.chars().count() <= 80, "{what}: a wide line\n{text}");
        assert!(!line.ends_with('…') || line.ends_with(" …"), "{what}: a cut word\n{text}");
    }
    let (times, marked) = table(&lines);
    assert!(times.is_sorted() && times.len() <= 5, "{what}: {times:?}\n{text}");
    assert_eq!(marked, usize::from(!times.is_empty()), "{what}: one choice\n{text}");
    // Other lines go on with a reason.
    let told: Vec<String> = reasons(&lines).into_iter().filter(|line| line.contains(": ")).collect();
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len(), "{what}: {told:?}\n{text}");
}

/// The recipes of a folder and of the folders in it.
fn recipes(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(recipes(&path));
        } else if path.extension().is_some_and(|end| end == "toml")
            && fs::read_to_string(&path)
                .is_ok_and(|text| text.contains("[model]") || text.contains("extends"))
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn plans_elsewhere_fit_a_screen() {
    let house = TestEnv::default();
    let mut all = recipes(&root().join("examples"));
    all.extend(recipes(&root().join("recipes/library")));
    let mut answered = 0;
    for recipe in all {
        let name = recipe.to_str().expect("UTF-8");
        let mut machines = vec!["1x1 RTX 4090", "1x8 H100", "8x8 H100 + 8x8 A100"];
        machines.extend(name.contains("405b").then_some("2048x8 H100"));
        for on in machines {
            for engine in ENGINES {
                let asked = ["plan", name, "--on", on, "--engine", engine];
                let output = house.dtrain(asked).output().expect("it starts");
                if output.status.success() {
                    check(&output, &asked.join(" "));
                    answered += 1;
                }
            }
        }
    }
    assert!(answered > 30, "{answered}");
}

/// Models that dtrain's own worker alone trains are planned for it, with the network between the hosts.
#[test]
fn classifiers_elsewhere_fit_a_screen_and_name_their_exchange() {
    let house = TestEnv::default();
    let text = "name = \"photos\"\n[model]\nkind = \"cnn\"\nchannels = 3\nheight = 64\nwidth = 64\n\
        stages = [64, 128, 256, 512]\nblocks = 2\nclasses = 100\n[data]\nformat = \"csv\"\n\
        train = \"not-here.csv\"\ntarget = \"label\"\nvalid = \"5%\"\n[objective]\nstop = { steps = 10000 }\n\
        [train]\nbatch = 256\n";
    let recipe = house.file("photos.toml", text);
    let recipe = recipe.to_str().expect("UTF-8");
    let on = ["plan", recipe, "--on", "4x1 RTX 3060"];
    let said = |more: &[&str], code| {
        let output = house.expect(code, [&on[..], more].concat());
        let of = if code == 0 { &output.stdout } else { &output.stderr };
        let words = String::from_utf8_lossy(of).split_whitespace().collect::<Vec<_>>().join(" ");
        (output, words)
    };
    let (output, slow) = said(&["--network", "1"], 0);
    check(&output, "a residual network");
    assert!(slow.contains("on 4 RTX 3060 12GB (4 hosts × 1), engine dtrain"), "{slow}");
    assert!(
        slow.contains("data parallel 4") && slow.contains("over a network of 1.0 Gbit/s per GPU"),
        "{slow}"
    );
    let (output, usual) = said(&[], 0);
    check(&output, "an assumed network");
    assert!(usual.contains("Gbit/s per GPU (--network)"), "{usual}");
    let step = |gbits: &str| {
        let (output, _) = said(&["--network", gbits, "--json"], 0);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        found["plan"]["choices"][0]["estimate"]["step"].as_f64().expect("a number")
    };
    assert!(step("1") > 2.0 * step("10"));

    let (_, refused) = said(&["--engine", "megatron"], 2);
    assert!(refused.contains("Megatron") && refused.contains("model.kind = \"cnn\""), "{refused}");
    let (_, refused) = said(&["--emit", "torchtitan"], 2);
    assert!(refused.contains("torchtitan does not train model.kind = \"cnn\""), "{refused}");
    let mixed = house.expect(2, ["plan", recipe, "--on", "4x1 RTX 3060 + 1x8 H100"]);
    let mixed = String::from_utf8_lossy(&mixed.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(mixed.contains("plan each group by itself"), "{mixed}");
    let page = recipe.replace("photos.toml", "plan.html");
    let (_, explained) = said(&["--explain", "--html", &page], 0);
    assert!(explained.contains("candidates evaluated"), "{explained}");
    assert!(fs::read_to_string(&page).is_ok_and(|page| page.contains("<svg")));
}

#[test]
fn plans_here_fit_a_screen() {
    let house = TestEnv::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(1000));
    let mut all = recipes(&root().join("examples"));
    all.push(root().join("recipes/library/char-gpt.toml"));
    let mut answered = 0;
    for recipe in all {
        let name = recipe.to_str().expect("UTF-8");
        let output =
            house.dtrain(["plan", name, "--set", "cluster.probe=\"1 s\""]).output().expect("it starts");
        if output.status.success() {
            check(&output, name);
            answered += 1;
        }
    }
    assert!(answered > 4, "{answered}");
}

#[test]
fn estimates_fit_a_screen_and_explain_prints_all() {
    let house = TestEnv::default();
    let table = root().join("examples/published/rows.csv");
    let text = fs::read_to_string(&table).expect("it is text");
    let output = house.expect(0, ["estimate", table.to_str().expect("UTF-8")]);
    check(&output, "all rows");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("… 24 more rows: --explain"), "{said}");
    assert!(lines(&output).iter().any(|line| line.starts_with("next: dtrain estimate ")), "{said}");
    let all = house.expect(0, ["estimate", table.to_str().expect("UTF-8"), "--explain"]);
    let all = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(all.contains("megatron-bridge-0574") && !said.contains("megatron-bridge-0574"), "{said}");
    let mut rows = text.lines();
    let header = rows.next().expect("a header");
    for row in rows.take(3) {
        let one = house.file("one.csv", format!("{header}\n{row}\n"));
        let output = house.expect(0, ["estimate", one.to_str().expect("UTF-8")]);
        check(&output, row);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("\nruns  ") && words.contains("; measured "), "{said}");
    }
}
