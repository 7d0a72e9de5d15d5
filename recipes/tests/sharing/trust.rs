//! Leave to run the programs that a recipe names.

use crate::place::{PROGRAM, Place, RECIPE};
use dtrain_recipes::CheckedRecipe;
use dtrain_recipes::sharing::{SharingError, TrustStore, capabilities, list, trust, update};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_program_needs_trust_and_any_change_takes_it_away() {
    let place = Place::new();
    place.commit(&[("program.toml", PROGRAM)]);
    let locked = place.add().unwrap();
    let (store, file) = (place.store(), place.path("trust.toml"));
    let recipe = || place.checked("extends = \"recipes/program\"\n");
    assert_eq!(capabilities(&recipe())[0].to_string(), "runs \"python3\" \"train.py\"");
    let permit = |checked: &CheckedRecipe| trust::permit(&store, &TrustStore::read(&file).unwrap(), checked);
    assert!(matches!(permit(&recipe()), Err(SharingError::Untrusted { .. })));

    let mut granted = TrustStore::read(&file).unwrap();
    granted.grant(&locked);
    granted.write(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(permit(&recipe()).is_ok());

    let before = recipe();
    place.commit(&[("program.toml", &PROGRAM.replace("train.py", "other.py"))]);
    update(&store, "recipes").unwrap();
    assert!(matches!(permit(&before), Err(SharingError::Untrusted { .. })), "another commit");
    assert!(matches!(permit(&recipe()), Err(SharingError::Untrusted { .. })), "another commit, read again");

    granted.grant(&list(&store).unwrap()[0]);
    granted.write(&file).unwrap();
    assert!(permit(&recipe()).is_ok());
    granted.revoke(&place.url());
    granted.write(&file).unwrap();
    assert!(permit(&recipe()).is_err());
    assert!(permit(&place.checked(PROGRAM)).is_ok(), "the user's own file needs no trust");
}

#[test]
fn options_of_sbatch_need_trust_unless_the_user_says_them() {
    let place = Place::new();
    let slurm = "\n[cluster]\nlauncher = \"slurm\"\n";
    let options = "[cluster.slurm]\noptions = [\"--comment=/tmp/x\"]\n";
    let training = "[model]\nkind = \"mlp\"\ninputs = 2\nhidden = [2]\nclasses = 2\n[data]\ntrain = \"a.csv\"\ntarget = \"y\"\n\
                    [objective]\nstop = { steps = 1 }\n";
    place.commit(&[
        ("job.toml", &format!("{training}{slurm}{options}")),
        ("plain.toml", &format!("{training}{slurm}")),
    ]);
    let locked = place.add().unwrap();
    let (store, mut trusted) = (place.store(), TrustStore::default());
    let shared = place.checked("extends = \"recipes/job\"\n");
    assert_eq!(capabilities(&shared)[0].to_string(), "gives sbatch --comment=/tmp/x");
    let refused = trust::permit(&store, &trusted, &shared).unwrap_err().to_string();
    assert!(refused.contains("gives sbatch --comment=/tmp/x"), "{refused}");
    let own = place.checked(&format!("extends = \"recipes/plain\"\n{options}"));
    assert!(trust::permit(&store, &trusted, &own).is_ok(), "the user's own options");
    trusted.grant(&locked);
    assert!(trust::permit(&store, &trusted, &shared).is_ok());
}

#[test]
fn variables_and_params_of_a_package_need_trust_beside_a_program_of_the_user() {
    let place = Place::new();
    place.commit(&[
        ("env.toml", "[model]\nenv = { LD_PRELOAD = \"/tmp/x.so\" }\n"),
        ("params.toml", "[params]\nscript = \"/tmp/x.py\"\n"),
    ]);
    let locked = place.add().unwrap();
    let (store, mut trusted) = (place.store(), TrustStore::default());
    let own = "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n";
    let extending =
        ["env", "params"].map(|name| place.checked(&format!("extends = \"recipes/{name}\"\n{own}")));
    for shared in &extending {
        assert!(trust::permit(&store, &trusted, shared).is_err());
    }
    let told = capabilities(&extending[0])[0].to_string();
    assert!(told.contains("\"LD_PRELOAD=/tmp/x.so\" \"python3\""), "{told}");
    trusted.grant(&locked);
    assert!(extending.iter().all(|shared| trust::permit(&store, &trusted, shared).is_ok()));
}

#[test]
fn files_elsewhere_and_hosts_need_trust_unless_the_user_says_them() {
    let place = Place::new();
    let training = |file: &str| RECIPE.replace("data/*.txt", file);
    let hosts = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"gpu-01\"]\n";
    let hidden = |name: &str| training(&format!("{name}/id_rsa"));
    place.commit(&[
        ("own.toml", RECIPE),
        ("below/own.toml", &training("../data/*.txt")),
        ("home.toml", &training("/home/me/.ssh/id_rsa")),
        ("above.toml", &training("data/../../x")),
        ("glob.toml", &hidden("data/.?/.?")),
        ("stars.toml", &hidden(".*/.*")),
        ("hosts.toml", &format!("{RECIPE}{hosts}")),
        ("below/above.toml", &training("../../x")),
    ]);
    let locked = place.add().unwrap();
    let (store, mut trusted) = (place.store(), TrustStore::default());
    let extending = |name: &str, more: &str| place.checked(&format!("extends = \"recipes/{name}\"\n{more}"));
    let says = |trust: &TrustStore, checked: &CheckedRecipe| {
        trust::permit(&store, trust, checked).map_err(|error| error.to_string())
    };
    for name in ["own", "below/own"] {
        assert_eq!(says(&trusted, &extending(name, "")), Ok(()), "{name} reads the package's own files");
    }
    for (name, does) in [
        ("home", "reads /home/me/.ssh/id_rsa, and"),
        ("above", "reads data/../../x, and"),
        ("glob", "reads data/.?/.?/id_rsa, and"),
        ("stars", "reads .*/.*/id_rsa, and"),
        ("below/above", "reads ../../x, and"),
        ("hosts", "reaches gpu-01, and"),
    ] {
        let refused = says(&trusted, &extending(name, "")).unwrap_err();
        assert!(
            refused.contains(does) && refused.contains("`dtrain recipe trust recipes`"),
            "{name}: {refused}"
        );
    }
    let own = extending("home", "[data]\ntrain = \"/home/me/text.txt\"\n");
    assert_eq!(says(&trusted, &own), Ok(()), "the user's own file");
    assert_eq!(says(&trusted, &extending("own", hosts)), Ok(()), "the user's own hosts");
    trusted.grant(&locked);
    for name in ["home", "above", "glob", "hosts"] {
        assert_eq!(says(&trusted, &extending(name, "")), Ok(()), "{name} is trusted");
    }
}

#[test]
fn trust_that_others_could_have_written_is_no_trust() {
    let place = Place::new();
    let file = place.path("trust.toml");
    TrustStore::default().write(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(TrustStore::read(&file).unwrap_err().to_string().contains("mode 660"));
}

#[test]
fn downloads_need_trust_unless_the_user_says_them() {
    let place = Place::new();
    let url = "https://example.org/a/../b.txt";
    place.commit(&[("url.toml", &RECIPE.replace("data/*.txt", url)), ("own.toml", RECIPE)]);
    let locked = place.add().unwrap();
    let (store, mut trusted) = (place.store(), TrustStore::default());
    let shared = place.checked("extends = \"recipes/url\"\n");
    assert_eq!(capabilities(&shared)[0].to_string(), format!("downloads {url}"));
    let refused = trust::permit(&store, &trusted, &shared).unwrap_err().to_string();
    assert!(refused.contains(&format!("downloads {url}")), "{refused}");
    let own = place.checked(&format!("extends = \"recipes/own\"\n[data]\ntrain = \"{url}\"\n"));
    assert_eq!(own.recipe.data.as_ref().unwrap().train, [url]);
    assert!(trust::permit(&store, &trusted, &own).is_ok(), "the user's own URL");
    trusted.grant(&locked);
    assert!(trust::permit(&store, &trusted, &shared).is_ok());
}

#[test]
fn what_asks_for_notices_needs_trust_unless_the_user_says_it() {
    let place = Place::new();
    let training = "[model]\nkind = \"mlp\"\ninputs = 2\nhidden = [2]\nclasses = 2\n[data]\ntrain = \"a.csv\"\ntarget = \"y\"\n\
                    [objective]\nstop = { steps = 1 }\n";
    let command = "[cluster.notice]\ncommand = [\"sh\", \"-c\", \"id\"]\n";
    let url = "[cluster.notice]\nurl = \"http://10.0.0.1/delete\"\n";
    place.commit(&[
        ("command.toml", &format!("{training}{command}")),
        ("url.toml", &format!("{training}{url}")),
        ("plain.toml", training),
    ]);
    let locked = place.add().unwrap();
    let (store, mut trusted) = (place.store(), TrustStore::default());
    for (name, does) in [("command", "runs \"sh\" \"-c\" \"id\""), ("url", "reaches http://10.0.0.1/delete")]
    {
        let shared = place.checked(&format!("extends = \"recipes/{name}\"\n"));
        assert_eq!(capabilities(&shared)[0].to_string(), does);
        let refused = trust::permit(&store, &trusted, &shared).unwrap_err().to_string();
        assert!(refused.contains(does), "{refused}");
    }
    let own = place.checked(&format!("extends = \"recipes/plain\"\n{command}"));
    assert!(trust::permit(&store, &trusted, &own).is_ok(), "the user's own command");
    trusted.grant(&locked);
    let shared = place.checked("extends = \"recipes/command\"\n");
    assert!(trust::permit(&store, &trusted, &shared).is_ok());
}
