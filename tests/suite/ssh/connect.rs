//! SSH connections: host keys, authentication, and refusals.

use super::server::Server;
use dtrain_recipes::Host;
use dtrain_runner::transport::known_hosts::HostKeyError;
use dtrain_runner::transport::{
    Bastions, FACTS, OpenSsh, Ssh, SshTarget, Transport, TransportError, connect_all,
};

#[test]
fn a_known_host_runs_the_script_and_a_doubtful_one_gets_no_key_of_ours() {
    let Some(server) = Server::start() else { return };
    for lines in ["NAME HOST", "NAME ECDSA", "* ECDSA"] {
        let mut ssh = Ssh::connect(&server.target("user", lines)).unwrap_or_else(|e| panic!("{lines}: {e}"));
        let output = ssh.run(FACTS).expect("the script runs");
        assert!(output.status == 0 && output.stdout.contains("system=Linux"), "{output:?}");
    }
    let logins = server.logins();
    for (lines, expected) in [
        ("", HostKeyError::Unknown),
        ("127.0.0.1 HOST", HostKeyError::Unknown),
        (
            "NAME ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcB",
            HostKeyError::Changed,
        ),
        ("NAME HOST\n@revoked * HOST", HostKeyError::Revoked),
    ] {
        match Ssh::connect(&server.target("user", lines)).err() {
            Some(TransportError::HostKey { problem, fingerprint, .. }) => {
                assert_eq!(problem, expected, "{lines:?}");
                assert!(fingerprint.starts_with("SHA256:"));
            }
            other => panic!("{lines:?}: expected {expected:?}, found {other:?}"),
        }
    }
    let refused = Ssh::connect(&server.target("stranger", "NAME HOST")).err();
    assert!(matches!(refused, Some(TransportError::Authentication { .. })), "{refused:?}");
    assert_eq!(server.logins(), logins);
}

/// Through the configuration, as users have it, and with the key that the server shows.
#[test]
fn a_key_that_the_configuration_revokes_is_refused_and_so_is_every_host_when_the_list_cannot_be_read() {
    let Some(server) = Server::start() else { return };
    let host = Host { address: "gpu".into(), port: 22, user: None, via: None };
    let list = server.path("revoked");
    let error = || {
        let user = server.user(&format!("{}RevokedHostKeys {}\n", server.alias("gpu"), list.display()));
        let target = SshTarget::resolve(&host, &user).expect("an alias");
        Ssh::connect(&target).err()
    };
    std::fs::copy(server.path("user.pub"), &list).expect("copied");
    assert!(error().is_none(), "another key is revoked");
    std::fs::copy(server.path("host.pub"), &list).expect("copied");
    let refused = error();
    assert!(
        matches!(refused, Some(TransportError::HostKey { problem: HostKeyError::Revoked, .. })),
        "{refused:?}"
    );
    let made = std::process::Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&list).status();
    assert!(made.expect("it comes with sshd").success());
    for what in ["a KRL", "a folder", "nothing"] {
        match error() {
            Some(TransportError::KeyFile { path, .. }) => assert_eq!(path, list, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        match what {
            "a KRL" => {
                std::fs::remove_file(&list).expect("it is there");
                std::fs::create_dir(&list).expect("made");
            }
            _ => drop(std::fs::remove_dir(&list)),
        }
    }
    // A known_hosts file that cannot be read is not an empty one.
    let mut target = server.good();
    target.known_hosts.insert(0, server.path("missing"));
    Ssh::connect(&target).expect("one need not exist");
    target.known_hosts.insert(0, server.home());
    let refused = Ssh::connect(&target).err();
    assert!(
        matches!(&refused, Some(TransportError::KeyFile { path, .. }) if *path == server.home()),
        "{refused:?}"
    );
}

#[test]
fn an_alias_of_the_configuration_is_honoured_and_the_recipe_goes_first() {
    let Some(server) = Server::start() else { return };
    let user = server.user(&format!(
        "{}Host same\nHostName 127.0.0.1\nPort 1\nHostKeyAlias gpu\nIdentityFile {}\nUserKnownHostsFile {}\n\
         Host far\nProxyCommand nc %h %p\nHost loop\nProxyJump loop\n",
        server.alias("gpu"),
        server.path("user").display(),
        server.path("by_alias").display(),
    ));
    let key = std::fs::read_to_string(server.path("host.pub")).expect("a key");
    std::fs::write(server.path("by_alias"), format!("gpu {key}")).expect("written");
    let host = |address: &str, port| Host { address: address.into(), port, user: None, via: None };
    let target = SshTarget::resolve(&host("gpu", 22), &user).expect("an alias");
    assert_eq!((target.name(), target.user.as_str()), (format!("127.0.0.1:{}", server.port), "root"));
    assert_eq!(target.keys, [server.path("user")]);
    Ssh::connect(&target).expect("it is known").run(FACTS).expect("it answers");

    let same = Host { user: Some("root".into()), ..host("same", server.port) };
    let target = SshTarget::resolve(&same, &user).expect("an alias");
    assert_eq!(target.port, server.port);
    Ssh::connect(&target).expect("its key is known by another name").run(FACTS).expect("it answers");

    let refused = SshTarget::resolve(&host("far", 22), &user).expect_err("it cannot be done");
    assert!(matches!(&refused, TransportError::ProxyCommand { .. }), "{refused:?}");
    let refused = SshTarget::resolve(&host("loop", 22), &user).expect_err("it never ends");
    assert!(matches!(&refused, TransportError::Name(..) | TransportError::Config { .. }), "{refused:?}");
    let direct = Host { via: Some("none".into()), ..host("far", 22) };
    assert_eq!(SshTarget::resolve(&direct, &user).expect("directly").via, None);
    let through = Host { via: Some("a,me@gpu:2".into()), ..host("gpu", 22) };
    let bastion = SshTarget::resolve(&through, &user).expect("through two").via.expect("a bastion");
    assert_eq!((bastion.name().as_str(), bastion.user.as_str()), ("127.0.0.1:2", "me"));
    assert_eq!(bastion.via.expect("another before it").name(), "a:22");

    let mut ssh = OpenSsh::connect(&host("gpu", 22), &user).expect("`ssh` connects");
    let output = ssh.run(FACTS).expect("it answers");
    assert!(output.stdout.contains("system=Linux"), "{output:?}");
    let refused = OpenSsh::connect(&host("unknown.invalid", 22), &user).expect_err("there is none");
    assert!(refused.to_string().contains("unknown.invalid"), "{refused}");
}

/// What the configuration says of host keys does not count, neither for the host nor for a bastion before it.
#[test]
fn the_program_ssh_is_made_strict_for_bastions_as_well() {
    let (Some(server), Some(bastion)) = (Server::start(), Server::start()) else { return };
    let lax = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n";
    let unknown = |text: String| text.replace("UserKnownHostsFile ", "GlobalKnownHostsFile /dev/null\n#");
    let host =
        |via: Option<&str>| Host { address: "gpu".into(), port: 22, user: None, via: via.map(str::to_owned) };
    let (known_gpu, known_edge) = (server.alias("gpu"), bastion.alias("edge"));
    let strangers = [
        (format!("{}{lax}", unknown(known_gpu.clone())), host(None), &server),
        (format!("{known_gpu}{}{lax}", unknown(known_edge.clone())), host(Some("edge")), &bastion),
    ];
    for (config, host, stranger) in strangers {
        let before = stranger.logins();
        let refused = OpenSsh::connect(&host, &server.user(&config)).expect_err("its key is not known");
        assert!(refused.to_string().contains("Host key verification failed"), "{refused}");
        assert_eq!(stranger.logins(), before, "{config}");
    }
    let user = server.user(&format!("{known_gpu}{known_edge}"));
    let mut ssh = OpenSsh::connect(&host(Some("edge")), &user).expect("both are known");
    assert!(ssh.run(FACTS).expect("it answers").stdout.contains("system=Linux"));
    assert!(bastion.logins() > 0);
}

#[test]
fn each_host_of_many_has_its_own_answer_in_its_place() {
    let Some(server) = Server::with("MaxStartups 100", "") else { return };
    let good = server.good();
    let unknown = SshTarget { known_hosts: Vec::new(), ..good.clone() };
    let closed = SshTarget { port: 1, ..good.clone() };
    let targets = [good.clone(), unknown, closed, good];
    let results = connect_all(&targets, &Bastions::default());
    let said: Vec<_> =
        results.iter().map(|result| result.as_ref().map(|_| ()).map_err(ToString::to_string)).collect();
    assert!(said[0].is_ok() && said[3].is_ok(), "{said:?}");
    assert!(said[1].as_ref().is_err_and(|error| error.contains("known_hosts")), "{said:?}");
    assert!(said[2].as_ref().is_err_and(|error| error.contains("cannot connect")), "{said:?}");
}
